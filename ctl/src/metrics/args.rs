//! The options of `metrics`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::filter;

#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Only tubes with these names; * and ? stand for any characters
    pub(crate) tubes: Vec<String>,
    /// Serve `/metrics` over HTTP at HOST:PORT; sockets passed by systemd go before it
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "textfile")]
    pub(crate) listen: Option<String>,
    /// Write them to this file for `node_exporter`, whole or not at all, and end
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,
    /// Write the file again each time this has passed, and do not end
    #[arg(long, value_name = "TIME", value_parser = filter::seconds, requires = "textfile")]
    pub(crate) interval: Option<u64>,
    /// Tell of at most this many tubes of a server, the first by name
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub(crate) max_tubes: usize,
    /// A server that has not told all by then counts as down
    #[arg(long, value_name = "TIME", value_parser = filter::seconds, default_value = "5")]
    pub(crate) timeout: u64,
    /// Use the names of metrics and labels of another program
    #[arg(long, value_name = "NAMES", default_value = "own")]
    pub(crate) names: Naming,
}

/// Names of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Naming {
    /// Those of doc/monitoring.md
    Own,
    /// Those of `messagebird/beanstalkd_exporter`
    Messagebird,
    /// Those of `davidtannock/beanstalkd_exporter`
    Davidtannock,
}
