//! Restores jobs from the binlog, freezes the queue, and shifts dates when the clock is set.

use super::{Dated, Job, Pause, Queue, Record, State, Tube};
use crate::{
    clock::Time,
    collections::{Growth, Key, Links},
    memory::Body,
};

/// A call that shifts the dates of at most n jobs also ends after n times this many slots, because
/// most slots may be empty.
const SLOTS_PER_JOB: usize = 16;

/// Restores jobs, and freezes the queue while the binlog has failed.
impl Queue {
    /// Begins to measure the waits of restored jobs at `now`, when the daemon begins to serve.
    pub fn start(&mut self, now: Time) {
        self.started_at = now;
        // If `default` has no job after the replay, it needs no histograms yet.
        let Tube { jobs, times, .. } = &mut self.tubes.arena[self.default];
        times.take_if(|_| *jobs == 0);
    }

    /// Makes room for [`Queue::add`], except for the body, or fails if there is no memory.
    /// `is_delayed` must be true if the job will be, or may be, in the state `Delayed`. Returns the
    /// tube, which is made if necessary.
    pub fn make_room_to_restore(&mut self, tube: &str, is_delayed: bool) -> Growth<Key<Tube>> {
        // The job is often of the same tube as the last job, but that tube may not exist any more.
        let latest = self.restored_last.filter(|&latest| self.tube_name(latest) == tube);
        let tube = match latest.or_else(|| self.tubes.find(tube)) {
            Some(tube) => tube,
            None => self.make_tube(tube)?,
        };
        self.restored_last = Some(tube);
        self.make_room_to_put(tube, is_delayed).map(|()| tube)
    }

    /// Adds a new or restored job to the heap or list of its state, which is not `Reserved`. Hands
    /// out no job.
    pub fn add(&mut self, record: Record, dated: Dated, tube: Key<Tube>, body: Body) -> Key<Job> {
        self.raise_id(record.id.saturating_add(1));
        let (state, at) = (record.state, record.state_at);
        let of_tube = &mut self.tubes.arena[tube];
        of_tube.jobs += 1;
        of_tube.times.get_or_insert_default();
        of_tube.ready.set_min_capacity(of_tube.jobs);
        let links = Links::default();
        let job = self.jobs.insert(Job { record, body, tube, dated, position: 0, links });
        self.place(job, state, at);
        job
    }

    /// Replaces the fields of a restored job, which moves to the heap or list of its new state.
    pub fn replace_record(&mut self, job: Key<Job>, record: Record, dated: Dated) {
        self.detach(job);
        let (state, at) = (record.state, record.state_at);
        self.jobs.arena[job].record = record;
        self.jobs.arena[job].dated = dated;
        self.place(job, state, at);
    }

    /// Removes a job without counting a delete, as if the job had been deleted before this process
    /// began. The caller must pass the body to [`crate::memory::Bodies::remove`].
    pub fn discard(&mut self, job: Key<Job>) -> Body {
        let tube = self.detach(job);
        let body = self.jobs.remove(job);
        let of_tube = &mut self.tubes.arena[tube];
        of_tube.jobs -= 1;
        of_tube.ready.set_min_capacity(of_tube.jobs);
        self.drop_if_idle(tube);
        body
    }

    /// Ensures that no new job gets an id below `next`, because a restored job may have that id.
    pub fn raise_id(&mut self, next: u64) {
        self.next_id = self.next_id.max(next);
    }

    /// The id that the next new job gets; the binlog needs this id.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Sorts the buried jobs of every tube by the time of the burial, and allocates nothing.
    /// O(jobs) if the jobs are mostly sorted already.
    pub fn sort_buried(&mut self) {
        for &tube in &self.tubes.order {
            let buried = &mut self.tubes.arena[tube].buried;
            buried.sort_by_key(&mut self.jobs.arena, &|job: &Job| job.due_key(job.record.state_at));
        }
    }

    /// Makes the queue hand out no jobs until [`Queue::thaw`]: workers could not delete these jobs.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Ends a freeze. An unpaused tube with ready jobs and waiting clients gets a pause that ends
    /// at `now`, so that later turns hand out its jobs, a few at a time. O(tubes).
    pub fn thaw(&mut self, now: Time) {
        self.is_frozen = false;
        for index in 0..self.tubes.order.len() {
            let key = self.tubes.order[index];
            let tube = &self.tubes.arena[key];
            if !tube.ready.is_empty() && !tube.waiters.is_empty() && tube.pause.is_none() {
                self.set_pause(key, Some(Pause { seconds: 0, until: now }));
            }
        }
    }
}

/// The calendar.
impl Queue {
    /// After the wall clock was set, applies `shift` once to those instants of each job that were
    /// computed from dates of the binlog. Scans the arena from index `from`, and ends after `count`
    /// jobs, or earlier if many slots are empty. Returns the index for the next call, or `None` at
    /// the end. O(count · log n).
    ///
    /// If a delay has ended, but its end is in the future after the shift, the job is delayed
    /// again, unless a client has reserved or kicked the job since. If the shifted end of a delay
    /// is in the past, the delay ends at the next tick. `to_log` receives the jobs that are buried
    /// or have a delay, unless their `state_at` was computed from a date: the dates in their newest
    /// records are by the old clock. This includes jobs whose delay has ended: the binlog gets no
    /// record when a delay ends.
    pub fn shift_dates(
        &mut self,
        from: usize,
        count: usize,
        shift: impl Fn(Time) -> Time,
        now: Time,
        to_log: &mut Vec<Key<Job>>,
    ) -> Option<usize> {
        let (mut left, slots) = (count, self.jobs.arena.slots());
        let end = slots.min(from.saturating_add(count.saturating_mul(SLOTS_PER_JOB)));
        for index in from..end {
            let key = Key::from_index(index);
            let Some(job) = self.jobs.arena.get(key) else { continue };
            if left == 0 {
                return Some(index);
            }
            left -= 1;
            let (dated, state) = (job.dated, job.record.state);
            let Record { mut created_at, mut state_at, .. } = job.record;
            if dated.is_created {
                created_at = shift(created_at);
            }
            if dated.is_state_at {
                state_at = shift(state_at);
            } else if job.record.delay > 0 || state == State::Buried {
                to_log.push(key);
            }
            if dated.is_state_at && matches!(state, State::Ready | State::Delayed) {
                let is_over = state == State::Ready && state_at <= now;
                self.detach(key);
                self.place(key, if is_over { State::Ready } else { State::Delayed }, state_at);
            }
            let record = &mut self.jobs.arena[key].record;
            (record.created_at, record.state_at) = (created_at, state_at);
        }
        (end < slots).then_some(end)
    }
}
