//! `import`: puts jobs from lines of JSON.

use std::io::{self, BufRead as _};

use anyhow::{Context as _, Result, bail};

use crate::args::ImportArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::copy::{self, Copies};
use crate::input::{self, Input};
use crate::interrupt::Interrupt;
use crate::job::{Job, Line};
use crate::message::{counted, print_notice, print_notices};
use crate::progress::{Pacer, Progress};

/// A batch is full once it has this many jobs.
pub(super) const BATCH_JOBS: u64 = 2_000;
/// A batch is full once the bodies of its jobs have this many bytes in total.
const BATCH_BYTES: u64 = 16 << 20;

/// The longest line with `--dry-run`, in bytes: a dry run asks no server for its limit.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// The most bytes that a line needs for one byte of the body.
const LINE_BYTES_PER_BYTE: u64 = 6;
/// The most bytes that a line needs for all fields except the body.
const LINE_BYTES_BESIDE_BODY: u64 = 64 << 10;

/// Reads the lines of a file of jobs, and puts the jobs in batches.
pub(super) struct ImportLines<'a> {
    input: Input,
    parse: &'a dyn Fn(Vec<u8>) -> Result<Line>,
    /// The longest line, in bytes.
    most: u64,
    /// The number of the last line that was parsed, or that was too large.
    number: usize,
    skip: usize,
    /// The number of jobs read since the start, or since the last line with a count.
    uncounted: u64,
    /// Whether the job read last was written by `export` or `--save`. If so, a line with a count
    /// must follow.
    is_exported: bool,
    /// The number of jobs that the server accepted.
    pub(super) count: u64,
    /// The next import can skip all lines up to this number.
    pub(super) after: usize,
}

impl<'a> ImportLines<'a> {
    /// Prepares to read the lines of jobs to import, after the first `skip` lines.
    pub(super) fn new(
        input: Input,
        most: u64,
        skip: usize,
        parse: &'a dyn Fn(Vec<u8>) -> Result<Line>,
    ) -> Self {
        let (number, uncounted, is_exported, count, after) = (0, 0, false, 0, skip);
        Self { input, parse, most, number, skip, uncounted, is_exported, count, after }
    }

    /// Returns the next job to import, with the number of its line.
    fn next(&mut self) -> Result<Option<(usize, Job)>> {
        loop {
            let number = self.number + 1;
            let line = match input::read_line(&mut self.input, self.most) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                // An I/O error is due to a signal or a failed read, and not to a large line.
                Err(error) if error.is::<io::Error>() => return Err(error),
                Err(error) => {
                    self.number = number;
                    if number > self.skip {
                        let text = format!("line {number} is too large for the server");
                        return Err(error.context(text));
                    }
                    self.input.skip_until(b'\n')?;
                    self.uncounted += 1;
                    continue;
                }
            };
            match (self.parse)(line).with_context(|| format!("line {number}"))? {
                Line::Count(count) if count == self.uncounted => self.uncounted = 0,
                Line::Count(count) => bail!(
                    "line {number}: the file is incomplete or was edited: this line counts {count} \
                     jobs since the last count, but {} were read",
                    self.uncounted
                ),
                Line::Job(job) => {
                    self.uncounted += 1;
                    self.is_exported = job.id > 0;
                    if number > self.skip {
                        self.number = number;
                        return Ok(Some((number, job)));
                    }
                }
            }
            self.number = number;
        }
    }

    /// Reads a job to import, and further jobs until the batch is full or the next read would have
    /// to wait for input.
    fn batch(&mut self, most: u64) -> (Vec<(usize, Job)>, Result<bool>) {
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while (jobs.len() as u64) < most && bytes < BATCH_BYTES {
            if !jobs.is_empty() && !input::has_input_line(&self.input) {
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

    /// Puts the jobs of all lines to import, into `tube` if it is given, and passes the results of
    /// each batch to `take`. Without a client, only checks and counts the jobs.
    pub(super) fn put_all(
        &mut self,
        mut client: Option<&mut Client>,
        tube: Option<&str>,
        rate: Option<u64>,
        interrupt: &Interrupt,
        mut take: impl FnMut(&Copies) -> Result<()>,
    ) -> Result<Outcome> {
        let mut pacer = Pacer::new(rate);
        let progress = Progress::new("putting", None);
        let mut outcome = Outcome::Done;
        loop {
            let (batch, end) = self.batch(pacer.batch_size(BATCH_JOBS));
            let (numbers, jobs): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            if let Some(client) = &mut client {
                let copies = copy::put_copies(client, &jobs, tube);
                self.count += copies.ids().count() as u64;
                progress.set_count(self.count);
                let (sentences, open) = copies.describe_lines(&numbers);
                outcome = outcome.and(Outcome::done_if(sentences.is_empty()));
                print_notices(&sentences);
                self.after = open.unwrap_or(self.number).max(self.after);
                let taken = take(&copies);
                let advice = copies.describe_held(&jobs, client.address(), "bury");
                match (copies.failure, advice) {
                    (Some(failure), Some(advice)) => return Err(failure.context(advice)),
                    (failure, _) => failure.map_or(taken, Err)?,
                }
                pacer.pace(jobs.len() as u64);
            } else {
                self.count += jobs.len() as u64;
            }
            let is_over = end?;
            // Ctrl-C may also have ended the program that writes the lines, and then the last lines
            // are missing.
            interrupt.check()?;
            if is_over {
                return Ok(outcome);
            }
        }
    }
}

/// Runs `beanstalkctl import`.
pub(crate) fn run(args: &ImportArgs, context: &mut Context) -> Result<Outcome> {
    // A dry run only checks the lines, and needs no server.
    let mut client = if args.dry_run { None } else { Some(context.client()?) };
    let most = match &mut client {
        Some(client) => client.max_job_size()? * LINE_BYTES_PER_BYTE + LINE_BYTES_BESIDE_BODY,
        None => LINE_BYTES_MAX,
    };
    let input = input::open_input(args.file.as_deref(), &context.interrupt)?;
    let parse = |line| Line::from_json(&String::from_utf8(line)?);
    let mut lines = ImportLines::new(input, most, args.skip, &parse);
    let (tube, interrupt) = (args.tube.as_deref(), &context.interrupt);
    let result = lines.put_all(client.as_mut(), tube, args.rate, interrupt, |_| Ok(()));
    let (count, after) = (lines.count, lines.after);
    if let Some(client) = &client {
        let done = format!("{} imported", counted(count, "job"));
        context.report_action(client.address(), "import", count, &done)?;
        if result.is_err() {
            print_notice(&format!("Ended after line {after}: continue with --skip {after}."));
        }
    } else {
        print_notice(&format!("{} would be imported.", counted(count, "job")));
    }
    let outcome = result?;
    if lines.uncounted > 0 && lines.is_exported {
        print_notice(
            "beanstalkctl: the last line with the count is missing: the file may be truncated",
        );
        return Ok(Outcome::Partial);
    }
    Ok(outcome)
}
