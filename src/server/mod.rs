//! The daemon without its sockets: bytes and the present in, bytes and the next deadline out.
//!
//! The only place where all parts meet. The event loop calls it in turns:
//!
//! - bring the world in: [`Server::open`], [`Server::feed`], [`Server::half_close`],
//!   [`Server::end_of_input`], [`Server::close`], [`Server::drain`], [`Server::tick`];
//! - [`Server::commit`] makes sure of what was done, in the log;
//! - hand out: [`Server::next_dirty`] names the connections whose output or appetite changed,
//!   [`Server::output`] what to send, [`Server::next_deadline`] when to come back;
//! - and [`Server::reclaim`] ends the turn: keys of closed connections may be reused.
//!
//! Work that one event makes large (a long `kick`, many jobs due at once, closing with many
//! reserved jobs or watched tubes) is done in slices of [`JOBS_PER_SLICE`] steps a turn; until its
//! slice comes, a job is in its old state for everybody, and so is a tube.
//!
//! Time is strictly increasing here: each command takes one nanosecond more than the one before,
//! also where many of them share a turn. So equal delays keep their order, and a reservation
//! looked at at once has less than its whole time left, as in the original.

mod background;
mod binlog;
mod dispatch;
mod put;
mod stats;

use std::{collections::VecDeque, io::IoSlice, time::Duration};

use ::log::{debug, info, trace};

use self::{background::LongKick, put::ArrivedBody};
use crate::{
    clock::Time,
    collections::{Arena, Key},
    conn::{Conn, SLICES, Step},
    memory::{Bodies, MemoryBudget, MemorySource, Need, OutOfMemory},
    proto::{CRLF, ErrorReply, Reply, Verb},
    queue::{Client, Job, Queue, Tube},
    service::logging::Throttle,
    wal::{Jobs, Restored, Wal},
};

/// How many jobs one kind of large work moves in a turn, and how many alarms of one kind are
/// heeded: or, of alarms, twice as many as commands were obeyed since the last tick. A command
/// sets at most one alarm, so a flood of them cannot fall behind without end.
pub const JOBS_PER_SLICE: u32 = 1000;

/// How many commands of one connection are obeyed, at most, before others get their share of the
/// turn.
pub const COMMANDS_PER_CONNECTION: u32 = 512;

/// How many commands a turn obeys, over all connections, give or take the share of one: a
/// millisecond or two of them, for the others wait meanwhile.
pub const COMMANDS_PER_TURN: u32 = 1024;

/// How many jobs or tubes a departed client gives up before another one's turn comes.
const DISCONNECT_STEPS_PER_CLIENT: u32 = 100;

/// How many pieces of memory a turn gives back to the system: each takes some tens of
/// microseconds.
const RELEASES_PER_TURN: u32 = 16;

/// How many steps of a walk through tubes or clients count as much as a command.
const STEPS_PER_COMMAND: u32 = 64;

/// What one step may take, in bytes, beside what is tried for it alone: replies to two clients, the
/// buffers of which may have to move.
const STEP_BYTES_MAX: usize = 128 * 1024;

/// How long it is until what there was no memory for is tried again.
pub const SHORTAGE_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How many bytes of an HTTP request the log shows.
const HTTP_LOGGED_BYTES: usize = 20;

/// What `stats` tells of the process and its machine.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// The daemon's version.
    pub version: String,
    /// Sixteen random hexadecimal digits that tell one run from another.
    pub id: String,
    /// The machine's name.
    pub hostname: String,
    /// The kernel's version.
    pub os: String,
    /// The processor's kind.
    pub platform: String,
    /// Asks for the CPU time used so far.
    pub rusage: fn() -> Rusage,
}

/// CPU time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rusage {
    /// In the process itself.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

/// What the flags decide for the core.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The largest job body in bytes: `-z`.
    pub job_size_limit: u32,
    /// The size of a binlog file in bytes: `-s`.
    pub binlog_size: u64,
    /// How many bytes all bodies may hold, with [`crate::queue::JOB_OVERHEAD_BYTES`] for each:
    /// those of jobs, those that arrive, and those that are on their way out.
    pub memory_limit: Option<u64>,
}

