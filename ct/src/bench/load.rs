//! The load: many connections on one event loop, each repeating its cycle of commands.
//!
//! A connection sends commands of one kind in a batch, whose size is the connection's depth. After
//! all replies to the batch, the connection sends the next command of its cycle for each job in the
//! replies.
//!
//! In a closed loop, each cycle begins when the previous cycle has ended, so the daemon sets the
//! pace. In an open loop, cycles begin at fixed times, even if the daemon is late. If no connection
//! is free at the time fixed for a cycle, the cycle begins later, but its latency counts from the
//! fixed time. Paired producers put a job whenever a worker has deleted a job, so each producer has
//! one job in flight.
//!
//! The load uses the event loop of mio, as our daemon does. Readiness is edge-triggered; a short
//! read means that the socket is empty.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use super::connection::{Connection, Plan, Run};
use super::group::{Group, Pacing, Tubes, Until};
use super::reader::Kind;
use super::setup::SetupClient;
use super::tally::{Tally, nanoseconds};

/// Time limit of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for connecting all groups and reserving their jobs.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of one read.
const READ_BYTES: usize = 256 * 1024;
/// Connections to one daemon, for one or several runs.
#[derive(Debug)]
pub struct Load {
    poll: Poll,
    events: Events,
    plans: Vec<Plan>,
    queues: Vec<Queue>,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    epoch: Instant,
    run: Run,
    /// See [`Load::busy_poll`].
    busy_polls: bool,
}

impl Load {
    /// Connects all groups of a load to a daemon and brings each connection to the start of its
    /// cycle.
    ///
    /// `bare` is true for the bare responder, which answers `INSERTED 1` to every command.
    pub fn connect(address: &str, groups: &[Group], bare: bool, seed: u64) -> io::Result<Self> {
        let poll = Poll::new()?;
        let deadline = Instant::now() + SETUP_TIMEOUT;
        let mut connections = Vec::new();
        for (plan, group) in groups.iter().enumerate() {
            for number in 0..group.connections {
                let mut client = SetupClient::connect(address, group.body.clone())?;
                client.set_deadline(deadline);
                let held = if bare { Vec::new() } else { prepare(&mut client, group, number)? };
                if bare || group.tubes == Tubes::Default {
                    wait_until_accepted(&mut client, number, bare)?;
                }
                connections.push(Connection::new(client.into_stream(), plan, group, held)?);
            }
        }
        for (index, connection) in connections.iter_mut().enumerate() {
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut connection.socket, Token(index), interest)?;
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            plans: groups.iter().map(|group| Plan::new(group.clone(), bare)).collect(),
            queues: groups.iter().map(Queue::new).collect(),
            connections,
            buffer: vec![0; READ_BYTES],
            epoch: Instant::now(),
            run: Run::new(seed),
            busy_polls: false,
        })
    }

    /// Repeats the cycles of all connections until a limit is reached, completes the cycles that
    /// have begun, and returns the counters.
    ///
    /// Fails if a reply is unexpected or missing, or if cycles do not end in time; the load cannot
    /// be used after a failure.
    pub fn run(&mut self, until: Until) -> io::Result<Tally> {
        let start = self.now();
        self.run.begin(until, start);
        let end = start + nanoseconds(until.time);
        self.begin_cycles(start)?;
        loop {
            let now = self.now();
            if now >= end || self.run.cycles_left == 0 {
                self.run.stopping = true;
            }
            if !self.run.stopping {
                self.begin_due(now)?;
            } else if self.run.active == 0 && (self.run.unfinished == 0 || !self.has_workers()) {
                break;
            } else if now > end + nanoseconds(REPLY_TIMEOUT) * 2 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, self.silence_message()));
            }
            self.poll_once(now)?;
        }
        let mut tally = std::mem::replace(&mut self.run.tally, Tally::new());
        tally.wall = Duration::from_nanos(self.run.last.saturating_sub(start));
        Ok(tally)
    }

    /// Changes the load to busy polling: it polls in a loop and never sleeps. On a quiet machine, a
    /// sleeping core wakes slowly, and a load that is always late cannot saturate a daemon.
    pub fn busy_poll(&mut self) {
        self.busy_polls = true;
    }

    /// Polls once and serves the ready connections of the load.
    fn poll_once(&mut self, now: u64) -> io::Result<()> {
        let next = self.time_to_next(now);
        if self.busy_polls {
            let asked = nanoseconds(self.epoch.elapsed());
            while self.events.is_empty() && self.now() < asked + nanoseconds(REPLY_TIMEOUT) {
                self.poll.poll(&mut self.events, Some(Duration::ZERO))?;
            }
            let served = self.serve();
            self.events.clear();
            return served;
        }
        match self.poll.poll(&mut self.events, Some(next.unwrap_or(REPLY_TIMEOUT))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        if self.events.is_empty() && next.is_none() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, self.silence_message()));
        }
        self.serve()
    }

    /// Sends and receives on the ready connections of the load.
    fn serve(&mut self) -> io::Result<()> {
        for event in &self.events {
            let index = event.token().0;
            let connection = &mut self.connections[index];
            let plan = &self.plans[connection.plan];
            let now = nanoseconds(self.epoch.elapsed());
            if event.is_writable() && connection.awaited > 0 {
                connection.flush(plan)?;
            }
            if event.is_readable() {
                let ended = connection.receive(plan, &mut self.run, &mut self.buffer, now)?;
                if ended {
                    self.queues[connection.plan].free.push_back(index);
                }
            }
        }
        Ok(())
    }

    /// Begins a cycle on each connection of the load, except in an open loop and on workers that
    /// still wait.
    fn begin_cycles(&mut self, now: u64) -> io::Result<()> {
        for (queue, plan) in self.queues.iter_mut().zip(&self.plans) {
            queue.begin(plan.group.pacing, now);
        }
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let (plan, queue) = (&self.plans[connection.plan], &mut self.queues[connection.plan]);
            let waits = plan.group.waits;
            if queue.schedule.is_some() || (!waits && self.run.cycles_left == 0) {
                queue.free.push_back(index);
            } else if connection.awaited == 0 {
                connection.begin_cycle(plan, &mut self.run, now)?;
            }
        }
        Ok(())
    }

    /// Begins the load's cycles that are due, and a paired producer's cycle for each cycle that a
    /// worker has completed.
    fn begin_due(&mut self, now: u64) -> io::Result<()> {
        for (queue, plan) in self.queues.iter_mut().zip(&self.plans) {
            while self.run.cycles_left > 0 {
                let Some((index, intended)) = queue.next_due(now) else { break };
                self.connections[index].begin_cycle(plan, &mut self.run, intended)?;
            }
            let paired = plan.group.pacing == Pacing::Paired;
            while paired && self.run.permits > 0 && self.run.cycles_left > 0 {
                let Some(index) = queue.free.pop_front() else { break };
                self.run.permits -= 1;
                self.connections[index].begin_cycle(plan, &mut self.run, now)?;
            }
        }
        Ok(())
    }

    /// Returns how long the load may sleep before the next cycle of an open loop; `None` without
    /// such a cycle. The sleep ends shortly before that cycle, because the kernel may wake the loop
    /// too late.
    fn time_to_next(&self, now: u64) -> Option<Duration> {
        let queues = self.queues.iter().filter(|queue| !queue.free.is_empty());
        let schedules = queues.filter_map(|queue| queue.schedule.as_ref());
        let next = schedules.map(Schedule::next_at).min().filter(|_| !self.run.stopping)?;
        let left = Duration::from_nanos(next.saturating_sub(now));
        let left = left.saturating_sub(Duration::from_millis(2));
        Some(Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(0)))
    }

    /// Returns whether any group of the load has workers that wait for jobs.
    fn has_workers(&self) -> bool {
        self.plans.iter().any(|plan| plan.group.waits)
    }

    /// Makes the message about a daemon that no longer replies to the load.
    fn silence_message(&self) -> String {
        let awaited: usize = self.connections.iter().map(|connection| connection.awaited).sum();
        format!("the daemon is silent while {awaited} replies are due")
    }

    /// Returns the time of the load's clock in nanoseconds.
    fn now(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }
}

