//! What a server tells about the number of its jobs, and what follows for their ids.
//!
//! No command of the protocol tells the last id. Yet a sweep over ids can know that it has seen
//! all, without changing anything:
//!
//! - `stats-tube` and `stats` count the jobs that there are, and all that were ever put. When as
//!   many have been seen as there were, and as were put since, there is none beyond. Only the tubes
//!   that are meant count, so that jobs that come and go elsewhere do not matter.
//! - Each `put` line takes an id at most. So without a binlog, `cmd-put` is a bound of all ids.
//!   With one, ids go on where they ended before the restart; but a job that is younger than the
//!   process was put by one of those lines, so that at most `cmd-put` ids are above its own.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::client::{Client, Reply};
use crate::filter::Tubes;
use crate::job::{Job, State};
use crate::yaml;

/// Counters of a server at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Census {
    /// Jobs in each tube that is meant, and all that were ever put into it; under the empty name
    /// those of all tubes, if every tube is meant.
    tubes: BTreeMap<String, (u64, u64)>,
    /// Lines with `put` since the start.
    puts: u64,
    /// Seconds since the start.
    uptime: u64,
    has_binlog: bool,
}

/// Numbers of jobs that have been seen, by their tubes.
pub(crate) type Seen = BTreeMap<String, u64>;

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
        yaml::items(&text).filter(|name| meant.matches(name)).map(str::to_owned).collect();
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

/// Returns the dictionary of `stats-tube`. Fails if there is no such tube, without making it.
pub(crate) fn tube(client: &mut Client, name: &str) -> Result<String> {
    let reply = client.ask(&format!("stats-tube {name}"))?;
    if reply.is("NOT_FOUND") {
        bail!("{}: there is no tube {name}", client.address());
    }
    if reply.is("OK") { reply.into_yaml() } else { Err(reply.unexpected("stats-tube")) }
}

impl Census {
    /// Asks a server.
    pub(crate) fn take(client: &mut Client, meant: &Tubes) -> Result<Self> {
        let mut tubes = BTreeMap::new();
        if !meant.is_all() {
            let names = self::tubes(client, meant)?;
            for (name, text) in tube_stats(client, &names)? {
                check(client, "stats-tube", &text, &["current-jobs-ready", "total-jobs"])?;
                tubes.insert(name, (jobs_in(&text), yaml::number(&text, "total-jobs")));
            }
        }
        let text = client.yaml("stats")?;
        check(client, "stats", &text, &["current-jobs-ready", "total-jobs", "cmd-put", "uptime"])?;
        if meant.is_all() {
            tubes.insert(String::new(), (jobs_in(&text), yaml::number(&text, "total-jobs")));
        }
        Ok(Self::from_stats(&text, tubes))
    }

    fn from_stats(text: &str, tubes: BTreeMap<String, (u64, u64)>) -> Self {
        let number = |key| yaml::number(text, key);
        Self {
            tubes,
            puts: number("cmd-put"),
            uptime: number("uptime"),
            has_binlog: number("binlog-current-index") > 0,
        }
    }

    /// Returns the number of jobs in the tubes that are meant.
    pub(crate) fn jobs(&self) -> u64 {
        self.tubes.values().fold(0, |sum, (live, _)| sum.saturating_add(*live))
    }

    /// Counts jobs that have been seen in the tubes that are meant.
    pub(crate) fn count(&self, seen: &mut Seen, jobs: &[Job]) {
        for job in jobs {
            let name = if self.tubes.contains_key("") { "" } else { &job.tube };
            match seen.get_mut(name) {
                Some(count) => *count += 1,
                None => drop(seen.insert(name.to_owned(), 1)),
            }
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

    /// Whether the jobs seen since `earlier` are all that were there then and still are.
    pub(crate) fn is_covered_by(&self, seen: &Seen, earlier: &Self) -> bool {
        earlier.tubes.iter().all(|(name, (live, put))| {
            // A tube that is gone has no jobs, and one that began again has none of those.
            let Some((_, put_now)) = self.tubes.get(name).filter(|now| now.1 >= *put) else {
                return true;
            };
            let all = live.saturating_add(put_now - put);
            seen.get(name).copied().unwrap_or(0) >= all
        })
    }
}

/// Fails if a server does not report these numbers: every count would be 0, and all jobs would
/// seem to have been found.
fn check(client: &Client, command: &str, text: &str, keys: &[&str]) -> Result<()> {
    for key in keys {
        if yaml::value(text, key).is_none_or(|value| value.parse::<u64>().is_err()) {
            bail!("{}: {command} tells no {key}", client.address());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(live: u64, put: u64, binlog: u64) -> Census {
        let text = format!(
            "---\ncmd-put: {}\nuptime: 100\nbinlog-current-index: {binlog}\n",
            put.saturating_add(5)
        );
        Census::from_stats(&text, BTreeMap::from([("a".to_owned(), (live, put))]))
    }

    fn job(age: u64) -> Job {
        let text = format!("---\nid: 1000\ntube: a\nstate: ready\nage: {age}\n");
        Job::from_stats(&text).unwrap()
    }

    #[test]
    fn a_bound_of_ids_needs_a_fresh_start_or_a_young_job() {
        assert_eq!(census(1, 10, 0).last_id(), Some(15));
        assert_eq!(census(1, 10, 3).last_id(), None);
        assert_eq!(census(1, 10, 3).last_id_by(&job(97)), Some(1015));
        assert_eq!(census(1, 10, 3).last_id_by(&job(98)), None);
    }

    #[test]
    fn deleted_jobs_do_not_stand_in_for_others() {
        let before = census(10, 100, 1);
        let covers = |now: &Census, count: usize| {
            let mut seen = Seen::new();
            before.count(&mut seen, &vec![job(1); count]);
            now.is_covered_by(&seen, &before)
        };
        assert!(covers(&before, 10) && !covers(&before, 9));
        // Three were put and five deleted: of ten seen, only five need be among the eight left.
        let after = census(8, 103, 1);
        assert!(!covers(&after, 10) && covers(&after, 13));
        // A tube that began again has other jobs.
        assert!(covers(&census(2, 2, 1), 0));
        assert!(!covers(&census(u64::MAX, u64::MAX, 1), 99));
    }
}
