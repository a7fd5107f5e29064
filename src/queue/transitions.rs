//! The state transitions of jobs; all commands and timers use these functions.
//!
//! Only the functions of this file move a job between heaps and lists; they keep heaps, lists,
//! timers and counters consistent. A detached job is in no heap or list, and keeps its old `state`
//! until the job is assigned or placed.

use super::{Queue, State, increment, seconds};
use crate::{
    clock::Time,
    collections::Key,
    queue::{Client, Job, Tube},
};

impl Queue {
    /// Removes a job from the heap or list of its state, and returns the job's tube.
    pub(super) fn detach(&mut self, key: Key<Job>) -> Key<Tube> {
        let job = &self.jobs.arena[key];
        let (tube, position) = (job.tube, job.position);
        let jobs = &mut self.jobs.arena;
        match jobs[key].record.state {
            State::Reserved(_) => return self.unreserve(key),
            State::Ready => {
                let urgent = u64::from(jobs[key].is_urgent());
                let Tube { ready, urgent: of_tube, .. } = &mut self.tubes.arena[tube];
                ready.remove(position, |job, at| jobs[job].position = at);
                *of_tube -= urgent;
                self.tubes.update_best_ready(tube);
                self.counts.urgent -= urgent;
                self.counts.ready -= 1;
            }
            State::Delayed => {
                let delayed = &mut self.tubes.arena[tube].delayed;
                delayed.remove(position, |job, at| jobs[job].position = at);
                self.timers.update_delay(&mut self.tubes.arena, tube);
                self.counts.delayed -= 1;
            }
            State::Buried => {
                self.tubes.arena[tube].buried.unlink(jobs, key);
                self.counts.buried -= 1;
            }
        }
        tube
    }

    /// Removes a reserved job from its client, and returns the job's tube.
    pub(super) fn unreserve(&mut self, key: Key<Job>) -> Key<Tube> {
        let Self { jobs, tubes, clients, timers, counts, .. } = self;
        let jobs = &mut jobs.arena;
        let client = jobs[key].reserver().expect("a reserved job has a reserver");
        let Job { tube, position, .. } = jobs[key];
        clients[client].reserved.unlink(jobs, key);
        clients[client].deadlines.remove(position, |job, at| jobs[job].position = at);
        timers.update_client(clients, client);
        tubes.arena[tube].reserved -= 1;
        counts.reserved -= 1;
        tube
    }

    /// Reserves a detached job for `client`, and starts the job's time to run.
    pub(super) fn assign(&mut self, key: Key<Job>, client: Key<Client>, now: Time) {
        let Self { jobs, tubes, clients, timers, counts, started_at, .. } = self;
        let jobs = &mut jobs.arena;
        let job = &mut jobs[key];
        let tube = &mut tubes.arena[job.tube];
        if job.record.state == State::Ready {
            tube.times_mut().wait.add(job.record.state_at.max(*started_at).nanoseconds_until(now));
        }
        job.record.state = State::Reserved(client);
        job.record.state_at = now;
        job.dated.is_state_at = false;
        increment(&mut job.record.history.reserves);
        tube.reserved += 1;
        counts.reserved += 1;
        let due = job.due_key(now + seconds(job.record.ttr));
        clients[client].reserved.push_back(jobs, key);
        clients[client].deadlines.push(due, key, |job, at| jobs[job].position = at);
        timers.update_client(clients, client);
    }

    /// Adds a detached job to the heap or list of `state`, which is not `Reserved`. If `state` is
    /// `Delayed`, `at` is the end of the delay; if not, the time at which this state began.
    /// If the job is ready, the caller must then call [`Queue::hand_out`] for the job's tube.
    pub(super) fn place(&mut self, key: Key<Job>, state: State, at: Time) {
        let Self { jobs, tubes, timers, counts, .. } = self;
        let jobs = &mut jobs.arena;
        let job = &mut jobs[key];
        (job.record.state, job.record.state_at) = (state, at);
        let tube = job.tube;
        let of_tube = &mut tubes.arena[tube];
        match state {
            State::Delayed => {
                let due = job.due_key(at);
                of_tube.delayed.push(due, key, |job, at| jobs[job].position = at);
                timers.update_delay(&mut tubes.arena, tube);
                counts.delayed += 1;
            }
            State::Buried => {
                of_tube.buried.push_back(jobs, key);
                counts.buried += 1;
            }
            State::Ready | State::Reserved(_) => {
                let (order, urgent) = (job.ready_key(), u64::from(job.is_urgent()));
                of_tube.ready.push(order, key, |job, at| jobs[job].position = at);
                of_tube.urgent += urgent;
                if jobs[key].position == 0 {
                    tubes.update_best_ready(tube);
                }
                counts.urgent += urgent;
                counts.ready += 1;
            }
        }
    }

    /// Unpins a tube after a long command, and drops the tube if nothing else keeps it.
    pub fn unpin(&mut self, tube: Key<Tube>) {
        self.tubes.arena[tube].pins -= 1;
        self.drop_if_idle(tube);
    }

    /// Drops a tube if it has no jobs, users, watchers or long commands any more.
    pub(super) fn drop_if_idle(&mut self, tube: Key<Tube>) {
        if self.tubes.arena[tube].is_idle() {
            self.set_pause(tube, None);
            self.tubes.remove(tube);
            self.timers.set_tube_capacity(self.tubes.order.len());
        }
    }
}
