//! Appends records to the current segment, and opens the next one when it is full.

use std::io;

use log::{debug, warn};

use super::{
    Current, Jobs, NUMBER_MAX, Name, PENDING_MAX_BYTES, Permit, SyncPolicy, Wal, no_number_left,
    no_segment,
    permit::Change,
    reader::VERSION_BYTES,
    record::{
        self, HEAD_MAX_BYTES as RECORD_HEAD_MAX_BYTES, JobFields, Kind, SegmentHeader, VERSION,
    },
    space::{HEADER_BYTES, Layout, SHORT_BYTES, file_size},
    sync::SyncState,
};
use crate::{
    clock::Time,
    collections::Key,
    queue::{Job, Queue, State},
};

/// A larger body is written directly from its memory, and not copied to the pending records.
const COPIED_BODY_MAX_BYTES: usize = 128 * 1024;

/// The server reports each change with its permit. An error is reported by the commit.
impl Wal {
    /// Appends the full record of a job that has just been put.
    pub fn put(&mut self, Permit(change): Permit, jobs: Jobs<'_>, job: Key<Job>) {
        let length = self.append_full(jobs, job);
        assert_eq!(change, Change::Put(length.into()), "a permit is for one change");
        self.segment_index.insert(job, length);
        self.unrecorded_from = self.unrecorded_from.min(jobs.queue.job(job).record.id);
    }

    /// The first id whose job may have no record in a file: its write is pending, or has failed.
    pub fn unrecorded_from(&self) -> u64 {
        self.unrecorded_from
    }

    /// Forgets a job whose put could not be written, and which nobody has seen. Call it for each
    /// one after [`CommitOutcome::Failed`](super::CommitOutcome::Failed), before it is removed.
    pub fn forget(&mut self, job: Key<Job>) {
        self.segment_index.remove(job);
    }

    /// Appends the new state, priority or delay of a job, or defers that if the permit allows it.
    pub fn update(&mut self, Permit(change): Permit, queue: &Queue, job: Key<Job>, now: Time) {
        match change {
            Change::Update => self.append_short(queue, job),
            Change::DeferrableUpdate => self.update_or_defer(queue, job, now),
            other => panic!("a permit for {other:?} is spent on an update"),
        }
    }

    /// Appends a short record of the job, or defers it until there is space.
    pub(super) fn update_or_defer(&mut self, queue: &Queue, job: Key<Job>, now: Time) {
        match self.permit_update(now) {
            Ok(_) => self.append_short(queue, job),
            Err(_) => self.segment_index.defer(job),
        }
    }

    /// Appends the delete of a job, which is still in the queue.
    pub fn delete(&mut self, Permit(change): Permit, queue: &Queue, job: Key<Job>) {
        assert_eq!(change, Change::Delete, "a permit is for one change");
        let fields = JobFields { kind: Kind::Deleted, ..self.fields(queue, job) };
        self.append(&fields, None, queue);
        self.segment_index.remove(job);
    }

    pub(super) fn fields(&self, queue: &Queue, job: Key<Job>) -> JobFields {
        let Job { record, body, dated, .. } = queue.job(job);
        let calendar = |is_dated| if is_dated { self.dates.of(job) } else { self.calendar };
        let nanoseconds = |seconds: u32| i64::from(seconds) * 1_000_000_000;
        JobFields {
            id: record.id,
            pri: record.pri,
            delay: nanoseconds(record.delay),
            ttr: nanoseconds(record.ttr),
            body_size: i32::try_from(body.len()).expect("a body is at most a gibibyte"),
            created_at: calendar(dated.is_created).date(record.created_at),
            deadline_at: calendar(dated.is_state_at).date(record.state_at),
            reserves: record.reserves,
            timeouts: record.timeouts,
            releases: record.releases,
            buries: record.buries,
            kicks: record.kicks,
            kind: match record.state {
                // The delay has ended if the wall clock is right. A restart decides that anew.
                State::Ready if dated.is_state_at => Kind::Delayed,
                // A restart makes a reserved job ready.
                State::Ready | State::Reserved(_) => Kind::Ready,
                State::Delayed => Kind::Delayed,
                State::Buried => Kind::Buried,
            },
        }
    }

