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
mod record;
mod replay;

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    time::Duration,
};

use log::{debug, error, info, warn};

pub use self::{
    disk::{Directory, Disk, Name},
    inspect::{Inspection, inspect},
    record::{Damage, Format},
    replay::{Complaint, Progress, Report, SegmentReport, Wrong},
};
use self::{
    ledger::Ledger,
    record::{Facts, Kind, Mark, SHORT, VERSION},
    replay::HEAD,
};
use crate::{
    base::Key,
    clock::{Calendar, Time},
    queue::{Job, Queue, State},
};

/// Segments are multiples of this many bytes, and at least one.
const BLOCK: u64 = 4096;

/// A mark is repeated after this many bytes, so that damage to the start of a segment does not
/// take the rest with it: half a hundredth of the log.
const MARK_EVERY: u64 = 16 * 1024;

/// What a segment begins with: the version and a mark.
const HEADER: u64 = (HEAD + SHORT) as u64;

/// A short record, in bytes.
const SHORT_LENGTH: u64 = SHORT as u64;

/// Records are written before the turn ends where this many bytes of them have come together.
const PENDING: usize = 1024 * 1024;

/// How many bytes of zeros are written to a spare, and of jobs to the current segment again, in
/// one turn at least. Where a turn appends more, twice that.
const STEP: u64 = ZEROS.len() as u64;

const ZEROS: &[u8] = &[0; 128 * 1024];

/// How often to look whether a sync that is under way has ended.
const GLANCE: Duration = Duration::from_millis(2);

/// The largest number of a segment to go on from: more behind it than anybody can use up.
const LAST: u32 = u32::MAX / 2;

/// How long to wait before a disk that was full or failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The same where it has failed again and again: each attempt leaves a file behind.
const RETRY_LATER: Duration = Duration::from_secs(60);

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

/// Room for a segment to come.
#[derive(Debug, Clone, Copy)]
struct Spare {
    number: u32,
    size: u64,
    /// How much of it has been filled with zeros.
    filled: u64,
}

/// The segment that records are appended to.
#[derive(Debug, Clone, Copy)]
struct Current {
    number: u32,
    size: u64,
    salt: u64,
    /// From here on, a mark precedes the next record.
    next_mark: u64,
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
    /// There was no room for a spare of full size: none is made until then.
    full_until: Option<Time>,
    health: Health,
    /// How long to wait after a failure.
    patience: Duration,
    /// What went wrong in this turn; the rest of it is not written.
    failure: Option<io::Error>,
    /// Jobs that have changed without room to say so.
    owed: BTreeSet<Key<Job>>,
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
    /// Damage is no error: it is in the report. Fails where the files cannot be listed or a new
    /// one not be made; a full disk is not a failure.
    pub fn open(
        mut disk: Box<dyn Disk>,
        options: Options,
        queue: &mut Queue,
        calendar: Calendar,
        now: Time,
        progress: Progress<'_>,
    ) -> io::Result<(Self, Report)> {
        let files = disk.list()?;
        let mut ledger = Ledger::default();
        let report =
            replay::replay(&mut *disk, &files, queue, &mut ledger, calendar, now, progress)?;
        let taken = files.iter().filter_map(|&(name, _)| match name {
            Name::Segment(number) | Name::Damaged(number) => Some(number),
            Name::Spare(_) => None,
        });
        let last = taken.max().unwrap_or(0);
        if last > LAST {
            let what = format!("no number is left behind {}", Name::Segment(last));
            return Err(io::Error::other(what));
        }
        let mut wal = Self {
            disk,
            sync: options.sync,
            segment_size: options.segment_size.clamp(1, u64::MAX / 2).next_multiple_of(BLOCK),
            seed: options.seed,
            calendar,
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
            next_spare: 1,
            spare_slots: 0,
            full_until: None,
            health: Health::Sound,
            patience: RETRY,
            failure: None,
            owed: BTreeSet::new(),
            rewrite_through: if report.is_damaged() { last } else { 0 },
            doubted_from: u32::MAX,
            appended: 0,
            migrated: 0,
            written: 0,
        };
        wal.tidy(&files, &report)?;
        wal.begin(last + 1, queue, now)?;
        Ok((wal, report))
    }

