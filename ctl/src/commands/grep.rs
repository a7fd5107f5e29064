//! `grep`: finds jobs whose bodies match a pattern.

use std::ops::ControlFlow;

use anyhow::Result;

use crate::args::GrepArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
use crate::filter::Filter;
use crate::job::Job;
use crate::listing::{Detail, Request, list_jobs};
use crate::output::inert_body;
use crate::sweep::Options;

/// Runs `beanstalkctl grep`.
pub(crate) fn run(args: &GrepArgs, context: &mut Context) -> Result<Outcome> {
    let mut filter = args.filters.to_filter(&args.tubes, None)?;
    filter.pattern = Some(Filter::to_pattern(&args.pattern, args.fixed_string, args.ignore_case)?);
    let (ids, interrupt) = (args.ids, context.interrupt.clone());
    // With several servers, show no progress: their progress lines would overwrite each other.
    let is_quiet = context.servers.len() > 1;
    let options = Options { is_quiet, ..args.filters.sweep.clone() };
    let mut found = 0_u64;
    let work = move |client: &mut Client, send: Sender<'_, _>| {
        let (filter, options, interrupt) = (&filter, &options, &interrupt);
        let request = Request { filter, detail: Detail::Whole, limit: None, options, interrupt };
        let coverage =
            list_jobs(client, &request, &mut |_, jobs| send(jobs).map(ControlFlow::Continue))?;
        Ok(Context::report_coverage(client, coverage))
    };
    let outcome = context.each_server(work, |context, server, jobs: Vec<Job>| {
        let label = context.label(server);
        found += jobs.len() as u64;
        for job in &jobs {
            if context.out.json {
                context.out.object(job.to_json(), label.as_deref())?;
            } else if ids {
                context.out.line(&job.id.to_string())?;
            } else {
                let server = label.as_ref().map_or(String::new(), |label| format!("{label} "));
                let body = inert_body(job.body.as_deref().unwrap_or_default());
                let (id, tube, state) = (job.id, &job.tube, job.state);
                context.out.line(&format!("{server}{id} {tube} {state}: {body}"))?;
            }
        }
        context.out.flush()
    })?;
    Ok(outcome.and(Outcome::done_if(found > 0)))
}
