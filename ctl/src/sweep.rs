//! Finds the jobs of any server by pipelined `stats-job` commands for all ids. A sweep changes
//! nothing on the server, unless `--probe` is given.
//!
//! A sweep also finds reserved jobs. The sweep starts at the lowest id that a peek returns, goes up
//! to the last id, and then down from the start to id 1. The sweep ends as soon as the [`Counters`]
//! show that it has found every job. If the server was restarted with a binlog and no job is
//! younger than the restart, the highest id may be unknown. The sweep then goes up to the highest
//! known id plus `cmd-put` plus [`GAP_IDS`], and reports that jobs may be missing.

use std::ops::{ControlFlow, RangeInclusive};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::client::Client;
use crate::copy;
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::progress::{Pacer, Progress};
use crate::statistics::{self, Counters, FoundCounts};

/// The largest number of ids requested between two reads of `stats`.
const BATCH_IDS: u64 = 10_000;

/// A sweep without a known bound goes up to the highest known id plus `cmd-put` plus this number.
const GAP_IDS: u64 = 1_000_000;

/// To choose its first id, a sweep peeks at the first jobs of at most this many tubes.
const PEEKED_TUBES_MAX: usize = 1_000;

/// The options of a sweep.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Search by id, on servers that cannot list the jobs")]
pub(crate) struct Options {
    /// Send at most this many commands per second
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rate: Option<u64>,
    /// End the search at this id, the last id of the server
    #[arg(long, value_name = "ID")]
    pub(crate) last_id: Option<u64>,
    /// Learn the last id by putting a temporary job into a tube of its own
    #[arg(long, conflicts_with = "last_id")]
    pub(crate) probe: bool,
    /// Show no progress.
    #[arg(skip)]
    pub(crate) is_quiet: bool,
}

/// Whether a sweep has found all jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// The sweep has found every job that existed during the whole sweep.
    Complete,
    /// Jobs may be missing. The fields are the number of jobs found, and the number of jobs that
    /// the server counts in the selected tubes.
    Incomplete(u64, u64),
    /// The function that receives the jobs has ended the sweep.
    Stopped,
}

/// The function that receives the jobs, batch by batch.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&mut Client, Vec<Job>) -> Result<ControlFlow<()>>;

struct Sweep<'a> {
    client: &'a mut Client,
    filter: &'a Filter,
    before: Counters,
    /// An upper bound on the ids, if one is known.
    last: Option<u64>,
    /// Whether the user has given the bound, which may then be too low.
    is_last_given: bool,
    /// How many jobs of any state were found in the selected tubes.
    found: FoundCounts,
    highest: u64,
    pacer: Pacer,
    progress: Progress,
    interrupt: &'a Interrupt,
}

/// Finds all jobs by a sweep, and passes the jobs that the filter selects to `take`, in batches.
/// Ignores the filter's pattern for bodies.
pub(crate) fn sweep(
    client: &mut Client,
    filter: &Filter,
    options: &Options,
    interrupt: &Interrupt,
    take: Visit<'_>,
) -> Result<Coverage> {
    let before = Counters::read(client, &filter.tubes)?;
    if before.jobs() == 0 {
        return Ok(Coverage::Complete);
    }
    let mut last = options.last_id.or(before.last_id());
    if last.is_none() && options.probe {
        last = Some(probe_last_id(client)?);
    }
    let progress = if options.is_quiet {
        Progress::hidden()
    } else {
        Progress::new("finding jobs", Some(before.jobs()))
    };
    let pacer = Pacer::new(options.rate);
    let is_last_given = options.last_id.is_some();
    let mut sweep = Sweep {
        client,
        filter,
        before,
        last,
        is_last_given,
        found: FoundCounts::new(),
        highest: 0,
        pacer,
        progress,
        interrupt,
    };
    let begin = sweep.first_id()?;
    sweep.search_all(begin, take)
}

