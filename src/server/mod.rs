//! The daemon without its sockets: bytes and the present time go in; bytes and the next deadline
//! come out.
//!
//! This is the only place where all parts meet. The event loop calls the server in turns:
//!
//! - input: [`Server::open`], [`Server::feed`], [`Server::half_close`], [`Server::end_of_input`],
//!   [`Server::close`], [`Server::set_draining`], [`Server::tick`];
//! - [`Server::commit`] writes the turn's changes to the binlog;
//! - output: [`Server::next_dirty`] names connections with changed output or input state,
//!   [`Server::output`] the bytes to send, [`Server::next_deadline`] the time of the next call;
//! - [`Server::reclaim`] ends the turn: keys of closed connections may be reused.
//!
//! One event can cause large work: a long `kick` or `delete-tube`, many jobs due at once, a client
//! that disconnects with many reserved jobs or watched tubes. Such work is done in slices of
//! [`JOBS_PER_SLICE`] steps a turn. A job or tube keeps its old state for all clients until its
//! slice comes.
//!
//! Time is strictly increasing here: each command is dated at least a nanosecond later than the one
//! before, even within a turn. So equal delays keep their order, and a job just reserved has less
//! than its whole TTR left, as in the original.
//!
//! | module | contents |
//! |---|---|
//! | this file | connections: their input, their unsent output, whether a client has hung up |
//! | `dispatch`, `put` | the commands, each with its checks |
//! | `replies` | sends replies, and hands out jobs to clients that wait |
//! | `stats` | the answers to `stats`, `metrics`, `capabilities`; `list-jobs` |
//! | `admission` | how much memory must be left for each kind of growth |
//! | `background` | work done in slices: timers, long commands, disconnected clients |
//! | `binlog` | permits, records, commits; `Health`, with its names |
//! | `held` | `Dirty` connections; replies held until a commit, and whether one is needed |
//! | `gathering` | waits for more changes before a sync, and the clients that join it |
//! | `identity` | the process, and [`Settings`]: the flags that the server needs |

mod admission;
mod background;
mod binlog;
mod dispatch;
mod gathering;
mod held;
mod identity;
mod put;
mod replies;
mod stats;
#[cfg(test)]
mod testing;

use std::{io::IoSlice, time::Duration};

use ::log::{debug, info};

use self::{
    admission::Growing,
    background::Slices,
    held::{Dirty, Held},
    stats::Figures,
};
pub use self::{
    binlog::Health,
    identity::{Identity, Settings},
};
use crate::{
    clock::Time,
    collections::{Key, SmallArena},
    conn::{Conn, SLICES, Step},
    memory::{Bodies, Level, Supply},
    proto::Reply,
    queue::Queue,
    wal::{Jobs, Restored, Unavailable, Wal},
};

/// How many jobs one kind of large work moves in a turn. A tick handles the same number of timers
/// of each kind, or twice the number of commands since the last tick, if that is more. A command
/// sets at most one timer, so timers are late by a bounded time.
pub const JOBS_PER_SLICE: u32 = 1000;

/// The most commands of one connection that are executed before others get their share of the turn.
pub const COMMANDS_PER_CONNECTION: u32 = 512;

/// How many commands a turn executes over all connections; the share of one connection may exceed
/// this limit. These commands take a millisecond or two, and all other clients wait for that long.
pub const COMMANDS_PER_TURN: u32 = 1024;

/// How many pieces of memory a turn releases to the system. Releasing one takes some tens of
/// microseconds.
const RELEASES_PER_TURN: u32 = 16;

/// How many steps of a walk through tubes or clients are charged as one command.
const STEPS_PER_COMMAND: u32 = 64;

/// How long to wait before retrying work for which there was no memory.
pub const SHORTAGE_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How many bytes of an HTTP request a log line shows.
const HTTP_LOGGED_BYTES: usize = 20;

/// Why [`Server::feed`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedResult {
    /// The unconsumed bytes are incomplete, and must be fed again with more bytes after them.
    More,
    /// The connection has used up its share of the turn. The remaining bytes must be fed next turn.
    Later,
    /// The connection takes no input until [`Server::next_dirty`] names it.
    Paused,
    /// There is no memory for the next step. The unconsumed bytes must be fed again when there may
    /// be memory, after [`SHORTAGE_RETRY_DELAY`] at the latest.
    Short,
}

