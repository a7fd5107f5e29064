//! The binlog: jobs and acknowledged changes survive a restart.
//!
//! The binlog is a series of files, the *segments*, to which *records* are appended: of each new
//! job with its body, of each change that must survive a restart, and of each delete.
//! [`Wal::commit`] writes all records of a turn, and replies that confirm changes leave only after
//! it. [`SyncPolicy`] says when records are synced. doc/binlog.md has the promises, and the format
//! byte by byte.
//!
//! **Space first.** The server asks for space before it changes anything, so that a record never
//! meets a full disk. *Preallocated files* have the space of later segments, and every job has the
//! space of its delete. A put that would need more is answered with an error.
//!
//! **Garbage.** Segments are removed oldest first. If garbage outweighs live records, jobs that
//! still need the oldest segment are written again, a bounded number in a turn: see `compact.rs`.
//!
//! **Failure.** After a failed write or sync, what the disk holds is unknown. Then no change is
//! acknowledged until a new segment is open, and only deletes until all jobs are written again.

mod append;
mod compact;
mod dates;
mod directory;
mod disk;
mod figures;
mod foreign;
mod inspect;
mod lock;
mod permit;
mod preallocate;
mod reader;
mod record;
mod recovery;
mod replay;
mod search;
mod segments;
mod sink;
mod space;
mod start;
mod sync;
mod syncer;
#[cfg(test)]
pub(crate) mod testing;
mod window;

use std::{collections::VecDeque, io, time::Duration};

use log::{debug, error, info};

use self::{
    dates::Dates,
    preallocate::Preallocated,
    segments::SegmentIndex,
    space::{Layout, SEGMENT_ALIGN_BYTES},
    sync::{SyncEvents, SyncState, SyncTime},
};
pub use self::{
    dates::SHIFTS_AT_ONCE_MAX,
    directory::Directory,
    disk::{Disk, Name},
    figures::Counts,
    inspect::{Inspection, inspect, read_jobs},
    permit::Permit,
    record::{Damage, Format},
    replay::{Fault, Problem, Progress, Report, Restored, SegmentReport, go_on},
    sync::GatheringTime,
};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    memory::Bodies,
    queue::{Job, Queue},
};

/// The most bytes of pending records. If there are more, they are written before the turn ends.
const PENDING_MAX_BYTES: usize = 1024 * 1024;

/// The least budget of a turn, in bytes, for writing zeros and for writing jobs again. If twice
/// what the turn appended is more, that is the budget.
const WORK_PER_TURN_MIN_BYTES: u64 = ZEROS.len() as u64;

const ZEROS: &[u8] = &[0; 128 * 1024];

/// The largest number of a segment, because the original reads no larger one.
const NUMBER_MAX: u32 = u32::MAX / 2;

/// How long a confirmed lock is relied on. Another daemon that takes over waits for longer, so this
/// one acknowledges nothing once that one has read the binlog.
pub const LOCK_CONFIRM_INTERVAL: Duration = Duration::from_millis(250);

/// The delay before a disk that was full or failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The longest delay after repeated failures. It doubles, because each attempt leaves a file
/// behind.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// When written records are synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At most this long after a write. Zero means before a reply that confirms a change.
    Within(Duration),
    /// Never.
    Never,
}

impl SyncPolicy {
    /// Before each reply that confirms a change: `-f0`.
    pub const EACH_CHANGE: Self = Self::Within(Duration::ZERO);
}

/// The jobs that the binlog records, and their bodies.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a> {
    /// The jobs.
    pub queue: &'a Queue,
    /// Their bodies.
    pub bodies: &'a Bodies,
}

impl<'a> Jobs<'a> {
    /// Returns the bytes of a job's body, with its CR LF.
    pub fn body(self, job: Key<Job>) -> &'a [u8] {
        self.bodies.bytes(&self.queue.job(job).body)
    }
}

