//! `move`: moves jobs to another tube, on this server or on another one.
//!
//! For each job, a copy in the same state is put first, and then the job is deleted. A ready job is
//! reserved meanwhile, so that no worker gets it. If a worker has reserved the job first, the copy
//! is deleted instead. If a server is lost in between, the jobs that may be in both places are
//! reported.

use anyhow::{Result, bail};

use crate::args::MoveArgs;
use crate::client::{Client, write_command};
use crate::context::{Context, Outcome};
use crate::copy::{self, Copied};
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::message::{counted, print_notice, print_notices, usage};
use crate::plan::{Instance, Plan};
use crate::progress::Progress;
use crate::save::{self, SaveFile};
use crate::statistics;

/// The largest number of jobs that are in both places at once.
const BATCH_JOBS: usize = 200;

/// Moves jobs in batches, and counts them.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    from: &'a mut Client,
    to: &'a mut Client,
    tube: &'a str,
    save: Option<SaveFile>,
    pub(crate) moved: u64,
    /// The number of jobs that other clients took first.
    skipped: u64,
    /// Ids of jobs too large for the other server.
    too_large: Vec<u64>,
    /// Sentences about jobs that may be in both places.
    doubts: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &MoveArgs, context: &mut Context) -> Result<Outcome> {
    let mut from = context.client()?;
    let target = args.to.as_ref().unwrap_or(from.address()).clone();
    if target == *from.address() && args.from == args.into {
        return Err(usage("the jobs are already in that tube"));
    }
    if args.to.is_some() && args.from == args.into {
        // The same server may have another name.
        let other = Client::connect(&target)?.yaml("stats")?;
        if Instance::from_stats(&other) == Instance::from_stats(&from.yaml("stats")?) {
            return Err(usage(format!(
                "the jobs are already in that tube: {target} is this server"
            )));
        }
    }
    let mut filter = args.filters.to_filter(&[], args.grep.as_deref())?;
    filter.tubes = Tubes::of_name(&args.from);
    filter.restrict_to_deletable()?;
    save::require_new_save_file(args.consent.save.as_deref())?;
    statistics::existing_tube_stats(&mut from, &args.from)?;
    let options = &args.filters.sweep;
    let interrupt = context.interrupt.clone();
    let (jobs, coverage) = Plan::find(&mut from, filter, options, &interrupt)?;
    let found = Context::report_coverage(&from, coverage);
    if jobs.count() == 0 {
        print_notice("No jobs to move.");
        return Ok(found);
    }
    let place = if args.to.is_some() { format!(" on {target}") } else { String::new() };
    let plan = format!("move {} to {}{place}", jobs.summary, args.into);
    if !context.confirm(&args.consent, &plan)? {
        return Ok(found.and(Outcome::done_if(args.consent.dry_run)));
    }
    let mut to = Client::connect(&target)?;
    let mut mover = Mover::new(&mut from, &mut to, &args.into)?;
    mover.save = SaveFile::create_if(args.consent.save.as_deref())?;
    let progress = Progress::new("moving", Some(jobs.count()));
    let result = mover.move_jobs(&jobs, &progress, &interrupt);
    drop(progress);
    let done = format!("{} moved (plan: {plan})", counted(mover.moved, "job"));
    context.report_action(mover.from.address(), "move", mover.moved, &done)?;
    print_notices(&mover.describe_leftovers());
    let is_all = mover.skipped == 0 && mover.too_large.is_empty();
    let finished = mover.save.map_or(Ok(()), SaveFile::finish);
    result.and(finished).map(|()| found.and(Outcome::done_if(is_all)))
}

impl<'a> Mover<'a> {
    /// Prepares to move jobs to a tube of `to`, which may be the same server.
    pub(crate) fn new(from: &'a mut Client, to: &'a mut Client, tube: &'a str) -> Result<Self> {
        to.use_tube(tube)?;
        let (too_large, doubts) = (Vec::new(), Vec::new());
        Ok(Self { from, to, tube, save: None, moved: 0, skipped: 0, too_large, doubts })
    }

    /// Moves the jobs of a plan. No batch starts after an interrupt.
    pub(crate) fn move_jobs(
        &mut self,
        plan: &Plan,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        for batch in plan.batches(self.from.bodies_at_once(BATCH_JOBS)?) {
            interrupt.check()?;
            progress.add(batch.len() as u64);
            self.move_batch(batch, plan)?;
        }
        Ok(())
    }

    /// Describes jobs that were not moved, or may be in both places, one sentence each.
    pub(crate) fn describe_leftovers(&self) -> Vec<String> {
        let mut sentences = self.doubts.clone();
        if self.skipped > 0 {
            let left = counted(self.skipped, "job");
            sentences.push(format!("Not moved, because others took them: {left}."));
        }
        if !self.too_large.is_empty() {
            let ids: Vec<_> = self.too_large.iter().map(ToString::to_string).collect();
            let (target, ids) = (self.to.address(), ids.join(", "));
            sentences.push(format!("Not moved, because too large for {target}: {ids}"));
        }
        sentences
    }

