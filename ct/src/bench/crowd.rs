//! Measures whether a command costs more on a crowded daemon. The same load runs on an empty daemon
//! and on a daemon with thousands of tubes, thousands of blocked workers and a million jobs.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use super::group::{Group, Until};
use super::load::Load;
use super::measure::{Cores, Figures, Placement, SATURATED_SHARE};
use super::op::{Op, Priority};
use super::reader::Body;
use super::setup::SetupClient;
use super::state::State;
use super::stats::{Spread, pairwise_ratios};
use crate::{Daemon, Program};

/// Pipeline depths, tried in this order until a depth saturates both daemons.
const DEPTHS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The parameters of the comparison.
#[derive(Debug, Clone)]
pub struct Config {
    /// The daemon.
    pub program: Program,
    /// The tubes, jobs and connections that crowd the second daemon.
    pub background: State,
    /// The number of connections of the load.
    pub active: usize,
    /// The number of measurements of each daemon.
    pub rounds: usize,
    /// The duration of a measurement.
    pub window: Duration,
    /// The pipeline depth; `None` means the smallest depth that saturates both daemons.
    pub depth: Option<usize>,
}

/// A daemon with its load and its background connections.
#[derive(Debug)]
struct LoadedDaemon {
    // Fields are dropped from top to bottom, so connections close before the daemon ends.
    load: Load,
    _background: Vec<SetupClient>,
    daemon: Daemon,
}

/// The result of the comparison.
#[derive(Debug)]
pub struct Outcome {
    /// A few lines with all figures, and with the ratio of CPU times.
    pub text: String,
    /// Whether the load failed to saturate one of the daemons; if so, the ratio is meaningless.
    pub is_unsaturated: bool,
}

/// Measures an empty and a crowded daemon alternately, with the same load.
pub fn compare(config: &Config, progress: &mut dyn FnMut(&str)) -> io::Result<Outcome> {
    let cores = Cores::take()?;
    progress("starting the empty daemon");
    let empty = cores.start(Placement::Apart, &config.program, &[])?;
    progress("starting the crowded daemon");
    let crowded = cores.start(Placement::Apart, &config.program, &[])?;
    let connections = config.background.build(crowded.address(), progress)?;
    let depth = match config.depth {
        Some(depth) => depth,
        None => find_depth(config, [&empty, &crowded], progress)?,
    };
    let load = |daemon: &Daemon, seed| {
        let groups = [active_group(config, depth)];
        let mut load = Load::connect(daemon.address(), &groups, false, seed)?;
        load.busy_poll();
        Ok::<_, io::Error>(load)
    };
    let mut loaded = [
        LoadedDaemon { load: load(&empty, 1)?, _background: Vec::new(), daemon: empty },
        LoadedDaemon { load: load(&crowded, 2)?, _background: connections, daemon: crowded },
    ];
    let mut rounds = Vec::new();
    for round in 0..=config.rounds {
        progress(&format!("depth {depth}, round {round} of {}", config.rounds));
        let [empty, crowded] = &mut loaded;
        let window = Until::time(config.window);
        let pair = [
            Figures::measure(&mut empty.load, empty.daemon.pid(), window)?,
            Figures::measure(&mut crowded.load, crowded.daemon.pid(), window)?,
        ];
        // Drops the figures of the first round, which only warms up caches and memory.
        if round > 0 {
            rounds.push(pair);
        }
    }
    Ok(report(config, depth, &rounds))
}

impl Config {
    /// Makes the usual crowd: 10,000 tubes with a delayed job each, 10,000 blocked connections and
    /// a million ready jobs. Half of the ready jobs are in the load's tube, and less urgent than
    /// the load's jobs.
    pub fn new(program: Program) -> Self {
        let background = State {
            tubes: 10_000,
            blocked: 10_000,
            ready_elsewhere: 500_000,
            ready: 500_000,
            priority: Priority::Fixed(1_000),
            ..State::default()
        };
        let window = Duration::from_secs(1);
        Self { program, background, active: 10, rounds: 7, window, depth: None }
    }
}

