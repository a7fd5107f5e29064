//! The YAML documents of `stats`, `stats-job`, `stats-tube` and the lists: the original's keys, in
//! its order, with its spacing and its quotes. And those of `capabilities`, `list-jobs` and
//! `metrics`, in the same form. Clients compare and split these texts, so every byte matters.

use std::{
    fmt::{self, Display, Write},
    time::Duration,
};

use super::Verb;
use crate::collections::{Histogram, LongTimes, ShortTimes};

const HEAD: &str = "---\n";

/// The length in bytes of a list document of `names` names, which have `bytes` bytes in all.
pub(super) fn list_length(names: usize, bytes: usize) -> usize {
    HEAD.len() + "- \n".len() * names + bytes
}

/// Appends a list document.
pub(super) fn write_list<'a>(out: &mut Vec<u8>, names: impl Iterator<Item = &'a str>) {
    out.extend_from_slice(HEAD.as_bytes());
    for name in names {
        out.extend_from_slice(b"- ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
}

/// The values of `stats`. Times are in seconds.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct ServerStats<'a> {
    pub current_jobs_urgent: u64,
    pub current_jobs_ready: u64,
    pub current_jobs_reserved: u64,
    pub current_jobs_delayed: u64,
    pub current_jobs_buried: u64,
    /// One count per [`Verb`].
    pub commands: &'a [u64; Verb::COUNT],
    pub job_timeouts: u64,
    pub total_jobs: u64,
    pub max_job_size: u32,
    pub current_tubes: usize,
    pub current_connections: u32,
    pub current_producers: u32,
    pub current_workers: u32,
    pub current_waiting: u32,
    pub total_connections: u64,
    pub pid: u32,
    pub version: &'a str,
    pub rusage_utime: Duration,
    pub rusage_stime: Duration,
    pub uptime: u64,
    pub binlog_oldest_index: u32,
    pub binlog_current_index: u32,
    pub binlog_records_migrated: u64,
    pub binlog_records_written: u64,
    pub binlog_max_size: u64,
    pub draining: bool,
    pub id: &'a str,
    pub hostname: &'a str,
    pub os: &'a str,
    pub platform: &'a str,
}

impl ServerStats<'_> {
    /// The YAML document.
    pub fn document(&self) -> Vec<u8> {
        let mut out = Document::new();
        out.pair("current-jobs-urgent", self.current_jobs_urgent);
        out.pair("current-jobs-ready", self.current_jobs_ready);
        out.pair("current-jobs-reserved", self.current_jobs_reserved);
        out.pair("current-jobs-delayed", self.current_jobs_delayed);
        out.pair("current-jobs-buried", self.current_jobs_buried);
        for (name, count) in Verb::NAMES.iter().zip(self.commands) {
            out.pair(format_args!("cmd-{name}"), count);
        }
        out.pair("job-timeouts", self.job_timeouts);
        out.pair("total-jobs", self.total_jobs);
        out.pair("max-job-size", self.max_job_size);
        out.pair("current-tubes", self.current_tubes);
        out.pair("current-connections", self.current_connections);
        out.pair("current-producers", self.current_producers);
        out.pair("current-workers", self.current_workers);
        out.pair("current-waiting", self.current_waiting);
        out.pair("total-connections", self.total_connections);
        out.pair("pid", self.pid);
        out.quoted("version", self.version);
        let (user, system) = (self.rusage_utime, self.rusage_stime);
        out.pair("rusage-utime", format_args!("{}.{:06}", user.as_secs(), user.subsec_micros()));
        out.pair(
            "rusage-stime",
            format_args!("{}.{:06}", system.as_secs(), system.subsec_micros()),
        );
        out.pair("uptime", self.uptime);
        out.pair("binlog-oldest-index", self.binlog_oldest_index);
        out.pair("binlog-current-index", self.binlog_current_index);
        out.pair("binlog-records-migrated", self.binlog_records_migrated);
        out.pair("binlog-records-written", self.binlog_records_written);
        out.pair("binlog-max-size", self.binlog_max_size);
        out.pair("draining", self.draining);
        out.pair("id", self.id);
        out.quoted("hostname", self.hostname);
        out.quoted("os", self.os);
        out.quoted("platform", self.platform);
        out.end()
    }
}

