//! `release` and `bury`: jobs by their ids. They are reserved first, as the protocol requires; both
//! commands leave together, so that they are never ours for long.

use std::collections::HashSet;

use anyhow::Result;

use super::delete;
use crate::cli::Id;
use crate::client::{Client, write_numbered};
use crate::context::{Context, Outcome, counted, tell};
use crate::job::Job;
use crate::sweep;

/// What becomes of jobs, each with a new priority or its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// They are ready, or delayed for a number of seconds.
    Release {
        pri: Option<u32>,
        delay: u32,
    },
    Bury {
        pri: Option<u32>,
    },
}

impl Change {
    /// Returns the command for a job.
    fn command(self, job: &Job) -> String {
        let id = job.id;
        match self {
            Self::Release { pri, delay } => {
                format!("release {id} {} {delay}", pri.unwrap_or(job.pri))
            }
            Self::Bury { pri } => format!("bury {id} {}", pri.unwrap_or(job.pri)),
        }
    }

    /// Returns the name of the command, and the reply that confirms it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Release { .. } => ("release", "RELEASED"),
            Self::Bury { .. } => ("bury", "BURIED"),
        }
    }

    /// Changes these jobs, and reports of each whether it was; otherwise a worker has reserved it,
    /// or it has gone.
    pub(crate) fn make(
        self,
        client: &mut Client,
        jobs: &[Job],
        mut take: impl FnMut(u64, bool),
    ) -> Result<()> {
        let write = |(job, is_ours): &(&Job, bool), out: &mut Vec<u8>| match is_ours {
            false => write_numbered(out, "reserve-job", job.id),
            true => out.extend_from_slice(format!("{}\r\n", self.command(job)).as_bytes()),
        };
        let steps = jobs.iter().flat_map(|job| [(job, false), (job, true)]);
        client.pipeline(steps, write, |(job, is_ours), reply| {
            match (is_ours, reply.word()) {
                (false, "NOT_FOUND") => take(job.id, false),
                (true, word) if word == self.words().1 => take(job.id, true),
                // It could not be reserved, and that has been reported.
                (false, "RESERVED") | (true, "NOT_FOUND") => {}
                _ => return Err(reply.unexpected("reserve-job, release or bury")),
            }
            Ok(())
        })
    }
}

/// Runs the command.
pub(crate) fn run(ids: &[Id], change: Change, context: &mut Context) -> Result<Outcome> {
    let ids = delete::ids(ids, &context.interrupt)?;
    let mut client = context.client()?;
    let jobs = sweep::stats_of(&mut client, ids.iter().copied())?;
    let mut count = 0_u64;
    let result = change.make(&mut client, &jobs, |id, is_changed| {
        if is_changed {
            count += 1;
        } else {
            tell(&format!("beanstalkctl: a worker has reserved {id}"));
        }
    });
    let known: HashSet<u64> = jobs.iter().map(|job| job.id).collect();
    for id in ids.iter().filter(|id| !known.contains(id)) {
        tell(&format!("beanstalkctl: there is no job {id}"));
    }
    let (act, done) = change.words();
    let report = format!("{} {}", counted(count, "job"), done.to_lowercase());
    context.report_act(client.address(), act, count, &report)?;
    result?;
    Ok(Outcome::of(count == ids.len() as u64))
}
