//! The binlog keeps jobs and acknowledged changes across a restart.
//!
//! The binlog is a series of files, the *segments*. Each new job with its body, each change that
//! must survive a restart, and each delete is appended as a *record*. [`Wal::commit`] writes all
//! records of a turn; replies that confirm changes are sent after that. [`SyncPolicy`] decides when
//! records are synced. doc/binlog.md describes promises and format.
//!
//! **Space first.** Before each change, the server reserves space for the record, so no record is
//! ever written to a full disk. *Preallocated files* have space for later segments, and space for
//! the delete of every job is kept. A put gets an error reply if its record does not fit.
//!
//! **Garbage.** Segments are removed oldest first. If garbage exceeds three quarters of the live
//! bytes, each turn relocates jobs of the oldest segment, up to a bounded number of bytes.
//!
//! **Failure.** After a failed write or sync, the disk's contents are unknown. Until a new segment
//! is open, no change is acknowledged; then, until all jobs are relocated, only deletes are.
//!
//! The server calls [`Wal`] with the types of `interface`. `log`, `segment` and `start` write
//! records and open segments; `syncs` syncs segments; `removal` removes them. `record` converts
//! records to bytes; `dates` makes fields of records. `space` computes what fits; `reserve` makes
//! preallocated files. `index` has the segment of each job. `recovery` tracks failures. `disk/` has
//! the files, the lock and the lease. `read/` makes jobs from bytes. doc/architecture.md has more.

mod dates;
mod disk;
mod index;
mod interface;
mod log;
mod read;
mod record;
mod recovery;
mod removal;
mod reserve;
mod segment;
mod space;
mod start;
mod syncs;
mod testing;

use std::{io, mem, time::Duration};

use ::log::{debug, error, info};

#[cfg(test)]
pub(crate) use self::disk::testing as memory_disk;
use self::{
    dates::Dates,
    index::{GARBAGE_PACE, SegmentIndex},
    log::Log,
    record::{JobFields, Kind, NewRecord},
    recovery::{Recovery, State},
    segment::{End, WORK_PER_TURN_MIN_BYTES},
    space::{Demand, RESTART_SLOTS, SHORT_BYTES},
};
pub use self::{
    dates::SHIFTS_AT_ONCE_MAX,
    disk::{Directory, Disk, LOCK_CONFIRM_INTERVAL, Name},
    interface::{
        BinlogCounts, Change, CommitOutcome, Error, Jobs, Options, Permit, SyncPolicy, Unavailable,
    },
    read::{Inspection, Progress, Report, Restored, SegmentReport, go_on, inspect},
    record::{Format, full_length},
    syncs::SyncEvents,
};
use crate::{
    clock::{Calendar, Time},
    collections::{Growth, Key, ShortTimes, grow},
    queue::{Job, Queue},
};

/// The binlog of a running daemon.
#[derive(Debug)]
pub struct Wal {
    log: Log,
    index: SegmentIndex,
    recovery: Recovery,
    dates: Dates,
    /// The result of [`SegmentIndex::changed`] in the last commit.
    changed: u64,
    migrated: u64,
}

impl Wal {
    /// Reads the jobs of the binlog into the empty `restored`, and begins a new segment. Neither
    /// damage nor a full disk is an error. Fails if a file cannot be listed, read or created, if a
    /// segment has a foreign layout, if memory is short, or if `progress` returns a break. A failed
    /// call has changed no record, but may have removed preallocated files and cut off zeros.
    pub fn open(
        mut disk: Box<dyn Disk>,
        options: Options,
        restored: &mut Restored,
        calendar: Calendar,
        now: Time,
        progress: Progress<'_>,
    ) -> Result<(Self, Report), Error> {
        // Allocates the buffer first, because the replay leaves memory free only in small pieces.
        let pending = interface::buffer(log::PENDING_MAX_BYTES, "to gather records")?;
        let files = disk.list()?;
        let (report, index) = read::replay(&mut *disk, &files, restored, calendar, now, progress)?;
        let (number, preallocated) = disk::last_numbers(&files);
        let end = End { number, ..index.end };
        let options = Options { key: report.key.map_or(options.key, |it| it.0), ..options };
        let mut wal = Self {
            log: Log::new(disk, options, end, preallocated, pending, now),
            index,
            recovery: Recovery::default(),
            dates: Dates::new(calendar),
            changed: 0,
            migrated: 0,
        };
        wal.log.begin(&files, &report, wal.demand(), restored.queue.next_id())?;
        wal.index.follow(wal.log.end);
        removal::free_at_start(&mut wal.log, &mut wal.index, &mut wal.recovery, &report);
        wal.changed = wal.index.changed();
        Ok((wal, report))
    }

