//! `kick`: makes buried or delayed jobs ready.

use std::collections::HashSet;

use anyhow::Result;

use crate::args::KickArgs;
use crate::change::{Change, PlannedChange};
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::State;
use crate::listing::{self, LISTED_JOBS_MAX};
use crate::message::{counted, print_notice};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::statistics;
use crate::sweep::Options;
use crate::yaml;

/// Returns the state of the jobs that a kick of the tube makes ready (buried, or delayed if no job
/// is buried), and the number of jobs in this state.
fn kickable_state(client: &mut Client, tube: &str) -> Result<(State, u64)> {
    let text = statistics::existing_tube_stats(client, tube)?;
    let count = |state| yaml::number(&text, &format!("current-jobs-{state}"));
    let state = if count(State::Buried) > 0 { State::Buried } else { State::Delayed };
    Ok((state, count(state)))
}

/// Kicks a tube's first jobs in `state`, up to `most` jobs, and adds their number to `kicked`.
///
/// The jobs are kicked by their ids: once other clients have kicked the last buried job, the
/// command `kick` would kick delayed jobs instead.
fn kick_tube(
    client: &mut Client,
    tube: &str,
    state: State,
    most: u64,
    interrupt: &Interrupt,
    kicked: &mut u64,
) -> Result<()> {
    client.use_tube(tube)?;
    let mut tried = HashSet::<u64>::new();
    while (tried.len() as u64) < most {
        interrupt.check()?;
        let left = most - tried.len() as u64;
        let mut ids = first_kickable(client, tube, state, left.min(LISTED_JOBS_MAX))?;
        // If all listed jobs have already been kicked by this call, but are in `state` again, find
        // others.
        if !ids.is_empty() && ids.iter().all(|id| tried.contains(id)) {
            let filter = Filter::of_state(tube, state);
            ids = Plan::find(client, filter, &Options::default(), interrupt)?.0.ids().collect();
        }
        ids.retain(|id| !tried.contains(id));
        ids.truncate(usize::try_from(left)?);
        if ids.is_empty() {
            break;
        }
        tried.extend(&ids);
        let jobs = ids.into_iter().map(|id| (id, 0));
        Change::Kick.apply(client, jobs, |_, is_kicked| *kicked += u64::from(is_kicked))?;
    }
    Ok(())
}

/// Returns the ids of the first jobs of the used tube that are in `state`: up to `most` ids if the
/// server has `list-jobs`, otherwise one id.
fn first_kickable(client: &mut Client, tube: &str, state: State, most: u64) -> Result<Vec<u64>> {
    if client.has_extension("list-jobs")? && listing::fits_list_jobs_command(tube, state) {
        let jobs = listing::request_lists(client, tube, &[state], Some(most))?.unwrap_or_default();
        return Ok(jobs.iter().map(|job| job.id).collect());
    }
    let command = format!("peek-{state}");
    let reply = client.ask(&command)?;
    match (reply.word(), reply.number()) {
        ("FOUND", Some(id)) => Ok(vec![id]),
        ("NOT_FOUND", _) => Ok(Vec::new()),
        _ => Err(reply.error_for(&command)),
    }
}

/// Runs `beanstalkctl kick`.
pub(crate) fn run(args: &KickArgs, context: &mut Context) -> Result<Outcome> {
    let Some(tube) = &args.tube else {
        return context.change_by_ids(&args.id, Change::Kick, args.dry_run);
    };
    let mut client = context.client()?;
    let (state, all) = kickable_state(&mut client, tube)?;
    let most = if args.all { all } else { u64::from(args.count.or(args.number).unwrap_or(1)) };
    let interrupt = context.interrupt.clone();
    let (mut coverage, mut plan) = (Outcome::Done, None);
    if let Some(text) = &args.grep {
        let pattern = Some(Filter::to_pattern(text, false, false)?);
        let filter = Filter { pattern, ..Filter::of_state(tube, state) };
        let mut found = Plan::find(&mut client, filter, &Options::default(), &interrupt)?;
        coverage = Context::report_coverage(&client, found.1);
        found.0.truncate(most);
        plan = Some(found.0);
    }
    let count = plan.as_ref().map_or(most.min(all), Plan::count);
    if args.dry_run {
        let jobs = counted(count, &format!("{state} job"));
        return context.report_dry_run(&format!("kick {jobs}")).map(|()| coverage);
    }
    let mut kicked = 0;
    let result = if let Some(plan) = plan {
        let mut change = PlannedChange::new(Change::Kick, None);
        let result = change.carry_out(&mut client, &plan, &Progress::hidden(), &interrupt);
        kicked = change.done;
        result
    } else {
        kick_tube(&mut client, tube, state, most, &interrupt, &mut kicked)
    };
    let done = format!("{} kicked in the tube {tube}", counted(kicked, &format!("{state} job")));
    context.report_action(client.address(), "kick", kicked, &done)?;
    result?;
    if kicked < count {
        let left = counted(count - kicked, "job");
        print_notice(&format!("Not kicked, because others changed or deleted them: {left}."));
    }
    Ok(coverage.and(Outcome::done_if(kicked >= count)))
}
