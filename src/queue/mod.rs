//! The work queue as a library, which reads no bodies, files, sockets or clocks.
//!
//! A method for a command never gives a job to a waiting client. After a call that makes a job
//! ready or ends a pause, the caller repeats [`Queue::hand_out`] for the tube until the result is
//! `None`. This restores the **resting invariant**: no unpaused tube has both a ready job and a
//! waiting client. So a `put` looks for waiting clients only at its tube, and a `reserve` looks
//! only in the watched tubes.
//!
//! | file | contents |
//! |---|---|
//! | this file | [`Queue`]: clients join and leave; lost jobs, `hand_out`, a tube's first jobs |
//! | `verbs` | a method for each command; finds jobs by id, and makes tubes |
//! | `bulk` | the commands `list-jobs` and `delete-tube` |
//! | `transitions` | moves jobs between the heaps and lists of their states; drops tubes |
//! | `timers`, `waiters` | the effects of due timers; the clients that wait at each tube |
//! | `job`, `tube`, `client` | the types of jobs, tubes and clients; tables of jobs and tubes |
//! | `names` | the table of tube names |
//! | `restore`, `testing` | restores jobs, freezes, shifts dates; checks invariants in tests |

mod bulk;
mod client;
mod job;
mod names;
mod restore;
mod testing;
mod timers;
mod transitions;
mod tube;
mod verbs;
mod waiters;

use std::time::Duration;

pub use self::{
    bulk::{DeleteStep, DeleteTube, ListReserved},
    client::Client,
    job::{Dated, History, JOB_OVERHEAD_BYTES, Job, Record, State, URGENT_BELOW_PRI},
    timers::Timer,
    tube::{Pause, Times, Tube},
};
use self::{client::Watch, job::Jobs, timers::Timers, tube::Tubes};
use crate::{
    clock::Time,
    collections::{Arena, Growth, Key, SmallArena},
    memory::{Body, BodyOwners},
};

/// A waiting client is warned this long before the time to run of one of its reserved jobs ends.
pub const SAFETY_MARGIN: Duration = Duration::from_secs(1);

/// A `kick` in progress. [`Queue::begin_kick`] sets the number of jobs; each step kicks one job.
#[derive(Debug, Clone, Copy)]
pub struct Kick {
    tube: Key<Tube>,
    from: State,
    left: u32,
    /// The number of jobs kicked so far.
    pub moved: u32,
}

/// The effect of a timer that was due: the result of [`Queue::expire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// A job of this tube became ready: the caller must call [`Queue::hand_out`].
    Ready(Key<Tube>),
    /// The time to run of this job ended at this instant: the caller must call
    /// [`Queue::return_job`] or [`Queue::bury_lost`].
    Lost(Key<Job>, Time),
    /// The pause of this tube is over: the caller must call [`Queue::end_pause`].
    PauseOver(Key<Tube>),
    /// The client's wait has ended, because a job that it has reserved is close to its deadline.
    DeadlineSoon(Key<Client>),
    /// The client's wait has timed out.
    TimedOut(Key<Client>),
}

/// Counters for `stats` that the queue maintains.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Ready jobs with an urgent priority.
    pub urgent: u64,
    /// Ready jobs.
    pub ready: u64,
    /// Reserved jobs.
    pub reserved: u64,
    /// Delayed jobs.
    pub delayed: u64,
    /// Buried jobs.
    pub buried: u64,
    /// Reservations that timed out.
    pub timeouts: u64,
    /// Burials by `--bury-after`, of jobs that were lost too often.
    pub buried_for_losses: u64,
    /// Jobs put since the start.
    pub total_jobs: u64,
    /// Connections open now.
    pub connections: u32,
    /// Open connections that have sent a `put`.
    pub producers: u32,
    /// Open connections that have sent a `reserve` of any kind.
    pub workers: u32,
    /// Connections that wait for a job.
    pub waiting: u32,
    /// Connections accepted since the start.
    pub total_connections: u64,
}

/// All jobs, tubes and clients.
#[derive(Debug)]
pub struct Queue {
    jobs: Jobs,
    tubes: Tubes,
    clients: SmallArena<Client>,
    /// All watches, in chunks of 64 KiB. A smaller chunk would be in the C library's heap, which
    /// then could not shrink. Ballast is freed only for small allocations; if a chunk were much
    /// larger, even the first client might be refused.
    watches: Arena<Watch, 4096>,
    timers: Timers,
    counts: Counts,
    default: Key<Tube>,
    next_id: u64,
    /// How many waits of clients have begun so far.
    wait_count: u64,
    is_frozen: bool,
    /// The tube of the job that was restored last.
    restored_last: Option<Key<Tube>>,
    /// Whether to write at once to memory reserved for later steps, so that it becomes resident.
    pub is_resident: bool,
    /// When the daemon began to serve: the waits of restored jobs are measured from then on.
    started_at: Time,
}