/// The whole daemon except its sockets and clock.
#[derive(Debug)]
pub struct Server {
    queue: Queue,
    /// The bodies of jobs, uploads and unsent replies.
    bodies: Bodies,
    wal: Option<Wal>,
    held: Held,
    /// Parallel to the queue's clients: a connection and its client have the same index.
    conns: SmallArena<Conn>,
    identity: Identity,
    settings: Settings,
    figures: Figures,
    is_draining: bool,
    /// The binlog's trouble, and the time since which it lasts, as of the last commit.
    trouble: Option<(Unavailable, Time)>,
    /// The latest instant at which a command or a step was executed.
    latest: Time,
    /// Commands executed since the last tick. A slow one is charged as several.
    commands_this_turn: u32,
    shortage: Shortage,
    slices: Slices,
    dirty: Dirty,
}

/// When to retry due work that lacked memory.
#[derive(Debug)]
struct Shortage {
    /// The time of the retry, while such work is deferred.
    until: Option<Time>,
    retry_delay: Duration,
}

/// Input.
impl Server {
    /// Makes a server without connections, jobs or binlog.
    pub fn new(identity: Identity, settings: Settings, now: Time) -> Self {
        Self::with_wal(identity, settings, Restored::default(), None, now)
    }

    /// Makes a server with the jobs of a binlog. The server hands out no jobs while the binlog is
    /// not sound. Restored jobs stay, even if they exceed the memory limit.
    pub fn with_wal(
        identity: Identity,
        settings: Settings,
        restored: Restored,
        wal: Option<Wal>,
        now: Time,
    ) -> Self {
        let Restored { mut queue, mut bodies } = restored;
        if wal.as_ref().is_some_and(|wal| !wal.is_sound()) {
            queue.freeze();
        }
        queue.start(now);
        bodies.limit = settings.memory_limit;
        Self {
            queue,
            bodies,
            wal,
            held: Held::default(),
            conns: SmallArena::default(),
            identity,
            settings,
            figures: Figures { started_at: now, ..Figures::default() },
            is_draining: false,
            trouble: None,
            latest: now,
            commands_this_turn: 0,
            shortage: Shortage { until: None, retry_delay: SHORTAGE_RETRY_DELAY },
            slices: Slices::default(),
            dirty: Dirty::default(),
        }
    }

    /// Takes memory from `supply` from now on.
    pub fn set_supply(&mut self, supply: Box<dyn Supply>) {
        self.bodies.memory.set_supply(supply);
    }

    /// From now on, retries work that lacked memory without a delay. For tests.
    pub fn retry_at_once(&mut self) {
        self.shortage.retry_delay = Duration::ZERO;
    }

    /// From now on, writes to memory as soon as it is kept for changes that cannot be refused,
    /// because resident memory is limited.
    pub fn keep_resident(&mut self) {
        self.bodies.memory.limits_resident = true;
        self.queue.is_resident = true;
    }

    /// How many connections take memory, including closed ones whose jobs have not all returned.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Whether resident memory is limited.
    pub fn limits_resident(&self) -> bool {
        self.bodies.memory.limits_resident
    }

    /// The latest instant used, a few nanoseconds after the last `now` given. For the simulator,
    /// which checks that all work due by this instant is done.
    pub fn latest(&self) -> Time {
        self.latest
    }

    /// Whether memory for a step has been refused since the last tick.
    pub fn lacks_memory(&self) -> bool {
        self.bodies.memory.has_refused(Level::Critical)
    }

    /// Adds a connection.
    pub fn open(&mut self) -> Key<Conn> {
        let key = self.conns.insert(Conn::default());
        let client = self.queue.join();
        assert_eq!(key.paired(), client, "connections and clients are added and removed together");
        key
    }

