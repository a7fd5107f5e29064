//! `release` and `bury`: change jobs by their ids. The jobs are first reserved, as the protocol
//! requires. Both commands are sent together, so they are reserved only briefly.

use std::collections::HashSet;

use anyhow::Result;

use crate::client::{Client, write_command};
use crate::context::{Context, Outcome};
use crate::input::{self, Id};
use crate::job::Job;
use crate::message::{counted, print_notice};
use crate::sweep;

/// A change of jobs. Each gets a new priority or keeps its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// Makes them ready, or delays them for a number of seconds.
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

    /// Returns the command's name, and the reply that confirms it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Release { .. } => ("release", "RELEASED"),
            Self::Bury { .. } => ("bury", "BURIED"),
        }
    }

    /// Changes these jobs. Passes each id to `take` with true if it was changed, and with false if
    /// a worker has reserved it or it no longer exists.
    pub(crate) fn apply(
        self,
        client: &mut Client,
        jobs: &[Job],
        mut take: impl FnMut(u64, bool),
    ) -> Result<()> {
        let write = |(job, is_ours): &(&Job, bool), out: &mut Vec<u8>| match is_ours {
            false => write_command(out, "reserve-job", job.id),
            true => out.extend_from_slice(format!("{}\r\n", self.command(job)).as_bytes()),
        };
        let steps = jobs.iter().flat_map(|job| [(job, false), (job, true)]);
        client.pipeline(steps, write, |(job, is_ours), reply| {
            match (is_ours, reply.word()) {
                (false, "NOT_FOUND") => take(job.id, false),
                (true, word) if word == self.words().1 => take(job.id, true),
                // A failed reserve has already been passed on.
                (false, "RESERVED") | (true, "NOT_FOUND") => {}
                _ => return Err(reply.error_for("reserve-job, release or bury")),
            }
            Ok(())
        })
    }
}

/// Runs the command.
pub(crate) fn run(ids: &[Id], change: Change, context: &mut Context) -> Result<Outcome> {
    let ids = input::read_ids(ids, &context.interrupt)?;
    let mut client = context.client()?;
    let jobs = sweep::jobs_by_ids(&mut client, ids.iter().copied())?;
    let mut count = 0_u64;
    let result = change.apply(&mut client, &jobs, |id, is_changed| {
        if is_changed {
            count += 1;
        } else {
            print_notice(&format!("beanstalkctl: a worker has reserved job {id}"));
        }
    });
    let known: HashSet<u64> = jobs.iter().map(|job| job.id).collect();
    for id in ids.iter().filter(|id| !known.contains(id)) {
        print_notice(&format!("beanstalkctl: there is no job {id}"));
    }
    let (act, done) = change.words();
    let report = format!("{} {}", counted(count, "job"), done.to_lowercase());
    context.report_action(client.address(), act, count, &report)?;
    result?;
    Ok(Outcome::done_if(count == ids.len() as u64))
}
