//! A job, read from `stats-job`, from `list-jobs`, or from a line of a file.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::ValueEnum;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::output::json_object;
use crate::yaml;

/// The state of a job.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Deserialize, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// A worker can reserve the job.
    Ready,
    /// The job becomes ready later.
    Delayed,
    /// The job stays buried until a kick.
    Buried,
    /// A worker has reserved the job.
    Reserved,
}

impl State {
    /// The states in which a job can be deleted, moved or released.
    pub(crate) const DELETABLE: [Self; 3] = [Self::Ready, Self::Delayed, Self::Buried];

    /// All states, in the order in which tables show them.
    pub(crate) const ALL: [Self; 4] = [Self::Ready, Self::Delayed, Self::Buried, Self::Reserved];

    /// Returns the protocol's word for the state of a job.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::Buried => "buried",
            Self::Reserved => "reserved",
        }
    }
}

impl fmt::Display for State {
    /// Formats the state of a job as the protocol's word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A job. Optional fields are `None` if they are unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) tube: String,
    pub(crate) state: State,
    pub(crate) pri: u32,
    /// Seconds since the job was put.
    pub(crate) age: u64,
    /// Seconds until a delayed job becomes ready, or until a reserved job times out.
    pub(crate) time_left: u64,
    /// The time to run, in seconds.
    pub(crate) ttr: Option<u64>,
    /// How often the job was reserved, timed out, released, buried and kicked.
    pub(crate) counts: Option<[u64; 5]>,
    /// The length of the body, in bytes.
    pub(crate) size: Option<u64>,
    pub(crate) body: Option<Vec<u8>>,
}

/// The names of the numbers in [`Job::counts`], in the same order. Each name is also a key of
/// `stats-job`.
pub(crate) const COUNT_NAMES: [&str; 5] = ["reserves", "timeouts", "releases", "buries", "kicks"];

impl Job {
    /// Makes a job to put, with a priority, a delay and a time to run.
    pub(crate) fn new(tube: &str, (pri, delay, ttr): (u32, u32, u32), body: Vec<u8>) -> Self {
        let state = if delay > 0 { State::Delayed } else { State::Ready };
        let (tube, time_left, ttr) = (tube.to_owned(), delay.into(), Some(ttr.into()));
        let (id, age, counts, size) = (0, 0, None, Some(body.len() as u64));
        Self { id, tube, state, pri, age, time_left, ttr, counts, size, body: Some(body) }
    }

    /// Parses a job from the dictionary of `stats-job`.
    pub(crate) fn from_stats(text: &str) -> Result<Self> {
        let mut state = None;
        let mut tube = None;
        let (mut id, mut pri, mut age, mut time_left, mut ttr) = (None, 0, 0, 0, None);
        let mut counts = [0; 5];
        for (key, value) in yaml::pairs(text) {
            let number = || value.parse::<u64>().unwrap_or(0);
            match key {
                "id" => id = value.parse().ok(),
                "tube" => tube = Some(value.to_owned()),
                "state" => state = Some(State::from_str(value, false).map_err(Error::msg)?),
                "pri" => pri = value.parse().unwrap_or(0),
                "age" => age = number(),
                "time-left" => time_left = number(),
                "ttr" => ttr = Some(number()),
                _ => {
                    if let Some(at) = COUNT_NAMES.iter().position(|&name| name == key) {
                        counts[at] = number();
                    }
                }
            }
        }
        let (Some(id), Some(tube), Some(state)) = (id, tube, state) else {
            bail!("the reply to stats-job has no id, tube or state: {text:?}");
        };
        let (counts, size, body) = (Some(counts), None, None);
        Ok(Self { id, tube, state, pri, age, time_left, ttr, counts, size, body })
    }

    /// Parses a job from one item of `list-jobs`.
    pub(crate) fn from_listed(text: &str, tube: &str, state: State) -> Result<Self> {
        let number = |key| yaml::number(text, key);
        let id = yaml::value(text, "id").and_then(|id| id.parse().ok());
        let id = id.with_context(|| format!("a line of list-jobs has no id: {text:?}"))?;
        let pri = u32::try_from(number("pri")).context("the priority in list-jobs is too large")?;
        let (tube, age, time_left) = (tube.to_owned(), number("age"), number("time-left"));
        let (ttr, counts, size, body) = (None, None, Some(number("size")), None);
        Ok(Self { id, tube, state, pri, age, time_left, ttr, counts, size, body })
    }

