//! The reserve: *preallocated files*, which have disk space for later segments.
//!
//! The file system reserves the space of these files without a write, so neither startup nor a
//! large job waits for writes. If the file system cannot reserve space, the files are smaller, and
//! are filled with zeros. Each file begins with a header, so that the directory's key can be read
//! from it even if the headers of all segments are damaged.

use std::{cmp::Reverse, collections::BTreeMap, io, time::Duration};

use log::{info, warn};

use super::{
    Unavailable,
    disk::{Name, Writable},
    record::SegmentHeader,
    recovery::RETRY_DELAY,
    segment::{self, PREALLOCATED, WORK_PER_TURN_MIN_BYTES, ZEROS},
    space::{Demand, HEADER_BYTES, SEGMENT_ALIGN_BYTES, Space, file_slots},
};
use crate::clock::Time;

/// The largest size in bytes of a file that is filled with zeros, unless one record needs more.
const FILLED_FILE_MAX_BYTES: u64 = 64 << 20;

/// How long the disk is reported as full after it lacked space for a job larger than a segment,
/// even if it has space for smaller jobs.
const LARGE_SHORTAGE_TIME: Duration = Duration::from_secs(60);

/// A file with space for a later segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preallocated {
    number: u32,
    /// The size of the file in bytes.
    pub(super) size: u64,
    /// How many bytes of the file have been filled with a segment header and zeros.
    pub(super) filled: u64,
    /// How many bytes must be filled before the file can be used: all, or only the first piece if
    /// the file system has reserved the file's space.
    pub(super) fill_end: u64,
}

impl Preallocated {
    /// The name of a preallocated file.
    pub(super) fn name(&self) -> Name {
        Name::Preallocated(self.number)
    }
}

/// A failure to make a file. Before `retry_at`, no file of `size` bytes or more is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shortage {
    pub(super) retry_at: Time,
    /// When the last attempt to make a file failed.
    failed_at: Time,
    /// The size in bytes of the smallest file that could not be made since `retry_at` last passed.
    size: u64,
    pub(super) reason: Unavailable,
}

/// The preallocated files.
#[derive(Debug)]
pub(super) struct Reserve {
    /// The size of a usual segment in bytes.
    pub(super) segment_size: u64,
    /// The directory's key, from which the checksums in its segments are computed.
    pub(super) key: u64,
    /// The files, sorted by size; files of equal size are sorted from the newest to the oldest. So
    /// the last one is the largest file, or the oldest of several such files; it becomes the next
    /// segment.
    pub(super) files: BTreeMap<(u64, Reverse<u32>), Preallocated>,
    /// The file that is being filled.
    filling: Option<Preallocated>,
    next_number: u32,
    /// How many short records fit into all preallocated files.
    pub(super) slots: u64,
    pub(super) shortage: Option<Shortage>,
}

impl Reserve {
    /// A reserve without files. New files get numbers above `last`.
    pub(super) fn new(segment_size: u64, key: u64, last: u32) -> Self {
        let size = segment_size.clamp(1, u64::MAX / 4);
        Self {
            segment_size: size.next_multiple_of(SEGMENT_ALIGN_BYTES),
            key,
            files: BTreeMap::new(),
            filling: None,
            next_number: last.checked_add(1).unwrap_or(1),
            slots: 0,
            shortage: None,
        }
    }

    /// Returns the preallocated file that becomes the next segment.
    pub(super) fn first(&self) -> Option<Preallocated> {
        self.files.last_key_value().map(|(_, file)| *file)
    }

    /// Returns the space for records in the preallocated files and in the current segment, which
    /// has `current` unused bytes.
    pub(super) fn space(&self, current: u64) -> Space {
        let next = self.first().map_or(0, |file| file.size);
        Space { current, next, preallocated_slots: self.slots }
    }

    /// Whether it is time to begin a preallocated file, or to write more zeros into one that was
    /// begun. Returns true on a full disk, because only an attempt shows whether there is space
    /// again.
    pub(super) fn wants_file(&self, demand: Demand, space: Space) -> bool {
        let shortage = self.shortage.filter(|it| it.size <= self.segment_size);
        self.filling.is_some() || shortage.is_some() || demand.wants_file(space)
    }

    /// Whether it is too early to try to make a file of `size` bytes, because an attempt with this
    /// size or a smaller one failed less than a second ago.
    pub(super) fn is_resting(&self, size: u64, now: Time) -> bool {
        self.shortage.is_some_and(|shortage| shortage.retry_at > now && size >= shortage.size)
    }