/// What the daemon can do for its clients; the worst that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// A write or sync of the binlog has failed: changes are refused.
    BinlogFailed,
    /// The disk has no room for more of the binlog.
    BinlogFull,
    /// New jobs are refused because somebody wishes so.
    Draining,
    /// All it can.
    Serving,
}

/// How a connection goes on after [`Server::feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedResult {
    /// What is left means nothing yet; it must come again with more behind it.
    More,
    /// Its share of the turn is used up; what is left wants to come again next turn.
    Later,
    /// It takes no input until it is noted.
    Paused,
    /// There is no memory to go on with it; what is left wants to come again when there may be, at
    /// the latest after [`SHORTAGE_RETRY_DELAY`].
    Short,
}

/// The whole daemon but its sockets and clock.
#[derive(Debug)]
pub struct Server {
    queue: Queue,
    /// All bodies: of jobs, of uploads, of replies.
    bodies: Bodies,
    wal: Option<Wal>,
    /// Connections with replies that must not leave before the next commit.
    awaiting_commit: Vec<Key<Conn>>,
    /// In step with the queue's clients: a connection and its client have the same index.
    conns: Arena<Conn>,
    identity: Identity,
    settings: Settings,
    commands: [u64; Verb::COUNT],
    is_draining: bool,
    started_at: Time,
    /// The latest instant given to anything.
    latest: Time,
    /// Commands obeyed since the last tick; one that takes long counts as several.
    commands_this_turn: u32,
    /// There was no memory for something that is due: it is tried again then.
    deferred_until: Option<Time>,
    shortage_retry_delay: Duration,
    kicks: VecDeque<LongKick>,
    /// Jobs that kicks may still move this turn.
    kicks_left: u32,
    /// Closed connections that still hold jobs, or watch tubes.
    disconnecting: VecDeque<Key<Conn>>,
    /// Jobs that closed connections may still return this turn, or tubes they may leave.
    disconnect_steps_left: u32,
    /// Connections whose output or appetite changed.
    dirty: VecDeque<Key<Conn>>,
    /// Closed connections that hold nothing any more.
    reclaimable: Vec<Key<Conn>>,
    /// Connections closed because they sent HTTP.
    http_closed: Throttle,
}

/// The world comes in.
impl Server {
    /// Makes a server without connections, jobs or log.
    pub fn new(identity: Identity, settings: Settings, now: Time) -> Self {
        Self::with(identity, settings, Restored::default(), None, now)
    }

    fn with(
        identity: Identity,
        settings: Settings,
        restored: Restored,
        wal: Option<Wal>,
        now: Time,
    ) -> Self {
        let Restored { queue, mut bodies } = restored;
        bodies.budget_mut().set_body_limit(settings.memory_limit.unwrap_or(u64::MAX));
        Self {
            queue,
            bodies,
            wal,
            awaiting_commit: Vec::new(),
            conns: Arena::default(),
            identity,
            settings,
            commands: [0; Verb::COUNT],
            is_draining: false,
            started_at: now,
            latest: now,
            commands_this_turn: 0,
            deferred_until: None,
            shortage_retry_delay: SHORTAGE_RETRY_DELAY,
            kicks: VecDeque::new(),
            kicks_left: JOBS_PER_SLICE,
            disconnecting: VecDeque::new(),
            disconnect_steps_left: JOBS_PER_SLICE,
            dirty: VecDeque::new(),
            reclaimable: Vec::new(),
            http_closed: Throttle::default(),
        }
    }

    /// Takes memory from somewhere else from now on, a step of so many bytes ahead; and tries again
    /// after so long what there was none for.
    pub fn set_memory(
        &mut self,
        memory: Box<dyn MemorySource>,
        step: usize,
        shortage_retry_delay: Duration,
    ) {
        self.bodies.budget_mut().set_source(memory, step);
        self.shortage_retry_delay = shortage_retry_delay;
    }

