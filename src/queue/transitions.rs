//! From place to place: the steps that every verb is made of.
//!
//! A job is in one place, and only these functions move it: they keep heaps, lists, timers and
//! counters in line. A job that was pulled is nowhere, and its state stale, until the caller puts
//! it somewhere.

use super::{Queue, State, increment, seconds};
use crate::{
    clock::Time,
    collections::Key,
    queue::{Client, Job, Tube},
};

impl Queue {
    /// Takes a job out of the place its state names.
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

    /// Takes a job out of its client's hands.
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

    /// Puts a job that is nowhere into its client's hands.
    pub(super) fn assign(&mut self, key: Key<Job>, client: Key<Client>, now: Time) {
        let Self { jobs, tubes, clients, timers, counts, .. } = self;
        let jobs = &mut jobs.arena;
        let job = &mut jobs[key];
        job.record.state = State::Reserved(client);
        job.record.deadline_at = now + seconds(job.record.ttr);
        job.dated.is_deadline = false;
        increment(&mut job.record.reserves);
        tubes.arena[job.tube].reserved += 1;
        counts.reserved += 1;
        let due = job.due_key();
        clients[client].reserved.push_back(jobs, key);
        clients[client].deadlines.push(due, key, |job, at| jobs[job].position = at);
        timers.update_client(clients, client);
    }

    /// Puts a job that is nowhere where its state says; nobody holds it.
    pub(super) fn insert_by_state(&mut self, key: Key<Job>) {
        let Self { jobs, tubes, .. } = self;
        let tube = jobs.arena[key].tube;
        match jobs.arena[key].record.state {
            State::Ready | State::Reserved(_) => self.make_ready(key),
            State::Delayed => self.make_delayed(key),
            State::Buried => {
                tubes.arena[tube].buried.push_back(&mut jobs.arena, key);
                self.counts.buried += 1;
            }
        }
    }

    /// Puts a job that is nowhere among the ready or, with a delay, the delayed ones.
    pub(super) fn enqueue(&mut self, key: Key<Job>, delay: u32, now: Time) {
        if delay == 0 {
            return self.make_ready(key);
        }
        let record = &mut self.jobs.arena[key].record;
        record.state = State::Delayed;
        record.deadline_at = now + seconds(delay);
        self.make_delayed(key);
    }

    /// Puts a job that is nowhere among the delayed ones, until its deadline.
    fn make_delayed(&mut self, key: Key<Job>) {
        let jobs = &mut self.jobs.arena;
        let (tube, due) = (jobs[key].tube, jobs[key].due_key());
        let delayed = &mut self.tubes.arena[tube].delayed;
        delayed.push(due, key, |job, at| jobs[job].position = at);
        self.timers.update_delay(&mut self.tubes.arena, tube);
        self.counts.delayed += 1;
    }

    /// Puts a job that is nowhere among the ready ones; its tube is to hand out.
    pub(super) fn make_ready(&mut self, key: Key<Job>) {
        let jobs = &mut self.jobs.arena;
        jobs[key].record.state = State::Ready;
        let urgent = u64::from(jobs[key].is_urgent());
        let order = jobs[key].ready_key();
        let tube = jobs[key].tube;
        let Tube { ready, urgent: of_tube, .. } = &mut self.tubes.arena[tube];
        ready.push(order, key, |job, at| jobs[job].position = at);
        *of_tube += urgent;
        self.tubes.update_best_ready(tube);
        self.counts.urgent += urgent;
        self.counts.ready += 1;
    }

    /// Forgets a tube that has no jobs, users or watchers any more.
    pub(super) fn drop_if_idle(&mut self, tube: Key<Tube>) {
        if self.tubes.is_idle(tube) {
            self.set_pause(tube, None);
            self.tubes.remove(tube);
            self.timers.set_tube_capacity(self.tubes.len());
        }
    }
}
