//! `big`: shows the jobs with the largest bodies.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use anyhow::Result;

use crate::args::BigArgs;
use crate::context::{Context, Outcome};
use crate::job::Job;
use crate::listing::{Detail, Request, list_jobs};

/// Runs the command.
pub(crate) fn run(args: &BigArgs, context: &mut Context) -> Result<Outcome> {
    let filter = &args.filters.to_filter(&args.tubes, None)?;
    let (options, interrupt) = (&args.filters.sweep.options(), &context.interrupt.clone());
    let mut largest: Vec<(Option<String>, Job)> = Vec::new();
    let outcome = context.each_server(|client, _, server| {
        let request = Request { filter, detail: Detail::Size, limit: None, options, interrupt };
        let coverage = list_jobs(client, &request, &mut |_, jobs| {
            largest.extend(jobs.into_iter().map(|job| (server.map(str::to_owned), job)));
            largest.sort_by_key(|(_, job)| (Reverse(job.size), job.id));
            largest.truncate(args.limit);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Context::report_coverage(coverage))
    })?;
    let mut table = super::list::job_table(context.servers.len() > 1, false);
    for (server, job) in &largest {
        if context.out.json {
            context.out.object(job.to_json(), server.as_deref())?;
        } else {
            table.row(super::list::job_row(job, server.as_deref()));
        }
    }
    if !context.out.json {
        context.out.table(&mut table)?;
    }
    Ok(outcome)
}