    /// Makes sure that [`Server::open`] finds memory. Fails where there is none. O(1), unless a
    /// list must move.
    pub fn ensure_memory_to_open(&mut self) -> Result<(), OutOfMemory> {
        let budget = self.bodies.budget_mut();
        self.queue.ensure_memory_to_join(budget)?;
        self.conns.ensure_memory(Need::Connection, budget)?;
        let count = self.conns.len() + 1;
        for line in [&mut self.dirty, &mut self.disconnecting] {
            budget.grow_deque(Need::Connection, line, count)?;
        }
        budget.grow_vec(Need::Connection, &mut self.reclaimable, count)
    }

    /// The memory that there is.
    pub fn budget_mut(&mut self) -> &mut MemoryBudget {
        self.bodies.budget_mut()
    }

    /// The latest instant given to anything, a few nanoseconds after the one last told: what is due
    /// by then is due. For the simulator.
    pub fn latest(&self) -> Time {
        self.latest
    }

    /// Whether there is memory for a small step that something makes necessary.
    pub fn has_memory_for_step(&mut self) -> bool {
        self.bodies.budget_mut().admits(Need::Essential, STEP_BYTES_MAX)
    }

    /// Whether something was refused that [`Server::has_memory_for_step`] asks for, since the last
    /// tick.
    pub fn lacks_memory(&self) -> bool {
        self.bodies.budget().was_refused(Need::Essential)
    }

    /// Adds a connection.
    pub fn open(&mut self) -> Key<Conn> {
        let key = self.conns.insert(Conn::default());
        let client = self.queue.join();
        assert_eq!(key.paired(), client, "connections and clients come and go in step");
        key
    }

