//! The work queue as a library: jobs, tubes, clients, and what time does to them. No bytes, no
//! files, no sockets, no clock: the present comes in with each call that needs it.
//!
//! [`Queue`] has one method per verb, in the order of the protocol, each of which expects that
//! its caller has asked the matching question first (`reserved_by`, `find`, …). Handing jobs to
//! waiting clients is never a side effect of a verb: after any that makes a job ready or ends a
//! pause, the caller repeats [`Queue::hand_out`] for that tube until it answers `None`.
//!
//! **The resting invariant:** between commands no unpaused tube has both a ready job and a
//! waiting client. So a put looks at one tube, a reserve at the watched ones, and nobody scans
//! the rest. [`Queue::check`] walks this and all other invariants.

mod client;
mod counts;
mod expiry;
mod invariants;
mod job;
mod restore;
mod timers;
mod transitions;
mod tube;
mod verbs;
mod waiters;

use std::time::Duration;

pub use self::{
    client::Client,
    counts::Counts,
    job::{Dated, JOB_OVERHEAD_BYTES, Job, Record, State, URGENT_BELOW_PRI},
    timers::Timer,
    tube::{Pause, Tube},
};
use self::{client::Watch, job::Jobs, timers::Timers, tube::Tubes};
use crate::{
    clock::Time,
    collections::{Arena, Key},
    memory::{MemoryBudget, Need, OutOfMemory},
};

/// A client that waits is warned this long before a job it holds runs out of time.
pub const SAFETY_MARGIN: Duration = Duration::from_secs(1);

/// What the first lists of a client take, in bytes, with what the allocator keeps beside them.
const CLIENT_LISTS_BYTES: usize = 256;

/// What a producer says of a job it puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// From [`Queue::take_id`].
    pub id: u64,
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds until it becomes ready.
    pub delay: u32,
    /// Seconds a worker may hold it; zero is raised to one.
    pub ttr: u32,
    /// When the command was read.
    pub created_at: Time,
}

/// The jobs that one `kick` moves; fixed when the command is read, worked off in steps.
#[derive(Debug, Clone, Copy)]
pub struct Kick {
    tube: Key<Tube>,
    from: State,
    left: u32,
    /// How many have moved so far.
    pub moved: u32,
}

/// What [`Queue::expire`] has done; each is one small step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// A job of this tube became ready: hand out.
    Ready(Key<Tube>),
    /// This tube's pause is over: take the next step of [`Queue::end_pause`].
    PauseOver(Key<Tube>),
    /// The client waits no longer, for a job it holds is close to its deadline.
    DeadlineSoon(Key<Client>),
    /// The client waits no longer: it waited as long as it wanted to.
    TimedOut(Key<Client>),
}

/// All jobs, tubes and clients.
#[derive(Debug)]
pub struct Queue {
    jobs: Jobs,
    tubes: Tubes,
    clients: Arena<Client>,
    watches: Arena<Watch>,
    timers: Timers,
    counts: Counts,
    default: Key<Tube>,
    next_id: u64,
    /// How often a client has begun to wait.
    wait_count: u64,
    is_frozen: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let mut tubes = Tubes::default();
        let default = tubes.make("default");
        tubes.arena[default].pins = 1;
        let mut timers = Timers::default();
        timers.set_tube_capacity(1);
        Self {
            jobs: Jobs::default(),
            tubes,
            clients: Arena::default(),
            watches: Arena::default(),
            timers,
            counts: Counts::default(),
            default,
            next_id: 1,
            wait_count: 0,
            is_frozen: false,
        }
    }
}

/// Clients come and go.
impl Queue {
    /// Makes sure that [`Queue::join`] finds memory. O(1), unless a list must move.
    pub fn ensure_memory_to_join(&mut self, budget: &mut MemoryBudget) -> Result<(), OutOfMemory> {
        let Self { clients, watches, timers, .. } = self;
        clients.ensure_memory(Need::Connection, budget)?;
        watches.ensure_memory(Need::Connection, budget)?;
        timers.ensure_memory_for_client(budget)?;
        budget.take(Need::Connection, CLIENT_LISTS_BYTES)
    }