    /// Writes the turn's records, syncs them if a sync is due, and, within a limit, relocates jobs,
    /// makes files and removes files. Replies may then be sent unless the outcome is `Failed`.
    ///
    /// With `-f0` on a slow disk, a commit begins a sync at `wait_until` or later, and only begins
    /// it. Replies wait for a later `Done`, or for [`CommitOutcome::Syncing`] with `has_ended`.
    pub fn commit(&mut self, jobs: Jobs<'_>, wait_until: Option<Time>, now: Time) -> CommitOutcome {
        let queue = jobs.queue;
        self.log.syncs.wait_until = wait_until;
        self.log.now = now;
        if self.log.lease.ask_if_due(now).is_err() {
            return CommitOutcome::Failed;
        }
        if let State::Failed { retry_at } = self.recovery.state {
            if now < retry_at {
                return CommitOutcome::Done;
            }
            if let Err(error) = self.try_recover(queue) {
                debug!("the binlog cannot be written yet: {error}");
                self.recovery.retry_later(now);
                return CommitOutcome::Done;
            }
        }
        let changed = self.index.changed().saturating_sub(self.changed);
        let budget = WORK_PER_TURN_MIN_BYTES.max(GARBAGE_PACE * changed);
        self.append_deferred(queue, budget);
        if self.log.failure.is_none() && self.should_leave_segment() {
            self.log.failure = self.log.rotate(0, queue.next_id()).err();
            self.index.follow(self.log.end);
        }
        self.compact(jobs, budget);
        // Bytes that this turn has relocated do not raise the budget of the next turn.
        self.changed = self.index.changed();
        let written = self.log.write_turn().and_then(|()| self.sync_if_due());
        let events = mem::take(&mut self.log.syncs.events);
        let Self { log, index, recovery, .. } = self;
        let removed = written.and_then(|()| removal::remove_unneeded(log, index, recovery, budget));
        let (demand, has_garbage) = (self.demand(), self.has_garbage());
        let done = removed.and_then(|()| self.log.work_ahead(demand, has_garbage, budget));
        if let Err(error) = done {
            if self.recovery.state == State::Sound && self.lost_lock().is_none() {
                error!(
                    "the binlog has failed; no change is acknowledged until it works again: {error}"
                );
            }
            self.log.abandon();
            // Records of the turn may be missing on the disk although the index relies on them.
            self.index.suspect_from.get_or_insert(self.log.end.number);
            self.recovery.retry_later(now);
            return CommitOutcome::Failed;
        }
        if self.recovery.is_over(&self.index, &self.log.syncs) {
            info!("the binlog works again, and holds every job");
            self.recovery.state = State::Sound;
            self.index.suspect_from = None;
            return CommitOutcome::Recovered;
        }
        if !self.log.syncs.are_of_each_change() || self.log.syncs.is_clean() {
            return CommitOutcome::Done;
        }
        CommitOutcome::Syncing(events)
    }

    /// Writes the pending records. Returns whether it wrote them. The next commit reports errors.
    pub fn write_pending(&mut self, now: Time) -> bool {
        self.log.write_early(now)
    }

    /// Returns when to call [`Wal::commit`] or [`Wal::shift_dates`] next; a past time means now.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.lost_lock().is_some() {
            return None;
        }
        if self.dates.are_shifting() || !self.log.pending.is_empty() || self.log.failure.is_some() {
            return Some(Time::AT_ONCE);
        }
        if let State::Failed { retry_at } = self.recovery.state {
            return Some(retry_at);
        }
        let retry_at = self.recovery.removal_retry_at;
        if retry_at.is_none() && removal::is_safe(&self.index, &self.recovery, &self.log.syncs) {
            return Some(Time::AT_ONCE);
        }
        let has_work = self.next_relocation().is_some()
            || self.can_append_deferred()
            || self.should_leave_segment()
            || self.log.has_work_ahead(self.demand(), self.has_garbage());
        let work =
            has_work.then(|| self.log.reserve.shortage.map_or(Time::AT_ONCE, |it| it.retry_at));
        [work, self.log.syncs.next(self.log.now), retry_at].into_iter().flatten().min()
    }

    /// Writes the last records when the daemon ends and, unless the policy is `Never`, syncs them.
    pub fn shut_down(&mut self, queue: &Queue) -> io::Result<()> {
        if self.lost_lock().is_some() {
            return Ok(());
        }
        self.log.finish(self.recovery.state == State::Sound, queue.next_id())
    }

    /// Releases one piece of unused memory of the binlog's index: see [`Queue::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.index.release_one()
    }
}