/// The options of a binlog, from the flags.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The size of a segment in bytes, rounded up to a multiple of 4096: `-s`.
    pub segment_size: u64,
    /// When records are synced: `-f` and `-F`.
    pub sync: SyncPolicy,
    /// An unpredictable number from which the salts of checksums are drawn.
    pub seed: u64,
}

/// Why the binlog cannot take a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The disk is full.
    Full,
    /// The disk has failed, and not all jobs have been written again.
    Failed,
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CommitOutcome {
    /// All records so far are as safe as the [`SyncPolicy`] promises.
    Done,
    /// With `-f0`: records are written, and some are not synced yet.
    Syncing {
        /// A sync in the background has ended: all records before it began are safe.
        has_ended: bool,
        /// A sync of all records so far has begun in the background.
        has_begun: bool,
    },
    /// Records of the turn may be missing, so replies that waited for them must not be sent.
    Failed,
    /// The binlog works again after a failure, and holds every job.
    Recovered,
    /// Another daemon may have taken over the directory, so the process must end without writing
    /// anything, and replies that waited must not be sent: see [`Wal::lost_lock`].
    LockLost,
}

/// Whether the binlog works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// It works.
    Sound,
    /// A write or sync has failed. The next attempt is due at `retry_at`.
    Failed { retry_at: Time },
    /// It works again, but does not hold every job yet.
    Recovering,
}

/// The segment that records are appended to.
#[derive(Debug, Clone, Copy)]
struct Current {
    number: u32,
    salt: u64,
    /// A restart skips the ids below, unless the daemon ends in order.
    seen_below: u64,
    layout: Layout,
    /// The offset up to which records or zeros have been written.
    zeroed: u64,
}

/// The binlog of a running daemon.
#[derive(Debug)]
pub struct Wal {
    disk: Box<dyn Disk>,
    sync: SyncPolicy,
    segment_size: u64,
    /// The state of the generator of salts.
    seed: u64,
    calendar: Calendar,
    dates: Dates,
    segment_index: SegmentIndex,
    current: Option<Current>,
    /// Records not written yet: the last bytes of the current segment.
    pending: Vec<u8>,
    /// Whether this turn has written to the current segment.
    is_written: bool,
    sync_state: SyncState,
    /// How long syncs take.
    sync_time: SyncTime,
    /// What syncs in the background have done since the last commit.
    sync_events: SyncEvents,
    /// With `-f0` in the background: the next sync begins at this time, because more changes are
    /// expected before.
    sync_waits_until: Option<Time>,
    /// How many bytes of the binlog are synced, on the scale of [`SegmentIndex::length`].
    synced: u64,
    /// The first becomes the next segment.
    preallocated: VecDeque<Preallocated>,
    filling: Option<Preallocated>,
    next_preallocated: u32,
    /// How many short records fit into the preallocated files.
    preallocated_slots: u64,
    /// Whether zeros are being written to the current segment, a piece in each turn.
    is_zeroing: bool,
    /// Set if the disk had no space for a preallocated file: none is made before that time.
    full_until: Option<Time>,
    /// Whether the reason was another one than lack of space.
    is_growth_failed: bool,
    /// Set if the oldest segment could not be removed: when to try again.
    drop_retry_at: Option<Time>,
    /// The delay after the next failure to remove it.
    drop_retry_delay: Duration,
    health: Health,
    /// The delay after a failure of the disk.
    retry_delay: Duration,
    /// The first id whose job has no record in a file yet; `u64::MAX` if all have one.
    unrecorded_from: u64,
    /// The error of this turn. After it, nothing more is appended in this turn.
    failure: Option<io::Error>,
    /// Segments up to this number are damaged or in doubt, so their jobs are written again.
    rewrite_through: u32,
    /// Of these segments, those from this number on may lack records that the index counts on.
    /// Their jobs are written first.
    suspect_from: u32,
    /// The segment that was given up after a failure, and how many bytes of it were in use.
    abandoned: Option<(u32, u64)>,
    /// When the lock of the directory was last confirmed.
    lock_confirmed_at: Time,
    /// Why the lock cannot be relied on any more. From then on nothing is written.
    lost_lock: Option<io::Error>,
    /// Bytes appended since the last commit.
    appended: u64,
    migrated: u64,
    written: u64,
}

