//! Measures how well a daemon serves a well-behaved client during attacks by other connections.
//!
//! For each attack on each daemon, a new process of the daemon is started. `attacks` executes the
//! attacks, and `attackers` opens their connections. A client, the `probe`, sends commands before,
//! during and after the attack. While the attack only keeps connections open, the probe pauses
//! once; during this pause, the daemon should be idle. Each attack is repeated on the same process,
//! to detect leaks.
//!
//! Every wait has a time limit. If a daemon stalls or dies, the run continues with the next daemon.
//! `missed_goals` compares the figures with the goals, and [`report`] makes the table of results.

mod attackers;
mod attacks;
mod probe;
pub mod report;

use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use self::attackers::Attack;
use self::attacks::{ATTACK_KINDS, AttackKind, Outcome, Start};
use self::probe::{COMMANDS, Probe, Window};
use crate::bench::measure::{Cores, Placement, resident_bytes};
use crate::bench::stats::Spread;
use crate::bench::target::Target;
use crate::{Client, Daemon, free_port, os};

/// A daemon that sends no reply for this time is reported as stalled.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
const ATTACK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the probe sends commands before an attack begins.
const BASELINE_TIME: Duration = Duration::from_secs(1);
/// The probe takes this long for each of two measurements: while connections stay open, and after
/// the cleanup.
const HOLD_TIME: Duration = Duration::from_millis(1500);
/// How long a daemon may take to finish the work of an attack and to free memory.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(8);
/// During an attack, the 99th percentile of a latency may reach this many milliseconds or three
/// times the percentile before the attack, whichever is longer.
const P99_GOAL_MS: f64 = 5.0;
/// CPU use of an idle daemon must stay below this percentage of a core.
const IDLE_CPU_GOAL_PERCENT: f64 = 1.0;
/// If memory grows by at most this many bytes from one round to the next, there is no leak.
const MEMORY_SLACK_BYTES: u64 = 4 << 20;
/// If memory seems to grow, an attack gets up to this many times the usual number of rounds.
const GROWTH_ROUNDS_FACTOR: usize = 3;
/// The number of files that this program opens in addition to the attackers' connections.
const RESERVED_FILES: usize = 100;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The daemons. The goals apply only to the first daemon.
    pub targets: Vec<Target>,
    /// The names of the attacks to run; empty for all attacks.
    pub only: Vec<String>,
    /// The number of connections of an attack that opens many connections, unless the limit on
    /// files is lower.
    pub connections: usize,
    /// The number of jobs, tubes or commands of an attack that uses many of them.
    pub items: usize,
    /// How many times each attack runs on the same process.
    pub rounds: usize,
}

/// Returns the names of all attacks.
pub fn names() -> Vec<&'static str> {
    ATTACK_KINDS.iter().map(|kind| kind.name).collect()
}

/// The result of running an attack once.
#[derive(Debug)]
struct Round {
    baseline: Window,
    during: Window,
    /// The daemon's CPU use while the attackers and the probe sent nothing.
    idle_cpu_percent: f64,
    /// The daemon's resident bytes: before the attack, while connections are open, after cleanup.
    memory: [u64; 3],
    summary: String,
    faults: Vec<String>,
    /// Whether the attack ended with an error, usually because its deadline passed.
    timed_out: bool,
}

/// The results of one attack on one daemon.
#[derive(Debug)]
pub struct Row {
    kind: &'static str,
    daemon: String,
    rounds: Vec<Round>,
    /// The error that ended the test of this daemon, if there was one.
    failure: Option<String>,
}