impl Sweep<'_> {
    /// Returns the lowest id that a peek returns; 1 if no peek finds a job.
    fn first_id(&mut self) -> Result<u64> {
        let mut names = statistics::tube_names(self.client, &self.filter.tubes)?;
        names.truncate(PEEKED_TUBES_MAX);
        let peeks = ["peek-ready", "peek-delayed", "peek-buried"].map(str::to_owned);
        let lines = |name| [format!("use {name}")].into_iter().chain(peeks.clone());
        let mut lowest = None;
        let lines = names.into_iter().flat_map(lines);
        self.client.ask_each(lines, String::clone, |_, reply| {
            if let Some(id) = reply.number().filter(|_| reply.is("FOUND")) {
                lowest = Some(lowest.map_or(id, |lowest: u64| lowest.min(id)));
                self.highest = self.highest.max(id);
            }
            Ok(())
        })?;
        self.client.ask("use default")?;
        Ok(lowest.unwrap_or(1))
    }

    /// Searches all ids in batches: from `begin` upward, and then from `begin` downward.
    fn search_all(&mut self, begin: u64, take: Visit<'_>) -> Result<Coverage> {
        let mut next = begin;
        loop {
            let unbounded = self.highest.saturating_add(self.before.puts).saturating_add(GAP_IDS);
            let end = self.last.unwrap_or(unbounded);
            if next > end {
                break;
            }
            let last = end.min(next.saturating_add(self.pacer.batch_size(BATCH_IDS) - 1));
            if let Some(coverage) = self.search(next..=last, take)? {
                return Ok(coverage);
            }
            let Some(after) = last.checked_add(1) else { break };
            next = after;
        }
        let mut below = begin;
        while below > 1 {
            let first = below.saturating_sub(self.pacer.batch_size(BATCH_IDS)).max(1);
            if let Some(coverage) = self.search(first..=below - 1, take)? {
                return Ok(coverage);
            }
            below = first;
        }
        if self.last.is_some() && !self.is_last_given {
            return Ok(Coverage::Complete);
        }
        let now = Counters::read(self.client, &self.filter.tubes)?;
        Ok(Coverage::Incomplete(self.found_count(), now.jobs()))
    }

    /// Returns the number of jobs that the sweep has found.
    fn found_count(&self) -> u64 {
        self.found.values().sum()
    }

    /// Requests the jobs with these ids, as a part of the sweep. Returns a [`Coverage`] if the
    /// sweep has ended.
    fn search(&mut self, ids: RangeInclusive<u64>, take: Visit<'_>) -> Result<Option<Coverage>> {
        self.interrupt.check()?;
        let count = ids.end() - ids.start() + 1;
        let mut jobs = jobs_by_ids(self.client, ids)?;
        for job in &jobs {
            self.highest = self.highest.max(job.id);
            if let Some(bound) = self.before.last_id_by(job) {
                self.last = Some(self.last.map_or(bound, |last| last.min(bound)));
            }
        }
        jobs.retain(|job| self.filter.tubes.matches(&job.tube));
        self.before.count(&mut self.found, &jobs);
        self.progress.set_count(self.found_count());
        jobs.retain(|job| self.filter.matches(job));
        if !jobs.is_empty() && take(self.client, jobs)?.is_break() {
            return Ok(Some(Coverage::Stopped));
        }
        self.pacer.pace(count);
        let now = Counters::read(self.client, &self.filter.tubes)?;
        Ok(now.is_covered_by(&self.found, &self.before).then_some(Coverage::Complete))
    }
}

/// Returns the existing jobs among these ids.
pub(crate) fn jobs_by_ids(
    client: &mut Client,
    ids: impl IntoIterator<Item = u64>,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let line = |id: &u64| format!("stats-job {id}");
    client.yaml_of_each(ids, line, |id, text| {
        let job = Job::from_stats(&text)?;
        ensure!(job.id == id, "asked for job {id}, but the server described job {}", job.id);
        jobs.push(job);
        Ok(())
    })?;
    Ok(jobs)
}

/// Adds the bodies to the jobs, and drops jobs that no longer exist.
pub(crate) fn peek_bodies(client: &mut Client, jobs: Vec<Job>) -> Result<Vec<Job>> {
    let mut kept = Vec::with_capacity(jobs.len());
    let line = |job: &Job| format!("peek {}", job.id);
    client.ask_each(jobs, line, |mut job, reply| {
        if reply.is("FOUND") {
            let (line, id) = (&reply.line, job.id);
            ensure!(line.starts_with(&format!("FOUND {id} ")), "bad reply to peek {id}: {line}");
            job.set_body(reply.body.unwrap_or_default());
            kept.push(job);
        } else if !reply.is("NOT_FOUND") {
            return Err(reply.error_for("peek"));
        }
        Ok(())
    })?;
    Ok(kept)
}

/// Learns the last id by putting a temporary job into a tube of its own.
fn probe_last_id(client: &mut Client) -> Result<u64> {
    let tube = format!("beanstalkctl-probe-{}", std::process::id());
    let job = Job::new(&tube, (u32::MAX, 0, 1), Vec::new());
    let copies = copy::put_copies(client, &[job], None);
    let id = copies.ids().next().unwrap_or_default();
    copies.into_result(0, 1).context("the probe")?;
    client.ask_for(&format!("delete {id}"), "DELETED")?;
    client.use_tube("default")?;
    Ok(id)
}
