//! `clear`: empties tubes.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use anyhow::{Context as _, Result, bail};

use super::delete::States;
use super::remove::{Remover, remove};
use crate::census;
use crate::cli::ClearArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, report, tell, tell_if_no_tube};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list};
use crate::progress::Progress;
use crate::save::{self, SaveFile};
use crate::sweep::{Coverage, Options};
use crate::yaml;

/// How many tubes are named before a delete.
const TOLD: usize = 10;

/// The states that a job can be deleted in.
pub(super) const DELETABLE: [State; 3] = [State::Ready, State::Delayed, State::Buried];

/// What is to be deleted, found before anything is done.
#[derive(Debug)]
pub(crate) enum Plan {
    /// The server does it: tubes, states, and how many jobs there were.
    Lists(Vec<(String, State, u64)>),
    /// Job by job.
    Jobs(Jobs),
}

/// Jobs that are to be deleted. Of each only the id is kept, because there may be millions.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(super) ids: Vec<u64>,
    pub(super) states: States,
    /// Their tubes, if those are to be told.
    tubes: BTreeSet<String>,
}

impl Jobs {
    fn add(&mut self, jobs: &[Job]) {
        for job in jobs {
            self.ids.push(job.id);
            self.states.add(job.state);
            if !self.tubes.contains(&job.tube) {
                self.tubes.insert(job.tube.clone());
            }
        }
    }

    /// Tells the states and the tubes of the jobs.
    fn in_tubes(&self) -> String {
        let tubes: Vec<_> = self.tubes.iter().collect();
        let states = &self.states;
        match tubes[..] {
            [] => states.to_string(),
            [tube] => format!("{states}, in the tube {tube}"),
            _ => format!("{states}, in {} tubes: {}", tubes.len(), some_of(&tubes)),
        }
    }
}

impl Plan {
    /// Returns how many jobs were found.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Lists(lists) => lists.iter().map(|(_, _, count)| count).sum(),
            Self::Jobs(jobs) => jobs.ids.len() as u64,
        }
    }

    /// Returns the jobs that are known by their ids.
    pub(crate) fn ids(&self) -> &[u64] {
        match self {
            Self::Lists(_) => &[],
            Self::Jobs(jobs) => &jobs.ids,
        }
    }

    /// Keeps at most `count` jobs. If the server deletes them by tube and state, it deletes all.
    pub(crate) fn cut(&mut self, count: u64) {
        if let Self::Jobs(jobs) = self {
            jobs.ids.truncate(usize::try_from(count).unwrap_or(usize::MAX));
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
            Self::Jobs(jobs) => jobs.in_tubes(),
        };
        format!("delete {}: {told}", counted(self.count(), "job"))
    }

    /// Deletes what the filter still has; the remover counts. Nothing more is begun after an
    /// interrupt.
    pub(crate) fn carry_out(
        self,
        client: &mut Client,
        filter: &Filter,
        remover: &mut Remover,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<()> {
        match self {
            Self::Lists(lists) => delete_tubes(client, lists, remover, interrupt),
            Self::Jobs(jobs) => remover.jobs(client, jobs.ids, filter, progress, interrupt),
        }
    }
}

/// Lets the server do it, tube by tube.
fn delete_tubes(
    client: &mut Client,
    lists: Vec<(String, State, u64)>,
    remover: &mut Remover,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut delete = |(tube, state, _): (String, State, u64)| {
        interrupt.check()?;
        let reply = client.ask_slowly(&format!("delete-tube {tube} {state}"), interrupt)?;
        match (reply.word(), reply.number()) {
            ("DELETED", Some(count)) => remover.deleted += count,
            ("NOT_FOUND", _) => {}
            _ => return Err(reply.unexpected("delete-tube")),
        }
        Ok(())
    };
    let result = lists.into_iter().try_for_each(&mut delete);
    result.with_context(|| remover.in_doubt())
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
    let request = Request { filter, detail: Detail::Listed, limit: None, options, interrupt };
    let mut all = Jobs::default();
    let coverage = list(client, &request, &mut |_, jobs| {
        all.add(&jobs);
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
    save::check(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    let (options, interrupt) = (args.which.sweep.options(), &context.interrupt);
    let is_saved = args.consent.save.is_some();
    let (plan, coverage) = plan(&mut client, &mut filter, is_saved, &options, interrupt)?;
    let coverage = report(coverage);
    if plan.count() == 0 {
        tell("There is nothing to delete.");
        tell_if_no_tube(&mut client, &filter.tubes)?;
        return Ok(coverage);
    }
    if !context.may(&args.consent, &plan.says())? {
        return Ok(coverage.and(Outcome::of(args.consent.dry_run)));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    remove(&mut client, plan, &filter, save, context).map(|outcome| coverage.and(outcome))
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