/// Runs each attack on one daemon after another; calls `progress` with each line to show.
pub fn run(config: &Config, progress: &mut dyn FnMut(&str)) -> io::Result<Vec<Row>> {
    let cores = Cores::take()?;
    let connections = config.connections.min(cores.open_files.saturating_sub(RESERVED_FILES));
    if connections < config.connections {
        let limit = cores.open_files;
        progress(&format!(
            "{connections} connections at most, because only {limit} files may be open"
        ));
    }
    let is_wanted = |kind: &&AttackKind| {
        config.only.is_empty() || config.only.iter().any(|name| *name == kind.name)
    };
    let mut rows = Vec::new();
    for kind in ATTACK_KINDS.iter().filter(is_wanted) {
        for target in &config.targets {
            if kind.start == Start::FakedClock && attacks::clock_library().is_none() {
                progress(&format!("{}: not tried, libfaketime is not installed", kind.name));
                continue;
            }
            progress(&format!("{}: {}", kind.name, target.label));
            let row = run_attack(kind, target, &cores, connections, config)?;
            for round in &row.rounds {
                let (summary, faults) = (&round.summary, round.faults.join("; "));
                progress(&format!(
                    "    {summary}{}{faults}",
                    if faults.is_empty() { "" } else { "; " }
                ));
            }
            if let Some(failure) = &row.failure {
                progress(&format!("    {failure}"));
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The directory of the file that sets a daemon's clock; dropping this value removes the directory.
struct ClockFolder(PathBuf);

impl ClockFolder {
    /// Makes the directory of an attacked daemon, and the file that sets the daemon's clock.
    fn new() -> io::Result<Self> {
        let folder = attacks::clock_folder();
        fs::create_dir_all(&folder)?;
        fs::write(attacks::clock_file(), "+0\n")?;
        Ok(Self(folder))
    }
}

impl Drop for ClockFolder {
    /// Removes the directory and its file.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a daemon, and repeats an attack on it until enough rounds are measured.
fn run_attack(
    kind: &AttackKind,
    target: &Target,
    cores: &Cores,
    connections: usize,
    config: &Config,
) -> io::Result<Row> {
    let mut row =
        Row { kind: kind.name, daemon: target.label.clone(), rounds: Vec::new(), failure: None };
    let (daemon, address, _folder) = match kind.start {
        Start::Plain => {
            let daemon = cores.start(Placement::Apart, &target.program, &[])?;
            let address = daemon.address().to_owned();
            (daemon, address, None)
        }
        Start::FakedClock => {
            let folder = ClockFolder::new()?;
            let (daemon, address) = start_with_faked_clock(target)?;
            (daemon, address, Some(folder))
        }
    };
    let probe = Probe::start(&address, daemon.pid())?;
    let mut subject = DaemonUnderTest { probe, daemon, address, connections };
    while row.needs_more_rounds(config.rounds) {
        match subject.round(kind, config.items) {
            Ok(round) => row.rounds.push(round),
            Err(error) => row.failure = Some(error.to_string()),
        }
        let last = row.rounds.last();
        let failure = last.and_then(|round| round.during.failure.clone());
        if let Some(status) = subject.daemon.wait_exit(Duration::from_millis(50)) {
            row.failure = Some(format!("died: {status}, {}", last_line(&subject.daemon.stderr())));
        } else if let Some(failure) = failure {
            row.failure = Some(failure);
        }
        if row.failure.is_some() || row.rounds.last().is_some_and(|round| round.timed_out) {
            break;
        }
    }
    Ok(row)
}

/// Returns the last line that a daemon wrote before it died under an attack.
fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().chars().take(160).collect()
}

/// Starts the attacked daemon with a clock that can be set. The daemon may use any core, because
/// its speed is not compared.
fn start_with_faked_clock(target: &Target) -> io::Result<(Daemon, String)> {
    let library = attacks::clock_library().ok_or(io::ErrorKind::NotFound)?;
    let port = free_port()?.to_string();
    let mut command = Command::new(&target.program.path);
    command.args(["-l", "127.0.0.1", "-p", &port]).args(&target.program.flags);
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", attacks::clock_file());
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut daemon = Daemon::spawn_command(&mut command)?;
    let address = format!("127.0.0.1:{port}");
    daemon.wait_until_accepts(&address, STALL_TIMEOUT)?;
    Ok((daemon, address))
}

/// A daemon and its probe.
struct DaemonUnderTest {
    // This field is dropped first, so that the probe disconnects before the daemon ends.
    probe: Probe,
    daemon: Daemon,
    address: String,
    connections: usize,
}

impl DaemonUnderTest {
    /// Measures a round: runs the attack, keeps its connections open, and cleans up. Fails if the
    /// daemon has ended.
    fn round(&mut self, kind: &AttackKind, items: usize) -> io::Result<Round> {
        let pid = self.daemon.pid();
        let address: SocketAddrV4 = self.address.parse().map_err(io::Error::other)?;
        self.probe.take_window();
        thread::sleep(BASELINE_TIME);
        let baseline = self.probe.take_window();
        let before = resident_bytes(pid)?;
        let attack = Attack {
            address,
            pid,
            connections: self.connections,
            items,
            deadline: Instant::now() + ATTACK_TIMEOUT,
        };
        let attacked = at_low_priority(|| (kind.run)(&attack));
        let timed_out = attacked.is_err();
        let mut outcome = attacked.unwrap_or_else(|error| Outcome {
            summary: format!("the attack failed: {error}"),
            faults: vec![error.to_string()],
            ..Outcome::default()
        });
        thread::sleep(HOLD_TIME);
        let peak = resident_bytes(pid)?;
        self.probe.pause();
        let idle_cpu_percent = self.idle_cpu_percent()?;
        self.probe.resume();
        let mut faults = std::mem::take(&mut outcome.faults);
        let summary = std::mem::take(&mut outcome.summary);
        if let Err(error) = at_low_priority(move || clean_up(outcome)) {
            faults.push(format!("leaving: {error}"));
        }
        thread::sleep(HOLD_TIME);
        let during = self.probe.take_window();
        if during.failure.is_none() {
            faults.extend(
                self.check_new_connection().err().map(|error| format!("a new connection: {error}")),
            );
        }
        let after = settled_memory(pid)?;
        let memory = [before, peak, after];
        Ok(Round { baseline, during, idle_cpu_percent, memory, summary, faults, timed_out })
    }

    /// Returns the attacked daemon's CPU use in percent of a core.
    fn idle_cpu_percent(&self) -> io::Result<f64> {
        let pid = self.daemon.pid();
        // Waits until the daemon uses little CPU time, but not longer than the timeout.
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let before = os::cpu_time(pid)?;
            thread::sleep(Duration::from_millis(100));
            let used = os::cpu_time(pid)?.saturating_sub(before);
            if used < Duration::from_millis(10) || Instant::now() > deadline {
                break;
            }
        }
        let (began, before) = (Instant::now(), os::cpu_time(pid)?);
        thread::sleep(HOLD_TIME);
        let used = os::cpu_time(pid)?.saturating_sub(before);
        Ok(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
    }

    /// Checks that the attacked daemon answers a command on a new connection.
    fn check_new_connection(&self) -> io::Result<()> {
        let mut client = Client::connect(&self.address)?;
        client.set_timeout(STALL_TIMEOUT)?;
        client.yaml("stats").map(drop)
    }
}

/// Runs the attack in a thread of low priority, because the attack and the probe share a core.
fn at_low_priority<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            os::lower_priority();
            work()
        });
        thread.join().expect("an attack does not panic")
    })
}