/// The connections of a group that are free for the next cycles.
#[derive(Debug)]
struct Queue {
    /// The connections that are between two cycles.
    free: VecDeque<usize>,
    /// When cycles begin in an open loop; `None` in a closed loop and for paired connections.
    schedule: Option<Schedule>,
}

/// When the cycles of an open loop begin.
#[derive(Debug)]
struct Schedule {
    /// The time of the next cycle in nanoseconds of the load's clock; a float, for exact rates.
    next: f64,
    interval: f64,
}

impl Queue {
    /// Makes an empty queue for the free connections of a group.
    fn new(group: &Group) -> Self {
        Self { free: VecDeque::with_capacity(group.connections), schedule: None }
    }

    /// Prepares the queue of a group for a run; in an open loop, makes the schedule of its cycles.
    fn begin(&mut self, pacing: Pacing, now: u64) {
        self.free.clear();
        self.schedule = match pacing {
            Pacing::Open(rate) => Some(Schedule::new(now, rate)),
            Pacing::Closed | Pacing::Paired => None,
        };
    }

    /// Takes a free connection of a group for a cycle that is due. Returns the connection's index
    /// and the time at which the cycle was due.
    fn next_due(&mut self, now: u64) -> Option<(usize, u64)> {
        let schedule = self.schedule.as_mut()?;
        let intended = Some(schedule.next_at()).filter(|&next| next <= now)?;
        let index = self.free.pop_front()?;
        schedule.next += schedule.interval;
        Some((index, intended))
    }
}

impl Schedule {
    /// Makes the schedule of an open loop, with this many cycles a second.
    #[expect(clippy::cast_precision_loss, reason = "runs are shorter than 2^53 nanoseconds")]
    fn new(now: u64, rate: f64) -> Self {
        Self { next: now as f64, interval: 1e9 / rate }
    }

    /// Returns the time on the load's clock at which the next cycle of an open loop begins.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, positive")]
    fn next_at(&self) -> u64 {
        self.next as u64
    }
}

/// Selects the tubes of a connection of the load, reserves its jobs, and returns their ids.
fn prepare(client: &mut SetupClient, group: &Group, number: usize) -> io::Result<Vec<u64>> {
    match &group.tubes {
        Tubes::Default => {}
        Tubes::Named(tube) => client.switch_to_tube(tube)?,
        Tubes::Own => client.switch_to_tube(&format!("own-{number}"))?,
        Tubes::Many(tubes) => {
            let watch = |index, out: &mut Vec<u8>| {
                let _ = write!(out, "watch many-{index}\r\n");
            };
            client.send(*tubes, Kind::Watching, watch, |_| ())?;
        }
    }
    client.reserve(group.hold)
}

/// At every hundredth connection of the load, waits until the daemon has accepted all connections
/// so far, so that the listener's backlog does not overflow.
fn wait_until_accepted(client: &mut SetupClient, number: usize, bare: bool) -> io::Result<()> {
    let kind = if bare { Kind::Inserted } else { Kind::Using };
    if number % 100 == 99 { client.command("use default\r\n", kind) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
