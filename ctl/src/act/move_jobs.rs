//! `move`: jobs go to another tube, on this server or on another one.
//!
//! A copy is put first, in the state that it is to have, and then the job is deleted. A ready job
//! is reserved for that long, so that no worker gets it. If a job cannot be deleted, because a
//! worker has got it, its copy is deleted. If a server is lost in between, the jobs that may be in
//! both places are told.

use anyhow::{Result, bail};

use super::clear::deletable_only;
use super::put::use_tube;
use crate::census;
use crate::cli::MoveArgs;
use crate::client::{Client, write_numbered};
use crate::context::{Context, Outcome, counted, report, tell, tell_all, usage};
use crate::filter::{Filter, Tubes};
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::place;
use crate::plan::Selection;
use crate::progress::Progress;
use crate::save::{self, SaveFile};
use crate::sweep;

/// How many jobs are in two places at once, at most.
const BATCH: usize = 200;

/// Moves jobs in batches and counts.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    from: &'a mut Client,
    to: &'a mut Client,
    tube: &'a str,
    filter: &'a Filter,
    save: Option<SaveFile>,
    pub(crate) moved: u64,
    /// Jobs that others had got when their turn came.
    left: u64,
    /// Jobs that are too large for the other server.
    too_large: Vec<u64>,
    /// Jobs that may be in two places, a sentence each.
    doubts: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &MoveArgs, context: &mut Context) -> Result<Outcome> {
    let mut from = context.client()?;
    let target = args.to.as_ref().unwrap_or(from.address()).clone();
    if target == *from.address() && args.from == args.into {
        return Err(usage("the jobs are there already"));
    }
    let mut filter = args.which.filter(&[], args.grep.as_deref())?;
    filter.tubes = Tubes::one(&args.from);
    deletable_only(&mut filter)?;
    save::check(args.consent.save.as_deref())?;
    census::tube(&mut from, &args.from)?;
    let options = args.which.sweep.options();
    let interrupt = context.interrupt.clone();
    let (jobs, coverage) = Selection::find(&mut from, &filter, &options, &interrupt)?;
    let found = report(coverage);
    if jobs.count() == 0 {
        tell("There is nothing to move.");
        return Ok(found);
    }
    let place = if args.to.is_some() { format!(" on {target}") } else { String::new() };
    let plan = format!("move {} to {}{place}", jobs.summary, args.into);
    if !context.may(&args.consent, &plan)? {
        return Ok(found.and(Outcome::of(args.consent.dry_run)));
    }
    let mut to = Client::connect(&target)?;
    let mut mover = Mover::new(&mut from, &mut to, &args.into, &filter)?;
    mover.save = SaveFile::create_if(args.consent.save.as_deref())?;
    let progress = Progress::new("moving", Some(jobs.count()));
    let result = mover.jobs(&jobs, &progress, &interrupt);
    drop(progress);
    let done = format!("{} moved (plan: {plan})", counted(mover.moved, "job"));
    context.report_act(mover.from.address(), "move", mover.moved, &done)?;
    tell_all(&mover.leftovers());
    let is_all = mover.left == 0 && mover.too_large.is_empty();
    let finished = mover.save.map_or(Ok(()), SaveFile::finish);
    result.and(finished).map(|()| found.and(Outcome::of(is_all)))
}

impl<'a> Mover<'a> {
    /// Makes one that moves jobs to a tube of the other server, which may be the same.
    pub(crate) fn new(
        from: &'a mut Client,
        to: &'a mut Client,
        tube: &'a str,
        filter: &'a Filter,
    ) -> Result<Self> {
        use_tube(to, tube)?;
        let (too_large, doubts) = (Vec::new(), Vec::new());
        Ok(Self { from, to, tube, filter, save: None, moved: 0, left: 0, too_large, doubts })
    }

    /// Moves the jobs that the filter still matches when their turn comes. No batch is begun after
    /// an interrupt.
    pub(crate) fn jobs(
        &mut self,
        jobs: &Selection,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        for batch in jobs.batches(self.from.bodies_at_once(BATCH)?) {
            interrupt.check()?;
            progress.add(batch.len() as u64);
            self.batch(batch)?;
        }
        Ok(())
    }

