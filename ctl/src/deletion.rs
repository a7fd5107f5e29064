//! Deletion of jobs: the plan, and the remover, which saves jobs to a file first if requested.

use std::fmt;

use anyhow::{Context as _, Result};

use crate::client::{Client, write_command};
use crate::context::{Context, Outcome};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::State;
use crate::listing::LISTED_JOBS_MAX;
use crate::message::{counted, print_notices, usage};
use crate::plan::{Selection, Summary};
use crate::progress::Progress;
use crate::save::SaveFile;
use crate::statistics;
use crate::sweep::{self, Coverage, Options};
use crate::yaml;

/// The states in which jobs can be deleted.
pub(crate) const DELETABLE_STATES: [State; 3] = [State::Ready, State::Delayed, State::Buried];

/// The numbers of jobs by tube and state.
type Counts = Vec<(String, State, u64)>;

/// The jobs to delete, found before any is deleted.
#[derive(Debug)]
pub(crate) enum Plan {
    /// The server deletes them by tube and state.
    Tubes(ServerDeletion),
    /// They are deleted one by one.
    Jobs(Selection),
}

/// Jobs that are too many to delete one by one. No job put later is deleted, because `last_id` was
/// read before the jobs were counted, and later jobs have larger ids.
#[derive(Debug)]
pub(crate) struct ServerDeletion {
    counts: Counts,
    summary: Summary,
    last_id: u64,
}

impl Plan {
    /// Returns the number of jobs.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Tubes(lists) => lists.summary.count(),
            Self::Jobs(jobs) => jobs.count(),
        }
    }

    /// Returns an upper bound on the ids.
    pub(crate) fn last_id(&self) -> u64 {
        match self {
            Self::Tubes(lists) => lists.last_id,
            Self::Jobs(jobs) => jobs.ids().max().unwrap_or(0),
        }
    }

    /// Keeps at most `count` jobs, unless the server deletes them by tube and state.
    pub(crate) fn truncate(&mut self, count: u64) {
        if let Self::Jobs(jobs) = self {
            jobs.truncate(count);
        }
    }

    /// Deletes the jobs that the filter still matches; the remover counts them. No batch starts
    /// after an interrupt.
    pub(crate) fn carry_out(
        self,
        client: &mut Client,
        filter: &Filter,
        remover: &mut Remover,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        match self {
            Self::Tubes(lists) => lists
                .delete(client, remover, interrupt)
                .with_context(|| remover.describe_unconfirmed()),
            Self::Jobs(jobs) => remover.delete_jobs(client, &jobs, filter, progress, interrupt),
        }
    }
}

/// Shows `2 jobs: 1 ready, 1 buried, in the tube a`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tubes(ServerDeletion { summary, last_id, .. }) => {
                write!(f, "{summary}, and jobs with ids up to {last_id} ")?;
                f.write_str("that change to these states meanwhile")
            }
            Self::Jobs(jobs) => jobs.summary.fmt(f),
        }
    }
}

impl ServerDeletion {
    /// Finds jobs that the server can delete by tube and state; `None` if they are few enough to
    /// list, if the last id is unknown, or if the server's `delete-tube` takes no bound.
    fn find(client: &mut Client, filter: &Filter) -> Result<Option<Self>> {
        if !client.has_extension("delete-tube")? {
            return Ok(None);
        }
        // The last id is read before the counts, so no later job is deleted.
        let text = client.yaml("stats")?;
        let number = |key| yaml::number(&text, key);
        // Without a binlog, ids begin at 1 and each put uses one; a refused put may use none.
        let put = number("cmd-put");
        let is_known = number("binlog-current-index") == 0 && number("total-jobs") == put;
        let Some(last_id) = filter.last_id.or(is_known.then_some(put)) else { return Ok(None) };
        let (counts, summary) = count_deletable(client, filter)?;
        let first = counts.first().filter(|_| summary.count() > LISTED_JOBS_MAX);
        let Some((tube, state, _)) = first else { return Ok(None) };
        // A server whose `delete-tube` takes no bound refuses this command; any other deletes
        // nothing.
        let is_bounded = |client: &mut Client| -> Result<bool> {
            Ok(client.ask(&format!("delete-tube {tube} {state} 0"))?.is("DELETED"))
        };
        let has_room = counts.iter().all(|(tube, _, _)| tube.len() <= TUBE_NAME_BYTES_MAX);
        if !has_room || !is_bounded(client)? {
            return Ok(None);
        }
        Ok(Some(Self { counts, summary, last_id }))
    }