    /// Gives back what the last run had set aside, and makes sure of what it wrote last.
    fn tidy(&mut self, files: &[(Name, u64)], report: &Report) -> io::Result<()> {
        for &(name, _) in files {
            if let Name::Spare(_) = name {
                self.disk.remove(name)?;
            }
        }
        for segment in &report.segments {
            let name = Name::Segment(segment.number);
            if !segment.is_damaged() && segment.used < segment.size {
                self.disk.cut(name, segment.used)?;
            }
            if self.sync != Sync::Never {
                self.disk.sync(name)?;
            }
            self.disk.close(name);
        }
        if self.sync != Sync::Never {
            self.disk.sync_names()?;
        }
        self.synced = self.ledger.length();
        Ok(())
    }

    /// Opens the first segment of this run. On a full disk it may be a small one.
    fn begin(&mut self, number: u32, queue: &Queue, now: Time) -> io::Result<()> {
        if self.make_spare(self.room_for_deletes(), now) {
            return self.open_segment(number, queue);
        }
        error!("there is not even room for deletes: no job can be changed until there is");
        // Serve what is there, and try again: somebody may make room.
        self.ledger.open(number);
        self.health = Health::Failed { retry_at: now + RETRY };
        Ok(())
    }
}

/// The server asks before it changes anything.
impl Wal {
    /// Whether a job with a record of so many bytes may be put.
    pub fn may_put(&mut self, length: u64, now: Time) -> Result<(), Refusal> {
        self.may_append(length, 1, now)
    }

    /// Whether a job may change its state or priority.
    pub fn may_update(&mut self, now: Time) -> Result<(), Refusal> {
        self.may_append(SHORT_LENGTH, 0, now)
    }

    /// Whether a job may be deleted: on a full disk as well, for which room is kept; and while the
    /// log recovers, which may need the room that this makes.
    pub fn may_delete(&mut self, now: Time) -> Result<(), Refusal> {
        if matches!(self.health, Health::Failed { .. }) || self.failure.is_some() {
            return Err(Refusal::Failed);
        }
        let has_room =
            self.has_room(SHORT_LENGTH, 0) || self.make_spare(size_of(SHORT_LENGTH), now);
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

    /// The size of a segment for each job's delete, if one segment can have them all.
    fn room_for_deletes(&self) -> u64 {
        size_of((self.ledger.jobs() + 1) * SHORT_LENGTH).min(self.segment_size)
    }

    /// How many short records would take the room that the oldest segment's jobs need.
    fn to_move(&self) -> u64 {
        self.ledger.oldest().map_or(0, |oldest| oldest.live.div_ceil(SHORT_LENGTH))
    }

    /// Whether a record of `length` bytes can be appended so that `shorts` short ones still can.
    fn has_room(&self, length: u64, shorts: u64) -> bool {
        let length = length + SHORT_LENGTH; // A mark may precede it.
        let free = self.free();
        if length <= free {
            return slots(free - length) + self.spare_slots >= shorts;
        }
        // The rest of the current segment is then not used.
        let first = self.spares.front().map_or(0, |spare| spare.size - HEADER);
        length <= first && slots(first - length) + self.spare_slots - slots(first) >= shorts
    }

    /// Bytes left in the current segment.
    fn free(&self) -> u64 {
        let used = self.ledger.current().map_or(0, |current| current.used);
        self.current.map_or(0, |current| current.size.saturating_sub(used))
    }
}

/// How many short records fit, with their marks.
fn slots(bytes: u64) -> u64 {
    bytes.saturating_sub((bytes / MARK_EVERY + 1) * SHORT_LENGTH) / SHORT_LENGTH
}

/// The size of a segment for so many bytes of records.
fn size_of(records: u64) -> u64 {
    let marks = (records / MARK_EVERY + 1) * SHORT_LENGTH;
    (HEADER + records + marks).next_multiple_of(BLOCK)
}

/// The server tells what has changed. Nothing is written before the commit; where something goes
/// wrong, that is when it is told.
impl Wal {
    /// A job has been put, and nothing else done to it yet.
    pub fn put(&mut self, queue: &Queue, job: Key<Job>) {
        let length = self.append_full(queue, job);
        self.ledger.insert(job, length);
    }

    /// A job has another state, priority or delay than the log says. Where the change had to be
    /// made though there is no room, it is written when there is.
    pub fn update(&mut self, queue: &Queue, job: Key<Job>, now: Time) {
        match self.may_update(now) {
            Ok(()) => self.append_short(queue, job),
            Err(_) => drop(self.owed.insert(job)),
        }
    }

