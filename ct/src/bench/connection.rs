//! One connection of the load: it sends a batch, checks the replies, and continues with the next
//! batch.
//!
//! Buffers are kept from cycle to cycle, so that allocations do not slow the load. A batch is sent
//! with one write.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::group::{Group, Pacing, Until};
use super::op::{Context, Op};
use super::reader::{Body, Kind, Reader};
use super::tally::{LATENCY_MAX_NS, Tally};
use crate::{Prng, os};

/// The most replies of a batch that may arrive before the kernel wakes the load to read them.
const REPLIES_PER_READ: usize = 8;
/// The time to run (TTR) of all jobs, so long that no TTR ends during a measurement.
const TTR_SECONDS: u32 = 1_000_000;
/// The distance in `held` from one used job to the next: a prime, so that cycles use all jobs.
const HELD_STRIDE: usize = 7_919;

/// A group of connections with the steps of its cycle.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) group: Group,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    op: Op,
    expected: Kind,
    /// The smallest possible size of one reply in bytes.
    least: usize,
    /// The bytes of a whole batch; empty if each batch has different bytes.
    batch: Vec<u8>,
}

/// The state of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) tally: Tally,
    pub(super) prng: Prng,
    pub(super) stopping: bool,
    /// The number of cycles that may still begin.
    pub(super) cycles_left: u64,
    /// The number of connections that are within a cycle; workers are not counted.
    pub(super) active: usize,
    /// The number of cycles that paired producers may begin: one per completed cycle of a worker.
    pub(super) permits: u64,
    /// The number of cycles begun by producers, minus the number completed by workers.
    pub(super) unfinished: u64,
    /// When the last reply arrived, in nanoseconds of the load's clock.
    pub(super) last: u64,
}

/// A connection: its socket, and its position in the cycle.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: mio::net::TcpStream,
    /// The index of the connection's plan.
    pub(super) plan: usize,
    step: usize,
    /// The number of replies to the current batch that have not arrived yet.
    pub(super) awaited: usize,
    /// The time at which the batch was due; latencies are measured from this time.
    sent_at: u64,
    ids: Vec<u64>,
    held: Vec<u64>,
    /// The index in `held` of the first job that the next cycle uses.
    cursor: usize,
    reader: Reader,
    out: Vec<u8>,
    /// The number of bytes of the batch that have been written.
    written: usize,
    /// The number of received bytes at which the kernel wakes the load generator.
    low_water: usize,
}

impl Plan {
    /// Prepares the steps of a connection's cycle; if `bare`, every expected reply is `INSERTED 1`.
    pub(super) fn new(group: Group, bare: bool) -> Self {
        let steps = group.cycle.iter().map(|&op| Step::new(op, &group, bare)).collect();
        Self { group, steps }
    }
}

impl Step {
    /// Prepares a step of the cycle: its command, the expected reply and, if every
    /// batch has the same bytes, these bytes.
    fn new(op: Op, group: &Group, bare: bool) -> Self {
        let expected = if bare { Kind::Inserted } else { op.answer() };
        let body = if expected == Kind::Reserved { group.body.bytes.len() } else { 0 };
        let mut batch = Vec::new();
        if op.is_constant(&group.body) {
            encode(&mut batch, op, &mut vec![0; group.depth], &group.body, 0, &mut Prng::new(0));
        }
        Self { op, expected, least: expected.least_bytes() + body, batch }
    }
}

/// Appends the bytes of a connection's batch to `out`: one command for each id.
fn encode(out: &mut Vec<u8>, op: Op, ids: &mut [u64], body: &Body, now: u64, prng: &mut Prng) {
    let mut context = Context { body, ttr: TTR_SECONDS, now, prng };
    for id in ids {
        op.encode(out, id, &mut context);
    }
}

impl Run {
    /// Makes the state that the connections of a load share, before the first run.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            tally: Tally::new(),
            prng: Prng::new(seed),
            stopping: false,
            cycles_left: 0,
            active: 0,
            permits: 0,
            unfinished: 0,
            last: 0,
        }
    }

    /// Begins a run of the load's connections; its random numbers continue the previous run's
    /// sequence.
    pub(super) fn begin(&mut self, until: Until, now: u64) {
        self.stopping = false;
        self.cycles_left = until.cycles;
        self.active = 0;
        self.permits = 0;
        self.unfinished = 0;
        self.last = now;
    }
}