impl Default for Queue {
    /// A queue with the tube `default`, and without jobs and clients.
    fn default() -> Self {
        let mut tubes = Tubes::default();
        let default = tubes.make("default");
        tubes.arena[default].pins = 1;
        let mut timers = Timers::default();
        timers.set_tube_capacity(1);
        Self {
            jobs: Jobs::default(),
            tubes,
            clients: SmallArena::default(),
            watches: Arena::default(),
            timers,
            counts: Counts::default(),
            default,
            next_id: 1,
            wait_count: 0,
            is_frozen: false,
            restored_last: None,
            is_resident: false,
            started_at: Time::default(),
        }
    }
}

/// Clients that connect and disconnect.
impl Queue {
    /// Makes room for [`Queue::join`], or fails if there is no memory. O(1), unless a list must be
    /// reallocated.
    pub fn make_room_to_join(&mut self) -> Growth {
        self.clients.make_room()?;
        self.watches.make_room()?;
        self.timers.clients.make_room(self.is_resident)
    }

    /// Adds a client that uses and watches `default`.
    pub fn join(&mut self) -> Key<Client> {
        let client = self.clients.insert(Client::new(self.default));
        self.timers.clients.set_min_capacity(self.clients.len());
        self.tubes.arena[self.default].users += 1;
        self.add_watch(client, self.default);
        self.counts.connections += 1;
        self.counts.total_connections += 1;
        client
    }

    /// Marks a client as disconnected: ends its wait and removes the client from the counts. The
    /// caller then calls [`Queue::return_job`] or [`Queue::bury_lost`] for each job of the client,
    /// [`Queue::unwatch_next`] for each watched tube, and at the end [`Queue::forget`].
    pub fn leave(&mut self, client: Key<Client>) {
        self.stop_waiting(client);
        let Client { is_producer, is_worker, has_left, .. } = &mut self.clients[client];
        *has_left = true;
        self.counts.connections -= 1;
        self.counts.producers -= u32::from(*is_producer);
        self.counts.workers -= u32::from(*is_worker);
    }

    /// Ends one watch of a disconnected client. The client must watch at least one tube. After its
    /// last watch has ended, the client also stops using its tube. O(log n).
    pub fn unwatch_next(&mut self, client: Key<Client>) {
        // Watches end in the original's order, because `list-tubes` depends on that order.
        self.drop_watch(client, 0);
        if self.clients[client].watching.is_empty() {
            let using = self.clients[client].using;
            self.tubes.arena[using].users -= 1;
            self.drop_if_idle(using);
        }
    }

    /// Ends the reservation of a job, and makes the job ready, as if it had been ready since
    /// `since`. The caller must call [`Queue::hand_out`] for the returned tube. O(log n).
    pub fn return_job(&mut self, job: Key<Job>, since: Time) -> Key<Tube> {
        let tube = self.unreserve(job);
        self.place(job, State::Ready, since);
        tube
    }

    /// Buries a lost job, for which [`Record::is_lost_too_often`] is true. O(log n).
    pub fn bury_lost(&mut self, job: Key<Job>, now: Time) {
        let Job { tube, record, .. } = &self.jobs.arena[job];
        self.tubes.arena[*tube].buried_for_losses += 1;
        self.counts.buried_for_losses += 1;
        self.bury(job, record.pri, now);
    }

    /// Removes a disconnected client that has no jobs and no watches. From now on, the client's key
    /// can be reused.
    pub fn forget(&mut self, client: Key<Client>) {
        let client = self.clients.remove(client);
        assert!(client.reserved.is_empty() && client.watching.is_empty());
        self.timers.clients.set_min_capacity(self.clients.len());
    }

    /// Counts the client as a producer; a repeated call changes nothing.
    pub fn mark_producer(&mut self, client: Key<Client>) {
        let is_producer = &mut self.clients[client].is_producer;
        self.counts.producers += u32::from(!*is_producer);
        *is_producer = true;
    }

    /// Counts the client as a worker; a repeated call changes nothing.
    pub fn mark_worker(&mut self, client: Key<Client>) {
        let is_worker = &mut self.clients[client].is_worker;
        self.counts.workers += u32::from(!*is_worker);
        *is_worker = true;
    }
}

/// Reserving and waiting.
impl Queue {
    /// The most tubes that [`Queue::best_ready_job`] scans; 0 if no unpaused tube has a ready job.
    pub fn tubes_to_scan(&self, client: Key<Client>) -> usize {
        if self.tubes.with_ready_job > 0 { self.clients[client].watching() } else { 0 }
    }

