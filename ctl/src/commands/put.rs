//! `put`: puts jobs from the command line or a file, or one job per line.

use std::io::Read as _;

use anyhow::{Context as _, Result, bail};
use serde_json::Map;

use crate::args::{JobArgs, PutArgs};
use crate::client::{Client, write_put_command};
use crate::context::{Context, Outcome};
use crate::input::{self, Input};
use crate::message::counted;
use crate::progress::Pacer;

/// The largest number of lines put at once.
const BATCH_JOBS: usize = 2_000;

/// Runs the command.
pub(crate) fn run(args: &PutArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    client.use_tube(&args.tube)?;
    let mut pacer = Pacer::new(args.rate);
    let mut count = 0;
    if !args.bodies.is_empty() {
        let bodies: Vec<_> = args.bodies.iter().map(|body| body.clone().into_bytes()).collect();
        for bodies in bodies.chunks(usize::try_from(pacer.batch_size(BATCH_JOBS as u64))?) {
            put_batch(&mut client, args, bodies, context, &mut pacer, &mut count)?;
        }
        return Ok(Outcome::Done);
    }
    let mut input = input::open_input(args.file.as_deref(), &context.interrupt)?;
    if !args.lines {
        let most = client.max_job_size()?;
        let mut body = Vec::new();
        input.take(most + 1).read_to_end(&mut body)?;
        if body.len() as u64 > most {
            bail!("the body is larger than {most} bytes, the limit of the server");
        }
        put_batch(&mut client, args, &[body], context, &mut pacer, &mut count)?;
        return Ok(Outcome::Done);
    }
    let result = put_lines(&mut client, args, &mut input, context, &mut pacer, &mut count);
    let done = format!("{} put into the tube {}", counted(count, "job"), args.tube);
    context.report_action(client.address(), "put", count, &done)?;
    result.map(|()| Outcome::Done)
}

/// Puts each line, and counts the jobs that the server accepted.
fn put_lines(
    client: &mut Client,
    args: &PutArgs,
    input: &mut Input,
    context: &mut Context,
    pacer: &mut Pacer,
    count: &mut u64,
) -> Result<()> {
    let most = client.max_job_size()?;
    let at_once = client.bodies_at_once(BATCH_JOBS)?;
    let mut before = 0;
    let mut is_over = false;
    while !is_over {
        context.interrupt.check()?;
        let mut batch = Vec::new();
        let mut problem = None;
        // If lines arrive slowly, each is put at once.
        while batch.len() < usize::try_from(pacer.batch_size(at_once as u64))?
            && (batch.is_empty() || input::has_input_line(input))
        {
            match input::read_line(input, most) {
                Ok(Some(line)) => batch.push(line),
                Ok(None) => is_over = true,
                Err(error) => problem = Some(error),
            }
            if is_over || problem.is_some() {
                break;
            }
        }
        let lines = batch.len();
        put_batch(client, args, &batch, context, pacer, count)
            .with_context(|| format!("lines {} to {}", before + 1, before + lines))?;
        before += lines;
        if let Some(problem) = problem {
            return Err(problem.context(format!("line {} is too large for the server", before + 1)));
        }
    }
    Ok(())
}

/// Puts jobs into the tube in use, and passes the ids of accepted ones to `take`. Continues after a
/// refusal, because later jobs have already been sent.
pub(crate) fn put_jobs(
    client: &mut Client,
    job: &JobArgs,
    bodies: &[Vec<u8>],
    mut take: impl FnMut(u64),
) -> Result<()> {
    let write = |body: &&Vec<u8>, out: &mut Vec<u8>| {
        write_put_command(out, job.pri, job.delay, job.ttr, body);
    };
    let mut refused = None;
    client.pipeline(bodies, write, |body, reply| {
        // BURIED means that the original ran out of memory, but kept the job.
        if let ("INSERTED" | "BURIED", Some(id)) = (reply.word(), reply.number()) {
            take(id);
        } else {
            let error = reply.error_for(&format!("a put of {} bytes", body.len()));
            refused.get_or_insert(error);
        }
        Ok(())
    })?;
    refused.map_or(Ok(()), Err)
}

/// Puts jobs, counts accepted ones, and prints their ids.
fn put_batch(
    client: &mut Client,
    args: &PutArgs,
    bodies: &[Vec<u8>],
    context: &mut Context,
    pacer: &mut Pacer,
    count: &mut u64,
) -> Result<()> {
    let mut ids = Vec::with_capacity(bodies.len());
    let result = put_jobs(client, &args.job, bodies, |id| ids.push(id));
    *count += ids.len() as u64;
    for id in &ids {
        if context.out.json {
            context.out.object(Map::from_iter([("id".to_owned(), (*id).into())]), None)?;
        } else {
            context.out.line(&id.to_string())?;
        }
    }
    context.out.flush()?;
    pacer.pace(bodies.len() as u64);
    let (all, missing) = (counted(bodies.len() as u64, "job"), bodies.len() - ids.len());
    result.with_context(|| format!("{missing} of {all} not confirmed"))
}
