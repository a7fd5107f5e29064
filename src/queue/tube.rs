//! Tubes: named queues of jobs, with the clients that wait for these jobs.
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
    /// The requested length of the pause, in seconds.
    pub seconds: u32,
    /// When the pause ends.
    pub until: Time,
}

/// How long jobs of a tube have waited for a worker, and how long workers have worked on the jobs.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// The times from ready to reserved, including pauses of the tube, but not delays of jobs.
    pub wait: LongTimes,
    /// The times from a job's reservation to its delete by the worker.
    pub run: LongTimes,
}

/// doc/architecture.md promises that `Times` with its allocator overhead takes at most 300 bytes.
const _: () = assert!(size_of::<Times>() + 16 <= 300);

/// One tube.
#[derive(Debug, Default)]
pub struct Tube {
    /// Has capacity for all jobs of the tube: a step that makes a job ready must not fail.
    pub(super) ready: Heap<ReadyKey, Job>,
    pub(super) delayed: Heap<DueKey, Job>,
    pub(super) buried: List<Job>,
    /// Watches of clients that wait for a job, and of some whose wait has ended: see
    /// [`super::waiters`].
    pub(super) waiters: Heap<u64, Watch>,
    /// The present pause; it lasts until `Queue::end_pause` ends it, even if that is after `until`.
    pub pause: Option<Pause>,
    /// The number of jobs in any state.
    pub(super) jobs: usize,
    /// Connections that use the tube.
    pub users: u32,
    /// Connections that watch the tube.
    pub watchers: u32,
    /// The number of long commands on the tube; for `default`, one more, so that the tube stays.
    pub(super) pins: u32,
    /// Ready jobs with a priority below [`super::job::URGENT_BELOW_PRI`].
    pub urgent: u64,
    /// Jobs that clients have reserved.
    pub reserved: u64,
    /// Jobs put into the tube since it was created.
    pub total_jobs: u64,
    /// Jobs that clients have deleted.
    pub deletes: u64,
    /// `pause-tube` commands for the tube.
    pub pauses: u64,
    /// Jobs that `--bury-after` has buried, because workers had lost them too often.
    pub buried_for_losses: u64,
    /// Histograms of waits and runs; `None` before the first job of the tube, to save memory.
    pub times: Option<Box<Times>>,
    /// The tube's position in the heap of tubes with delayed jobs.
    pub(super) delay_timer: Option<u32>,
    /// The tube's position in the heap of paused tubes.
    pub(super) pause_timer: Option<u32>,
    /// The tube's index in the order of `list-tubes`.
    pub(super) order_index: usize,
}

impl Tube {
    /// The histograms of the tube, to which the times of a job are added.
    pub(super) fn times_mut(&mut self) -> &mut Times {
        self.times.as_mut().expect("a tube that has a job has them")
    }

    /// The number of ready jobs of the tube.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The number of delayed jobs of the tube.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// The number of buried jobs of the tube.
    pub fn buried(&self) -> usize {
        self.buried.len()
    }

    /// Whether the tube has no jobs, users, watchers or long commands, and is not `default`.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs == 0 && self.users == 0 && self.watchers == 0 && self.pins == 0
    }
}

/// All tubes, by key, by name, and in the order that `list-tubes` shows.
#[derive(Debug, Default)]
pub(super) struct Tubes {
    pub(super) arena: SmallArena<Tube>,
    pub(super) names: Names,
    /// The original's order: a new tube is appended, and the last tube takes the place of a removed
    /// tube.
    pub(super) order: Vec<Key<Tube>>,
    /// The sort key of each tube's best ready job, by tube index, so that a search reads one array.
    /// An entry is [`ReadyKey::NONE`] if the tube has no ready job or is paused.
    pub(super) best_ready: Vec<ReadyKey>,
    /// How many entries of `best_ready` are not [`ReadyKey::NONE`]; a search ends when it has found
    /// so many.
    pub(super) with_ready_job: usize,
}

impl Tubes {
    /// Finds a tube by its name.
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

    /// Adds a tube with this name, which must be a new name.
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

    /// Updates a tube's entry in `best_ready` after a change to the top of `ready` or to `pause`.
    pub(super) fn update_best_ready(&mut self, key: Key<Tube>) {
        let tube = &self.arena[key];
        let best = tube.ready.peek().filter(|_| tube.pause.is_none());
        let best = best.map_or(ReadyKey::NONE, |(order, _)| order);
        let before = std::mem::replace(&mut self.best_ready[key.index()], best);
        self.with_ready_job -= usize::from(before != ReadyKey::NONE);
        self.with_ready_job += usize::from(best != ReadyKey::NONE);
    }

    /// Removes a tube without jobs, users, watchers and long commands.
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
