//! The metric names of two other exporters, for existing dashboards.
//!
//! Each exporter derives its names from the keys of `stats` and `stats-tube`, by a rule of its own.

use super::names::{COMMAND_KEYS, Family, Kind, Names, SCRAPES_KEY, Source, UP_KEY};

/// The keys of `stats` that both exporters report, except the counters of commands.
const STATS_KEYS: &str = "current-jobs-urgent current-jobs-ready current-jobs-reserved \
    current-jobs-delayed current-jobs-buried job-timeouts total-jobs current-tubes \
    current-connections current-producers current-workers current-waiting total-connections";

/// The keys of `stats` that only the exporter `messagebird` reports.
const MORE_STATS_KEYS: &str = "max-job-size rusage-utime rusage-stime uptime binlog-oldest-index \
    binlog-current-index binlog-records-migrated binlog-records-written binlog-max-size draining";

/// The keys of `stats-tube` that both exporters report.
const STATS_TUBE_KEYS: &str = "current-jobs-urgent current-jobs-ready current-jobs-reserved \
    current-jobs-delayed current-jobs-buried total-jobs current-using current-watching \
    current-waiting cmd-delete cmd-pause-tube pause pause-time-left";

/// Whether the key is a counter, whose value only grows.
fn is_foreign_counter(key: &str) -> bool {
    const COUNTER_PREFIXES: [&str; 4] = ["cmd-", "total-", "job-timeouts", "rusage-"];
    COUNTER_PREFIXES.iter().any(|begin| key.starts_with(begin))
}

/// Makes the metric of a key, under the name that another exporter gives to this metric.
fn foreign_family(name: String, key: &'static str, command: &str) -> Family {
    let kind = if is_foreign_counter(key) { Kind::Counter } else { Kind::Gauge };
    let (help, sources) = (format!("{key} of {command}."), vec![Source::Number(key)]);
    Family { name, kind, help, sources }
}

/// Makes the metric `beanstalkd_up`, which both other exporters have.
fn foreign_up_family() -> Family {
    Family::new("beanstalkd_up", "Whether the scrape is complete.", Source::Number(UP_KEY))
}

/// Returns the metric names of the exporter `messagebird`, which are keys with `_` instead of `-`;
/// for tubes, the names also have the prefix `tube_`.
pub(super) fn messagebird() -> Names {
    let keys =
        [COMMAND_KEYS, STATS_KEYS, MORE_STATS_KEYS].into_iter().flat_map(|keys| keys.split(' '));
    let name = |key: &str| key.replace('-', "_");
    let server = keys.map(|key| foreign_family(name(key), key, "stats"));
    let tube = STATS_TUBE_KEYS.split(' ');
    let tube = tube.map(|key| foreign_family(format!("tube_{}", name(key)), key, "stats-tube"));
    let server = std::iter::once(foreign_up_family()).chain(server).collect();
    let server_label = Some("instance");
    Names { server_label, server, tube: tube.collect(), omits_binlog: false }
}

/// Returns the metric names of the exporter `davidtannock`. Each name consists of `beanstalkd_`,
/// `tube_` if the metric is of a tube, the key with `_` instead of `-`, and `_total`, `_count` or
/// `_seconds_total`. A single server has no label.
pub(super) fn davidtannock(servers: usize) -> Names {
    let name = |prefix: &str, key: &str| {
        let unit = match key {
            "pause" | "pause-time-left" => "_seconds_total",
            _ if key.starts_with("cmd-") => "_total",
            _ => "_count",
        };
        format!("beanstalkd_{prefix}{}{unit}", key.replace('-', "_"))
    };
    let keys = COMMAND_KEYS.split(' ').chain(STATS_KEYS.split(' '));
    let tube = STATS_TUBE_KEYS.split(' ');
    let (name_of_scrapes, help) = ("beanstalkd_exporter_scrapes_total", "Scrapes of the server.");
    let scrapes = Family::new(name_of_scrapes, help, Source::Number(SCRAPES_KEY));
    let server = keys.map(|key| foreign_family(name("", key), key, "stats"));
    let server_label = (servers > 1).then_some("server");
    let server = [foreign_up_family(), scrapes].into_iter().chain(server).collect();
    let tube = tube.map(|key| foreign_family(name("tube_", key), key, "stats-tube")).collect();
    Names { server_label, server, tube, omits_binlog: false }
}
