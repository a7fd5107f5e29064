//! The binlog: what was acknowledged is there again after a restart.
//!
//! The log is a row of files, the *segments*, to which *records* are appended: of each new job
//! with its body, of each change that a restart would get wrong, of each delete. All records of a
//! turn are written by one [`Wal::commit`], after which, and not before, replies leave; how soon
//! it is synced is the user's choice. doc/binlog.md has the format byte by byte and says what is
//! promised when.
//!
//! **Room first.** Before anything changes, the server asks whether there is room. Files are
//! filled with zeros ahead of need (the *spares*), so that a record never meets a full disk: a put
//! is refused in time, and every job has the room of its delete set aside.
//!
//! **Garbage.** Segments go oldest first; jobs that still need the oldest one are written again,
//! a bounded number in a turn, when garbage outweighs what is live: see `segments.rs`.
//!
//! **Failure.** After a failed write or sync, what the disk holds is unknown. Then nothing more is
//! acknowledged, until all jobs have been written to fresh segments.

mod append;
mod compact;
mod dates;
mod directory;
mod disk;
mod inspect;
mod preallocate;
mod reader;
mod record;
mod recovery;
mod replay;
mod search;
mod segments;
mod space;
mod start;
mod sync;
#[cfg(test)]
pub(crate) mod testing;
mod window;

use std::{collections::VecDeque, io, time::Duration};

use log::{debug, error, info};

use self::{
    dates::Dates,
    preallocate::Preallocated,
    record::SHORT_RECORD_BYTES,
    segments::SegmentIndex,
    space::{Layout, SEGMENT_ALIGN_BYTES, SHORT_BYTES, file_size},
    sync::SyncState,
};
pub use self::{
    directory::Directory,
    disk::{Disk, Name},
    inspect::{Inspection, inspect},
    record::{Damage, Format},
    replay::{Fault, Problem, Progress, Report, Restored, SegmentReport, go_on},
};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    memory::{Bodies, MemoryBudget, OutOfMemory},
    queue::{Job, Queue},
};

/// Records are written before the turn ends if more than this many bytes of them come together.
const PENDING_MAX_BYTES: usize = 1024 * 1024;

/// How many bytes of zeros are written ahead, and of jobs to the current segment again, in one turn
/// at least. If a turn appends more, twice that.
const WORK_PER_TURN_MIN_BYTES: u64 = ZEROS.len() as u64;

const ZEROS: &[u8] = &[0; 128 * 1024];

/// The largest number of a segment: the original reads no larger one.
const NUMBER_MAX: u32 = u32::MAX / 2;

/// How long to wait before a disk that was full or failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The same where it has failed again and again: each attempt leaves a file behind.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// When what is written is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At most this long after a write; with zero, before any reply.
    Within(Duration),
    /// Never.
    Never,
}

/// The jobs that the log writes down, and their bodies.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a> {
    /// The jobs.
    pub queue: &'a Queue,
    /// Their bodies.
    pub bodies: &'a Bodies,
}

impl<'a> Jobs<'a> {
    /// The bytes of a job's body, with the CR LF that ended them.
    pub fn body(self, job: Key<Job>) -> &'a [u8] {
        self.bodies.bytes(&self.queue.job(job).body)
    }
}

/// What the flags decide for the log.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The size of a segment in bytes, rounded up to a multiple of 4096: `-s`.
    pub segment_size: u64,
    /// `-f` and `-F`.
    pub sync: SyncPolicy,
    /// A number that nobody can guess, from which the salts of checksums are drawn.
    pub seed: u64,
}

/// Why the log cannot take a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The disk is full.
    Full,
    /// The disk has failed, and jobs are not safe yet.
    Failed,
}

/// What a commit has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CommitOutcome {
    /// All records of the turn are where they should be.
    Done,
    /// They may or may not be: whoever waits for them must not be told that they are.
    Failed,
    /// The log works again after a failure, and holds every job.
    Recovered,
}

/// Whether the log can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// It can.
    Sound,
    /// A write or sync has failed; to be tried again then.
    Failed { retry_at: Time },
    /// It works again, but does not hold every job yet.
    Recovering,
}

/// The segment that records are appended to.
#[derive(Debug, Clone, Copy)]
struct Current {
    number: u32,
    salt: u64,
    layout: Layout,
    /// Up to here zeros have been written, or records.
    zeroed: u64,
}