/// Opening.
impl Wal {
    /// Reads the jobs of the binlog into `restored`, which must be empty, and begins a new segment.
    /// Damage is in the report and no error; neither is a full disk. Fails if a file cannot be
    /// listed, read or created, if memory or descriptors are short, or if `progress` breaks. Every
    /// record is then where it was: at most old preallocated files and zeros behind records are
    /// gone.
    pub fn open(
        mut disk: Box<dyn Disk>,
        options: Options,
        restored: &mut Restored,
        calendar: Calendar,
        now: Time,
        progress: Progress<'_>,
    ) -> io::Result<(Self, Report)> {
        disk.prepare(matches!(options.sync, SyncPolicy::Within(_)))?;
        let files = disk.list()?;
        let mut segment_index = SegmentIndex::default();
        let report = replay::replay(
            &mut *disk,
            &files,
            restored,
            &mut segment_index,
            calendar,
            now,
            progress,
        )?;
        replay::ensure_memory_to_serve(restored)?;
        let taken = files.iter().filter_map(|&(name, _)| match name {
            Name::Segment(number) | Name::Damaged(number) => Some(number),
            Name::Preallocated(_) => None,
        });
        let last = taken.max().unwrap_or(0);
        if last >= NUMBER_MAX {
            return Err(no_number_left(last));
        }
        let preallocated = files.iter().filter_map(|&(name, _)| match name {
            Name::Preallocated(number) => Some(number),
            Name::Segment(_) | Name::Damaged(_) => None,
        });
        let next_preallocated = preallocated.max().unwrap_or(0).checked_add(1).unwrap_or(1);
        let size = options.segment_size.clamp(1, u64::MAX / 4);
        let mut wal = Self {
            disk,
            sync: options.sync,
            segment_size: size.next_multiple_of(SEGMENT_ALIGN_BYTES),
            seed: options.seed,
            calendar,
            dates: Dates::new(calendar),
            segment_index,
            current: None,
            pending: Vec::new(),
            is_written: false,
            sync_state: SyncState::Clean,
            sync_time: SyncTime::default(),
            sync_events: SyncEvents::default(),
            sync_waits_until: None,
            synced: 0,
            preallocated: VecDeque::new(),
            filling: None,
            next_preallocated,
            preallocated_slots: 0,
            is_zeroing: false,
            full_until: None,
            is_growth_failed: false,
            drop_retry_at: None,
            drop_retry_delay: RETRY_DELAY,
            health: Health::Sound,
            retry_delay: RETRY_DELAY,
            unrecorded_from: u64::MAX,
            failure: None,
            rewrite_through: if report.is_damaged() { last } else { 0 },
            suspect_from: u32::MAX,
            abandoned: None,
            lock_confirmed_at: now,
            lost_lock: None,
            appended: 0,
            migrated: 0,
            written: 0,
        };
        wal.pending.try_reserve_exact(PENDING_MAX_BYTES).map_err(|_| io::ErrorKind::OutOfMemory)?;
        wal.open_first_segment(last + 1, &files, &report, &restored.queue, now)?;
        Ok((wal, report))
    }
}

fn no_segment() -> io::Error {
    io::Error::other("no segment is open")
}

fn no_number_left(last: u32) -> io::Error {
    io::Error::other(format!("no number is left behind {}", Name::Segment(last)))
}

