//! Selects tubes and jobs by globs, states, ages and patterns; also parses times with units.

use anyhow::{Result, anyhow, bail, ensure};
use globset::{Glob, GlobSet, GlobSetBuilder};
use regex::bytes::{Regex, RegexBuilder};

use crate::job::{Job, State};
use crate::message::usage;

/// A selection of tubes by globs such as `mail-*`. Without a glob, every tube is selected.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tubes {
    globs: Option<GlobSet>,
}

impl Tubes {
    /// Parses globs for names of tubes.
    pub(crate) fn new(patterns: &[String]) -> Result<Self> {
        if patterns.is_empty() {
            return Ok(Self::default());
        }
        let mut globs = GlobSetBuilder::new();
        for pattern in patterns {
            globs.add(Glob::new(pattern).map_err(usage)?);
        }
        Ok(Self { globs: Some(globs.build().map_err(usage)?) })
    }

    /// Makes a selection of one tube, by its name.
    pub(crate) fn of_name(name: &str) -> Self {
        let glob = Glob::new(&globset::escape(name)).expect("an escaped name is a pattern");
        Self { globs: GlobSetBuilder::new().add(glob).build().ok() }
    }

    /// Whether this tube is selected.
    pub(crate) fn matches(&self, tube: &str) -> bool {
        self.globs.as_ref().is_none_or(|globs| globs.is_match(tube))
    }

    /// Whether every tube is selected.
    pub(crate) fn is_all(&self) -> bool {
        self.globs.is_none()
    }
}

/// A selection of jobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    pub(crate) tubes: Tubes,
    /// Selects jobs in one of these states; if the list is empty, jobs in any state.
    pub(crate) states: Vec<State>,
    /// Selects jobs of at least this age, in seconds.
    pub(crate) older_than: Option<u64>,
    /// Selects delayed jobs that become ready after at least this many seconds.
    pub(crate) due_after: Option<u64>,
    /// Selects jobs whose body matches this pattern.
    pub(crate) pattern: Option<Regex>,
}

impl Filter {
    /// Makes a filter for the jobs of one tube in one state.
    pub(crate) fn of_state(tube: &str, state: State) -> Self {
        Self { tubes: Tubes::of_name(tube), states: vec![state], ..Self::default() }
    }

    /// Returns the states that the filter selects.
    pub(crate) fn states(&self) -> &[State] {
        if self.states.is_empty() { &State::ALL } else { &self.states }
    }

    /// Whether the filter selects only by tube and state.
    pub(crate) fn is_by_state(&self) -> bool {
        self.older_than.is_none() && self.due_after.is_none() && self.pattern.is_none()
    }

    /// Restricts the filter to jobs that can be deleted or moved; fails if `reserved` is selected.
    pub(crate) fn restrict_to_deletable(&mut self) -> Result<()> {
        if self.states.is_empty() {
            self.states = State::DELETABLE.to_vec();
        }
        let is_free = !self.states.contains(&State::Reserved);
        ensure!(is_free, usage("reserved jobs cannot be deleted or moved: workers hold them"));
        Ok(())
    }

    /// Whether the filter selects the job, without regard to the pattern for bodies.
    pub(crate) fn matches(&self, job: &Job) -> bool {
        let is_due_after = |seconds| job.state == State::Delayed && job.time_left >= seconds;
        self.states().contains(&job.state)
            && self.older_than.is_none_or(|seconds| job.age >= seconds)
            && self.due_after.is_none_or(is_due_after)
            && self.tubes.matches(&job.tube)
    }

    /// Whether a body matches the filter's pattern; true if the filter has no pattern.
    pub(crate) fn matches_body(&self, body: &[u8]) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(body))
    }

    /// Makes the filter's pattern for bodies: a regular expression, or plain text.
    pub(crate) fn to_pattern(text: &str, is_plain: bool, ignores_case: bool) -> Result<Regex> {
        let escaped = if is_plain { regex::escape(text) } else { text.to_owned() };
        RegexBuilder::new(&escaped).case_insensitive(ignores_case).build().map_err(usage)
    }
}

/// Parses a time such as `90`, `90s`, `5m`, `2h` or `1d`; returns seconds.
pub(crate) fn parse_time(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        unit => bail!("{unit:?} is not a unit of time: use s, m, h or d"),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(seconds) => Ok(seconds),
        None => bail!("{text:?} is not a time, such as 90, 90s, 5m, 2h or 1d"),
    }
}

/// Parses a time as [`parse_time`] does; the time must be at least one second.
pub(crate) fn parse_some_time(text: &str) -> Result<u64> {
    let seconds = parse_time(text)?;
    ensure!(seconds > 0, "the time must be at least 1 second");
    Ok(seconds)
}

/// Parses a time as [`parse_time`] does; the time must fit into a delay or a time to run.
pub(crate) fn parse_delay(text: &str) -> Result<u32> {
    let seconds = parse_time(text)?;
    seconds.try_into().map_err(|_| anyhow!("it must be at most {} seconds, 136 years", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tubes_are_chosen_by_globs() {
        let tubes = Tubes::new(&["mail-*".into(), "a/b".into()]).unwrap();
        assert!(tubes.matches("mail-1/x") && tubes.matches("a/b"));
        assert!(!tubes.matches("mail") && !tubes.matches("a"));
        assert!(Tubes::new(&[]).unwrap().matches("any") && Tubes::default().is_all());
        assert!(Tubes::new(&["[".into()]).is_err());
    }

    #[test]
    fn times_have_units() {
        for (text, expected) in [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400)]
        {
            assert_eq!(parse_time(text).unwrap(), expected);
        }
        for text in ["", "m", "-1", "1w", "1.5h", "99999999999999999999", "18446744073709551615d"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_delay_fits_into_the_protocol() {
        assert_eq!(parse_delay("4294967295").unwrap(), u32::MAX);
        assert!(parse_delay("4294967296").is_err() && parse_delay("50000d").is_err());
    }

    #[test]
    fn patterns_are_plain_on_request() {
        assert!(Filter::to_pattern("a.c", false, false).unwrap().is_match(b"\xffabc"));
        assert!(!Filter::to_pattern("a.c", true, false).unwrap().is_match(b"abc"));
        assert!(Filter::to_pattern("A.C", true, true).unwrap().is_match(b"xa.cx"));
    }
}