    /// Adds a client that uses and watches `default`.
    pub fn join(&mut self) -> Key<Client> {
        let client = self.clients.insert(Client::new(self.default));
        self.timers.set_client_capacity(self.clients.len());
        self.tubes.arena[self.default].users += 1;
        self.add_watch(client, self.default);
        self.counts.connections += 1;
        self.counts.total_connections += 1;
        client
    }

    /// Takes a client out of the counts; it waits no longer. Its jobs remain until
    /// [`Queue::return_job`] has returned them, and its tubes until [`Queue::unwatch_next`] has
    /// left them; then comes [`Queue::forget`].
    pub fn leave(&mut self, client: Key<Client>) {
        self.stop_waiting(client);
        let Client { is_producer, is_worker, has_left, .. } = &mut self.clients[client];
        *has_left = true;
        self.counts.connections -= 1;
        self.counts.producers -= u32::from(*is_producer);
        self.counts.workers -= u32::from(*is_worker);
    }

    /// Lets a departed client leave one of the tubes it watches, and with the last of them the one
    /// it uses. It must watch one. O(log n).
    pub fn unwatch_next(&mut self, client: Key<Client>) {
        // In the original's order, which the order of `list-tubes` shows.
        self.drop_watch(client, 0);
        if self.clients[client].watching.is_empty() {
            let using = self.clients[client].using;
            self.tubes.arena[using].users -= 1;
            self.drop_if_idle(using);
        }
    }

    /// Returns the job that a departed client has held longest to its tube, which is to hand
    /// out. It must hold one. O(log n).
    pub fn return_job(&mut self, client: Key<Client>) -> Key<Tube> {
        let job = self.clients[client].reserved.front().expect("the client holds a job");
        let tube = self.unreserve(job);
        self.make_ready(job);
        tube
    }

    /// Forgets a client that has left, and holds and watches nothing; its key may be reused from
    /// now on.
    pub fn forget(&mut self, client: Key<Client>) {
        let client = self.clients.remove(client);
        assert!(client.reserved.is_empty() && client.watching.is_empty());
        self.timers.set_client_capacity(self.clients.len());
    }

    /// Counts the client among the producers.
    pub fn mark_producer(&mut self, client: Key<Client>) {
        let is_producer = &mut self.clients[client].is_producer;
        self.counts.producers += u32::from(!*is_producer);
        *is_producer = true;
    }

    /// Counts the client among the workers.
    pub fn mark_worker(&mut self, client: Key<Client>) {
        let is_worker = &mut self.clients[client].is_worker;
        self.counts.workers += u32::from(!*is_worker);
        *is_worker = true;
    }
}

/// Reserving and waiting.
impl Queue {
    /// How many tubes [`Queue::reserve`] would look at: none where none has a job to offer.
    pub fn tubes_to_scan(&self, client: Key<Client>) -> usize {
        if self.tubes.has_ready_job() { self.clients[client].watching() } else { 0 }
    }

    /// Whether a job the client holds ends within the safety margin.
    pub fn is_deadline_soon(&self, client: Key<Client>, now: Time) -> bool {
        self.clients[client].is_deadline_soon(now)
    }

    /// Gives the tube's best ready job to the client that has waited longest, if there are both
    /// and no pause is in force. Repeat until `None` to restore the resting invariant. O(log n).
    pub fn hand_out(&mut self, tube: Key<Tube>, now: Time) -> Option<(Key<Client>, Key<Job>)> {
        if self.tubes.arena.get(tube)?.pause.is_some() {
            return None;
        }
        self.match_one(tube, now)
    }

