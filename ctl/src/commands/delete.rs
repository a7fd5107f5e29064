//! `delete`: deletes jobs by their ids.

use anyhow::Result;

use super::clear::delete_planned;
use crate::args::DeleteArgs;
use crate::context::{Context, Outcome};
use crate::input;
use crate::job::State;
use crate::message::{print_notice, print_notices};
use crate::plan::Plan;
use crate::save;

/// Runs the command.
pub(crate) fn run(args: &DeleteArgs, context: &mut Context) -> Result<Outcome> {
    let ids = input::read_ids(&args.ids, &context.interrupt)?;
    save::require_new_save_file(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    let (plan, others) = Plan::of_ids(&mut client, &ids, &State::DELETABLE)?;
    print_notices(&others);
    if plan.count() == 0 {
        print_notice("No jobs to delete.");
        return Ok(Outcome::Partial);
    }
    let outcome = delete_planned(&mut client, &plan, &args.consent, context)?;
    Ok(outcome.and(Outcome::done_if(others.is_empty())))
}
