//! Which metrics there are, and from which keys of a server each is taken.

use super::args::Naming;
use super::foreign;

/// What a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// Returns its name in the text.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Where a sample comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// The number under a key.
    Number(&'static str),
    /// The number under a key, with a label and its value.
    Labelled(&'static str, &'static str, &'static str),
    /// 1 if the value of a key is this word, which is the label of the same name, and 0 if not.
    State(&'static str, &'static str),
    /// The keys that begin so.
    Histogram(&'static str),
    /// 1, with the values of these keys as labels.
    Labels(&'static [&'static str]),
}

/// All samples of one name.
#[derive(Debug, Clone)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) help: String,
    pub(crate) sources: Vec<Source>,
}

/// All names, in the order of the text.
#[derive(Debug)]
pub(crate) struct Names {
    /// The label that names the server; `None` if there is to be none.
    pub(crate) server_label: Option<&'static str>,
    pub(crate) server: Vec<Family>,
    pub(crate) tube: Vec<Family>,
    /// Leave out what a server counts only with a binlog, if it has none.
    pub(crate) omits_binlog: bool,
}

impl Names {
    /// Returns the names that are wanted.
    pub(crate) fn new(naming: Naming, servers: usize) -> Self {
        match naming {
            // Always with the server: a second one must not change what the first one's series
            // are called, on which rules and dashboards rely.
            Naming::Own => Self {
                server_label: Some("server"),
                server: families("beanstalkd_", SERVER),
                tube: families("beanstalkd_tube_", TUBE),
                omits_binlog: true,
            },
            Naming::Messagebird => foreign::messagebird(),
            Naming::Davidtannock => foreign::davidtannock(servers),
        }
    }
}

/// The commands that a server counts.
pub(super) const COMMANDS: [&str; 22] = [
    "cmd-put",
    "cmd-peek",
    "cmd-peek-ready",
    "cmd-peek-delayed",
    "cmd-peek-buried",
    "cmd-reserve",
    "cmd-reserve-with-timeout",
    "cmd-delete",
    "cmd-release",
    "cmd-use",
    "cmd-watch",
    "cmd-ignore",
    "cmd-bury",
    "cmd-kick",
    "cmd-touch",
    "cmd-stats",
    "cmd-stats-job",
    "cmd-stats-tube",
    "cmd-list-tubes",
    "cmd-list-tube-used",
    "cmd-list-tubes-watched",
    "cmd-pause-tube",
];

/// Keys that this program adds to what the server tells.
pub(crate) const UP: &str = "(up)";
pub(crate) const SCRAPE_SECONDS: &str = "(scrape-seconds)";
pub(crate) const TUBES_LEFT_OUT: &str = "(tubes-left-out)";
pub(crate) const SCRAPES: &str = "(scrapes)";

