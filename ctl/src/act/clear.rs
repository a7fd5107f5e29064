//! `clear`: empties tubes.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use anyhow::Result;

use super::delete::States;
use super::remove::remove;
use crate::census;
use crate::cli::ClearArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, report, tell, tell_if_no_tube};
use crate::filter::Filter;
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list};
use crate::save::{self, SaveFile};
use crate::yaml;

/// How many tubes are named before a delete.
const TOLD: usize = 10;

/// The states that a job can be deleted in.
pub(super) const DELETABLE: [State; 3] = [State::Ready, State::Delayed, State::Buried];

/// Runs the command.
pub(crate) fn run(args: &ClearArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = crate::look::list::filter(&args.tubes, &args.which)?;
    if filter.states.is_empty() {
        filter.states = DELETABLE.to_vec();
    }
    if filter.states.contains(&State::Reserved) {
        anyhow::bail!("reserved jobs cannot be deleted: their workers have them");
    }
    let mut client = context.client()?;
    if args.save.is_none() && filter.older_than.is_none() && client.has("delete-tube")? {
        return delete_tubes(&mut client, args, &filter, context);
    }
    save::check(args.save.as_deref())?;
    let (found, coverage) = collect(&mut client, &filter, args, context)?;
    if found.ids.is_empty() {
        tell("There is nothing to delete.");
        tell_if_no_tube(&mut client, &filter.tubes)?;
        return Ok(coverage);
    }
    let what = format!("delete {}: {}", counted(found.ids.len() as u64, "job"), found.in_tubes());
    if !context.may(&args.consent, &what)? {
        return Ok(coverage.and(Outcome::of(args.consent.dry_run)));
    }
    let save = SaveFile::create_if(args.save.as_deref())?;
    remove(&mut client, found.ids, &filter, save, context).map(|outcome| coverage.and(outcome))
}

/// What is to be deleted. Of each job only the id is kept, because there may be millions.
#[derive(Debug, Default)]
struct Found {
    ids: Vec<u64>,
    tubes: BTreeSet<String>,
    states: States,
}

impl Found {
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
            [tube] => format!("{states}, in the tube {tube}"),
            _ => format!("{states}, in {} tubes: {}", tubes.len(), some_of(&tubes)),
        }
    }
}

/// Lists the jobs first, because their number is told before anything is done.
fn collect(
    client: &mut Client,
    filter: &Filter,
    args: &ClearArgs,
    context: &Context,
) -> Result<(Found, Outcome)> {
    let options = args.which.sweep.options();
    let (options, interrupt) = (&options, &context.interrupt);
    let request = Request { filter, detail: Detail::Listed, limit: None, options, interrupt };
    let mut found = Found::default();
    let coverage = list(client, &request, &mut |_, jobs| {
        found.add(&jobs);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((found, report(coverage)))
}

/// Joins the first of many words, and counts the others.
fn some_of(words: &[impl AsRef<str>]) -> String {
    let shown: Vec<_> = words.iter().take(TOLD).map(AsRef::as_ref).collect();
    match words.len().saturating_sub(TOLD) {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

/// Lets the server do it, tube by tube.
fn delete_tubes(
    client: &mut Client,
    args: &ClearArgs,
    filter: &Filter,
    context: &Context,
) -> Result<Outcome> {
    let names = census::tubes(client, &filter.tubes)?;
    let mut all = 0;
    let mut lists = Vec::new();
    let mut told = Vec::new();
    for (tube, text) in census::tube_stats(client, &names)? {
        for &state in &filter.states {
            let count = yaml::number(&text, &format!("current-jobs-{state}"));
            if count > 0 {
                told.push(format!("{count} {state} in {tube}"));
                lists.push((tube.clone(), state));
                all += count;
            }
        }
    }
    if all == 0 {
        tell("There is nothing to delete.");
        tell_if_no_tube(client, &filter.tubes)?;
        return Ok(Outcome::Done);
    }
    let what = format!("delete {}: {}", counted(all, "job"), some_of(&told));
    if !context.may(&args.consent, &what)? {
        return Ok(Outcome::of(args.consent.dry_run));
    }
    let mut deleted = 0;
    let mut delete = |(tube, state): (String, State)| {
        context.interrupt.check()?;
        let reply =
            client.ask_slowly(&format!("delete-tube {tube} {state}"), &context.interrupt)?;
        match (reply.word(), reply.number()) {
            ("DELETED", Some(count)) => deleted += count,
            ("NOT_FOUND", _) => {}
            _ => return Err(reply.unexpected("delete-tube")),
        }
        Ok(())
    };
    let result = lists.into_iter().try_for_each(&mut delete);
    let deleted = counted(deleted, "job");
    if result.is_ok() {
        tell(&format!("{deleted} deleted."));
    } else {
        tell(&format!("The delete of {deleted} was confirmed, of others perhaps not."));
    }
    result.map(|()| Outcome::Done)
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
