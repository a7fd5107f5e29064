//! Changes jobs by their ids: kicks, releases, buries or deletes them. The jobs of a plan are
//! changed in batches. If requested, each batch is first saved to a file.

use std::collections::HashMap;

use anyhow::{Context as _, Result};

use crate::client::Client;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::message::counted;
use crate::plan::{Plan, PlannedJob};
use crate::progress::Progress;
use crate::save::SaveFile;
use crate::sweep;

/// The largest number of jobs in a batch.
const BATCH_JOBS: usize = 1_000;

/// A change to jobs. If no new priority is given, a job keeps its priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Makes the jobs ready.
    Kick,
    /// Makes the jobs ready, or delays them for a number of seconds.
    Release {
        pri: Option<u32>,
        delay: u32,
    },
    /// Buries the jobs.
    Bury {
        pri: Option<u32>,
    },
    Delete,
}

impl Change {
    /// Returns the verb of the change, the confirming reply, and the states that allow the change.
    pub(crate) fn words(self) -> (&'static str, &'static str, &'static [State]) {
        match self {
            Self::Kick => ("kick", "KICKED", &[State::Delayed, State::Buried]),
            Self::Release { .. } => ("release", "RELEASED", &State::DELETABLE),
            Self::Bury { .. } => ("bury", "BURIED", &[State::Ready, State::Delayed]),
            Self::Delete => ("delete", "DELETED", &State::DELETABLE),
        }
    }

    /// Applies the change to jobs, given by their ids and priorities. Passes each id to `take`,
    /// with true if the job was changed, or with false if the job is missing or its state does not
    /// allow the change.
    ///
    /// A server releases or buries only reserved jobs, so `reserve-job` is sent just before each
    /// `release` or `bury`; each job is reserved only briefly.
    pub(crate) fn apply(
        self,
        client: &mut Client,
        jobs: impl IntoIterator<Item = (u64, u32)>,
        mut take: impl FnMut(u64, bool),
    ) -> Result<()> {
        let (verb, done, _) = self.words();
        let needs_reserve = matches!(self, Self::Release { .. } | Self::Bury { .. });
        let steps = jobs.into_iter().flat_map(|job| {
            let reserve = needs_reserve.then_some((job, false));
            reserve.into_iter().chain([(job, true)])
        });
        let line = |&((id, own), is_change): &((u64, u32), bool)| match self {
            _ if !is_change => format!("reserve-job {id}"),
            Self::Kick => format!("kick-job {id}"),
            Self::Release { pri, delay } => format!("release {id} {} {delay}", pri.unwrap_or(own)),
            Self::Bury { pri } => format!("bury {id} {}", pri.unwrap_or(own)),
            Self::Delete => format!("delete {id}"),
        };
        client.ask_each(steps, line, |((id, _), is_change), reply| {
            match (is_change, reply.word()) {
                // After NOT_FOUND for `reserve-job`, the reply to the change is NOT_FOUND, too.
                (false, "RESERVED" | "NOT_FOUND") => {}
                (true, "NOT_FOUND") => take(id, false),
                (true, word) if word == done => take(id, true),
                _ => return Err(reply.error_for(verb)),
            }
            Ok(())
        })
    }
}

/// A change of the jobs of a plan, and the numbers of jobs changed and not changed so far.
#[derive(Debug)]
pub(crate) struct PlannedChange {
    change: Change,
    pub(crate) save: Option<SaveFile>,
    /// The number of confirmed changes.
    pub(crate) done: u64,
    /// The number of jobs not changed, because other clients reserved, changed or deleted them.
    pub(crate) left: u64,
    /// The ids of jobs that were written to the file of saved jobs but not deleted.
    saved_in_vain: Vec<u64>,
}

impl PlannedChange {
    /// Prepares a change of the jobs of a plan. If a file is given, each job is saved to the file
    /// before the job is changed.
    pub(crate) fn new(change: Change, save: Option<SaveFile>) -> Self {
        Self { change, save, done: 0, left: 0, saved_in_vain: Vec::new() }
    }

    /// Describes the jobs that were not changed, with one sentence for each reason.
    pub(crate) fn describe_leftovers(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.left > 0 {
            let (done, left) = (self.change.words().1.to_lowercase(), counted(self.left, "job"));
            sentences.push(format!(
                "Not {done}, because others reserved, changed or deleted them: {left}."
            ));
        }
        if let (Some(file), [_, ..]) = (&self.save, &self.saved_in_vain[..]) {
            let ids: Vec<_> = self.saved_in_vain.iter().map(ToString::to_string).collect();
            let name = &file.name;
            sentences.push(format!("Saved to {name} but not deleted: {}", ids.join(", ")));
        }
        sentences
    }

    /// Applies the change to the plan's jobs. After an interrupt, such as Ctrl-C, no further batch
    /// starts.
    pub(crate) fn carry_out(
        &mut self,
        client: &mut Client,
        plan: &Plan,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let size =
            if self.save.is_some() { client.bodies_at_once(BATCH_JOBS)? } else { BATCH_JOBS };
        plan.each_batch(size, progress, interrupt, |batch| self.change_batch(client, batch, plan))
    }

    /// Changes a batch of the jobs of a plan.
    fn change_batch(
        &mut self,
        client: &mut Client,
        batch: &[PlannedJob],
        plan: &Plan,
    ) -> Result<()> {
        let mut jobs = plan.unchanged_jobs(client, batch)?;
        if let Some(file) = &mut self.save {
            jobs = sweep::peek_bodies(client, jobs)?;
            file.write_and_sync(&jobs)?;
            // Skip jobs that other clients changed or deleted while the file was written.
            let (count, name) = (counted(jobs.len() as u64, "job"), &file.name);
            let now = sweep::jobs_by_ids(client, jobs.iter().map(|job| job.id))
                .with_context(|| format!("{count} saved to {name} but not deleted"))?;
            let now: HashMap<_, _> = now.into_iter().map(|job| (job.id, job.counts)).collect();
            let is_same = |job: &Job| now.get(&job.id) == Some(&job.counts);
            self.saved_in_vain.extend(jobs.iter().filter(|job| !is_same(job)).map(|job| job.id));
            jobs.retain(is_same);
        }
        self.left += (batch.len() - jobs.len()) as u64;
        let jobs = jobs.iter().map(|job| (job.id, job.pri));
        let result = self.change.apply(client, jobs, |id, is_done| {
            if is_done {
                self.done += 1;
            } else {
                self.left += 1;
                self.saved_in_vain.extend(self.save.is_some().then_some(id));
            }
        });
        result.with_context(|| self.describe_unconfirmed())
    }

    /// Returns the message for a batch in which the server did not confirm all changes.
    fn describe_unconfirmed(&self) -> String {
        let file = self.save.as_ref().map(|file| format!("; all of them are in {}", file.name));
        let word = self.change.words().1.to_lowercase();
        let (done, file) = (counted(self.done, "job"), file.unwrap_or_default());
        format!("{done} {word}; the server did not confirm others, which may be {word}{file}")
    }
}
