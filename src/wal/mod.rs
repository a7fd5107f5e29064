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
//! a bounded number in a turn, when garbage outweighs what is live: see `ledger.rs`.
//!
//! **Failure.** After a failed write or sync, what the disk holds is unknown. Then nothing more is
//! acknowledged, until all jobs have been written to fresh segments.

mod disk;
mod inspect;
mod ledger;
mod preallocate;
mod record;
mod replay;
mod search;
mod window;

use std::{collections::VecDeque, io, time::Duration};

use log::{debug, error, info, warn};

pub use self::{
    disk::{Directory, Disk, Name},
    inspect::{Inspection, inspect},
    record::{Damage, Format},
    replay::{Complaint, Progress, Report, SegmentReport, Wrong},
};
use self::{
    ledger::Ledger,
    preallocate::{Spare, is_full, size_of},
    record::{Facts, HEAD_MAX_BYTES as RECORD_HEAD_MAX_BYTES, Kind, Mark, SHORT, VERSION},
    replay::HEAD,
};
use crate::{
    base::{Key, NoRoom, Room},
    clock::{Calendar, Time},
    queue::{Job, Queue, State},
};

/// Segments are multiples of this many bytes, and at least one.
const SEGMENT_ALIGN_BYTES: u64 = 4096;

/// A mark is repeated after this many bytes, so that damage to the start of a segment does not
/// take the rest with it: half a hundredth of the log.
const MARK_EVERY_BYTES: u64 = 16 * 1024;

/// What a segment begins with: the version and a mark.
const HEADER_BYTES: u64 = (HEAD + SHORT) as u64;

/// A short record, in bytes.
const SHORT_BYTES: u64 = SHORT as u64;

/// Records are written before the turn ends if more than this many bytes of them come together.
const PENDING_MAX_BYTES: usize = 1024 * 1024;

/// A body of more bytes is written from where it is, rather than copied behind other records.
const COPIED_BODY_MAX_BYTES: usize = 128 * 1024;

/// How many bytes of zeros are written ahead, and of jobs to the current segment again, in one turn
/// at least. If a turn appends more, twice that.
const STEP_BYTES: u64 = ZEROS.len() as u64;

const ZEROS: &[u8] = &[0; 128 * 1024];

/// How often to look whether a sync that is under way has ended.
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The largest number of a segment: the original reads no larger one.
const NUMBER_MAX: u32 = u32::MAX / 2;

/// How long to wait before a disk that was full or failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The same where it has failed again and again: each attempt leaves a file behind.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// When what is written is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// At most this long after a write; with zero, before any reply.
    Within(Duration),
    /// Never.
    Never,
}

/// What the flags decide for the log.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The size of a segment in bytes, rounded up to a multiple of 4096: `-s`.
    pub segment_size: u64,
    /// `-f` and `-F`.
    pub sync: Sync,
    /// A number that nobody can guess, from which the salts of checksums are drawn.
    pub seed: u64,
}

/// Why the log cannot take a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The disk is full.
    Full,
    /// The disk has failed, and jobs are not safe yet.
    Failed,
}

/// What a commit has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
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
    size: u64,
    salt: u64,
    /// From here on, a mark precedes the next record.
    next_mark: u64,
    /// Up to here zeros have been written, or records.
    zeroed: u64,
}

/// By which calendar the instants of restored jobs stand for their dates.
#[derive(Debug, Clone, Copy)]
struct Dates {
    calendar: Calendar,
    /// The wall clock has been set: those of jobs below this index follow this calendar already.
    shift: Option<(Calendar, usize)>,
}

impl Dates {
    fn of(&self, job: Key<Job>) -> Calendar {
        match self.shift {
            Some((calendar, next)) if job.index() < next => calendar,
            _ => self.calendar,
        }
    }
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
    sync: Sync,
    segment_size: u64,
    /// Draws salts.
    seed: u64,
    calendar: Calendar,
    dates: Dates,
    ledger: Ledger,
    current: Option<Current>,
    /// Records of the current segment that have not been written yet: its last bytes.
    pending: Vec<u8>,
    /// Something has been written to the current segment in this turn.
    is_written: bool,
    /// When the oldest write was made that no sync covers which is done or under way.
    unsynced_since: Option<Time>,
    /// A sync is under way: look at its result then.
    syncing_until: Option<Time>,
    /// How much of the log that sync covers, by its length.
    syncing: u64,
    /// And how much those cover that are done.
    synced: u64,
    /// The first is used first.
    spares: VecDeque<Spare>,
    filling: Option<Spare>,
    next_spare: u32,
    /// How many short records fit into the spares.
    spare_slots: u64,
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
    patience: Duration,
    /// What went wrong in this turn; the rest of it is not written.
    failure: Option<io::Error>,
    /// Segments up to this number are not to be relied on: their jobs are written again.
    rewrite_through: u32,
    /// Among them, those from this number on may lack records that the ledger counts on: they come
    /// first.
    doubted_from: u32,
    /// Bytes appended since the last commit.
    appended: u64,
    migrated: u64,
    written: u64,
}