    /// Returns how long the job stays reserved after a reserve or a touch.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(self.ttr.unwrap_or(1).max(1))
    }

    /// Sets the job's body, and the size of the body.
    pub(crate) fn set_body(&mut self, body: Vec<u8>) {
        self.size = Some(body.len() as u64);
        self.body = Some(body);
    }

    /// Returns the job as a JSON object.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let has_end = matches!(self.state, State::Delayed | State::Reserved);
        let body = self.body.as_deref();
        let text = body.and_then(|body| std::str::from_utf8(body).ok());
        let mut object = json_object(json!({
            "id": self.id,
            "tube": self.tube,
            "state": self.state,
            "pri": self.pri,
            "age": self.age,
            "size": self.size,
            "time-left": has_end.then_some(self.time_left),
            "ttr": self.ttr,
            "body": text,
            "body_base64": body.filter(|_| text.is_none()).map(|body| BASE64.encode(body)),
        }));
        let counts = self.counts.iter().flatten();
        let counts = COUNT_NAMES.iter().zip(counts).map(|(name, &it)| ((*name).into(), it.into()));
        object.extend(counts);
        object
    }
}

/// A line of a file of jobs.
#[derive(Debug)]
pub(crate) enum Line {
    Job(Job),
    /// The last line of an export: the number of jobs before it.
    Count(u64),
}

/// The keys that a line may have: the keys of [`Job::to_json`], the options of `put`, and `count`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[expect(dead_code, reason = "some keys are only allowed")]
struct Keys {
    id: Option<u64>,
    tube: Option<String>,
    state: Option<State>,
    pri: Option<u32>,
    age: Option<u64>,
    time_left: Option<u32>,
    delay: Option<u32>,
    ttr: Option<u32>,
    body: Option<String>,
    #[serde(rename = "body_base64")]
    body_base64: Option<String>,
    count: Option<u64>,
    // The following keys are ignored, because a new job gets values of its own.
    server: Option<IgnoredAny>,
    size: Option<u64>,
    reserves: Option<u64>,
    timeouts: Option<u64>,
    releases: Option<u64>,
    buries: Option<u64>,
    kicks: Option<u64>,
}

impl Line {
    /// Parses a line of a file of jobs: an object of [`Job::to_json`], any other object with at
    /// least a body, or a count of the jobs in the lines before.
    pub(crate) fn from_json(line: &str) -> Result<Self> {
        let keys: Keys = serde_json::from_str(line)?;
        if let Some(count) = keys.count {
            let is_alone = line == Self::count_json(count);
            ensure!(is_alone, "a line with \"count\" must have no other key");
            return Ok(Self::Count(count));
        }
        let body = match (keys.body, keys.body_base64) {
            (Some(body), None) => body.into_bytes(),
            (None, Some(encoded)) => BASE64.decode(encoded).context("body_base64")?,
            (None, None) => bail!("\"body\" or \"body_base64\" is missing"),
            (Some(_), Some(_)) => bail!("\"body\" and \"body_base64\" exclude each other"),
        };
        let delay = keys.delay.unwrap_or(0);
        let default = if delay > 0 { State::Delayed } else { State::Ready };
        let is_whole = keys.time_left.is_none() || keys.state.is_some();
        ensure!(is_whole, "\"time-left\" needs a \"state\"; the delay of a new job is \"delay\"");
        let state = keys.state.unwrap_or(default);
        ensure!(delay == 0 || state == State::Delayed, "a {state} job cannot have a delay");
        let tube = parse_tube_name(keys.tube.as_deref().unwrap_or("default"))?;
        let pri = keys.pri.unwrap_or(DEFAULT_PRI);
        let ttr = Some(keys.ttr.map_or(DEFAULT_TTR, u64::from));
        let time_left = keys.time_left.unwrap_or(delay).into();
        let (id, age) = (keys.id.unwrap_or(0), keys.age.unwrap_or(0));
        let new = Job::new(&tube, (pri, delay, 0), body);
        Ok(Self::Job(Job { id, state, age, time_left, ttr, ..new }))
    }

    /// Makes the last line of a file of jobs, by which `import` detects a truncated file.
    pub(crate) fn count_json(count: u64) -> String {
        format!("{{\"count\":{count}}}")
    }
}

/// The default priority.
pub(crate) const DEFAULT_PRI: u32 = 1024;

/// The default time to run, in seconds.
pub(crate) const DEFAULT_TTR: u64 = 60;

