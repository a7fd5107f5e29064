//! `delete`: deletes jobs by their ids.

use anyhow::Result;

use crate::args::{Consent, DeleteArgs};
use crate::change::{Change, PlannedChange};
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::input;
use crate::job::State;
use crate::message::{counted, print_notice, print_notices};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::save::{self, SaveFile};

/// Runs `beanstalkctl delete`.
pub(crate) fn run(args: &DeleteArgs, context: &mut Context) -> Result<Outcome> {
    let ids = input::read_ids(&args.ids, &context.interrupt)?;
    save::require_new_save_file(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    let (plan, others) = Plan::of_ids(&mut client, &ids, &State::DELETABLE)?;
    print_notices(&others);
    let outcome = delete_planned(&mut client, &plan, &args.consent, context)?;
    Ok(outcome.and(Outcome::done_if(others.is_empty() && plan.count() > 0)))
}

/// Asks for consent, deletes the jobs of a plan, and reports how many were deleted, even after a
/// failure.
pub(crate) fn delete_planned(
    client: &mut Client,
    plan: &Plan,
    consent: &Consent,
    context: &mut Context,
) -> Result<Outcome> {
    if plan.count() == 0 {
        print_notice("No jobs to delete.");
        return Ok(Outcome::Done);
    }
    let planned = format!("delete {}", plan.summary);
    if !context.confirm(consent, &planned)? {
        return Ok(Outcome::done_if(consent.dry_run));
    }
    let save = SaveFile::create_if(consent.save.as_deref())?;
    let mut deletion = PlannedChange::new(Change::Delete, save);
    let progress = Progress::new("deleting", Some(plan.count()));
    let result = deletion.carry_out(client, plan, &progress, &context.interrupt);
    drop(progress);
    // Report the planned number, too: after an interrupt, fewer jobs are deleted than planned.
    let done = format!("{} deleted (plan: {planned})", counted(deletion.done, "job"));
    context.report_action(client.address(), "delete", deletion.done, &done)?;
    print_notices(&deletion.describe_leftovers());
    let outcome = Outcome::done_if(deletion.left == 0);
    let finished = deletion.save.map_or(Ok(()), SaveFile::finish);
    result.and(finished).map(|()| outcome)
}
