//! A job: its fields, its body and its one place in the queue.
//!
//! The state of a job determines where in the queue the job is:
//!
//! | state | place | uses |
//! |---|---|---|
//! | Ready | its tube's `ready` heap | `position` |
//! | Delayed | its tube's `delayed` heap | `position` |
//! | Buried | its tube's `buried` list | `links` |
//! | Reserved | its client's `reserved` list and `deadlines` heap | `links` and `position` |
//!
//! So a job needs only one position and one pair of links, and takes 96 bytes besides its body.

use std::num::NonZeroU32;

use crate::{
    clock::Time,
    collections::{Arena, Growth, IdMap, Key, Linked, Links, ensure},
    memory::{BODY_OVERHEAD_BYTES, Body, INDEX_LIMIT},
    queue::{client::Client, tube::Tube},
};

/// Statistics call a job urgent if its priority is below this number.
pub const URGENT_BELOW_PRI: u32 = 1024;

/// How many bytes the limit on memory counts for each job, in addition to the job's body.
pub const JOB_OVERHEAD_BYTES: u64 = BODY_OVERHEAD_BYTES;

/// The state of a job, which determines where in the queue the job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The job waits for a worker.
    Ready,
    /// This client has reserved the job, until the deadline in the client's `deadlines` heap.
    Reserved(Key<Client>),
    /// The job becomes ready at `state_at`.
    Delayed,
    /// The job is set aside until a client kicks, deletes or reserves it.
    Buried,
}

impl State {
    /// The name of a job's state in `stats-job`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Reserved(_) => "reserved",
            Self::Delayed => "delayed",
            Self::Buried => "buried",
        }
    }
}

/// Counts of what has happened to a job, as reported by `stats-job`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History {
    /// The number of times the job was reserved.
    pub reserves: u32,
    /// The number of reservations that timed out.
    pub timeouts: u32,
    /// The number of times a worker released the job.
    pub releases: u32,
    /// The number of times the job was buried.
    pub buries: u32,
    /// The number of times the job was kicked.
    pub kicks: u32,
}

/// The fields of a job, without its body and its position in the queue.
#[derive(Debug, Clone)]
pub struct Record {
    /// The job's unique id; the first job has the id 1.
    pub id: u64,
    /// The priority: a smaller number is more urgent.
    pub pri: u32,
    /// The last requested delay, in seconds.
    pub delay: u32,
    /// Time to run: for how many seconds a worker may reserve the job; at least 1.
    pub ttr: u32,
    /// When the header of the job's `put` was read.
    pub created_at: Time,
    /// For a delayed job, the end of the delay; for other jobs, the beginning of the present state.
    pub state_at: Time,
    /// The counts of what has happened to the job so far.
    pub history: History,
    /// The state of the job, which determines where in the queue the job is.
    pub state: State,
}

impl Record {
    /// The fields of a new job, whose header was read at `created_at`. A `ttr` of 0 becomes 1.
    pub fn new(id: u64, pri: u32, delay: u32, ttr: u32, created_at: Time) -> Self {
        Self {
            id,
            pri,
            delay,
            ttr: ttr.max(1),
            created_at,
            state_at: created_at,
            history: History::default(),
            state: State::Ready,
        }
    }

    /// Whether workers have lost a reserved job `max` times, including the present loss. A job is
    /// lost when its time to run is over or the connection of its worker has closed.
    ///
    /// Each reservation ends with a release, a bury, a delete or a loss. So `reserves - releases -
    /// buries` is the number of losses that did not bury the job, the present loss included.
    ///
    /// **Invariant:** each kick gives the job at least `max` new tries. If a job was buried because
    /// this function returned true, `reserves - releases - buries` is then `limit - 1`, and a kick
    /// raises `limit` by `max - 1`. The exception is a job that has already been lost more often
    /// than the present `max`, because an earlier daemon had a larger `max` or none: a kick gives
    /// such a job at least one try.
    pub fn is_lost_too_often(&self, max: NonZeroU32) -> bool {
        let History { reserves, releases, buries, kicks, .. } = self.history;
        let ended = u64::from(releases) + u64::from(buries);
        let limit = u64::from(max.get()) + u64::from(kicks) * u64::from(max.get() - 1);
        u64::from(reserves).saturating_sub(ended) >= limit
    }
}

/// Which instants of a job were read from a binlog as dates: these instants change when the wall
/// clock is set. See [`crate::queue::Queue::shift_dates`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dated {
    /// Whether `created_at` was computed from a date in the binlog.
    pub is_created: bool,
    /// Whether `state_at` was computed from a date in the binlog: the time of a burial, or the end
    /// of a current or past delay. If this is true for a ready job, the binlog still shows the job
    /// as delayed.
    pub is_state_at: bool,
}

