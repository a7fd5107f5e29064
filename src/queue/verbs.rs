//! One method for each command. The caller first finds the job, for example by [`Queue::find`].

use super::{
    Client, Dated, Job, Kick, Pause, Queue, Record, State, Tube, client::Watch, increment,
    job::ReadyKey, seconds,
};
use crate::{
    clock::Time,
    collections::{Growth, Key, grow},
    memory::Body,
};

impl Queue {
    /// Takes an id for the job of a `put`. If the `put` fails later, no job has this id.
    pub fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Makes the client use a tube.
    pub fn use_tube(&mut self, client: Key<Client>, tube: Key<Tube>) {
        self.tubes.arena[tube].users += 1;
        let before = std::mem::replace(&mut self.clients[client].using, tube);
        self.tubes.arena[before].users -= 1;
        self.drop_if_idle(before);
    }

    /// Makes a tube with a name that no tube has, or fails if there is no memory. In the same step,
    /// the tube must get a user, a watcher or a job.
    pub fn make_tube(&mut self, name: &str) -> Growth<Key<Tube>> {
        self.tubes.make_room()?;
        self.timers.delays.make_room(self.is_resident)?;
        self.timers.pauses.make_room(self.is_resident)?;
        let tube = self.tubes.make(name);
        self.timers.set_tube_capacity(self.tubes.order.len());
        Ok(tube)
    }

    /// Makes room for a job of this tube, but not for the body, or fails if there is no memory.
    /// O(1), unless a list is reallocated.
    pub fn make_room_to_put(&mut self, tube: Key<Tube>, is_delayed: bool) -> Growth {
        self.jobs.make_room()?;
        self.tubes.arena[tube].ready.make_room(self.is_resident)?;
        self.make_room_to_delay(tube, is_delayed)
    }

    /// If a job that comes into the tube `is_delayed`, makes room for it among the tube's delayed
    /// jobs.
    pub fn make_room_to_delay(&mut self, tube: Key<Tube>, is_delayed: bool) -> Growth {
        if is_delayed {
            self.tubes.arena[tube].delayed.make_room(self.is_resident)?;
        }
        Ok(())
    }

    /// Adds a job to the tube that the client uses. If the job has no delay, the caller must then
    /// call [`Queue::hand_out`] for the job's tube.
    pub fn put(
        &mut self,
        client: Key<Client>,
        mut record: Record,
        body: Body,
        now: Time,
    ) -> Key<Job> {
        let tube = self.clients[client].using;
        self.tubes.arena[tube].total_jobs += 1;
        self.counts.total_jobs += 1;
        (record.state, record.state_at) = ready_or_delayed(record.delay, now);
        self.add(record, Dated::default(), tube, body)
    }
}

impl Queue {
    /// The job that a `reserve` gets: of the unpaused tubes that the client watches, the ready job
    /// with the smallest `pri`; if several jobs have this `pri`, the job with the smallest id.
    /// O(tubes watched), but the search begins where the last search found a job, and ends when it
    /// has seen all tubes with a ready job.
    pub fn best_ready_job(&mut self, client: Key<Client>) -> Option<Key<Job>> {
        let Client { watching, found_at, .. } = &mut self.clients[client];
        let mut unseen = if self.is_frozen { 0 } else { self.tubes.with_ready_job };
        let begin = (*found_at).min(watching.len());
        let mut best = (ReadyKey::NONE, None);
        for at in (begin..watching.len()).chain(0..begin) {
            if unseen == 0 {
                break;
            }
            let (tube, _) = watching[at];
            let order = self.tubes.best_ready[tube.index()];
            unseen -= usize::from(order != ReadyKey::NONE);
            if order < best.0 {
                (best, *found_at) = ((order, Some(tube)), at);
            }
        }
        best.1.and_then(|tube| self.first_ready(tube))
    }

    /// Reserves a job of any tube; the job must not be reserved yet. If there is no memory, fails
    /// and changes nothing.
    pub fn reserve_job(&mut self, client: Key<Client>, job: Key<Job>, now: Time) -> Growth {
        self.clients[client].deadlines.make_room(self.is_resident)?;
        self.detach(job);
        self.assign(job, client, now);
        Ok(())
    }
}