/// The longest name of a tube, in bytes.
pub(crate) const TUBE_NAME_BYTES_MAX: usize = 200;

/// Fails unless the protocol allows the name of a tube; an allowed name is one word of a command.
pub(crate) fn parse_tube_name(name: &str) -> Result<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&byte);
    if name.is_empty() || name.len() > TUBE_NAME_BYTES_MAX || name.starts_with('-') {
        bail!("{name:?} is not a tube name: use 1 to {TUBE_NAME_BYTES_MAX} bytes, the first not -");
    }
    if !name.bytes().all(is_allowed) {
        bail!("{name:?} is not a tube name: use only letters, digits and -+/;.$_()");
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Output, is_terminal_control};

    const STATS: &str = "---\nid: 7\ntube: \"a\"\nstate: delayed\npri: 4294967295\nage: 5\n\
                         delay: 9\nttr: 60\ntime-left: 4\nfile: 0\nreserves: 1\ntimeouts: 2\n\
                         releases: 3\nburies: 4\nkicks: 5\n";

    fn job_of(line: &str) -> Job {
        match Line::from_json(line).unwrap() {
            Line::Job(job) => job,
            Line::Count(count) => panic!("a count of {count}"),
        }
    }

    #[test]
    fn stats_of_both_releases_are_read() {
        let job = Job::from_stats(STATS).unwrap();
        assert_eq!(job, Job::from_stats(&STATS.replace('"', "")).unwrap());
        assert_eq!((job.id, job.tube.as_str(), job.state), (7, "a", State::Delayed));
        assert_eq!((job.pri, job.age, job.ttr, job.time_left), (u32::MAX, 5, Some(60), 4));
        assert_eq!(job.counts, Some([1, 2, 3, 4, 5]));
        assert!(Job::from_stats("---\nid: 7\n").is_err());
    }

    #[test]
    fn a_job_survives_json_whatever_its_body() {
        for body in
            [&b"plain \"text\"\n"[..], b"", b"\0\xff\xfe\r\n", "\u{9b}\u{7f}\u{202e}".as_bytes()]
        {
            let mut job = Job::from_stats(STATS).unwrap();
            job.set_body(body.to_vec());
            let line = Output::json_line(job.to_json(), None);
            assert!(!line.contains(is_terminal_control), "{line:?}");
            assert_eq!(job_of(&line), Job { counts: None, ..job });
        }
    }

    #[test]
    fn lines_that_are_no_jobs_are_refused() {
        let job = job_of(r#"{"body":"x"}"#);
        assert_eq!((job.tube.as_str(), job.state, job.pri), ("default", State::Ready, 1024));
        let job = job_of(r#"{"body":"x","delay":9}"#);
        assert_eq!((job.state, job.time_left), (State::Delayed, 9));
        assert!(matches!(Line::from_json(&Line::count_json(7)), Ok(Line::Count(7))));
        for line in [
            "",
            "[]",
            "{}",
            r#"{"body":1}"#,
            r#"{"body":"x","body_base64":"eA=="}"#,
            r#"{"body_base64":"?"}"#,
            r#"{"body":"x","state":"lost"}"#,
            r#"{"body":"x","pri":4294967296}"#,
            r#"{"body":"x","pri":-1}"#,
            // A server refuses a `put` with this value, and reads the body as commands.
            r#"{"body":"x","ttr":4294967296}"#,
            r#"{"body":"x","state":"delayed","time-left":4294967296}"#,
            r#"{"body":"x","tube":"a\r\ndelete 1"}"#,
            r#"{"body":"x","tube":""}"#,
            r#"{"body":"x","tube":"-a"}"#,
            // An unknown JSON key, or keys that contradict each other, may be a user's error.
            r#"{"body":"x","priority":1}"#,
            r#"{"body":"x","state":"buried","delay":1}"#,
            r#"{"body":"x","count":1}"#,
        ] {
            assert!(Line::from_json(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_name_is_one_word_of_a_line() {
        for name in ["a", "A-z+/;.$_()09", &"x".repeat(200)] {
            assert_eq!(parse_tube_name(name).unwrap(), name);
        }
        for name in
            ["", "-a", "a b", "a\r\ndelete 1", "a\0", "<b>", "a*", "\u{fc}", &"x".repeat(201)]
        {
            assert!(parse_tube_name(name).is_err(), "{name:?}");
        }
    }
}
