//! `clear`: deletes the jobs of tubes.

use anyhow::Result;

use crate::args::ClearArgs;
use crate::context::{Context, Outcome};
use crate::deletion::{carry_out_deletion, count_deletable, restrict_to_deletable};
use crate::message::print_notice;
use crate::plan::Plan;
use crate::save::{self, SaveFile};

/// Runs the command.
pub(crate) fn run(args: &ClearArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = args.filters.to_filter(&args.tubes, args.grep.as_deref())?;
    restrict_to_deletable(&mut filter)?;
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
    let options = args.filters.sweep.options();
    let (plan, coverage) = Plan::find(&mut client, filter, &options, &context.interrupt)?;
    let coverage = Context::report_coverage(&client, coverage);
    if plan.count() == 0 {
        print_notice("No jobs to delete.");
        return Ok(coverage);
    }
    if !context.confirm(&args.consent, &format!("delete {}", plan.summary))? {
        return Ok(coverage.and(Outcome::done_if(args.consent.dry_run)));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    carry_out_deletion(&mut client, &plan, save, context).map(|outcome| coverage.and(outcome))
}
