//! `put`: jobs from the command line, from a file, or a job a line.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use anyhow::{Context as _, Result, bail};
use serde_json::Map;

use crate::cli::{JobArgs, PutArgs};
use crate::client::{Client, write_put};
use crate::context::{Context, Outcome};
use crate::progress::Pacer;

/// The most lines that are put at once.
const BATCH: usize = 2_000;

/// Runs the command.
pub(crate) fn run(args: &PutArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    use_tube(&mut client, &args.tube)?;
    let mut pacer = Pacer::new(args.rate);
    if !args.bodies.is_empty() {
        let bodies: Vec<_> = args.bodies.iter().map(|body| body.clone().into_bytes()).collect();
        for bodies in bodies.chunks(usize::try_from(pacer.batch(BATCH as u64))?) {
            put(&mut client, args, bodies, context, &mut pacer)?;
        }
        return Ok(Outcome::Done);
    }
    let mut reader: BufReader<Box<dyn io::Read>> = match &args.file {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            BufReader::new(Box::new(file))
        }
        _ => BufReader::new(Box::new(io::stdin())),
    };
    if !args.lines {
        let most = client.max_job_size()?;
        let mut body = Vec::new();
        let mut reader = io::Read::take(&mut reader, most + 1);
        context.interrupt.while_waiting(|| io::Read::read_to_end(&mut reader, &mut body))?;
        if body.len() as u64 > most {
            bail!("the server takes bodies of at most {most} bytes, and this one is larger");
        }
        put(&mut client, args, &[body], context, &mut pacer)?;
        return Ok(Outcome::Done);
    }
    lines(&mut client, args, &mut reader, context, &mut pacer)
}

/// Puts each line.
fn lines(
    client: &mut Client,
    args: &PutArgs,
    reader: &mut BufReader<Box<dyn io::Read>>,
    context: &mut Context,
    pacer: &mut Pacer,
) -> Result<Outcome> {
    let most = client.max_job_size()?;
    let at_once = client.bodies_at_once(BATCH)?;
    let mut batch = Vec::new();
    let mut before = 0;
    loop {
        let mut line = Vec::new();
        let interrupt = context.interrupt.clone();
        let mut one = io::Read::take(&mut *reader, most + 2);
        let is_over = interrupt.while_waiting(|| one.read_until(b'\n', &mut line))? == 0;
        let is_long = line.len() as u64 == most + 2 && !line.ends_with(b"\n");
        if !is_over && !is_long {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            batch.push(line);
        }
        // Lines that come slowly are not held back.
        let is_full = batch.len() >= usize::try_from(pacer.batch(at_once as u64))?;
        if is_full || is_over || is_long || !reader.buffer().contains(&b'\n') {
            let count = batch.len();
            put(client, args, &batch, context, pacer)
                .with_context(|| format!("lines {} to {}", before + 1, before + count))?;
            before += count;
            batch.clear();
            context.interrupt.check()?;
        }
        if is_long {
            bail!("line {}: the server takes bodies of at most {most} bytes", before + 1);
        }
        if is_over {
            return Ok(Outcome::Done);
        }
    }
}

/// Chooses the tube that jobs are put into.
pub(crate) fn use_tube(client: &mut Client, tube: &str) -> Result<()> {
    let reply = client.ask(&format!("use {tube}"))?;
    if reply.is("USING") { Ok(()) } else { Err(reply.unexpected(&format!("use {tube}"))) }
}

/// Puts jobs into the tube in use, and gives the ids of those that the server has taken. It goes
/// on after a refusal, because those behind it are on their way already.
pub(crate) fn put_all(
    client: &mut Client,
    job: &JobArgs,
    bodies: &[Vec<u8>],
    mut take: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let write = |body: &&Vec<u8>, out: &mut Vec<u8>| {
        write_put(out, job.pri, job.delay, job.ttr, body);
    };
    let mut refused = None;
    client.pipeline(bodies, write, |body, reply| {
        // The original is out of memory at BURIED, and keeps the job.
        let ("INSERTED" | "BURIED", Some(id)) = (reply.word(), reply.number()) else {
            let error = reply.unexpected(&format!("a put of {} bytes", body.len()));
            refused.get_or_insert(error);
            return Ok(());
        };
        take(id)
    })?;
    refused.map_or(Ok(()), Err)
}

/// Puts jobs and prints the ids of those that the server has taken.
fn put(
    client: &mut Client,
    args: &PutArgs,
    bodies: &[Vec<u8>],
    context: &mut Context,
    pacer: &mut Pacer,
) -> Result<()> {
    let mut confirmed = 0_usize;
    let result = put_all(client, &args.job, bodies, |id| {
        confirmed += 1;
        if context.out.json {
            context.out.object(Map::from_iter([("id".to_owned(), id.into())]), None)
        } else {
            context.out.line(&id.to_string())
        }
    });
    context.out.flush()?;
    pacer.pace(bodies.len() as u64);
    let (count, missing) = (bodies.len(), bodies.len() - confirmed);
    result.with_context(|| format!("of {count} jobs {missing} are not confirmed"))
}