/// Permits, which the server requests before it changes anything.
impl Wal {
    /// Permits a change if there is disk space for its record, or if its record may be deferred.
    pub fn permit(&mut self, change: Change, now: Time) -> Result<Permit, Unavailable> {
        self.log.now = now;
        let state = self.recovery.state;
        // A delete is permitted during recovery, because deletes free space that recovery may need.
        let is_helpful = change == Change::Delete && state == State::Recovering;
        if self.log.failure.is_some() || (state != State::Sound && !is_helpful) {
            return Err(Unavailable::Failed);
        }
        let has_space = match change {
            Change::Put(length) => self.log.ensure_space(length, self.demand().slots() + 1),
            Change::Update => self.log.ensure_space(SHORT_BYTES, self.demand().slots()),
            Change::DeferrableUpdate => true,
            Change::Delete => self.log.ensure_space(SHORT_BYTES, 0),
        };
        has_space.then_some(Permit(change)).ok_or(Unavailable::Full)
    }

    /// Allocates memory for one [`Wal::put`]. Fails if there is no memory.
    pub fn make_room_to_put(&mut self) -> Growth {
        let count = self.log.unrecorded.len() + 1;
        grow(&mut self.log.unrecorded, count)?;
        self.index.make_room()
    }

    /// Whether the binlog works and holds every job. If false, the server must hand out no job.
    pub fn is_sound(&self) -> bool {
        self.recovery.state == State::Sound && self.log.failure.is_none()
    }

    /// Returns why the binlog refuses some changes, or soon will refuse them. Returns `Failed` also
    /// if the last attempt to create a file failed for a reason other than a lack of space.
    pub fn trouble(&self) -> Option<Unavailable> {
        let shortage = self.log.reserve.shortage.map(|shortage| shortage.reason);
        if self.is_sound() { shortage } else { Some(Unavailable::Failed) }
    }

    /// Returns the figures from which the need for disk space is computed.
    fn demand(&self) -> Demand {
        Demand {
            jobs: self.index.jobs(),
            oldest_live: self.index.oldest().map_or(0, |oldest| oldest.live),
            segment_size: self.log.reserve.segment_size,
        }
    }
}

/// Methods that append the records of permitted changes. The next commit reports their errors.
impl Wal {
    /// Appends the full record of a job that has just been put.
    pub fn put(&mut self, permit: Permit, jobs: Jobs<'_>, job: Key<Job>) {
        let length = self.append_full(jobs, job);
        permit.spend(Change::Put(length.into()));
        self.index.insert(job, length);
        self.log.unrecorded.push(jobs.queue.job(job).record.id);
    }

    /// Appends a record of a job's new state, priority or delay. If the permit is for a deferrable
    /// update, and the disk has no space for the record, defers the record.
    pub fn update(&mut self, permit: Permit, queue: &Queue, job: Key<Job>, now: Time) {
        let is_deferrable = permit.0 == Change::DeferrableUpdate;
        permit.spend(if is_deferrable { Change::DeferrableUpdate } else { Change::Update });
        if is_deferrable && self.permit(Change::Update, now).is_err() {
            return self.index.set_deferred(job, true);
        }
        self.append_short(queue, job);
    }

    /// Appends the record of a job's delete. The job must still be in the queue.
    pub fn delete(&mut self, permit: Permit, queue: &Queue, job: Key<Job>) {
        permit.spend(Change::Delete);
        let fields = JobFields { kind: Kind::Deleted, ..self.dates.fields(queue, job) };
        self.append(&NewRecord::short(fields), queue);
        self.index.remove(job);
    }

