//! A connection as the queue sees it: the tube it uses, the tubes it watches, the jobs it holds,
//! and whether it waits for one. No bytes, no socket.

use crate::{
    clock::Time,
    collections::{Heap, Key, List},
    queue::{
        SAFETY_MARGIN,
        job::{DueKey, Job},
        tube::Tube,
    },
};

/// A client that waits for a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    /// Counts all waits of all clients: who has the smallest has waited longest.
    pub(super) sequence: u64,
    /// When it has waited long enough; `None` waits for ever.
    pub(super) until: Option<Time>,
}

/// A client's interest in one tube.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) client: Key<Client>,
    pub(super) tube: Key<Tube>,
    /// Its place in the tube's line; `None` where it has lost it.
    pub(super) queue_position: Option<u32>,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    /// The tube that `put`, `peek-…` and `kick` work on.
    pub using: Key<Tube>,
    /// The watched tubes in the original's order: newcomers at the end; one that is ignored is
    /// replaced by the last. The tube stands beside its watch so that a search stays in one array.
    pub(super) watching: Vec<(Key<Tube>, Key<Watch>)>,
    /// Its watches without a place in line; of no meaning once it has left.
    pub(super) unqueued: Vec<Key<Watch>>,
    /// Jobs it holds, in the order in which it got them.
    pub(super) reserved: List<Job>,
    /// The same jobs by the end of their time to run.
    pub(super) deadlines: Heap<DueKey, Job>,
    pub(super) waiting: Option<Wait>,
    /// Has ever sent a `put`.
    pub(super) is_producer: bool,
    /// Has ever sent a `reserve`.
    pub(super) is_worker: bool,
    /// Its connection is gone; what it still has it gives back step by step.
    pub(super) has_left: bool,
    /// Place in the timers' heap of clients.
    pub(super) timer: Option<u32>,
}

impl Client {
    pub(super) fn new(using: Key<Tube>) -> Self {
        Self {
            using,
            watching: Vec::new(),
            unqueued: Vec::new(),
            reserved: List::default(),
            deadlines: Heap::default(),
            waiting: None,
            is_producer: false,
            is_worker: false,
            has_left: false,
            timer: None,
        }
    }

    /// Whether it waits for a job.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// How many places in line it must take to wait.
    pub fn unqueued_watches(&self) -> usize {
        self.unqueued.len()
    }

    /// How many jobs it holds.
    pub fn reserved_jobs(&self) -> usize {
        self.reserved.len()
    }

    /// How many tubes it watches; at least one until it has left.
    pub fn watching(&self) -> usize {
        self.watching.len()
    }

    /// Whether it holds a job that must be finished within the safety margin.
    pub(super) fn is_deadline_soon(&self, now: Time) -> bool {
        self.deadlines.peek().is_some_and(|(due, _)| due.at() - SAFETY_MARGIN <= now)
    }

    /// When something happens to it if it stays silent: the next end of a job's time (less the
    /// margin where it waits, for then it must be warned), or the end of its waiting.
    pub(super) fn due_at(&self) -> Option<Time> {
        let job = self.deadlines.peek().map(|(due, _)| due.at());
        match self.waiting {
            None => job,
            Some(Wait { until, .. }) => {
                job.map(|at| at - SAFETY_MARGIN).into_iter().chain(until).min()
            }
        }
    }

    pub(super) fn watch_of(&self, tube: Key<Tube>) -> Option<usize> {
        self.watching.iter().position(|&(watched, _)| watched == tube)
    }
}