/// Runs an attack's cleanup, and then closes the attack's connections.
fn clean_up(outcome: Outcome) -> io::Result<()> {
    let left = outcome.cleanup.map_or(Ok(()), |cleanup| cleanup());
    drop(outcome.connections);
    left
}

/// Waits until the attacked daemon's memory stops shrinking, and returns the memory in bytes.
fn settled_memory(pid: u32) -> io::Result<u64> {
    let began = Instant::now();
    let mut least = (resident_bytes(pid)?, began);
    while least.1.elapsed() < Duration::from_secs(1) && began.elapsed() < SETTLE_TIMEOUT {
        thread::sleep(Duration::from_millis(100));
        let memory = resident_bytes(pid)?;
        // Ignores a decrease of up to 64 KiB: every command allocates and frees a few pages.
        if memory + (64 << 10) < least.0 {
            least = (memory, Instant::now());
        }
    }
    Ok(least.0)
}

impl Row {
    /// Returns the median of a figure over all rounds of an attack.
    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let figures: Vec<f64> = self.rounds.iter().map(figure).collect();
        Spread::of(&figures).median
    }

    /// Returns, for each of the probe's commands, a quantile of the latency in milliseconds. The
    /// result is the median of this quantile over all rounds.
    fn latency(&self, window: fn(&Round) -> &Window, share: f64) -> [f64; COMMANDS.len()] {
        [0, 1, 2].map(|command| self.median(|round| window(round).quantile(command, share)))
    }

    /// Returns the longest latency, in milliseconds, of any command of the probe in any round.
    fn longest(&self) -> f64 {
        let longest = |round: &Round| {
            let waits = (0..COMMANDS.len()).map(|command| round.during.quantile(command, 1.0));
            waits.fold(0.0, f64::max)
        };
        self.rounds.iter().map(longest).fold(0.0, f64::max)
    }

    /// Returns a message for each goal that the attacked daemon missed.
    fn missed_goals(&self) -> Vec<String> {
        let mut missed: Vec<String> = self.failure.iter().cloned().collect();
        for fault in self.rounds.iter().flat_map(|round| &round.faults) {
            if !missed.contains(fault) {
                missed.push(fault.clone());
            }
        }
        let alone = self.latency(|round| &round.baseline, 0.99);
        let during = self.latency(|round| &round.during, 0.99);
        for ((name, alone), during) in COMMANDS.iter().zip(alone).zip(during) {
            let goal = P99_GOAL_MS.max(3.0 * alone);
            if during > goal {
                missed.push(format!("p99 of {name} {during:.1} ms, beyond {goal:.1}"));
            }
        }
        let idle = self.median(|round| round.idle_cpu_percent);
        if idle >= IDLE_CPU_GOAL_PERCENT {
            missed.push(format!("uses {idle:.0} % of a core while idle"));
        }
        if self.memory_seems_to_grow() {
            missed.push("memory grows".to_owned());
        }
        missed
    }

    /// Returns whether another round of the attack is needed. If memory seems to grow, more rounds
    /// are needed to distinguish a leak from chance.
    fn needs_more_rounds(&self, rounds: usize) -> bool {
        let most = if self.memory_seems_to_grow() { GROWTH_ROUNDS_FACTOR * rounds } else { rounds };
        self.rounds.len() < most
    }

    /// Returns whether the daemon's memory after the attack grows from round to round.
    fn memory_seems_to_grow(&self) -> bool {
        let after: Vec<u64> = self.rounds.iter().map(|round| round.memory[2]).collect();
        grows(&after)
    }
}

