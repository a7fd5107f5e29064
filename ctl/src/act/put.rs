//! `put`: jobs from the command line, from a file, or a job a line.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use anyhow::{Context as _, Result};
use serde_json::Map;

use crate::cli::{JobArgs, PutArgs};
use crate::client::{Client, write_put};
use crate::context::{Context, Outcome};
use crate::progress::Pacer;

/// The most lines that are put at once.
const BATCH: u64 = 2_000;

/// Runs the command.
pub(crate) fn run(args: &PutArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    use_tube(&mut client, &args.tube)?;
    let mut pacer = Pacer::new(args.rate);
    if !args.bodies.is_empty() {
        let bodies: Vec<_> = args.bodies.iter().map(|body| body.clone().into_bytes()).collect();
        for bodies in bodies.chunks(usize::try_from(pacer.batch(BATCH))?) {
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
        let mut body = Vec::new();
        io::Read::read_to_end(&mut reader, &mut body)?;
        put(&mut client, args, &[body], context, &mut pacer)?;
        return Ok(Outcome::Done);
    }
    let mut batch = Vec::new();
    loop {
        let mut line = Vec::new();
        let is_over = reader.read_until(b'\n', &mut line)? == 0;
        if !is_over {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            batch.push(line);
        }
        // Lines that come slowly are not held back.
        let is_full = batch.len() as u64 >= pacer.batch(BATCH);
        if is_full || is_over || !reader.buffer().contains(&b'\n') {
            put(&mut client, args, &batch, context, &mut pacer)?;
            batch.clear();
            context.interrupt.check()?;
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

/// Puts jobs into the tube in use, and gives their ids.
pub(crate) fn put_all(
    client: &mut Client,
    job: &JobArgs,
    bodies: &[Vec<u8>],
    mut take: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let write = |body: &&Vec<u8>, out: &mut Vec<u8>| {
        write_put(out, job.pri, job.delay, job.ttr, body);
    };
    client.pipeline(bodies, write, |body, reply| {
        // The original is out of memory at BURIED, and keeps the job.
        let ("INSERTED" | "BURIED", Some(id)) = (reply.word(), reply.number()) else {
            return Err(reply.unexpected(&format!("a put of {} bytes", body.len())));
        };
        take(id)
    })
}

/// Puts jobs and prints their ids.
fn put(
    client: &mut Client,
    args: &PutArgs,
    bodies: &[Vec<u8>],
    context: &mut Context,
    pacer: &mut Pacer,
) -> Result<()> {
    let result = put_all(client, &args.job, bodies, |id| {
        if context.out.json {
            context.out.object(Map::from_iter([("id".to_owned(), id.into())]), None)
        } else {
            context.out.line(&id.to_string())
        }
    });
    context.out.flush()?;
    pacer.pace(bodies.len() as u64);
    result
}
