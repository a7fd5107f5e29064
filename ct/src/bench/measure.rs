//! Measures how much CPU time and memory daemon and load use, and how long they wait for a core.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::group::Until;
use super::load::Load;
use super::tally::Tally;
use crate::{Daemon, Program, os};

/// A daemon or load that uses at least this share of its core is reported as saturated.
pub const SATURATED_SHARE: f64 = 0.9;
/// The index of the daemon's core, if daemon and load have a core each.
const DAEMON: usize = 0;
/// The index of the load's core, if daemon and load have a core each.
const LOAD: usize = 1;

/// On which cores the daemon and the load run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placement {
    /// On separate cores.
    #[default]
    Apart,
    /// The load on a core of its own, the daemon on any core.
    AnyCore,
    /// Daemon and load on the same core.
    Together,
}

/// The cores of daemon and load.
#[derive(Debug, Clone)]
pub struct Cores {
    /// The limit on open files of each process.
    pub open_files: usize,
    /// All cores that this process may use; empty if the system does not report them.
    all: Vec<usize>,
}

impl Cores {
    /// Pins this thread, the load, to the second core; daemons get the first core. Raises the limit
    /// on open files of this process and of the daemons that it starts later.
    pub fn take() -> io::Result<Self> {
        let open_files = os::raise_open_files()?;
        let cores = Self { open_files, all: os::cores()? };
        cores.place_load(Placement::Apart)?;
        Ok(cores)
    }

    /// Returns the number of cores that this process may use.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns whether daemon and load can have a core each.
    pub fn are_split(&self) -> bool {
        self.all.len() > 1
    }

    /// Moves this thread, which generates the load, to the cores that are reserved for the load.
    pub fn place_load(&self, placement: Placement) -> io::Result<()> {
        self.place(placement, LOAD)
    }

    /// Starts a daemon to be measured, pinned to the cores that `placement` assigns to daemons.
    pub fn start(
        &self,
        placement: Placement,
        program: &Program,
        flags: &[String],
    ) -> io::Result<Daemon> {
        self.place(placement, DAEMON)?;
        let started = program.start(flags);
        self.place_load(placement)?;
        started
    }

    /// Pins this thread to the cores of the daemon or of the load.
    fn place(&self, placement: Placement, side: usize) -> io::Result<()> {
        match (placement, &self.all[..]) {
            (_, [] | [_]) => Ok(()),
            (Placement::AnyCore, all) if side == DAEMON => os::pin_to_cores(all),
            (Placement::Apart | Placement::AnyCore, all) => os::pin_to_cores(&all[side..=side]),
            (Placement::Together, all) => os::pin_to_cores(&all[..1]),
        }
    }
}

/// CPU use of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all threads of the process.
    pub cpu: Duration,
    /// How long threads of the process were ready to run while other threads used the core.
    pub waited: Duration,
}

impl Usage {
    /// Reads the CPU use of a process since its start.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { cpu: os::cpu_time(pid)?, waited: waited(pid).unwrap_or_default() })
    }

    /// Returns the CPU use since an earlier measurement of the process.
    fn since(self, before: Self) -> Self {
        let cpu = self.cpu.saturating_sub(before.cpu);
        Self { cpu, waited: self.waited.saturating_sub(before.waited) }
    }
}

/// The figures of one run.
#[derive(Debug)]
pub struct Figures {
    /// The load's counters.
    pub tally: Tally,
    /// The daemon's CPU use.
    pub daemon: Usage,
    /// The load's CPU use.
    pub load: Usage,
    /// The kernel's share of the daemon's CPU time.
    pub system_share: f64,
}

impl Figures {
    /// Runs the load, and measures how much CPU time load and daemon use meanwhile.
    pub fn measure(load: &mut Load, pid: u32, until: Until) -> io::Result<Self> {
        let own = std::process::id();
        let (daemon_before, load_before) = (Usage::of(pid)?, Usage::of(own)?);
        let ticks_before = ticks(pid).unwrap_or_default();
        let tally = load.run(until)?;
        let (daemon_after, load_after) = (Usage::of(pid)?, Usage::of(own)?);
        let (daemon, load) = (daemon_after.since(daemon_before), load_after.since(load_before));
        let (user, system) = ticks(pid).unwrap_or_default();
        let (user, system) = (user - ticks_before.0, system - ticks_before.1);
        let system_share = if user + system > 0.0 { system / (user + system) } else { 0.0 };
        Ok(Self { tally, daemon, load, system_share })
    }