    /// Executes the commands in `bytes`, and returns how many bytes it consumed; the caller keeps
    /// the rest. Stops after `command_limit` commands, or fewer slow ones. `command_limit` is at
    /// most [`COMMANDS_PER_CONNECTION`].
    pub fn feed(
        &mut self,
        key: Key<Conn>,
        bytes: &[u8],
        command_limit: u32,
        now: Time,
    ) -> (usize, FeedResult) {
        let mut rest = bytes;
        let mut feed_result = FeedResult::Later;
        let end = self.commands_this_turn.saturating_add(command_limit);
        // If memory is short, clients that have read all their replies come first.
        let has_unsent = !self.conns[key].output.is_empty();
        let mut growing = if has_unsent { Growing::UnsentReplies } else { Growing::Step };
        while self.commands_this_turn < end {
            // After the last byte, a step takes no memory, and tells how the connection goes on.
            if !rest.is_empty() && self.admit(growing).is_err() {
                feed_result = FeedResult::Short;
                break;
            }
            growing = Growing::UnsentReplies;
            self.commands_this_turn += 1;
            match self.conns[key].step(&mut rest, &mut self.bodies) {
                Step::Line(line) => self.dispatch(key, line, &mut rest, now),
                Step::Http(line) => {
                    debug!("{key:?} sent HTTP and is closed");
                    if let Some(count) = self.figures.http_closed.pass(now) {
                        let start = line[..line.len().min(HTTP_LOGGED_BYTES)].escape_ascii();
                        info!("connections closed that sent HTTP: {count}, the last one {start}");
                    }
                    self.end_of_input(key);
                }
                Step::Body(put, body) => self.put(key, put, body, now),
                Step::Reject(error) => self.reply(key, error),
                Step::Abort => {
                    self.queue.stop_waiting(key.paired());
                    self.answer_waiting(key.paired(), Reply::ABORTED);
                }
                Step::More => {
                    feed_result = FeedResult::More;
                    break;
                }
                Step::Paused => {
                    feed_result = FeedResult::Paused;
                    break;
                }
            }
        }
        (bytes.len() - rest.len(), feed_result)
    }

    /// Handles the end of a client's sending side, which may be a full close. A `reserve` that
    /// waits gets no job; [`Server::half_close`] answers it.
    pub fn hang_up(&mut self, key: Key<Conn>) {
        self.conns[key].is_half_closed = true;
        if self.queue.client(key.paired()).is_waiting() {
            self.queue.stop_waiting(key.paired());
            self.conns[key].end_wait();
        }
    }

    /// Whether [`Server::hang_up`] was called for the connection.
    pub fn has_hung_up(&self, key: Key<Conn>) -> bool {
        self.conns[key].is_half_closed
    }

    /// Calls [`Server::hang_up`], and answers a waiting `reserve` with `TIMED_OUT`. Commands that
    /// the client sent before are still executed.
    pub fn half_close(&mut self, key: Key<Conn>) {
        self.hang_up(key);
        if self.conns[key].has_wait_ended() {
            self.answer_waiting(key.paired(), Reply::TIMED_OUT);
        }
    }

    /// Closes the connection once its replies are sent. All input must have been fed.
    pub fn end_of_input(&mut self, key: Key<Conn>) {
        if self.conns[key].is_waiting() {
            self.half_close(key);
        }
        self.conns[key].close(&mut self.bodies);
        self.mark_dirty(key);
    }

    /// Handles a connection whose socket is closed. The client's jobs return to their tubes, and
    /// its watches end: a first slice at once, the rest in later turns.
    pub fn close(&mut self, key: Key<Conn>, now: Time) {
        self.detach_long_commands(key);
        self.held.forget(key, &mut self.conns[key]);
        self.conns[key].forget(&mut self.bodies);
        self.queue.leave(key.paired());
        self.slices.disconnecting.push_back(key);
        let now = self.instant(now);
        self.process_disconnects(now);
    }

    /// Handles timers due at `now`, then the next slices of large work.
    pub fn tick(&mut self, now: Time) {
        let now = self.instant(now);
        self.bodies.begin_turn();
        self.shortage.until = None;
        if let Some(wal) = &mut self.wal {
            wal.shift_dates(&mut self.queue, JOBS_PER_SLICE as usize, now);
        }
        self.process_timers(now);
        self.slices.disconnect_steps = 0;
        self.process_disconnects(now);
        self.slices.long_steps = 0;
        // An unfinished command is appended to the queue again, so that each gets its turn.
        while self.slices.long_steps < JOBS_PER_SLICE {
            let Some(long) = self.slices.long_commands.pop_front() else { break };
            self.advance_long(long, now);
        }
        self.move_bodies();
    }
}

/// Output.
impl Server {
    /// Whether this turn has executed [`COMMANDS_PER_TURN`] commands.
    pub fn is_turn_over(&self) -> bool {
        self.commands_this_turn >= COMMANDS_PER_TURN
    }