/// What `stats` tells of the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// The number of the oldest segment.
    pub oldest: u32,
    /// The number of the segment that is being written.
    pub current: u32,
    /// How many jobs have been written again so that their old segment could go.
    pub migrated: u64,
    /// How many records have been written.
    pub written: u64,
}

/// The log of a running daemon.
#[derive(Debug)]
pub struct Wal {
    disk: Box<dyn Disk>,
    sync: SyncPolicy,
    segment_size: u64,
    /// Draws salts.
    seed: u64,
    calendar: Calendar,
    dates: Dates,
    segment_index: SegmentIndex,
    current: Option<Current>,
    /// Records of the current segment that have not been written yet: its last bytes.
    pending: Vec<u8>,
    /// Something has been written to the current segment in this turn.
    is_written: bool,
    sync_state: SyncState,
    /// How long the part of the binlog is that has been synced, in bytes since the start.
    synced: u64,
    /// The first is used first.
    preallocated: VecDeque<Preallocated>,
    filling: Option<Preallocated>,
    next_preallocated: u32,
    /// How many short records fit into the spares.
    preallocated_slots: u64,
    /// A stretch of the current segment is being filled with zeros, a piece in each turn.
    is_zeroing: bool,
    /// There was no room for a spare of full size: none is made until then.
    full_until: Option<Time>,
    /// The oldest segment, which no job needs, could not be removed: not tried again before. And
    /// how long to wait after the next failure.
    drop_retry_at: Option<Time>,
    drop_retry_delay: Duration,
    health: Health,
    /// How long to wait after a failure.
    retry_delay: Duration,
    /// What went wrong in this turn; the rest of it is not written.
    failure: Option<io::Error>,
    /// Segments up to this number are not to be relied on: their jobs are written again.
    rewrite_through: u32,
    /// Among them, those from this number on may lack records that the index counts on: they come
    /// first.
    suspect_from: u32,
    /// Bytes appended since the last commit.
    appended: u64,
    migrated: u64,
    written: u64,
}

/// Opening.
impl Wal {
    /// Reads what the disk has into `restored`, which must be empty, and goes on in a new segment.
    /// Damage is no error: it is in the report; nor is a full disk. Fails if the files cannot be
    /// listed or read or a new one not be made, or if memory or descriptors are short. Then every
    /// record is where it was: at most zeros behind the records, and an unfinished record, are
    /// gone.
    pub fn open(
        mut disk: Box<dyn Disk>,
        options: Options,
        restored: &mut Restored,
        calendar: Calendar,
        now: Time,
        progress: Progress<'_>,
    ) -> io::Result<(Self, Report)> {
        let syncs_in_background =
            matches!(options.sync, SyncPolicy::Within(delay) if delay > Duration::ZERO);
        disk.prepare(syncs_in_background)?;
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
            synced: 0,
            preallocated: VecDeque::new(),
            filling: None,
            next_preallocated,
            preallocated_slots: 0,
            is_zeroing: false,
            full_until: None,
            drop_retry_at: None,
            drop_retry_delay: RETRY_DELAY,
            health: Health::Sound,
            retry_delay: RETRY_DELAY,
            failure: None,
            rewrite_through: if report.is_damaged() { last } else { 0 },
            suspect_from: u32::MAX,
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

/// Leave to append the record of one change, for which there is space. The append spends it.
#[must_use = "a change that is not appended does not outlast a restart"]
#[derive(Debug)]
pub struct Permit(Change);

/// What a permit is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A new job, of which the full record has this many bytes.
    Put(u64),
    /// Another state, priority or delay.
    Update,
    /// The same, appended as soon as there is space.
    DeferrableUpdate,
    /// The end of a job.
    Delete,
}

/// The server asks before it changes anything.
impl Wal {
    /// Permits a new job whose full record has `length` bytes: see [`Wal::full_length`].
    pub fn permit_put(&mut self, length: u64, now: Time) -> Result<Permit, Unavailable> {
        self.make_space(length, 1, now).map(|()| Permit(Change::Put(length)))
    }

    /// Makes sure of the memory that [`Wal::put`] takes.
    pub fn ensure_memory_to_put(&mut self, budget: &mut MemoryBudget) -> Result<(), OutOfMemory> {
        self.segment_index.ensure_memory(budget)
    }

