//! `clear`: deletes the jobs of tubes.

use anyhow::Result;

use crate::args::ClearArgs;
use crate::context::{Context, Outcome, report_coverage, warn_if_no_tube};
use crate::deletion::{count, deletable_only, delete_planned, plan_deletion, summarize};
use crate::message::print_notice;
use crate::save::{self, SaveFile};

/// Runs the command.
pub(crate) fn run(args: &ClearArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = args.filters.to_filter(&args.tubes, args.grep.as_deref())?;
    deletable_only(&mut filter)?;
    save::check_save_file(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    if !warn_if_no_tube(&mut client, &filter.tubes)? {
        return Ok(Outcome::Partial);
    }
    if args.consent.dry_run && filter.is_by_state() {
        let summary = summarize(&count(&mut client, &filter)?);
        if summary.count() == 0 {
            print_notice("No jobs to delete.");
        } else {
            context.confirm(&args.consent, &format!("delete {summary}"))?;
        }
        return Ok(Outcome::Done);
    }
    let (options, interrupt) = (args.filters.sweep.options(), &context.interrupt);
    let is_saved = args.consent.save.is_some();
    let (plan, coverage) = plan_deletion(&mut client, &mut filter, is_saved, &options, interrupt)?;
    let coverage = report_coverage(coverage);
    if plan.count() == 0 {
        print_notice("No jobs to delete.");
        return Ok(coverage);
    }
    if !context.confirm(&args.consent, &format!("delete {plan}"))? {
        return Ok(coverage.and(Outcome::of(args.consent.dry_run)));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    delete_planned(&mut client, plan, &filter, save, context).map(|outcome| coverage.and(outcome))
}
