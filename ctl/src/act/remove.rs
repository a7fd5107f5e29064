//! Deletes jobs, and saves them before.

use anyhow::{Context as _, Result};

use super::clear::Plan;
use crate::client::{Client, write_numbered};
use crate::context::{Context, Outcome, counted, tell_all};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::plan::Selection;
use crate::progress::Progress;
use crate::save::SaveFile;
use crate::sweep;

/// How many jobs are saved and deleted at once.
const BATCH: usize = 1_000;

/// Deletes jobs in batches and counts.
#[derive(Debug)]
pub(crate) struct Remover {
    save: Option<SaveFile>,
    /// Deletes that the server has confirmed.
    pub(crate) deleted: u64,
    /// Jobs that had been taken or changed by others when their turn came.
    refused: u64,
    /// Jobs that were not counted, because they changed to a state of the plan after it was made.
    uncounted: u64,
    /// Those of them that are in the file.
    saved_in_vain: Vec<u64>,
}

/// Carries out a plan, and reports what was done, also if it fails half-way.
pub(crate) fn remove(
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
    // The plan may be wider than what was done until an interrupt.
    let done = format!("{} deleted (plan: delete {summary})", counted(remover.deleted, "job"));
    context.report_act(client.address(), "delete", remover.deleted, &done)?;
    tell_all(&remover.leftovers());
    let finished = remover.save.map_or(Ok(()), SaveFile::finish);
    result.and(finished)?;
    Ok(Outcome::of(remover.refused == 0))
}

impl Remover {
    /// Makes one that saves to this file first, if there is one.
    pub(crate) fn new(save: Option<SaveFile>) -> Self {
        Self { save, deleted: 0, refused: 0, uncounted: 0, saved_in_vain: Vec::new() }
    }

    /// Counts the jobs that the server deleted of those of a tube in a state.
    pub(super) fn add(&mut self, count: u64, agreed: u64) {
        self.deleted = self.deleted.saturating_add(count);
        self.refused = self.refused.saturating_add(agreed.saturating_sub(count));
        self.uncounted = self.uncounted.saturating_add(count.saturating_sub(agreed));
    }

    /// Describes jobs that were left, or deleted beyond the plan, a sentence each.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut told = Vec::new();
        if self.refused > 0 {
            let refused = counted(self.refused, "job");
            told.push(format!(
                "{refused} had been reserved, changed or deleted by others meanwhile."
            ));
        }
        if self.uncounted > 0 {
            let uncounted = counted(self.uncounted, "more job");
            told.push(format!("{uncounted} changed to these states meanwhile, and were deleted."));
        }
        if let (Some(file), [_, ..]) = (&self.save, &self.saved_in_vain[..]) {
            let ids: Vec<_> = self.saved_in_vain.iter().map(ToString::to_string).collect();
            let name = file.name();
            told.push(format!("Saved to {name} but not deleted: {}", ids.join(", ")));
        }
        told
    }

    /// Deletes the jobs that the filter still matches when their turn comes. Each job that is gone
    /// has been saved before, if there is a file. No batch is begun after an interrupt.
    pub(super) fn jobs(
        &mut self,
        client: &mut Client,
        jobs: &Selection,
        filter: &Filter,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let size = if self.save.is_some() { client.bodies_at_once(BATCH)? } else { BATCH };
        for ids in jobs.batches(size) {
            interrupt.check()?;
            progress.add(ids.len() as u64);
            self.batch(client, ids, filter)?;
        }
        Ok(())
    }

    fn batch(&mut self, client: &mut Client, ids: Vec<u64>, filter: &Filter) -> Result<()> {
        let count = ids.len();
        // A job may be in another state by now.
        let mut jobs = sweep::stats_of(client, ids)?;
        jobs.retain(|job| filter.matches(job));
        let is_saved = self.save.is_some();
        if let Some(file) = &mut self.save {
            jobs = sweep::with_bodies(client, jobs)?;
            file.save(&jobs)?;
        }
        self.refused += (count - jobs.len()) as u64;
        let write = |id: &u64, out: &mut Vec<u8>| write_numbered(out, "delete", *id);
        let result = client.pipeline(jobs.iter().map(|job| job.id), write, |id, reply| {
            match reply.word() {
                "DELETED" => self.deleted += 1,
                "NOT_FOUND" => {
                    self.refused += 1;
                    if is_saved {
                        self.saved_in_vain.push(id);
                    }
                }
                _ => return Err(reply.unexpected("delete")),
            }
            Ok(())
        });
        result.with_context(|| self.in_doubt())
    }

    /// Says what is known of deletes of which not all were confirmed.
    pub(super) fn in_doubt(&self) -> String {
        let file = self
            .save
            .as_ref()
            .map_or(String::new(), |file| format!("; all of them are in {}", file.name()));
        let deleted = counted(self.deleted, "job");
        format!("the delete of {deleted} was confirmed, of others perhaps not{file}")
    }
}
