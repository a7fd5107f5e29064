//! `export`: writes jobs as JSON, and then their number. Jobs of a server are written in order of
//! service, and jobs of a binlog in order of ids.

use std::path::Path;

use anyhow::Result;

use crate::args::ExportArgs;
use crate::binlog;
use crate::context::{Context, Outcome};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::{Job, Line};
use crate::message::{counted, print_notice};
use crate::output::Output;
use crate::plan::Plan;
use crate::progress::{Pacer, Progress};
use crate::save::SaveFile;
use crate::sweep;

/// The largest number of jobs in a batch.
const BATCH_JOBS: usize = 1_000;

/// The target of an export: a file or standard output.
struct ExportTarget<'a> {
    file: Option<SaveFile>,
    /// Standard output, used if there is no file.
    out: &'a mut Output,
    count: u64,
    is_dry_run: bool,
}

impl ExportTarget<'_> {
    /// Writes exported jobs to the file or to standard output.
    fn write(&mut self, jobs: &[Job]) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.write(jobs)?;
        } else if !self.is_dry_run {
            jobs.iter().try_for_each(|job| self.out.object(job.to_json(), None))?;
            self.out.flush()?;
        }
        self.count += jobs.len() as u64;
        Ok(())
    }

    /// Ends the export with the last line, which has the number of jobs.
    fn finish(self) -> Result<()> {
        if let Some(file) = self.file {
            return file.finish();
        }
        self.out.line(&Line::count_json(self.count))?;
        self.out.flush()
    }
}

/// Runs `beanstalkctl export`.
pub(crate) fn run(args: &ExportArgs, context: &mut Context) -> Result<Outcome> {
    let filter = args.filters.to_filter(&args.tube, args.grep.as_deref())?;
    let interrupt = context.interrupt.clone();
    let client = if args.binlog.is_none() { Some(context.client()?) } else { None };
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let file = SaveFile::create_if(file.filter(|_| !args.dry_run))?;
    let (is_dry_run, out) = (args.dry_run, &mut context.out);
    let mut target = ExportTarget { file, out, count: 0, is_dry_run };
    let result = if let Some(mut client) = client {
        export_server(args, &mut client, &filter, &interrupt, &mut target)
    } else {
        let path = args.binlog.as_deref().unwrap_or(Path::new("."));
        let is_sound = binlog::read_binlog(path, |job| {
            interrupt.check()?;
            let is_selected = filter.matches(&job)
                && job.body.as_deref().is_none_or(|body| filter.matches_body(body));
            if is_selected { target.write(&[job]) } else { Ok(()) }
        });
        if matches!(is_sound, Ok(false)) {
            print_notice(
                "beanstalkctl: a part of the binlog is damaged: run beanstalkd --check-binlog",
            );
        }
        is_sound.map(Outcome::done_if)
    };
    let count = target.count;
    if is_dry_run {
        let outcome = result?;
        context.report_dry_run(&format!("export {}", counted(count, "job")))?;
        return Ok(outcome);
    }
    let result = result.and_then(|outcome| target.finish().map(|()| outcome));
    let rest = if result.is_ok() { "" } else { ", but not all" };
    print_notice(&format!("{} exported{rest}.", counted(count, "job")));
    result
}

/// Exports the jobs of a server that match the filter; jobs put during the export may be missing.
fn export_server(
    args: &ExportArgs,
    client: &mut crate::client::Client,
    filter: &Filter,
    interrupt: &Interrupt,
    target: &mut ExportTarget<'_>,
) -> Result<Outcome> {
    let options = &args.filters.sweep;
    let (plan, coverage) = Plan::find(client, filter.clone(), options, interrupt)?;
    let coverage = Context::report_coverage(client, coverage);
    if target.is_dry_run {
        target.count = plan.count();
        return Ok(coverage);
    }
    let progress = Progress::new("exporting", Some(plan.count()));
    let mut pacer = Pacer::new(options.rate);
    let most = client.bodies_at_once(BATCH_JOBS)?;
    plan.each_batch(most, &progress, interrupt, |batch| {
        let mut jobs = sweep::jobs_by_ids(client, batch.iter().map(|&(_, id)| id))?;
        jobs.retain(|job| filter.matches(job));
        target.write(&sweep::peek_bodies(client, jobs)?)?;
        pacer.pace(batch.len() as u64);
        Ok(())
    })?;
    Ok(coverage)
}
