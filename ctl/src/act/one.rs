//! `release` and `bury`: jobs by their ids. They are reserved first, as the protocol requires; both
//! commands leave together, so that they are never ours for long.

use std::collections::HashSet;

use anyhow::Result;

use super::delete;
use crate::cli::Id;
use crate::client::write_numbered;
use crate::context::{Context, Outcome, counted, tell};
use crate::job::Job;
use crate::sweep;

/// Makes jobs ready, or delays them, with a new priority or their own.
pub(crate) fn release(
    ids: &[Id],
    pri: Option<u32>,
    delay: u32,
    context: &mut Context,
) -> Result<Outcome> {
    let command = |job: &Job| format!("release {} {} {delay}", job.id, pri.unwrap_or(job.pri));
    each(ids, "release", "RELEASED", command, context)
}

/// Buries jobs, with a new priority or their own.
pub(crate) fn bury(ids: &[Id], pri: Option<u32>, context: &mut Context) -> Result<Outcome> {
    let command = |job: &Job| format!("bury {} {}", job.id, pri.unwrap_or(job.pri));
    each(ids, "bury", "BURIED", command, context)
}

enum Step<'a> {
    Reserve(&'a Job),
    Act(&'a Job),
}

fn each(
    ids: &[Id],
    act: &'static str,
    done: &str,
    command: impl Fn(&Job) -> String,
    context: &mut Context,
) -> Result<Outcome> {
    let ids = delete::ids(ids, &context.interrupt)?;
    let mut client = context.client()?;
    let jobs = sweep::stats_of(&mut client, ids.iter().copied())?;
    let mut count = 0_u64;
    let write = |step: &Step<'_>, out: &mut Vec<u8>| match step {
        Step::Reserve(job) => write_numbered(out, "reserve-job", job.id),
        Step::Act(job) => out.extend_from_slice(format!("{}\r\n", command(job)).as_bytes()),
    };
    let steps = jobs.iter().flat_map(|job| [Step::Reserve(job), Step::Act(job)]);
    let result = client.pipeline(steps, write, |step, reply| {
        match (step, reply.word()) {
            (Step::Reserve(job), "NOT_FOUND") => {
                tell(&format!("beanstalkctl: a worker has reserved {}", job.id));
            }
            (Step::Act(_), word) if word == done => count += 1,
            // It could not be reserved, and that has been told.
            (Step::Reserve(_), "RESERVED") | (Step::Act(_), "NOT_FOUND") => {}
            _ => return Err(reply.unexpected("reserve-job, release or bury")),
        }
        Ok(())
    });
    let known: HashSet<u64> = jobs.iter().map(|job| job.id).collect();
    for id in ids.iter().filter(|id| !known.contains(id)) {
        tell(&format!("beanstalkctl: there is no job {id}"));
    }
    let report = format!("{} {}", counted(count, "job"), done.to_lowercase());
    context.report_act(client.address(), act, count, &report)?;
    result?;
    Ok(Outcome::of(count == ids.len() as u64))
}