    /// Takes bytes that have arrived, does what they ask, and says how many it took; the rest
    /// stays with the caller. Obeys at most `command_limit` commands, which is at most
    /// [`COMMANDS_PER_CONNECTION`]; fewer if they take long.
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
        // Where memory is scarce, those who have read all their replies come first.
        let has_unsent = !self.conns[key].output.is_empty();
        let mut need = if has_unsent { Need::Reply } else { Need::Essential };
        while self.commands_this_turn < end {
            if !self.bodies.budget_mut().admits(need, STEP_BYTES_MAX) {
                feed_result = FeedResult::Short;
                break;
            }
            need = Need::Reply;
            self.commands_this_turn += 1;
            match self.conns[key].step(&mut rest, &mut self.bodies) {
                Step::Line(line) => self.dispatch(key, line, &mut rest, now),
                Step::Http(line) => {
                    debug!("{key:?} sent HTTP and is closed");
                    if let Some(count) = self.http_closed.pass(now) {
                        let start = line[..line.len().min(HTTP_LOGGED_BYTES)].escape_ascii();
                        info!("connections closed for HTTP: {count}, the last for {start}");
                    }
                    self.end_of_input(key);
                }
                Step::Body(put, body) => {
                    self.put(key, put, ArrivedBody::Collected(body), now);
                }
                Step::Reject(refused) => self.reply(key, Reply::Error(refused)),
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

    /// The client will send nothing beyond what has arrived, and may have closed altogether. From
    /// now on it gets no job that it waits for; [`Server::half_close`] tells it so.
    pub fn hang_up(&mut self, key: Key<Conn>) {
        self.conns[key].is_half_closed = true;
        if self.queue.client(key.paired()).is_waiting() {
            self.queue.stop_waiting(key.paired());
            self.conns[key].end_wait();
        }
    }

    /// Whether [`Server::hang_up`] was called for it.
    pub fn has_hung_up(&self, key: Key<Conn>) -> bool {
        self.conns[key].is_half_closed
    }

    /// The client will send nothing beyond what has arrived. One that waits for a job is told
    /// that its time is up, for it may have closed altogether; what it sent before is still
    /// obeyed.
    pub fn half_close(&mut self, key: Key<Conn>) {
        self.hang_up(key);
        if self.conns[key].has_wait_ended() {
            self.answer_waiting(key.paired(), Reply::TimedOut);
        }
    }

    /// All that the client ever sent has been fed; the connection ends when its replies are sent.
    pub fn end_of_input(&mut self, key: Key<Conn>) {
        self.conns[key].close(&mut self.bodies);
        self.mark_dirty(key);
    }

    /// The connection is gone. Jobs it held return to their tubes, and it leaves those it watched:
    /// a first slice at once.
    pub fn close(&mut self, key: Key<Conn>, now: Time) {
        self.detach_kicks(key);
        self.conns[key].forget(&mut self.bodies);
        self.queue.leave(key.paired());
        self.disconnecting.push_back(key);
        let now = self.instant(now);
        self.process_disconnects(now);
    }

    /// From now on every `put` is refused.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// From now on jobs are taken again.
    pub fn end_drain(&mut self) {
        self.is_draining = false;
    }

    /// Does what is due at `now`, then the next slices of what is large.
    pub fn tick(&mut self, now: Time) {
        let now = self.instant(now);
        self.bodies.budget_mut().forget_refusals();
        self.deferred_until = None;
        self.shift_dates(JOBS_PER_SLICE, now);
        self.process_timers(now);
        self.disconnect_steps_left = JOBS_PER_SLICE;
        self.process_disconnects(now);
        self.kicks_left = JOBS_PER_SLICE;
        // One that is not done lines up behind the others, so each gets its turn.
        while self.kicks_left > 0 {
            let Some(long) = self.kicks.pop_front() else { break };
            self.kick(long, now);
        }
        for _ in 0..RELEASES_PER_TURN {
            if !self.release_one() {
                break;
            }
        }
    }
}

/// The server answers.
impl Server {
    /// Whether this turn has obeyed as many commands as it should.
    pub fn is_turn_over(&self) -> bool {
        self.commands_this_turn >= COMMANDS_PER_TURN
    }

    /// How many bytes wait to be sent.
    pub fn unsent(&self, key: Key<Conn>) -> usize {
        self.conns[key].output.len()
    }

    /// The first bytes to send, as slices for one `writev`, and how many of these there are.
    pub fn output(&self, key: Key<Conn>) -> ([IoSlice<'_>; SLICES], usize) {
        self.conns[key].output.slices(&self.bodies)
    }

    /// So many bytes of the output have been sent.
    pub fn sent(&mut self, key: Key<Conn>, count: usize) {
        self.conns[key].output.sent(count, &mut self.bodies);
    }

    /// Whether [`Server::feed`] would look at bytes now.
    pub fn takes_input(&self, key: Key<Conn>) -> bool {
        self.conns[key].takes_input()
    }

    /// Whether nothing is left to do for the connection but closing its socket.
    pub fn is_finished(&self, key: Key<Conn>) -> bool {
        self.conns[key].is_finished()
    }

    /// The next connection whose output or appetite changed since it was last named here.
    pub fn next_dirty(&mut self) -> Option<Key<Conn>> {
        let key = self.dirty.pop_front()?;
        self.conns[key].is_dirty = false;
        Some(key)
    }

    /// When [`Server::tick`] or [`Server::commit`] has something to do: in the past where it has
    /// now.
    pub fn next_deadline(&self) -> Option<Time> {
        let has_releasable = self.queue.has_releasable()
            || self.bodies.has_releasable()
            || self.conns.has_releasable()
            || self.wal.as_ref().is_some_and(Wal::has_releasable);
        if has_releasable {
            return Some(Time::AT_ONCE);
        }
        let log = self.wal.as_ref().and_then(Wal::next_deadline);
        let has_work = !self.kicks.is_empty() || !self.disconnecting.is_empty();
        let work = has_work.then(Time::default);
        let due = [self.queue.next_deadline(), work].into_iter().flatten().min();
        let due = due.map(|at| at.max(self.deferred_until.unwrap_or_default()));
        [due, log].into_iter().flatten().min()
    }

    /// Ends a turn: the keys of connections that are gone may be used again. The event loop must
    /// have taken all notes and dropped all copies of those keys.
    pub fn reclaim(&mut self) {
        assert!(self.dirty.is_empty(), "a note may name a connection that is gone");
        for key in self.reclaimable.drain(..) {
            self.conns.remove(key);
            self.queue.forget(key.paired());
        }
    }

    /// Whether every `put` is refused.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The bodies, to look at.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// The jobs and their bodies, to look at.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs { queue: &self.queue, bodies: &self.bodies }
    }

    /// The queue, to look at.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Walks everything but the log and panics where something does not hold. O(all): for tests.
    pub fn check(&self) {
        self.queue.check();
        let handles: usize = self.conns.iter().map(|(_, conn)| conn.handles()).sum();
        let jobs = self.queue.jobs();
        assert_eq!(self.bodies.handles(), jobs + handles, "no body is forgotten");
        let (all, of_jobs) = (self.bodies.budget().body_bytes(), self.queue.job_bytes());
        let copied: u64 = self.conns.iter().map(|(_, conn)| conn.output.copied()).sum();
        assert!(all >= of_jobs + copied && (handles > 0 || all == of_jobs + copied));
    }
}

/// Steps behind the verbs.
impl Server {
    /// The present for one command: `now`, or one nanosecond after the command before.
    fn instant(&mut self, now: Time) -> Time {
        self.latest = now.max(self.latest.next());
        self.latest
    }

    /// Whether there is memory for the next step of what is due, or large; if not, all of it waits.
    fn may_step(&mut self, now: Time) -> bool {
        let has_memory = self.has_memory_for_step();
        if !has_memory {
            self.deferred_until = Some(now + self.shortage_retry_delay);
        }
        has_memory
    }

    /// Counts a walk of so many steps as the commands that would take as long.
    fn charge(&mut self, steps: usize) {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.commands_this_turn = self.commands_this_turn.saturating_add(steps / STEPS_PER_COMMAND);
    }

    /// Restores the resting invariant of a tube: see [`Queue::hand_out`].
    fn hand_out(&mut self, tube: Key<Tube>, now: Time) {
        while let Some(pair) = self.queue.hand_out(tube, now) {
            self.deliver(pair);
        }
    }

    /// Sends a client the job that it has waited for.
    fn deliver(&mut self, (client, job): (Key<Client>, Key<Job>)) {
        self.conns[client.paired()].resume();
        self.send_reserved(client.paired(), job);
    }

    fn send_reserved(&mut self, key: Key<Conn>, job: Key<Job>) {
        let Job { record, body, .. } = self.queue.job(job);
        let reply = Reply::Reserved { id: record.id, size: body.len() - CRLF.len() };
        self.send_body(key, reply, job);
    }

    /// Sends a reply that announces a job's body, and the body.
    fn send_body(&mut self, key: Key<Conn>, reply: Reply<'_>, job: Key<Job>) {
        let body = &self.queue.job(job).body;
        let shared = body.is_large().then(|| self.bodies.add_ref(body));
        let (body, budget) = self.bodies.bytes_and_budget(body);
        self.conns[key].output.reply_with(reply, body, shared, budget);
        trace!("{key:?} < {reply:?}");
        self.mark_dirty(key);
    }

    /// Tells a client that it need not wait any longer.
    fn answer_waiting(&mut self, client: Key<Client>, reply: Reply<'_>) {
        self.conns[client.paired()].resume();
        self.reply(client.paired(), reply);
    }

    fn reply(&mut self, key: Key<Conn>, reply: Reply<'_>) {
        trace!("{key:?} < {reply:?}");
        self.conns[key].output.reply(reply, self.bodies.budget_mut());
        self.mark_dirty(key);
    }

    fn mark_dirty(&mut self, key: Key<Conn>) {
        let conn = &mut self.conns[key];
        if !std::mem::replace(&mut conn.is_dirty, true) {
            self.dirty.push_back(key);
        }
    }
}

/// What a client is told where there is no memory.
fn out_of_memory(_: OutOfMemory) -> ErrorReply {
    ErrorReply::OutOfMemory
}
