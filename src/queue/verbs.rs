//! What clients do: one method for each verb of the protocol.

use super::{
    Client, Dated, Job, Kick, Pause, Put, Queue, Record, State, Tube, client::Watch, increment,
    job::ReadyKey, seconds,
};
use crate::{
    clock::Time,
    collections::{Key, Links},
    memory::{Body, MemoryBudget, Need, OutOfMemory},
};

impl Queue {
    /// Takes the next job id; a put that fails later leaves a gap.
    pub fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Makes the client use a tube, which comes to life if need be. Fails, and changes nothing,
    /// where there is no memory for that.
    pub fn use_tube(
        &mut self,
        client: Key<Client>,
        name: &str,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        let tube = match self.tubes.find(name) {
            Some(tube) => tube,
            None => self.try_make_tube(name, budget)?,
        };
        self.tubes.arena[tube].users += 1;
        let before = std::mem::replace(&mut self.clients[client].using, tube);
        self.tubes.arena[before].users -= 1;
        self.drop_if_idle(before);
        Ok(())
    }

    /// Adds a tube whose name no other has. Fails where there is no memory for it.
    fn try_make_tube(
        &mut self,
        name: &str,
        budget: &mut MemoryBudget,
    ) -> Result<Key<Tube>, OutOfMemory> {
        self.tubes.ensure_memory(name, budget)?;
        self.timers.ensure_memory_for_tube(budget)?;
        Ok(self.make_tube(name))
    }

    pub(super) fn make_tube(&mut self, name: &str) -> Key<Tube> {
        let tube = self.tubes.make(name);
        self.timers.set_tube_capacity(self.tubes.len());
        tube
    }

    /// Makes sure that the client's next [`Queue::put`] finds memory. O(1), unless a list must
    /// move.
    pub fn ensure_memory_to_put(
        &mut self,
        client: Key<Client>,
        delay: u32,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        let tube = self.clients[client].using;
        self.jobs.ensure_memory(self.next_id, budget)?;
        self.tubes.arena[tube].ready.ensure_memory(Need::Storage, budget)?;
        self.ensure_memory_to_delay(tube, delay, budget)
    }

    /// Makes sure that another delayed job of the tube finds memory, unless it has no delay.
    fn ensure_memory_to_delay(
        &mut self,
        tube: Key<Tube>,
        delay: u32,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        match delay {
            0 => Ok(()),
            _ => self.tubes.arena[tube].delayed.ensure_memory(Need::Essential, budget),
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
        self.tubes.arena[tube].add_job();
        self.tubes.arena[tube].total_jobs += 1;
        self.counts.total_jobs += 1;
        self.enqueue(job, put.delay, now);
        job
    }
}

impl Queue {
    /// Makes sure that the client can hold another job. O(1), unless its list must move.
    pub fn ensure_memory_to_hold(
        &mut self,
        client: Key<Client>,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        self.clients[client].deadlines.ensure_memory(Need::Essential, budget)
    }

    /// Hands the client the best ready job of the unpaused tubes it watches: the least priority,
    /// among equals the oldest. O(tubes watched + log n).
    pub fn reserve(&mut self, client: Key<Client>, now: Time) -> Option<Key<Job>> {
        if self.is_frozen || self.tubes_to_scan(client) == 0 {
            return None;
        }
        let watching = self.clients[client].watching.iter().map(|&(tube, _)| tube);
        let tube = watching.min_by_key(|&tube| self.tubes.best_ready(tube))?;
        let job =
            self.first_ready(tube).filter(|_| self.tubes.best_ready(tube) != ReadyKey::NONE)?;
        self.detach(job);
        self.assign(job, client, now);
        Some(job)
    }

