//! Tubes: named queues of jobs, and the clients that wait for these jobs.
//!
//! A tube exists while it has jobs, users, watchers or a long command in progress; `default` always
//! exists.

use crate::{
    clock::Time,
    collections::{Growth, Heap, Key, List, LongTimes, SmallArena, grow},
    queue::{
        client::Watch,
        job::{DueKey, Job, ReadyKey},
        names::Names,
    },
};

/// A pause in effect.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    /// The length requested, in seconds.
    pub seconds: u32,
    /// When the pause ends.
    pub until: Time,
}

/// How long the jobs of a tube wait for a worker, and how long workers hold them, since its first
/// job.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// From ready to reserved. This includes a pause of the tube, but not a delay of the job.
    pub wait: LongTimes,
    /// From reserved to deleted by the worker.
    pub run: LongTimes,
}

/// doc/architecture.md promises 300 bytes, with the allocator's own, for a tube that has had a job.
const _: () = assert!(size_of::<Times>() + 16 <= 300);

/// One tube.
#[derive(Debug, Default)]
pub struct Tube {
    /// Has capacity for all jobs of the tube: any job may become ready in a step that cannot fail.
    pub(super) ready: Heap<ReadyKey, Job>,
    pub(super) delayed: Heap<DueKey, Job>,
    pub(super) buried: List<Job>,
    /// Watches of clients that wait for a job or have waited: see [`super::waiters`].
    pub(super) waiters: Heap<u64, Watch>,
    /// The pause in effect, if any. Lasts until `Queue::end_pause`, even if `until` has passed.
    pub pause: Option<Pause>,
    /// Jobs in any state.
    pub(super) jobs: usize,
    /// Connections that use the tube.
    pub users: u32,
    /// Connections that watch the tube.
    pub watchers: u32,
    /// Long commands in progress, which keep the tube until they end; for `default`, one more.
    pub(super) pins: u32,
    /// Ready jobs with a priority below [`super::job::URGENT_BELOW_PRI`].
    pub urgent: u64,
    /// Jobs that clients have reserved.
    pub reserved: u64,
    /// Jobs put into the tube since it was created.
    pub total_jobs: u64,
    /// Jobs deleted by command.
    pub deletes: u64,
    /// `pause-tube` commands.
    pub pauses: u64,
    /// Jobs buried by `--bury-after`, because they were lost too often.
    pub buried_for_losses: u64,
    /// Histograms of waits and runs; `None` before the first job of the tube, to save memory.
    pub times: Option<Box<Times>>,
    /// Position in the timers' heap of tubes by earliest delayed job.
    pub(super) delay_timer: Option<u32>,
    /// Position in the timers' heap of paused tubes.
    pub(super) pause_timer: Option<u32>,
    /// Index in the order of `list-tubes`.
    pub(super) order_index: usize,
}

impl Tube {
    /// The histograms, for adding the times of a job.
    pub(super) fn times_mut(&mut self) -> &mut Times {
        self.times.as_mut().expect("a tube that has a job has them")
    }

    /// The number of ready jobs.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The number of delayed jobs.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// The number of buried jobs.
    pub fn buried(&self) -> usize {
        self.buried.len()
    }

    /// Whether the tube has no jobs, users, watchers or pins.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs == 0 && self.users == 0 && self.watchers == 0 && self.pins == 0
    }
}

/// All tubes, by key, by name, and in the order `list-tubes` shows.
#[derive(Debug, Default)]
pub(super) struct Tubes {
    pub(super) arena: SmallArena<Tube>,
    pub(super) names: Names,
    /// The original's order: a new tube is appended, and a removed one is replaced by the last.
    pub(super) order: Vec<Key<Tube>>,
    /// The sort key of each tube's best ready job, by tube index: one array for a fast search.
    /// [`ReadyKey::NONE`] if the tube has no ready job or is paused.
    pub(super) best_ready: Vec<ReadyKey>,
    /// How many of `best_ready` are not [`ReadyKey::NONE`]: a search ends after that many.
    pub(super) with_ready_job: usize,
}

impl Tubes {
    pub(super) fn find(&self, name: &str) -> Option<Key<Tube>> {
        self.names.find(name)
    }

    /// Makes room for another tube. O(1), unless a list must be reallocated.
    pub(super) fn make_room(&mut self) -> Growth {
        self.arena.make_room()?;
        self.names.make_room()?;
        let (tubes, best_ready) = (self.order.len() + 1, self.best_ready.len() + 1);
        grow(&mut self.order, tubes)?;
        grow(&mut self.best_ready, best_ready)
    }

    /// Adds a tube. No other tube may have its name.
    pub(super) fn make(&mut self, name: &str) -> Key<Tube> {
        let order_index = self.order.len();
        let tube = self.arena.insert(Tube { order_index, ..Tube::default() });
        if self.best_ready.len() <= tube.index() {
            self.best_ready.resize(tube.index() + 1, ReadyKey::NONE);
        }
        self.names.insert(tube, name);
        self.order.push(tube);
        tube
    }

    /// Updates `best_ready`. Call it after each change to the top of `ready` or to `pause`.
    pub(super) fn update_best_ready(&mut self, key: Key<Tube>) {
        let tube = &self.arena[key];
        let best = tube.ready.peek().filter(|_| tube.pause.is_none());
        let best = best.map_or(ReadyKey::NONE, |(order, _)| order);
        let before = std::mem::replace(&mut self.best_ready[key.index()], best);
        self.with_ready_job -= usize::from(before != ReadyKey::NONE);
        self.with_ready_job += usize::from(best != ReadyKey::NONE);
    }

    /// Removes an idle tube.
    pub(super) fn remove(&mut self, key: Key<Tube>) {
        self.names.remove(key);
        let tube = self.arena.remove(key);
        assert!(tube.is_idle() && tube.delay_timer.is_none() && tube.pause_timer.is_none());
        self.order.swap_remove(tube.order_index);
        if let Some(&moved) = self.order.get(tube.order_index) {
            self.arena[moved].order_index = tube.order_index;
        }
    }
}