/// Finishing a job.
impl Queue {
    /// The job with this id, in any state.
    pub fn find(&self, id: u64) -> Option<Key<Job>> {
        // A replay looks up the id of each record; for a new id, this check spares the search.
        if id < self.next_id { self.jobs.ids.get(id) } else { None }
    }

    /// The job with this id, if no client has reserved it.
    pub fn find_unreserved(&self, id: u64) -> Option<Key<Job>> {
        self.find(id).filter(|&job| self.jobs.arena[job].reserver().is_none())
    }

    /// The job with this id, if this client has reserved it.
    pub fn reserved_by(&self, client: Key<Client>, id: u64) -> Option<Key<Job>> {
        self.find(id).filter(|&job| self.jobs.arena[job].reserver() == Some(client))
    }

    /// The job with this id, if no other client has reserved it.
    pub fn deletable_by(&self, client: Key<Client>, id: u64) -> Option<Key<Job>> {
        self.find(id).filter(|&job| self.jobs.arena[job].reserver().is_none_or(|by| by == client))
    }

    /// Deletes a job from the queue. The caller must pass its body to
    /// [`crate::memory::Bodies::remove`].
    pub fn delete(&mut self, job: Key<Job>, now: Time) -> Body {
        let &Job { ref record, tube, .. } = &self.jobs.arena[job];
        let tube = &mut self.tubes.arena[tube];
        if let State::Reserved(_) = record.state {
            tube.times_mut().run.add(record.state_at.nanoseconds_until(now));
        }
        tube.deletes += 1;
        self.discard(job)
    }

    /// Releases a reserved job with a new priority. If the job has no delay, the caller must then
    /// call [`Queue::hand_out`] for the returned tube. If there is no memory, fails and changes
    /// nothing.
    pub fn release(&mut self, job: Key<Job>, pri: u32, delay: u32, now: Time) -> Growth<Key<Tube>> {
        self.make_room_to_delay(self.jobs.arena[job].tube, delay > 0)?;
        let tube = self.unreserve(job);
        let record = &mut self.jobs.arena[job].record;
        record.pri = pri;
        record.delay = delay;
        increment(&mut record.history.releases);
        let (state, at) = ready_or_delayed(delay, now);
        self.place(job, state, at);
        Ok(tube)
    }

    /// Buries a reserved job with a new priority, after the other buried jobs of its tube.
    pub fn bury(&mut self, job: Key<Job>, pri: u32, now: Time) {
        self.unreserve(job);
        let record = &mut self.jobs.arena[job].record;
        record.pri = pri;
        increment(&mut record.history.buries);
        self.place(job, State::Buried, now);
    }

    /// Restarts the time to run of a reserved job.
    pub fn touch(&mut self, job: Key<Job>, now: Time) {
        let Self { jobs, clients, timers, .. } = self;
        let job = &jobs.arena[job];
        let client = job.reserver().expect("only a reserved job is touched");
        let (due, position) = (job.due_key(now + seconds(job.record.ttr)), job.position);
        let jobs = &mut jobs.arena;
        clients[client].deadlines.update(position, due, |job, at| jobs[job].position = at);
        timers.update_client(clients, client);
    }
}

/// Watching.
impl Queue {
    /// Makes room for one more tube that the client watches, or fails if there is no memory.
    pub fn make_room_to_watch(&mut self, client: Key<Client>) -> Growth {
        self.watches.make_room()?;
        let Client { watching, unqueued, .. } = &mut self.clients[client];
        let count = watching.len() + 1;
        grow(watching, count)?;
        // Each watch may have to move to `unqueued` later, in a step that must not fail.
        grow(unqueued, count)
    }

