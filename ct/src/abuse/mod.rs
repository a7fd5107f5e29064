//! Abuse: what a daemon is to a well-behaved client while somebody else does it every harm that a
//! connection can do.
//!
//! For each abuse (`kinds`) and each daemon, a fresh process is started. A gentle client
//! (`gentle`) works all the time: first alone, then while the abuser (`mob`) attacks, holds
//! what it has, and leaves. While the abuser holds still, the gentle client rests, and the daemon
//! should too. All of it is repeated on the same process, so that what grows is seen to grow.
//!
//! Every wait has a limit: a daemon that stalls or dies ends its part of the table, not the run.
//! What counts as good is in `judge`; the table is made in [`report`].

mod gentle;
mod kinds;
mod mob;
pub mod report;

use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use self::gentle::{COMMANDS, Gentle, Window};
use self::kinds::{Held, KINDS, Kind, Start};
use self::mob::Place;
use crate::bench::measure::{Cores, resident_bytes};
use crate::bench::stats::Spread;
use crate::bench::target::Target;
use crate::{Client, Daemon, free_port, os};

/// How long anything may be silent before it counts as stalled.
const STALL: Duration = Duration::from_secs(10);
/// How long an attack may take.
const ATTACK: Duration = Duration::from_secs(30);
/// For how long the gentle client is alone at first.
const ALONE: Duration = Duration::from_secs(1);
/// For how long the abuser holds what it has.
const HOLD: Duration = Duration::from_millis(1500);
/// How long a daemon may take to give memory back, and to work off what was asked.
const SETTLE: Duration = Duration::from_secs(8);
/// The goal for the 99th percentile, in milliseconds, unless three times the one alone is more.
const GOAL: f64 = 5.0;
/// The goal for the share of a core that a daemon uses while the abuser holds still, in percent.
const IDLE_GOAL: f64 = 1.0;
/// Memory may differ by so many bytes without having grown.
const MORE_MEMORY: u64 = 4 << 20;
/// Up to so many times as many rounds show whether memory that seems to grow goes on to.
const PATIENCE: usize = 3;
/// Files this program needs beside those of its mob.
const OWN_FILES: usize = 100;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Config {
    /// The daemons; the goals are those of the first.
    pub targets: Vec<Target>,
    /// Names of abuses; all if there are none.
    pub only: Vec<String>,
    /// How many connections a mob has, if the limit on files allows.
    pub connections: usize,
    /// How many jobs, tubes or commands are many.
    pub many: usize,
    /// How often each abuse is done to the same process.
    pub rounds: usize,
}

/// Returns the names of all abuses.
pub fn names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

/// What one abuse, once, came to.
#[derive(Debug)]
struct Round {
    alone: Window,
    during: Window,
    /// The share of a core while the abuser held still, in percent.
    idle: f64,
    /// Memory before, while the abuser held, and after it left, in bytes.
    memory: [u64; 3],
    note: String,
    faults: Vec<String>,
    /// The attack came to nothing within its time.
    gave_up: bool,
}

/// What one abuse came to for one daemon.
#[derive(Debug)]
pub struct Row {
    kind: &'static str,
    daemon: String,
    rounds: Vec<Round>,
    /// How the daemon was lost, if it was.
    end: Option<String>,
}