    /// Gives the tube's best ready job to the client that has waited longest, pause or no pause.
    fn match_one(&mut self, tube: Key<Tube>, now: Time) -> Option<(Key<Client>, Key<Job>)> {
        if self.is_frozen {
            return None;
        }
        let job = self.first_ready(tube)?;
        let client = self.first_waiting(tube)?;
        self.stop_waiting(client);
        self.detach(job);
        self.assign(job, client, now);
        Some((client, job))
    }
}

/// Looking, kicking, pausing.
impl Queue {
    /// The job of this tube that a worker would get next.
    pub fn first_ready(&self, tube: Key<Tube>) -> Option<Key<Job>> {
        self.tubes.arena[tube].ready.peek().map(|(_, job)| job)
    }

    /// The delayed job of this tube that becomes ready next.
    pub fn first_delayed(&self, tube: Key<Tube>) -> Option<Key<Job>> {
        self.tubes.arena[tube].delayed.peek().map(|(_, job)| job)
    }

    /// The job of this tube that was buried first.
    pub fn first_buried(&self, tube: Key<Tube>) -> Option<Key<Job>> {
        self.tubes.arena[tube].buried.front()
    }
}

/// Memory.
impl Queue {
    /// Gives a piece of memory that jobs, tubes or clients have left back to the system; whether
    /// there was one. See [`Arena::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.jobs.release_one()
            || self.tubes.arena.release_one()
            || self.watches.release_one()
            || self.clients.release_one()
    }

    /// Whether there is something to give back.
    pub fn has_releasable(&self) -> bool {
        self.jobs.has_releasable()
            || self.tubes.arena.has_releasable()
            || self.watches.has_releasable()
            || self.clients.has_releasable()
    }
}

/// Reading what is there.
impl Queue {
    /// A job by key.
    pub fn job(&self, job: Key<Job>) -> &Job {
        &self.jobs.arena[job]
    }

    /// A tube by key.
    pub fn tube(&self, tube: Key<Tube>) -> &Tube {
        &self.tubes.arena[tube]
    }

    /// A client by key.
    pub fn client(&self, client: Key<Client>) -> &Client {
        &self.clients[client]
    }

    /// A tube by name.
    pub fn find_tube(&self, name: &str) -> Option<Key<Tube>> {
        self.tubes.find(name)
    }

    /// How many jobs there are.
    pub fn jobs(&self) -> usize {
        self.jobs.arena.len()
    }

    /// How many bytes the jobs hold: their bodies, and [`JOB_OVERHEAD_BYTES`] for each.
    pub fn job_bytes(&self) -> u64 {
        self.jobs.job_bytes()
    }

    /// How many tubes there are.
    pub fn tubes(&self) -> usize {
        self.tubes.len()
    }

    /// How many bytes the names of all tubes have.
    pub fn tube_name_bytes(&self) -> usize {
        self.tubes.name_bytes()
    }

    /// The names of all tubes, in the order of `list-tubes`.
    pub fn tube_names(&self) -> impl Iterator<Item = &str> {
        self.tubes.iter().map(|tube| self.tubes.arena[tube].name())
    }

    /// The names of the tubes the client watches, in the order of `list-tubes-watched`.
    pub fn watched_names(&self, client: Key<Client>) -> impl Iterator<Item = &str> {
        self.clients[client].watching.iter().map(|&(tube, _)| self.tubes.arena[tube].name())
    }

    /// The name of the tube the client uses.
    pub fn used_name(&self, client: Key<Client>) -> &str {
        self.tubes.arena[self.clients[client].using].name()
    }

    /// How many jobs, tubes, watches and clients have been looked at so far; see
    /// [`Arena::visits`].
    pub fn visits(&self) -> u64 {
        let jobs = self.jobs.arena.visits();
        jobs + self.tubes.arena.visits() + self.watches.visits() + self.clients.visits()
    }

    /// The counters over all tubes.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Adds one to a counter of a job as the original does: a job that is reserved for the 2^32nd
/// time starts again at zero, and the daemon lives on.
fn increment(counter: &mut u32) {
    *counter = counter.wrapping_add(1);
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}
