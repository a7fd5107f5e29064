//! Samples of a server and its tubes. A rate compares two samples of one server process. After a
//! restart of the server, no rate is known until the second sample.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Map, Value};

use crate::address::Address;
use crate::client::Client;
use crate::filter::Tubes;
use crate::plan::Instance;
use crate::progress::count_as_f64;
use crate::statistics;
use crate::yaml;

/// The names of the counts of a server or a tube. Each name is the end of a key of `stats` and
/// `stats-tube`; for example, the count `waiting` has the key `current-waiting`.
pub(crate) const COUNT_NAMES: [&str; 5] = ["ready", "reserved", "delayed", "buried", "waiting"];

/// Counts and rates of a server or a tube.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TubeSample {
    /// The name of the tube; empty for the server.
    pub(crate) tube: String,
    /// The counts, in the order of their names in [`COUNT_NAMES`].
    pub(crate) counts: [u64; 5],
    /// Jobs put per second.
    pub(crate) puts: f64,
    /// Jobs deleted per second; for a server, `delete` commands per second.
    pub(crate) deletes: f64,
    /// Seconds until the pause ends.
    pub(crate) paused: u64,
    /// The number of connections that watch the tube.
    pub(crate) watching: u64,
}

/// One sample of a server and its tubes.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) server: TubeSample,
    pub(crate) tubes: Vec<TubeSample>,
    pub(crate) uptime: u64,
    pub(crate) connections: u64,
    /// Whether there is an earlier sample of the same process, so that rates are known.
    pub(crate) has_rates: bool,
    /// The dictionary of `stats`; if the server has the command `metrics`, also the dictionary of
    /// `metrics`.
    pub(crate) stats: String,
}

/// The totals of a sample, for the rates of the next sample.
#[derive(Debug, Default)]
struct Totals {
    instance: Instance,
    at: Option<Instant>,
    /// For each tube: its name, and how many of its jobs were put and deleted. The entry with an
    /// empty name is for the whole server.
    counts: Vec<(String, u64, u64)>,
}

/// A server to be sampled repeatedly.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) address: Address,
    client: Option<Client>,
    /// The time limit of a sample.
    limit: Option<Duration>,
    before: Totals,
}

impl Sampler {
    /// Makes a sampler, which connects at its first sample. Each sample has this time limit.
    pub(crate) fn new(address: Address, limit: Option<Duration>) -> Self {
        Self { address, client: None, limit, before: Totals::default() }
    }

    /// Takes a sample of the server. After an error, the next call connects again.
    pub(crate) fn sample(&mut self, selected: &Tubes) -> Result<Sample> {
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        let (mut client, mut stats) = Client::reuse(self.client.take(), &self.address, deadline)?;
        let names = statistics::tube_names(&mut client, selected)?;
        let tubes = statistics::tube_stats(&mut client, &names)?;
        if client.has_extension("metrics")? {
            stats += &client.yaml("metrics")?;
        }
        self.client = Some(client);
        Ok(self.compare_to_last(&stats, &tubes, Instant::now()))
    }

    /// Returns the connection of the last sample, unless that sample failed.
    pub(crate) fn client(&mut self) -> Option<&mut Client> {
        self.client.as_mut()
    }

    /// Makes a sample, with the rates since the previous sample.
    fn compare_to_last(&mut self, stats: &str, tubes: &[(String, String)], now: Instant) -> Sample {
        let number = |key| yaml::number(stats, key);
        let instance = Instance::from_stats(stats);
        let before = std::mem::take(&mut self.before);
        let seconds = before.at.map(|at| now.duration_since(at).as_secs_f64());
        let seconds = seconds.filter(|_| before.instance == instance);
        let mut totals = Totals { instance, at: Some(now), counts: Vec::new() };
        let mut line = |tube: &str, text: &str| {
            let (put, deleted) =
                (yaml::number(text, "total-jobs"), yaml::number(text, "cmd-delete"));
            totals.counts.push((tube.to_owned(), put, deleted));
            let old = before.counts.binary_search_by(|(name, ..)| name.as_str().cmp(tube));
            let rate = |now: u64, then: u64| {
                // The counters of a tube that was deleted and created again start at 0.
                let then = if now < then { 0 } else { then };
                seconds.map_or(0.0, |seconds| count_as_f64(now - then) / seconds.max(0.001))
            };
            let (old_put, old_deleted) = old.map_or((put, deleted), |at| {
                let (_, put, deleted) = before.counts[at];
                (put, deleted)
            });
            let key = |name: &&str| match *name {
                "waiting" => yaml::number(text, "current-waiting"),
                name => yaml::number(text, &format!("current-jobs-{name}")),
            };
            TubeSample {
                tube: tube.to_owned(),
                counts: COUNT_NAMES.each_ref().map(key),
                puts: rate(put, old_put),
                deletes: rate(deleted, old_deleted),
                paused: yaml::number(text, "pause-time-left"),
                watching: yaml::number(text, "current-watching"),
            }
        };
        // The binary search needs totals sorted by name. The server's total comes first, under an
        // empty name.
        let server = line("", stats);
        let tubes = tubes.iter().map(|(name, text)| line(name, text)).collect();
        self.before = totals;
        let (uptime, connections) = (number("uptime"), number("current-connections"));
        let (has_rates, stats) = (seconds.is_some(), stats.to_owned());
        Sample { server, tubes, uptime, connections, has_rates, stats }
    }
}

