//! `move`: moves jobs to another tube, on the same server or on another server.
//!
//! For each job, a copy in the same state is put first, and then the job is deleted. A ready job is
//! reserved before its copy is put, so that no worker gets the job. If another client reserves,
//! changes or deletes the job nevertheless, the copy is deleted. If a connection fails
//! before the delete, the command reports the jobs that may be in both tubes.

use anyhow::{Result, ensure};

use crate::args::MoveArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::copy::{self, Copied};
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::message::{counted, print_notice, print_notices, usage};
use crate::plan::{Instance, Plan, PlannedJob};
use crate::progress::Progress;
use crate::save::{self, SaveFile};
use crate::statistics;

/// The largest number of jobs that are in both tubes at once.
const BATCH_JOBS: usize = 200;

/// Moves jobs in batches, and counts the moved and the skipped jobs.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    from: &'a mut Client,
    to: &'a mut Client,
    tube: &'a str,
    save: Option<SaveFile>,
    pub(crate) moved: u64,
    /// The number of jobs not moved, because other clients reserved, changed or deleted them.
    skipped: u64,
    /// The ids of jobs that are too large for the other server.
    too_large: Vec<u64>,
    /// Sentences about jobs that may be in both tubes.
    doubts: Vec<String>,
}

/// Runs `beanstalkctl move`.
pub(crate) fn run(args: &MoveArgs, context: &mut Context) -> Result<Outcome> {
    let mut from = context.client()?;
    let target = args.to.as_ref().unwrap_or(from.address()).clone();
    let (is_same_tube, why) = (args.from == args.into, "the jobs are already in that tube");
    ensure!(!is_same_tube || target != *from.address(), usage(why));
    if is_same_tube && args.to.is_some() {
        // Compare the instances, because the other address may belong to the same server.
        let other = Client::connect(&target)?.yaml("stats")?;
        let is_other = Instance::from_stats(&other) != Instance::from_stats(&from.yaml("stats")?);
        ensure!(is_other, usage(format!("{why}: {target} is this server")));
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
    /// Prepares to move jobs from the server `from` to a tube of the server `to`, which may be the
    /// same server.
    pub(crate) fn new(from: &'a mut Client, to: &'a mut Client, tube: &'a str) -> Result<Self> {
        to.use_tube(tube)?;
        let (too_large, doubts) = (Vec::new(), Vec::new());
        Ok(Self { from, to, tube, save: None, moved: 0, skipped: 0, too_large, doubts })
    }

    /// Moves the jobs of a plan. After an interrupt, such as Ctrl-C, no further batch starts.
    pub(crate) fn move_jobs(
        &mut self,
        plan: &Plan,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let most = self.from.bodies_at_once(BATCH_JOBS)?;
        plan.each_batch(most, progress, interrupt, |batch| self.move_batch(batch, plan))
    }

    /// Describes jobs that were not moved, or that may be in both tubes.
    pub(crate) fn describe_leftovers(&self) -> Vec<String> {
        let mut sentences = self.doubts.clone();
        if self.skipped > 0 {
            let left = counted(self.skipped, "job");
            sentences.push(format!(
                "Not moved, because others took or changed them, or they timed out: {left}."
            ));
        }
        if !self.too_large.is_empty() {
            let ids: Vec<_> = self.too_large.iter().map(ToString::to_string).collect();
            let (target, ids) = (self.to.address(), ids.join(", "));
            sentences.push(format!("Not moved, because too large for {target}: {ids}"));
        }
        sentences
    }

    /// Moves a batch of the jobs of a plan.
    fn move_batch(&mut self, batch: &[PlannedJob], plan: &Plan) -> Result<()> {
        let jobs = self.reserve_batch(batch, plan)?;
        self.skipped += (batch.len() - jobs.len()) as u64;
        let most = self.to.max_job_size()?;
        let fits = |job: &Job| job.size.is_none_or(|size| size <= most);
        let (jobs, too_large): (Vec<_>, Vec<_>) = jobs.into_iter().partition(fits);
        self.skip_too_large(&too_large);
        if let Some(save) = &mut self.save {
            save.write_and_sync(&jobs)?;
        }
        let mut placed = copy::put_copies(self.to, &jobs, Some(self.tube));
        let failure = placed.failure.take();
        let copied = placed.select(&jobs, |it| matches!(it, Copied::Put(_))).zip(placed.ids());
        let (held, copied): (Vec<_>, Vec<_>) =
            copied.partition(|(_, copy)| placed.held.contains(copy));
        let select =
            |result| placed.select(&jobs, move |it| it == result).cloned().collect::<Vec<_>>();
        self.skip_too_large(&select(Copied::TooLarge));
        let Some(failure) = failure else { return self.delete_originals(&copied) };
        // After a failure, release each job that has no copy. If the server `to` still answers,
        // delete each job with a copy.
        let (refused, unconfirmed) = (select(Copied::Refused), select(Copied::Unconfirmed));
        let id_of = |(job, copy): &(&Job, u64)| (job.id, *copy);
        let held: Vec<_> = held.iter().map(id_of).collect();
        let deleted = if self.to.ask("list-tube-used").is_ok() {
            let undone = self.delete_copies(&held);
            self.delete_originals(&copied).and(undone)
        } else {
            let pairs = copied.iter().map(id_of).chain(held);
            let pairs = pairs.map(|pair| describe_moved(&pair));
            let unknown = unconfirmed.iter().map(|job| format!("{} (copy ?)", job.id));
            self.doubt(pairs.chain(unknown));
            let advice = placed.describe_held(&jobs, self.to.address(), "delete");
            self.doubts.extend(advice.map(|advice| format!("beanstalkctl: {advice}")));
            Ok(())
        };
        self.release_unmoved(&refused);
        self.release_unmoved(&unconfirmed);
        deleted.and(Err(failure))
    }

    /// Reads the current fields and bodies of the jobs, and reserves the ready jobs.
    fn reserve_batch(&mut self, batch: &[PlannedJob], plan: &Plan) -> Result<Vec<Job>> {
        let jobs = plan.unchanged_jobs(self.from, batch)?;
        let mut taken = Vec::new();
        let line = |job: &Job| job.line_by_state("reserve-job", "peek");
        self.from.ask_each(jobs, line, |mut job, reply| match reply.word() {
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

    /// Deletes each job that has a copy; if another client took or changed the job, deletes the
    /// copy instead. First, each job that was ready before the move is touched, to find out whether
    /// this connection still has it reserved. The counters of a delayed or buried job show whether
    /// another client has changed that job.
    fn delete_originals(&mut self, copied: &[(&Job, u64)]) -> Result<()> {
        let (mut left, mut taken, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let line = |(job, _): &(&Job, u64)| job.line_by_state("touch", "stats-job");
        let looked = self.from.ask_each(copied.iter().copied(), line, |(job, copy), reply| {
            let is_same = match reply.word() {
                "TOUCHED" => true,
                "NOT_FOUND" => false,
                "OK" => Job::from_stats(&reply.into_yaml()?)?.counts == job.counts,
                _ => return Err(reply.error_for("touch or stats-job")),
            };
            if is_same { &mut left } else { &mut taken }.push((job.id, copy));
            Ok(())
        });
        if looked.is_err() {
            self.doubt(copied.iter().map(|(job, copy)| describe_moved(&(job.id, *copy))));
            return looked;
        }
        let mut confirmed = 0;
        let line = |pair: &(u64, u64)| format!("delete {}", pair.0);
        let result = self.from.ask_each(left.iter().copied(), line, |pair, reply| {
            confirmed += 1;
            match reply.word() {
                "DELETED" => self.moved += 1,
                "NOT_FOUND" => taken.push(pair),
                _ => others.push(pair),
            }
            Ok(())
        });
        self.doubt(left[confirmed..].iter().chain(&others).map(describe_moved));
        self.skipped += taken.len() as u64;
        let undone = self.delete_copies(&taken);
        ensure!(others.is_empty(), "the server refused to delete copied jobs");
        result.and(undone)
    }

    /// Deletes the copies of those jobs whose move has failed.
    fn delete_copies(&mut self, pairs: &[(u64, u64)]) -> Result<()> {
        let mut twice = Vec::new();
        let line = |pair: &(u64, u64)| format!("delete {}", pair.1);
        let result = self.to.ask_each(pairs.iter().copied(), line, |pair, reply| {
            twice.extend((!reply.is("DELETED")).then_some(pair));
            Ok(())
        });
        let twice = if result.is_ok() { &twice } else { pairs };
        if !twice.is_empty() {
            let twice: Vec<_> = twice.iter().map(describe_moved).collect();
            let twice = twice.join(", ");
            self.doubts.push(format!("Workers may have both the job and its copy: {twice}"));
        }
        result
    }

    /// Skips jobs that are too large for the other server: they stay in their tube.
    fn skip_too_large(&mut self, jobs: &[Job]) {
        self.too_large.extend(jobs.iter().map(|job| job.id));
        self.release_unmoved(jobs);
    }

    /// Releases reserved jobs that are not moved. If a release fails, the end of the connection
    /// releases the job.
    fn release_unmoved(&mut self, jobs: &[Job]) {
        let reserved = jobs.iter().filter(|job| job.state == State::Ready);
        let line = |job: &&Job| format!("release {} {} 0", job.id, job.pri);
        let _ = self.from.ask_each(reserved, line, |_, _| Ok(()));
    }

    /// Adds a message about jobs that may exist together with their copies after a move.
    fn doubt(&mut self, pairs: impl Iterator<Item = String>) {
        let pairs: Vec<_> = pairs.collect();
        let (from, to) = (self.from.address().command(), self.to.address().command());
        if !pairs.is_empty() {
            self.doubts.push(format!(
                "These jobs may be in both places; if {from} job finds a job, and {to} job its \
                 copy, delete the copy with {to} delete: {}",
                pairs.join(", ")
            ));
        }
    }
}

impl Job {
    /// Returns the command to send for the job that is moved: `ready` names the command for a ready
    /// job, and `other` names the command for a job in another state.
    fn line_by_state(&self, ready: &str, other: &str) -> String {
        format!("{} {}", if self.state == State::Ready { ready } else { other }, self.id)
    }
}

/// Formats the ids of a job and its copy.
fn describe_moved((id, copy): &(u64, u64)) -> String {
    format!("{id} (copy {copy})")
}
