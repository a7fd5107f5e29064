//! `clear`: empties tubes.

use std::ops::ControlFlow;

use anyhow::Result;

use super::remove::Remover;
use crate::census;
use crate::cli::ClearArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, report, tell};
use crate::filter::Filter;
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list};
use crate::progress::Progress;
use crate::save::SaveFile;
use crate::yaml;

/// How many jobs are saved and deleted at once.
const BATCH: usize = 1_000;

/// How many tubes are named before a delete.
const TOLD: usize = 10;

/// The states that a job can be deleted in.
const DELETABLE: [State; 3] = [State::Ready, State::Delayed, State::Buried];

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
    let (jobs, found) = collect(&mut client, &filter, args, context)?;
    if jobs.is_empty() {
        tell("There is nothing to delete.");
        return Ok(found);
    }
    let what = format!("delete {}: {}", counted(jobs.len() as u64, "job"), in_tubes(&jobs));
    if !context.may(&args.consent, &what)? {
        return Ok(found.and(Outcome::of(args.consent.dry_run)));
    }
    let mut remover = Remover::new(SaveFile::create_if(args.save.as_deref())?);
    let progress = Progress::new("deleting", Some(jobs.len() as u64));
    let mut result = Ok(());
    let mut jobs = jobs.into_iter();
    while jobs.len() > 0 && result.is_ok() {
        let batch: Vec<_> = jobs.by_ref().take(BATCH).collect();
        progress.add(batch.len() as u64);
        result = remover.remove(&mut client, batch);
        if result.is_ok() && jobs.len() > 0 {
            result = context.interrupt.check().map_err(Into::into);
        }
    }
    drop(progress);
    tell(&format!("{} deleted.", counted(remover.deleted, "job")));
    if remover.refused > 0 {
        let refused = counted(remover.refused, "job");
        tell(&format!("{refused} had been reserved or deleted by others meanwhile."));
    }
    result.map(|()| found.and(Outcome::of(remover.refused == 0)))
}

/// Lists the jobs first, because their number is told before anything is done.
fn collect(
    client: &mut Client,
    filter: &Filter,
    args: &ClearArgs,
    context: &Context,
) -> Result<(Vec<Job>, Outcome)> {
    let options = args.which.sweep.options();
    let (options, interrupt) = (&options, &context.interrupt);
    let request = Request { filter, detail: Detail::Stats, limit: None, options, interrupt };
    let mut all = Vec::new();
    let coverage = list(client, &request, &mut |_, jobs| {
        all.extend(jobs);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((all, report(coverage)))
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
        return Ok(Outcome::Done);
    }
    let what = format!("delete {}: {}", counted(all, "job"), some_of(&told));
    if !context.may(&args.consent, &what)? {
        return Ok(Outcome::of(args.consent.dry_run));
    }
    let mut deleted = 0;
    for (tube, state) in lists {
        context.interrupt.check()?;
        let reply = client.ask(&format!("delete-tube {tube} {state}"))?;
        match (reply.word(), reply.number()) {
            ("DELETED", Some(count)) => deleted += count,
            ("NOT_FOUND", _) => {}
            _ => return Err(reply.unexpected("delete-tube")),
        }
    }
    tell(&format!("{} deleted.", counted(deleted, "job")));
    Ok(Outcome::Done)
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