    /// Permits another state, priority or delay of a job.
    pub fn permit_update(&mut self, now: Time) -> Result<Permit, Unavailable> {
        self.make_space(SHORT_BYTES, 0, now).map(|()| Permit(Change::Update))
    }

    /// Permits a change that must not fail because the disk is full. Its record is appended when
    /// there is space; a crash before that undoes the change.
    pub fn permit_deferrable_update(&self) -> Result<Permit, Unavailable> {
        if self.is_sound() {
            Ok(Permit(Change::DeferrableUpdate))
        } else {
            Err(Unavailable::Failed)
        }
    }

    /// Permits the delete of a job: on a full disk as well, for which space is kept; and while the
    /// binlog recovers, which may need the space that this makes.
    pub fn permit_delete(&mut self, now: Time) -> Result<Permit, Unavailable> {
        if matches!(self.health, Health::Failed { .. }) || self.failure.is_some() {
            return Err(Unavailable::Failed);
        }
        let has_space =
            self.space().admits(SHORT_BYTES, 0) || self.preallocate(file_size(SHORT_BYTES), now);
        if has_space { Ok(Permit(Change::Delete)) } else { Err(Unavailable::Full) }
    }

    /// Whether the disk had no room when it was last asked for some.
    pub fn is_full(&self) -> bool {
        self.full_until.is_some()
    }

    /// Whether jobs may be handed out.
    pub fn is_sound(&self) -> bool {
        self.health == Health::Sound && self.failure.is_none()
    }

    /// How many bytes the full record of a job takes, with a body of `size` bytes.
    pub fn full_length(name: &str, size: usize) -> u64 {
        (SHORT_RECORD_BYTES + name.len() + size) as u64
    }

    /// Makes sure of space for a record, for `new_jobs` more deletes than now, and to relocate the
    /// jobs of the oldest segment.
    fn make_space(&mut self, length: u64, new_jobs: u64, now: Time) -> Result<(), Unavailable> {
        if !self.is_sound() {
            return Err(Unavailable::Failed);
        }
        while !self.space().admits(length, self.demand().slots() + new_jobs) {
            if !self.preallocate(file_size(length), now) {
                return Err(Unavailable::Full);
            }
        }
        Ok(())
    }
}

/// What is told of the binlog.
impl Wal {
    /// What `stats` tells.
    pub fn counts(&self) -> Counts {
        let number = |segment: Option<&segments::Segment>| segment.map_or(0, |it| it.number);
        Counts {
            oldest: number(self.segment_index.oldest()),
            current: number(self.segment_index.current()),
            migrated: self.migrated,
            written: self.written,
        }
    }

    /// Bytes of the records that are still needed; all others are garbage.
    pub fn live(&self) -> u64 {
        self.segment_index.live()
    }

    /// The number of the segment that has a job's full record: `file` of `stats-job`.
    pub fn segment_of(&self, job: Key<Job>) -> u32 {
        self.segment_index.segment_of(job)
    }
}

/// The end of a turn.
impl Wal {
    /// Writes the records of the turn and syncs them if it is time; then does a bounded piece of
    /// what else there is to do. Replies leave after this, and only if it is done.
    pub fn commit(&mut self, jobs: Jobs<'_>, now: Time) -> CommitOutcome {
        let queue = jobs.queue;
        if let Health::Failed { retry_at } = self.health {
            if now < retry_at {
                return CommitOutcome::Done;
            }
            if let Err(error) = self.try_recover(queue, now) {
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
        if let Err(error) = self.write_and_sync(now).and_then(|()| self.drop_oldest(now)) {
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
        CommitOutcome::Done
    }

    /// Gives a piece of memory that jobs have left back to the system; whether there was one. See
    /// [`Queue::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.segment_index.release_one()
    }

    /// Whether there is something to give back.
    pub fn has_releasable(&self) -> bool {
        self.segment_index.has_releasable()
    }

    /// When [`Wal::commit`] has something to do: in the past where it has now.
    pub fn next_deadline(&self) -> Option<Time> {
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

    /// Walks everything and panics where something does not hold. O(all): for tests.
    pub fn check(&self) {
        self.segment_index.check();
    }
}
