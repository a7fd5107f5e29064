//! Samples a daemon's memory, descriptors and binlog while clients load the daemon.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::{MEMORY_SLACK_BYTES, Outcome, SEGMENT_BYTES, Shared};
use crate::Daemon;
use crate::bench::measure::resident_bytes;

/// Time between two samples.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// How long the binlog may be larger than its bound, because some disks are slow.
const OVER_BOUND_MAX_TIME: Duration = Duration::from_secs(15);

/// One sample.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sample {
    pub(super) memory: u64,
    pub(super) files: Descriptors,
    pub(super) binlog_bytes: u64,
    pub(super) bound: u64,
    /// The number of faults that the clients have found in this run.
    pub(super) faults: u64,
}

/// Samples the daemon in a run. Returns the maximum memory of the second and of the fourth quarter
/// of the run.
pub(super) fn monitor(
    daemon: &mut Daemon,
    folder: &Path,
    time: Duration,
    shared: &Shared,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Instant, &Sample, u64, &Outcome),
) -> io::Result<(u64, u64)> {
    let began = Instant::now();
    let mut within_at = began;
    let mut quarters = [0; 4];
    let mut recent_live = [0; 8];
    for count in 0.. {
        let now = Instant::now();
        if now - began >= time || daemon.exit_status().is_some() {
            break;
        }
        recent_live[count % recent_live.len()] = shared.live_bytes();
        let live = recent_live.iter().max().copied().unwrap_or_default();
        let sample = Sample {
            memory: resident_bytes(daemon.pid())?,
            files: descriptors(daemon.pid()),
            binlog_bytes: binlog_bytes(folder)?,
            bound: 2 * SEGMENT_BYTES + 2 * live,
            faults: shared.faults.load(Ordering::Relaxed),
        };
        outcome.memory = outcome.memory.max(sample.memory);
        outcome.binlog_bytes = outcome.binlog_bytes.max(sample.binlog_bytes);
        if sample.binlog_bytes <= sample.bound || live == 0 {
            within_at = now;
        }
        outcome.over_bound = outcome.over_bound.max(now - within_at);
        if now - within_at > OVER_BOUND_MAX_TIME {
            let Sample { binlog_bytes, bound, .. } = sample;
            outcome
                .faults
                .push(format!("the binlog has {binlog_bytes} bytes, {bound} are allowed"));
            within_at = now;
        }
        let quarter = (4 * (now - began).as_millis()) / time.as_millis().max(1);
        let quarter = &mut quarters[usize::try_from(quarter).map_or(3, |it| it.min(3))];
        *quarter = sample.memory.max(*quarter);
        progress(now, &sample, shared.commands.load(Ordering::Relaxed), outcome);
        thread::sleep(SAMPLE_INTERVAL);
    }
    // Ignores the first quarter, in which the number of jobs and the memory still grow.
    let [_, settled, _, last] = quarters;
    let allowed = settled + settled / 10 + MEMORY_SLACK_BYTES;
    if last > allowed {
        outcome.faults.push(format!("memory grew to {last} bytes, beyond {allowed}"));
    }
    Ok((settled, last))
}

/// Returns the size of all files of the binlog.
fn binlog_bytes(folder: &Path) -> io::Result<u64> {
    // Omits a file that is removed before its size is read.
    let sizes = fs::read_dir(folder)?.flatten().filter_map(|entry| entry.metadata().ok());
    Ok(sizes.map(|metadata| metadata.len()).sum())
}

/// The numbers of a daemon's open descriptors.
#[derive(Debug, Default, Clone, Copy)]
pub struct Descriptors {
    /// Files of the daemon's binlog.
    pub binlog: usize,
    /// Connections, listeners, standard streams and all other descriptors.
    pub others: usize,
}

impl Descriptors {
    /// Keeps, for each kind of descriptor, the larger number of this sample and another sample.
    pub(super) fn raise(&mut self, other: Self) {
        self.binlog = self.binlog.max(other.binlog);
        self.others = self.others.max(other.others);
    }
}

impl fmt::Display for Descriptors {
    /// Formats the numbers of a daemon's open descriptors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the binlog and {} others", self.binlog, self.others)
    }
}

/// Counts the open descriptors of the monitored daemon; zero on a system without `/proc`.
pub(super) fn descriptors(pid: u32) -> Descriptors {
    let mut found = Descriptors::default();
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    for target in entries.filter_map(|entry| fs::read_link(entry.path()).ok()) {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let is_binlog = name.starts_with("binlog.") || name.starts_with("spare.");
        *(if is_binlog { &mut found.binlog } else { &mut found.others }) += 1;
    }
    found
}
