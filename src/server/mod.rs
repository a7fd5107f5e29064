//! The daemon without its sockets: gets bytes and the time, returns bytes and the next deadline.
//!
//! The server carries out commands with the queue and the binlog. In a turn, the event loop calls:
//!
//! - for input, [`Server::open`], [`Server::feed`], [`Server::hang_up`], [`Server::half_close`],
//!   [`Server::end_of_input`], [`Server::close`], [`Server::set_draining`], [`Server::tick`];
//! - [`Server::before_sync`], then [`Server::commit`], which writes the turn's records to the
//!   binlog; both are in `binlog.rs`;
//! - for output, [`Server::next_dirty`], which returns the connections whose output or readiness
//!   for input has changed, [`Server::output`] for bytes to send, [`Server::sent`] after sending,
//!   and [`Server::next_deadline`] for the time of the next turn;
//! - [`Server::reclaim`], which ends the turn: then keys of closed connections can be reused.
//!
//! The server does large work, such as a long `kick` or the disconnect of a client with many jobs,
//! in slices of [`JOBS_PER_SLICE`] steps a turn. Until a slice changes a job or tube, all clients
//! see the old state of this job or tube.
//!
//! The times of successive commands differ by at least a nanosecond. So jobs with equal delays keep
//! their order, and `time-left` of a new reservation is below the TTR.
//!
//! | module | contents |
//! |---|---|
//! | this file | methods that the loop calls for a connection or a turn; times and costs of steps |
//! | `dispatch` | all commands except `put`: checks, changes, answers; `delete_job`, `send_list` |
//! | `put` | the header and the body of a `put`; whether the job is accepted |
//! | `replies` | appends replies, jobs, documents to outputs; hands out jobs to waiting clients |
//! | `stats` | the documents of `stats…`, `metrics`, `capabilities`, `list-jobs`; `Figures` |
//! | `admission` | `admit…` and `may_…`: checks of memory before growth; the reply on failure |
//! | `background` | slices of due timers, long commands, disconnects, and freeing of memory |
//! | `binlog` | permits, records, commits, `acknowledge`, `show`, `hold`, the lock; [`Health`] |
//! | `held` | `Dirty`, `Held`: lists of connections for `hold` and `before_sync` of `binlog` |
//! | `gathering` | how long a sync waits for more changes, and from which connections |
//! | `identity` | [`Identity`]: the process and its machine; [`Settings`]: flags for the server |
//! | `testing` | `check` of the invariants; connections without sockets, for unit tests |

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
mod testing;

use std::{io::IoSlice, time::Duration};

use ::log::{debug, info};

use self::{
    admission::Growing,
    background::{MOVED_BYTES_PER_TURN, Slices},
    held::{Dirty, Held},
    stats::Figures,
};
pub use self::{
    binlog::Health,
    gathering::BeforeSync,
    identity::{Identity, Settings},
};
use crate::{
    clock::Time,
    collections::{Key, SmallArena},
    conn::{Conn, SLICES, Step},
    memory::{Bodies, Level, Supply},
    proto::Reply,
    queue::Queue,
    wal::{Restored, Unavailable, Wal},
};

/// How many steps each kind of large work takes in a turn; most steps handle one job. A tick
/// handles at most this many timers of each kind, or twice the number of commands since the last
/// tick if that is more. Each timer was set by a command, so the number of due timers cannot grow
/// without limit.
pub const JOBS_PER_SLICE: u32 = 1000;

/// A turn executes at most this many commands of one connection.
pub const COMMANDS_PER_CONNECTION: u32 = 512;

/// A turn ends after about this many commands of all connections. A few connections may still
/// execute their share of commands, so the number may be exceeded. Together these commands take one
/// or two milliseconds.
pub const COMMANDS_PER_TURN: u32 = 1024;

/// How many pieces of memory a turn releases to the system. The release of a piece takes tens of
/// microseconds.
const RELEASES_PER_TURN: u32 = 16;

/// If the server visits this many tubes or clients, that counts as one command.
const STEPS_PER_COMMAND: u32 = 64;

/// How long to wait before retrying work for which there was no memory.
pub const SHORTAGE_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How many bytes of an HTTP request a log line shows.
const HTTP_LOGGED_BYTES: usize = 20;