    /// How many bytes of output are not sent yet.
    pub fn unsent(&self, key: Key<Conn>) -> usize {
        self.conns[key].output.len()
    }

    /// How many bytes of an incomplete body have arrived on the connection.
    pub fn received(&self, key: Key<Conn>) -> usize {
        self.conns[key].received()
    }

    /// How many bytes of output may be sent now. Replies that wait for the binlog may not.
    pub fn sendable(&self, key: Key<Conn>) -> usize {
        self.conns[key].output.sendable()
    }

    /// The first bytes to send, as slices for one `writev`, and the number of slices in use.
    pub fn output(&self, key: Key<Conn>) -> ([IoSlice<'_>; SLICES], usize) {
        self.conns[key].output.slices(&self.bodies)
    }

    /// Removes `count` bytes from the output, because they have been sent.
    pub fn sent(&mut self, key: Key<Conn>, count: usize) {
        self.conns[key].output.sent(count, &mut self.bodies);
    }

    /// Whether [`Server::feed`] would take input now.
    pub fn takes_input(&self, key: Key<Conn>) -> bool {
        self.conns[key].takes_input()
    }

    /// Whether all that remains to be done for the connection is to close its socket.
    pub fn is_finished(&self, key: Key<Conn>) -> bool {
        self.conns[key].is_finished()
    }

    /// Returns the next connection whose output or input state changed since it was last returned.
    pub fn next_dirty(&mut self) -> Option<Key<Conn>> {
        self.dirty.next(&mut self.conns)
    }

    /// When [`Server::tick`] or [`Server::commit`] has work to do; an instant in the past if there
    /// is work now.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.slices.has_releasable || self.bodies.should_move() {
            return Some(Time::AT_ONCE);
        }
        let binlog = self.wal.as_ref().and_then(Wal::next_deadline);
        let has_work =
            !(self.slices.long_commands.is_empty() && self.slices.disconnecting.is_empty());
        let work = has_work.then(Time::default);
        let due = [self.queue.next_deadline(), work].into_iter().flatten().min();
        let due = due.map(|at| at.max(self.shortage.until.unwrap_or_default()));
        [due, binlog].into_iter().flatten().min()
    }

    /// Ends a turn: keys of closed connections may be reused, and some unused memory is released.
    /// Before this call, the event loop must empty [`Server::next_dirty`] and drop all copies of
    /// those keys.
    pub fn reclaim(&mut self) {
        assert!(self.dirty.is_empty(), "a note may refer to a connection that is gone");
        for key in self.slices.reclaimable.drain(..) {
            self.conns.remove(key);
            self.queue.forget(key.paired());
        }
        self.slices.has_releasable = (0..RELEASES_PER_TURN).all(|_| self.release_one());
    }

    /// Answers every `put` with `DRAINING` from now on, or accepts jobs again.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Whether every `put` gets `DRAINING`.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The bodies, read-only.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// The jobs and their bodies, read-only.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs { queue: &self.queue, bodies: &self.bodies }
    }

    /// The queue, read-only.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Checks all invariants except the binlog's, and panics if one does not hold. O(all): for
    /// tests.
    pub fn check(&self) {
        self.queue.check();
        let handles: usize = self.conns.iter().map(|(_, conn)| conn.handles()).sum();
        let jobs = self.queue.jobs();
        let (all, of_jobs) = (self.bodies.counted, self.queue.job_bytes());
        let copied: u64 = self.conns.iter().map(|(_, conn)| conn.output.copied()).sum();
        assert!(all >= of_jobs + copied && (handles > 0 || all == of_jobs + copied));
        let bodies = self.bodies.check(|index| &self.queue.job(Key::from_index(index)).body);
        assert_eq!(bodies, jobs + handles, "no body is leaked");
    }
}

/// Steps that several commands share.
impl Server {
    /// Returns the time for one command: `now`, or one nanosecond after the last instant used if
    /// that is later.
    fn instant(&mut self, now: Time) -> Time {
        self.latest = self.next_instant(now);
        self.latest
    }

    /// Charges a walk of `steps` steps to this turn, as the number of commands that take as long.
    fn charge(&mut self, steps: usize) {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.commands_this_turn = self.commands_this_turn.saturating_add(steps / STEPS_PER_COMMAND);
    }
}
