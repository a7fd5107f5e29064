//! The metrics, each with its keys in the statistics of a server.

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// Returns the name of the type in the text format of Prometheus.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Where the value of a sample comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// The numeric value of a key.
    Number(&'static str),
    /// The numeric value of a key, with a label and the label's value.
    Labelled(&'static str, &'static str, &'static str),
    /// 1 if the value of a key is this word, otherwise 0; the label `state` has the word.
    State(&'static str, &'static str),
    /// A histogram made of all keys with this prefix.
    Histogram(&'static str),
    /// The number 1, with the values of these keys as labels.
    Labels(&'static [&'static str]),
    /// The samples of several sources.
    Each(&'static [Source]),
}

/// A metric: all samples with the same name.
#[derive(Debug, Clone)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) help: String,
    pub(crate) sources: Vec<Source>,
}

impl Family {
    /// Makes a metric with a single source. The metric is a histogram if its source is a histogram,
    /// a counter if its name ends in `_total`, and otherwise a gauge.
    pub(crate) fn new(name: impl Into<String>, help: &str, source: Source) -> Self {
        let name = name.into();
        let kind = match source {
            Source::Histogram(_) => Kind::Histogram,
            _ if name.ends_with("_total") => Kind::Counter,
            _ => Kind::Gauge,
        };
        Self { name, kind, help: help.to_owned(), sources: vec![source] }
    }
}

/// All metrics, in the order of the output.
#[derive(Debug)]
pub(crate) struct Names {
    /// The name of the label for servers; `None` if samples have no such label.
    pub(crate) server_label: Option<&'static str>,
    pub(crate) server: Vec<Family>,
    pub(crate) tube: Vec<Family>,
    /// Whether to omit the metrics of the binlog for a server without a binlog.
    pub(crate) omits_binlog: bool,
}

impl Names {
    /// Returns the metrics with the names that doc/monitoring.md describes.
    pub(crate) fn own() -> Self {
        Self {
            // The label is always included, so that the series that rules and dashboards use keep
            // their names when a second server is added.
            server_label: Some("server"),
            server: metric_families("beanstalkd_", SERVER_METRICS),
            tube: metric_families("beanstalkd_tube_", TUBE_METRICS),
            omits_binlog: true,
        }
    }
}

/// The keys of `stats` that are counters of commands.
pub(super) const COMMAND_KEYS: &str = "cmd-put cmd-peek cmd-peek-ready cmd-peek-delayed \
    cmd-peek-buried cmd-reserve cmd-reserve-with-timeout cmd-delete cmd-release cmd-use cmd-watch \
    cmd-ignore cmd-bury cmd-kick cmd-touch cmd-stats cmd-stats-job cmd-stats-tube cmd-list-tubes \
    cmd-list-tube-used cmd-list-tubes-watched cmd-pause-tube";

/// Keys that this program adds to the statistics of a server.
pub(crate) const UP_KEY: &str = "(up)";
pub(crate) const SCRAPE_SECONDS_KEY: &str = "(scrape-seconds)";
pub(crate) const TUBES_LEFT_OUT_KEY: &str = "(tubes-left-out)";
pub(crate) const SCRAPES_KEY: &str = "(scrapes)";

/// The name of a metric, a help text, and the source.
type Row = (&'static str, &'static str, Source);

use Source::{Each, Histogram, Labelled, Labels, Number, State};

const JOBS: Source = Each(&[
    Labelled("current-jobs-ready", "state", "ready"),
    Labelled("current-jobs-reserved", "state", "reserved"),
    Labelled("current-jobs-delayed", "state", "delayed"),
    Labelled("current-jobs-buried", "state", "buried"),
]);

const STATES: Source = Each(&[
    State("state", "serving"),
    State("state", "draining"),
    State("state", "binlog-full"),
    State("state", "binlog-failed"),
]);

const BINLOG_STATES: Source = Each(&[
    State("binlog-state", "none"),
    State("binlog-state", "sound"),
    State("binlog-state", "full"),
    State("binlog-state", "failed"),
]);

const CPU: Source =
    Each(&[Labelled("rusage-utime", "mode", "user"), Labelled("rusage-stime", "mode", "system")]);

const BINLOG_BYTES: Source = Each(&[
    Labelled("binlog-live-bytes", "content", "live"),
    Labelled("binlog-dead-bytes", "content", "dead"),
]);

const LOSSES: Source = Number("jobs-buried-for-losses");

/// The only command that has a counter in `metrics` but not in `stats`.
const ABORTS: Source = Labelled("cmd-reserve-with-abort", "command", "reserve-with-abort");

// These sources have names so that each row below fits on one line.
const INFO_LABELS: Source = Labels(&["version", "hostname", "platform"]);
const OLDEST_SEGMENT: Source = Number("binlog-oldest-index");
const CURRENT_SEGMENT: Source = Number("binlog-current-index");
const RECORDS_WRITTEN: Source = Number("binlog-records-written");
const UNSYNCED_BYTES: Source = Number("binlog-unsynced-bytes");
const JOB_MEMORY_MAX: Source = Number("job-bytes-limit");
const URGENT_JOBS: Source = Number("current-jobs-urgent");

/// Metrics of a server.
const SERVER_METRICS: &[Row] = &[
    ("up", "Whether the scrape is complete.", Number(UP_KEY)),
    ("scrape_duration_seconds", "Duration of the scrape.", Number(SCRAPE_SECONDS_KEY)),
    ("tubes_left_out", "Tubes left out because of --max-tubes.", Number(TUBES_LEFT_OUT_KEY)),
    ("info", "Always 1; the labels describe the server.", INFO_LABELS),
    ("state", "1 for the current state of the server.", STATES),
    ("uptime_seconds", "Time since the start.", Number("uptime")),
    ("draining", "Whether the server is draining.", Number("draining")),
    ("cpu_seconds_total", "CPU time.", CPU),
    ("jobs", "Jobs by state.", JOBS),
    ("urgent_jobs", "Ready jobs with a priority below 1024.", URGENT_JOBS),
    ("jobs_inserted_total", "Jobs put.", Number("total-jobs")),
    ("job_timeouts_total", "Reserved jobs that timed out.", Number("job-timeouts")),
    ("jobs_buried_for_losses_total", "Jobs buried by --bury-after.", LOSSES),
    ("job_max_bytes", "Largest body that the server accepts.", Number("max-job-size")),
    ("tubes", "All tubes, with or without metrics.", Number("current-tubes")),
    ("connections", "Open connections.", Number("current-connections")),
    ("producers", "Connections that have put jobs.", Number("current-producers")),
    ("workers", "Connections that have reserved jobs.", Number("current-workers")),
    ("waiting_workers", "Connections waiting for a job.", Number("current-waiting")),
    ("connections_accepted_total", "Connections accepted.", Number("total-connections")),
    ("commands_total", "Commands by name.", ABORTS),
    ("binlog_oldest_segment", "Number of the oldest file of the binlog.", OLDEST_SEGMENT),
    ("binlog_current_segment", "Number of the current file of the binlog.", CURRENT_SEGMENT),
    ("binlog_segment_max_bytes", "Size of each file of the binlog.", Number("binlog-max-size")),
    ("binlog_records_written_total", "Records written to the binlog.", RECORDS_WRITTEN),
    (
        "binlog_records_migrated_total",
        "Records rewritten so that old files can be removed.",
        Number("binlog-records-migrated"),
    ),
    ("binlog_state", "1 for the current state of the binlog.", BINLOG_STATES),
    (
        "binlog_trouble_seconds",
        "Time since the binlog became full or failed; 0 if it is sound.",
        Number("binlog-trouble-age"),
    ),
    ("binlog_unsynced_bytes", "Records written but not yet synced.", UNSYNCED_BYTES),
    ("binlog_bytes", "Records of existing jobs (live), and obsolete records (dead).", BINLOG_BYTES),
    ("binlog_sync_seconds", "Durations of syncs of the binlog.", Histogram("binlog-sync-seconds")),
    ("job_memory_bytes", "Memory used by bodies of jobs.", Number("job-bytes")),
    ("job_memory_max_bytes", "The limit of --max-memory, if there is one.", JOB_MEMORY_MAX),
    ("turn_seconds", "Durations of turns of the event loop.", Histogram("turn-seconds")),
];

/// Metrics of a tube.
const TUBE_METRICS: &[Row] = &[
    ("jobs", "Jobs of the tube by state.", JOBS),
    ("urgent_jobs", "Ready jobs of the tube with a priority below 1024.", URGENT_JOBS),
    ("jobs_inserted_total", "Jobs put into the tube.", Number("total-jobs")),
    ("jobs_deleted_total", "Jobs of the tube deleted.", Number("cmd-delete")),
    ("jobs_buried_for_losses_total", "Jobs of the tube buried by --bury-after.", LOSSES),
    ("pauses_total", "Pauses and resumes of the tube.", Number("cmd-pause-tube")),
    ("users", "Connections that use the tube.", Number("current-using")),
    ("watchers", "Connections that watch the tube.", Number("current-watching")),
    ("waiting_workers", "Connections waiting for a job of the tube.", Number("current-waiting")),
    ("pause_seconds", "Length of the current pause.", Number("pause")),
    ("pause_left_seconds", "Time until the pause ends.", Number("pause-time-left")),
    ("next_ready_age_seconds", "Time since the next job was put.", Number("next-ready-age")),
    ("next_ready_wait_seconds", "Time since the next job became ready.", Number("next-ready-wait")),
    ("wait_seconds", "Times from ready to reserved.", Histogram("wait-seconds")),
    ("run_seconds", "Times from reserved to deleted.", Histogram("run-seconds")),
];

/// Makes the metrics of these rows, with a prefix before each name.
fn metric_families(prefix: &str, rows: &[Row]) -> Vec<Family> {
    let family = |&(name, help, source): &Row| {
        let mut family = Family::new(format!("{prefix}{name}"), help, source);
        if name == "commands_total" {
            let labelled = |key: &'static str| Labelled(key, "command", &key["cmd-".len()..]);
            family.sources.extend(COMMAND_KEYS.split(' ').map(labelled));
        }
        family
    };
    rows.iter().map(family).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each metric needs a unique name of letters and underscores, a help text, and a source.
    #[test]
    fn names_follow_the_rules() {
        let names = Names::own();
        let mut seen = BTreeSet::new();
        for Family { name, help, sources, .. } in names.server.iter().chain(&names.tube) {
            assert!(seen.insert(name.clone()), "{name} is there twice");
            assert!(name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_'), "{name}");
            assert!(help.ends_with('.') && !help.contains(['\\', '\n']), "{name}: {help}");
            assert!(!sources.is_empty(), "{name}");
        }
    }
}
