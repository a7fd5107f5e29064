//! Groups of connections: their number and commands, and when their cycles begin.

use std::time::Duration;

use super::op::Op;
use super::reader::Body;

/// Connections that repeat the same cycle of commands.
#[derive(Debug, Clone)]
pub struct Group {
    /// The number of connections.
    pub connections: usize,
    /// The number of commands in flight on each connection.
    pub depth: usize,
    /// The commands that each connection repeats.
    pub cycle: Vec<Op>,
    /// The body of the jobs.
    pub body: Body,
    /// The tubes that each connection uses and watches.
    pub tubes: Tubes,
    /// The number of jobs that each connection reserves before the run and uses in its cycles.
    pub hold: u64,
    /// Whether these connections may wait in `reserve` for jobs that other connections put.
    pub waits: bool,
    /// When the cycles of the group begin.
    pub pacing: Pacing,
    /// Whether the group's latencies are recorded.
    pub timed: bool,
}

impl Group {
    /// Makes a closed-loop group that uses and watches `default`.
    pub fn new(connections: usize, depth: usize, cycle: &[Op], body: Body) -> Self {
        Self {
            connections,
            depth,
            cycle: cycle.to_vec(),
            body,
            tubes: Tubes::Default,
            hold: 0,
            waits: false,
            pacing: Pacing::Closed,
            timed: true,
        }
    }

    /// Makes a group of workers that wait for jobs and delete them.
    pub fn workers(connections: usize, body: Body) -> Self {
        Self { waits: true, ..Self::new(connections, 1, &[Op::Reserve, Op::Delete], body) }
    }
}

/// When the cycles of a group begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pacing {
    /// Each connection begins a cycle as soon as its previous cycle has ended.
    Closed,
    /// All connections together begin this many cycles a second, at fixed times.
    Open(f64),
    /// A free connection begins a cycle whenever a worker of another group has completed a cycle.
    Paired,
}

/// Which tubes a connection uses and watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tubes {
    /// `default` alone.
    Default,
    /// This tube alone.
    Named(String),
    /// Each connection has a tube of its own.
    Own,
    /// Each connection uses `default`, and watches `default` and this many other tubes.
    Many(u64),
}

/// The limits of a run; when one of them is reached, no further cycle begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// The maximum duration of the run.
    pub time: Duration,
    /// The maximum number of cycles; at depth n, a connection performs n cycles at once.
    pub cycles: u64,
}

impl Until {
    /// Limits the run of a group to a duration.
    pub fn time(time: Duration) -> Self {
        Self { time, cycles: u64::MAX }
    }

    /// Limits the run of a group to a number of cycles and to a minute.
    pub fn cycles(cycles: u64) -> Self {
        Self { time: Duration::from_secs(60), cycles }
    }
}
