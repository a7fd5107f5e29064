//! `put`: puts jobs whose bodies are arguments, a whole file, or the lines of a file.

use std::io::Read as _;

use anyhow::{Result, ensure};
use serde_json::json;

use super::import::{BATCH_JOBS, ImportLines};
use crate::address::shell_word;
use crate::args::PutArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::copy::{self, Copies};
use crate::input;
use crate::job::{Job, Line};
use crate::message::{counted, print_notice};
use crate::output::Output;
use crate::progress::Pacer;

/// Runs `beanstalkctl put`.
pub(crate) fn run(args: &PutArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    if args.lines {
        return put_lines(&mut client, args, context);
    }
    let most = client.max_job_size()?;
    let read = |path| {
        let mut body = Vec::new();
        input::open_input(path, &context.interrupt)?.take(most + 1).read_to_end(&mut body)?;
        let fits = body.len() as u64 <= most;
        ensure!(fits, "the body is larger than {most} bytes, the limit of the server");
        Ok(body)
    };
    let bodies =
        args.bodies.iter().map(|it| if it == "-" { read(None) } else { Ok(it.clone().into()) });
    let mut bodies = bodies.collect::<Result<Vec<_>>>()?;
    if bodies.is_empty() {
        bodies.push(read(args.file.as_deref())?);
    }
    let numbers = args.job.numbers();
    let mut pacer = Pacer::new(args.rate);
    let mut accepted = 0;
    for batch in bodies.chunks(usize::try_from(pacer.batch_size(BATCH_JOBS))?) {
        let jobs: Vec<_> =
            batch.iter().map(|it| Job::new(&args.tube, numbers, it.clone())).collect();
        let copies = copy::put_copies(&mut client, &jobs, None);
        let printed = print_put_ids(&copies, &mut context.out);
        copies.into_result(accepted, bodies.len()).and(printed)?;
        accepted += jobs.len();
        pacer.pace(jobs.len() as u64);
    }
    Ok(Outcome::Done)
}

/// Puts a job for each line.
fn put_lines(client: &mut Client, args: &PutArgs, context: &mut Context) -> Result<Outcome> {
    let numbers = args.job.numbers();
    let parse = |body| Ok(Line::Job(Job::new(&args.tube, numbers, body)));
    let input = input::open_input(args.file.as_deref(), &context.interrupt)?;
    let mut lines = ImportLines::new(input, client.max_job_size()?, 0, &parse);
    let (out, interrupt) = (&mut context.out, &context.interrupt);
    let take = |copies: &Copies| print_put_ids(copies, out);
    let result = lines.put_all(Some(client), None, args.rate, interrupt, take);
    let (count, after) = (lines.count, lines.after);
    let done = format!("{} put into the tube {}", counted(count, "job"), args.tube);
    context.report_action(client.address(), "put", count, &done)?;
    if result.is_err() {
        let (first, command, tube) =
            (after + 1, client.address().command(), shell_word(&args.tube));
        let (pri, delay, ttr) = numbers;
        let rate = args.rate.map_or(String::new(), |rate| format!(" --rate {rate}"));
        print_notice(&format!(
            "Ended after line {after}: continue with tail -n +{first} FILE | {command} put {tube} \
             --lines --pri {pri} --delay {delay} --ttr {ttr}{rate}"
        ));
    }
    result
}

/// Prints the ids of new jobs.
fn print_put_ids(copies: &Copies, out: &mut Output) -> Result<()> {
    copies.ids().try_for_each(|id| {
        if out.json { out.value(json!({ "id": id }), None) } else { out.line(&id.to_string()) }
    })?;
    out.flush()
}
