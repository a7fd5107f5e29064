//! The daemons that are compared: how to reach them, and their versions and limits.

use std::io;
use std::thread;
use std::time::Duration;

use super::reply::Baseline;
use super::side::{Binlog, Side};
use crate::check::{Program, highest_id};
use crate::client::Client;
use crate::dialect::Dialect;

/// A number of jobs that no run reaches.
const JOBS_PER_RUN_MAX: u64 = 3000;

/// A daemon to compare.
#[derive(Debug, Clone)]
pub enum Target {
    /// Starts a new process for every run.
    Start(Program),
    /// The daemon at `host:port` or `unix:/path`, which must have no jobs and no other users. Jobs
    /// that a run has not deleted are deleted after the run.
    Connect(String),
}

impl Target {
    /// Parses a daemon to compare: an address or a command line; a command line is split at spaces.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().map(str::to_owned);
        let first = words.next().ok_or("give an address or a command")?;
        let flags: Vec<String> = words.collect();
        let has_port = first.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if flags.is_empty() && (has_port || first.starts_with("unix:")) {
            return Ok(Self::Connect(first));
        }
        Ok(Self::Start(Program { path: first.into(), flags }))
    }
}

/// A daemon's version and its limit on the size of a job, from its `stats`.
pub(super) struct DaemonInfo {
    pub(super) version: String,
    pub(super) job_size_limit: u64,
}

impl DaemonInfo {
    /// Reads the version and `max-job-size` of a daemon; starts the daemon first if necessary.
    pub(super) fn query(target: &Target) -> io::Result<Self> {
        let daemon = match target {
            Target::Start(program) => Some(program.start(&[])?),
            Target::Connect(_) => None,
        };
        let address = match (target, &daemon) {
            (Target::Connect(address), _) => address,
            (Target::Start(_), Some(daemon)) => daemon.address(),
            (Target::Start(_), None) => "",
        };
        let stats = Client::connect(address)?.yaml("stats")?;
        let value = |key: &str| {
            let mut entries = stats.lines().filter_map(|line| line.split_once(": "));
            entries.find(|(name, _)| *name == key).map_or("", |(_, value)| value)
        };
        let version = value("version").trim_matches('"').to_owned();
        let job_size_limit = value("max-job-size").parse().map_err(io::Error::other)?;
        Ok(Self { version, job_size_limit })
    }
}

/// Returns the dialect of a compared daemon's version. An unknown version is assumed to be ours.
pub(super) fn dialect_of(version: &str) -> Dialect {
    Dialect::named(version)
        .or_else(|| Dialect::named("ours"))
        .expect("the table of dialects has ours")
}

/// Prepares a compared daemon for a run; unless the target is an address, starts a new process.
pub(super) fn open_side(target: &Target, has_binlog: bool) -> io::Result<Side> {
    match target {
        Target::Start(program) if has_binlog => {
            let binlog = Binlog::new(program)?;
            Side::with_daemon(binlog.start()?, Some(binlog))
        }
        Target::Start(program) => Side::with_daemon(program.start(&[])?, None),
        Target::Connect(address) => Side::at_address(address, baseline(address)?),
    }
}

/// Reads the highest job id and the counters of a compared daemon that has been used before.
fn baseline(address: &str) -> io::Result<Baseline> {
    let mut client = Client::connect(address)?;
    let stats = client.yaml("stats")?;
    let holds_jobs =
        stats.lines().any(|line| line.starts_with("current-jobs-") && !line.ends_with(": 0"));
    if holds_jobs {
        return Err(io::Error::other(format!("the daemon at {address} holds jobs")));
    }
    let id = highest_id(&mut client)?;
    let counters = Baseline::counters(&client.yaml("stats")?);
    let default_tube = Baseline::counters(&client.yaml("stats-tube default")?);
    Ok(Baseline { id, counters, default_tube })
}

/// Deletes the jobs that the compared daemon at an address still has after a run.
pub(super) fn clean_up(address: &str) -> io::Result<()> {
    let mut client = Client::connect(address)?;
    client.command("pause-tube default 0")?;
    let top = highest_id(&mut client)?;
    // A job reserved by a closed connection can be deleted only after the daemon has noticed the
    // close.
    for _ in 0..100 {
        for id in top.saturating_sub(JOBS_PER_RUN_MAX)..top {
            client.command(&format!("delete {id}"))?;
        }
        if baseline(address).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    baseline(address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_distinguished_from_a_command() {
        for address in ["127.0.0.1:11300", "localhost:1", "[::1]:11300", "unix:/tmp/x"] {
            assert!(matches!(Target::parse(address), Ok(Target::Connect(_))), "{address}");
        }
        let Ok(Target::Start(program)) = Target::parse("/usr/bin/beanstalkd -z 100") else {
            panic!("a command")
        };
        assert_eq!(program.flags, ["-z", "100"]);
        assert!(matches!(Target::parse("beanstalkd"), Ok(Target::Start(_))));
        assert!(Target::parse(" ").is_err());
    }

    #[test]
    fn a_version_selects_the_dialect() {
        assert_eq!(dialect_of("1.12").name, "1.12");
        assert_eq!(dialect_of("2.0.0").name, "ours");
    }
}
