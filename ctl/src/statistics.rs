//! Counts the jobs of a server, and derives bounds on their ids from these counts.
//!
//! No command of the protocol reports the last id of a server. Still, a sweep over ids can
//! determine that it has found every job, without changing anything:
//!
//! - `stats-tube` and `stats` count the current jobs, and all jobs ever put. A sweep has found all
//!   jobs if the number of jobs found is the number of jobs at the start of the sweep plus the
//!   number of jobs put since. Only the selected tubes are counted, so puts and deletes in other
//!   tubes do not matter.
//! - Each `put` line uses at most one id. So without a binlog, no id is larger than `cmd-put`. With
//!   a binlog, ids continue after a restart, but `cmd-put` begins at 0. Since the restart, at most
//!   `cmd-put` ids were used. So if any job was put since the restart, no id is larger than this
//!   job's id plus `cmd-put`.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use crate::client::Client;
use crate::filter::Tubes;
use crate::job::{Job, State};
use crate::message::conflict;
use crate::yaml;

/// The name of each column of `tubes`, its key in `stats-tube`, and whether it is a default column.
pub(crate) const TUBE_COLUMNS: [(&str, &str, bool); 13] = [
    ("tube", "name", true),
    ("ready", "current-jobs-ready", true),
    ("urgent", "current-jobs-urgent", false),
    ("reserved", "current-jobs-reserved", true),
    ("delayed", "current-jobs-delayed", true),
    ("buried", "current-jobs-buried", true),
    ("total", "total-jobs", false),
    ("deleted", "cmd-delete", false),
    ("using", "current-using", false),
    ("watching", "current-watching", true),
    ("waiting", "current-waiting", true),
    ("pause", "pause", false),
    ("paused-for", "pause-time-left", true),
];

/// The name of a column, and its key.
pub(crate) type Column = (&'static str, &'static str);

/// Finds a column of `stats-tube` by its name.
pub(crate) fn tube_column(name: &str) -> Result<Column> {
    let found = TUBE_COLUMNS.iter().find(|(column, _, _)| *column == name);
    let Some(&(column, key, _)) = found else {
        let names: Vec<_> = TUBE_COLUMNS.iter().map(|(column, _, _)| *column).collect();
        bail!("no column {name:?}; the columns are {}", names.join(", "));
    };
    Ok((column, key))
}

/// Counters of a server at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counters {
    /// For each selected tube, the number of its current jobs and of all jobs ever put into it. If
    /// every tube is selected, the only entry is for the server, under the empty name.
    tubes: BTreeMap<String, (u64, u64)>,
    /// The number of `put` lines since the start of the server.
    pub(crate) puts: u64,
    /// Seconds since the start of the server.
    uptime: u64,
    has_binlog: bool,
}

/// Numbers of jobs found so far, by tube.
pub(crate) type FoundCounts = BTreeMap<String, u64>;

/// Seconds by which rounding may shift the age of a job relative to the uptime of its server.
const ROUNDING_SECONDS: u64 = 2;

/// Returns the number of jobs in a dictionary of `stats` or `stats-tube`.
fn count_by_stats(text: &str) -> u64 {
    let counts = State::ALL.iter().map(|it| yaml::number(text, &format!("current-jobs-{it}")));
    // A server may report any number, so the sum must not overflow.
    counts.fold(0, u64::saturating_add)
}

