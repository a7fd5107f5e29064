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

mod check;
mod client;
mod job;
mod line;
mod places;
mod stats;
mod timers;
mod tube;

use std::time::Duration;

pub use self::{
    client::Client,
    job::{Dated, JOB_COST, Job, Record, State, URGENT},
    stats::Counts,
    timers::Timer,
    tube::{Pause, Tube},
};
use self::{
    client::Watch,
    job::{Jobs, ReadyKey},
    timers::{Alarm, Timers},
    tube::Tubes,
};
use crate::{
    base::{Arena, Bodies, Body, Key, Links, Need, NoRoom, Room},
    clock::Time,
};

/// A client that waits is warned this long before a job it holds runs out of time.
pub const SAFETY_MARGIN: Duration = Duration::from_secs(1);

/// What the first lists of a client take, in bytes, with what the allocator keeps beside them.
const CLIENT_LISTS: usize = 256;

/// How many empty places are passed in the time that one job takes, at least.
const PLACES_PER_JOB: usize = 16;

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
    waits: u64,
    is_frozen: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let mut tubes = Tubes::default();
        let default = tubes.make("default");
        tubes.arena[default].pins = 1;
        let mut timers = Timers::default();
        timers.keep_tubes(1);
        Self {
            jobs: Jobs::default(),
            tubes,
            clients: Arena::default(),
            watches: Arena::default(),
            timers,
            counts: Counts::default(),
            default,
            next_id: 1,
            waits: 0,
            is_frozen: false,
        }
    }
}

/// Clients come and go.
impl Queue {
    /// Makes sure that [`Queue::join`] finds memory. O(1), unless a list must move.
    pub fn make_room_to_join(&mut self) -> Result<(), NoRoom> {
        let Self { jobs, clients, watches, timers, .. } = self;
        let room = jobs.bodies.room_mut();
        clients.make_room(Need::Connection, room)?;
        watches.make_room(Need::Connection, room)?;
        timers.make_room_for_client(room)?;
        room.take(Need::Connection, CLIENT_LISTS)
    }

    /// Adds a client that uses and watches `default`.
    pub fn join(&mut self) -> Key<Client> {
        let client = self.clients.insert(Client::new(self.default));
        self.timers.keep_clients(self.clients.len());
        self.tubes.arena[self.default].users += 1;
        self.add_watch(client, self.default);
        self.counts.connections += 1;
        self.counts.total_connections += 1;
        client
    }

