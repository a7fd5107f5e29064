//! A client: the queue's view of a connection. A client has the tube it uses, the tubes it watches,
//! the jobs it has reserved and its wait for a job, but no bytes and no socket.

use crate::{
    clock::Time,
    collections::{Heap, Key, List},
    queue::{
        SAFETY_MARGIN,
        job::{DueKey, Job},
        tube::Tube,
    },
};

/// The wait of a client for a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    /// The serial number of this wait: of all clients that wait, the client with the smallest
    /// number has waited longest.
    pub(super) sequence: u64,
    /// When the wait times out; `None` means never.
    pub(super) until: Option<Time>,
}

/// A tube that a client watches.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) client: Key<Client>,
    pub(super) tube: Key<Tube>,
    /// The position in the tube's `waiters` heap; `None` if the watch is not in that heap.
    pub(super) queue_position: Option<u32>,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    /// The tube that `put`, `peek-…` and `kick` work on.
    pub using: Key<Tube>,
    /// The watched tubes in the original's order: a new tube is appended, and the last tube takes
    /// the place of an ignored tube. Each entry includes the tube's key, so that a search reads no
    /// [`Watch`].
    pub(super) watching: Vec<(Key<Tube>, Key<Watch>)>,
    /// The index in `watching` at which the last search found a job. The list may have become
    /// shorter since.
    pub(super) found_at: usize,
    /// The watches of this client that have no entry in their tube's `waiters`. The list is stale
    /// after a disconnect.
    pub(super) unqueued: Vec<Key<Watch>>,
    /// The jobs that the client has reserved, in the order of their reservation.
    pub(super) reserved: List<Job>,
    /// The reserved jobs, sorted by deadline.
    pub(super) deadlines: Heap<DueKey, Job>,
    pub(super) waiting: Option<Wait>,
    /// Whether the client has sent a `put`.
    pub(super) is_producer: bool,
    /// Whether the client has sent a `reserve` of any kind.
    pub(super) is_worker: bool,
    /// Whether the client has disconnected. A disconnected client's reservations and watches end
    /// one by one, in steps.
    pub(super) has_left: bool,
    /// The client's position in the heap of clients' timers.
    pub(super) timer: Option<u32>,
}

impl Client {
    /// A client that uses this tube, but watches no tube yet.
    pub(super) fn new(using: Key<Tube>) -> Self {
        Self {
            using,
            watching: Vec::with_capacity(1),
            found_at: 0,
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

    /// Whether the client waits for a job.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// How many entries the client's next wait must add to the `waiters` heaps of its tubes.
    pub fn unqueued_watches(&self) -> usize {
        self.unqueued.len()
    }

    /// How many jobs the client has reserved.
    pub fn holding(&self) -> usize {
        self.reserved.len()
    }

    /// Of this client's reserved jobs, the job that it reserved first.
    pub fn first_reserved(&self) -> Option<Key<Job>> {
        self.reserved.front()
    }

    /// How many tubes the client watches: at least one until it disconnects.
    pub fn watching(&self) -> usize {
        self.watching.len()
    }

    /// Whether one of the client's reserved jobs reaches its deadline within [`SAFETY_MARGIN`].
    pub fn is_deadline_soon(&self, now: Time) -> bool {
        self.deadlines.peek().is_some_and(|(due, _)| due.at - SAFETY_MARGIN <= now)
    }

    /// When the client's timer is due: at the first deadline of its jobs or at the end of its wait,
    /// whichever is earlier. While the client waits, its timer is due [`SAFETY_MARGIN`] before its
    /// first deadline, because the client must be warned.
    pub(super) fn due_at(&self) -> Option<Time> {
        let job = self.deadlines.peek().map(|(due, _)| due.at);
        match self.waiting {
            None => job,
            Some(Wait { until, .. }) => {
                job.map(|at| at - SAFETY_MARGIN).into_iter().chain(until).min()
            }
        }
    }

    /// The index of a tube in the list of tubes that the client watches. O(tubes watched).
    pub fn watch_of(&self, tube: Key<Tube>) -> Option<usize> {
        self.watching.iter().position(|&(watched, _)| watched == tube)
    }
}
