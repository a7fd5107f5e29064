//! `clear`: empties tubes.

use std::ops::ControlFlow;

use anyhow::{Result, bail};

use super::remove::Remover;
use crate::census;
use crate::cli::ClearArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, report, tell};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list};
use crate::progress::Progress;
use crate::save::SaveFile;
use crate::sweep::{Coverage, Options};
use crate::yaml;

/// How many jobs are saved and deleted at once.
const BATCH: usize = 1_000;

/// How many tubes are named before a delete.
const TOLD: usize = 10;

/// The states that a job can be deleted in.
const DELETABLE: [State; 3] = [State::Ready, State::Delayed, State::Buried];

/// What is to be deleted, found before anything is done.
#[derive(Debug)]
pub(crate) enum Plan {
    /// The server does it: tubes, states, and how many jobs there were.
    Lists(Vec<(String, State, u64)>),
    /// Job by job.
    Jobs(Vec<Job>),
}

impl Plan {
    /// Returns how many jobs were found.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Lists(lists) => lists.iter().map(|(_, _, count)| count).sum(),
            Self::Jobs(jobs) => jobs.len() as u64,
        }
    }

    /// Says what will be done, as in `delete 2 jobs: 1 ready in a, 1 buried in a`.
    pub(crate) fn says(&self) -> String {
        let told = match self {
            Self::Lists(lists) => {
                let told = |(tube, state, count): &(String, State, u64)| {
                    format!("{count} {state} in {tube}")
                };
                some_of(&lists.iter().map(told).collect::<Vec<_>>())
            }
            Self::Jobs(jobs) => in_tubes(jobs),
        };
        format!("delete {}: {told}", counted(self.count(), "job"))
    }

    /// Deletes; the remover counts. Nothing more is begun after an interrupt.
    pub(crate) fn carry_out(
        self,
        client: &mut Client,
        remover: &mut Remover,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let jobs = match self {
            Self::Lists(lists) => {
                for (tube, state, _) in lists {
                    interrupt.check()?;
                    let reply = client.ask(&format!("delete-tube {tube} {state}"))?;
                    match (reply.word(), reply.number()) {
                        ("DELETED", Some(count)) => remover.deleted += count,
                        ("NOT_FOUND", _) => {}
                        _ => return Err(reply.unexpected("delete-tube")),
                    }
                }
                return Ok(());
            }
            Self::Jobs(jobs) => jobs,
        };
        let mut jobs = jobs.into_iter();
        while jobs.len() > 0 {
            let batch: Vec<_> = jobs.by_ref().take(BATCH).collect();
            progress.add(batch.len() as u64);
            remover.remove(client, batch)?;
            if jobs.len() > 0 {
                interrupt.check()?;
            }
        }
        Ok(())
    }
}

/// Finds what is to be deleted, in the states that the filter has, or in all that can be deleted.
pub(crate) fn plan(
    client: &mut Client,
    filter: &mut Filter,
    is_saved: bool,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<(Plan, Coverage)> {
    if filter.states.is_empty() {
        filter.states = DELETABLE.to_vec();
    }
    if filter.states.contains(&State::Reserved) {
        bail!("reserved jobs cannot be deleted: their workers have them");
    }
    if !is_saved && filter.older_than.is_none() && client.has("delete-tube")? {
        return Ok((Plan::Lists(lists(client, filter)?), Coverage::Complete));
    }
    let request = Request { filter, detail: Detail::Stats, limit: None, options, interrupt };
    let mut all = Vec::new();
    let coverage = list(client, &request, &mut |_, jobs| {
        all.extend(jobs);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((Plan::Jobs(all), coverage))
}

/// Counts the jobs that are meant, tube by tube.
fn lists(client: &mut Client, filter: &Filter) -> Result<Vec<(String, State, u64)>> {
    let names = census::tubes(client, &filter.tubes)?;
    let mut lists = Vec::new();
    for (tube, text) in census::tube_stats(client, &names)? {
        for &state in &filter.states {
            let count = yaml::number(&text, &format!("current-jobs-{state}"));
            if count > 0 {
                lists.push((tube.clone(), state, count));
            }
        }
    }
    Ok(lists)
}

/// Runs the command.
pub(crate) fn run(args: &ClearArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = crate::look::list::filter(&args.tubes, &args.which)?;
    let mut client = context.client()?;
    let (options, interrupt) = (args.which.sweep.options(), &context.interrupt);
    let is_saved = args.save.is_some();
    let (plan, coverage) = plan(&mut client, &mut filter, is_saved, &options, interrupt)?;
    let found = report(coverage);
    if plan.count() == 0 {
        tell("There is nothing to delete.");
        return Ok(found);
    }
    if !context.may(&args.consent, &plan.says())? {
        return Ok(found.and(Outcome::of(args.consent.dry_run)));
    }
    let mut remover = Remover::new(SaveFile::create_if(args.save.as_deref())?);
    let progress = Progress::new("deleting", Some(plan.count()));
    let result = plan.carry_out(&mut client, &mut remover, &progress, &context.interrupt);
    drop(progress);
    tell(&format!("{} deleted.", counted(remover.deleted, "job")));
    if remover.refused > 0 {
        let refused = counted(remover.refused, "job");
        tell(&format!("{refused} had been reserved or deleted by others meanwhile."));
    }
    result.map(|()| found.and(Outcome::of(remover.refused == 0)))
}

/// Tells the states and the tubes of jobs.
pub(crate) fn in_tubes(jobs: &[Job]) -> String {
    let mut tubes: Vec<_> = jobs.iter().map(|job| job.tube.as_str()).collect();
    tubes.sort_unstable();
    tubes.dedup();
    let states = super::delete::by_state(jobs);
    match tubes[..] {
        [tube] => format!("{states}, in the tube {tube}"),
        _ => format!("{states}, in {} tubes: {}", tubes.len(), some_of(&tubes)),
    }
}

/// Joins the first of many words, and counts the others.
fn some_of(words: &[impl AsRef<str>]) -> String {
    let shown: Vec<_> = words.iter().take(TOLD).map(AsRef::as_ref).collect();
    match words.len().saturating_sub(TOLD) {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tubes_are_counted_and_not_named() {
        let names: Vec<_> = (0..12).map(|number| format!("t{number}")).collect();
        assert_eq!(some_of(&names[..2]), "t0, t1");
        assert!(some_of(&names).ends_with("t9, and 2 more"));
    }
}