    /// Removes a tube from the client's watched tubes and returns how many watched tubes remain. If
    /// the client watches no other tube, changes nothing and returns `None`. O(tubes watched).
    pub fn ignore(&mut self, client: Key<Client>, name: &str) -> Option<usize> {
        let watching = self.clients[client].watching();
        let tube = self.tubes.find(name);
        let Some(index) = tube.and_then(|tube| self.clients[client].watch_of(tube)) else {
            return Some(watching);
        };
        if watching == 1 {
            return None;
        }
        self.drop_watch(client, index);
        Some(watching - 1)
    }

    /// Adds a tube to the client's watched tubes, which do not include it yet.
    pub fn add_watch(&mut self, client: Key<Client>, tube: Key<Tube>) {
        let watch = self.watches.insert(Watch { client, tube, queue_position: None });
        self.clients[client].watching.push((tube, watch));
        self.clients[client].unqueued.push(watch);
        self.tubes.arena[tube].watchers += 1;
    }

    /// Ends the watch at `index` of the client's `watching`. The client must not be waiting.
    pub(super) fn drop_watch(&mut self, client: Key<Client>, index: usize) {
        let (tube, watch) = self.clients[client].watching.swap_remove(index);
        if let Some(position) = self.watches.remove(watch).queue_position {
            let Self { tubes, watches, .. } = self;
            let waiters = &mut tubes.arena[tube].waiters;
            waiters.remove(position, |watch, at| watches[watch].queue_position = Some(at));
        } else if !self.clients[client].has_left {
            self.clients[client].unqueued.retain(|&unqueued| unqueued != watch);
        }
        self.tubes.arena[tube].watchers -= 1;
        self.drop_if_idle(tube);
    }
}

impl Queue {
    /// Makes a buried or delayed job ready. The caller must then call [`Queue::hand_out`] for the
    /// returned tube. Returns `None` if the job is in another state.
    pub fn kick_job(&mut self, job: Key<Job>, now: Time) -> Option<Key<Tube>> {
        if !matches!(self.jobs.arena[job].record.state, State::Buried | State::Delayed) {
            return None;
        }
        let tube = self.detach(job);
        let Job { record, dated, .. } = &mut self.jobs.arena[job];
        dated.is_state_at = false;
        increment(&mut record.history.kicks);
        self.place(job, State::Ready, now);
        Some(tube)
    }

    /// Begins a `kick` of the buried jobs, or of the delayed jobs if no job is buried. The `kick`
    /// moves at most `bound` jobs, and never more than there are now. The tube exists at least
    /// until [`Queue::unpin`].
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

    /// Kicks the next job and returns it. The caller must then call [`Queue::hand_out`] for the
    /// job's tube. Returns `None` at the end of the kick. O(log n).
    pub fn kick_next(&mut self, kick: &mut Kick, now: Time) -> Option<Key<Job>> {
        kick.left = kick.left.checked_sub(1)?;
        let job = match kick.from {
            State::Buried => self.first_buried(kick.tube)?,
            _ => self.first_delayed(kick.tube)?,
        };
        kick.moved += 1;
        self.kick_job(job, now)?;
        Some(job)
    }

    /// Pauses a tube for `length` seconds. If `length` is 0, the pause ends at the next tick, or at
    /// once if the caller calls [`Queue::end_pause`] until the call returns `None`.
    pub fn pause(&mut self, tube: Key<Tube>, length: u32, now: Time) {
        self.tubes.arena[tube].pauses += 1;
        self.set_pause(tube, Some(Pause { seconds: length, until: now + seconds(length) }));
    }

    /// Sets or ends the pause of a tube, for `pause-tube` and the end of a pause.
    pub(super) fn set_pause(&mut self, tube: Key<Tube>, pause: Option<Pause>) {
        self.tubes.arena[tube].pause = pause;
        self.tubes.update_best_ready(tube);
        self.timers.update_pause(&mut self.tubes.arena, tube);
    }
}

/// The state and the `state_at` of a job that is put or released at `now` with this delay.
fn ready_or_delayed(delay: u32, now: Time) -> (State, Time) {
    if delay == 0 { (State::Ready, now) } else { (State::Delayed, now + seconds(delay)) }
}
