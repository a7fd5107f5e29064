//! `list`: lists the jobs of tubes.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use anyhow::Result;

use crate::args::{ListArgs, SortColumn};
use crate::context::{Context, Outcome};
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list_jobs};
use crate::output::{Cell, Table, Tone, inert_body};

/// Makes an empty table of jobs.
fn job_table(has_servers: bool, has_bodies: bool) -> Table {
    let server = has_servers.then_some("server");
    let columns = ["id", "tube", "state", "pri", "age", "left", "size"];
    let body = has_bodies.then_some("body");
    Table::new(server.into_iter().chain(columns).chain(body))
}

/// Makes the row of a job.
fn job_row(job: &Job, server: Option<&str>) -> Vec<Cell> {
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

/// Returns the number of a job in a column.
fn job_number(job: &Job, column: SortColumn) -> u64 {
    match column {
        SortColumn::Id => job.id,
        SortColumn::Pri => job.pri.into(),
        SortColumn::Age => job.age,
        SortColumn::Left => job.time_left,
        SortColumn::Size => job.size.unwrap_or(0),
    }
}

/// Runs the command.
pub(crate) fn run(args: &ListArgs, context: &mut Context) -> Result<Outcome> {
    let filter = &args.filters.to_filter(&args.tubes, None)?;
    let (options, interrupt) = (&args.filters.sweep.options(), &context.interrupt.clone());
    let detail = if args.bodies { Detail::Whole } else { Detail::Size };
    let most = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let sort = args.sort.or(args.oldest.then_some(SortColumn::Age));
    let limit = args.limit.filter(|_| sort.is_none());
    let mut table = job_table(context.servers.len() > 1, args.bodies);
    let mut print = |context: &mut Context, server: Option<&str>, job: &Job| {
        if context.out.json {
            return context.out.object(job.to_json(), server);
        }
        table.row(job_row(job, server));
        if table.is_large() { context.out.table(&mut table) } else { Ok(()) }
    };
    // Sorted jobs wait for the jobs of all servers.
    let (mut count, mut sorted) = (0, Vec::new());
    let outcome = context.each_server(|client, context, server| {
        let request = Request { filter, detail, limit, options, interrupt };
        let before = count;
        let coverage = list_jobs(client, &request, &mut |_, jobs| {
            count += jobs.len();
            if let Some(column) = sort {
                sorted.extend(jobs.into_iter().map(|job| (server.map(str::to_owned), job)));
                sorted.sort_by_key(|(_, job)| (Reverse(job_number(job, column)), job.id));
                sorted.truncate(most);
                return Ok(ControlFlow::Continue(()));
            }
            let room = most - (count - jobs.len());
            jobs.iter().take(room).try_for_each(|job| print(context, server, job))?;
            count = count.min(most);
            Ok(if count == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let is_there =
            count > before || count == most || Context::warn_if_no_tube(client, &filter.tubes)?;
        Ok(Context::report_coverage(coverage).and(Outcome::done_if(is_there)))
    })?;
    sorted.iter().try_for_each(|(server, job)| print(context, server.as_deref(), job))?;
    if !context.out.json {
        context.out.table(&mut table)?;
    }
    Ok(outcome)
}
