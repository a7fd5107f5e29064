//! The jobs of any server: `stats-job` for each id, thousands on their way, and nothing changed.
//!
//! Reserved jobs answer as well. The sweep begins at the lowest id that peeking shows, goes upward
//! and then downward, and ends when the [`Census`] says that it has seen all. If the server has
//! been restarted with a binlog and no job is younger than that, no bound of the ids may be known.
//! Then it ends [`GAP`] ids beyond the last known job, and says that there may be more.

use std::ops::{ControlFlow, RangeInclusive};

use anyhow::{Result, ensure};

use crate::census::{self, Census, Seen};
use crate::client::{Client, Reply, write_numbered, write_put};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::progress::{Pacer, Progress};

/// How many ids are asked for between two looks at `stats`.
const BATCH: u64 = 10_000;

/// How far beyond the last known job an unbounded sweep goes.
const GAP: u64 = 1_000_000;

/// The most tubes that are peeked into for a beginning.
const PEEKED_TUBES: usize = 1_000;

/// How to sweep.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// The most commands a second.
    pub(crate) rate: Option<u64>,
    /// The last id, if the user knows it.
    pub(crate) last_id: Option<u64>,
    /// A job of our own may be put and deleted, which tells the last id.
    pub(crate) may_probe: bool,
    /// No progress is shown.
    pub(crate) is_quiet: bool,
}

/// Whether a sweep has seen all jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// It has seen all that were there from its beginning to its end.
    Complete,
    /// How many jobs it has seen, and how many there are. No bound of the ids is known.
    Unsure(u64, u64),
    /// The receiver has had enough.
    Enough,
}

/// What gets the jobs, batch by batch.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&mut Client, Vec<Job>) -> Result<ControlFlow<()>>;

struct Sweep<'a> {
    client: &'a mut Client,
    filter: &'a Filter,
    before: Census,
    /// The bound of all ids, if it is known.
    last: Option<u64>,
    /// The user has told the bound, perhaps too low a one.
    is_told: bool,
    /// Jobs seen in the tubes that are meant, whatever their state.
    seen: Seen,
    highest: u64,
    pacer: Pacer,
    progress: Progress,
    interrupt: &'a Interrupt,
}

/// Gives all jobs of the filter's tubes that it has, but for its pattern, in batches.
pub(crate) fn sweep(
    client: &mut Client,
    filter: &Filter,
    options: &Options,
    interrupt: &Interrupt,
    take: Take<'_>,
) -> Result<Coverage> {
    let before = Census::take(client, &filter.tubes)?;
    if before.jobs() == 0 {
        return Ok(Coverage::Complete);
    }
    let mut last = options.last_id.or(before.last_id());
    if last.is_none() && options.may_probe {
        last = Some(probe(client)?);
    }
    let progress = if options.is_quiet {
        Progress::hidden()
    } else {
        Progress::new("looking for jobs", Some(before.jobs()))
    };
    let pacer = Pacer::new(options.rate);
    let is_told = options.last_id.is_some();
    let mut sweep = Sweep {
        client,
        filter,
        before,
        last,
        is_told,
        seen: Seen::new(),
        highest: 0,
        pacer,
        progress,
        interrupt,
    };
    let begin = sweep.begin()?;
    sweep.run(begin, take)
}