    /// Preallocates a file of the usual size. If the disk is too full, tries half that size, a
    /// quarter, and so on, down to `least` bytes, in whole pages. If `least` exceeds the usual
    /// size, first tries the sum of `least` and the usual size, so that later records fit, too.
    pub(super) fn preallocate(
        &mut self,
        disk: &mut Writable,
        least: u64,
        now: Time,
    ) -> io::Result<()> {
        let least = least.max(1).next_multiple_of(SEGMENT_ALIGN_BYTES);
        let whole =
            if least > self.segment_size { least + self.segment_size } else { self.segment_size };
        let mut size = whole;
        while let Err(error) = self.try_file(disk, size, now) {
            if size == least || !is_full(&error) {
                return Err(error);
            }
            size = (size / 2).next_multiple_of(SEGMENT_ALIGN_BYTES).max(least);
        }
        self.on_space(size);
        Ok(())
    }

    /// Preallocates a file of `size` bytes, unless it is too early: see [`Reserve::is_resting`].
    fn try_file(&mut self, disk: &mut Writable, size: u64, now: Time) -> io::Result<()> {
        if self.is_resting(size, now) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.make_file(disk, size).inspect_err(|error| self.on_shortage(error, size, now))
    }

    /// Notes that a file of `size` bytes could not be made. Until an attempt succeeds, the server
    /// refuses jobs that need such a file.
    pub(super) fn on_shortage(&mut self, error: &io::Error, size: u64, now: Time) {
        let (reason, size, text) = if is_full(error) {
            (Unavailable::Full, size, "no disk space for another binlog file")
        } else {
            (Unavailable::Failed, 0, "cannot create another binlog file")
        };
        if self.shortage.is_none_or(|before| before.reason != reason) {
            warn!("{text}; jobs are refused once the present files are full: {error}");
        }
        let before = self.shortage.map(|it| it.retry_at).filter(|at| *at > now);
        let retry_at = before.unwrap_or(now + RETRY_DELAY);
        self.shortage = Some(Shortage { retry_at, failed_at: now, size, reason });
    }

    /// Lets the next attempt to make a file begin at once, because the daemon has freed space.
    pub(super) fn on_freed(&mut self) {
        if let Some(shortage) = &mut self.shortage {
            shortage.retry_at = Time::AT_ONCE;
        }
    }

    /// Ends the shortage after a file of `size` bytes was made; a shortage of space for larger
    /// files continues.
    fn on_space(&mut self, size: u64) {
        if self.shortage.take_if(|shortage| size >= shortage.size).is_some() {
            info!("the disk has space for the binlog again");
        }
    }

    /// Assumes again that there is space for large files if the last failure is at least
    /// [`LARGE_SHORTAGE_TIME`] ago.
    pub(super) fn forget_large_shortage(&mut self, now: Time) {
        // If there is no space for smaller files either, an attempt fails each second, and so
        // `failed_at` is recent.
        if self.shortage.is_some_and(|it| it.failed_at + LARGE_SHORTAGE_TIME <= now) {
            self.on_space(u64::MAX);
        }
    }

    /// Preallocates a file of `size` bytes, and writes zeros up to its `fill_end`.
    fn make_file(&mut self, disk: &mut Writable, size: u64) -> io::Result<()> {
        if let Some(other) = self.filling.take_if(|file| file.size != size) {
            disk.remove(other.name())?;
        }
        while !self.make_step(disk, size)? {}
        Ok(())
    }