    /// Returns how many commands a second the daemon answered in a run.
    pub fn rate(&self) -> f64 {
        ratio(self.tally.commands, self.tally.wall.as_secs_f64())
    }

    /// Returns the daemon's CPU time per command in microseconds.
    pub fn daemon_cpu(&self) -> f64 {
        per(self.daemon.cpu, self.tally.commands)
    }

    /// Returns the load's CPU time per command in microseconds.
    pub fn load_cpu(&self) -> f64 {
        per(self.load.cpu, self.tally.commands)
    }

    /// Returns the daemon's CPU time as a share of the run's time.
    pub fn daemon_busy(&self) -> f64 {
        share(self.daemon.cpu, self.tally.wall)
    }

    /// Returns the load's CPU time as a share of the run's time.
    pub fn load_busy(&self) -> f64 {
        share(self.load.cpu, self.tally.wall)
    }

    /// Returns the share of time in which the daemon waited for a core that other threads used.
    pub fn daemon_waited(&self) -> f64 {
        share(self.daemon.waited, self.tally.wall)
    }

    /// Returns the share of time in which the load waited for a core that other threads used.
    pub fn load_waited(&self) -> f64 {
        share(self.load.waited, self.tally.wall)
    }
}

/// Returns a process's resident memory in bytes.
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let text = rollup.or_else(|_| fs::read_to_string(format!("/proc/{pid}/status")))?;
    let kilobytes = field(&text, "Rss:").or_else(|| field(&text, "VmRSS:"));
    let kilobytes = kilobytes.ok_or_else(|| io::Error::other("no Rss in /proc"))?;
    Ok(kilobytes * 1024)
}

/// Returns a number from the text of `/proc/PID/smaps_rollup` or `/proc/PID/status`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns how long the threads of a process have waited for a core.
fn waited(pid: u32) -> Option<Duration> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let waits = tasks.flatten().filter_map(|task| wait_of(&task.path().join("schedstat")));
    Some(waits.sum())
}

/// Returns how long a thread has waited for a core, from its file of `/proc`.
fn wait_of(path: &Path) -> Option<Duration> {
    let text = fs::read_to_string(path).ok()?;
    Some(Duration::from_nanos(text.split_whitespace().nth(1)?.parse().ok()?))
}

/// Returns how many clock ticks a process has spent in user mode and in kernel mode.
fn ticks(pid: u32) -> Option<(f64, f64)> {
    parse_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses from `/proc/PID/stat` a process's clock ticks in user mode and in kernel mode.
fn parse_ticks(stat: &str) -> Option<(f64, f64)> {
    // Skips the program's name, in parentheses; utime and stime are fields 14 and 15.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Returns a number of commands a second.
#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
fn ratio(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Returns the CPU time per command in microseconds.
#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
fn per(time: Duration, count: u64) -> f64 {
    if count > 0 { time.as_secs_f64() * 1e6 / count as f64 } else { 0.0 }
}

/// Returns CPU time as a share of the run's time.
fn share(time: Duration, wall: Duration) -> f64 {
    if wall.is_zero() { 0.0 } else { time.as_secs_f64() / wall.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_of_this_very_process_can_be_read() {
        let own = std::process::id();
        assert!(resident_bytes(own).unwrap() > 100_000);
        assert!(Usage::of(own).unwrap().cpu > Duration::ZERO);
        assert!(resident_bytes(u32::MAX).is_err());
        assert!(Usage::of(u32::MAX).is_err());
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "Rss:   12 kB\nVmRSS:\t 34 kB\n";
        assert_eq!((field(text, "Rss:"), field(text, "VmRSS:")), (Some(12), Some(34)));
        assert_eq!(field(text, "Pss:"), None);
    }

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 90 0 0 0 12 34 0 0 20 0 1 0 5";
        assert_eq!(parse_ticks(stat), Some((12.0, 34.0)));
        assert_eq!(parse_ticks("7 (a) S 1"), None);
        assert!(ticks(std::process::id()).is_some());
    }

    #[test]
    fn nothing_divides_by_zero() {
        assert!(ratio(1, 0.0).abs() < f64::EPSILON);
        assert!(per(Duration::from_secs(1), 0).abs() < f64::EPSILON);
        assert!(share(Duration::from_secs(1), Duration::ZERO).abs() < f64::EPSILON);
        assert!((per(Duration::from_micros(6), 3) - 2.0).abs() < 1e-9);
    }
}