/// Does everything to everyone in turn; `tell` gets a line on each.
pub fn run(config: &Config, tell: &mut dyn FnMut(&str)) -> io::Result<Vec<Row>> {
    let cores = Cores::take()?;
    let crowd = config.connections.min(cores.open_files.saturating_sub(OWN_FILES));
    if crowd < config.connections {
        let limit = cores.open_files;
        tell(&format!("{crowd} connections at most: {limit} files may be open, and no more"));
    }
    let is_wanted =
        |kind: &&Kind| config.only.is_empty() || config.only.iter().any(|name| *name == kind.name);
    let mut rows = Vec::new();
    for kind in KINDS.iter().filter(is_wanted) {
        for target in &config.targets {
            if kind.start == Start::FakedClock && kinds::clock_library().is_none() {
                tell(&format!("{}: not tried, libfaketime is not installed", kind.name));
                continue;
            }
            tell(&format!("{}: {}", kind.name, target.label));
            let row = abuse(kind, target, cores, crowd, config)?;
            for round in &row.rounds {
                let (note, faults) = (&round.note, round.faults.join("; "));
                tell(&format!("    {note}{}{faults}", if faults.is_empty() { "" } else { "; " }));
            }
            if let Some(end) = &row.end {
                tell(&format!("    {end}"));
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// A directory for the faked clock, removed in the end.
struct ClockFolder(PathBuf);

impl ClockFolder {
    fn new() -> io::Result<Self> {
        let folder = kinds::clock_folder();
        fs::create_dir_all(&folder)?;
        fs::write(kinds::clock_file(), "+0\n")?;
        Ok(Self(folder))
    }
}

impl Drop for ClockFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn abuse(
    kind: &Kind,
    target: &Target,
    cores: Cores,
    crowd: usize,
    config: &Config,
) -> io::Result<Row> {
    let mut row =
        Row { kind: kind.name, daemon: target.label.clone(), rounds: Vec::new(), end: None };
    let (daemon, address, _folder) = match kind.start {
        Start::Plain => {
            let daemon = cores.start(&target.program, &[])?;
            let address = daemon.address().to_owned();
            (daemon, address, None)
        }
        Start::FakedClock => {
            let folder = ClockFolder::new()?;
            let (daemon, address) = start_with_faked_clock(target)?;
            (daemon, address, Some(folder))
        }
    };
    let gentle = Gentle::start(&address, daemon.pid())?;
    let mut victim = Victim { gentle, daemon, address, crowd };
    while row.wants_more(config.rounds) {
        match victim.round(kind, config.many) {
            Ok(round) => row.rounds.push(round),
            Err(error) => row.end = Some(error.to_string()),
        }
        let last = row.rounds.last();
        let broken = last.and_then(|round| round.during.broken.clone());
        if let Some(status) = victim.daemon.wait_exit(Duration::from_millis(50)) {
            row.end = Some(format!("died: {status}, {}", last_line(&victim.daemon.stderr())));
        } else if let Some(broken) = broken {
            row.end = Some(broken);
        }
        if row.end.is_some() || row.rounds.last().is_some_and(|round| round.gave_up) {
            break;
        }
    }
    Ok(row)
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().chars().take(160).collect()
}

/// On no core of its own, for the clock is no matter of speed.
fn start_with_faked_clock(target: &Target) -> io::Result<(Daemon, String)> {
    let library = kinds::clock_library().ok_or(io::ErrorKind::NotFound)?;
    let port = free_port()?.to_string();
    let mut command = Command::new(&target.program.path);
    command.args(["-l", "127.0.0.1", "-p", &port]).args(&target.program.flags);
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", kinds::clock_file());
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut daemon = Daemon::spawn_command(&mut command)?;
    let address = format!("127.0.0.1:{port}");
    daemon.wait_until_accepts(&address, STALL)?;
    Ok((daemon, address))
}

/// A daemon with its gentle client.
struct Victim {
    // The client leaves before the daemon ends.
    gentle: Gentle,
    daemon: Daemon,
    address: String,
    crowd: usize,
}

impl Victim {
    /// Attacks, holds, leaves. Fails if the daemon is not there any more.
    fn round(&mut self, kind: &Kind, many: usize) -> io::Result<Round> {
        let pid = self.daemon.pid();
        let address: SocketAddrV4 = self.address.parse().map_err(io::Error::other)?;
        self.gentle.cut();
        thread::sleep(ALONE);
        let alone = self.gentle.cut();
        let before = resident_bytes(pid)?;
        let place = Place { address, pid, crowd: self.crowd, many, until: Instant::now() + ATTACK };
        let attacked = in_background(|| (kind.attack)(&place));
        let gave_up = attacked.is_err();
        let mut held = attacked.unwrap_or_else(|error| Held {
            note: format!("the attack was {error}"),
            faults: vec![error.to_string()],
            ..Held::default()
        });
        thread::sleep(HOLD);
        let peak = resident_bytes(pid)?;
        self.gentle.rest();
        let idle = self.idle()?;
        self.gentle.go_on();
        let mut faults = std::mem::take(&mut held.faults);
        let note = std::mem::take(&mut held.note);
        if let Err(error) = in_background(move || leave(held)) {
            faults.push(format!("leaving: {error}"));
        }
        thread::sleep(HOLD);
        let during = self.gentle.cut();
        if during.broken.is_none() {
            faults.extend(self.newcomer().err().map(|error| format!("a newcomer: {error}")));
        }
        let after = settled_memory(pid)?;
        let memory = [before, peak, after];
        Ok(Round { alone, during, idle, memory, note, faults, gave_up })
    }

    /// Returns which share of a core the daemon uses, in percent.
    fn idle(&self) -> io::Result<f64> {
        let pid = self.daemon.pid();
        // What has been asked may be worked off; one that spins never comes to rest.
        let patience = Instant::now() + SETTLE;
        loop {
            let before = os::cpu_time(pid)?;
            thread::sleep(Duration::from_millis(100));
            let used = os::cpu_time(pid)?.saturating_sub(before);
            if used < Duration::from_millis(10) || Instant::now() > patience {
                break;
            }
        }
        let (began, before) = (Instant::now(), os::cpu_time(pid)?);
        thread::sleep(HOLD);
        let used = os::cpu_time(pid)?.saturating_sub(before);
        Ok(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
    }

    /// Whoever comes after the abuse is served.
    fn newcomer(&self) -> io::Result<()> {
        let mut client = Client::connect(&self.address)?;
        client.set_timeout(STALL)?;
        client.yaml("stats").map(drop)
    }
}

/// Runs the abuser with low priority, so that it does not take the core from the gentle client,
/// which shares it.
fn in_background<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            os::be_nice();
            work()
        });
        thread.join().expect("an abuser does not panic")
    })
}