    /// Creates a preallocated file, reserves its space, and writes a segment header. After an
    /// error, the file is removed.
    fn begin_file(&mut self, disk: &mut Writable, size: u64) -> io::Result<Preallocated> {
        let number = self.next_number;
        self.next_number = number.checked_add(1).unwrap_or(1);
        let name = Name::Preallocated(number);
        match disk.create(name) {
            // If the name is in use, tries the next number, but gives up at a multiple of 1,000.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number % 1000 > 0 => {
                return self.begin_file(disk, size);
            }
            result => result?,
        }
        // After an error, removes the file. If the removal fails, the next startup removes the
        // file.
        let header = SegmentHeader { key: self.key, next_id: 0, seen_below: 0 };
        let made = disk.reserve(name, size).and_then(|is_reserved| {
            disk.write(name, 0, &segment::beginning(PREALLOCATED, header)).map(|()| is_reserved)
        });
        let is_reserved = made.inspect_err(|_| drop(disk.remove(name)))?;
        if !is_reserved {
            self.segment_size = self.segment_size.min(FILLED_FILE_MAX_BYTES);
        }
        let fill_end = if is_reserved { size.min(WORK_PER_TURN_MIN_BYTES) } else { size };
        Ok(Preallocated { number, size, filled: HEADER_BYTES, fill_end })
    }

    /// Writes zeros to the next piece of the unfinished preallocated file, or of a new file of
    /// `size` bytes if there is none. Returns whether the file is complete. After an error, the
    /// file is removed.
    fn make_step(&mut self, disk: &mut Writable, size: u64) -> io::Result<bool> {
        let mut file = match self.filling.take() {
            Some(file) => file,
            None => self.begin_file(disk, size)?,
        };
        let length = WORK_PER_TURN_MIN_BYTES.min(file.fill_end - file.filled);
        let zeros = &ZEROS[..usize::try_from(length).expect("at most a step")];
        let filled = disk.write(file.name(), file.filled, zeros);
        filled.inspect_err(|_| drop(disk.remove(file.name())))?;
        file.filled += length;
        if file.filled < file.fill_end {
            self.filling = Some(file);
            return Ok(false);
        }
        // A complete file has no open descriptor until the file becomes a segment.
        disk.close(file.name());
        self.slots += file_slots(file.size);
        self.files.insert((file.size, Reverse(file.number)), file);
        Ok(true)
    }

    /// Takes from the reserve the preallocated file that becomes the next segment.
    pub(super) fn take_first(&mut self) -> Option<Preallocated> {
        let (_, file) = self.files.pop_last()?;
        self.slots -= file_slots(file.size);
        Some(file)
    }

    /// Whether to remove the file that would be the next segment: see [`Demand::has_surplus`]. The
    /// only preallocated file stays unless it is larger than a usual segment.
    pub(super) fn has_surplus(&self, demand: Demand, space: Space) -> bool {
        self.first().is_some_and(|file| {
            let is_only_usual = self.files.len() == 1 && file.size <= self.segment_size;
            !is_only_usual && demand.has_surplus(space, file.size)
        })
    }

    /// Removes the unneeded preallocated file that would be the next segment. Returns the file's
    /// size.
    pub(super) fn remove_first(&mut self, disk: &mut Writable) -> u64 {
        let Some(file) = self.take_first() else { return 0 };
        match disk.remove(file.name()) {
            Ok(()) => self.on_freed(),
            Err(error) => {
                warn!("cannot remove a spare binlog file; it stays until the next start: {error}");
            }
        }
        file.size
    }

    /// Removes the smallest preallocated file, unless it is the only one. Returns whether a file
    /// was removed.
    pub(super) fn remove_smallest(&mut self, disk: &mut Writable) -> bool {
        let is_only = self.files.len() == 1;
        let Some(smallest) = self.files.first_entry().filter(|_| !is_only) else { return false };
        let name = smallest.get().name();
        // XFS frees the space of a removed file later, but the space of a truncated file at once.
        if disk.truncate(name, 0).is_err() {
            return false;
        }
        drop(disk.remove(name)); // If this fails, the next startup removes the empty file.
        self.slots -= file_slots(smallest.remove().size);
        self.on_freed();
        true
    }

    /// Writes zeros to a piece of a preallocated file; this file has the usual size of a segment.
    /// After a failure, the next attempt must wait.
    pub(super) fn make_piece(&mut self, disk: &mut Writable, now: Time) {
        match self.make_step(disk, self.segment_size) {
            Ok(true) => self.on_space(self.segment_size),
            Ok(false) => {}
            // There is no preallocated file at all, so tries to make a smaller one, for which there
            // may be space.
            Err(_) if self.files.is_empty() => {
                drop(self.preallocate(disk, 0, now));
            }
            Err(error) => self.on_shortage(&error, self.segment_size, now),
        }
    }
}