    /// Describes jobs that were left, or may be in two places, a sentence each.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut told = self.doubts.clone();
        if self.left > 0 {
            told.push(format!("{} had been taken by others meanwhile.", counted(self.left, "job")));
        }
        if !self.too_large.is_empty() {
            let ids: Vec<_> = self.too_large.iter().map(ToString::to_string).collect();
            let (target, ids) = (self.to.address(), ids.join(", "));
            told.push(format!("Not moved, because {target} takes no bodies as large: {ids}"));
        }
        told
    }

    fn batch(&mut self, ids: Vec<u64>) -> Result<()> {
        let listed = ids.len();
        let jobs = self.take(ids)?;
        self.left += (listed - jobs.len()) as u64;
        let most = self.to.max_job_size()?;
        let fits = |job: &Job| job.size.is_none_or(|size| size <= most);
        let (jobs, too_large): (Vec<_>, Vec<_>) = jobs.into_iter().partition(fits);
        self.leave(&too_large);
        if let Some(save) = &mut self.save {
            save.save(&jobs)?;
        }
        let placed = place::place(self.to, &jobs, Some(self.tube));
        let pairs = jobs.iter().zip(&placed.ids);
        let copied: Vec<_> = pairs.clone().filter_map(|(job, id)| Some((job.id, (*id)?))).collect();
        let too_large: Vec<_> = placed.too_large.iter().map(|at| jobs[*at].clone()).collect();
        self.leave(&too_large);
        if let Some(failure) = placed.failure {
            // A job without a copy goes back; one with a copy still leaves, if that is possible.
            let refused = pairs.filter(|(_, id)| id.is_none()).map(|(job, _)| job);
            let refused: Vec<_> = refused.cloned().collect();
            let alive = self.to.ask("list-tube-used").is_ok();
            let deleted = if alive { self.delete(&copied) } else { Ok(()) };
            if !alive {
                let told = refused.iter().map(|job| format!("{} (copy ?)", job.id));
                let told = copied.iter().map(shown).chain(told);
                self.doubts.push(in_doubt(told));
            }
            self.give_back(&refused);
            return deleted.and(Err(failure));
        }
        self.delete(&copied)
    }

    /// Gets the jobs as they are now, with their bodies; ready ones are reserved.
    fn take(&mut self, ids: Vec<u64>) -> Result<Vec<Job>> {
        let mut jobs = sweep::stats_of(self.from, ids)?;
        jobs.retain(|job| self.filter.matches(job));
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
        let told: Vec<_> = doubtful.map(shown).collect();
        if !told.is_empty() {
            self.doubts.push(in_doubt(told));
        }
        let is_refused = !others.is_empty();
        self.left += taken.len() as u64;
        let write = |pair: &(u64, u64), out: &mut Vec<u8>| write_numbered(out, "delete", pair.1);
        let mut twice = Vec::new();
        let undone = self.to.pipeline(taken.iter().copied(), write, |pair, reply| {
            twice.extend((!reply.is("DELETED")).then(|| shown(&pair)));
            Ok(())
        });
        if undone.is_err() {
            twice = taken.iter().map(shown).collect();
        }
        if !twice.is_empty() {
            let twice = twice.join(", ");
            self.doubts.push(format!("Workers have got both the job and its copy: {twice}"));
        }
        if is_refused {
            bail!("the server refused to delete jobs that have been copied");
        }
        result.and(undone)
    }

    /// Leaves jobs that are too large for the other server where they are.
    fn leave(&mut self, jobs: &[Job]) {
        self.too_large.extend(jobs.iter().map(|job| job.id));
        self.give_back(jobs);
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

/// Names a job and its copy.
fn shown((id, copy): &(u64, u64)) -> String {
    format!("{id} (copy {copy})")
}

fn in_doubt(ids: impl IntoIterator<Item = String>) -> String {
    let ids: Vec<_> = ids.into_iter().collect();
    format!("These jobs may be in both places; delete one of each: {}", ids.join(", "))
}