fn leave(held: Held) -> io::Result<()> {
    let left = held.leave.map_or(Ok(()), |leave| leave());
    drop(held.connections);
    left
}

/// Waits until memory does not fall any more, and returns it.
fn settled_memory(pid: u32) -> io::Result<u64> {
    let began = Instant::now();
    let mut least = (resident_bytes(pid)?, began);
    while least.1.elapsed() < Duration::from_secs(1) && began.elapsed() < SETTLE {
        thread::sleep(Duration::from_millis(100));
        let memory = resident_bytes(pid)?;
        // A few pages come and go with every command.
        if memory + (64 << 10) < least.0 {
            least = (memory, Instant::now());
        }
    }
    Ok(least.0)
}

impl Row {
    /// The middle of some figure of all rounds.
    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let figures: Vec<f64> = self.rounds.iter().map(figure).collect();
        Spread::of(&figures).median
    }

    /// The middle over the rounds of each command's quantile in milliseconds.
    fn latency(&self, window: fn(&Round) -> &Window, share: f64) -> [f64; COMMANDS.len()] {
        [0, 1, 2].map(|command| self.median(|round| window(round).quantile(command, share)))
    }

    /// The longest wait of all commands and rounds in milliseconds.
    fn longest(&self) -> f64 {
        let longest = |round: &Round| {
            let waits = (0..COMMANDS.len()).map(|command| round.during.quantile(command, 1.0));
            waits.fold(0.0, f64::max)
        };
        self.rounds.iter().map(longest).fold(0.0, f64::max)
    }

    /// What was not as it should be; nothing if all goals were met.
    fn judge(&self) -> Vec<String> {
        let mut missed: Vec<String> = self.end.iter().cloned().collect();
        for fault in self.rounds.iter().flat_map(|round| &round.faults) {
            if !missed.contains(fault) {
                missed.push(fault.clone());
            }
        }
        let alone = self.latency(|round| &round.alone, 0.99);
        let during = self.latency(|round| &round.during, 0.99);
        for ((name, alone), during) in COMMANDS.iter().zip(alone).zip(during) {
            let goal = GOAL.max(3.0 * alone);
            if during > goal {
                missed.push(format!("p99 of {name} {during:.1} ms, beyond {goal:.1}"));
            }
        }
        let idle = self.median(|round| round.idle);
        if idle >= IDLE_GOAL {
            missed.push(format!("uses {idle:.0} % of a core while nobody asks"));
        }
        if self.seems_to_grow() {
            missed.push("memory grows".to_owned());
        }
        missed
    }

    /// Says whether another round is needed: all that were asked for, and more where memory seems
    /// to grow, for what is left goes up and down.
    fn wants_more(&self, rounds: usize) -> bool {
        let most = if self.seems_to_grow() { PATIENCE * rounds } else { rounds };
        self.rounds.len() < most
    }

    fn seems_to_grow(&self) -> bool {
        let after: Vec<u64> = self.rounds.iter().map(|round| round.memory[2]).collect();
        grows(&after)
    }
}

/// Says whether what is left in memory after each of several equal abuses grows without end. What a
/// first one leaves behind serves the next, so the steps become smaller; those of a leak do not.
fn grows(after: &[u64]) -> bool {
    let steps: Vec<u64> = after.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    match steps[..] {
        [] => false,
        [only] => only > after[0] / 10 + MORE_MEMORY,
        [first, .., last] => last > first / 2 + MORE_MEMORY,
    }
}

/// Says whether the first daemon met all goals.
pub fn is_good(config: &Config, rows: &[Row]) -> bool {
    let first = config.targets.first().map(|target| &target.label);
    rows.iter().filter(|row| Some(&row.daemon) == first).all(|row| row.judge().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crowd_leaves_behind_is_no_leak_and_a_leak_is_one() {
        let megabytes = |sizes: &[u64]| sizes.iter().map(|size| size << 20).collect::<Vec<_>>();
        for kept in [&[3][..], &[3, 5], &[150, 160], &[150, 290, 320], &[3, 3, 3], &[90, 20, 20]] {
            assert!(!grows(&megabytes(kept)), "{kept:?}");
        }
        for leak in [&[3, 10][..], &[150, 290], &[3, 23, 43], &[100, 120, 140, 160]] {
            assert!(grows(&megabytes(leak)), "{leak:?}");
        }
    }

    #[test]
    fn each_abuse_has_a_name_of_its_own() {
        let names = names();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
