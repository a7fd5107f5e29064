//! Puts copies of jobs into tubes, each in the state of its original.

use anyhow::{Context as _, Result};

use crate::client::{Client, Reply, write_command, write_put_command};
use crate::job::{DEFAULT_TTR, Job, State};

/// The delay that a copy has until it is buried, in seconds: long enough that no worker reserves
/// it, even if this program is killed.
const HOLD_SECONDS: u32 = 365 * 24 * 3600;

/// The results of a batch of copies.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The ids of the copies; `None` if refused or not confirmed.
    pub(crate) ids: Vec<Option<u64>>,
    /// Indices of the jobs that the server refused because their bodies are too large.
    pub(crate) too_large: Vec<usize>,
    /// The reason for stopping before the last job.
    pub(crate) failure: Option<anyhow::Error>,
}

enum Step<'a> {
    Use(&'a str),
    Put(usize, &'a Job),
}

/// Returns the delay of a copy.
fn copy_delay(job: &Job) -> u32 {
    match job.state {
        State::Ready | State::Reserved => 0,
        State::Delayed => u32::try_from(job.time_left).unwrap_or(u32::MAX).max(1),
        State::Buried => HOLD_SECONDS,
    }
}

/// Puts a copy of each job into its tube, or into `tube`. A copy of a reserved job is ready.
pub(crate) fn put_copies(client: &mut Client, jobs: &[Job], tube: Option<&str>) -> Copies {
    let mut ids = vec![None; jobs.len()];
    let mut too_large = Vec::new();
    let put = pipeline_copies(client, jobs, tube, &mut ids, &mut too_large);
    // Copies put before a failure must still be buried.
    let buried = bury_copies(client, jobs, &ids).with_context(|| {
        let days = HOLD_SECONDS / (24 * 3600);
        format!("copies of buried jobs may be delayed by {days} days: kick or bury them")
    });
    let failure = match (put, buried) {
        (Err(put), Err(buried)) => Some(put.context(format!("{buried:#}"))),
        (put, buried) => put.and(buried).err(),
    };
    Copies { ids, too_large, failure }
}

fn pipeline_copies(
    client: &mut Client,
    jobs: &[Job],
    tube: Option<&str>,
    ids: &mut [Option<u64>],
    too_large: &mut Vec<usize>,
) -> Result<()> {
    let mut used = None;
    let steps = jobs.iter().enumerate().flat_map(|(at, job)| {
        let tube = tube.unwrap_or(&job.tube);
        let change = (used != Some(tube)).then_some(Step::Use(tube));
        used = Some(tube);
        change.into_iter().chain([Step::Put(at, job)])
    });
    let mut refusal = None;
    let write = |step: &Step<'_>, out: &mut Vec<u8>| match step {
        Step::Use(tube) => out.extend_from_slice(format!("use {tube}\r\n").as_bytes()),
        Step::Put(_, job) => {
            let body = job.body.as_deref().unwrap_or_default();
            let ttr = u32::try_from(job.ttr.unwrap_or(DEFAULT_TTR)).unwrap_or(u32::MAX);
            write_put_command(out, job.pri, copy_delay(job), ttr, body);
        }
    };
    let take = |step: Step<'_>, reply: Reply| {
        match (step, reply.word(), reply.number()) {
            (Step::Use(_), "USING", _) => {}
            (Step::Put(at, _), "INSERTED" | "BURIED", Some(id)) => ids[at] = Some(id),
            (Step::Put(at, _), "JOB_TOO_BIG", _) => too_large.push(at),
            (Step::Use(tube), ..) => return Err(reply.error_for(&format!("use {tube}"))),
            // The replies to later puts are still due.
            (Step::Put(_, job), ..) => {
                let size = job.size.unwrap_or(0);
                refusal.get_or_insert_with(|| reply.error_for(&format!("a put of {size} bytes")));
            }
        }
        Ok(())
    };
    client.pipeline(steps, write, take)?;
    refusal.map_or(Ok(()), Err)
}

/// Buries the copies of buried jobs.
fn bury_copies(client: &mut Client, jobs: &[Job], ids: &[Option<u64>]) -> Result<()> {
    let copies = jobs.iter().zip(ids).filter(|(job, _)| job.state == State::Buried);
    let copies = copies.filter_map(|(job, id)| id.map(|id| (id, job.pri)));
    // Both commands are sent together, so the copy is never ready.
    let write = |step: &Option<(u64, u32)>, out: &mut Vec<u8>| {
        if let Some((id, pri)) = step {
            write_command(out, "reserve-job", *id);
            out.extend_from_slice(format!("bury {id} {pri}\r\n").as_bytes());
        }
    };
    let steps: Vec<_> = copies.flat_map(|copy| [Some(copy), None]).collect();
    if steps.is_empty() {
        return Ok(());
    }
    let mut refusal = None;
    client.pipeline(steps, write, |_, reply| {
        if !reply.is("RESERVED") && !reply.is("BURIED") {
            refusal.get_or_insert_with(|| reply.error_for("bury of a copy"));
        }
        Ok(())
    })?;
    refusal.map_or(Ok(()), Err)
}