    /// A job is about to be deleted.
    pub fn delete(&mut self, queue: &Queue, job: Key<Job>) {
        let facts = Facts { kind: Kind::Deleted, ..self.facts(queue, job) };
        self.append(&facts, None, queue);
        self.ledger.remove(job);
        self.owed.remove(&job);
    }

    /// The calendar as it is set now. The one in use stays as long as it is right to the second:
    /// a job's date must be the same whenever it is written, or jobs would change places.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        if self.calendar.is_set_otherwise(calendar) {
            self.calendar = calendar;
        }
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
        let Job { record, body, .. } = queue.job(job);
        let nanoseconds = |seconds: u32| i64::from(seconds) * 1_000_000_000;
        Facts {
            id: record.id,
            pri: record.pri,
            delay: nanoseconds(record.delay),
            ttr: nanoseconds(record.ttr),
            body_size: i32::try_from(body.len()).expect("a body is at most a gibibyte"),
            created_at: self.calendar.date(record.created_at),
            deadline_at: self.calendar.date(record.deadline_at),
            reserves: record.reserves,
            timeouts: record.timeouts,
            releases: record.releases,
            buries: record.buries,
            kicks: record.kicks,
            kind: match record.state {
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
        self.owed.remove(&job);
    }

    fn append(&mut self, facts: &Facts, full: Option<(&str, &[u8])>, queue: &Queue) {
        let length = full.map_or(SHORT_LENGTH, |(name, body)| Self::full_length(name, body.len()));
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
        if length + SHORT_LENGTH > self.free() {
            self.rotate(length, queue)?;
        }
        let current = self.current.as_mut().ok_or(io::ErrorKind::StorageFull)?;
        let segment = self.ledger.current().expect("it was opened");
        let mut at = segment.used;
        if at >= current.next_mark {
            let mark = Mark { salt: current.salt, next_id: queue.next_id() };
            mark.encode(at, &mut self.pending);
            at += SHORT_LENGTH;
            current.next_mark = at + MARK_EVERY;
        }
        record::encode(facts, full, current.salt, at, &mut self.pending);
        let grown = at + length - segment.used;
        self.ledger.grow(grown);
        self.appended += grown;
        self.written += 1;
        if self.pending.len() >= PENDING {
            self.write()?;
        }
        Ok(())
    }
}

/// Segments come and go.
impl Wal {
    /// Ends the current segment and begins the next, which has room for `length` bytes.
    fn rotate(&mut self, length: u64, queue: &Queue) -> io::Result<()> {
        let Some(current) = self.current else { return Err(io::ErrorKind::StorageFull.into()) };
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
        // Whoever appends has asked for room; so there is a spare, except after a full disk.
        let size = size_of(length);
        if self.spares.front().is_none_or(|spare| spare.size < size) {
            self.fill(self.segment_size.max(size))?;
        }
        self.open_segment(current.number + 1, queue)
    }

