//! `import`: jobs from lines of JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};

use crate::cli::ImportArgs;
use crate::context::{Context, Outcome, counted, tell};
use crate::job::Job;
use crate::place::{self, Placed};
use crate::progress::{Pacer, Progress};

/// How many jobs, or bytes of bodies, are put at once.
const BATCH: u64 = 2_000;
const BATCH_BYTES: u64 = 16 << 20;

/// Runs the command.
pub(crate) fn run(args: &ImportArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let reader: Box<dyn BufRead> = match file {
        None => Box::new(BufReader::with_capacity(1 << 20, io::stdin())),
        Some(path) => {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            Box::new(BufReader::with_capacity(1 << 20, file))
        }
    };
    let mut lines = (1..).zip(reader.lines()).skip(args.skip);
    let mut pacer = Pacer::new(args.rate);
    let progress = Progress::new("importing", None);
    let mut count = 0_u64;
    let mut is_over = false;
    let mut problem = None;
    while !is_over && problem.is_none() {
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        let mut numbers = Vec::new();
        while (jobs.len() as u64) < pacer.batch(BATCH) && bytes < BATCH_BYTES {
            let Some((number, line)) = lines.next() else {
                is_over = true;
                break;
            };
            match line.map_err(Into::into).and_then(|line| Job::from_json(&line)) {
                Ok(job) => {
                    bytes += job.size.unwrap_or(0);
                    jobs.push(job);
                    numbers.push(number);
                }
                Err(error) => {
                    problem = Some(error.context(format!("line {number}")));
                    break;
                }
            }
        }
        if args.dry_run {
            count += jobs.len() as u64;
            continue;
        }
        let Placed { ids, failure } = place::place(&mut client, &jobs, args.tube.as_deref());
        count += ids.iter().flatten().count() as u64;
        progress.at(count);
        if let Some(failure) = failure {
            let missing: Vec<_> = numbers.iter().zip(&ids).filter(|(_, id)| id.is_none()).collect();
            problem = Some(match missing.first() {
                Some((first, _)) => {
                    let missing = missing.len();
                    failure.context(format!("from line {first} on, {missing} are not confirmed"))
                }
                None => failure,
            });
        }
        pacer.pace(jobs.len() as u64);
        if problem.is_none() && !is_over && context.interrupt.is_set() {
            let next = numbers.last().copied().unwrap_or(0);
            tell(&format!("Interrupted after line {next}: go on with --skip {next}."));
            problem = Some(anyhow!(crate::interrupt::Interrupted));
        }
    }
    drop(progress);
    let done = if args.dry_run { "would be imported" } else { "imported" };
    tell(&format!("{} {done}.", counted(count, "job")));
    problem.map_or(Ok(Outcome::Done), Err)
}