/// The values of `stats-tube`. Times are in seconds.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct TubeStats<'a> {
    pub name: &'a str,
    pub current_jobs_urgent: u64,
    pub current_jobs_ready: usize,
    pub current_jobs_reserved: u64,
    pub current_jobs_delayed: usize,
    pub current_jobs_buried: usize,
    pub total_jobs: u64,
    pub current_using: u32,
    pub current_watching: u32,
    pub current_waiting: usize,
    pub cmd_delete: u64,
    pub cmd_pause_tube: u64,
    pub pause: u32,
    pub pause_time_left: u64,
}

impl TubeStats<'_> {
    /// The YAML document.
    pub fn document(&self) -> Vec<u8> {
        let mut out = Document::new();
        out.quoted("name", self.name);
        out.pair("current-jobs-urgent", self.current_jobs_urgent);
        out.pair("current-jobs-ready", self.current_jobs_ready);
        out.pair("current-jobs-reserved", self.current_jobs_reserved);
        out.pair("current-jobs-delayed", self.current_jobs_delayed);
        out.pair("current-jobs-buried", self.current_jobs_buried);
        out.pair("total-jobs", self.total_jobs);
        out.pair("current-using", self.current_using);
        out.pair("current-watching", self.current_watching);
        out.pair("current-waiting", self.current_waiting);
        out.pair("cmd-delete", self.cmd_delete);
        out.pair("cmd-pause-tube", self.cmd_pause_tube);
        out.pair("pause", self.pause);
        out.pair("pause-time-left", self.pause_time_left);
        out.end()
    }
}

/// The values of `stats-job`. Times are in seconds.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct JobStats<'a> {
    pub id: u64,
    pub tube: &'a str,
    pub state: &'a str,
    pub pri: u32,
    pub age: u64,
    pub delay: u32,
    pub ttr: u32,
    pub time_left: u64,
    pub file: u32,
    pub reserves: u32,
    pub timeouts: u32,
    pub releases: u32,
    pub buries: u32,
    pub kicks: u32,
}

impl JobStats<'_> {
    /// The YAML document.
    pub fn document(&self) -> Vec<u8> {
        let mut out = Document::new();
        out.pair("id", self.id);
        out.quoted("tube", self.tube);
        out.pair("state", self.state);
        out.pair("pri", self.pri);
        out.pair("age", self.age);
        out.pair("delay", self.delay);
        out.pair("ttr", self.ttr);
        out.pair("time-left", self.time_left);
        out.pair("file", self.file);
        out.pair("reserves", self.reserves);
        out.pair("timeouts", self.timeouts);
        out.pair("releases", self.releases);
        out.pair("buries", self.buries);
        out.pair("kicks", self.kicks);
        out.end()
    }
}

/// The values of `capabilities`. Sizes are in bytes.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct Capabilities<'a> {
    pub version: &'a str,
    pub state: &'a str,
    pub max_job_size: u32,
    pub max_line_size: usize,
    pub max_tube_name_size: usize,
    /// The commands that the original does not know.
    pub extensions: &'a [&'a str],
}

impl Capabilities<'_> {
    /// The YAML document.
    pub fn document(&self) -> Vec<u8> {
        let mut out = Document::new();
        out.quoted("version", self.version);
        out.pair("state", self.state);
        out.pair("max-job-size", self.max_job_size);
        out.pair("max-line-size", self.max_line_size);
        out.pair("max-tube-name-size", self.max_tube_name_size);
        out.0.push_str("extensions:\n");
        for name in self.extensions {
            writeln!(out.0, "- {name}").expect("writing to memory does not fail");
        }
        out.end()
    }
}

/// The values of `metrics` without a tube. Sizes are in bytes.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct ServerMetrics<'a> {
    pub state: &'a str,
    /// `None` without a binlog.
    pub binlog: Option<BinlogMetrics<'a>>,
    pub job_bytes: u64,
    /// `None` without a limit.
    pub job_bytes_limit: Option<u64>,
    pub turns: &'a ShortTimes,
}

/// The part of [`ServerMetrics`] that is about the binlog. The age is in seconds.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct BinlogMetrics<'a> {
    pub state: &'a str,
    pub trouble_age: u64,
    /// `None` if nothing is ever synced.
    pub unsynced_bytes: Option<u64>,
    pub live_bytes: u64,
    pub dead_bytes: u64,
    pub syncs: &'a ShortTimes,
}