/// Opening.
impl Wal {
    /// Reads what the disk has into the queue, which must be empty, and goes on in a new segment.
    /// Damage is no error: it is in the report; nor is a full disk. Fails if the files cannot be
    /// listed or read or a new one not be made, or if memory or descriptors are short. Then every
    /// record is where it was: at most zeros behind the records, and an unfinished record, are gone.
    pub fn open(
        mut disk: Box<dyn Disk>,
        options: Options,
        queue: &mut Queue,
        calendar: Calendar,
        now: Time,
        progress: Progress<'_>,
    ) -> io::Result<(Self, Report)> {
        let syncs_in_background =
            matches!(options.sync, Sync::Within(delay) if delay > Duration::ZERO);
        disk.prepare(syncs_in_background)?;
        let files = disk.list()?;
        let mut ledger = Ledger::default();
        let report =
            replay::replay(&mut *disk, &files, queue, &mut ledger, calendar, now, progress)?;
        let taken = files.iter().filter_map(|&(name, _)| match name {
            Name::Segment(number) | Name::Damaged(number) => Some(number),
            Name::Spare(_) => None,
        });
        let last = taken.max().unwrap_or(0);
        if last >= NUMBER_MAX {
            return Err(no_number_left(last));
        }
        let spares = files.iter().filter_map(|&(name, _)| match name {
            Name::Spare(number) => Some(number),
            Name::Segment(_) | Name::Damaged(_) => None,
        });
        let next_spare = spares.max().unwrap_or(0).checked_add(1).unwrap_or(1);
        let size = options.segment_size.clamp(1, u64::MAX / 4);
        let mut wal = Self {
            disk,
            sync: options.sync,
            segment_size: size.next_multiple_of(SEGMENT_ALIGN_BYTES),
            seed: options.seed,
            calendar,
            dates: Dates { calendar, shift: None },
            ledger,
            current: None,
            pending: Vec::new(),
            is_written: false,
            unsynced_since: None,
            syncing_until: None,
            syncing: 0,
            synced: 0,
            spares: VecDeque::new(),
            filling: None,
            next_spare,
            spare_slots: 0,
            is_zeroing: false,
            full_until: None,
            drop_retry_at: None,
            drop_retry_delay: RETRY_DELAY,
            health: Health::Sound,
            patience: RETRY_DELAY,
            failure: None,
            rewrite_through: if report.is_damaged() { last } else { 0 },
            doubted_from: u32::MAX,
            appended: 0,
            migrated: 0,
            written: 0,
        };
        wal.pending.try_reserve_exact(PENDING_MAX_BYTES).map_err(|_| io::ErrorKind::OutOfMemory)?;
        wal.begin(last + 1, &files, &report, queue, now)?;
        Ok((wal, report))
    }