    /// Lets the server delete the jobs, tube by tube.
    fn delete(
        self,
        client: &mut Client,
        remover: &mut Remover,
        interrupt: &Interrupt,
    ) -> Result<()> {
        for (tube, state, agreed) in self.counts {
            interrupt.check()?;
            let command = format!("delete-tube {tube} {state} {}", self.last_id);
            let reply = client.ask_slow(&command, interrupt)?;
            match (reply.word(), reply.number()) {
                ("DELETED", Some(count)) => remover.count_server_deletion(count, agreed),
                ("NOT_FOUND", _) => remover.count_server_deletion(0, agreed),
                _ => return Err(reply.error_for("delete-tube")),
            }
        }
        Ok(())
    }
}

/// Counts the jobs of the filter's tubes in its states, by `stats-tube`.
pub(crate) fn count_deletable(client: &mut Client, filter: &Filter) -> Result<(Counts, Summary)> {
    let names = statistics::tube_names(client, &filter.tubes)?;
    let (mut counts, mut summary) = (Vec::new(), Summary::default());
    for (tube, text) in statistics::tube_stats(client, &names)? {
        for &state in &filter.states {
            let count = yaml::number(&text, &format!("current-jobs-{state}"));
            if count > 0 {
                summary.add(&tube, state, count);
                counts.push((tube.clone(), state, count));
            }
        }
    }
    Ok((counts, summary))
}

/// The longest name of a tube that leaves space for a state and an id in a command line.
const TUBE_NAME_BYTES_MAX: usize = 180;