    /// Reserves the best ready job of a tube for the client that has waited longest. Returns `None`
    /// if there is no such job or client, the tube is paused, or the queue is frozen. Call this
    /// method until it returns `None`, to restore the resting invariant. O(log n), amortised.
    pub fn hand_out(&mut self, tube: Key<Tube>, now: Time) -> Option<(Key<Client>, Key<Job>)> {
        if self.tubes.arena.get(tube)?.pause.is_some() {
            return None;
        }
        self.match_one(tube, now)
    }

    /// Like [`Queue::hand_out`], but ignores a pause of the tube.
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

/// Peeking.
impl Queue {
    /// The job of this tube that a worker would get next.
    pub fn first_ready(&self, tube: Key<Tube>) -> Option<Key<Job>> {
        self.tubes.arena[tube].ready.peek().map(|(_, job)| job)
    }

    /// The delayed job of the tube `tube` that becomes ready next.
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
    /// Releases one piece of unused memory of the queue to the system, and returns whether there
    /// was such a piece. See [`Arena::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.jobs.arena.release_one()
            || self.jobs.ids.release_one()
            || self.tubes.arena.release_one()
            || self.watches.release_one()
            || self.clients.release_one()
    }
}

/// Read access.
impl Queue {
    /// Returns the end of a job's reservation or delay; `None` if the job has neither.
    pub fn deadline(&self, job: Key<Job>) -> Option<Time> {
        let Job { record, position, .. } = &self.jobs.arena[job];
        match record.state {
            State::Reserved(client) => {
                self.clients[client].deadlines.at(*position as usize).map(|(due, _)| due.at)
            }
            State::Delayed => Some(record.state_at),
            State::Ready | State::Buried => None,
        }
    }

    /// When this ready job began to wait for a worker. The time before the daemon began to serve
    /// does not count, even if the binlog shows that the job was ready then.
    pub fn ready_since(&self, job: Key<Job>) -> Time {
        self.jobs.arena[job].record.state_at.max(self.started_at)
    }

    /// Read access to a job, by key.
    pub fn job(&self, job: Key<Job>) -> &Job {
        &self.jobs.arena[job]
    }

    /// Read access to a tube, by key.
    pub fn tube(&self, tube: Key<Tube>) -> &Tube {
        &self.tubes.arena[tube]
    }

    /// Read access to a client, by key.
    pub fn client(&self, client: Key<Client>) -> &Client {
        &self.clients[client]
    }

    /// Finds the key of a tube by its name.
    pub fn find_tube(&self, name: &str) -> Option<Key<Tube>> {
        self.tubes.find(name)
    }

    /// The number of jobs in the queue.
    pub fn jobs(&self) -> usize {
        self.jobs.arena.len()
    }

    /// The bytes counted for all jobs: their bodies, and [`JOB_OVERHEAD_BYTES`] for each.
    pub fn job_bytes(&self) -> u64 {
        self.jobs.bytes + self.jobs.arena.len() as u64 * JOB_OVERHEAD_BYTES
    }

    /// Read access to the name of a tube, 1 to 200 bytes.
    pub fn tube_name(&self, tube: Key<Tube>) -> &str {
        self.tubes.names.name(tube)
    }

    /// The number of tubes in the queue.
    pub fn tubes(&self) -> usize {
        self.tubes.order.len()
    }

    /// If `of` is `None`, the names of all tubes in the order of `list-tubes`; if `of` is a client,
    /// the names of the tubes that it watches, in the order of `list-tubes-watched`.
    pub fn tube_names(&self, of: Option<Key<Client>>) -> impl Iterator<Item = &str> {
        let watching = of.map(|client| self.clients[client].watching.iter().map(|&(tube, _)| tube));
        let all = of.is_none().then(|| self.tubes.order.iter().copied());
        let tubes = watching.into_iter().flatten().chain(all.into_iter().flatten());
        tubes.map(|tube| self.tube_name(tube))
    }

    /// The number and total bytes of the names in [`Queue::tube_names`]. O(1) if `of` is `None`.
    pub fn size_of_tube_names(&self, of: Option<Key<Client>>) -> (usize, usize) {
        let Some(_) = of else { return (self.tubes(), self.tubes.names.bytes()) };
        let names = self.tube_names(of);
        names.fold((0, 0), |(count, bytes), name| (count + 1, bytes + name.len()))
    }

    /// Read access to the counts of all tubes together.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl BodyOwners for Queue {
    /// The body of the job with this index: a handle, which changes when the bytes move.
    fn body_mut(&mut self, index: usize) -> &mut Body {
        &mut self.jobs.arena[Key::from_index(index)].body
    }
}

/// Adds one to a counter of a job. As in the original, the counter wraps to 0 after 2^32 - 1; a
/// checked addition would panic.
fn increment(counter: &mut u32) {
    *counter = counter.wrapping_add(1);
}

/// The duration of a delay, a pause or a time to run of `number` seconds.
fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}