type Row = (&'static str, Kind, &'static str, &'static [Source]);

use Kind::{Counter, Gauge, Histogram};
use Source::{Labelled, Labels, Number, State};

const JOBS: &[Source] = &[
    Labelled("current-jobs-ready", "state", "ready"),
    Labelled("current-jobs-reserved", "state", "reserved"),
    Labelled("current-jobs-delayed", "state", "delayed"),
    Labelled("current-jobs-buried", "state", "buried"),
];

const STATES: &[Source] = &[
    State("state", "serving"),
    State("state", "draining"),
    State("state", "binlog-full"),
    State("state", "binlog-failed"),
];

const BINLOG_STATES: &[Source] = &[
    State("binlog-state", "none"),
    State("binlog-state", "sound"),
    State("binlog-state", "full"),
    State("binlog-state", "failed"),
];

const CPU: &[Source] =
    &[Labelled("rusage-utime", "mode", "user"), Labelled("rusage-stime", "mode", "system")];

const BINLOG_BYTES: &[Source] = &[
    Labelled("binlog-live-bytes", "content", "live"),
    Labelled("binlog-dead-bytes", "content", "dead"),
];

/// Of a server.
const SERVER: &[Row] = &[
    ("up", Gauge, "Whether the server has told everything.", &[Number(UP)]),
    ("scrape_duration_seconds", Gauge, "How long it took to ask it.", &[Number(SCRAPE_SECONDS)]),
    (
        "tubes_left_out",
        Gauge,
        "Tubes that are not told of, because of --max-tubes.",
        &[Number(TUBES_LEFT_OUT)],
    ),
    (
        "info",
        Gauge,
        "Always 1; the labels describe the server.",
        &[Labels(&["version", "hostname", "platform"])],
    ),
    ("state", Gauge, "1 for the state that the server is in.", STATES),
    ("uptime_seconds", Gauge, "Time since the start.", &[Number("uptime")]),
    ("draining", Gauge, "Whether the server takes no more jobs.", &[Number("draining")]),
    ("cpu_seconds_total", Counter, "CPU time.", CPU),
    ("jobs", Gauge, "Jobs by state.", JOBS),
    (
        "urgent_jobs",
        Gauge,
        "Ready jobs with a priority below 1024.",
        &[Number("current-jobs-urgent")],
    ),
    ("jobs_inserted_total", Counter, "Jobs that were put.", &[Number("total-jobs")]),
    (
        "job_timeouts_total",
        Counter,
        "How often a worker had no more time for its job.",
        &[Number("job-timeouts")],
    ),
    ("job_max_bytes", Gauge, "The longest body that the server takes.", &[Number("max-job-size")]),
    ("tubes", Gauge, "Tubes, those left out as well.", &[Number("current-tubes")]),
    ("connections", Gauge, "Open connections.", &[Number("current-connections")]),
    ("producers", Gauge, "Open connections that have put.", &[Number("current-producers")]),
    ("workers", Gauge, "Open connections that have reserved.", &[Number("current-workers")]),
    ("waiting_workers", Gauge, "Connections that wait in a reserve.", &[Number("current-waiting")]),
    (
        "connections_accepted_total",
        Counter,
        "Connections ever accepted.",
        &[Number("total-connections")],
    ),
    ("commands_total", Counter, "Commands by name.", &[]),
    (
        "binlog_oldest_segment",
        Gauge,
        "Number of the oldest file of the binlog.",
        &[Number("binlog-oldest-index")],
    ),
    (
        "binlog_current_segment",
        Gauge,
        "Number of the file of the binlog that is written.",
        &[Number("binlog-current-index")],
    ),
    (
        "binlog_segment_max_bytes",
        Gauge,
        "Size of a file of the binlog.",
        &[Number("binlog-max-size")],
    ),
    (
        "binlog_records_written_total",
        Counter,
        "Records written to the binlog.",
        &[Number("binlog-records-written")],
    ),
    (
        "binlog_records_migrated_total",
        Counter,
        "Records written again, so that old files can go.",
        &[Number("binlog-records-migrated")],
    ),
    ("binlog_state", Gauge, "1 for the state that the binlog is in.", BINLOG_STATES),
    (
        "binlog_trouble_seconds",
        Gauge,
        "Time since the binlog is full or has failed; 0 if it is sound.",
        &[Number("binlog-trouble-age")],
    ),
    (
        "binlog_unsynced_bytes",
        Gauge,
        "What is written and not yet synced.",
        &[Number("binlog-unsynced-bytes")],
    ),
    (
        "binlog_bytes",
        Gauge,
        "Records of jobs that exist (live), and records that no longer count (dead).",
        BINLOG_BYTES,
    ),
    (
        "binlog_sync_seconds",
        Histogram,
        "How long syncs of the binlog took.",
        &[Source::Histogram("binlog-sync-seconds")],
    ),
    ("job_memory_bytes", Gauge, "Memory for the bodies of jobs.", &[Number("job-bytes")]),
    (
        "job_memory_max_bytes",
        Gauge,
        "The limit of --max-memory, if there is one.",
        &[Number("job-bytes-limit")],
    ),
    (
        "turn_seconds",
        Histogram,
        "How long turns of the event loop took.",
        &[Source::Histogram("turn-seconds")],
    ),
];

/// Of a tube.
const TUBE: &[Row] = &[
    ("jobs", Gauge, "Jobs of the tube by state.", JOBS),
    (
        "urgent_jobs",
        Gauge,
        "Ready jobs of the tube with a priority below 1024.",
        &[Number("current-jobs-urgent")],
    ),
    ("jobs_inserted_total", Counter, "Jobs that were put into it.", &[Number("total-jobs")]),
    ("jobs_deleted_total", Counter, "Jobs of it that were deleted.", &[Number("cmd-delete")]),
    ("pauses_total", Counter, "How often it was paused or resumed.", &[Number("cmd-pause-tube")]),
    ("users", Gauge, "Connections that put into it.", &[Number("current-using")]),
    ("watchers", Gauge, "Connections that watch it.", &[Number("current-watching")]),
    (
        "waiting_workers",
        Gauge,
        "Connections that watch it and wait in a reserve.",
        &[Number("current-waiting")],
    ),
    ("pause_seconds", Gauge, "Length of its present pause.", &[Number("pause")]),
    ("pause_left_seconds", Gauge, "Time until its pause ends.", &[Number("pause-time-left")]),
    (
        "next_ready_age_seconds",
        Gauge,
        "Time since the put of the job that is next in line.",
        &[Number("next-ready-age")],
    ),
    (
        "next_ready_wait_seconds",
        Gauge,
        "Time since the job that is next in line became ready.",
        &[Number("next-ready-wait")],
    ),
    (
        "wait_seconds",
        Histogram,
        "How long jobs were ready before a worker got them.",
        &[Source::Histogram("wait-seconds")],
    ),
    (
        "run_seconds",
        Histogram,
        "How long workers had jobs that they then deleted.",
        &[Source::Histogram("run-seconds")],
    ),
];

fn families(prefix: &str, rows: &[Row]) -> Vec<Family> {
    let family = |&(name, kind, help, sources): &Row| {
        let mut sources = sources.to_vec();
        if name == "commands_total" {
            let labelled = |key: &'static str| Labelled(key, "command", &key["cmd-".len()..]);
            sources.extend(COMMANDS.map(labelled));
        }
        Family { name: format!("{prefix}{name}"), kind, help: help.to_owned(), sources }
    };
    rows.iter().map(family).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rules of Prometheus: base units, `_total` for what only grows, a help text for each.
    #[test]
    fn names_follow_the_rules() {
        let names = Names::new(Naming::Own, 1);
        let mut seen = BTreeSet::new();
        for Family { name, kind, help, sources } in names.server.iter().chain(&names.tube) {
            assert!(seen.insert(name.clone()), "{name} is there twice");
            assert!(name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Counter, "{name}");
            assert!(help.ends_with('.') && !help.contains(['\\', '\n']), "{name}: {help}");
            assert!(!sources.is_empty(), "{name}");
        }
    }
}
