//! Groups of connections: how many, which commands, how often, and for how long.

use std::time::Duration;

use super::op::Op;
use super::reader::Body;

/// Connections with the same cycle.
#[derive(Debug, Clone)]
pub struct Group {
    /// The number of connections.
    pub connections: usize,
    /// Commands in flight on each connection.
    pub depth: usize,
    /// The commands that each connection repeats.
    pub cycle: Vec<Op>,
    /// The body of the jobs.
    pub body: Body,
    /// The tubes that each connection uses and watches.
    pub tubes: Tubes,
    /// Number of jobs that each connection reserves beforehand and uses in its cycles.
    pub hold: u64,
    /// Whether these connections may wait in `reserve` for jobs of other connections.
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
    /// On each connection, as soon as its previous cycle has ended.
    Closed,
    /// At fixed times: this many cycles a second, on all connections together.
    Open(f64),
    /// One cycle for each cycle that a worker has completed.
    Paired,
}

/// Which tubes a connection uses and watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tubes {
    /// `default` alone.
    Default,
    /// This tube alone.
    Named(String),
    /// A tube for each connection.
    Own,
    /// `default` is used; this many further tubes are watched.
    Many(u64),
}

/// The limits of a run: no cycle begins once either is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// The duration.
    pub time: Duration,
    /// The number of cycles; at depth n, a connection performs n cycles at once.
    pub cycles: u64,
}

impl Until {
    /// Limits a run by time.
    pub fn time(time: Duration) -> Self {
        Self { time, cycles: u64::MAX }
    }

    /// Limits a run by cycles, and to a minute.
    pub fn cycles(cycles: u64) -> Self {
        Self { time: Duration::from_secs(60), cycles }
    }
}