    /// Opens the first segment of this run. What may fail for want of something goes first, while
    /// nothing has been changed.
    fn begin(
        &mut self,
        number: u32,
        files: &[(Name, u64)],
        report: &Report,
        queue: &Queue,
        now: Time,
    ) -> io::Result<()> {
        let least = self.room_for_deletes();
        let mut made = self.try_make_spare(least);
        let mut is_tidy = false;
        if made.as_ref().is_err_and(is_full) {
            // What the last run had set aside is room as well.
            self.tidy(files, report);
            is_tidy = true;
            made = self.try_make_spare(least);
        }
        match made {
            Err(error) if is_full(&error) => self.note_full(&error, now),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let has_spare = !self.spares.is_empty();
        let opened = self.secure(report).and_then(|()| {
            if has_spare { self.open_segment(number, queue).map(|()| true) } else { Ok(false) }
        });
        match opened {
            Ok(true) => {}
            Ok(false) => {
                error!("there is not even room for deletes: no job can be changed until there is");
                // Serve what is there, and try again: somebody may make room.
                self.ledger.open(number);
                self.health = Health::Failed { retry_at: now + RETRY_DELAY };
            }
            Err(error) => {
                self.unmake();
                return Err(error);
            }
        }
        // From now on the ids of unfinished records are known without them.
        self.cut_unfinished(report);
        if !is_tidy {
            self.tidy(files, report);
        }
        // The room of all deletes at once: the first put must not wait for it.
        while !self.has_room(0, self.ledger.jobs() + self.to_move()) {
            if !self.make_spare(size_of(SHORT_BYTES), now) {
                break;
            }
        }
        Ok(())
    }

    /// Makes sure of what the last run wrote.
    fn secure(&mut self, report: &Report) -> io::Result<()> {
        if self.sync != Sync::Never {
            for segment in &report.segments {
                let name = Name::Segment(segment.number);
                self.disk.sync(name)?;
                self.disk.close(name);
            }
            self.disk.sync_names()?;
        }
        self.synced = self.ledger.length();
        Ok(())
    }

    /// Takes off what the last run did not write to its end: behind other records it would count
    /// as damage, and does at the next start if this fails.
    fn cut_unfinished(&mut self, report: &Report) {
        for segment in &report.segments {
            if segment.torn.is_none() || segment.is_damaged() {
                continue;
            }
            let name = Name::Segment(segment.number);
            let cut = self.disk.cut(name, segment.used);
            let is_synced = self.sync != Sync::Never;
            let result = cut.and_then(|()| if is_synced { self.disk.sync(name) } else { Ok(()) });
            if let Err(error) = result {
                warn!("an unfinished record stays, and will be taken for damage: {error}");
            }
            self.disk.close(name);
        }
    }

    /// Removes what a start that fails has made, but for a segment without records: that may be
    /// what tells the next id.
    fn unmake(&mut self) {
        while let Some(spare) = self.take_spare(0) {
            let _ = self.disk.remove(Name::Spare(spare.number));
        }
    }

    /// Gives back what the last run had set aside: its spares, and the zeros behind its records. If
    /// that fails they stay, and take room until the next start.
    fn tidy(&mut self, files: &[(Name, u64)], report: &Report) {
        for &(name, _) in files {
            if let Name::Spare(_) = name {
                if let Err(error) = self.disk.remove(name) {
                    warn!("a file of the last run stays: {error}");
                }
            }
        }
        for segment in &report.segments {
            let name = Name::Segment(segment.number);
            if segment.is_damaged() || segment.torn.is_some() || segment.used >= segment.size {
                continue;
            }
            if let Err(error) = self.disk.cut(name, segment.used) {
                warn!("the unused end of a file of the last run stays: {error}");
            }
            self.disk.close(name);
        }
    }
}

fn no_segment() -> io::Error {
    io::Error::other("no segment is open")
}

fn no_number_left(last: u32) -> io::Error {
    io::Error::other(format!("no number is left behind {}", Name::Segment(last)))
}

/// The server asks before it changes anything.
impl Wal {
    /// Whether a job with a record of so many bytes may be put.
    pub fn may_put(&mut self, length: u64, now: Time) -> Result<(), Refusal> {
        self.may_append(length, 1, now)
    }

    /// Makes sure of the memory that [`Wal::put`] takes.
    pub fn make_room_to_put(&mut self, room: &mut Room) -> Result<(), NoRoom> {
        self.ledger.make_room(room)
    }

    /// Whether a job may change its state or priority.
    pub fn may_update(&mut self, now: Time) -> Result<(), Refusal> {
        self.may_append(SHORT_BYTES, 0, now)
    }

    /// Whether a job may be deleted: on a full disk as well, for which room is kept; and while the
    /// log recovers, which may need the room that this makes.
    pub fn may_delete(&mut self, now: Time) -> Result<(), Refusal> {
        if matches!(self.health, Health::Failed { .. }) || self.failure.is_some() {
            return Err(Refusal::Failed);
        }
        let has_room = self.has_room(SHORT_BYTES, 0) || self.make_spare(size_of(SHORT_BYTES), now);
        has_room.then_some(()).ok_or(Refusal::Full)
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
        (SHORT + name.len() + size) as u64
    }

