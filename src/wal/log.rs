//! The end of the binlog, where records are appended. This module deals with segments and bytes,
//! not with jobs.
//!
//! The records of a turn are gathered in memory, and written together. A full segment is truncated
//! to its records, synced and closed, and the first preallocated file becomes the next segment.

use std::{io, mem};

use log::{debug, warn};

use super::{
    Options, SyncPolicy,
    disk::{Disk, Lease, Name},
    record::{HEAD_MAX_BYTES, NewRecord},
    reserve::{Reserve, is_full},
    segment::{self, Current, End, WORK_PER_TURN_MIN_BYTES},
    space::{Demand, HEADER_BYTES, SHORT_BYTES, Space, file_size},
    syncs::Syncs,
};
use crate::clock::Time;

/// The most bytes of pending records: they are written before they exceed this limit.
pub(super) const PENDING_MAX_BYTES: usize = 1024 * 1024;

/// The largest number that a segment may have: the original reads no larger number.
pub(super) const NUMBER_MAX: u32 = u32::MAX / 2;

/// A body larger than this is written directly from its memory, and not copied to the pending
/// records.
const COPIED_BODY_MAX_BYTES: usize = 128 * 1024;

/// The end of the binlog, its preallocated files, and its syncs.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) lease: Lease,
    /// The present time, as a caller has passed it most recently.
    pub(super) now: Time,
    pub(super) syncs: Syncs,
    pub(super) reserve: Reserve,
    /// Where the binlog ends.
    pub(super) end: End,
    /// The open segment. `None` until the first segment is open, and after a failure.
    pub(super) current: Option<Current>,
    /// Records that are not written yet: the last bytes of the current segment. Even between two
    /// turns there may be pending records, because the end of a connection may bury its jobs with
    /// `--bury-after`.
    pub(super) pending: Vec<u8>,
    /// The first error of an append or a write of this turn. After an error, nothing more is
    /// appended in this turn.
    pub(super) failure: Option<io::Error>,
    /// The ids of jobs that have no record in a file yet, or may have none because a write has
    /// failed.
    pub(super) unrecorded: Vec<u64>,
    /// The number of records appended.
    pub(super) records: u64,
}

impl Log {
    /// A log that continues after `end`, on a `disk` whose lock was checked at `now`. `pending` is
    /// an empty buffer with a capacity of [`PENDING_MAX_BYTES`]. Call [`Log::begin`] next.
    pub(super) fn new(
        disk: Box<dyn Disk>,
        options: Options,
        end: End,
        last_preallocated: u32,
        pending: Vec<u8>,
        now: Time,
    ) -> Self {
        Self {
            lease: Lease::new(disk, options.sync != SyncPolicy::Never, now),
            now,
            syncs: Syncs::new(options.sync, end.length),
            reserve: Reserve::new(options.segment_size, options.key, last_preallocated),
            end,
            current: None,
            pending,
            failure: None,
            unrecorded: Vec::new(),
            records: 0,
        }
    }

    /// Returns the disk space for records that the file system has reserved for this binlog.
    pub(super) fn space(&self) -> Space {
        let current = self.current.map_or(0, |current| current.layout.free(self.end.used));
        self.reserve.space(current)
    }

    /// Ensures disk space for a record of `length` bytes and for `slots` short records after it.
    /// Returns whether there is enough space.
    pub(super) fn ensure_space(&mut self, length: u64, slots: u64) -> bool {
        while !self.space().has_room_for(length, slots) {
            let Ok(disk) = self.lease.ask_if_due(self.now) else { return false };
            if self.reserve.preallocate(disk, file_size(length), self.now).is_err() {
                return false;
            }
        }
        true
    }
}

/// Appends records. Segment headers contain `next_id`, the id that the next job will get.
impl Log {
    /// Appends a record to the log. [`Log::write_turn`] reports any error.
    pub(super) fn append(&mut self, record: &NewRecord<'_>, next_id: u64) {
        if self.failure.is_none() {
            self.failure = self.try_append(record, next_id).err();
        }
    }