    /// Appends the full record of a job, and returns its length in bytes.
    pub(super) fn append_full(&mut self, jobs: Jobs<'_>, key: Key<Job>) -> u32 {
        let (queue, body) = (jobs.queue, jobs.body(key));
        let name = queue.tube(queue.job(key).tube).name();
        self.append(&self.fields(queue, key), Some((name, body)), queue);
        u32::try_from(Self::full_length(name, body.len())).expect("a gibibyte and 300 bytes")
    }

    pub(super) fn append_short(&mut self, queue: &Queue, job: Key<Job>) {
        self.append(&self.fields(queue, job), None, queue);
        self.segment_index.update(job);
    }

    pub(super) fn append(
        &mut self,
        fields: &JobFields,
        full: Option<(&str, &[u8])>,
        queue: &Queue,
    ) {
        let length = full.map_or(SHORT_BYTES, |(name, body)| Self::full_length(name, body.len()));
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = self.try_append(fields, full, length, queue) {
            self.failure = Some(error);
        }
    }

    fn try_append(
        &mut self,
        fields: &JobFields,
        full: Option<(&str, &[u8])>,
        length: u64,
        queue: &Queue,
    ) -> io::Result<()> {
        let used = self.segment_index.current().map_or(0, |segment| segment.used);
        if self.current.is_none_or(|current| !current.layout.fits(used, length)) {
            self.rotate(length, queue)?;
        }
        // The buffer must never grow, because at a memory limit that would end the process.
        let copied = full.map_or(0, |(_, body)| body.len()).min(COPIED_BODY_MAX_BYTES);
        if self.pending.len() + copied + 2 * RECORD_HEAD_MAX_BYTES > PENDING_MAX_BYTES {
            self.write()?;
        }
        let segment = self.segment_index.current().expect("it was opened");
        let (used, mut at) = (segment.used, segment.used);
        let current = self.current.as_mut().ok_or_else(no_segment)?;
        let Current { number, salt, seen_below, .. } = *current;
        if current.layout.takes_header(at) {
            let header = SegmentHeader { salt, next_id: queue.next_id(), seen_below };
            header.encode(at, &mut self.pending);
            at += SHORT_BYTES;
        }
        record::encode(fields, full, salt, at, &mut self.pending);
        at += length;
        let grown = at - used;
        self.segment_index.grow(grown);
        self.appended += grown;
        self.written += 1;
        match full {
            Some((_, body)) if body.len() > COPIED_BODY_MAX_BYTES => {
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

/// Opening and closing segments.
impl Wal {
    /// Closes the current segment and opens the next, with space for a record of `length` bytes.
    pub(super) fn rotate(&mut self, length: u64, queue: &Queue) -> io::Result<()> {
        self.confirm_lock()?;
        let current = self.current.ok_or_else(no_segment)?;
        if !self.can_rotate() {
            return Err(no_number_left(current.number));
        }
        let name = Name::Segment(current.number);
        self.write()?;
        self.end_sync()?;
        let used = self.segment_index.current().expect("it was opened").used;
        if used < current.layout.size {
            self.disk.truncate(name, used)?;
        }
        if self.sync != SyncPolicy::Never {
            self.disk.sync(name)?;
        }
        self.is_written = false;
        self.sync_state = SyncState::Clean;
        self.synced = self.segment_index.length();
        self.disk.close(name);
        // This segment is complete, so an error from here on does not make it suspect.
        self.current = None;
        self.open_next(file_size(length), queue)
    }

    /// Opens the next segment in a preallocated file of at least `size` bytes, or in a new one if
    /// that was removed by hand.
    pub(super) fn open_next(&mut self, size: u64, queue: &Queue) -> io::Result<()> {
        let mut number = self.segment_index.current().map_or(0, |current| current.number) + 1;
        loop {
            // The caller has ensured the space, so a file is missing only after a full disk.
            if self.preallocated.front().is_none_or(|file| file.size < size) {
                self.preallocate_file(self.segment_size.max(size))?;
            }
            match self.open_segment(number, queue) {
                // It was put there by hand, and may hold jobs. The next start reads it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    warn!("a segment of another origin is left alone: {error}");
                    number += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    warn!("a preallocated file is missing, another is made: {error}");
                    self.take_preallocated(0);
                }
                result => return result,
            }
        }
    }

    /// Makes the first preallocated file the current segment. It is renamed only after its segment
    /// header outlasts a power cut, so no segment lacks one.
    pub(super) fn open_segment(&mut self, number: u32, queue: &Queue) -> io::Result<()> {
        let &file = self.preallocated.front().ok_or_else(no_segment)?;
        if number > NUMBER_MAX {
            return Err(no_number_left(number - 1));
        }
        let (from, to) = (Name::Preallocated(file.number), Name::Segment(number));
        let (salt, next_id, layout) = (self.draw_salt(), queue.next_id(), Layout::new(file.size));
        let mut header = VERSION.to_le_bytes().to_vec();
        let seen_below = next_id + layout.puts();
        let segment_header = SegmentHeader { salt, next_id, seen_below };
        segment_header.encode(VERSION_BYTES as u64, &mut header);
        self.disk.write(from, 0, &header)?;
        if self.sync != SyncPolicy::Never {
            self.disk.sync(from)?;
        }
        // What came before may have taken long.
        self.confirm_lock()?;
        self.disk.rename(from, to)?;
        self.take_preallocated(0);
        // Even if the sync fails the number is used.
        self.segment_index.open(number);
        self.segment_index.grow(HEADER_BYTES);
        if self.sync != SyncPolicy::Never {
            self.disk.sync_directory()?;
        }
        debug!("{to} is open");
        self.current = Some(Current { number, salt, seen_below, layout, zeroed: file.filled });
        Ok(())
    }

    /// At the daemon's end: notes that no client has seen the id of a job whose record is missing,
    /// so that the next start skips no ids. Returns whether it was written. If there is no space,
    /// or the disk fails, the next start skips some, and nothing is lost.
    pub(super) fn write_last_header(&mut self, queue: &Queue) -> bool {
        let Some(current) = self.current.as_mut().filter(|it| it.seen_below > 0) else {
            return false;
        };
        let used = self.segment_index.current().expect("it was opened").used;
        if !current.layout.fits(used, SHORT_BYTES) || self.failure.is_some() {
            return false;
        }
        current.seen_below = 0;
        let header = SegmentHeader { salt: current.salt, next_id: queue.next_id(), seen_below: 0 };
        header.encode(used, &mut self.pending);
        self.segment_index.grow(SHORT_BYTES);
        self.write().is_ok()
    }

    /// Returns the next number of the splitmix64 sequence.
    fn draw_salt(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl Wal {
    /// Writes the pending records before the commit does, and returns whether they are written. An
    /// error is reported by the commit.
    pub fn write_pending(&mut self, now: Time) -> bool {
        if self.failure.is_none() && self.lost_lock.is_none() {
            self.failure = self.confirm_lock_if_due(now).and_then(|_| self.write()).err();
        }
        self.failure.is_none() && self.lost_lock.is_none()
    }

    /// Writes the pending records to the current segment.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let end = self.segment_index.current().map_or(0, |segment| segment.used);
        self.write_through(end)?;
        self.unrecorded_from = u64::MAX;
        Ok(())
    }

    /// Writes the pending records, which end at offset `end` of the current segment.
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
}

#[cfg(test)]
mod tests {
    use super::super::testing::Fixture;
    use super::*;

    /// A system call a record would cost more than everything else.
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
                      sync spare.2, rename spare.2, sync directory";
        assert!(calls.contains(wanted), "{calls}");
        binlog.settle();
        assert_eq!(binlog.wal.counts().current, 2);
        let sizes = binlog.disk.state().files[&Name::Segment(1)].len();
        assert!(sizes < 4096, "the unused end of a closed segment is truncated: {sizes}");
        assert_eq!(binlog.ids_after_restart(), [1, 2]);
    }

    /// Beyond a megabyte the buffer would grow, or a body would be copied once more.
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

    #[test]
    #[should_panic(expected = "a permit is for one change")]
    fn a_permit_for_a_put_is_none_for_a_delete() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        let job = binlog.put(10);
        let permit = binlog.wal.permit_put(200, binlog.now).expect("there is space");
        binlog.wal.delete(permit, &binlog.restored.queue, job);
    }
}