    /// Room for the record, for all deletes, and to move the jobs of the oldest segment.
    fn may_append(&mut self, length: u64, jobs: u64, now: Time) -> Result<(), Refusal> {
        if !self.is_sound() {
            return Err(Refusal::Failed);
        }
        let jobs = self.ledger.jobs() + jobs;
        while !self.has_room(length, jobs + self.to_move()) {
            if !self.make_spare(size_of(length), now) {
                return Err(Refusal::Full);
            }
        }
        Ok(())
    }
}

/// The server tells what has changed. Nothing is written before the commit; where something goes
/// wrong, that is when it is told.
impl Wal {
    /// A job has been put, and nothing else done to it yet.
    pub fn put(&mut self, queue: &Queue, job: Key<Job>) {
        let length = self.append_full(queue, job);
        self.ledger.insert(job, length);
    }

    /// A job has another state, priority or delay than the log says. If the change had to be made
    /// though there is no room, it is written when there is.
    pub fn update(&mut self, queue: &Queue, job: Key<Job>, now: Time) {
        match self.may_update(now) {
            Ok(()) => self.append_short(queue, job),
            Err(_) => self.ledger.defer(job),
        }
    }

    /// A job is about to be deleted.
    pub fn delete(&mut self, queue: &Queue, job: Key<Job>) {
        let facts = Facts { kind: Kind::Deleted, ..self.facts(queue, job) };
        self.append(&facts, None, queue);
        self.ledger.remove(job);
    }

    /// The calendar as it is set now. The one in use stays as long as it is right to the second:
    /// a job's date must be the same whenever it is written, or jobs would change places. If it is
    /// not, the wall clock has been set: [`Wal::shift_dates`] has something to do. Until that is
    /// done, another step is not heeded.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        if self.dates.shift.is_none() && self.calendar.is_set_otherwise(calendar) {
            info!("the wall clock has been set: restored delays end at their dates");
            self.calendar = calendar;
            self.dates.shift = Some((calendar, 0));
        }
    }

    /// Moves the instants of so many restored jobs to where their dates lie by the calendar that is
    /// set now, and has the dates written anew of other delayed jobs. Nothing is written for
    /// restored jobs: their dates stay what they are.
    pub fn shift_dates(&mut self, queue: &mut Queue, count: usize, now: Time) {
        let Some((new, from)) = self.dates.shift else { return };
        let old = self.dates.calendar;
        let mut to_log = Vec::new();
        let shift = |at| new.instant(old.date(at));
        match queue.shift_dates(from, count, shift, now, &mut to_log) {
            Some(next) => self.dates.shift = Some((new, next)),
            None => self.dates = Dates { calendar: new, shift: None },
        }
        for job in to_log {
            self.update(queue, job, now);
        }
    }

    /// Whether [`Wal::shift_dates`] has something to do.
    pub fn is_shifting_dates(&self) -> bool {
        self.dates.shift.is_some()
    }

    /// What `stats` tells.
    pub fn counts(&self) -> Counts {
        let number = |segment: Option<&ledger::Segment>| segment.map_or(0, |it| it.number);
        Counts {
            oldest: number(self.ledger.oldest()),
            current: number(self.ledger.current()),
            migrated: self.migrated,
            written: self.written,
        }
    }

    /// Bytes of the records that are still needed; all others are garbage.
    pub fn live(&self) -> u64 {
        self.ledger.live()
    }

    /// The number of the segment that has a job's full record: `file` of `stats-job`.
    pub fn segment_of(&self, job: Key<Job>) -> u32 {
        self.ledger.segment_of(job)
    }

    fn facts(&self, queue: &Queue, job: Key<Job>) -> Facts {
        let Job { record, body, dated, .. } = queue.job(job);
        let calendar = |is_dated| if is_dated { self.dates.of(job) } else { self.calendar };
        let nanoseconds = |seconds: u32| i64::from(seconds) * 1_000_000_000;
        Facts {
            id: record.id,
            pri: record.pri,
            delay: nanoseconds(record.delay),
            ttr: nanoseconds(record.ttr),
            body_size: i32::try_from(body.len()).expect("a body is at most a gibibyte"),
            created_at: calendar(dated.is_created).date(record.created_at),
            deadline_at: calendar(dated.is_deadline).date(record.deadline_at),
            reserves: record.reserves,
            timeouts: record.timeouts,
            releases: record.releases,
            buries: record.buries,
            kicks: record.kicks,
            kind: match record.state {
                // Its delay has ended, if the wall clock is right; a restart finds out anew.
                State::Ready if dated.is_deadline => Kind::Delayed,
                // A restart makes it ready again.
                State::Ready | State::Reserved(_) => Kind::Ready,
                State::Delayed => Kind::Delayed,
                State::Buried => Kind::Buried,
            },
        }
    }

    /// Answers the record's length in bytes.
    fn append_full(&mut self, queue: &Queue, key: Key<Job>) -> u32 {
        let job = queue.job(key);
        let name = queue.tube(job.tube).name();
        let body = queue.body(key);
        self.append(&self.facts(queue, key), Some((name, body)), queue);
        u32::try_from(Self::full_length(name, body.len())).expect("a gibibyte and 300 bytes")
    }

    fn append_short(&mut self, queue: &Queue, job: Key<Job>) {
        self.append(&self.facts(queue, job), None, queue);
        self.ledger.update(job);
    }

    fn append(&mut self, facts: &Facts, full: Option<(&str, &[u8])>, queue: &Queue) {
        let length = full.map_or(SHORT_BYTES, |(name, body)| Self::full_length(name, body.len()));
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = self.try_append(facts, full, length, queue) {
            self.failure = Some(error);
        }
    }

    fn try_append(
        &mut self,
        facts: &Facts,
        full: Option<(&str, &[u8])>,
        length: u64,
        queue: &Queue,
    ) -> io::Result<()> {
        if length + SHORT_BYTES > self.free() {
            self.rotate(length, queue)?;
        }
        // So that the buffer never grows: at a memory limit that would end the process.
        let copied = full.map_or(0, |(_, body)| body.len()).min(COPIED_BODY_MAX_BYTES);
        if self.pending.len() + copied + 2 * RECORD_HEAD_MAX_BYTES > PENDING_MAX_BYTES {
            self.write()?;
        }
        let current = self.current.as_mut().ok_or_else(no_segment)?;
        let segment = self.ledger.current().expect("it was opened");
        let mut at = segment.used;
        if at >= current.next_mark {
            let mark = Mark { salt: current.salt, next_id: queue.next_id() };
            mark.encode(at, &mut self.pending);
            at += SHORT_BYTES;
            current.next_mark = at + MARK_EVERY_BYTES;
        }
        record::encode(facts, full, current.salt, at, &mut self.pending);
        at += length;
        let grown = at - segment.used;
        self.ledger.grow(grown);
        self.appended += grown;
        self.written += 1;
        match full {
            Some((_, body)) if body.len() > COPIED_BODY_MAX_BYTES => {
                let number = current.number;
                self.write_through(at - body.len() as u64)?;
                self.disk.write(Name::Segment(number), at - body.len() as u64, body)?;
                self.is_written = true;
            }
            Some((_, body)) => self.pending.extend_from_slice(body),
            None => {}
        }
        Ok(())
    }
}