    /// Appends a record; if there is no room, first writes pending records or begins a new segment.
    fn try_append(&mut self, record: &NewRecord<'_>, next_id: u64) -> io::Result<()> {
        let (length, body) = (record.length(), record.body);
        if self.current.is_none_or(|current| !current.layout.fits(self.end.used, length)) {
            self.rotate(length, next_id)?;
        }
        // The capacity of `pending` must not grow: a failed allocation would end the process.
        let copied = body.len().min(COPIED_BODY_MAX_BYTES);
        if self.pending.len() + copied + 2 * HEAD_MAX_BYTES > PENDING_MAX_BYTES {
            self.write()?;
        }
        let mut at = self.end.used;
        let current = self.current.as_mut().ok_or_else(no_segment)?;
        if current.layout.takes_header(at) {
            current.header(next_id).encode(current.salt, at, &mut self.pending);
            at += SHORT_BYTES;
        }
        record.encode(current.salt, at, &mut self.pending);
        self.end.advance(at + length);
        self.records += 1;
        if body.len() > COPIED_BODY_MAX_BYTES {
            let body_at = self.end.used - body.len() as u64;
            self.write_through(body_at)?;
            let name = self.end.name();
            self.lease.ask_if_due(self.now)?.write(name, body_at, body)?;
            self.syncs.dirty_since.get_or_insert(self.now);
        } else {
            self.pending.extend_from_slice(body);
        }
        Ok(())
    }

    /// Closes the current segment, and opens another with space for a record of `length` bytes.
    pub(super) fn rotate(&mut self, length: u64, next_id: u64) -> io::Result<()> {
        self.current.ok_or_else(no_segment)?;
        self.write()?;
        self.syncs.end_flight(&mut self.lease, true)?;
        let name = self.end.name();
        let disk = self.lease.ask()?;
        disk.truncate(name, self.end.used)?;
        self.reserve.on_freed();
        disk.sync(name)?;
        self.syncs.on_all_synced(self.end);
        disk.close(name);
        // The closed segment is complete, so `abandon` must not change it if an error follows.
        self.current = None;
        self.open_next(file_size(length), next_id)
    }

    /// Opens the next segment in a preallocated file of at least `size` bytes, or in a new file if
    /// there is no such file.
    pub(super) fn open_next(&mut self, size: u64, next_id: u64) -> io::Result<()> {
        let mut number = number_after(self.end.number, NUMBER_MAX)?;
        loop {
            // The caller has ensured space, except at startup, in recovery and after a shortage.
            if self.reserve.first().is_none_or(|file| file.size < size) {
                self.reserve.preallocate(self.lease.ask_if_due(self.now)?, size, self.now)?;
            }
            match self.open_segment(number, next_id) {
                // Another process made a segment of this number, which the next startup will read.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    warn!("another process created this segment; it is not changed: {error}");
                    number = number_after(number, NUMBER_MAX)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    warn!("a preallocated file is missing; creating another: {error}");
                    self.reserve.take_first();
                }
                result => return result,
            }
        }
    }

    /// Makes the first preallocated file the current segment. The file is renamed only after its
    /// segment header is synced, so no segment lacks a header.
    fn open_segment(&mut self, number: u32, next_id: u64) -> io::Result<()> {
        let file = self.reserve.first().ok_or_else(no_segment)?;
        let (from, to) = (file.name(), Name::Segment(number));
        let current = Current::new(self.reserve.key, number, next_id, file);
        let disk = self.lease.ask_if_due(self.now)?;
        disk.write(from, 0, &segment::beginning(number, current.header(next_id)))?;
        disk.sync(from)?;
        // The calls above may have taken long, so the lock is checked again.
        let disk = self.lease.ask()?;
        loop {
            match disk.rename(from, to) {
                // On a full disk, XFS may need space for the new name. So if the rename fails,
                // other files are removed, and it is tried again.
                Err(error) if is_full(&error) && self.reserve.remove_smallest(disk) => {}
                renamed => break renamed?,
            }
        }
        self.reserve.take_first();
        // Even if the sync of the directory fails, this number must not be used again.
        self.end.open(number);
        self.end.advance(HEADER_BYTES);
        disk.sync_directory()?;
        debug!("{to} is open");
        self.current = Some(current);
        Ok(())
    }
}