/// Why [`Server::feed`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedResult {
    /// More input is needed: the caller must feed the unconsumed bytes again with more bytes.
    More,
    /// The connection's share of this turn is used up: feed the unconsumed bytes in the next turn.
    Later,
    /// The connection takes no input until the server marks it as dirty, because something has
    /// changed for it, or until some of its output has been sent.
    Paused,
    /// There is no memory for the next step. The caller must feed the unconsumed bytes again when
    /// there may be memory, after [`SHORTAGE_RETRY_DELAY`] at the latest.
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
    /// All connections; a connection and its client in the queue have the same index.
    conns: SmallArena<Conn>,
    identity: Identity,
    settings: Settings,
    figures: Figures,
    is_draining: bool,
    /// Why the binlog refuses some changes or soon will, and when a commit first found this reason.
    /// `None` if the last commit found no such reason.
    trouble: Option<(Unavailable, Time)>,
    /// The latest instant at which a command or a step was executed.
    latest: Time,
    /// Commands executed since the last tick. A slow command is counted as several.
    commands_this_turn: u32,
    shortage: Shortage,
    slices: Slices,
    dirty: Dirty,
}

/// When to retry due work for which there was no memory.
#[derive(Debug)]
struct Shortage {
    /// The time of the next retry; `None` if no work is deferred.
    until: Option<Time>,
    retry_delay: Duration,
}

/// Input.
impl Server {
    /// Makes a server without connections, jobs or binlog.
    pub fn new(identity: Identity, settings: Settings, now: Time) -> Self {
        Self::with_wal(identity, settings, Restored::default(), None, now)
    }

    /// Makes a server with the jobs of a binlog. The server hands out no jobs until the binlog
    /// works and contains every job. Restored jobs stay, even if they exceed the memory limit.
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

    /// Sets the object that reports to the server how much memory is free.
    pub fn set_supply(&mut self, supply: Box<dyn Supply>) {
        self.bodies.memory.set_supply(supply);
    }

    /// Prepares for a limit on resident memory. The server allocates memory in advance for changes
    /// that cannot be refused. From now on, it writes to such memory as soon as it has allocated
    /// it, so that the memory is resident.
    pub fn keep_resident(&mut self) {
        self.bodies.memory.limits_resident = true;
        self.queue.is_resident = true;
    }

    /// Whether memory for a step has been refused since the last tick.
    pub fn lacks_memory(&self) -> bool {
        self.bodies.memory.has_refused(Level::Critical)
    }

    /// Adds a connection and its client.
    pub fn open(&mut self) -> Key<Conn> {
        let key = self.conns.insert(Conn::default());
        let client = self.queue.join();
        assert_eq!(key.paired(), client, "connections and clients are added and removed together");
        key
    }