/// Segments come and go.
impl Wal {
    /// Ends the current segment and begins the next, which has room for `length` bytes.
    fn rotate(&mut self, length: u64, queue: &Queue) -> io::Result<()> {
        let current = self.current.ok_or_else(no_segment)?;
        if !self.can_rotate() {
            return Err(no_number_left(current.number));
        }
        let name = Name::Segment(current.number);
        self.write()?;
        self.end_sync()?;
        let used = self.ledger.current().expect("it was opened").used;
        if used < current.size {
            self.disk.cut(name, used)?;
        }
        if self.sync != Sync::Never {
            self.disk.sync(name)?;
        }
        self.is_written = false;
        self.unsynced_since = None;
        self.synced = self.ledger.length();
        self.disk.close(name);
        // All of it is on the disk: whatever fails from here on does not cast doubt on it.
        self.current = None;
        self.open_next(size_of(length), queue)
    }

    /// Opens the next segment in a spare of at least `size` bytes. Files that are gone are made
    /// again.
    fn open_next(&mut self, size: u64, queue: &Queue) -> io::Result<()> {
        let last = self.ledger.current().map_or(0, |current| current.number);
        loop {
            // The caller has asked for room; so there is a spare, except after a full disk.
            if self.spares.front().is_none_or(|spare| spare.size < size) {
                self.fill(self.segment_size.max(size))?;
            }
            match self.open_segment(last + 1, queue) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    warn!("a file that the daemon has made is gone: {error}");
                    self.take_spare(0);
                }
                result => return result,
            }
        }
    }

    /// Makes the first spare the current segment. Its name is changed when its header outlasts a
    /// power cut, so no segment is ever without.
    fn open_segment(&mut self, number: u32, queue: &Queue) -> io::Result<()> {
        let &spare = self.spares.front().ok_or(io::ErrorKind::StorageFull)?;
        if number > NUMBER_MAX {
            return Err(no_number_left(number - 1));
        }
        let (from, to) = (Name::Spare(spare.number), Name::Segment(number));
        let salt = self.draw_salt();
        let mut header = VERSION.to_le_bytes().to_vec();
        Mark { salt, next_id: queue.next_id() }.encode(HEAD as u64, &mut header);
        self.disk.write(from, 0, &header)?;
        if self.sync != Sync::Never {
            self.disk.sync(from)?;
        }
        self.disk.rename(from, to)?;
        self.take_spare(0);
        if self.sync != Sync::Never {
            self.disk.sync_names()?;
        }
        debug!("{to} is open");
        self.ledger.open(number);
        self.ledger.grow(HEADER_BYTES);
        let next_mark = HEADER_BYTES + MARK_EVERY_BYTES;
        let Spare { size, filled, .. } = spare;
        self.current = Some(Current { number, size, salt, next_mark, zeroed: filled });
        Ok(())
    }

    /// The next number of the splitmix64 sequence.
    fn draw_salt(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// The end of a turn.
impl Wal {
    /// Writes the records of the turn and syncs them if it is time; then does a bounded piece of
    /// what else there is to do. Replies leave after this, and only if it is done.
    pub fn commit(&mut self, queue: &Queue, now: Time) -> Outcome {
        if let Health::Failed { retry_at } = self.health {
            if now < retry_at {
                return Outcome::Done;
            }
            if let Err(error) = self.try_again(queue, now) {
                debug!("the binlog cannot be written yet: {error}");
                self.give_up_segment();
                self.retry_later(now);
                return Outcome::Done;
            }
        }
        let budget = STEP_BYTES.max(2 * std::mem::take(&mut self.appended));
        self.pay_debts(queue);
        self.leave_garbage(queue);
        self.compact(queue, budget, now);
        if let Err(error) = self.write_and_sync(now).and_then(|()| self.drop_oldest(now)) {
            if self.health == Health::Sound {
                error!("the binlog has failed, nothing is acknowledged until it works: {error}");
            }
            self.fail(now);
            return Outcome::Failed;
        }
        self.prepare(budget, now);
        let is_relied_on = self.ledger.oldest().is_some_and(|it| it.number > self.rewrite_through)
            || (self.drop_retry_at.is_some() && self.is_rewritten());
        if self.health == Health::Recovering && is_relied_on {
            info!("the binlog works again, and holds every job");
            self.health = Health::Sound;
            self.doubted_from = u32::MAX;
            self.patience = RETRY_DELAY;
            return Outcome::Recovered;
        }
        Outcome::Done
    }

    /// The daemon ends: syncs what has been written, unless that is never done.
    pub fn end(&mut self) -> io::Result<()> {
        self.end_sync()?;
        match self.current {
            Some(current) if self.unsynced_since.take().is_some() => {
                self.disk.sync(Name::Segment(current.number))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the sync that is under way, if one is.
    fn end_sync(&mut self) -> io::Result<()> {
        if self.syncing_until.take().is_some() {
            self.disk.end_sync()?;
            self.synced = self.synced.max(self.syncing);
        }
        Ok(())
    }

    /// Gives a piece of memory that jobs have left back to the system; whether there was one. See
    /// [`Queue::free_spent`].
    pub fn free_spent(&mut self) -> bool {
        self.ledger.free_spent()
    }

    /// Whether there is something to give back.
    pub fn has_spent(&self) -> bool {
        self.ledger.has_spent()
    }

    /// When [`Wal::commit`] has something to do: in the past where it has now.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.is_shifting_dates() {
            return Some(Time::default());
        }
        if let Health::Failed { retry_at } = self.health {
            return Some(retry_at);
        }
        if self.can_drop() && self.drop_retry_at.is_none() {
            return Some(Time::default());
        }
        let has_work = (self.to_rewrite().is_some() && self.can_rotate())
            || self.is_to_pay()
            || self.is_to_leave()
            || self.is_to_prepare();
        let work = has_work.then(|| self.full_until.unwrap_or_default());
        let sync = self.syncing_until.or(match self.sync {
            Sync::Within(delay) => self.unsynced_since.map(|since| since + delay),
            Sync::Never => None,
        });
        [work, sync, self.drop_retry_at].into_iter().flatten().min()
    }

    /// Walks everything and panics where something does not hold. O(all): for tests.
    pub fn check(&self) {
        self.ledger.check();
    }

    /// Writes what is pending to the current segment.
    fn write(&mut self) -> io::Result<()> {
        let end = self.ledger.current().map_or(0, |segment| segment.used);
        self.write_through(end)
    }

    /// Writes what is pending, which ends at this offset of the current segment.
    fn write_through(&mut self, end: u64) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let number = self.current.ok_or_else(no_segment)?.number;
        let start = end - self.pending.len() as u64;
        self.disk.write(Name::Segment(number), start, &self.pending)?;
        self.is_written = true;
        self.pending.clear();
        Ok(())
    }

    fn write_and_sync(&mut self, now: Time) -> io::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.write()?;
        if std::mem::take(&mut self.is_written) {
            self.unsynced_since.get_or_insert(now);
        }
        if self.syncing_until.is_some() {
            let result = self.disk.sync_result();
            self.syncing_until = result.is_none().then_some(now + SYNC_POLL_INTERVAL);
            if let Some(result) = result {
                result?;
                self.synced = self.synced.max(self.syncing);
            }
        }
        let Some(since) = self.unsynced_since else { return Ok(()) };
        let name = Name::Segment(self.current.ok_or_else(no_segment)?.number);
        match self.sync {
            Sync::Within(Duration::ZERO) => self.disk.sync(name)?,
            Sync::Within(delay) => {
                let is_time = since + delay <= now || (self.is_unneeded() && !self.can_drop());
                if !is_time || self.syncing_until.is_some() {
                    return Ok(());
                }
                self.disk.begin_sync(name)?;
                self.syncing_until = Some(now + SYNC_POLL_INTERVAL);
                self.syncing = self.ledger.length();
                self.unsynced_since = None;
                return Ok(());
            }
            Sync::Never => {}
        }
        self.unsynced_since = None;
        self.synced = self.ledger.length();
        Ok(())
    }

    /// Whether something that could not be written when it changed can be now.
    fn is_to_pay(&self) -> bool {
        let shorts = self.ledger.jobs() + self.to_move();
        self.ledger.has_deferred() && self.has_room(SHORT_BYTES, shorts)
    }

    fn pay_debts(&mut self, queue: &Queue) {
        while self.is_to_pay() {
            let Some(job) = self.ledger.next_deferred() else { return };
            self.append_short(queue, job);
        }
    }

    /// The job that is written again next, if any should be.
    fn to_rewrite(&self) -> Option<Key<Job>> {
        let doubted = self.ledger.first_job_in(self.doubted_from..=self.rewrite_through);
        doubted.or_else(|| self.ledger.first_job_in(0..=self.rewrite_through)).or_else(|| {
            let (_, job) = self.ledger.oldest_closed()?;
            job.filter(|_| self.ledger.closed() > 2 * self.ledger.live())
        })
    }

    /// Writes jobs of the oldest segment again: at most so many bytes, and one job.
    fn compact(&mut self, queue: &Queue, budget: u64, now: Time) {
        let mut left = budget;
        while left > 0 && self.failure.is_none() {
            let Some(job) = self.to_rewrite() else { return };
            let length = u64::from(self.ledger.length_of(job));
            // It may use the room kept for this, but not that of deletes.
            while !self.has_room(length, self.ledger.jobs()) {
                if !self.make_spare(size_of(length), now) {
                    return;
                }
            }
            self.append_full(queue, job);
            self.ledger.renew(job);
            self.migrated += 1;
            left = left.saturating_sub(length);
        }
    }

    /// Whether every job is in segments that can be relied on, and these are synced.
    fn is_rewritten(&self) -> bool {
        let is_synced = self.unsynced_since.is_none() && self.syncing_until.is_none();
        is_synced && self.ledger.first_job_in(0..=self.rewrite_through).is_none()
    }

    /// Whether no job needs the oldest segment. After a failure that is known only when no job's
    /// record is in a segment that is doubted: if that never reached the disk, an older one counts.
    fn is_unneeded(&self) -> bool {
        let doubted = self.ledger.first_job_in(self.doubted_from..=self.rewrite_through);
        doubted.is_none() && self.ledger.oldest_closed().is_some_and(|(_, job)| job.is_none())
    }

    /// Whether the oldest segment may go: what replaces its records has been synced as well. That
    /// more is written all the time must not keep it; after a failure all jobs are replaced at
    /// once, so all must be synced.
    fn can_drop(&self) -> bool {
        let is_synced = match self.health {
            Health::Sound => {
                let oldest = self.ledger.oldest();
                oldest.is_none_or(|oldest| oldest.left_at <= self.synced)
            }
            _ => self.unsynced_since.is_none() && self.syncing_until.is_none(),
        };
        is_synced && self.is_unneeded()
    }

    /// Drops the oldest segment if no job needs it: what replaces its records has been synced. A
    /// file that cannot be removed is no failure of the log: it is tried again, less and less often.
    fn drop_oldest(&mut self, now: Time) -> io::Result<()> {
        if self.drop_retry_at.is_some_and(|at| at > now) {
            return Ok(());
        }
        self.drop_retry_at = None;
        let Some((oldest, _)) = self.ledger.oldest_closed().filter(|_| self.can_drop()) else {
            return Ok(());
        };
        let name = Name::Segment(oldest.number);
        let result = if oldest.is_damaged {
            let kept = Name::Damaged(oldest.number);
            self.disk.rename(name, kept).inspect(|()| {
                warn!("every job of {name} is in newer files; what was damaged stays in {kept}");
            })
        } else {
            debug!("{name} is of no more use");
            self.disk.remove(name).or_else(|error| self.empty(name, error))
        };
        match result {
            // Somebody has removed it by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let delay = self.drop_retry_delay;
                warn!("a file of the binlog stays that no job needs, and all behind it: {error}");
                self.drop_retry_at = Some(now + delay);
                self.drop_retry_delay = (2 * delay).min(RETRY_DELAY_MAX);
                return Ok(());
            }
            Ok(()) => {}
        }
        self.drop_retry_delay = RETRY_DELAY;
        if self.sync != Sync::Never {
            self.disk.sync_names()?;
        }
        self.ledger.drop_oldest();
        Ok(())
    }

    /// Takes the records out of a file that cannot be removed: without them it is of no harm.
    fn empty(&mut self, name: Name, error: io::Error) -> io::Result<()> {
        if error.kind() == io::ErrorKind::NotFound || self.disk.cut(name, HEAD as u64).is_err() {
            return Err(error);
        }
        if self.sync != Sync::Never {
            self.disk.sync(name)?;
        }
        self.disk.close(name);
        warn!("an empty file of the binlog stays: {error}");
        Ok(())
    }

    /// Whether the current segment was made for a large job that has gone: most of it is garbage,
    /// which only a closed segment gives back.
    fn is_to_leave(&self) -> bool {
        let is_large = |segment: &&ledger::Segment| segment.used > self.segment_size;
        let current = self.ledger.current().filter(is_large);
        current.is_some_and(|current| 2 * current.live < current.used)
            && self.current.is_some()
            && self.can_leave()
    }

    fn leave_garbage(&mut self, queue: &Queue) {
        if self.failure.is_none() && self.is_to_leave() {
            if let Err(error) = self.rotate(0, queue) {
                self.failure = Some(error);
            }
        }
    }
}