/// Writes records: early in a turn, at the turn's end, and when the daemon ends.
impl Log {
    /// Writes the pending records before the turn ends, and returns whether they are written.
    /// [`Log::write_turn`] reports any error.
    pub(super) fn write_early(&mut self, now: Time) -> bool {
        if self.failure.is_none() {
            self.now = now;
            self.failure = self.write().err();
        }
        self.failure.is_none()
    }

    /// Writes the pending records, and takes the result of the background sync if it has ended.
    /// Fails also if an append or a write failed earlier in the turn.
    pub(super) fn write_turn(&mut self) -> io::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.write()?;
        self.syncs.end_flight(&mut self.lease, false)
    }

    /// Writes the pending records to the current segment.
    fn write(&mut self) -> io::Result<()> {
        self.write_through(self.end.used)?;
        self.unrecorded.clear();
        Ok(())
    }

    /// Writes the pending records, which end at the offset `end` of the current segment.
    fn write_through(&mut self, end: u64) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let disk = self.lease.ask_if_due(self.now)?;
        disk.write(self.end.name(), end - self.pending.len() as u64, &self.pending)?;
        self.syncs.dirty_since.get_or_insert(self.now);
        self.pending.clear();
        Ok(())
    }

    /// Prepares for later turns: writes a piece of zeros, removes about `budget` bytes of
    /// preallocated files that are not needed, and makes about `budget` bytes of files that are
    /// needed. If `has_garbage`, garbage will soon be removed.
    pub(super) fn work_ahead(
        &mut self,
        demand: Demand,
        has_garbage: bool,
        budget: u64,
    ) -> io::Result<()> {
        let now = self.now;
        self.reserve.forget_large_shortage(now);
        if let Some(current) = self.current.as_mut().filter(|_| self.syncs.are_of_each_change()) {
            current.write_zeros(self.lease.ask_if_due(now)?, self.end);
        }
        let mut left = budget;
        while left > 0 && self.reserve.has_surplus(demand, self.space()) {
            left = left.saturating_sub(self.reserve.remove_first(self.lease.ask_if_due(now)?));
        }
        let mut left = budget;
        while left > 0
            && !self.reserve.is_resting(self.reserve.segment_size, now)
            && self.wants_file(demand, has_garbage)
        {
            self.reserve.make_piece(self.lease.ask_if_due(now)?, now);
            left = left.saturating_sub(WORK_PER_TURN_MIN_BYTES);
        }
        Ok(())
    }

    /// Whether [`Log::work_ahead`] has work, provided that the disk has space.
    pub(super) fn has_work_ahead(&self, demand: Demand, has_garbage: bool) -> bool {
        self.wants_file(demand, has_garbage)
            || self.syncs.are_of_each_change()
                && self.current.is_some_and(|it| it.zeros_start(self.end).is_some())
            || self.reserve.has_surplus(demand, self.space())
    }

    /// Whether to preallocate a file now. While the current segment is less than half full, garbage
    /// is removed first, because the removal may free the space that the file needs.
    fn wants_file(&self, demand: Demand, has_garbage: bool) -> bool {
        let space = self.space();
        let is_early = space.current > self.reserve.segment_size / 2;
        self.reserve.wants_file(demand, space) && !(is_early && has_garbage)
    }

    /// Writes the pending records and a header when the daemon ends, and syncs everything. If this
    /// succeeds, the header has a field which says that a record exists for every id that a client
    /// has seen, so the next startup skips no ids. After an error, the next startup skips some ids,
    /// but no acknowledged change is lost.
    pub(super) fn finish(&mut self, is_sound: bool, next_id: u64) -> io::Result<()> {
        self.syncs.end_flight(&mut self.lease, true)?;
        if let Some(current) = &mut self.current {
            if is_sound && self.failure.is_none() {
                let used = self.end.used;
                let fits = current.layout.fits(used, SHORT_BYTES);
                if fits && mem::take(&mut current.seen_below) > 0 {
                    current.header(next_id).encode(current.salt, used, &mut self.pending);
                    self.end.advance(used + SHORT_BYTES);
                }
                if let Err(error) = self.write() {
                    debug!("cannot write the last records: {error}");
                }
            }
            self.lease.ask()?.sync(self.end.name())?;
            self.syncs.on_all_synced(self.end);
        }
        if let Err(error) = self.lease.ask().and_then(|disk| disk.end()) {
            debug!("cannot record the clean shutdown in the directory: {error}");
        }
        Ok(())
    }
}

