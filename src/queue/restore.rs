//! Jobs that come back from the binlog, and their dates.

use super::{Dated, Job, Pause, Queue, Record, State};
use crate::{
    clock::Time,
    collections::{Key, Links},
    memory::{Body, MemoryBudget, Need, OutOfMemory},
};

/// How many empty places are passed in the time that one job takes, at least.
const POSITIONS_PER_JOB: usize = 16;

/// Coming back from a log, and holding still when a log fails.
impl Queue {
    /// Makes sure of the memory that [`Queue::restore`] takes beside that of the body.
    pub fn ensure_memory_to_restore(
        &mut self,
        id: u64,
        tube: &str,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        self.jobs.ensure_memory(id, budget)?;
        if let Some(tube) = self.tubes.find(tube) {
            let tube = &mut self.tubes.arena[tube];
            tube.ready.ensure_memory(Need::Storage, budget)?;
            return tube.delayed.ensure_memory(Need::Storage, budget);
        }
        self.tubes.ensure_memory(tube, budget)?;
        self.timers.ensure_memory_for_tube(budget)
    }

    /// Adds a job that was known before this process began, under its old id. Its state says
    /// where it goes: nobody holds it. Nothing is handed out.
    pub fn restore(&mut self, record: Record, dated: Dated, tube: &str, body: Body) -> Key<Job> {
        let tube = self.tubes.find(tube).unwrap_or_else(|| self.make_tube(tube));
        self.raise_id(record.id.saturating_add(1));
        let links = Links::default();
        let job = self.jobs.insert(Job { record, body, tube, dated, position: 0, links });
        self.tubes.arena[tube].add_job();
        self.insert_by_state(job);
        job
    }

    /// Replaces what is known of a restored job, which moves to where its new state says.
    pub fn replace_record(&mut self, job: Key<Job>, record: Record, dated: Dated) {
        self.detach(job);
        self.jobs.arena[job].record = record;
        self.jobs.arena[job].dated = dated;
        self.insert_by_state(job);
    }

    /// Forgets a restored job, which was deleted before this process began, and answers its body,
    /// which the caller must give back.
    pub fn discard(&mut self, job: Key<Job>) -> Body {
        let tube = self.detach(job);
        let body = self.jobs.remove(job);
        self.tubes.arena[tube].remove_job();
        self.drop_if_idle(tube);
        body
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
            if !tube.ready.is_empty() && !tube.waiters.is_empty() && tube.pause.is_none() {
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
    /// ended does so with the next tick. `to_log` gets the jobs whose dates the binlog may have by
    /// the old calendar: those that are buried, and all that have had a delay, for of one that has
    /// ended no record tells. Each job must be shifted once. O(count · log n).
    pub fn shift_dates(
        &mut self,
        from: usize,
        count: usize,
        shift: impl Fn(Time) -> Time,
        now: Time,
        to_log: &mut Vec<Key<Job>>,
    ) -> Option<usize> {
        let (mut left, places) = (count, self.jobs.arena.slots());
        let end = places.min(from.saturating_add(count.saturating_mul(POSITIONS_PER_JOB)));
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
                self.detach(key);
            }
            let record = &mut self.jobs.arena[key].record;
            (record.created_at, record.deadline_at) = (created_at, deadline_at);
            if moves {
                let is_over = state == State::Ready && deadline_at <= now;
                record.state = if is_over { State::Ready } else { State::Delayed };
                self.insert_by_state(key);
            }
        }
        (end < places).then_some(end)
    }
}