/// Whether an error means that the disk is full, a quota is used up, or a limit on the size of a
/// file would be exceeded.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{
        SyncPolicy,
        disk::Lease,
        disk::testing::{Fixture, MemoryDisk, START},
    };

    /// If a newer file became the next segment, the sync of its header might wait until the kernel
    /// has written the file's zeros to the disk.
    #[test]
    fn of_files_of_one_size_the_oldest_becomes_the_next_segment() {
        let mut lease = Lease::new(Box::new(MemoryDisk::default()), true, START);
        let disk = lease.ask().expect("it has the lock");
        let mut reserve = Reserve::new(4096, 1, 0);
        for _ in 0..4 {
            reserve.make_file(disk, 4096).expect("there is space");
        }
        let numbers = std::iter::from_fn(|| reserve.take_first()).map(|file| file.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    /// If a put took the space for a delete, a job could not be deleted, and would run repeatedly.
    #[test]
    fn on_a_full_disk_puts_are_refused_and_every_job_can_be_deleted() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.disk.state().capacity = Some(64 * 1024);
        let mut jobs = Vec::new();
        loop {
            match binlog.try_put(200) {
                Ok(job) => jobs.push(job),
                Err(error) => break assert_eq!(error, Unavailable::Full),
            }
            binlog.turn();
        }
        assert!(jobs.len() > 100, "{} jobs", jobs.len());
        assert_eq!(binlog.wal.trouble(), Some(Unavailable::Full));
        for job in jobs {
            binlog.delete(job);
            binlog.turn();
        }
        assert_eq!(binlog.wal.trouble(), None, "space that deletes free is seen at once");
        binlog.put(200);
    }

    /// If a disk with space were reported as full, an operator would look for a cause in vain.
    #[test]
    fn a_disk_that_has_space_again_is_full_no_longer_even_if_no_file_is_needed() {
        for (kibibytes, segment_kibibytes) in (16..200).step_by(4).zip([16, 32, 64].repeat(16)) {
            let mut binlog = Fixture::new(SyncPolicy::Never);
            binlog.wal.log.reserve.segment_size = segment_kibibytes * 1024;
            binlog.disk.state().capacity = Some(kibibytes * 1024);
            let mut jobs = Vec::new();
            while let Ok(job) = binlog.try_put(200) {
                jobs.push(job);
                binlog.turn();
            }
            for job in jobs {
                binlog.delete(job);
                binlog.turn();
            }
            binlog.disk.state().capacity = None;
            for _ in 0..10 {
                binlog.wait(RETRY_DELAY);
                binlog.settle();
            }
            let size = format!("{kibibytes} KiB, in segments of {segment_kibibytes} KiB");
            assert_eq!(binlog.wal.trouble(), None, "{size}");
            assert_eq!(binlog.wal.next_deadline(), None, "nothing is left to do: {size}");
        }
    }

    /// If the shortage ended when a small job fits, a monitor would rarely see that large jobs do
    /// not fit.
    #[test]
    fn a_disk_without_space_for_a_large_job_is_full_until_none_has_come_for_a_minute() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.settle();
        let used: u64 = binlog.disk.state().files.values().map(|it| it.len() as u64).sum();
        binlog.disk.state().capacity = Some(used + 64 * 1024);
        for _ in 0..20 {
            assert_eq!(binlog.try_put(100_000).err(), Some(Unavailable::Full));
            let small = binlog.put(100);
            binlog.turn();
            binlog.delete(small);
            binlog.wait(RETRY_DELAY);
            binlog.settle();
            assert_eq!(binlog.wal.trouble(), Some(Unavailable::Full));
        }
        binlog.wait(LARGE_SHORTAGE_TIME);
        binlog.settle();
        assert_eq!(binlog.wal.trouble(), None);
        assert_eq!(binlog.wal.next_deadline(), None);
    }

    /// If every failure were reported as a full disk, an operator would delete jobs, which does not
    /// help: the directory must be repaired, or another machine must take over.
    #[test]
    fn a_directory_in_which_no_file_can_be_made_is_no_full_disk() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.settle();
        binlog.disk.state().failing = Some("create");
        while binlog.try_put(500).is_ok() {
            binlog.turn();
        }
        assert_eq!(binlog.wal.trouble(), Some(Unavailable::Failed));
        binlog.disk.state().failing = None;
        binlog.wait(RETRY_DELAY);
        binlog.settle();
        assert_eq!(binlog.wal.trouble(), None);
        binlog.put(500);
    }

    #[test]
    fn a_full_disk_is_asked_once_a_second_and_no_more() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.disk.state().capacity = Some(16 * 1024);
        while binlog.try_put(500).is_ok() {}
        binlog.disk.take_calls();
        for _ in 0..100 {
            assert_eq!(binlog.try_put(500), Err(Unavailable::Full));
        }
        assert_eq!(binlog.disk.take_calls(), [""; 0]);
        binlog.wait(RETRY_DELAY);
        assert_eq!(binlog.try_put(500), Err(Unavailable::Full));
        assert!(!binlog.disk.take_calls().is_empty());
    }

    #[test]
    fn files_made_for_a_large_job_go_with_it() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        let large = binlog.put(1_000_000);
        binlog.settle();
        binlog.delete(large);
        binlog.settle();
        let bytes: usize = binlog.disk.state().files.values().map(Vec::len).sum();
        assert!(bytes < 64 * 1024, "{bytes} bytes in {:?}", binlog.disk.names());
    }
}