/// Failure.
impl Log {
    /// Stops using the current segment. Nothing more is written until another segment is open.
    pub(super) fn abandon(&mut self) {
        if self.current.take().is_some() {
            let (name, pending) = (self.end.name(), self.pending.len() as u64);
            // Cuts off the zeros, because the next segment may need the space. Ignores errors.
            if let Ok(disk) = self.lease.ask() {
                let _ = disk.truncate(name, self.end.used.saturating_sub(pending));
                disk.close(name);
            }
        }
        self.pending.clear();
        self.failure = None;
        // The abandoned segment needs no sync any more. A sync that is under way continues.
        self.syncs.dirty_since = None;
    }
}

/// Returns the number for the segment after `last`. Fails if the number would exceed `max`.
pub(super) fn number_after(last: u32, max: u32) -> io::Result<u32> {
    let text = || format!("no segment can follow {}: its number is too large", Name::Segment(last));
    if last < max { Ok(last + 1) } else { Err(io::Error::other(text())) }
}

/// The error if the log has no segment to append to.
fn no_segment() -> io::Error {
    io::Error::other("no segment is open")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{CommitOutcome, SyncPolicy, disk::testing::Fixture};

    /// If each record were a write of its own, system calls would take longer than all other work.
    #[test]
    fn the_records_of_a_turn_are_one_write() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        let first = binlog.put(10);
        binlog.put(20);
        binlog.bury(first);
        assert_eq!(binlog.disk.take_calls(), [""; 0], "nothing before the commit");
        binlog.settle();
        let calls = binlog.disk.take_calls();
        assert_eq!(calls.iter().filter(|call| *call == "write binlog.1").count(), 1, "{calls:?}");
        assert_eq!(binlog.ids_after_restart(), [1, 2]);
    }

    #[test]
    fn a_full_segment_is_truncated_synced_and_followed_by_the_next() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.settle();
        binlog.disk.take_calls();
        for _ in 0..2 {
            binlog.put(2000);
        }
        let calls = binlog.disk.take_calls().join(", ");
        let wanted = "write binlog.1, truncate binlog.1, sync binlog.1, write spare.2, \
                      sync spare.2, rename spare.2 binlog.2, sync directory";
        assert!(calls.contains(wanted), "{calls}");
        binlog.settle();
        assert_eq!(binlog.wal.counts().current, 2);
        let sizes = binlog.disk.state().files[&Name::Segment(1)].len();
        assert!(sizes < 4096, "the unused end of a closed segment is truncated: {sizes}");
        assert_eq!(binlog.ids_after_restart(), [1, 2]);
    }

    /// XFS may lack space for a rename. If the commit then failed, clients would be disconnected.
    #[test]
    fn if_a_file_cannot_be_renamed_others_are_removed() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.put(100);
        binlog.settle();
        while binlog.disk.names().iter().filter(|it| it.starts_with("spare.")).count() < 3 {
            binlog.put(100);
            binlog.settle();
        }
        let current = binlog.wal.counts().current;
        let mut state = binlog.disk.state();
        (state.failing, state.errno, state.failures) =
            (Some("rename"), Some(libc::ENOSPC), Some(2));
        drop(state);
        while binlog.wal.counts().current == current {
            binlog.put(100);
            assert_eq!(binlog.commit(), CommitOutcome::Done);
        }
        assert!(binlog.disk.state().failing.is_none(), "it has failed twice");
        assert!(binlog.wal.is_sound());
    }

    /// If large bodies were copied to the pending records, these might take more than a megabyte.
    #[test]
    fn a_large_body_is_written_by_itself() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.put(10);
        let large = binlog.put(300_000);
        binlog.put(10);
        binlog.settle();
        assert_eq!(binlog.ids_after_restart(), [1, 2, 3]);
        binlog.delete(large);
        binlog.settle();
        assert_eq!(binlog.ids_after_restart(), [1, 3]);
    }
}
