//! The bodies of the replies to `stats`, `stats-job`, `stats-tube`, `capabilities`, `metrics` and
//! `list-jobs`, as YAML. doc/protocol.md explains each key. Times are in seconds, sizes in bytes.

use std::{num::NonZeroU32, sync::LazyLock};

use super::Server;
use crate::{
    clock::Time,
    collections::{Key, ShortTimes},
    proto::{
        self, COMMAND_COUNT, CRLF, Document, LINE_LIMIT, Microseconds, NAME_LIMIT, Quoted, Seconds,
    },
    queue::{Job, Tube},
    service::logging::Throttle,
    wal::{Unavailable, Wal},
};

/// The commands that the original beanstalkd lacks.
const EXTENSIONS: [&str; 6] =
    ["capabilities", "list-jobs", "delete-tube", "drain", "metrics", "reserve-with-abort"];

/// The commands that `stats` counts, in the original's order. As in the original, `stats` has no
/// keys for `reserve-job`, `kick-job` and `quit`; the extensions have no keys either.
const COUNTED_COMMANDS: &str = "put peek peek-ready peek-delayed peek-buried reserve \
    reserve-with-timeout delete release use watch ignore bury kick touch stats stats-job \
    stats-tube list-tubes list-tube-used list-tubes-watched pause-tube";

/// The key in `stats` of each counted command, and the command's index in [`Figures::commands`].
static COUNTED: LazyLock<Vec<(String, usize)>> = LazyLock::new(|| {
    let names = COUNTED_COMMANDS.split_whitespace();
    names.map(|name| (format!("cmd-{name}"), proto::place(name))).collect()
});

/// One job takes at most this many bytes in the reply to `list-jobs`.
pub(super) const LISTED_JOB_MAX_BYTES: usize = 128;

/// Counters and measurements since the start of the daemon.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) started_at: Time,
    /// How often clients have sent each command; [`proto::place`] returns a command's index.
    pub(super) commands: [u64; COMMAND_COUNT],
    /// How long the turns of the event loop have taken.
    pub(super) turns: ShortTimes,
    /// Limits how often the log reports connections that were closed because they sent HTTP.
    pub(super) http_closed: Throttle,
}

impl Server {
    /// The document that answers `capabilities`.
    pub(super) fn capabilities(&self) -> Vec<u8> {
        let mut out = Document::default();
        out.pair("version", Quoted(&self.identity.version));
        out.pair("state", self.health().name());
        out.pair("max-job-size", self.settings.job_size_limit);
        out.pair("max-line-size", LINE_LIMIT);
        out.pair("max-tube-name-size", NAME_LIMIT);
        out.pair_if("bury-after", self.settings.bury_after.map(NonZeroU32::get));
        out.list("extensions", &EXTENSIONS);
        out.end()
    }

    /// The document that answers `stats`.
    pub(super) fn stats(&self, now: Time) -> Vec<u8> {
        let counts = self.queue.counts();
        let (user, system) = (self.identity.rusage)();
        let binlog = self.wal().map(Wal::counts).unwrap_or_default();
        let mut out = Document::default();
        out.pair("current-jobs-urgent", counts.urgent);
        out.pair("current-jobs-ready", counts.ready);
        out.pair("current-jobs-reserved", counts.reserved);
        out.pair("current-jobs-delayed", counts.delayed);
        out.pair("current-jobs-buried", counts.buried);
        for (key, place) in &*COUNTED {
            out.pair(key, self.figures.commands[*place]);
        }
        out.pair("job-timeouts", counts.timeouts);
        out.pair("total-jobs", counts.total_jobs);
        out.pair("max-job-size", self.settings.job_size_limit);
        out.pair("current-tubes", self.queue.tubes());
        out.pair("current-connections", counts.connections);
        out.pair("current-producers", counts.producers);
        out.pair("current-workers", counts.workers);
        out.pair("current-waiting", counts.waiting);
        out.pair("total-connections", counts.total_connections);
        out.pair("pid", self.identity.pid);
        out.pair("version", Quoted(&self.identity.version));
        out.pair("rusage-utime", Microseconds(user));
        out.pair("rusage-stime", Microseconds(system));
        out.pair("uptime", self.figures.started_at.seconds_until(now));
        out.pair("binlog-oldest-index", binlog.oldest);
        out.pair("binlog-current-index", binlog.current);
        out.pair("binlog-records-migrated", binlog.migrated);
        out.pair("binlog-records-written", binlog.written);
        out.pair("binlog-max-size", self.settings.binlog_size);
        out.pair("draining", self.is_draining);
        out.pair("id", &*self.identity.id);
        out.pair("hostname", Quoted(&self.identity.hostname));
        out.pair("os", Quoted(&self.identity.os));
        out.pair("platform", Quoted(&self.identity.platform));
        out.end()
    }

    /// Adds the length of a turn to the figures of `metrics`. A turn lasts from the end of one wait
    /// for events until the next wait begins.
    pub fn count_turn(&mut self, began: Time, ended: Time) {
        self.figures.turns.add(began.nanoseconds_until(ended));
    }

