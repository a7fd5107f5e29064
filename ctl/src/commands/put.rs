//! `put`: puts jobs from the command line or a file, or one job per line.

use std::io::{self, Read as _};

use anyhow::{Result, bail};
use serde_json::Map;

use crate::args::{JobArgs, PutArgs};
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::copy::{self, Copied, Copies};
use crate::input::{self, Input};
use crate::job::{Job, State};
use crate::message::{conflict, counted, print_notice, print_notices};
use crate::progress::Pacer;

/// The largest number of lines put at once.
const BATCH_JOBS: usize = 2_000;

/// Runs the command.
pub(crate) fn run(args: &PutArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    let mut pacer = Pacer::new(args.rate);
    let mut count = 0;
    let mut input = if args.bodies.is_empty() {
        input::open_input(args.file.as_deref(), &context.interrupt)?
    } else {
        let bodies: Vec<_> = args.bodies.iter().map(|body| body.clone().into_bytes()).collect();
        for bodies in bodies.chunks(usize::try_from(pacer.batch_size(BATCH_JOBS as u64))?) {
            put_batch(&mut client, args, bodies, context, &mut pacer, &mut count).into_result()?;
        }
        return Ok(Outcome::Done);
    };
    if !args.lines {
        let most = client.max_job_size()?;
        let mut body = Vec::new();
        input.take(most + 1).read_to_end(&mut body)?;
        if body.len() as u64 > most {
            bail!("the body is larger than {most} bytes, the limit of the server");
        }
        put_batch(&mut client, args, &[body], context, &mut pacer, &mut count).into_result()?;
        return Ok(Outcome::Done);
    }
    let mut after = 0;
    let result = put_lines(&mut client, args, &mut input, context, &mut count, &mut after);
    let done = format!("{} put into the tube {}", counted(count, "job"), args.tube);
    context.report_action(client.address(), "put", count, &done)?;
    if result.is_err() {
        print_notice(&format!(
            "Ended after line {after}: continue with tail -n +{} FILE | beanstalkctl put {} \
             --lines",
            after + 1,
            args.tube
        ));
    }
    result.map(|()| Outcome::Done)
}

/// Puts each line, and counts the jobs that the server accepted. No line up to `after` has to be
/// repeated.
fn put_lines(
    client: &mut Client,
    args: &PutArgs,
    input: &mut Input,
    context: &mut Context,
    count: &mut u64,
    after: &mut usize,
) -> Result<()> {
    let mut pacer = Pacer::new(args.rate);
    let most = client.max_job_size()?;
    let at_once = client.bodies_at_once(BATCH_JOBS)?;
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
        let numbers: Vec<_> = (*after + 1..).take(batch.len()).collect();
        let copies = put_batch(client, args, &batch, context, &mut pacer, count);
        let (sentences, open) = copies.describe_lines(&numbers);
        print_notices(&sentences);
        *after = open.unwrap_or(*after + batch.len());
        copies.into_result()?;
        if let Some(problem) = problem {
            if problem.is::<io::Error>() {
                // A signal, or the end of a disk, is no problem of the line.
                return Err(problem);
            }
            *after += 1;
            return Err(problem.context(format!("line {after} is too large for the server")));
        }
    }
    Ok(())
}

/// Makes a job to put.
pub(crate) fn new_job(tube: &str, numbers: &JobArgs, body: Vec<u8>) -> Job {
    let JobArgs { pri, delay, ttr } = *numbers;
    let state = if delay > 0 { State::Delayed } else { State::Ready };
    let (tube, time_left, ttr) = (tube.to_owned(), delay.into(), Some(ttr.into()));
    let (id, age, counts) = (0, 0, None);
    let mut job = Job { id, tube, state, pri, age, time_left, ttr, counts, size: None, body: None };
    job.set_body(body);
    job
}

impl Copies {
    /// Fails unless all jobs were put.
    pub(crate) fn into_result(self) -> Result<()> {
        let (accepted, all) = (self.ids().count(), counted(self.results.len() as u64, "job"));
        let is_too_large = self.results.contains(&Copied::TooLarge);
        let error = self.failure.or_else(|| {
            let text = "a body is larger than the server accepts (JOB_TOO_BIG)";
            is_too_large.then(|| conflict(text))
        });
        error.map_or(Ok(()), |error| {
            Err(error.context(format!("the server accepted {accepted} of {all}")))
        })
    }
}

/// Puts jobs, counts accepted ones, and prints their ids.
fn put_batch(
    client: &mut Client,
    args: &PutArgs,
    bodies: &[Vec<u8>],
    context: &mut Context,
    pacer: &mut Pacer,
    count: &mut u64,
) -> Copies {
    let job = |body: &Vec<u8>| new_job(&args.tube, &args.job, body.clone());
    let mut copies = copy::put_copies(client, &bodies.iter().map(job).collect::<Vec<_>>(), None);
    *count += copies.ids().count() as u64;
    let out = &mut context.out;
    let printed = copies.ids().try_for_each(|id| {
        if out.json {
            out.object(Map::from_iter([("id".to_owned(), id.into())]), None)
        } else {
            out.line(&id.to_string())
        }
    });
    let printed = printed.and_then(|()| out.flush());
    copies.failure = copies.failure.or(printed.err());
    pacer.pace(bodies.len() as u64);
    copies
}