    /// Executes the commands in `bytes`, and returns the number of consumed bytes; the caller keeps
    /// the remaining bytes. Returns after `command_limit` commands, where a slow command counts as
    /// several. `command_limit` is at most [`COMMANDS_PER_CONNECTION`].
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
        // If memory is short, only commands of clients without unsent replies are executed.
        let has_unsent = !self.conns[key].output.is_empty();
        let mut growing = if has_unsent { Growing::UnsentReplies } else { Growing::Step };
        while self.commands_this_turn < end {
            // Without input, `Conn::step` takes no memory, and returns `More` or `Paused`.
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
                        info!("connections closed that sent HTTP: {count}; the last sent {start}");
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

    /// Marks a connection whose client has closed its sending side or the whole connection. If a
    /// `reserve` waits, it gets no job any more; [`Server::half_close`] answers this `reserve`.
    pub fn hang_up(&mut self, key: Key<Conn>) {
        self.conns[key].is_half_closed = true;
        if self.queue.client(key.paired()).is_waiting() {
            self.queue.stop_waiting(key.paired());
            self.conns[key].end_wait();
        }
    }

    /// Calls [`Server::hang_up`], and answers a waiting `reserve` with `TIMED_OUT`. Commands that
    /// the client sent before the hang-up are still executed.
    pub fn half_close(&mut self, key: Key<Conn>) {
        self.hang_up(key);
        if self.conns[key].has_wait_ended() {
            self.answer_waiting(key.paired(), Reply::TIMED_OUT);
        }
    }

    /// Makes the connection end once all its replies are sent. The caller must have fed all input.
    pub fn end_of_input(&mut self, key: Key<Conn>) {
        if self.conns[key].is_waiting() {
            self.half_close(key);
        }
        self.conns[key].close(&mut self.bodies);
        self.mark_dirty(key);
    }

    /// Removes a connection whose socket is closed. Ends the reservations and watches of the
    /// connection's client: as many as fit in a slice now, the others in later turns.
    pub fn close(&mut self, key: Key<Conn>, now: Time) {
        self.detach_long_commands(key);
        self.held.forget(key, &mut self.conns[key]);
        self.conns[key].forget(&mut self.bodies);
        self.queue.leave(key.paired());
        self.slices.disconnecting.push_back(key);
        let now = self.instant(now);
        self.process_disconnects(now);
    }

    /// Handles timers that are due at `now`, then does the next slices of large work.
    pub fn tick(&mut self, now: Time) {
        // A tick takes no instant of its own, because a tick that fails for lack of memory must not
        // change later instants.
        let now = now.max(self.latest);
        self.bodies.begin_turn();
        self.shortage.until = None;
        if let Some(wal) = &mut self.wal {
            wal.shift_dates(&mut self.queue, JOBS_PER_SLICE as usize, now);
        }
        self.process_timers(now);
        self.slices.disconnect_steps = 0;
        self.process_disconnects(now);
        self.slices.long_steps = 0;
        // An unfinished command goes to the end of the list, so that all long commands progress.
        while self.slices.long_steps < JOBS_PER_SLICE {
            let Some(long) = self.slices.long_commands.pop_front() else { break };
            self.advance_long(long, now);
        }
        self.bodies.move_some(&mut self.queue, JOBS_PER_SLICE, MOVED_BYTES_PER_TURN);
    }
}

/// Output.
impl Server {
    /// Whether this turn has executed [`COMMANDS_PER_TURN`] commands.
    pub fn is_turn_over(&self) -> bool {
        self.commands_this_turn >= COMMANDS_PER_TURN
    }

    /// A connection of the server, read-only.
    pub fn conn(&self, key: Key<Conn>) -> &Conn {
        &self.conns[key]
    }

    /// The first bytes to send on a connection, as `IoSlice`s for one `writev`, and how many of
    /// the slices are set.
    pub fn output(&self, key: Key<Conn>) -> ([IoSlice<'_>; SLICES], usize) {
        self.conns[key].output.slices(&self.bodies)
    }

    /// Removes `count` bytes from the output of a connection, because the event loop has sent them.
    pub fn sent(&mut self, key: Key<Conn>, count: usize) {
        self.conns[key].output.sent(count, &mut self.bodies);
    }

    /// Removes the next dirty connection from the list of dirty connections, and returns its key.
    pub fn next_dirty(&mut self) -> Option<Key<Conn>> {
        self.dirty.next(&mut self.conns)
    }

    /// The next time at which [`Server::tick`] or [`Server::commit`] has work to do; an instant in
    /// the past if there is work now.
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

    /// Ends a turn: frees the keys of closed connections for reuse, and releases some unused
    /// memory. Before this call, the event loop must call [`Server::next_dirty`] until it returns
    /// `None`, and drop all copies of keys of closed connections.
    pub fn reclaim(&mut self) {
        assert!(self.dirty.is_empty(), "a note may refer to a connection that is gone");
        for key in self.slices.reclaimable.drain(..) {
            self.conns.remove(key);
            self.queue.forget(key.paired());
        }
        self.slices.has_releasable = (0..RELEASES_PER_TURN).all(|_| self.release_one());
    }

    /// Makes the daemon answer every `put` with `DRAINING`, or accept jobs again.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Whether every `put` gets `DRAINING`.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The bodies of the server, read-only.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// The queue of the server, read-only.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
}

/// Methods that several commands use.
impl Server {
    /// Returns the time of a new command or step, which is `now`, but at least one nanosecond after
    /// the last command or step.
    fn instant(&mut self, now: Time) -> Time {
        self.latest = self.next_instant(now);
        self.latest
    }

    /// Adds to the turn's commands the number of commands that take as long as visits of `steps`
    /// tubes or clients.
    fn charge(&mut self, steps: usize) {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.commands_this_turn = self.commands_this_turn.saturating_add(steps / STEPS_PER_COMMAND);
    }
}