/// Finds the jobs to delete, in the states of the filter, or in all states in which jobs can be
/// deleted.
pub(crate) fn plan_deletion(
    client: &mut Client,
    filter: &mut Filter,
    is_saved: bool,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<(Plan, Coverage)> {
    restrict_to_deletable(filter)?;
    if !is_saved && filter.is_by_state() {
        if let Some(lists) = ServerDeletion::find(client, filter)? {
            return Ok((Plan::Tubes(lists), Coverage::Complete));
        }
    }
    let (jobs, coverage) = Selection::find(client, filter, options, interrupt)?;
    Ok((Plan::Jobs(jobs), coverage))
}

/// Restricts the filter to states in which jobs can be deleted or moved.
pub(crate) fn restrict_to_deletable(filter: &mut Filter) -> Result<()> {
    if filter.states.is_empty() {
        filter.states = DELETABLE_STATES.to_vec();
    }
    if filter.states.contains(&State::Reserved) {
        return Err(usage("reserved jobs cannot be deleted or moved: workers hold them"));
    }
    Ok(())
}

/// The largest number of jobs saved and deleted at once.
const BATCH_JOBS: usize = 1_000;

/// Deletes jobs in batches, and counts them.
#[derive(Debug)]
pub(crate) struct Remover {
    save: Option<SaveFile>,
    /// The number of confirmed deletes.
    pub(crate) deleted: u64,
    /// The number of jobs that other clients took or changed first.
    refused: u64,
    /// The number of jobs outside the plan, deleted because they changed to its states after the
    /// count.
    uncounted: u64,
    /// The ids of jobs that were saved to the file but not deleted.
    saved_in_vain: Vec<u64>,
}

/// Deletes the jobs of a plan, and reports their number, even after a failure in between.
pub(crate) fn carry_out_deletion(
    client: &mut Client,
    plan: Plan,
    filter: &Filter,
    save: Option<SaveFile>,
    context: &mut Context,
) -> Result<Outcome> {
    let mut remover = Remover::new(save);
    let progress = Progress::new("deleting", Some(plan.count()));
    let summary = plan.to_string();
    let result = plan.carry_out(client, filter, &mut remover, &progress, &context.interrupt);
    drop(progress);
    // After an interrupt, fewer jobs are deleted than planned.
    let done = format!("{} deleted (plan: delete {summary})", counted(remover.deleted, "job"));
    context.report_action(client.address(), "delete", remover.deleted, &done)?;
    print_notices(&remover.describe_leftovers());
    let finished = remover.save.map_or(Ok(()), SaveFile::finish);
    result.and(finished)?;
    Ok(Outcome::done_if(remover.refused == 0))
}

impl Remover {
    /// Makes a remover that saves each job to this file first, if there is one.
    pub(crate) fn new(save: Option<SaveFile>) -> Self {
        Self { save, deleted: 0, refused: 0, uncounted: 0, saved_in_vain: Vec::new() }
    }

    /// Adds the numbers of jobs of a tube in a state: those deleted by the server, and those
    /// confirmed by the user.
    fn count_server_deletion(&mut self, count: u64, agreed: u64) {
        self.deleted = self.deleted.saturating_add(count);
        self.refused = self.refused.saturating_add(agreed.saturating_sub(count));
        self.uncounted = self.uncounted.saturating_add(count.saturating_sub(agreed));
    }

    /// Describes jobs that were left, or deleted beyond the plan, one sentence each.
    pub(crate) fn describe_leftovers(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.refused > 0 {
            let refused = counted(self.refused, "job");
            sentences.push(format!(
                "Not deleted, because others reserved, changed or deleted them: {refused}."
            ));
        }
        if self.uncounted > 0 {
            let uncounted = counted(self.uncounted, "more job");
            sentences
                .push(format!("Also deleted, because they changed to these states: {uncounted}."));
        }
        if let (Some(file), [_, ..]) = (&self.save, &self.saved_in_vain[..]) {
            let ids: Vec<_> = self.saved_in_vain.iter().map(ToString::to_string).collect();
            let name = file.name();
            sentences.push(format!("Saved to {name} but not deleted: {}", ids.join(", ")));
        }
        sentences
    }

    /// Deletes the jobs that the filter still matches. If there is a file, each job is saved first.
    /// No batch starts after an interrupt.
    fn delete_jobs(
        &mut self,
        client: &mut Client,
        jobs: &Selection,
        filter: &Filter,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let size =
            if self.save.is_some() { client.bodies_at_once(BATCH_JOBS)? } else { BATCH_JOBS };
        for ids in jobs.batches(size) {
            interrupt.check()?;
            progress.add(ids.len() as u64);
            self.delete_batch(client, ids, filter)?;
        }
        Ok(())
    }

    fn delete_batch(&mut self, client: &mut Client, ids: Vec<u64>, filter: &Filter) -> Result<()> {
        let count = ids.len();
        // A job may have changed its state meanwhile.
        let mut jobs = sweep::jobs_by_ids(client, ids)?;
        jobs.retain(|job| filter.matches(job));
        let is_saved = self.save.is_some();
        if let Some(file) = &mut self.save {
            jobs = sweep::peek_bodies(client, jobs)?;
            file.write_and_sync(&jobs)?;
        }
        self.refused += (count - jobs.len()) as u64;
        let write = |id: &u64, out: &mut Vec<u8>| write_command(out, "delete", *id);
        let result = client.pipeline(jobs.iter().map(|job| job.id), write, |id, reply| {
            match reply.word() {
                "DELETED" => self.deleted += 1,
                "NOT_FOUND" => {
                    self.refused += 1;
                    if is_saved {
                        self.saved_in_vain.push(id);
                    }
                }
                _ => return Err(reply.error_for("delete")),
            }
            Ok(())
        });
        result.with_context(|| self.describe_unconfirmed())
    }

    /// Describes a batch of deletes that were not all confirmed.
    fn describe_unconfirmed(&self) -> String {
        let file = self.save.as_ref().map(|file| format!("; all of them are in {}", file.name()));
        let (deleted, file) = (counted(self.deleted, "job"), file.unwrap_or_default());
        format!("{deleted} deleted; the server did not confirm others, which may be deleted{file}")
    }
}