    /// Takes a client out of the counts; it waits no longer. Its jobs remain until
    /// [`Queue::give_back`] has returned them, and its tubes until [`Queue::let_go`] has left them;
    /// then comes [`Queue::forget`].
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
    pub fn let_go(&mut self, client: Key<Client>) {
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
    pub fn give_back(&mut self, client: Key<Client>) -> Key<Tube> {
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
        self.timers.keep_clients(self.clients.len());
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

/// Putting.
impl Queue {
    /// Takes the next job id; a put that fails later leaves a gap.
    pub fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Makes the client use a tube, which comes to life if need be. Fails, and changes nothing,
    /// where there is no memory for that.
    pub fn use_tube(&mut self, client: Key<Client>, name: &str) -> Result<(), NoRoom> {
        let tube = match self.tubes.find(name) {
            Some(tube) => tube,
            None => self.try_make_tube(name)?,
        };
        self.tubes.arena[tube].users += 1;
        let before = std::mem::replace(&mut self.clients[client].using, tube);
        self.tubes.arena[before].users -= 1;
        self.drop_if_idle(before);
        Ok(())
    }

    /// Adds a tube whose name no other has. Fails where there is no memory for it.
    fn try_make_tube(&mut self, name: &str) -> Result<Key<Tube>, NoRoom> {
        let room = self.jobs.bodies.room_mut();
        self.tubes.make_room(name, room)?;
        self.timers.make_room_for_tube(room)?;
        Ok(self.make_tube(name))
    }

    fn make_tube(&mut self, name: &str) -> Key<Tube> {
        let tube = self.tubes.make(name);
        self.timers.keep_tubes(self.tubes.len());
        tube
    }

    /// Where bodies are stored, for [`Queue::put`] or [`Queue::restore`], and shared by replies.
    pub fn bodies(&self) -> &Bodies {
        &self.jobs.bodies
    }

    /// The same, to change them.
    pub fn bodies_mut(&mut self) -> &mut Bodies {
        &mut self.jobs.bodies
    }

    /// The memory that there is for anything.
    pub fn room_mut(&mut self) -> &mut Room {
        self.jobs.bodies.room_mut()
    }

    /// Makes sure that the client's next [`Queue::put`] finds memory. O(1), unless a list must
    /// move.
    pub fn make_room_to_put(&mut self, client: Key<Client>, delay: u32) -> Result<(), NoRoom> {
        let tube = self.clients[client].using;
        self.jobs.make_room()?;
        let room = self.jobs.bodies.room_mut();
        self.tubes.arena[tube].ready.make_room(Need::More, room)?;
        self.make_room_to_delay(tube, delay)
    }

    /// Makes sure that another delayed job of the tube finds memory, unless it has no delay.
    fn make_room_to_delay(&mut self, tube: Key<Tube>, delay: u32) -> Result<(), NoRoom> {
        let room = self.jobs.bodies.room_mut();
        match delay {
            0 => Ok(()),
            _ => self.tubes.arena[tube].delayed.make_room(Need::Least, room),
        }
    }

    /// Adds a job to the tube the client uses; without a delay, that tube is to hand out.
    pub fn put(&mut self, client: Key<Client>, put: Put, body: Body, now: Time) -> Key<Job> {
        let tube = self.clients[client].using;
        let job = self.jobs.insert(Job {
            record: Record {
                id: put.id,
                pri: put.pri,
                delay: put.delay,
                ttr: put.ttr.max(1),
                created_at: put.created_at,
                deadline_at: put.created_at,
                reserves: 0,
                timeouts: 0,
                releases: 0,
                buries: 0,
                kicks: 0,
                state: State::Ready,
            },
            body,
            tube,
            dated: Dated::default(),
            position: 0,
            links: Links::default(),
        });
        self.tubes.arena[tube].gain_job();
        self.tubes.arena[tube].total_jobs += 1;
        self.counts.total_jobs += 1;
        self.enqueue(job, put.delay, now);
        job
    }
}

/// Reserving and waiting.
impl Queue {
    /// Makes sure that the client can hold another job. O(1), unless its list must move.
    pub fn make_room_to_hold(&mut self, client: Key<Client>) -> Result<(), NoRoom> {
        self.clients[client].deadlines.make_room(Need::Least, self.jobs.bodies.room_mut())
    }

    /// Hands the client the best ready job of the unpaused tubes it watches: the least priority,
    /// among equals the oldest. O(tubes watched + log n).
    pub fn reserve(&mut self, client: Key<Client>, now: Time) -> Option<Key<Job>> {
        if self.is_frozen || self.prospects(client) == 0 {
            return None;
        }
        let watching = self.clients[client].watching.iter().map(|&(tube, _)| tube);
        let tube = watching.min_by_key(|&tube| self.tubes.offer(tube))?;
        let job = self.first_ready(tube).filter(|_| self.tubes.offer(tube) != ReadyKey::NONE)?;
        self.pull(job);
        self.assign(job, client, now);
        Some(job)
    }

    /// Hands the client a job that nobody holds, from whatever state and tube.
    pub fn reserve_job(&mut self, client: Key<Client>, job: Key<Job>, now: Time) {
        self.pull(job);
        self.assign(job, client, now);
    }

    /// How many tubes [`Queue::reserve`] would look at: none where none has a job to offer.
    pub fn prospects(&self, client: Key<Client>) -> usize {
        if self.tubes.is_any_offering() { self.clients[client].watching() } else { 0 }
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
        self.bring_together(tube, now)
    }

    /// Gives the tube's best ready job to the client that has waited longest, pause or no pause.
    fn bring_together(&mut self, tube: Key<Tube>, now: Time) -> Option<(Key<Client>, Key<Job>)> {
        if self.is_frozen {
            return None;
        }
        let job = self.first_ready(tube)?;
        let client = self.first_waiting(tube)?;
        self.stop_waiting(client);
        self.pull(job);
        self.assign(job, client, now);
        Some((client, job))
    }
}

/// Finishing a job.
impl Queue {
    /// The job of this id, whatever its state.
    pub fn find(&self, id: u64) -> Option<Key<Job>> {
        self.jobs.find(id)
    }

    /// The job of this id if nobody holds it.
    pub fn find_unreserved(&self, id: u64) -> Option<Key<Job>> {
        self.find(id).filter(|&job| self.jobs.arena[job].reserver().is_none())
    }

    /// The job of this id if this client holds it.
    pub fn reserved_by(&self, client: Key<Client>, id: u64) -> Option<Key<Job>> {
        self.find(id).filter(|&job| self.jobs.arena[job].reserver() == Some(client))
    }

    /// The job of this id if this client may delete it: it holds it, or nobody does.
    pub fn deletable_by(&self, client: Key<Client>, id: u64) -> Option<Key<Job>> {
        self.find(id).filter(|&job| self.jobs.arena[job].reserver().is_none_or(|by| by == client))
    }

    /// Forgets a job.
    pub fn delete(&mut self, job: Key<Job>) {
        let tube = self.pull(job);
        self.jobs.remove(job);
        self.tubes.arena[tube].deletes += 1;
        self.tubes.arena[tube].lose_job();
        self.drop_if_idle(tube);
    }

    /// Makes sure that [`Queue::release`] finds memory; without a delay it does.
    pub fn make_room_to_release(&mut self, job: Key<Job>, delay: u32) -> Result<(), NoRoom> {
        self.make_room_to_delay(self.jobs.arena[job].tube, delay)
    }

    /// Returns a reserved job with a new priority; without a delay, the tube answered is to hand
    /// out.
    pub fn release(&mut self, job: Key<Job>, pri: u32, delay: u32, now: Time) -> Key<Tube> {
        let tube = self.unreserve(job);
        let record = &mut self.jobs.arena[job].record;
        record.pri = pri;
        record.delay = delay;
        count(&mut record.releases);
        self.enqueue(job, delay, now);
        tube
    }

    /// Sets a reserved job aside with a new priority, behind the others buried in its tube.
    pub fn bury(&mut self, job: Key<Job>, pri: u32, now: Time) {
        self.unreserve(job);
        let record = &mut self.jobs.arena[job].record;
        record.pri = pri;
        record.state = State::Buried;
        record.deadline_at = now;
        count(&mut record.buries);
        self.place(job);
    }

    /// Grants a reserved job its whole time to run once more.
    pub fn touch(&mut self, job: Key<Job>, now: Time) {
        let Self { jobs, clients, timers, .. } = self;
        let record = &mut jobs.arena[job].record;
        record.deadline_at = now + seconds(record.ttr);
        let job = &jobs.arena[job];
        let client = job.reserver().expect("only a reserved job is touched");
        let (due, position) = (job.due_key(), job.position);
        let jobs = &mut jobs.arena;
        clients[client].deadlines.update(position, due, |job, at| jobs[job].position = at);
        timers.note_client(clients, client);
    }
}

/// Watching.
impl Queue {
    /// Adds a tube to those the client watches and answers how many they are. The tube comes to
    /// life if need be; watching twice counts once. Fails, and changes nothing, where there is no
    /// memory for that. O(tubes watched).
    pub fn watch(&mut self, client: Key<Client>, name: &str) -> Result<usize, NoRoom> {
        let found = self.tubes.find(name);
        if found.is_none_or(|tube| self.clients[client].watch_of(tube).is_none()) {
            self.make_room_to_watch(client)?;
            let tube = match found {
                Some(tube) => tube,
                None => self.try_make_tube(name)?,
            };
            self.add_watch(client, tube);
        }
        Ok(self.clients[client].watching())
    }

    fn make_room_to_watch(&mut self, client: Key<Client>) -> Result<(), NoRoom> {
        let room = self.jobs.bodies.room_mut();
        self.watches.make_room(Need::More, room)?;
        let Client { watching, absent, .. } = &mut self.clients[client];
        let count = watching.len() + 1;
        room.grow(Need::More, watching, count)?;
        // Each of them may lose its place one day, when nothing can be refused.
        room.grow(Need::More, absent, count)
    }

    /// Takes a tube from those the client watches and answers how many are left, or `None` where
    /// it would have been the last. O(tubes watched).
    pub fn ignore(&mut self, client: Key<Client>, name: &str) -> Option<usize> {
        let watching = self.clients[client].watching();
        let tube = self.tubes.find(name);
        let Some(place) = tube.and_then(|tube| self.clients[client].watch_of(tube)) else {
            return Some(watching);
        };
        if watching == 1 {
            return None;
        }
        self.drop_watch(client, place);
        Some(watching - 1)
    }

    fn add_watch(&mut self, client: Key<Client>, tube: Key<Tube>) {
        let watch = self.watches.insert(Watch { client, tube, place: None });
        self.clients[client].watching.push((tube, watch));
        self.clients[client].absent.push(watch);
        self.tubes.arena[tube].watchers += 1;
    }

    /// Ends the watch at this index of those of the client, which does not wait.
    fn drop_watch(&mut self, client: Key<Client>, index: usize) {
        let (tube, watch) = self.clients[client].watching.swap_remove(index);
        if let Some(place) = self.watches.remove(watch).place {
            let Self { tubes, watches, .. } = self;
            let line = &mut tubes.arena[tube].line;
            line.remove(place, |watch, at| watches[watch].place = Some(at));
        } else if !self.clients[client].has_left {
            self.clients[client].absent.retain(|&absent| absent != watch);
        }
        self.tubes.arena[tube].watchers -= 1;
        self.drop_if_idle(tube);
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

    /// Makes a buried or delayed job ready; the tube answered is to hand out. `None` where the
    /// job is in another state.
    pub fn kick_job(&mut self, job: Key<Job>) -> Option<Key<Tube>> {
        if !matches!(self.jobs.arena[job].record.state, State::Buried | State::Delayed) {
            return None;
        }
        let tube = self.pull(job);
        let Job { record, dated, .. } = &mut self.jobs.arena[job];
        dated.is_deadline = false;
        count(&mut record.kicks);
        self.make_ready(job);
        Some(tube)
    }

    /// Decides what a `kick` of up to `bound` jobs will move: buried jobs if there is one,
    /// delayed ones otherwise, and no more than there are now. The tube stays until
    /// [`Queue::end_kick`].
    pub fn begin_kick(&mut self, tube: Key<Tube>, bound: u32) -> Kick {
        let Tube { buried, delayed, pins, .. } = &mut self.tubes.arena[tube];
        *pins += 1;
        let (from, available) = if buried.is_empty() {
            (State::Delayed, delayed.len())
        } else {
            (State::Buried, buried.len())
        };
        let left = bound.min(u32::try_from(available).unwrap_or(u32::MAX));
        Kick { tube, from, left, moved: 0 }
    }

    /// Moves the next job of a kick and answers it; its tube is to hand out. `None` when all is
    /// done. O(log n).
    pub fn kick_next(&mut self, kick: &mut Kick) -> Option<Key<Job>> {
        kick.left = kick.left.checked_sub(1)?;
        let job = match kick.from {
            State::Buried => self.first_buried(kick.tube)?,
            _ => self.first_delayed(kick.tube)?,
        };
        kick.moved += 1;
        self.kick_job(job)?;
        Some(job)
    }

    /// Lets go of the kick's tube.
    pub fn end_kick(&mut self, kick: Kick) {
        self.tubes.arena[kick.tube].pins -= 1;
        self.drop_if_idle(kick.tube);
    }

    /// Holds back reserving from a tube for so many seconds. Zero ends a pause: by
    /// [`Queue::end_pause`], which the caller may repeat at once; if not, it is due.
    pub fn pause(&mut self, tube: Key<Tube>, length: u32, now: Time) {
        self.tubes.arena[tube].pauses += 1;
        self.set_pause(tube, Some(Pause { seconds: length, until: now + seconds(length) }));
    }

    /// The next step of ending a tube's pause, which hands a ready job to a waiting client; the
    /// last one, which answers `None`, lifts the pause. O(log n).
    pub fn end_pause(&mut self, tube: Key<Tube>, now: Time) -> Option<(Key<Client>, Key<Job>)> {
        let pair = self.bring_together(tube, now);
        if pair.is_none() {
            self.set_pause(tube, None);
        }
        pair
    }

    fn set_pause(&mut self, tube: Key<Tube>, pause: Option<Pause>) {
        self.tubes.arena[tube].pause = pause;
        self.tubes.note_offer(tube);
        self.timers.note_pause(&mut self.tubes.arena, tube);
    }
}

/// Coming back from a log, and holding still when a log fails.
impl Queue {
    /// Makes sure of the memory that [`Queue::restore`] takes beside that of the body.
    pub fn make_room_to_restore(&mut self, tube: &str) -> Result<(), NoRoom> {
        self.jobs.make_room()?;
        let room = self.jobs.bodies.room_mut();
        if let Some(tube) = self.tubes.find(tube) {
            let tube = &mut self.tubes.arena[tube];
            tube.ready.make_room(Need::More, room)?;
            return tube.delayed.make_room(Need::More, room);
        }
        self.tubes.make_room(tube, room)?;
        self.timers.make_room_for_tube(room)
    }

    /// Adds a job that was known before this process began, under its old id. Its state says
    /// where it goes: nobody holds it. Nothing is handed out.
    pub fn restore(&mut self, record: Record, dated: Dated, tube: &str, body: Body) -> Key<Job> {
        let tube = self.tubes.find(tube).unwrap_or_else(|| self.make_tube(tube));
        self.raise_id(record.id.saturating_add(1));
        let links = Links::default();
        let job = self.jobs.insert(Job { record, body, tube, dated, position: 0, links });
        self.tubes.arena[tube].gain_job();
        self.place(job);
        job
    }

    /// Replaces what is known of a restored job, which moves to where its new state says.
    pub fn amend(&mut self, job: Key<Job>, record: Record, dated: Dated) {
        self.pull(job);
        self.jobs.arena[job].record = record;
        self.jobs.arena[job].dated = dated;
        self.place(job);
    }

    /// Forgets a restored job: it was deleted before this process began.
    pub fn discard(&mut self, job: Key<Job>) {
        let tube = self.pull(job);
        self.jobs.remove(job);
        self.tubes.arena[tube].lose_job();
        self.drop_if_idle(tube);
    }

    /// No job will get an id below `next`.
    pub fn raise_id(&mut self, next: u64) {
        self.next_id = self.next_id.max(next);
    }

    /// The least id that no job has had.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Brings the buried jobs of every tube into the order in which they were buried. It takes no
    /// memory. O(jobs), if they are mostly in that order.
    pub fn sort_buried(&mut self) {
        for place in 0..self.tubes.len() {
            let tube = self.tubes.at(place);
            let buried = &mut self.tubes.arena[tube].buried;
            buried.sort_by_key(&mut self.jobs.arena, Job::due_key);
        }
    }

    /// Hands out no job until [`Queue::thaw`]: what cannot be finished must not be begun.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Ends a freeze. Tubes that have jobs for waiting clients hand them out in time, as if a pause
    /// of theirs ended now. O(tubes).
    pub fn thaw(&mut self, now: Time) {
        self.is_frozen = false;
        for place in 0..self.tubes.len() {
            let key = self.tubes.at(place);
            let tube = &self.tubes.arena[key];
            if !tube.ready.is_empty() && !tube.line.is_empty() && tube.pause.is_none() {
                self.set_pause(key, Some(Pause { seconds: 0, until: now }));
            }
        }
    }
}

/// The calendar.
impl Queue {
    /// The wall clock has been set: moves the dated instants of `count` jobs, or of fewer if there
    /// are many empty places among them, from the place `from` on. Answers the place to go on from,
    /// or `None` at the end. A restored delay that
    /// has ended too early goes on, unless a client has had the job since; one that should have
    /// ended does so with the next tick. `to_log` gets the jobs whose dates the binlog may have by the
    /// old calendar: those that are buried, and all that have had a delay, for of one that has ended
    /// no record tells. Each job must be shifted once. O(count · log n).
    pub fn shift_dates(
        &mut self,
        from: usize,
        count: usize,
        shift: impl Fn(Time) -> Time,
        now: Time,
        to_log: &mut Vec<Key<Job>>,
    ) -> Option<usize> {
        let (mut left, places) = (count, self.jobs.arena.places());
        let end = places.min(from.saturating_add(count.saturating_mul(PLACES_PER_JOB)));
        for index in from..end {
            let key = Key::from_index(index);
            let Some(job) = self.jobs.arena.get(key) else { continue };
            if left == 0 {
                return Some(index);
            }
            left -= 1;
            let (dated, state) = (job.dated, job.record.state);
            let Record { mut created_at, mut deadline_at, .. } = job.record;
            if dated.is_created {
                created_at = shift(created_at);
            }
            if dated.is_deadline {
                deadline_at = shift(deadline_at);
            } else if job.record.delay > 0 || state == State::Buried {
                to_log.push(key);
            }
            let moves = dated.is_deadline && matches!(state, State::Ready | State::Delayed);
            if moves {
                self.pull(key);
            }
            let record = &mut self.jobs.arena[key].record;
            (record.created_at, record.deadline_at) = (created_at, deadline_at);
            if moves {
                let is_over = state == State::Ready && deadline_at <= now;
                record.state = if is_over { State::Ready } else { State::Delayed };
                self.place(key);
            }
        }
        (end < places).then_some(end)
    }
}

/// Time.
impl Queue {
    /// Does the first thing of one kind that is due at `now`. `None` when nothing of this kind is
    /// due any more. A tick asks for the kinds in the order of [`Timer::ALL`]. O(log n).
    pub fn expire(&mut self, timer: Timer, now: Time) -> Option<Expired> {
        match self.timers.due(timer, now)? {
            Alarm::Delay(tube) => {
                let job = self.first_delayed(tube).expect("its timer says that there is one");
                self.pull(job);
                self.make_ready(job);
                Some(Expired::Ready(tube))
            }
            Alarm::Pause(tube) => Some(Expired::PauseOver(tube)),
            Alarm::Client(client) => Some(self.expire_client(client, now)),
        }
    }

    /// When the next thing is due, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    fn expire_client(&mut self, client: Key<Client>, now: Time) -> Expired {
        if self.clients[client].is_waiting() {
            self.stop_waiting(client);
            if self.is_deadline_soon(client, now) {
                return Expired::DeadlineSoon(client);
            }
            return Expired::TimedOut(client);
        }
        let (_, job) = self.clients[client].deadlines.peek().expect("its timer says so");
        let tube = self.unreserve(job);
        count(&mut self.jobs.arena[job].record.timeouts);
        self.counts.timeouts += 1;
        self.make_ready(job);
        Expired::Ready(tube)
    }
}

/// Memory.
impl Queue {
    /// Gives a piece of memory that jobs, tubes or clients have left back to the system; whether
    /// there was one. See [`Arena::free_spent`].
    pub fn free_spent(&mut self) -> bool {
        self.jobs.free_spent()
            || self.tubes.arena.free_spent()
            || self.watches.free_spent()
            || self.clients.free_spent()
    }

    /// Whether there is something to give back.
    pub fn has_spent(&self) -> bool {
        self.jobs.has_spent()
            || self.tubes.arena.has_spent()
            || self.watches.has_spent()
            || self.clients.has_spent()
    }
}

/// Reading what is there.
impl Queue {
    /// A job by key.
    pub fn job(&self, job: Key<Job>) -> &Job {
        &self.jobs.arena[job]
    }

    /// The bytes of a job's body, with the CR LF that ended them.
    pub fn body(&self, job: Key<Job>) -> &[u8] {
        self.jobs.bodies.bytes(&self.jobs.arena[job].body)
    }

    /// The bytes of a job's body, and the memory that there is for a copy of them.
    pub fn body_and_room(&mut self, job: Key<Job>) -> (&[u8], &mut Room) {
        self.jobs.bodies.bytes_and_room(&self.jobs.arena[job].body)
    }

    /// Another right to a job's body if it is large; see [`Bodies::share`].
    pub fn share(&mut self, job: Key<Job>) -> Option<Body> {
        let body = &self.jobs.arena[job].body;
        body.is_large().then(|| self.jobs.bodies.share(body))
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

    /// How many bytes the jobs hold: their bodies, and [`JOB_COST`] for each.
    pub fn held(&self) -> u64 {
        self.jobs.held()
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

    /// The same, and the memory that there is for a copy of them.
    pub fn tube_names_and_room(&mut self) -> (impl Iterator<Item = &str>, &mut Room) {
        let Self { tubes, jobs, .. } = self;
        let tubes = &*tubes;
        (tubes.iter().map(|tube| tubes.arena[tube].name()), jobs.bodies.room_mut())
    }

    /// The names of the tubes the client watches, in the order of `list-tubes-watched`.
    pub fn watched_names(&self, client: Key<Client>) -> impl Iterator<Item = &str> {
        self.clients[client].watching.iter().map(|&(tube, _)| self.tubes.arena[tube].name())
    }

    /// The same, and the memory that there is for a copy of them.
    pub fn watched_names_and_room(
        &mut self,
        client: Key<Client>,
    ) -> (impl Iterator<Item = &str>, &mut Room) {
        let Self { tubes, clients, jobs, .. } = self;
        let tubes = &*tubes;
        let names = clients[client].watching.iter().map(|&(tube, _)| tubes.arena[tube].name());
        (names, jobs.bodies.room_mut())
    }

    /// The name of the tube the client uses, and the memory that there is for a copy of it.
    pub fn used_name_and_room(&mut self, client: Key<Client>) -> (&str, &mut Room) {
        let tube = self.clients[client].using;
        (self.tubes.arena[tube].name(), self.jobs.bodies.room_mut())
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
fn count(counter: &mut u32) {
    *counter = counter.wrapping_add(1);
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}
