//! Reads the jobs in a binlog directory with the daemon's own code. Reading needs no running
//! daemon, and changes no file.

use std::path::Path;

use anyhow::{Context as _, Result};
use beanstalkd::clock;
use beanstalkd::queue;
use beanstalkd::wal::{self, Directory};

use crate::job::{Job, State};

/// Reads a binlog directory, and passes each job to `take`, in order of ids. Returns false if a
/// part of the binlog is damaged.
pub(crate) fn read_binlog(path: &Path, mut take: impl FnMut(Job) -> Result<()>) -> Result<bool> {
    let now = clock::now();
    let inspected = Directory::read_only(path)
        .and_then(|mut disk| wal::inspect(&mut disk, clock::calendar(now), now));
    let wal::Inspection { restored, report, .. } =
        inspected.with_context(|| path.display().to_string())?;
    let (jobs, queue) = (restored.jobs(), &restored.queue);
    let ids = (1..queue.next_id()).filter_map(|id| queue.find(id));
    for key in ids {
        let job = queue.job(key);
        let record = &job.record;
        let state = match record.state {
            queue::State::Ready | queue::State::Reserved(_) => State::Ready,
            queue::State::Delayed => State::Delayed,
            queue::State::Buried => State::Buried,
        };
        let is_delayed = state == State::Delayed;
        let body = jobs.body(key);
        let body = body.strip_suffix(b"\r\n").unwrap_or(body);
        let queue::History { reserves, timeouts, releases, buries, kicks } = record.history;
        let counts = [reserves, timeouts, releases, buries, kicks];
        take(Job {
            id: record.id,
            tube: queue.tube_name(job.tube).to_owned(),
            state,
            pri: record.pri,
            age: record.created_at.seconds_until(now),
            time_left: if is_delayed { now.seconds_until(record.state_at) } else { 0 },
            ttr: Some(record.ttr.into()),
            counts: Some(counts.map(u64::from)),
            size: Some(body.len() as u64),
            body: Some(body.to_vec()),
        })?;
    }
    Ok(!report.is_damaged())
}
