//! `grep`: finds jobs whose bodies match a pattern.

use std::ops::ControlFlow;

use anyhow::Result;

use crate::args::GrepArgs;
use crate::context::{Context, Outcome};
use crate::filter::Filter;
use crate::listing::{Detail, Request, list_jobs};
use crate::output::inert_body;

/// Runs the command.
pub(crate) fn run(args: &GrepArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = args.filters.to_filter(&args.tubes, None)?;
    filter.pattern = Some(Filter::to_pattern(&args.pattern, args.fixed_string, args.ignore_case)?);
    let (filter, options) = (&filter, &args.filters.sweep.options());
    let interrupt = &context.interrupt.clone();
    let mut found = 0_u64;
    let outcome = context.each_server(|client, context, server| {
        let request = Request { filter, detail: Detail::Whole, limit: None, options, interrupt };
        let coverage = list_jobs(client, &request, &mut |_, jobs| {
            found += jobs.len() as u64;
            for job in &jobs {
                if context.out.json {
                    context.out.object(job.to_json(), server)?;
                } else if args.ids {
                    context.out.line(&job.id.to_string())?;
                } else {
                    let server = server.map_or(String::new(), |server| format!("{server} "));
                    let body = inert_body(job.body.as_deref().unwrap_or_default());
                    let (id, tube, state) = (job.id, &job.tube, job.state);
                    context.out.line(&format!("{server}{id} {tube} {state}: {body}"))?;
                }
            }
            context.out.flush()?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Context::report_coverage(coverage))
    })?;
    Ok(outcome.and(Outcome::done_if(found > 0)))
}