/// A job, its body, and its position in the queue.
#[derive(Debug)]
pub struct Job {
    /// The job's fields.
    pub record: Record,
    /// The job's body, with the CR LF that follows it.
    pub body: Body,
    /// The tube that the job was put into.
    pub tube: Key<Tube>,
    /// The instants that were computed from dates of the binlog.
    pub dated: Dated,
    pub(super) position: u32,
    pub(super) links: Links<Job>,
}

/// doc/architecture.md promises that a job takes at most 96 bytes, so a new field must fit.
const _: () = assert!(size_of::<Option<Job>>() <= 96);

impl Linked for Job {
    /// The links of the job in the list of its tube or client.
    fn links(&self) -> &Links<Self> {
        &self.links
    }
    /// The links of the job, to be changed by the list of its tube or client.
    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }
}

impl Job {
    /// The job's sort key in a heap of ready jobs.
    pub(super) fn ready_key(&self) -> ReadyKey {
        ReadyKey { pri: self.record.pri, id: self.record.id }
    }

    /// The job's sort key in a heap that is sorted by deadlines, if the job's deadline is `at`.
    pub(super) fn due_key(&self, at: Time) -> DueKey {
        DueKey { at, id: self.record.id }
    }

    /// The client that has reserved the job.
    pub(super) fn reserver(&self) -> Option<Key<Client>> {
        match self.record.state {
            State::Reserved(client) => Some(client),
            _ => None,
        }
    }

    /// Whether statistics count the job as urgent while it is ready.
    pub(super) fn is_urgent(&self) -> bool {
        self.record.pri < URGENT_BELOW_PRI
    }
}

/// The order of ready jobs: by priority, then by id. The key is packed, so that an entry of the
/// ready heap takes 16 bytes instead of 24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, packed(4))]
pub(super) struct ReadyKey {
    pri: u32,
    id: u64,
}

impl ReadyKey {
    /// A key that no job has; it sorts after the keys of all jobs.
    pub(super) const NONE: Self = Self { pri: u32::MAX, id: u64::MAX };
}

/// The order of jobs with a deadline: by deadline, then by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, packed(4))]
pub(super) struct DueKey {
    pub(super) at: Time,
    pub(super) id: u64,
}

/// All jobs, by key and by id.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) arena: Arena<Job>,
    pub(super) ids: IdMap<Job>,
    /// Total bytes of all bodies.
    pub(super) bytes: u64,
}

impl Jobs {
    /// Makes room for another job, but not for its body. O(1).
    pub(super) fn make_room(&mut self) -> Growth {
        ensure(self.arena.slots() < INDEX_LIMIT)?;
        self.arena.make_room()?;
        self.ids.make_room()
    }

    /// Adds a job, which can then be found by its key and by its id.
    pub(super) fn insert(&mut self, job: Job) -> Key<Job> {
        let id = job.record.id;
        self.bytes += job.body.len() as u64;
        let key = self.arena.insert(job);
        self.ids.insert(id, key);
        key
    }

    /// Removes a job, and returns its body. The caller must pass the body to
    /// [`crate::memory::Bodies::remove`].
    pub(super) fn remove(&mut self, key: Key<Job>) -> Body {
        let job = self.arena.remove(key);
        self.bytes -= job.body.len() as u64;
        self.ids.remove(job.record.id);
        job.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With padding in a sort key, each entry of a heap would take more memory.
    #[test]
    fn keys_have_no_padding() {
        assert_eq!((size_of::<ReadyKey>(), size_of::<DueKey>()), (12, 16));
        assert_eq!(align_of::<ReadyKey>().max(align_of::<DueKey>()), 4);
    }

    /// If losses were counted wrongly, a job that kills its workers might be handed out for ever.
    #[test]
    fn a_kick_gives_new_tries() {
        for max in (1..=4).map(|max| NonZeroU32::new(max).expect("not 0")) {
            let mut job = Record::new(1, 0, 0, 1, Time::default());
            let (mut losses, mut wanted) = (0, max.get());
            for step in 0..1000_u32 {
                job.history.reserves += 1;
                match step * step % 7 {
                    0 => job.history.releases += 1,
                    1 => {
                        // A client buries the job, and another client kicks the job for more tries.
                        job.history.buries += 1;
                        job.history.kicks += 1;
                        wanted += max.get() - 1;
                    }
                    _ => {
                        losses += 1;
                        assert_eq!(job.is_lost_too_often(max), losses == wanted, "{max}: {job:?}");
                        if losses == wanted {
                            job.history.buries += 1;
                            job.history.kicks += 1;
                            (losses, wanted) = (0, max.get());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn heap_entries_stay_small() {
        assert_eq!(size_of::<(ReadyKey, Key<Job>)>(), 16);
        assert_eq!(size_of::<(DueKey, Key<Job>)>(), 20);
    }
}
