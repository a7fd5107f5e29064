//! What a server tells about the number of its jobs, and what follows for their ids.
//!
//! No command of the protocol tells the last id. Yet a sweep over ids can know that it has seen
//! all, without changing anything:
//!
//! - `stats` tells how many jobs there are. When that many of them have been seen, counting off
//!   those that were deleted meanwhile, there is none beyond.
//! - Each `put` line takes an id at most. So without a binlog, `cmd-put` is a bound of all ids.
//!   With one, ids go on where they ended before the restart; but a job that is younger than the
//!   process was put by one of those lines, so that at most `cmd-put` ids are above its own.

use anyhow::{Result, bail};

use crate::client::{Client, Reply};
use crate::filter::Tubes;
use crate::job::{Job, State};
use crate::yaml;

/// Counters of a server at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Census {
    /// Jobs in the tubes that are meant.
    pub(crate) meant: u64,
    /// Jobs in all tubes.
    live: u64,
    /// Jobs ever put since the start.
    inserted: u64,
    /// Lines with `put` since the start.
    puts: u64,
    /// Seconds since the start.
    uptime: u64,
    has_binlog: bool,
}

/// Seconds by which the age of a job and the age of its server may differ by rounding.
const ROUNDING: u64 = 2;

/// Counts the jobs in a dictionary of `stats` or `stats-tube`.
fn jobs_in(text: &str) -> u64 {
    let counts = State::ALL.iter().map(|it| yaml::number(text, &format!("current-jobs-{it}")));
    // A server may tell any number.
    counts.fold(0, u64::saturating_add)
}

/// Returns the names of all tubes that are meant, sorted.
pub(crate) fn tubes(client: &mut Client, meant: &Tubes) -> Result<Vec<String>> {
    let text = client.yaml("list-tubes")?;
    let mut names: Vec<_> =
        yaml::items(&text).filter(|name| meant.has(name)).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Returns the dictionaries of `stats-tube`, of those tubes that still exist.
pub(crate) fn tube_stats(client: &mut Client, names: &[String]) -> Result<Vec<(String, String)>> {
    let mut all = Vec::with_capacity(names.len());
    let write = |name: &&String, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("stats-tube {name}\r\n").as_bytes());
    };
    client.pipeline(names, write, |name, reply: Reply| {
        if reply.is("OK") {
            all.push((name.clone(), reply.into_yaml()?));
        } else if !reply.is("NOT_FOUND") {
            return Err(reply.unexpected("stats-tube"));
        }
        Ok(())
    })?;
    Ok(all)
}

impl Census {
    /// Asks a server.
    pub(crate) fn take(client: &mut Client, meant: &Tubes) -> Result<Self> {
        // The tubes come first, so that a job deleted in between is counted as gone.
        let mut in_tubes = None;
        if !meant.is_all() {
            let names = tubes(client, meant)?;
            let stats = tube_stats(client, &names)?;
            let counts = stats.iter().map(|(_, text)| jobs_in(text));
            in_tubes = Some(counts.fold(0, u64::saturating_add));
        }
        let text = client.yaml("stats")?;
        // Without them every count would be 0, and all would seem to have been found.
        for key in ["current-jobs-ready", "total-jobs", "cmd-put", "uptime"] {
            if yaml::value(&text, key).is_none_or(|value| value.parse::<u64>().is_err()) {
                bail!("{}: stats tells no {key}", client.address());
            }
        }
        Ok(Self::from_stats(&text, in_tubes))
    }

    fn from_stats(text: &str, in_tubes: Option<u64>) -> Self {
        let number = |key| yaml::number(text, key);
        let live = jobs_in(text);
        Self {
            meant: in_tubes.unwrap_or(live),
            live,
            inserted: number("total-jobs"),
            puts: number("cmd-put"),
            uptime: number("uptime"),
            has_binlog: number("binlog-current-index") > 0,
        }
    }

    /// Returns an id that no job of that moment exceeds, if there is no binlog.
    pub(crate) fn last_id(&self) -> Option<u64> {
        (!self.has_binlog).then_some(self.puts)
    }

    /// Returns the same for any server, from one of its jobs; `None` if that one is too old.
    pub(crate) fn last_id_by(&self, job: &Job) -> Option<u64> {
        (job.age.saturating_add(ROUNDING) < self.uptime).then(|| job.id.saturating_add(self.puts))
    }

    /// Returns the number of lines with `put`.
    pub(crate) fn puts(&self) -> u64 {
        self.puts
    }

    /// Whether `seen` jobs since `earlier` are all that are meant now.
    pub(crate) fn is_covered_by(&self, seen: u64, earlier: &Self) -> bool {
        let put = self.inserted.saturating_sub(earlier.inserted);
        let gone = earlier.live.saturating_add(put).saturating_sub(self.live);
        seen >= self.meant.saturating_add(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(live: u64, inserted: u64, binlog: u64) -> Census {
        let text = format!(
            "---\ncurrent-jobs-ready: {live}\ncurrent-jobs-reserved: 0\ncmd-put: {}\n\
             total-jobs: {inserted}\nuptime: 100\nbinlog-current-index: {binlog}\n",
            inserted + 5
        );
        Census::from_stats(&text, None)
    }

    #[test]
    fn a_bound_of_ids_needs_a_fresh_start_or_a_young_job() {
        assert_eq!(census(1, 10, 0).last_id(), Some(15));
        assert_eq!(census(1, 10, 3).last_id(), None);
        let stats = |age: u64| {
            let text = format!("---\nid: 1000\ntube: a\nstate: ready\nage: {age}\n");
            Job::from_stats(&text).unwrap()
        };
        assert_eq!(census(1, 10, 3).last_id_by(&stats(97)), Some(1015));
        assert_eq!(census(1, 10, 3).last_id_by(&stats(98)), None);
    }

    #[test]
    fn deleted_jobs_do_not_stand_in_for_others() {
        let before = census(10, 100, 1);
        assert!(before.is_covered_by(10, &before) && !before.is_covered_by(9, &before));
        // Three were put and five deleted: of ten seen, only five need be among the eight left.
        let after = census(8, 103, 1);
        assert!(!after.is_covered_by(10, &before) && after.is_covered_by(13, &before));
    }
}
