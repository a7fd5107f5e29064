//! `clear`: empties tubes.

use std::fmt;

use anyhow::{Context as _, Result};

use super::remove::{Remover, remove};
use crate::census;
use crate::cli::ClearArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, report, tell, usage, warn_if_no_tube};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::State;
use crate::listing::LISTED_MAX;
use crate::plan::{Selection, Summary};
use crate::progress::Progress;
use crate::save::{self, SaveFile};
use crate::sweep::{Coverage, Options};
use crate::yaml;

/// The states that a job can be deleted in.
pub(crate) const DELETABLE: [State; 3] = [State::Ready, State::Delayed, State::Buried];

/// Which jobs are to be deleted, found before anything is done.
#[derive(Debug)]
pub(crate) enum Plan {
    /// The server deletes them by tube and state.
    Tubes(Lists),
    /// They are deleted one by one.
    Jobs(Selection),
}

/// More jobs than are deleted one by one. Of those put later none is deleted, because all ids that
/// were given before the jobs were counted are at most `last_id`.
#[derive(Debug)]
pub(crate) struct Lists {
    counts: Vec<(String, State, u64)>,
    summary: Summary,
    last_id: u64,
}

impl Plan {
    /// Returns how many jobs were found.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Tubes(lists) => lists.summary.count(),
            Self::Jobs(jobs) => jobs.count(),
        }
    }

    /// Returns an id that none of the jobs exceeds.
    pub(crate) fn last_id(&self) -> u64 {
        match self {
            Self::Tubes(lists) => lists.last_id,
            Self::Jobs(jobs) => jobs.ids().max().unwrap_or(0),
        }
    }

    /// Keeps at most `count` jobs. If the server deletes them by tube and state, it deletes all.
    pub(crate) fn truncate(&mut self, count: u64) {
        if let Self::Jobs(jobs) = self {
            jobs.truncate(count);
        }
    }

    /// Deletes the jobs that the filter still matches; the remover counts. Nothing more is begun
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
            Self::Tubes(lists) => {
                lists.delete(client, remover, interrupt).with_context(|| remover.in_doubt())
            }
            Self::Jobs(jobs) => remover.jobs(client, &jobs, filter, progress, interrupt),
        }
    }
}

/// Shows `2 jobs: 1 ready, 1 buried, in the tube a`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tubes(lists) => lists.summary.fmt(f),
            Self::Jobs(jobs) => jobs.summary.fmt(f),
        }
    }
}

impl Lists {
    /// Lets the server delete, tube by tube.
    fn delete(
        self,
        client: &mut Client,
        remover: &mut Remover,
        interrupt: &Interrupt,
    ) -> Result<()> {
        for (tube, state, agreed) in self.counts {
            interrupt.check()?;
            let command = format!("delete-tube {tube} {state} {}", self.last_id);
            let reply = client.ask_slowly(&command, interrupt)?;
            match (reply.word(), reply.number()) {
                ("DELETED", Some(count)) => remover.add(count, agreed),
                ("NOT_FOUND", _) => remover.add(0, agreed),
                _ => return Err(reply.unexpected("delete-tube")),
            }
        }
        Ok(())
    }
}

/// Counts the jobs of the filter's tubes in its states, by `stats-tube`.
fn count(client: &mut Client, filter: &Filter) -> Result<Vec<(String, State, u64)>> {
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

fn summarize(counts: &[(String, State, u64)]) -> Summary {
    let mut summary = Summary::default();
    for (tube, state, count) in counts {
        summary.add(tube, *state, *count);
    }
    summary
}

/// Finds jobs that the server can delete by tube and state; `None` if they are few enough to be
/// listed, if the last id is not known, or if the server knows no bound.
fn find_lists(client: &mut Client, filter: &Filter) -> Result<Option<Lists>> {
    if !client.has("delete-tube")? {
        return Ok(None);
    }
    // The last id comes before the counts, so that no job that is deleted was not counted.
    let text = client.yaml("stats")?;
    let number = |key| yaml::number(&text, key);
    // Ids begin at 1 without a binlog, and each put takes one; a refused put may take none.
    let put = number("cmd-put");
    let is_known = number("binlog-current-index") == 0 && number("total-jobs") == put;
    let Some(last_id) = filter.last_id.or(is_known.then_some(put)) else { return Ok(None) };
    let counts = count(client, filter)?;
    let summary = summarize(&counts);
    let first = counts.first().filter(|_| summary.count() > LISTED_MAX);
    let Some((tube, state, _)) = first else { return Ok(None) };
    // A server that does not know the bound refuses this, and one that does deletes nothing.
    let is_bounded = |client: &mut Client| -> Result<bool> {
        Ok(client.ask(&format!("delete-tube {tube} {state} 0"))?.is("DELETED"))
    };
    let has_room = counts.iter().all(|(tube, _, _)| tube.len() <= TUBE_NAME_MAX);
    if !has_room || !is_bounded(client)? {
        return Ok(None);
    }
    Ok(Some(Lists { counts, summary, last_id }))
}

/// The longest name of a tube that leaves room for a state and an id in the line of a command.
const TUBE_NAME_MAX: usize = 180;

/// Finds what is to be deleted, in the states that the filter has, or in all that can be deleted.
pub(crate) fn plan(
    client: &mut Client,
    filter: &mut Filter,
    is_saved: bool,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<(Plan, Coverage)> {
    deletable_only(filter)?;
    if !is_saved && filter.is_by_state() {
        if let Some(lists) = find_lists(client, filter)? {
            return Ok((Plan::Tubes(lists), Coverage::Complete));
        }
    }
    let (jobs, coverage) = Selection::find(client, filter, options, interrupt)?;
    Ok((Plan::Jobs(jobs), coverage))
}

/// Restricts the filter to states that a job can be deleted or moved in.
pub(super) fn deletable_only(filter: &mut Filter) -> Result<()> {
    if filter.states.is_empty() {
        filter.states = DELETABLE.to_vec();
    }
    if filter.states.contains(&State::Reserved) {
        return Err(usage("reserved jobs cannot be deleted: their workers have them"));
    }
    Ok(())
}

/// Runs the command.
pub(crate) fn run(args: &ClearArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = args.which.filter(&args.tubes, args.grep.as_deref())?;
    deletable_only(&mut filter)?;
    save::check(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    if !warn_if_no_tube(&mut client, &filter.tubes)? {
        return Ok(Outcome::NotAll);
    }
    if args.consent.dry_run && filter.is_by_state() {
        let summary = summarize(&count(&mut client, &filter)?);
        if summary.count() == 0 {
            tell("There is nothing to delete.");
        } else {
            context.may(&args.consent, &format!("delete {summary}"))?;
        }
        return Ok(Outcome::Done);
    }
    let (options, interrupt) = (args.which.sweep.options(), &context.interrupt);
    let is_saved = args.consent.save.is_some();
    let (plan, coverage) = plan(&mut client, &mut filter, is_saved, &options, interrupt)?;
    let coverage = report(coverage);
    if plan.count() == 0 {
        tell("There is nothing to delete.");
        return Ok(coverage);
    }
    if !context.may(&args.consent, &format!("delete {plan}"))? {
        return Ok(coverage.and(Outcome::of(args.consent.dry_run)));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    remove(&mut client, plan, &filter, save, context).map(|outcome| coverage.and(outcome))
}