impl Sweep<'_> {
    /// Peeks for an id to begin with; 1 if nothing can be peeked.
    fn begin(&mut self) -> Result<u64> {
        let mut names = census::tubes(self.client, &self.filter.tubes)?;
        names.truncate(PEEKED_TUBES);
        let write = |name: &String, out: &mut Vec<u8>| {
            out.extend_from_slice(format!("use {name}\r\n").as_bytes());
            out.extend_from_slice(b"peek-ready\r\npeek-delayed\r\npeek-buried\r\n");
        };
        // Four replies for an item: the other three get items that write nothing.
        let items = names.into_iter().flat_map(|name| [Some(name), None, None, None]);
        let mut lowest = None;
        let mut highest = 0;
        self.client.pipeline(
            items,
            |item, out| item.iter().for_each(|name| write(name, out)),
            |_, reply| {
                let found = reply.number().filter(|_| reply.is("FOUND"));
                if let Some(id) = found {
                    lowest = Some(lowest.map_or(id, |lowest: u64| lowest.min(id)));
                    highest = highest.max(id);
                }
                Ok(())
            },
        )?;
        self.client.ask("use default")?;
        self.highest = highest;
        Ok(lowest.unwrap_or(1))
    }

    fn run(&mut self, begin: u64, take: Take<'_>) -> Result<Coverage> {
        let mut next = begin;
        loop {
            let unbounded = self.highest.saturating_add(self.before.puts()).saturating_add(GAP);
            let end = self.last.unwrap_or(unbounded);
            if next > end {
                break;
            }
            let last = end.min(next.saturating_add(self.pacer.batch(BATCH) - 1));
            if let Some(coverage) = self.step(next..=last, take)? {
                return Ok(coverage);
            }
            let Some(after) = last.checked_add(1) else { break };
            next = after;
        }
        let mut below = begin;
        while below > 1 {
            let first = below.saturating_sub(self.pacer.batch(BATCH)).max(1);
            if let Some(coverage) = self.step(first..=below - 1, take)? {
                return Ok(coverage);
            }
            below = first;
        }
        if self.last.is_some() && !self.is_told {
            return Ok(Coverage::Complete);
        }
        let now = Census::take(self.client, &self.filter.tubes)?;
        Ok(Coverage::Unsure(self.seen(), now.jobs()))
    }

    fn seen(&self) -> u64 {
        self.seen.values().sum()
    }

    /// Asks for these ids, and tells why that is enough, if it is.
    fn step(&mut self, ids: RangeInclusive<u64>, take: Take<'_>) -> Result<Option<Coverage>> {
        self.interrupt.check()?;
        let count = ids.end() - ids.start() + 1;
        let mut jobs = stats_of(self.client, ids)?;
        for job in &jobs {
            self.highest = self.highest.max(job.id);
            if let Some(bound) = self.before.last_id_by(job) {
                self.last = Some(self.last.map_or(bound, |last| last.min(bound)));
            }
        }
        jobs.retain(|job| self.filter.tubes.matches(&job.tube));
        self.before.count(&mut self.seen, &jobs);
        self.progress.at(self.seen());
        jobs.retain(|job| self.filter.matches(job));
        if !jobs.is_empty() && take(self.client, jobs)?.is_break() {
            return Ok(Some(Coverage::Enough));
        }
        self.pacer.pace(count);
        let now = Census::take(self.client, &self.filter.tubes)?;
        Ok(now.is_covered_by(&self.seen, &self.before).then_some(Coverage::Complete))
    }
}

/// Returns the jobs of these ids that exist.
pub(crate) fn stats_of(
    client: &mut Client,
    ids: impl IntoIterator<Item = u64>,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let write = |id: &u64, out: &mut Vec<u8>| write_numbered(out, "stats-job", *id);
    client.pipeline(ids, write, |id, reply: Reply| {
        if reply.is("OK") {
            let job = Job::from_stats(&reply.into_yaml()?)?;
            ensure!(job.id == id, "stats-job {id} answers with the job {}", job.id);
            jobs.push(job);
        } else if !reply.is("NOT_FOUND") {
            return Err(reply.unexpected("stats-job"));
        }
        Ok(())
    })?;
    Ok(jobs)
}

/// Adds the bodies to jobs, and drops those that exist no longer.
pub(crate) fn with_bodies(client: &mut Client, jobs: Vec<Job>) -> Result<Vec<Job>> {
    let mut kept = Vec::with_capacity(jobs.len());
    let write = |job: &Job, out: &mut Vec<u8>| write_numbered(out, "peek", job.id);
    client.pipeline(jobs, write, |mut job, reply| match (reply.is("FOUND"), reply.body) {
        (true, Some(body)) => {
            let line = &reply.line;
            ensure!(line.starts_with(&format!("FOUND {} ", job.id)), "peek {}: {line}", job.id);
            job.set_body(body);
            kept.push(job);
            Ok(())
        }
        _ if reply.line == "NOT_FOUND" => Ok(()),
        (_, body) => Err(Reply { line: reply.line, body }.unexpected("peek")),
    })?;
    Ok(kept)
}

/// Puts a job into a tube of our own and deletes it, which tells the last id.
fn probe(client: &mut Client) -> Result<u64> {
    let tube = format!("beanstalkctl-probe-{}", std::process::id());
    client.ask(&format!("use {tube}"))?;
    let mut id = None;
    let write = |(): &(), out: &mut Vec<u8>| write_put(out, u32::MAX, 0, 1, b"");
    client.pipeline([()], write, |(), reply| match reply.number() {
        Some(number) if reply.is("INSERTED") => {
            id = Some(number);
            Ok(())
        }
        _ => Err(reply.unexpected("the probe")),
    })?;
    let id = id.expect("a reply came");
    let reply = client.ask(&format!("delete {id}"))?;
    if !reply.is("DELETED") {
        return Err(reply.unexpected("the delete of the probe"));
    }
    client.ask("use default")?;
    Ok(id)
}
