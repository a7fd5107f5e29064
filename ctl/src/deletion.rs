//! Deletion of the jobs of a plan, which are saved to a file first if requested.

use anyhow::{Context as _, Result};

use crate::client::{Client, write_command};
use crate::context::{Context, Outcome};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::State;
use crate::message::{counted, print_notices, usage};
use crate::plan::{Plan, Summary};
use crate::progress::Progress;
use crate::save::SaveFile;
use crate::statistics;
use crate::sweep;
use crate::yaml;

/// The states in which jobs can be deleted.
pub(crate) const DELETABLE_STATES: [State; 3] = [State::Ready, State::Delayed, State::Buried];

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

/// Counts the jobs of the filter's tubes in its states, by `stats-tube`.
pub(crate) fn count_deletable(client: &mut Client, filter: &Filter) -> Result<Summary> {
    let names = statistics::tube_names(client, &filter.tubes)?;
    let mut summary = Summary::default();
    for (tube, text) in statistics::tube_stats(client, &names)? {
        for &state in &filter.states {
            let count = yaml::number(&text, &format!("current-jobs-{state}"));
            if count > 0 {
                summary.add(&tube, state, count);
            }
        }
    }
    Ok(summary)
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
    /// The ids of jobs that were saved to the file but not deleted.
    saved_in_vain: Vec<u64>,
}

/// Deletes the jobs of a plan, and reports their number, even after a failure in between.
pub(crate) fn carry_out_deletion(
    client: &mut Client,
    plan: &Plan,
    save: Option<SaveFile>,
    context: &mut Context,
) -> Result<Outcome> {
    let mut remover = Remover::new(save);
    let progress = Progress::new("deleting", Some(plan.count()));
    let result = remover.delete_jobs(client, plan, &progress, &context.interrupt);
    drop(progress);
    let (deleted, summary) = (counted(remover.deleted, "job"), &plan.summary);
    // After an interrupt, fewer jobs are deleted than planned.
    let done = format!("{deleted} deleted (plan: delete {summary})");
    context.report_action(client.address(), "delete", remover.deleted, &done)?;
    print_notices(&remover.describe_leftovers());
    let finished = remover.save.map_or(Ok(()), SaveFile::finish);
    result.and(finished)?;
    Ok(Outcome::done_if(remover.refused == 0))
}

impl Remover {
    /// Makes a remover that saves each job to this file first, if there is one.
    pub(crate) fn new(save: Option<SaveFile>) -> Self {
        Self { save, deleted: 0, refused: 0, saved_in_vain: Vec::new() }
    }

    /// Describes the jobs that were left, one sentence for each reason.
    pub(crate) fn describe_leftovers(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.refused > 0 {
            let refused = counted(self.refused, "job");
            sentences.push(format!(
                "Not deleted, because others reserved, changed or deleted them: {refused}."
            ));
        }
        if let (Some(file), [_, ..]) = (&self.save, &self.saved_in_vain[..]) {
            let ids: Vec<_> = self.saved_in_vain.iter().map(ToString::to_string).collect();
            let name = file.name();
            sentences.push(format!("Saved to {name} but not deleted: {}", ids.join(", ")));
        }
        sentences
    }

    /// Deletes the jobs of a plan. If there is a file, each job is saved first. No batch starts
    /// after an interrupt.
    pub(crate) fn delete_jobs(
        &mut self,
        client: &mut Client,
        plan: &Plan,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let size =
            if self.save.is_some() { client.bodies_at_once(BATCH_JOBS)? } else { BATCH_JOBS };
        for ids in plan.batches(size) {
            interrupt.check()?;
            progress.add(ids.len() as u64);
            self.delete_batch(client, ids, plan)?;
        }
        Ok(())
    }

    fn delete_batch(&mut self, client: &mut Client, ids: Vec<u64>, plan: &Plan) -> Result<()> {
        let count = ids.len();
        let mut jobs = plan.current_jobs(client, ids)?;
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