/// Returns the names of the selected tubes, sorted.
pub(crate) fn tube_names(client: &mut Client, selected: &Tubes) -> Result<Vec<String>> {
    let text = client.yaml("list-tubes")?;
    let mut names: Vec<_> =
        yaml::items(&text).filter(|name| selected.matches(name)).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Returns the dictionary of `stats-tube` for each tube that still exists.
pub(crate) fn tube_stats(client: &mut Client, names: &[String]) -> Result<Vec<(String, String)>> {
    let mut all = Vec::with_capacity(names.len());
    let line = |name: &&String| format!("stats-tube {name}");
    client.yaml_of_each(names, line, |name, text| {
        all.push((name.clone(), text));
        Ok(())
    })?;
    Ok(all)
}

/// Returns the dictionary of `stats-tube`. Fails if the tube does not exist, and never creates it.
pub(crate) fn existing_tube_stats(client: &mut Client, name: &str) -> Result<String> {
    let reply = client.ask(&format!("stats-tube {name}"))?;
    if reply.is("NOT_FOUND") {
        return Err(conflict(format!("{}: there is no tube {name}", client.address())));
    }
    if reply.is("OK") { reply.into_yaml() } else { Err(reply.error_for("stats-tube")) }
}

impl Counters {
    /// Reads the counters of a server.
    pub(crate) fn read(client: &mut Client, selected: &Tubes) -> Result<Self> {
        let mut tubes = BTreeMap::new();
        if !selected.is_all() {
            let names = tube_names(client, selected)?;
            for (name, text) in tube_stats(client, &names)? {
                require_counters(client, "stats-tube", &text, "current-jobs-ready total-jobs")?;
                tubes.insert(name, (count_by_stats(&text), yaml::number(&text, "total-jobs")));
            }
        }
        let text = client.yaml("stats")?;
        require_counters(client, "stats", &text, "current-jobs-ready total-jobs cmd-put uptime")?;
        if selected.is_all() {
            tubes.insert(String::new(), (count_by_stats(&text), yaml::number(&text, "total-jobs")));
        }
        Ok(Self::from_stats(&text, tubes))
    }

    /// Reads the counters of a server from the dictionary of `stats`.
    fn from_stats(text: &str, tubes: BTreeMap<String, (u64, u64)>) -> Self {
        let number = |key| yaml::number(text, key);
        let (puts, uptime) = (number("cmd-put"), number("uptime"));
        Self { tubes, puts, uptime, has_binlog: number("binlog-current-index") > 0 }
    }

    /// Returns the number of jobs in the selected tubes when the counters were read.
    pub(crate) fn jobs(&self) -> u64 {
        self.tubes.values().fold(0, |sum, (live, _)| sum.saturating_add(*live))
    }

    /// Adds jobs found in the selected tubes to the counts in `seen`.
    pub(crate) fn count(&self, seen: &mut FoundCounts, jobs: &[Job]) {
        for job in jobs {
            let name = if self.tubes.contains_key("") { "" } else { &job.tube };
            match seen.get_mut(name) {
                Some(count) => *count += 1,
                None => drop(seen.insert(name.to_owned(), 1)),
            }
        }
    }

    /// Returns a number that no id exceeded when the counters were read; `None` if there is a
    /// binlog.
    pub(crate) fn last_id(&self) -> Option<u64> {
        (!self.has_binlog).then_some(self.puts)
    }

    /// Returns a number that no job's id exceeds, computed from one of the jobs. Unlike
    /// [`Self::last_id`], this function works if the server has a binlog. `None` if this job is
    /// older than the server's process.
    pub(crate) fn last_id_by(&self, job: &Job) -> Option<u64> {
        (job.age.saturating_add(ROUNDING_SECONDS) < self.uptime)
            .then(|| job.id.saturating_add(self.puts))
    }

    /// Whether `seen` includes every job that existed at the time of `earlier` and still exists.
    pub(crate) fn is_covered_by(&self, seen: &FoundCounts, earlier: &Self) -> bool {
        earlier.tubes.iter().all(|(name, (live, put))| {
            // A tube that was deleted, and perhaps created again, has none of its earlier jobs.
            let Some((_, put_now)) = self.tubes.get(name).filter(|now| now.1 >= *put) else {
                return true;
            };
            let all = live.saturating_add(put_now - put);
            seen.get(name).copied().unwrap_or(0) >= all
        })
    }
}

/// Fails if a server does not report these numbers: a missing number would be read as 0, and a
/// sweep would seem complete.
fn require_counters(client: &Client, command: &str, text: &str, keys: &str) -> Result<()> {
    for key in keys.split(' ') {
        let is_there = yaml::value(text, key).is_some_and(|value| value.parse::<u64>().is_ok());
        ensure!(is_there, "{}: the reply to {command} has no {key}", client.address());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_column_is_told_the_known_ones() {
        assert_eq!(tube_column("buried").unwrap(), ("buried", "current-jobs-buried"));
        assert!(tube_column("lost").unwrap_err().to_string().contains("ready, urgent"));
    }

    fn census(live: u64, put: u64, binlog: u64) -> Counters {
        let text = format!(
            "---\ncmd-put: {}\nuptime: 100\nbinlog-current-index: {binlog}\n",
            put.saturating_add(5)
        );
        Counters::from_stats(&text, BTreeMap::from([("a".to_owned(), (live, put))]))
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
        let covers = |now: &Counters, count: usize| {
            let mut seen = FoundCounts::new();
            before.count(&mut seen, &vec![job(1); count]);
            now.is_covered_by(&seen, &before)
        };
        assert!(covers(&before, 10) && !covers(&before, 9));
        // Three jobs were put and five deleted: the ten jobs found may lack the three new jobs.
        let after = census(8, 103, 1);
        assert!(!covers(&after, 10) && covers(&after, 13));
        // A tube that was created again has none of the jobs that existed at the start.
        assert!(covers(&census(2, 2, 1), 0));
        assert!(!covers(&census(u64::MAX, u64::MAX, 1), 99));
    }
}
