//! `import`: jobs from lines of JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _};
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
    // To check lines no server is needed.
    let mut client = if args.dry_run { None } else { Some(context.client()?) };
    let is_typed = args.file.is_none() && io::stdin().is_terminal();
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
            let next = if is_typed {
                context.interrupt.while_waiting(|| lines.next())
            } else {
                lines.next()
            };
            let Some((number, line)) = next else {
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
        let Some(client) = &mut client else {
            count += jobs.len() as u64;
            continue;
        };
        let Placed { ids, failure } = place::place(client, &jobs, args.tube.as_deref());
        count += ids.iter().flatten().count() as u64;
        progress.at(count);
        if let Some(failure) = failure {
            let missing = numbers.iter().zip(&ids).filter(|(_, id)| id.is_none());
            let missing: Vec<_> = missing.map(|(number, _)| *number).collect();
            let last = numbers.last().copied().unwrap_or(0);
            tell(&format!("Ended after line {last}; --skip {last} goes on behind it."));
            problem = Some(if missing.is_empty() {
                failure
            } else {
                failure.context(format!("not confirmed: {}", ranges(&missing)))
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
    if context.interrupt.is_set() && problem.is_none() {
        // What wrote the lines has been interrupted as well, and perhaps not written all.
        problem = Some(anyhow!(crate::interrupt::Interrupted));
    }
    let done = if args.dry_run { "would be imported" } else { "imported" };
    tell(&format!("{} {done}.", counted(count, "job")));
    problem.map_or(Ok(Outcome::Done), Err)
}

/// Tells numbers of lines, as in `lines 3, 5-9`.
fn ranges(numbers: &[usize]) -> String {
    let mut shown: Vec<String> = Vec::new();
    for run in numbers.chunk_by(|left, right| left + 1 == *right) {
        match *run {
            [one] => shown.push(one.to_string()),
            [first, .., last] => shown.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    format!("lines {}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_a_row_are_told_by_their_ends() {
        assert_eq!(ranges(&[3]), "lines 3");
        assert_eq!(ranges(&[3, 5, 6, 7, 9, 10]), "lines 3, 5-7, 9-10");
    }
}