/// Returns whether memory keeps growing while an attack is repeated. Without a leak, growth slows
/// down, because later attacks reuse memory that the first attack has allocated.
fn grows(after: &[u64]) -> bool {
    let steps: Vec<u64> = after.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    match steps[..] {
        [] => false,
        [only] => only > after[0] / 10 + MEMORY_SLACK_BYTES,
        [first, .., last] => last > first / 2 + MEMORY_SLACK_BYTES,
    }
}

/// Returns whether the first daemon met all goals in all attacks.
pub fn meets_goals(config: &Config, rows: &[Row]) -> bool {
    let first = config.targets.first().map(|target| &target.label);
    rows.iter().filter(|row| Some(&row.daemon) == first).all(|row| row.missed_goals().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_reused_is_no_leak() {
        let megabytes = |sizes: &[u64]| sizes.iter().map(|size| size << 20).collect::<Vec<_>>();
        for kept in [&[3][..], &[3, 5], &[150, 160], &[150, 290, 320], &[3, 3, 3], &[90, 20, 20]] {
            assert!(!grows(&megabytes(kept)), "{kept:?}");
        }
        for leak in [&[3, 10][..], &[150, 290], &[3, 23, 43], &[100, 120, 140, 160]] {
            assert!(grows(&megabytes(leak)), "{leak:?}");
        }
    }

    #[test]
    fn attack_names_are_unique() {
        let names = names();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