impl Connection {
    /// Makes a connection of the load from a socket on which no reply is due; `held` has the ids of
    /// the jobs that are reserved on the socket.
    pub(super) fn new(
        stream: TcpStream,
        plan: usize,
        group: &Group,
        held: Vec<u64>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            socket: mio::net::TcpStream::from_std(stream),
            plan,
            step: 0,
            awaited: 0,
            sent_at: 0,
            ids: vec![0; group.depth],
            held,
            cursor: 0,
            reader: Reader::default(),
            out: Vec::new(),
            written: 0,
            low_water: 1,
        })
    }

    /// Sends the first batch of a connection's cycle that should begin at `now`.
    pub(super) fn begin_cycle(&mut self, plan: &Plan, run: &mut Run, now: u64) -> io::Result<()> {
        self.step = 0;
        if !plan.group.waits {
            run.active += 1;
            run.unfinished += plan.group.depth as u64;
            run.cycles_left = run.cycles_left.saturating_sub(plan.group.depth as u64);
        }
        self.load_held();
        self.begin_step(plan, run, now)
    }

    /// Sends the batch of the connection's current step.
    fn begin_step(&mut self, plan: &Plan, run: &mut Run, now: u64) -> io::Result<()> {
        let step = &plan.steps[self.step];
        self.awaited = plan.group.depth;
        self.sent_at = now;
        self.written = 0;
        if step.batch.is_empty() {
            self.out.clear();
            let body = &plan.group.body;
            encode(&mut self.out, step.op, &mut self.ids, body, now, &mut run.prng);
        }
        self.raise_low_water(plan)?;
        self.flush(plan)
    }

    /// Writes as many of the batch's unsent bytes as the connection's socket takes.
    pub(super) fn flush(&mut self, plan: &Plan) -> io::Result<()> {
        let batch = &plan.steps[self.step].batch;
        let output = if batch.is_empty() { &self.out } else { batch };
        while self.written < output.len() {
            match self.socket.write(&output[self.written..]) {
                Ok(length) => self.written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads until the connection's socket is empty; returns true if the connection is now between
    /// two cycles.
    pub(super) fn receive(
        &mut self,
        plan: &Plan,
        run: &mut Run,
        buffer: &mut [u8],
        now: u64,
    ) -> io::Result<bool> {
        loop {
            let length = match self.socket.read(buffer) {
                Ok(0) => return Err(io::Error::other("the daemon closed a connection")),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            run.last = now;
            if self.take_replies(plan, run, &buffer[..length], now)? {
                return Ok(true);
            }
            if length < buffer.len() {
                return Ok(false);
            }
        }
    }

    /// Takes the replies to the batch from received bytes, and begins the next step after the last
    /// reply.
    fn take_replies(
        &mut self,
        plan: &Plan,
        run: &mut Run,
        mut rest: &[u8],
        now: u64,
    ) -> io::Result<bool> {
        let step = &plan.steps[self.step];
        let before = self.awaited;
        if before == 0 {
            return Err(io::Error::other("the daemon sent bytes unasked"));
        }
        while let Some(reply) =
            self.reader.take(&mut rest, &plan.group.body).map_err(io::Error::other)?
        {
            if reply.kind != step.expected || self.awaited == 0 {
                let message = format!("{:?} was answered with {reply:?}", step.op);
                return Err(io::Error::other(message));
            }
            if step.op.yields_id() {
                let place = self.ids.len() - self.awaited;
                self.ids[place] = reply.number;
            }
            if reply.stamp > 0 {
                run.tally.sojourn.saturating_record(now.saturating_sub(reply.stamp));
            }
            self.awaited -= 1;
        }
        let count = (before - self.awaited) as u64;
        run.tally.commands += count;
        if plan.group.timed && !(plan.group.waits && self.step == 0) {
            let latency = now.saturating_sub(self.sent_at).min(LATENCY_MAX_NS);
            run.tally.latency.record_n(latency, count).expect("below the limit");
        }
        if self.awaited > 0 {
            self.raise_low_water(plan)?;
            return Ok(false);
        }
        if !self.reader.is_between_replies() {
            return Err(io::Error::other("the daemon sent more bytes than the expected replies"));
        }
        self.next_step(plan, run, now)
    }

    /// Begins the next step of the connection's cycle, or completes the cycle.
    fn next_step(&mut self, plan: &Plan, run: &mut Run, now: u64) -> io::Result<bool> {
        self.step += 1;
        if self.step < plan.steps.len() {
            self.begin_step(plan, run, now)?;
            return Ok(false);
        }
        run.tally.cycles += plan.group.depth as u64;
        self.store_held();
        if plan.group.waits {
            run.permits += 1;
            run.unfinished = run.unfinished.saturating_sub(plan.group.depth as u64);
        } else {
            run.active -= 1;
            if run.stopping || run.cycles_left == 0 || plan.group.pacing != Pacing::Closed {
                self.step = 0;
                return Ok(true);
            }
        }
        self.begin_cycle(plan, run, now)?;
        Ok(false)
    }

    /// Asks the kernel not to wake the load for each single reply of a connection's batch.
    ///
    /// If each reply woke the load generator, it could not keep up with a daemon that writes each
    /// reply separately, and the wake-ups would cost that daemon CPU time. The load generator must
    /// not wait for all replies: until it reads, its kernel acknowledges nothing, and only some ten
    /// small packets may be unacknowledged.
    fn raise_low_water(&mut self, plan: &Plan) -> io::Result<()> {
        if plan.group.depth == 1 {
            return Ok(());
        }
        let least = plan.steps[self.step].least;
        let more = (self.awaited - 1).min(REPLIES_PER_READ - 1);
        let bytes = (self.reader.missing_bytes(least) + more * least).max(1);
        if bytes != self.low_water {
            self.low_water = bytes;
            os::set_receive_low_water(&self.socket, bytes)?;
        }
        Ok(())
    }

    /// Copies to `ids` the ids of the connection's held jobs that this cycle uses.
    fn load_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        for slot in &mut self.ids {
            *slot = self.held[self.cursor];
            self.cursor = (self.cursor + HELD_STRIDE) % self.held.len();
        }
    }

    /// Removes from the list `held` the jobs that the cycle used, and adds the jobs that the
    /// connection has at the end of the cycle.
    fn store_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let length = self.held.len();
        let back = (HELD_STRIDE * self.ids.len()) % length;
        let mut cursor = (self.cursor + length - back) % length;
        for slot in &self.ids {
            self.held[cursor] = *slot;
            cursor = (cursor + HELD_STRIDE) % length;
        }
    }
}

#[cfg(test)]
impl Connection {
    /// Returns the sorted ids of the jobs that the connection holds; valid only between two cycles.
    pub(super) fn held_ids(&self) -> Vec<u64> {
        let mut ids = self.held.clone();
        ids.sort_unstable();
        ids
    }
}