    /// Makes the first spare the current segment. Its name is changed when its header outlasts a
    /// power cut, so no segment is ever without.
    fn open_segment(&mut self, number: u32, queue: &Queue) -> io::Result<()> {
        let &spare = self.spares.front().ok_or(io::ErrorKind::StorageFull)?;
        let (from, to) = (Name::Spare(spare.number), Name::Segment(number));
        let salt = self.draw_salt();
        let mut header = VERSION.to_le_bytes().to_vec();
        Mark { salt, next_id: queue.next_id() }.encode(HEAD as u64, &mut header);
        self.disk.write(from, 0, &header)?;
        if self.sync != Sync::Never {
            self.disk.sync(from)?;
        }
        self.disk.rename(from, to)?;
        self.spares.pop_front();
        self.spare_slots -= slots(spare.size - HEADER);
        if self.sync != Sync::Never {
            self.disk.sync_names()?;
        }
        debug!("{to} is open");
        self.ledger.open(number);
        self.ledger.grow(HEADER);
        self.current =
            Some(Current { number, size: spare.size, salt, next_mark: HEADER + MARK_EVERY });
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

    /// Makes a whole spare at once: of the usual size if the disk has room for that, else of the
    /// half, or a quarter, and so on, but of `least` bytes. False where it has no room, now or when
    /// it was last tried.
    fn make_spare(&mut self, least: u64, now: Time) -> bool {
        if self.full_until.is_some_and(|until| until > now) {
            return false;
        }
        let whole = self.segment_size.max(least);
        let mut size = whole;
        loop {
            match self.fill(size) {
                Ok(()) if size == whole => {
                    self.note_room();
                    return true;
                }
                Ok(()) => return true,
                Err(error) => self.note_full(&error, now),
            }
            if size == least {
                return false;
            }
            size = (size / 2).next_multiple_of(BLOCK).max(least);
        }
    }

    fn note_full(&mut self, error: &io::Error, now: Time) {
        if self.full_until.replace(now + RETRY).is_none() {
            warn!("no room for the binlog, jobs are refused when it is used up: {error}");
        }
    }

    fn note_room(&mut self) {
        if self.full_until.take().is_some() {
            info!("there is room for the binlog again");
        }
    }

    fn fill(&mut self, size: u64) -> io::Result<()> {
        if let Some(other) = self.filling.take_if(|spare| spare.size != size) {
            self.disk.remove(Name::Spare(other.number))?;
        }
        if self.filling.is_none() {
            self.filling = Some(self.begin_spare(size)?);
        }
        while self.filling.is_some() {
            self.fill_step()?;
        }
        Ok(())
    }

    fn begin_spare(&mut self, size: u64) -> io::Result<Spare> {
        let number = self.next_spare;
        self.next_spare += 1;
        self.disk.create(Name::Spare(number))?;
        Ok(Spare { number, size, filled: 0 })
    }

    /// Fills a piece of the spare that is being made. Where that fails, the spare is given up.
    fn fill_step(&mut self) -> io::Result<()> {
        let Some(mut spare) = self.filling.take() else { return Ok(()) };
        let name = Name::Spare(spare.number);
        let length = STEP.min(spare.size - spare.filled);
        let zeros = &ZEROS[..usize::try_from(length).expect("at most a step")];
        if let Err(error) = self.disk.write(name, spare.filled, zeros) {
            // What is left of it would only take room from others; the next start removes it.
            let _ = self.disk.remove(name);
            return Err(error);
        }
        spare.filled += length;
        if spare.filled < spare.size {
            self.filling = Some(spare);
            return Ok(());
        }
        self.spare_slots += slots(spare.size - HEADER);
        // The first one is where the next record must fit.
        if self.spares.front().is_some_and(|first| first.size < spare.size) {
            self.spares.push_front(spare);
        } else {
            self.spares.push_back(spare);
        }
        Ok(())
    }

    /// Whether another spare should be made ahead of need: one is always wanted, and room for the
    /// deletes of half as many jobs again.
    fn wants_spare(&self) -> bool {
        let jobs = self.ledger.jobs();
        let ahead = 8 + (jobs / 2).min(slots(self.segment_size - HEADER));
        let slots = slots(self.free()) + self.spare_slots;
        self.spares.is_empty() || slots < jobs + self.to_move() + ahead
    }

    /// Whether a spare is to be made now. Garbage goes first while there is time for that: it may
    /// be the room that is needed.
    fn is_to_prepare(&self) -> bool {
        let is_early = self.free() > self.segment_size / 2;
        let has_garbage = self.is_unneeded() || self.to_rewrite().is_some();
        (self.filling.is_some() || self.wants_spare()) && !(is_early && has_garbage)
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
                self.fail(now);
                return Outcome::Done;
            }
        }
        let budget = STEP.max(2 * std::mem::take(&mut self.appended));
        self.pay_debts(queue);
        self.compact(queue, budget, now);
        if let Err(error) = self.write_and_sync(now).and_then(|()| self.drop_oldest()) {
            if self.health == Health::Sound {
                error!("the binlog has failed, nothing is acknowledged until it works: {error}");
            }
            self.fail(now);
            return Outcome::Failed;
        }
        self.prepare(budget, now);
        let is_relied_on = self.ledger.oldest().is_some_and(|it| it.number > self.rewrite_through);
        if self.health == Health::Recovering && is_relied_on {
            info!("the binlog works again, and holds every job");
            self.health = Health::Sound;
            self.doubted_from = u32::MAX;
            self.patience = RETRY;
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
        if let Health::Failed { retry_at } = self.health {
            return Some(retry_at);
        }
        if self.can_drop() {
            return Some(Time::default());
        }
        let has_work = self.to_rewrite().is_some() || self.is_to_pay() || self.is_to_prepare();
        let work = has_work.then(|| self.full_until.unwrap_or_default());
        let sync = self.syncing_until.or(match self.sync {
            Sync::Within(delay) => self.unsynced_since.map(|since| since + delay),
            Sync::Never => None,
        });
        [work, sync].into_iter().flatten().min()
    }