/// The end of a turn.
impl Wal {
    /// Writes the records of the turn, and syncs them if it is time. Also does a bounded part of
    /// compaction and preallocation. Replies leave after it, but not if the outcome is `Failed`.
    ///
    /// With `-f0` on a slow disk it only begins a sync, not before `wait_until`, and later replies
    /// must wait for [`CommitOutcome::Syncing`] with `has_ended`.
    pub fn commit(&mut self, jobs: Jobs<'_>, wait_until: Option<Time>, now: Time) -> CommitOutcome {
        let queue = jobs.queue;
        self.sync_waits_until = wait_until;
        if self.lost_lock.is_some() || self.confirm_lock_if_due(now).is_err() {
            return CommitOutcome::LockLost;
        }
        if let Health::Failed { retry_at } = self.health {
            if now < retry_at {
                return CommitOutcome::Done;
            }
            if let Err(error) = self.try_recover(queue, now) {
                if self.lost_lock.is_some() {
                    return CommitOutcome::LockLost;
                }
                debug!("the binlog cannot be written yet: {error}");
                self.abandon_segment();
                self.retry_later(now);
                return CommitOutcome::Done;
            }
        }
        let budget = WORK_PER_TURN_MIN_BYTES.max(2 * std::mem::take(&mut self.appended));
        self.append_deferred(queue);
        self.leave_garbage_segment(queue);
        self.compact(jobs, budget, now);
        let result = self.write_and_sync(now).and_then(|()| self.drop_oldest(now));
        // Whatever the outcome, the next commit must not report them once more.
        let SyncEvents { has_ended, has_begun } = std::mem::take(&mut self.sync_events);
        if self.lost_lock.is_some() {
            return CommitOutcome::LockLost;
        }
        if let Err(error) = result {
            if self.health == Health::Sound {
                error!(
                    "the binlog has failed; no change is acknowledged until it works again: {error}"
                );
            }
            self.fail(now);
            return CommitOutcome::Failed;
        }
        self.work_ahead(budget, now);
        let is_relied_on =
            self.segment_index.oldest().is_some_and(|it| it.number > self.rewrite_through)
                || (self.drop_retry_at.is_some() && self.is_all_relocated());
        if self.health == Health::Recovering && is_relied_on {
            info!("the binlog works again, and holds every job");
            self.health = Health::Sound;
            self.suspect_from = u32::MAX;
            self.retry_delay = RETRY_DELAY;
            return CommitOutcome::Recovered;
        }
        let is_safe = self.sync != SyncPolicy::EACH_CHANGE || self.sync_state == SyncState::Clean;
        if is_safe { CommitOutcome::Done } else { CommitOutcome::Syncing { has_ended, has_begun } }
    }

    /// Why another daemon may have taken over the directory: after [`CommitOutcome::LockLost`].
    pub fn lost_lock(&self) -> Option<&io::Error> {
        self.lost_lock.as_ref()
    }

    /// Releases a piece of memory of deleted jobs, and returns whether there was one: see
    /// [`Queue::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.segment_index.release_one()
    }

    /// Whether [`Wal::release_one`] has something to release.
    pub fn has_releasable(&self) -> bool {
        self.segment_index.has_releasable()
    }

    /// Returns when [`Wal::commit`] or [`Wal::shift_dates`] has work. A time in the past means now.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.lost_lock.is_some() {
            return None;
        }
        if self.is_shifting_dates() {
            return Some(Time::AT_ONCE);
        }
        if let Health::Failed { retry_at } = self.health {
            return Some(retry_at);
        }
        if self.can_drop_oldest() && self.drop_retry_at.is_none() {
            return Some(Time::AT_ONCE);
        }
        let has_work = (self.next_relocation().is_some() && self.can_rotate())
            || self.can_append_deferred()
            || self.should_leave_segment()
            || self.has_work_ahead();
        let work = has_work.then(|| self.full_until.unwrap_or_default());
        [work, self.next_sync(), self.drop_retry_at].into_iter().flatten().min()
    }

    /// Walks all locations and panics if an invariant does not hold. O(jobs): for tests.
    pub fn check(&self) {
        self.segment_index.check();
    }
}