/// Makes the group of connections whose commands are measured on the empty or the crowded daemon.
fn active_group(config: &Config, depth: usize) -> Group {
    let put = Op::Put { priority: Priority::Fixed(10), delay: 0 };
    let body = Body::plain(config.background.body);
    Group::new(config.active, depth, &[put, Op::Reserve, Op::Delete], body)
}

/// Returns the smallest depth that saturates both the empty and the crowded daemon. If no depth
/// saturates both, returns the depth that came closest to saturation.
fn find_depth(
    config: &Config,
    daemons: [&Daemon; 2],
    progress: &mut dyn FnMut(&str),
) -> io::Result<usize> {
    let mut best = (0.0, DEPTHS[0]);
    for depth in DEPTHS {
        let mut busy = f64::INFINITY;
        for daemon in daemons {
            let groups = [active_group(config, depth)];
            let mut load = Load::connect(daemon.address(), &groups, false, 3)?;
            load.busy_poll();
            load.run(Until::time(Duration::from_millis(100)))?;
            let figures =
                Figures::measure(&mut load, daemon.pid(), Until::time(Duration::from_millis(300)))?;
            progress(&format!("depth {depth}: {}", line(&figures)));
            busy = figures.daemon_busy().min(busy);
        }
        if busy > best.0 {
            best = (busy, depth);
        }
        if busy >= SATURATED_SHARE + 0.03 {
            return Ok(depth);
        }
    }
    Ok(best.1)
}

/// Formats the figures of the empty or the crowded daemon in one line.
fn line(figures: &Figures) -> String {
    format!(
        "{:8.0} commands/s, daemon {:6.3} µs/command, busy {:5.1} %, waited {:4.1} %; \
         load {:6.3} µs/command, busy {:5.1} %",
        figures.rate(),
        figures.daemon_cpu(),
        figures.daemon_busy() * 100.0,
        figures.daemon_waited() * 100.0,
        figures.load_cpu(),
        figures.load_busy() * 100.0,
    )
}

/// Reports the figures of the empty and the crowded daemon, and their ratio.
fn report(config: &Config, depth: usize, rounds: &[[Figures; 2]]) -> Outcome {
    let mut is_unsaturated = false;
    let State { tubes, blocked, ready_elsewhere, ready, .. } = config.background;
    let mut text = format!(
        "{} active connections, depth {depth}, put, reserve, delete; the crowd: {tubes} tubes with \
         a delayed job, {blocked} blocked connections, {ready_elsewhere} ready jobs elsewhere and \
         {ready} after theirs\n",
        config.active
    );
    for (round, pair) in rounds.iter().enumerate() {
        for (name, figures) in ["empty  ", "crowded"].iter().zip(pair) {
            let _ = writeln!(text, "{:2} {name} {}", round + 1, line(figures));
        }
    }
    for (side, name) in ["empty  ", "crowded"].iter().enumerate() {
        let cpu: Vec<f64> = rounds.iter().map(|pair| pair[side].daemon_cpu()).collect();
        let busy: Vec<f64> = rounds.iter().map(|pair| pair[side].daemon_busy()).collect();
        let (cpu, busy) = (Spread::of(&cpu), Spread::of(&busy));
        let _ = writeln!(
            text,
            "{name} {:.3} µs CPU a command ({:.3} to {:.3}), core busy {:.1} % ({:.1} to {:.1})",
            cpu.median,
            cpu.least,
            cpu.most,
            busy.median * 100.0,
            busy.least * 100.0,
            busy.most * 100.0
        );
        if busy.median < SATURATED_SHARE {
            is_unsaturated = true;
            let _ = writeln!(text, "{name} VOID: the daemon's core was not saturated");
        }
    }
    let pairs = rounds.iter().map(|pair| (pair[0].daemon_cpu(), pair[1].daemon_cpu()));
    let ratio = Spread::of(&pairwise_ratios(pairs));
    let _ = writeln!(
        text,
        "ratio   {:.3} (median of {} pairs; {:.3} to {:.3})",
        ratio.median,
        rounds.len(),
        ratio.least,
        ratio.most
    );
    Outcome { text, is_unsaturated }
}