    /// Walks everything and panics where something does not hold. O(all): for tests.
    pub fn check(&self) {
        self.ledger.check();
    }

    /// Writes what is pending to the current segment.
    fn write(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let number = self.current.ok_or(io::ErrorKind::StorageFull)?.number;
        let end = self.ledger.current().expect("it was opened").used;
        let start = end - self.pending.len() as u64;
        self.disk.write(Name::Segment(number), start, &self.pending)?;
        self.is_written = true;
        self.pending.clear();
        self.pending.shrink_to(PENDING);
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
            self.syncing_until = result.is_none().then_some(now + GLANCE);
            if let Some(result) = result {
                result?;
                self.synced = self.synced.max(self.syncing);
            }
        }
        let Some(since) = self.unsynced_since else { return Ok(()) };
        let name = Name::Segment(self.current.ok_or(io::ErrorKind::StorageFull)?.number);
        match self.sync {
            Sync::Within(Duration::ZERO) => self.disk.sync(name)?,
            Sync::Within(delay) => {
                let is_time = since + delay <= now || (self.is_unneeded() && !self.can_drop());
                if !is_time || self.syncing_until.is_some() {
                    return Ok(());
                }
                self.disk.begin_sync(name)?;
                self.syncing_until = Some(now + GLANCE);
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
        !self.owed.is_empty() && self.has_room(SHORT_LENGTH, shorts)
    }

    fn pay_debts(&mut self, queue: &Queue) {
        while self.is_to_pay() {
            let Some(&job) = self.owed.first() else { return };
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
            self.owed.remove(&job);
            self.migrated += 1;
            left = left.saturating_sub(length);
        }
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

    /// Drops the oldest segment if no job needs it: what replaces its records has been synced.
    fn drop_oldest(&mut self) -> io::Result<()> {
        let Some((oldest, _)) = self.ledger.oldest_closed().filter(|_| self.can_drop()) else {
            return Ok(());
        };
        let name = Name::Segment(oldest.number);
        let result = if oldest.is_damaged {
            let kept = Name::Damaged(oldest.number);
            warn!("every job of {name} is in newer files; what was damaged stays in {kept}");
            self.disk.rename(name, kept)
        } else {
            debug!("{name} is of no more use");
            self.disk.remove(name)
        };
        match result {
            // Somebody has removed it by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        if self.sync != Sync::Never {
            self.disk.sync_names()?;
        }
        self.ledger.drop_oldest();
        Ok(())
    }

    /// Goes on with the spare that is being made, or begins one that is wanted.
    fn prepare(&mut self, budget: u64, now: Time) {
        if self.full_until.is_some_and(|at| at > now) {
            return;
        }
        let mut left = budget;
        while left > 0 && self.is_to_prepare() {
            let begun = match self.filling {
                Some(_) => Ok(()),
                None => self.begin_spare(self.segment_size).map(|it| self.filling = Some(it)),
            };
            match begun.and_then(|()| self.fill_step()) {
                Ok(()) if self.filling.is_none() => self.note_room(),
                Ok(()) => {}
                // There may be room for a smaller one, which is better than none.
                Err(_) if self.spares.is_empty() => {
                    self.make_spare(self.room_for_deletes(), now);
                    return;
                }
                Err(error) => return self.note_full(&error, now),
            }
            left = left.saturating_sub(STEP);
        }
    }
}

/// Failure.
impl Wal {
    fn fail(&mut self, now: Time) {
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
        self.failure = None;
        self.unsynced_since = None;
        self.patience = match self.health {
            Health::Recovering => (2 * self.patience).min(RETRY_LATER),
            _ => RETRY,
        };
        self.health = Health::Failed { retry_at: now + self.patience };
    }

    /// Opens a fresh segment; every job is to be written to it or its successors.
    fn try_again(&mut self, queue: &Queue, now: Time) -> io::Result<()> {
        if self.spares.is_empty() && !self.make_spare(self.room_for_deletes(), now) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let last = self.ledger.current().map_or(0, |current| current.number);
        self.open_segment(last + 1, queue)?;
        if self.doubted_from <= last {
            self.rewrite_through = last;
        }
        self.health = Health::Recovering;
        Ok(())
    }
}
