//! `list`: lists the jobs of tubes.

use std::ops::ControlFlow;

use anyhow::Result;

use crate::args::ListArgs;
use crate::context::{Context, Outcome};
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list_jobs};
use crate::output::{Cell, Table, Tone, inert_body};

/// Makes an empty table of jobs.
pub(crate) fn job_table(has_servers: bool, has_bodies: bool) -> Table {
    let server = has_servers.then_some("server");
    let columns = ["id", "tube", "state", "pri", "age", "left", "size"];
    let body = has_bodies.then_some("body");
    Table::new(server.into_iter().chain(columns).chain(body))
}

/// Makes the row of a job.
pub(crate) fn job_row(job: &Job, server: Option<&str>) -> Vec<Cell> {
    let has_left = matches!(job.state, State::Delayed | State::Reserved);
    let mut cells: Vec<Cell> = server.iter().map(Cell::from).collect();
    cells.extend([
        job.id.into(),
        job.tube.as_str().into(),
        Cell::toned(&job.state, Tone::Red, job.state == State::Buried),
        job.pri.into(),
        job.age.into(),
        if has_left { job.time_left.into() } else { "-".into() },
        job.size.map_or("-".into(), Cell::from),
    ]);
    cells.extend(job.body.as_deref().map(inert_body).map(Cell::from));
    cells
}

/// Runs the command.
pub(crate) fn run(args: &ListArgs, context: &mut Context) -> Result<Outcome> {
    let filter = &args.filters.to_filter(&args.tubes, None)?;
    let (options, interrupt) = (&args.filters.sweep.options(), &context.interrupt.clone());
    let detail = if args.bodies { Detail::Whole } else { Detail::Size };
    let mut left = args.limit.unwrap_or(u64::MAX);
    context.each_server(|client, context, server| {
        let mut table = job_table(server.is_some(), args.bodies);
        let request = Request { filter, detail, limit: args.limit, options, interrupt };
        let before = left;
        let coverage = list_jobs(client, &request, &mut |_, jobs| {
            for job in jobs {
                if left == 0 {
                    return Ok(ControlFlow::Break(()));
                }
                left -= 1;
                if context.out.json {
                    context.out.object(job.to_json(), server)?;
                } else {
                    table.row(job_row(&job, server));
                    if table.is_large() {
                        context.out.table(&mut table)?;
                    }
                }
            }
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if !context.out.json {
            context.out.table(&mut table)?;
        }
        let is_there =
            left < before || left == 0 || Context::warn_if_no_tube(client, &filter.tubes)?;
        Ok(Context::report_coverage(coverage).and(Outcome::done_if(is_there)))
    })
}