    /// Returns and forgets the ids of jobs whose records could not be written. Called after
    /// [`CommitOutcome::Failed`]. No client has seen these ids. Other jobs may have larger ids,
    /// because a job gets its id before its body arrives.
    pub fn take_unrecorded(&mut self) -> Vec<u64> {
        mem::take(&mut self.log.unrecorded)
    }

    /// Forgets a job whose record could not be written. Called before the queue removes the job.
    pub fn forget(&mut self, job: Key<Job>) {
        self.index.remove(job);
    }

    /// If the clock was set, uses `calendar` from now on, unless the correction of dates must wait.
    pub fn set_calendar(&mut self, calendar: Calendar, now: Time) {
        self.dates.set(calendar, now);
    }

    /// Visits up to `count` jobs after the wall clock was set. Converts dates from the binlog anew,
    /// by the new calendar; they stay right in the files, so this needs no record. Appends a record
    /// of each job that was delayed or buried in this run, because the dates in its last record
    /// were computed before the clock was set.
    pub fn shift_dates(&mut self, queue: &mut Queue, count: usize, now: Time) {
        for job in self.dates.shift(queue, count, now) {
            self.update(Permit(Change::DeferrableUpdate), queue, job, now);
        }
    }

    /// Appends the full record of a job, and returns the record's length in bytes.
    fn append_full(&mut self, jobs: Jobs<'_>, job: Key<Job>) -> u32 {
        let (queue, body) = (jobs.queue, jobs.body(job));
        let name = queue.tube_name(queue.job(job).tube);
        let record = NewRecord { fields: self.dates.fields(queue, job), name, body };
        self.append(&record, queue);
        u32::try_from(record.length()).expect("a gibibyte and 300 bytes")
    }

    fn append_short(&mut self, queue: &Queue, job: Key<Job>) {
        self.append(&NewRecord::short(self.dates.fields(queue, job)), queue);
        self.index.update(job);
    }

    /// Appends a record to the log, and updates the end of the binlog in the index.
    fn append(&mut self, record: &NewRecord<'_>, queue: &Queue) {
        self.log.append(record, queue.next_id());
        self.index.follow(self.log.end);
    }
}

/// Relocation and recovery, of which each commit does a bounded part.
impl Wal {
    /// Whether there are deferred records, and there is disk space to append one.
    fn can_append_deferred(&self) -> bool {
        self.index.deferred > 0 && self.log.space().has_room_for(SHORT_BYTES, self.demand().slots())
    }

    /// Returns the job to relocate next, if any. On a full disk, relocation starts at less garbage.
    fn next_relocation(&self) -> Option<Key<Job>> {
        self.index.next_relocation(if self.log.reserve.shortage.is_some() { 1 } else { 6 })
    }

    /// Appends deferred records while there is space, until `budget` bytes are appended.
    fn append_deferred(&mut self, queue: &Queue, mut budget: u64) {
        while budget > 0 && self.can_append_deferred() {
            let Some(job) = self.index.next_deferred() else { break };
            self.append_short(queue, job);
            budget = budget.saturating_sub(SHORT_BYTES);
        }
    }

    /// Relocates jobs, in the order of [`SegmentIndex::next_relocation`], until at least `budget`
    /// bytes are appended.
    fn compact(&mut self, jobs: Jobs<'_>, mut budget: u64) {
        while budget > 0 && self.log.failure.is_none() {
            let Some(job) = self.next_relocation() else { return };
            let length = u64::from(self.index.location(job).length);
            // Space for all deletes is kept. Space for a restart is kept, too, unless all jobs of
            // the oldest segment can be relocated: its removal then frees space.
            let deletes = self.index.jobs();
            let is_enough = self.log.space().has_room_for(self.demand().oldest_live, deletes);
            let kept = if is_enough { deletes } else { deletes + RESTART_SLOTS };
            if !self.log.ensure_space(length, kept) {
                return;
            }
            self.append_full(jobs, job);
            self.index.relocate(job);
            self.migrated += 1;
            budget = budget.saturating_sub(length);
        }
    }

    /// Whether to close the current segment early, so that its space can be freed. True if its used
    /// bytes exceed the usual size of a segment and are mostly garbage, and preallocated files have
    /// space for the deletes of all jobs.
    fn should_leave_segment(&self) -> bool {
        let (space, usual) = (self.log.space(), self.log.reserve.segment_size);
        self.index.current().is_some_and(|it| it.used > usual && 2 * it.live < it.used)
            && self.log.current.is_some()
            && space.next > 0
            && space.preallocated_slots >= self.demand().slots()
    }