/// Failure.
impl Wal {
    /// Some records of this turn may not be on the disk, though the ledger counts on them.
    fn fail(&mut self, now: Time) {
        self.give_up_segment();
        let last = self.ledger.current().map_or(0, |segment| segment.number);
        self.doubted_from = self.doubted_from.min(last);
        self.retry_later(now);
    }

    fn give_up_segment(&mut self) {
        if let Some(current) = self.current.take() {
            let name = Name::Segment(current.number);
            let used = self.ledger.current().map_or(0, |segment| segment.used);
            // Its zeros may be the room that is needed. If the disk refuses that too, so be it.
            let _ = self.disk.cut(name, used.saturating_sub(self.pending.len() as u64));
            self.disk.close(name);
            self.doubted_from = self.doubted_from.min(current.number);
        }
        self.pending.clear();
        self.is_written = false;
        self.is_zeroing = false;
        self.failure = None;
        self.unsynced_since = None;
    }

    fn retry_later(&mut self, now: Time) {
        self.patience = match self.health {
            Health::Recovering => (2 * self.patience).min(RETRY_DELAY_MAX),
            _ => RETRY_DELAY,
        };
        self.health = Health::Failed { retry_at: now + self.patience };
    }

    /// Opens a fresh segment; every job is to be written to it or its successors.
    fn try_again(&mut self, queue: &Queue, now: Time) -> io::Result<()> {
        if self.spares.is_empty() && !self.make_spare(self.room_for_deletes(), now) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let last = self.ledger.current().map_or(0, |current| current.number);
        self.open_next(0, queue)?;
        if self.doubted_from <= last {
            self.rewrite_through = last;
        }
        self.health = Health::Recovering;
        Ok(())
    }
}
