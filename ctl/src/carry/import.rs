//! `import`: jobs from lines of JSON.

use anyhow::{Context as _, Error, Result, anyhow, bail};

use crate::cli::ImportArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, tell};
use crate::input::{self, Input};
use crate::interrupt::Interrupted;
use crate::job::{Job, Line};
use crate::place::{self, Placed};
use crate::progress::{Pacer, Progress};

/// How many jobs, or bytes of bodies, are put at once.
const BATCH: u64 = 2_000;
const BATCH_BYTES: u64 = 16 << 20;

/// The longest line if no server is asked, in bytes.
const LINE_MAX: u64 = 256 << 20;

/// How many bytes a byte of a body takes in a line at most, and how many all the rest.
const LINE_BYTES_PER_BYTE: u64 = 6;
const LINE_BYTES_REST: u64 = 64 << 10;

/// Lines of a file of jobs, with their numbers.
struct Lines {
    input: Input,
    /// The longest line, in bytes.
    most: u64,
    number: usize,
    skip: usize,
    /// Jobs since the beginning or the last count.
    uncounted: u64,
    /// Whether `export` or `--save` made the last of these, which count them at the end.
    is_exported: bool,
}

impl Lines {
    /// Returns the next job with the number of its line.
    fn next(&mut self) -> Result<Option<(usize, Job)>> {
        loop {
            let line = input::line(&mut self.input, self.most);
            let line = line.with_context(|| format!("line {}", self.number + 1))?;
            let Some(line) = line else { return Ok(None) };
            self.number += 1;
            let line = std::str::from_utf8(&line).map_err(Error::from).and_then(Line::from_json);
            match line.with_context(|| format!("line {}", self.number))? {
                Line::Count(count) if count == self.uncounted => self.uncounted = 0,
                Line::Count(count) => bail!(
                    "line {}: {} are missing before it: it counts {count}, and there are {}",
                    self.number,
                    counted(count.saturating_sub(self.uncounted), "line"),
                    self.uncounted
                ),
                Line::Job(job) => {
                    self.uncounted += 1;
                    self.is_exported = job.id > 0;
                    if self.number > self.skip {
                        return Ok(Some((self.number, job)));
                    }
                }
            }
        }
    }

    /// Reads jobs until they are enough to be put, or until the next line must be waited for.
    fn batch(&mut self, most: u64) -> (Vec<(usize, Job)>, Result<bool>) {
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while (jobs.len() as u64) < most && bytes < BATCH_BYTES {
            if !jobs.is_empty() && !input::has_line(&self.input) {
                break;
            }
            match self.next() {
                Ok(Some((number, job))) => {
                    bytes += job.size.unwrap_or(0);
                    jobs.push((number, job));
                }
                Ok(None) => return (jobs, Ok(true)),
                Err(error) => return (jobs, Err(error)),
            }
        }
        (jobs, Ok(false))
    }
}

/// Runs the command.
pub(crate) fn run(args: &ImportArgs, context: &mut Context) -> Result<Outcome> {
    // To check lines no server is needed.
    let mut client = if args.dry_run { None } else { Some(context.client()?) };
    let most = match &mut client {
        Some(client) => client.max_job_size()? * LINE_BYTES_PER_BYTE + LINE_BYTES_REST,
        None => LINE_MAX,
    };
    let input = input::open(args.file.as_deref(), &context.interrupt)?;
    let (number, skip, uncounted, is_exported) = (0, args.skip, 0, false);
    let mut lines = Lines { input, most, number, skip, uncounted, is_exported };
    let mut count = 0;
    let result = import(args, &mut lines, client.as_mut(), context, &mut count);
    if let Some(client) = &client {
        let done = format!("{} imported", counted(count, "job"));
        context.report_act(client.address(), "import", count, &done)?;
    } else {
        tell(&format!("{} would be imported.", counted(count, "job")));
    }
    let outcome = result?;
    if lines.uncounted > 0 && lines.is_exported {
        tell("beanstalkctl: no line at the end counts the jobs: the file may have been cut short");
        return Ok(Outcome::NotAll);
    }
    Ok(outcome)
}

/// Imports all lines, and counts the jobs that the server has taken.
fn import(
    args: &ImportArgs,
    lines: &mut Lines,
    mut client: Option<&mut Client>,
    context: &Context,
    count: &mut u64,
) -> Result<Outcome> {
    let mut pacer = Pacer::new(args.rate);
    let progress = Progress::new("importing", None);
    let mut outcome = Outcome::Done;
    loop {
        let (batch, end) = lines.batch(pacer.batch(BATCH));
        let (numbers, jobs): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let last = numbers.last().copied();
        if let Some(client) = &mut client {
            let Placed { ids, too_large, failure } =
                place::place(client, &jobs, args.tube.as_deref());
            *count += ids.iter().flatten().count() as u64;
            progress.at(*count);
            if !too_large.is_empty() {
                let refused: Vec<_> = too_large.iter().map(|at| numbers[*at]).collect();
                tell(&format!("beanstalkctl: too large for the server: {}", ranges(&refused)));
                outcome = Outcome::NotAll;
            }
            if let Some(failure) = failure {
                let is_missing = |at: &usize| ids[*at].is_none() && !too_large.contains(at);
                let missing: Vec<_> =
                    (0..ids.len()).filter(is_missing).map(|at| numbers[at]).collect();
                let last = last.unwrap_or(0);
                tell(&format!("Ended after line {last}: go on with --skip {last}."));
                return Err(if missing.is_empty() {
                    failure
                } else {
                    failure.context(format!("not confirmed: {}", ranges(&missing)))
                });
            }
            pacer.pace(jobs.len() as u64);
        } else {
            *count += jobs.len() as u64;
        }
        if context.interrupt.is_set() && !matches!(end, Ok(true)) {
            let number = last.unwrap_or(lines.number);
            tell(&format!("Interrupted after line {number}: go on with --skip {number}."));
            bail!(Interrupted);
        }
        if end? {
            // What wrote the lines has been interrupted as well, and perhaps not written all.
            context.interrupt.check().map_err(|error| anyhow!(error))?;
            return Ok(outcome);
        }
    }
}

/// Shows numbers of lines, as in `lines 3, 5-9`.
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
