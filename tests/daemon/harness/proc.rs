//! Facts about a process, from `/proc`.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use ct::Daemon;

/// How long a daemon that should have nothing to do is watched.
pub(crate) const WATCHED: Duration = Duration::from_millis(1500);

#[track_caller]
pub(crate) fn process_file(pid: u32, name: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{name}")).expect("the process is there")
}

#[track_caller]
pub(crate) fn process_status(pid: u32, key: &str) -> String {
    let status = process_file(pid, "status");
    let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
    let (_, value) = lines.find(|&(found, _)| found == key).expect("a line with this key");
    value.into()
}

/// The resident memory in bytes.
#[track_caller]
pub(crate) fn resident(daemon: &Daemon) -> usize {
    let size = process_status(daemon.pid(), "VmRSS");
    let kilobytes = size.trim().strip_suffix(" kB").expect("kilobytes");
    1024 * kilobytes.parse::<usize>().expect("a number")
}

/// The fields of `/proc/PID/stat` after the name, which may contain spaces.
pub(crate) fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or_else(Vec::new, |(_, rest)| rest.split_whitespace().collect())
}

/// The processor time used so far, inside and outside the kernel.
#[track_caller]
pub(crate) fn processor_time(daemon: &Daemon) -> Duration {
    let stat = process_file(daemon.pid(), "stat");
    let fields = stat_fields(&stat);
    let hundredths = |field: usize| fields[field].parse::<u64>().expect("a number");
    Duration::from_millis(10 * (hundredths(11) + hundredths(12)))
}

/// Checks for [`WATCHED`] that a daemon hardly uses the processor. A daemon that spins uses all the
/// time it gets; the bound is far from both values.
#[track_caller]
pub(crate) fn assert_idle(daemon: &Daemon) {
    let (before, began) = (processor_time(daemon), Instant::now());
    thread::sleep(WATCHED);
    let (used, watched) = (processor_time(daemon).saturating_sub(before), began.elapsed());
    assert!(used < watched / 10, "{used:?} of processor time in {watched:?}");
}