    /// Hands the client a job that nobody holds, from whatever state and tube.
    pub fn reserve_job(&mut self, client: Key<Client>, job: Key<Job>, now: Time) {
        self.detach(job);
        self.assign(job, client, now);
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

    /// Forgets a job and answers its body, which the caller must give back.
    pub fn delete(&mut self, job: Key<Job>) -> Body {
        let tube = self.detach(job);
        let body = self.jobs.remove(job);
        self.tubes.arena[tube].deletes += 1;
        self.tubes.arena[tube].remove_job();
        self.drop_if_idle(tube);
        body
    }

    /// Makes sure that [`Queue::release`] finds memory; without a delay it does.
    pub fn ensure_memory_to_release(
        &mut self,
        job: Key<Job>,
        delay: u32,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        self.ensure_memory_to_delay(self.jobs.arena[job].tube, delay, budget)
    }

    /// Returns a reserved job with a new priority; without a delay, the tube answered is to hand
    /// out.
    pub fn release(&mut self, job: Key<Job>, pri: u32, delay: u32, now: Time) -> Key<Tube> {
        let tube = self.unreserve(job);
        let record = &mut self.jobs.arena[job].record;
        record.pri = pri;
        record.delay = delay;
        increment(&mut record.releases);
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
        increment(&mut record.buries);
        self.insert_by_state(job);
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
        timers.update_client(clients, client);
    }
}

/// Watching.
impl Queue {
    /// Adds a tube to those the client watches and answers how many they are. The tube comes to
    /// life if need be; watching twice counts once. Fails, and changes nothing, where there is no
    /// memory for that. O(tubes watched).
    pub fn watch(
        &mut self,
        client: Key<Client>,
        name: &str,
        budget: &mut MemoryBudget,
    ) -> Result<usize, OutOfMemory> {
        let found = self.tubes.find(name);
        if found.is_none_or(|tube| self.clients[client].watch_of(tube).is_none()) {
            self.ensure_memory_to_watch(client, budget)?;
            let tube = match found {
                Some(tube) => tube,
                None => self.try_make_tube(name, budget)?,
            };
            self.add_watch(client, tube);
        }
        Ok(self.clients[client].watching())
    }

    fn ensure_memory_to_watch(
        &mut self,
        client: Key<Client>,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        self.watches.ensure_memory(Need::Storage, budget)?;
        let Client { watching, unqueued, .. } = &mut self.clients[client];
        let count = watching.len() + 1;
        budget.grow_vec(Need::Storage, watching, count)?;
        // Each of them may lose its place one day, when nothing can be refused.
        budget.grow_vec(Need::Storage, unqueued, count)
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

    pub(super) fn add_watch(&mut self, client: Key<Client>, tube: Key<Tube>) {
        let watch = self.watches.insert(Watch { client, tube, queue_position: None });
        self.clients[client].watching.push((tube, watch));
        self.clients[client].unqueued.push(watch);
        self.tubes.arena[tube].watchers += 1;
    }

    /// Ends the watch at this index of those of the client, which does not wait.
    pub(super) fn drop_watch(&mut self, client: Key<Client>, index: usize) {
        let (tube, watch) = self.clients[client].watching.swap_remove(index);
        if let Some(place) = self.watches.remove(watch).queue_position {
            let Self { tubes, watches, .. } = self;
            let waiters = &mut tubes.arena[tube].waiters;
            waiters.remove(place, |watch, at| watches[watch].queue_position = Some(at));
        } else if !self.clients[client].has_left {
            self.clients[client].unqueued.retain(|&unqueued| unqueued != watch);
        }
        self.tubes.arena[tube].watchers -= 1;
        self.drop_if_idle(tube);
    }
}

impl Queue {
    /// Makes a buried or delayed job ready; the tube answered is to hand out. `None` where the
    /// job is in another state.
    pub fn kick_job(&mut self, job: Key<Job>) -> Option<Key<Tube>> {
        if !matches!(self.jobs.arena[job].record.state, State::Buried | State::Delayed) {
            return None;
        }
        let tube = self.detach(job);
        let Job { record, dated, .. } = &mut self.jobs.arena[job];
        dated.is_deadline = false;
        increment(&mut record.kicks);
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

    pub(super) fn set_pause(&mut self, tube: Key<Tube>, pause: Option<Pause>) {
        self.tubes.arena[tube].pause = pause;
        self.tubes.update_best_ready(tube);
        self.timers.update_pause(&mut self.tubes.arena, tube);
    }
}