impl TubeSample {
    /// Returns the counts of a sample as a JSON object.
    pub(crate) fn counts_json(&self) -> Map<String, Value> {
        COUNT_NAMES.map(str::to_owned).into_iter().zip(self.counts.map(Value::from)).collect()
    }
}

impl Sample {
    /// Whether the sampled server accepts no new jobs.
    pub(crate) fn is_draining(&self) -> bool {
        yaml::value(&self.stats, "draining") == Some("true")
    }

    /// Returns the state of a binlog that is full or has failed, if the server reports that state.
    pub(crate) fn binlog_trouble(&self) -> Option<&str> {
        yaml::value(&self.stats, "binlog-state").filter(|state| !matches!(*state, "none" | "sound"))
    }

    /// Returns the notes on problems to print after a sample's numbers.
    pub(crate) fn notes(&self) -> String {
        let mut notes = if self.is_draining() { "  draining".to_owned() } else { String::new() };
        if let Some(state) = self.binlog_trouble() {
            notes.extend(["  binlog ", state]);
        }
        notes
    }

    /// Finds a tube of the sample by binary search.
    pub(crate) fn find_tube(&self, name: &str) -> Option<&TubeSample> {
        let at = self.tubes.binary_search_by(|line| line.tube.as_str().cmp(name)).ok();
        at.map(|at| &self.tubes[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Sampler {
        Sampler::new("localhost".parse().unwrap(), None)
    }

    fn stats(pid: u32, jobs: u64, deletes: u64) -> String {
        format!("---\npid: {pid}\ntotal-jobs: {jobs}\ncmd-delete: {deletes}\nuptime: 9\n")
    }

    #[expect(clippy::float_cmp, reason = "these quotients are exact")]
    #[test]
    fn rates_are_those_of_one_process() {
        let (mut watch, start) = (watch(), Instant::now());
        let tube = |jobs: u64| vec![("a".to_owned(), stats(0, jobs, 1))];
        let sample = watch.compare_to_last(&stats(1, 100, 50), &tube(10), start);
        assert_eq!((sample.server.puts, sample.tubes[0].puts), (0.0, 0.0));
        let later = start + Duration::from_secs(2);
        let sample = watch.compare_to_last(&stats(1, 300, 60), &tube(30), later);
        assert_eq!((sample.server.puts, sample.server.deletes), (100.0, 5.0));
        assert_eq!(sample.tubes[0].puts, 10.0);
        // After a restart the counters begin at 0, and no rate is known.
        let sample =
            watch.compare_to_last(&stats(2, 400, 9), &tube(3), later + Duration::from_secs(1));
        assert_eq!((sample.server.puts, sample.tubes[0].puts), (0.0, 0.0));
        // The counters of a tube that was deleted and created again start at 0.
        let sample =
            watch.compare_to_last(&stats(2, 400, 9), &tube(1), later + Duration::from_secs(2));
        assert_eq!(sample.tubes[0].puts, 1.0);
    }

    #[test]
    fn only_a_binlog_in_trouble_is_told() {
        for (stats, trouble) in [
            ("---\nbinlog-state: none\n", None),
            ("---\nbinlog-state: sound\n", None),
            ("---\nbinlog-state: failed\n", Some("failed")),
            ("---\nbinlog-oldest-index: 1\n", None),
        ] {
            let sample = watch().compare_to_last(stats, &[], Instant::now());
            assert_eq!(sample.binlog_trouble(), trouble, "{stats}");
        }
    }
}
