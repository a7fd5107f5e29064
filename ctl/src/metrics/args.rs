//! The options of `metrics`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::foreign;
use super::names::Names;
use crate::filter;

#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Names of tubes, with * and ? as wildcards [default: all tubes]
    pub(crate) tubes: Vec<String>,
    /// Serve `/metrics` over HTTP on HOST:PORT; ignored if systemd passes a socket
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "textfile")]
    pub(crate) listen: Option<String>,
    /// Write the metrics to FILE for `node_exporter`, atomically, and exit
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,
    /// Write the file again after each interval, and do not exit
    #[arg(long, value_name = "TIME", value_parser = filter::parse_time, requires = "textfile")]
    pub(crate) interval: Option<u64>,
    /// Report at most this many tubes per server, in order of name
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub(crate) max_tubes: usize,
    /// Report a server as down if its scrape takes longer than this
    #[arg(long, value_name = "TIME", value_parser = filter::parse_time, default_value = "5")]
    pub(crate) timeout: u64,
    /// Use another exporter's names of metrics and labels
    #[arg(long, value_name = "NAMES", default_value = "own")]
    pub(crate) names: Naming,
}

/// Names of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Naming {
    /// Names of doc/monitoring.md
    Own,
    /// Names of `messagebird/beanstalkd_exporter`
    Messagebird,
    /// Names of `davidtannock/beanstalkd_exporter`
    Davidtannock,
}

impl Naming {
    /// Returns the names of all metrics. `servers` is the number of servers.
    pub(crate) fn names(self, servers: usize) -> Names {
        match self {
            Self::Own => Names::own(),
            Self::Messagebird => foreign::messagebird(),
            Self::Davidtannock => foreign::davidtannock(servers),
        }
    }
}