    fn move_batch(&mut self, ids: Vec<u64>, plan: &Plan) -> Result<()> {
        let listed = ids.len();
        let jobs = self.reserve_batch(ids, plan)?;
        self.skipped += (listed - jobs.len()) as u64;
        let most = self.to.max_job_size()?;
        let fits = |job: &Job| job.size.is_none_or(|size| size <= most);
        let (jobs, too_large): (Vec<_>, Vec<_>) = jobs.into_iter().partition(fits);
        self.skip_too_large(&too_large);
        if let Some(save) = &mut self.save {
            save.write_and_sync(&jobs)?;
        }
        let mut placed = copy::put_copies(self.to, &jobs, Some(self.tube));
        let failure = placed.failure.take();
        let copied: Vec<_> = placed.select(&jobs, |it| matches!(it, Copied::Put(_))).collect();
        let copied: Vec<_> = copied.into_iter().map(|job| job.id).zip(placed.ids()).collect();
        let select =
            |result| placed.select(&jobs, move |it| it == result).cloned().collect::<Vec<_>>();
        self.skip_too_large(&select(Copied::TooLarge));
        let Some(failure) = failure else { return self.delete_originals(&copied) };
        // Releases jobs without a copy, and deletes jobs with one, if that is still possible.
        let (refused, unconfirmed) = (select(Copied::Refused), select(Copied::Unconfirmed));
        let is_alive = self.to.ask("list-tube-used").is_ok();
        let deleted = if is_alive { self.delete_originals(&copied) } else { Ok(()) };
        if !is_alive {
            let sentences = unconfirmed.iter().map(|job| format!("{} (copy ?)", job.id));
            let sentences = copied.iter().map(Self::describe_pair).chain(sentences);
            self.doubts.push(Self::describe_unconfirmed(sentences));
        }
        self.release_unmoved(&refused);
        self.release_unmoved(&unconfirmed);
        deleted.and(Err(failure))
    }

    /// Reads the current fields and bodies of the jobs, and reserves the ready ones.
    fn reserve_batch(&mut self, ids: Vec<u64>, plan: &Plan) -> Result<Vec<Job>> {
        let jobs = plan.current_jobs(self.from, ids)?;
        let write = |job: &Job, out: &mut Vec<u8>| {
            let is_ready = job.state == State::Ready;
            write_command(out, if is_ready { "reserve-job" } else { "peek" }, job.id);
        };
        let mut taken = Vec::new();
        self.from.pipeline(jobs, write, |mut job, reply| match reply.word() {
            "RESERVED" | "FOUND" if reply.number() == Some(job.id) => {
                job.set_body(reply.body.unwrap_or_default());
                taken.push(job);
                Ok(())
            }
            "NOT_FOUND" => Ok(()),
            _ => Err(reply.error_for("reserve-job or peek")),
        })?;
        Ok(taken)
    }

    /// Deletes the jobs that have a copy, or the copies of jobs that others took first.
    fn delete_originals(&mut self, copied: &[(u64, u64)]) -> Result<()> {
        let mut confirmed = 0;
        let mut taken = Vec::new();
        let mut others = Vec::new();
        let write = |pair: &(u64, u64), out: &mut Vec<u8>| write_command(out, "delete", pair.0);
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
        let sentences: Vec<_> = doubtful.map(Self::describe_pair).collect();
        if !sentences.is_empty() {
            self.doubts.push(Self::describe_unconfirmed(sentences));
        }
        let is_refused = !others.is_empty();
        self.skipped += taken.len() as u64;
        let write = |pair: &(u64, u64), out: &mut Vec<u8>| write_command(out, "delete", pair.1);
        let mut twice = Vec::new();
        let undone = self.to.pipeline(taken.iter().copied(), write, |pair, reply| {
            twice.extend((!reply.is("DELETED")).then(|| Self::describe_pair(&pair)));
            Ok(())
        });
        if undone.is_err() {
            twice = taken.iter().map(Self::describe_pair).collect();
        }
        if !twice.is_empty() {
            let twice = twice.join(", ");
            self.doubts.push(format!("Workers have both the job and its copy: {twice}"));
        }
        if is_refused {
            bail!("the server refused to delete copied jobs");
        }
        result.and(undone)
    }

    /// Leaves jobs where they are if they are too large for the other server.
    fn skip_too_large(&mut self, jobs: &[Job]) {
        self.too_large.extend(jobs.iter().map(|job| job.id));
        self.release_unmoved(jobs);
    }

    /// Releases reserved jobs that are not moved. If that fails, the end of the connection releases
    /// them.
    fn release_unmoved(&mut self, jobs: &[Job]) {
        let reserved = jobs.iter().filter(|job| job.state == State::Ready);
        let write = |job: &&Job, out: &mut Vec<u8>| {
            out.extend_from_slice(format!("release {} {} 0\r\n", job.id, job.pri).as_bytes());
        };
        let _ = self.from.pipeline(reserved, write, |_, _| Ok(()));
    }

    /// Formats the ids of a job and its copy.
    fn describe_pair((id, copy): &(u64, u64)) -> String {
        format!("{id} (copy {copy})")
    }

    fn describe_unconfirmed(ids: impl IntoIterator<Item = String>) -> String {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = ids.join(", ");
        format!(
            "These jobs may be in both places; if beanstalkctl job finds both of a pair, delete \
             the copy: {ids}"
        )
    }
}
