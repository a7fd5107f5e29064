//! Runs the scenarios that measure memory, a restart, and a kick that moves a whole backlog. In
//! these, no cycle of commands is repeated.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::group::{Group, Tubes, Until};
use super::load::Load;
use super::measure::{Placement, Usage, resident_bytes};
use super::op::{Op, Priority};
use super::outcome::{Sample, microseconds, named};
use super::reader::Body;
use super::scenario::{Scenario, Work};
use super::setup::SetupClient;
use super::state::State;
use super::target::{Config, PreparedDaemon, ScratchDir, Target};
use crate::{Client, Daemon};

/// The time in which a daemon should free memory after jobs are deleted or clients disconnect.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// The number of commands that one client sends before the memory of connections is measured.
const WARM_UP_COMMANDS: usize = 1000;
/// The number of measurements of a kick, each on a new daemon.
const KICK_ROUNDS: usize = 3;
/// The number of measurements of a restart.
const RESTART_ROUNDS: usize = 3;
/// Time limit for reading a binlog.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs, on one target, a scenario that has no repeated load.
pub(crate) fn run(
    scenario: &Scenario,
    target: &Target,
    config: &Config,
    progress: &mut dyn FnMut(&str),
) -> io::Result<Vec<Sample>> {
    let prepare = |progress: &mut dyn FnMut(&str)| {
        let (cores, placement) = (&config.cores, scenario.placement);
        PreparedDaemon::prepare(target, cores, placement, &scenario.state, None, progress)
    };
    match scenario.work {
        Work::Phases(_) | Work::SlowSync(_) => Ok(Vec::new()),
        Work::Jobs { jobs, body } => measure_job_memory(&prepare(progress)?, jobs, body),
        Work::Connections(connections) => {
            measure_connection_memory(&prepare(progress)?, connections)
        }
        Work::Kick(jobs) => {
            let kick = |_| kick(&prepare(&mut *progress)?, jobs);
            (0..KICK_ROUNDS).map(kick).collect()
        }
        Work::Replay { jobs, body, tubes } => {
            let flag = scenario.binlog.unwrap_or("-F");
            let state = State { ready: jobs, ready_tubes: tubes, body, ..State::default() };
            replay(target, config, flag, &state)
        }
    }
}

/// Measures, for `memory/N`, the daemon's resident memory without jobs, with jobs, and after their
/// deletion.
fn measure_job_memory(
    prepared: &PreparedDaemon,
    jobs: u64,
    body: usize,
) -> io::Result<Vec<Sample>> {
    let pid = prepared.daemon.pid();
    let mut client = SetupClient::connect(prepared.daemon.address(), Body::plain(body))?;
    let empty = resident_bytes(pid)?;
    let ids = client.put(jobs, |_| (10, 0))?;
    let full = resident_bytes(pid)?;
    client.delete(&ids)?;
    thread::sleep(SETTLE_TIME);
    let left = resident_bytes(pid)?;
    Ok(vec![named([
        ("bytes_each", each(full.saturating_sub(empty), jobs)),
        ("megabytes_left", each(left, 1 << 20)),
    ])])
}

/// Measures, for `memory/connections`, the memory of connections that have each sent one command.
fn measure_connection_memory(
    prepared: &PreparedDaemon,
    connections: usize,
) -> io::Result<Vec<Sample>> {
    let pid = prepared.daemon.pid();
    let state = State { idle: connections, ..State::default() };
    // A first client causes, before the measurement, the allocations that are made only once.
    let mut first = Client::connect(prepared.daemon.address())?;
    for _ in 0..WARM_UP_COMMANDS {
        first.command("use default")?;
    }
    drop(first);
    let empty = resident_bytes(pid)?;
    let connected = state.build(prepared.daemon.address(), &mut |_| ())?;
    let full = resident_bytes(pid)?;
    drop(connected);
    thread::sleep(SETTLE_TIME);
    let left = resident_bytes(pid)?;
    Ok(vec![named([
        ("bytes_each", each(full.saturating_sub(empty), connections as u64)),
        ("megabytes_left", each(left, 1 << 20)),
    ])])
}

/// Measures, while one kick moves all delayed jobs, the longest time that another client waits.
fn kick(prepared: &PreparedDaemon, jobs: u64) -> io::Result<Sample> {
    let address = prepared.daemon.address();
    let put = Op::Put { priority: Priority::Fixed(10), delay: 0 };
    let others = Group {
        tubes: Tubes::Named("others".to_owned()),
        ..Group::new(1, 1, &[put, Op::Reserve, Op::Delete], Body::plain(64))
    };
    let mut load = Load::connect(address, &[others], false, 1)?;
    load.run(Until::time(Duration::from_millis(100)))?;
    let mut kicker = Client::connect(address)?;
    kicker.set_timeout(Duration::from_secs(60))?;
    kicker.send(format!("kick {jobs}\r\n"))?;
    let tally = load.run(Until::time(Duration::from_millis(700)))?;
    let line = kicker.line()?;
    if line != format!("KICKED {jobs}") {
        return Err(io::Error::other(format!("kick {jobs} was answered with {line:?}")));
    }
    Ok(named([("longest_wait", microseconds(tally.latency.max()))]))
}

/// Measures a restart: fills a binlog, stops the daemon, and measures the time and the CPU time
/// that a new daemon takes to restore the jobs and answer.
fn replay(target: &Target, config: &Config, flag: &str, state: &State) -> io::Result<Vec<Sample>> {
    let scratch = ScratchDir::new(Path::new(&config.scratch))?;
    let flags = target.binlog_flags(flag, scratch.path());
    let start = || config.cores.start(Placement::Apart, &target.program, &flags);
    let daemon = start()?;
    drop(state.build(daemon.address(), &mut |_| ())?);
    end(daemon);
    let mut samples = Vec::new();
    for _ in 0..RESTART_ROUNDS {
        let began = Instant::now();
        let daemon = start()?;
        let mut client = Client::connect(daemon.address())?;
        client.set_timeout(REPLAY_TIMEOUT)?;
        let answer = client.yaml("stats")?;
        let (time, cpu) = (began.elapsed().as_secs_f64(), Usage::of(daemon.pid())?.cpu);
        let expected = format!("current-jobs-ready: {}\n", state.ready);
        if !answer.contains(&expected) {
            return Err(io::Error::other(format!("no {expected:?} after the restart")));
        }
        samples.push(named([("seconds", time), ("cpu_seconds", cpu.as_secs_f64())]));
        end(daemon);
    }
    Ok(samples)
}

/// Ends a daemon that was measured without a load: by SIGTERM or, if it still runs after ten
/// seconds, by SIGKILL.
fn end(mut daemon: Daemon) {
    if daemon.signal(libc::SIGTERM).is_ok() {
        let _ = daemon.wait_exit(Duration::from_secs(10));
    }
}

/// Divides bytes of memory by a number of jobs or connections, or by the bytes of a MiB.
#[expect(clippy::cast_precision_loss, reason = "bytes stay below 2^53")]
fn each(bytes: u64, count: u64) -> f64 {
    bytes as f64 / count as f64
}
