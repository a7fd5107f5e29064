//! `clear`: deletes the jobs of tubes.

use anyhow::Result;

use super::delete::delete_planned;
use crate::args::ClearArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Filter;
use crate::message::print_notice;
use crate::plan::{Plan, Summary};
use crate::save;
use crate::statistics;
use crate::yaml;

/// Runs `beanstalkctl clear`.
pub(crate) fn run(args: &ClearArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = args.filters.to_filter(&args.tubes, args.grep.as_deref())?;
    filter.restrict_to_deletable()?;
    save::require_new_save_file(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    if !Context::warn_if_no_tube(&mut client, &filter.tubes)? {
        return Ok(Outcome::Partial);
    }
    if args.consent.dry_run && filter.is_by_state() {
        let summary = count_clearable(&mut client, &filter)?;
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
    delete_planned(&mut client, &plan, &args.consent, context).map(|outcome| coverage.and(outcome))
}

/// Counts, by `stats-tube`, the jobs in the tubes and states that the filter selects.
fn count_clearable(client: &mut Client, filter: &Filter) -> Result<Summary> {
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
