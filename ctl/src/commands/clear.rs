//! `clear`: deletes the jobs of tubes.

use anyhow::Result;

use crate::args::{ClearArgs, Consent};
use crate::change::{Change, PlannedChange};
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Filter;
use crate::message::{counted, print_notice, print_notices};
use crate::plan::{Plan, Summary};
use crate::progress::Progress;
use crate::save::{self, SaveFile};
use crate::statistics;
use crate::yaml;

/// Runs the command.
pub(crate) fn run(args: &ClearArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = args.filters.to_filter(&args.tubes, args.grep.as_deref())?;
    filter.restrict_to_deletable()?;
    save::require_new_save_file(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    if !Context::warn_if_no_tube(&mut client, &filter.tubes)? {
        return Ok(Outcome::Partial);
    }
    if args.consent.dry_run && filter.is_by_state() {
        let summary = count_deletable(&mut client, &filter)?;
        if summary.count() == 0 {
            print_notice("No jobs to delete.");
        } else {
            context.confirm(&args.consent, &format!("delete {summary}"))?;
        }
        return Ok(Outcome::Done);
    }
    let options = &args.filters.sweep;
    let (plan, coverage) = Plan::find(&mut client, filter, options, &context.interrupt)?;
    let coverage = Context::report_coverage(&client, coverage);
    if plan.count() == 0 {
        print_notice("No jobs to delete.");
        return Ok(coverage);
    }
    delete_planned(&mut client, &plan, &args.consent, context).map(|outcome| coverage.and(outcome))
}

/// Counts the jobs of the filter's tubes in its states, by `stats-tube`.
fn count_deletable(client: &mut Client, filter: &Filter) -> Result<Summary> {
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

/// Asks for consent, deletes the jobs of a plan, and reports their number, even after a failure in
/// between.
pub(crate) fn delete_planned(
    client: &mut Client,
    plan: &Plan,
    consent: &Consent,
    context: &mut Context,
) -> Result<Outcome> {
    let planned = format!("delete {}", plan.summary);
    if !context.confirm(consent, &planned)? {
        return Ok(Outcome::done_if(consent.dry_run));
    }
    let save = SaveFile::create_if(consent.save.as_deref())?;
    let mut deletion = PlannedChange::new(Change::Delete, save);
    let progress = Progress::new("deleting", Some(plan.count()));
    let result = deletion.carry_out(client, plan, &progress, &context.interrupt);
    drop(progress);
    // After an interrupt, fewer jobs are deleted than planned.
    let done = format!("{} deleted (plan: {planned})", counted(deletion.done, "job"));
    context.report_action(client.address(), "delete", deletion.done, &done)?;
    print_notices(&deletion.describe_leftovers());
    let outcome = Outcome::done_if(deletion.left == 0);
    let finished = deletion.save.map_or(Ok(()), SaveFile::finish);
    result.and(finished).map(|()| outcome)
}
