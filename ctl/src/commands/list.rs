//! `list`: lists the jobs of tubes.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use anyhow::Result;

use crate::args::{ListArgs, SortColumn};
use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list_jobs};
use crate::output::{Cell, Table, Tone, inert_body};
use crate::sweep::Options;

/// Makes an empty table of jobs.
fn list_table(has_servers: bool, has_bodies: bool) -> Table {
    let server = has_servers.then_some("server");
    let columns = ["id", "tube", "state", "pri", "age", "left", "size"];
    let body = has_bodies.then_some("body");
    Table::new(server.into_iter().chain(columns).chain(body))
}

/// Makes the row of a job.
fn list_row(job: &Job, server: Option<&str>) -> Vec<Cell> {
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

/// Returns the value of a job in a numeric column.
fn list_number(job: &Job, column: SortColumn) -> u64 {
    match column {
        SortColumn::Id => job.id,
        SortColumn::Pri => job.pri.into(),
        SortColumn::Age => job.age,
        SortColumn::Left => job.time_left,
        SortColumn::Size => job.size.unwrap_or(0),
    }
}

/// Runs `beanstalkctl list`.
pub(crate) fn run(args: &ListArgs, context: &mut Context) -> Result<Outcome> {
    let filter = args.filters.to_filter(&args.tubes, None)?;
    // With several servers, show no progress: their progress lines would overwrite each other.
    let is_quiet = context.servers.len() > 1;
    let options = Options { is_quiet, ..args.filters.sweep.clone() };
    let interrupt = context.interrupt.clone();
    let detail = if args.bodies { Detail::Whole } else { Detail::Size };
    let most = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let sort = args.sort.or(args.oldest.then_some(SortColumn::Age));
    let limit = args.limit.filter(|_| sort.is_none());
    let mut table = list_table(context.servers.len() > 1, args.bodies);
    let mut print = |context: &mut Context, server: Option<&str>, job: &Job| {
        if context.out.json {
            return context.out.object(job.to_json(), server);
        }
        table.row(list_row(job, server));
        if table.is_large() { context.out.table(&mut table) } else { Ok(()) }
    };
    let work = move |client: &mut Client, send: Sender<'_, _>| {
        let (filter, options, interrupt) = (&filter, &options, &interrupt);
        let request = Request { filter, detail, limit, options, interrupt };
        let mut count = 0;
        let coverage = list_jobs(client, &request, &mut |_, jobs| {
            count += jobs.len();
            send(jobs)?;
            let is_enough = sort.is_none() && count >= most;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let is_there = count > 0 || Context::warn_if_no_tube(client, &filter.tubes)?;
        Ok(Context::report_coverage(client, coverage).and(Outcome::done_if(is_there)))
    };
    // With `--sort`, jobs are printed only after all servers have sent their jobs.
    let (mut left, mut sorted) = (most, Vec::new());
    let outcome = context.each_server(work, |context, server, mut jobs: Vec<Job>| {
        let label = context.label(server);
        if let Some(column) = sort {
            sorted.extend(jobs.into_iter().map(|job| (label.clone(), job)));
            sorted.sort_by_key(|(_, job)| (Reverse(list_number(job, column)), job.id));
            sorted.truncate(most);
            return Ok(());
        }
        jobs.truncate(left);
        left -= jobs.len();
        jobs.iter().try_for_each(|job| print(context, label.as_deref(), job))
    })?;
    sorted.iter().try_for_each(|(server, job)| print(context, server.as_deref(), job))?;
    if !context.out.json {
        context.out.table(&mut table)?;
    }
    Ok(outcome)
}
