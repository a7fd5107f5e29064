//! `export`: all jobs as lines of JSON.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::binlog;
use crate::cli::ExportArgs;
use crate::context::{Context, Outcome, counted, report, tell};
use crate::job::{self, Job};
use crate::listing::{Detail, Request, list};
use crate::output::Output;

/// Where the lines go.
enum Target<'a> {
    File(BufWriter<std::fs::File>),
    Output(&'a mut Output),
}

impl Target<'_> {
    fn write(&mut self, job: &Job) -> Result<()> {
        let line = job::line_of(job.to_json(), None);
        match self {
            Self::File(file) => Ok(writeln!(file, "{line}")?),
            Self::Output(out) => out.line(&line),
        }
    }

    /// Returns when all is on the disk.
    fn finish(self) -> Result<()> {
        match self {
            Self::File(file) => Ok(file.into_inner().map_err(std::io::Error::from)?.sync_all()?),
            Self::Output(out) => out.flush(),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &ExportArgs, context: &mut Context) -> Result<Outcome> {
    let filter = crate::look::list::filter(&args.tube, &args.which)?;
    let options = args.which.sweep.options();
    let mut count = 0_u64;
    let mut client = if args.binlog.is_none() { Some(context.client()?) } else { None };
    let interrupt = context.interrupt.clone();
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let mut target = match file {
        None => Target::Output(&mut context.out),
        Some(path) => {
            // What was exported before is not overwritten.
            let file = OpenOptions::new().write(true).create_new(true).open(path);
            Target::File(BufWriter::new(file.with_context(|| path.display().to_string())?))
        }
    };
    let result = if let Some(client) = &mut client {
        let (filter, options, interrupt) = (&filter, &options, &interrupt);
        let detail = Detail::Whole;
        let request = Request { filter, detail, limit: None, options, interrupt };
        let coverage = list(client, &request, &mut |_, jobs| {
            for job in &jobs {
                target.write(job)?;
                count += 1;
            }
            Ok(ControlFlow::Continue(()))
        });
        coverage.map(report)
    } else {
        let path = args.binlog.as_deref().unwrap_or(Path::new("."));
        let is_sound = binlog::read(path, |job| {
            if filter.has(&job) {
                target.write(&job)?;
                count += 1;
            }
            Ok(interrupt.check()?)
        });
        if matches!(is_sound, Ok(false)) {
            tell("beanstalkctl: a part of the binlog is damaged; see beanstalkd --check-binlog");
        }
        is_sound.map(Outcome::of)
    };
    let result = target.finish().and(result);
    let rest = if result.is_ok() { "" } else { ", which is not all" };
    tell(&format!("{} exported{rest}.", counted(count, "job")));
    result
}