    /// The document that answers `metrics`.
    pub(super) fn metrics(&self, now: Time) -> Vec<u8> {
        let mut out = Document::default();
        out.pair("state", self.health().name());
        let binlog_state = match self.trouble {
            _ if self.wal().is_none() => "none",
            None => "sound",
            Some((Unavailable::Full, _)) => "full",
            Some((Unavailable::Failed, _)) => "failed",
        };
        out.pair("binlog-state", binlog_state);
        if let Some(wal) = self.wal() {
            let trouble_age = self.trouble.map_or(0, |(_, since)| since.seconds_until(now));
            out.pair("binlog-trouble-age", trouble_age);
            let counts = wal.counts();
            out.pair_if("binlog-unsynced-bytes", counts.unsynced);
            out.pair("binlog-live-bytes", counts.live);
            out.pair("binlog-dead-bytes", counts.dead);
            out.histogram("binlog-sync-seconds", wal.sync_times());
        }
        out.pair("job-bytes", self.queue.job_bytes());
        out.pair_if("job-bytes-limit", self.settings.memory_limit);
        let buried = self.queue.counts().buried_for_losses;
        out.pair_if("jobs-buried-for-losses", self.settings.bury_after.map(|_| buried));
        let aborts = self.figures.commands[proto::place("reserve-with-abort")];
        out.pair("cmd-reserve-with-abort", aborts);
        out.histogram("turn-seconds", &self.figures.turns);
        out.end()
    }

    /// The document that answers `metrics` of one tube.
    pub(super) fn tube_metrics(&self, key: Key<Tube>, now: Time) -> Vec<u8> {
        let tube = self.queue.tube(key);
        let mut out = Document::default();
        out.pair("name", Quoted(self.queue.tube_name(key)));
        if let Some(job) = self.queue.first_ready(key) {
            let created_at = self.queue.job(job).record.created_at;
            out.pair("next-ready-age", created_at.seconds_until(now));
            out.pair("next-ready-wait", Seconds(self.queue.ready_since(job).until(now)));
        }
        let buried = tube.buried_for_losses;
        out.pair_if("jobs-buried-for-losses", self.settings.bury_after.map(|_| buried));
        if let Some(times) = &tube.times {
            out.histogram("wait-seconds", &times.wait);
            out.histogram("run-seconds", &times.run);
        }
        out.end()
    }

    /// The document that answers `list-jobs`.
    pub(super) fn list_of_jobs(&self, jobs: &[Key<Job>], now: Time) -> Vec<u8> {
        let mut out = Document::with_capacity(jobs.len() * LISTED_JOB_MAX_BYTES);
        for &job in jobs {
            let Job { record, body, .. } = self.queue.job(job);
            out.pair("- id", record.id);
            out.pair("  pri", record.pri);
            out.pair("  age", record.created_at.seconds_until(now));
            out.pair("  size", body.len() - CRLF.len());
            out.pair_if("  time-left", self.queue.deadline(job).map(|at| now.seconds_until(at)));
        }
        out.end()
    }

    /// The document that answers `stats-job`.
    pub(super) fn stats_job(&self, job: Key<Job>, now: Time) -> Vec<u8> {
        let Job { record, tube, .. } = self.queue.job(job);
        let time_left = self.queue.deadline(job).map_or(0, |at| now.seconds_until(at));
        let mut out = Document::default();
        out.pair("id", record.id);
        out.pair("tube", Quoted(self.queue.tube_name(*tube)));
        out.pair("state", record.state.name());
        out.pair("pri", record.pri);
        out.pair("age", record.created_at.seconds_until(now));
        out.pair("delay", record.delay);
        out.pair("ttr", record.ttr);
        out.pair("time-left", time_left);
        out.pair("file", self.wal().map_or(0, |wal| wal.segment_of(job)));
        out.pair("reserves", record.history.reserves);
        out.pair("timeouts", record.history.timeouts);
        out.pair("releases", record.history.releases);
        out.pair("buries", record.history.buries);
        out.pair("kicks", record.history.kicks);
        out.end()
    }

    /// The document that answers `stats-tube`.
    pub(super) fn stats_tube(&self, key: Key<Tube>, now: Time) -> Vec<u8> {
        let tube = self.queue.tube(key);
        let pause = tube.pause.map(|pause| (pause.seconds, now.seconds_until(pause.until)));
        let (pause, pause_time_left) = pause.unwrap_or_default();
        let mut out = Document::default();
        out.pair("name", Quoted(self.queue.tube_name(key)));
        out.pair("current-jobs-urgent", tube.urgent);
        out.pair("current-jobs-ready", tube.ready());
        out.pair("current-jobs-reserved", tube.reserved);
        out.pair("current-jobs-delayed", tube.delayed());
        out.pair("current-jobs-buried", tube.buried());
        out.pair("total-jobs", tube.total_jobs);
        out.pair("current-using", tube.users);
        out.pair("current-watching", tube.watchers);
        out.pair("current-waiting", self.queue.waiting(key));
        out.pair("cmd-delete", tube.deletes);
        out.pair("cmd-pause-tube", tube.pauses);
        out.pair("pause", pause);
        out.pair("pause-time-left", pause_time_left);
        out.end()
    }
}