impl ServerMetrics<'_> {
    /// The YAML document.
    pub fn document(&self) -> Vec<u8> {
        let mut out = Document::new();
        out.pair("state", self.state);
        out.pair("binlog-state", self.binlog.as_ref().map_or("none", |binlog| binlog.state));
        if let Some(binlog) = &self.binlog {
            out.pair("binlog-trouble-age", binlog.trouble_age);
            if let Some(bytes) = binlog.unsynced_bytes {
                out.pair("binlog-unsynced-bytes", bytes);
            }
            out.pair("binlog-live-bytes", binlog.live_bytes);
            out.pair("binlog-dead-bytes", binlog.dead_bytes);
            out.histogram("binlog-sync-seconds", binlog.syncs);
        }
        out.pair("job-bytes", self.job_bytes);
        if let Some(bytes) = self.job_bytes_limit {
            out.pair("job-bytes-limit", bytes);
        }
        out.histogram("turn-seconds", self.turns);
        out.end()
    }
}

/// The values of `metrics` with a tube. The age is in seconds.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct TubeMetrics<'a> {
    pub name: &'a str,
    /// The age of the job next in line, and how long it has been ready.
    pub next_ready: Option<(u64, Duration)>,
    /// How long jobs waited and ran; `None` if the tube has never had one.
    pub times: Option<(&'a LongTimes, &'a LongTimes)>,
}

impl TubeMetrics<'_> {
    /// The YAML document.
    pub fn document(&self) -> Vec<u8> {
        let mut out = Document::new();
        out.quoted("name", self.name);
        if let Some((age, wait)) = self.next_ready {
            out.pair("next-ready-age", age);
            out.pair("next-ready-wait", Seconds(wait));
        }
        if let Some((wait, run)) = self.times {
            out.histogram("wait-seconds", wait);
            out.histogram("run-seconds", run);
        }
        out.end()
    }
}

/// Seconds with as many decimals as they need, up to nine.
struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, mut fraction) = (self.0.as_secs(), self.0.subsec_nanos());
        write!(out, "{seconds}")?;
        if fraction == 0 {
            return Ok(());
        }
        let mut width = 9;
        while fraction % 10 == 0 {
            fraction /= 10;
            width -= 1;
        }
        write!(out, ".{fraction:0width$}")
    }
}

/// The values of one job in `list-jobs`. Times are in seconds, the size in bytes.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the keys of the protocol; doc/protocol.md explains each")]
pub struct ListedJob {
    pub id: u64,
    pub pri: u32,
    pub age: u64,
    pub size: usize,
    /// Of a job that is delayed or reserved.
    pub time_left: Option<u64>,
}

impl ListedJob {
    /// The most bytes that [`ListedJob::document`] takes for each job.
    pub const MAX_BYTES: usize = 128;

    /// The YAML document.
    pub fn document(jobs: impl ExactSizeIterator<Item = Self>) -> Vec<u8> {
        let mut out = Document(String::with_capacity(HEAD.len() + jobs.len() * Self::MAX_BYTES));
        out.0.push_str(HEAD);
        for job in jobs {
            out.pair("- id", job.id);
            out.pair("  pri", job.pri);
            out.pair("  age", job.age);
            out.pair("  size", job.size);
            if let Some(seconds) = job.time_left {
                out.pair("  time-left", seconds);
            }
        }
        out.end()
    }
}

/// A YAML mapping under construction.
struct Document(String);

impl Document {
    fn new() -> Self {
        Self(String::from(HEAD))
    }

    fn pair(&mut self, key: impl Display, value: impl Display) {
        writeln!(self.0, "{key}: {value}").expect("writing to memory does not fail");
    }

    /// Quotes without escaping, as the original does: neither tube names nor the values of `uname`
    /// contain a quote.
    fn quoted(&mut self, key: &str, value: &str) {
        self.pair(key, format_args!("\"{value}\""));
    }

    /// A line for each bound, with how many were at most as long; then how many there were, and
    /// their sum.
    fn histogram<const BOUNDS: usize>(&mut self, key: &str, histogram: &Histogram<BOUNDS>) {
        for (bound, count) in histogram.cumulative() {
            self.pair(format_args!("{key}-le-{}", Seconds(bound)), count);
        }
        self.pair(format_args!("{key}-le-inf"), histogram.count());
        self.pair(format_args!("{key}-sum"), Seconds(histogram.sum()));
    }

    fn end(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_the_decimals_that_they_need() {
        for (nanoseconds, wanted) in [
            (0, "0"),
            (1, "0.000000001"),
            (20_000, "0.00002"),
            (2_500_000_000, "2.5"),
            (7_200_000_000_000, "7200"),
            (1_000_000_010, "1.00000001"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(Seconds(Duration::from_nanos(nanoseconds)).to_string(), wanted);
        }
    }
}
