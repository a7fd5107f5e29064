//! What connections are told to do: how many, how often, which commands, and for how long.

use std::time::Duration;

use super::op::Op;
use super::reader::Body;

/// Connections that all do the same.
#[derive(Debug, Clone)]
pub struct Group {
    /// How many.
    pub connections: usize,
    /// How many commands each has under way.
    pub depth: usize,
    /// What each repeats.
    pub cycle: Vec<Op>,
    /// What its jobs hold.
    pub body: Body,
    /// Which tubes it uses and watches.
    pub tubes: Tubes,
    /// How many jobs each reserves beforehand; its cycles act on these.
    pub hold: u64,
    /// Whether its `reserve` may wait for other connections' jobs, as a worker's does.
    pub waits: bool,
    /// When its cycles begin.
    pub pacing: Pacing,
    /// Whether its replies count among the latencies.
    pub timed: bool,
}

impl Group {
    /// Makes a group in closed loop that uses and watches `default`.
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
    /// Each connection begins one when it has ended one.
    Closed,
    /// So many a second, by all connections together, at fixed times.
    Open(f64),
    /// One when a worker has ended one.
    Paired,
}

/// Which tubes a connection uses and watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tubes {
    /// `default`, as each connection does at first.
    Default,
    /// One of this name.
    Named(String),
    /// One of its own.
    Own,
    /// `default`, and so many more are watched.
    Many(u64),
}

/// How long a run goes on: no cycle begins when either is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// This time has passed.
    pub time: Duration,
    /// So many cycles have begun, a batch counted by its commands.
    pub cycles: u64,
}

impl Until {
    /// Goes on for so long.
    pub fn time(time: Duration) -> Self {
        Self { time, cycles: u64::MAX }
    }

    /// Goes on until so many cycles have begun, and not longer than a minute.
    pub fn cycles(cycles: u64) -> Self {
        Self { time: Duration::from_secs(60), cycles }
    }
}
