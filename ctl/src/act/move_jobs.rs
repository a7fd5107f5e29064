//! `move`: jobs go to another tube, on this server or on another one.
//!
//! A copy is put first, in the state that it is to have, and then the job is deleted. A ready job
//! is reserved for that long, so that no worker gets it. If a job cannot be deleted, because a
//! worker has got it, its copy is deleted. If a server is lost in between, the jobs that may be in
//! both places are told.

use std::ops::ControlFlow;

use anyhow::{Result, bail};

use super::delete::States;
use crate::cli::MoveArgs;
use crate::client::{Client, write_numbered};
use crate::context::{Context, Outcome, counted, report, tell};
use crate::filter::{self, Filter, Tubes};
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list};
use crate::place;
use crate::progress::Progress;
use crate::save::{self, SaveFile};
use crate::sweep;

/// How many jobs are in two places at once, at most.
const BATCH: usize = 200;

struct Mover<'a> {
    from: &'a mut Client,
    to: &'a mut Client,
    tube: &'a str,
    filter: &'a Filter,
    save: Option<SaveFile>,
    moved: u64,
    /// Jobs that others had got when their turn came.
    left: u64,
}

/// Runs the command.
pub(crate) fn run(args: &MoveArgs, context: &mut Context) -> Result<Outcome> {
    let mut from = context.client()?;
    let target = args.to.as_ref().unwrap_or(from.address()).clone();
    if target == *from.address() && args.from == args.into {
        bail!("the jobs are there already");
    }
    let reply = from.ask(&format!("stats-tube {}", args.from))?;
    if reply.is("NOT_FOUND") {
        bail!("there is no tube {}", args.from);
    }
    if !reply.is("OK") {
        return Err(reply.unexpected("stats-tube"));
    }
    let mut to = Client::connect(&target)?;
    let reply = to.ask(&format!("use {}", args.into))?;
    if !reply.is("USING") {
        return Err(reply.unexpected(&format!("use {}", args.into)));
    }
    let mut filter = crate::look::list::filter(&[], &args.which)?;
    filter.tubes = Tubes::one(&args.from);
    if filter.states.is_empty() {
        filter.states = vec![State::Ready, State::Delayed, State::Buried];
    }
    if filter.states.contains(&State::Reserved) {
        bail!("reserved jobs cannot be moved: their workers have them");
    }
    if let Some(text) = &args.grep {
        filter.pattern = Some(filter::pattern(text, false, false)?);
    }
    save::check(args.consent.save.as_deref())?;
    let options = args.which.sweep.options();
    let (options, interrupt) = (&options, &context.interrupt);
    let detail = Detail::Stats;
    let request = Request { filter: &filter, detail, limit: None, options, interrupt };
    let mut jobs = Vec::new();
    let coverage = list(&mut from, &request, &mut |_, batch| {
        jobs.extend(batch);
        Ok(ControlFlow::Continue(()))
    })?;
    let found = report(coverage);
    if jobs.is_empty() {
        tell("There is nothing to move.");
        return Ok(found);
    }
    let (count, states) = (counted(jobs.len() as u64, "job"), States::of(&jobs));
    let place = if args.to.is_some() { format!(" on {target}") } else { String::new() };
    let what = format!("move {count}: {states}, from {} to {}{place}", args.from, args.into);
    if !context.may(&args.consent, &what)? {
        return Ok(found.and(Outcome::of(args.consent.dry_run)));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    let (from, to, tube, filter) = (&mut from, &mut to, args.into.as_str(), &filter);
    let mut mover = Mover { from, to, tube, filter, save, moved: 0, left: 0 };
    let progress = Progress::new("moving", Some(jobs.len() as u64));
    let mut result = Ok(());
    let size = mover.from.bodies_at_once(BATCH)?;
    for batch in jobs.chunks(size) {
        result = context.interrupt.check().map_err(Into::into);
        result = result.and_then(|()| mover.batch(batch));
        if result.is_err() {
            break;
        }
        progress.add(batch.len() as u64);
    }
    drop(progress);
    tell(&format!("{} moved.", counted(mover.moved, "job")));
    if mover.left > 0 {
        tell(&format!("{} had been taken by others meanwhile.", counted(mover.left, "job")));
    }
    result.map(|()| found.and(Outcome::of(mover.left == 0)))
}

impl Mover<'_> {
    fn batch(&mut self, jobs: &[Job]) -> Result<()> {
        let listed = jobs.len();
        let jobs = self.take(jobs)?;
        self.left += (listed - jobs.len()) as u64;
        if let Some(save) = &mut self.save {
            save.save(&jobs)?;
        }
        let placed = place::place(self.to, &jobs, Some(self.tube));
        let pairs = jobs.iter().zip(&placed.ids);
        let copied: Vec<_> = pairs.clone().filter_map(|(job, id)| Some((job.id, (*id)?))).collect();
        if let Some(failure) = placed.failure {
            // A job without a copy goes back; one with a copy still leaves, if that is possible.
            let refused = pairs.filter(|(_, id)| id.is_none()).map(|(job, _)| job);
            let refused: Vec<_> = refused.cloned().collect();
            let alive = self.to.ask("list-tube-used").is_ok();
            let deleted = if alive { self.delete(&copied) } else { Ok(()) };
            if !alive {
                let told = copied.iter().map(|(id, copy)| format!("{id} (copy {copy})"));
                let told = told.chain(refused.iter().map(|job| format!("{} (copy ?)", job.id)));
                tell(&in_doubt(told));
            }
            self.give_back(&refused);
            return deleted.and(Err(failure));
        }
        self.delete(&copied)
    }

    /// Gets the jobs as they are now, with their bodies; ready ones are reserved.
    fn take(&mut self, jobs: &[Job]) -> Result<Vec<Job>> {
        let mut jobs = sweep::stats_of(self.from, jobs.iter().map(|job| job.id))?;
        jobs.retain(|job| self.filter.has(job));
        let write = |job: &Job, out: &mut Vec<u8>| {
            let is_ready = job.state == State::Ready;
            write_numbered(out, if is_ready { "reserve-job" } else { "peek" }, job.id);
        };
        let mut taken = Vec::new();
        self.from.pipeline(jobs, write, |mut job, reply| match reply.word() {
            "RESERVED" | "FOUND" if reply.number() == Some(job.id) => {
                job.set_body(reply.body.unwrap_or_default());
                taken.push(job);
                Ok(())
            }
            "NOT_FOUND" => Ok(()),
            _ => Err(reply.unexpected("reserve-job or peek")),
        })?;
        Ok(taken)
    }

    /// Deletes the jobs that have a copy; or their copies, if others have got the jobs.
    fn delete(&mut self, copied: &[(u64, u64)]) -> Result<()> {
        let mut confirmed = 0;
        let mut taken = Vec::new();
        let mut others = Vec::new();
        let write = |pair: &(u64, u64), out: &mut Vec<u8>| write_numbered(out, "delete", pair.0);
        let result = self.from.pipeline(copied.iter().copied(), write, |pair, reply| {
            confirmed += 1;
            match reply.word() {
                "DELETED" => self.moved += 1,
                "NOT_FOUND" => taken.push(pair),
                _ => others.push(pair),
            }
            Ok(())
        });
        let doubtful = copied[confirmed..].iter().chain(&others);
        let told: Vec<_> = doubtful.map(|(id, copy)| format!("{id} (copy {copy})")).collect();
        if !told.is_empty() {
            tell(&in_doubt(told));
        }
        let is_refused = !others.is_empty();
        self.left += taken.len() as u64;
        let write = |pair: &(u64, u64), out: &mut Vec<u8>| write_numbered(out, "delete", pair.1);
        let mut twice = Vec::new();
        let undone = self.to.pipeline(taken.iter().copied(), write, |(id, copy), reply| {
            if !reply.is("DELETED") {
                twice.push(format!("{id} (copy {copy})"));
            }
            Ok(())
        });
        if undone.is_err() {
            twice = taken.iter().map(|(id, copy)| format!("{id} (copy {copy})")).collect();
        }
        if !twice.is_empty() {
            tell(&format!("Workers have got both the job and its copy: {}", twice.join(", ")));
        }
        if is_refused {
            bail!("the server refused to delete jobs that have been copied");
        }
        result.and(undone)
    }

    /// Releases reserved jobs that are not moved. If that fails, the end of the connection does it.
    fn give_back(&mut self, jobs: &[Job]) {
        let reserved = jobs.iter().filter(|job| job.state == State::Ready);
        let write = |job: &&Job, out: &mut Vec<u8>| {
            out.extend_from_slice(format!("release {} {} 0\r\n", job.id, job.pri).as_bytes());
        };
        let _ = self.from.pipeline(reserved, write, |_, _| Ok(()));
    }
}

fn in_doubt(ids: impl IntoIterator<Item = String>) -> String {
    let ids: Vec<_> = ids.into_iter().collect();
    format!("These jobs may be in both places; delete one of each: {}", ids.join(", "))
}