    /// Whether the relocation of a job or the removal of a segment is due.
    fn has_garbage(&self) -> bool {
        self.index.is_oldest_unneeded() || self.next_relocation().is_some()
    }

    /// Syncs if a sync is due: see [`Log::sync_if_due`]. The sync is urgent if the oldest segment
    /// can be removed only after a sync.
    fn sync_if_due(&mut self) -> io::Result<()> {
        let is_urgent = self.index.is_oldest_unneeded()
            && !removal::is_safe(&self.index, &self.recovery, &self.log.syncs);
        self.log.sync_if_due(self.syncs_in_background(), is_urgent)
    }

    /// Opens a new segment after a failure, so that every job can be relocated.
    fn try_recover(&mut self, queue: &Queue) -> io::Result<()> {
        // While the disk failed, another daemon may have taken over the directory.
        self.log.lease.ask()?;
        let last = self.log.end.number;
        let result = self.log.open_next(0, queue.next_id());
        self.index.follow(self.log.end);
        result?;
        if self.index.suspect_from.is_some() {
            self.index.rewrite_through = last;
        }
        self.recovery.state = State::Recovering;
        Ok(())
    }
}

/// The lock, syncs with `-f0`, and statistics.
impl Wal {
    /// If the lock is lost, returns why. The binlog then writes nothing, and the process ends.
    pub fn lost_lock(&self) -> Option<&io::Error> {
        self.log.lease.lost.as_ref()
    }

    /// If a check of the lock is due at the present time `now`, makes the check and returns true.
    pub fn confirm_lock_if_due(&mut self, now: Time) -> bool {
        let is_due = self.log.lease.is_due(now);
        // If the lock is lost, the lease keeps the reason.
        let _ = self.log.lease.ask_if_due(now);
        is_due
    }

    /// Whether syncs with `-f0` run in the background.
    pub fn syncs_in_background(&self) -> bool {
        self.log.syncs.time.is_long && self.recovery.state == State::Sound
    }

    /// Whether, with `-f0`, each commit syncs in the thread of the event loop.
    pub fn syncs_in_foreground(&self) -> bool {
        self.log.syncs.are_of_each_change() && !self.syncs_in_background()
    }

    /// Whether a job's id can be shown before the job is synced, because no restart gives the id to
    /// another job. False only with `-f0`, for ids beyond those that the segment's header allows.
    pub fn may_show(&self, id: u64) -> bool {
        let current = self.log.current.as_ref();
        !self.log.syncs.are_of_each_change() || current.is_none_or(|it| id < it.seen_below)
    }

    /// Returns how long the next sync will probably take, or zero if that is unknown. `None` if the
    /// next sync should not wait for more changes.
    pub fn time_of_next_sync(&self) -> Option<Duration> {
        self.log.syncs.time_of_next()
    }

    /// Makes the disk start a thread for syncs, which calls `wake` after each sync. Call this once.
    pub fn on_sync_end(&mut self, wake: Box<dyn Fn() + Send>) {
        let Log { lease, syncs, now, .. } = &mut self.log;
        if let (true, Ok(disk)) = (syncs.are_on(), lease.ask_if_due(*now)) {
            disk.on_sync_end(wake);
        }
    }

    /// Returns the binlog's figures for `stats` and `metrics`.
    pub fn counts(&self) -> BinlogCounts {
        let Self { log, index, .. } = self;
        BinlogCounts {
            oldest: index.oldest().map_or(0, |it| it.number),
            current: index.end.number,
            migrated: self.migrated,
            written: log.records,
            live: index.live,
            dead: index.used().saturating_sub(index.live),
            unsynced: log.syncs.are_on().then(|| log.end.length.saturating_sub(log.syncs.synced)),
        }
    }

    /// Returns the histogram of the times that syncs took.
    pub fn sync_times(&self) -> &ShortTimes {
        &self.log.syncs.time.all
    }

    /// Returns the number of the segment with a job's full record: the field `file` of `stats-job`.
    pub fn segment_of(&self, job: Key<Job>) -> u32 {
        self.index.location(job).segment
    }
}
