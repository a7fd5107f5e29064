//! `release`, `bury` and `kick --id`: change jobs by their ids.

use std::collections::HashSet;

use anyhow::Result;

use crate::change::Change;
use crate::context::{Context, Outcome};
use crate::input;
use crate::message::{counted, print_notice, print_notices};
use crate::plan::Plan;
use crate::sweep;

/// Runs the command.
pub(crate) fn run(
    ids: &[String],
    change: Change,
    is_dry_run: bool,
    context: &mut Context,
) -> Result<Outcome> {
    let ids = input::read_ids(ids, &context.interrupt)?;
    let mut client = context.client()?;
    let (verb, done, states) = change.words();
    if is_dry_run {
        let (plan, others) = Plan::of_ids(&mut client, &ids, states)?;
        print_notices(&others);
        context.report_dry_run(&format!("{verb} {}", counted(plan.count(), "job")))?;
        return Ok(Outcome::done_if(others.is_empty()));
    }
    let jobs = sweep::jobs_by_ids(&mut client, ids.iter().copied())?;
    let mut count = 0_u64;
    let pairs = jobs.iter().map(|job| (job.id, job.pri));
    let result = change.apply(&mut client, pairs, |id, is_changed| {
        count += u64::from(is_changed);
        if !is_changed && change == Change::Kick {
            print_notice(&format!("beanstalkctl: job {id} is neither buried nor delayed"));
        } else if !is_changed {
            print_notice(&format!("beanstalkctl: a worker has reserved job {id}"));
        }
    });
    let known: HashSet<u64> = jobs.iter().map(|job| job.id).collect();
    for id in ids.iter().filter(|id| !known.contains(id)) {
        print_notice(&format!("beanstalkctl: there is no job {id}"));
    }
    let report = format!("{} {}", counted(count, "job"), done.to_lowercase());
    context.report_action(client.address(), verb, count, &report)?;
    result?;
    Ok(Outcome::done_if(count == ids.len() as u64))
}
