//! Disk space before it is needed: *preallocated files* for later segments, and zeros ahead of
//! records.
//!
//! The file system reserves the space of a preallocated file. That takes no time, so neither a
//! start nor a large job waits for it. A sync is fastest over zeros that are already written, so a
//! short part ahead of the records is filled with them, a piece in each turn. If the file system
//! cannot reserve space, whole files are filled, and are smaller.

use std::io;

use log::{info, warn};

use super::{
    NUMBER_MAX, RETRY_DELAY, WORK_PER_TURN_MIN_BYTES, Wal, ZEROS,
    disk::Name,
    space::{Demand, SEGMENT_ALIGN_BYTES, Space, file_slots},
};
use crate::clock::Time;

/// How far ahead of the records zeros are written.
const ZEROS_AHEAD_BYTES: u64 = 1 << 20;

/// The largest file if all of it must be filled with zeros, unless one record needs more.
const FILLED_FILE_MAX_BYTES: u64 = 64 << 20;

/// How many names are tried for a new file, because other files may have some of them.
const NAMES_TRIED_MAX: u32 = 1000;

/// What is logged if there is no space for another file.
const NO_SPACE: &str = "no disk space for another segment";

/// A file with space for a later segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preallocated {
    pub(super) number: u32,
    /// In bytes.
    pub(super) size: u64,
    /// How many bytes of it have been filled with zeros.
    pub(super) filled: u64,
    /// Whether the file system has reserved its space.
    is_reserved: bool,
}

impl Preallocated {
    /// Returns how many bytes must be filled with zeros before the file may be used.
    fn fill_end(&self) -> u64 {
        if self.is_reserved { self.size.min(WORK_PER_TURN_MIN_BYTES) } else { self.size }
    }
}

/// The space there is, and the space that is needed.
impl Wal {
    /// Whether another segment can follow the current one: numbers end at [`NUMBER_MAX`].
    pub(super) fn can_rotate(&self) -> bool {
        self.segment_index.current().is_none_or(|current| current.number < NUMBER_MAX)
    }

    /// Returns the space for records that the disk has granted.
    pub(super) fn space(&self) -> Space {
        let used = self.segment_index.current().map_or(0, |current| current.used);
        let current = self.current.map_or(0, |current| current.layout.free(used));
        if !self.can_rotate() {
            return Space { current, next: 0, preallocated_slots: 0 };
        }
        let next = self.preallocated.front().map_or(0, |file| file.size);
        Space { current, next, preallocated_slots: self.preallocated_slots }
    }

    /// Returns what needs space.
    pub(super) fn demand(&self) -> Demand {
        Demand {
            jobs: self.segment_index.jobs(),
            oldest_live: self.segment_index.oldest().map_or(0, |oldest| oldest.live),
            segment_size: self.segment_size,
        }
    }

    /// Whether all that needs space has it in preallocated files alone.
    pub(super) fn can_leave(&self) -> bool {
        self.space().next > 0 && self.space().preallocated_slots >= self.demand().slots()
    }

    /// Whether a file is to be preallocated now. While the current segment is at most half full,
    /// garbage is removed first, because it may have the space that is needed.
    fn should_preallocate(&self) -> bool {
        let is_early = self.space().current > self.segment_size / 2;
        let has_garbage = self.is_oldest_unneeded() || self.next_relocation().is_some();
        // Only an attempt tells whether a full disk has space again.
        let is_wanted = self.full_until.is_some() || self.demand().wants_file(self.space());
        let wants_file = self.can_rotate() && is_wanted;
        (self.filling.is_some() || wants_file) && !(is_early && has_garbage)
    }

    /// Returns the index of a preallocated file that is to be removed, if there is one: see
    /// [`Demand::has_surplus`]. The last file of the usual size stays.
    fn surplus(&self) -> Option<usize> {
        let largest =
            (0..self.preallocated.len()).max_by_key(|&index| self.preallocated[index].size)?;
        let size = self.preallocated[largest].size;
        if self.preallocated.len() == 1 && size <= self.segment_size {
            return None;
        }
        self.demand().has_surplus(self.space(), size).then_some(largest)
    }

    /// Returns the offset up to which zeros are to be written now, if any are.
    fn zeros_end(&self) -> Option<u64> {
        let (current, used) = (self.current?, self.segment_index.current()?.used);
        let end = current.layout.size.min(used + ZEROS_AHEAD_BYTES);
        // Writing begins when half the zeros are used, and goes on in whole pieces. A small piece
        // with each commit would make each sync write to a second place of the disk.
        let is_due = current.zeroed < current.layout.size.min(used + ZEROS_AHEAD_BYTES / 2);
        let fits = current.zeroed + WORK_PER_TURN_MIN_BYTES <= end;
        (is_due || (self.is_zeroing && fits)).then_some(end)
    }

    /// Whether [`Wal::work_ahead`] has work, provided that the disk has space.
    pub(super) fn has_work_ahead(&self) -> bool {
        self.should_preallocate() || self.zeros_end().is_some() || self.surplus().is_some()
    }
}

/// Making preallocated files.
impl Wal {
    /// Preallocates a file by [`Wal::try_preallocate`], and returns whether there is one. Tries
    /// nothing if the disk was full within the last second, or if no segment can follow.
    pub(super) fn preallocate(&mut self, least: u64, now: Time) -> bool {
        if self.full_until.is_some_and(|until| until > now) || !self.can_rotate() {
            return false;
        }
        let made = self.try_preallocate(least);
        self.on_preallocated(made, now)
    }

    /// Preallocates the file that a new segment needs at once: with space for all deletes, or on a
    /// fuller disk for some of them, which free space for the others.
    pub(super) fn try_preallocate_first(&mut self) -> io::Result<bool> {
        match self.try_preallocate(self.demand().file_size_for_deletes()) {
            Err(error) if is_full(&error) => self.try_preallocate(SEGMENT_ALIGN_BYTES),
            made => made,
        }
    }

    /// Notes the result of [`Wal::try_preallocate`], and returns whether there is a file.
    pub(super) fn on_preallocated(&mut self, made: io::Result<bool>, now: Time) -> bool {
        match made {
            Ok(is_whole) => {
                if is_whole {
                    self.on_disk_space();
                }
                true
            }
            Err(error) => {
                self.on_disk_full(&error, now);
                false
            }
        }
    }

    /// Preallocates a file of the usual size, or on a fuller disk of half the size, a quarter, and
    /// so on, down to `least`, a size by [`file_size`](super::space::file_size). For a large record
    /// the usual size is added to `least`, for later records. Returns whether the file has the
    /// first size tried.
    pub(super) fn try_preallocate(&mut self, least: u64) -> io::Result<bool> {
        let least = least.next_multiple_of(SEGMENT_ALIGN_BYTES);
        let whole =
            if least > self.segment_size { least + self.segment_size } else { self.segment_size };
        let mut size = whole;
        loop {
            match self.preallocate_file(size) {
                Ok(()) => return Ok(size == whole),
                Err(error) if size <= least || !is_full(&error) => return Err(error),
                Err(_) => size = (size / 2).next_multiple_of(SEGMENT_ALIGN_BYTES).max(least),
            }
        }
    }

    pub(super) fn on_disk_full(&mut self, error: &io::Error, now: Time) {
        let is_first = self.full_until.replace(now + RETRY_DELAY).is_none();
        let is_growth_failed = !is_full(error);
        if is_first || is_growth_failed != self.is_growth_failed {
            let what = if is_growth_failed { "another segment cannot be made" } else { NO_SPACE };
            warn!("{what}; jobs are refused once the present ones are full: {error}");
        }
        self.is_growth_failed = is_growth_failed;
    }

    fn on_disk_space(&mut self) {
        if self.full_until.take().is_some() {
            info!("the disk has space for the binlog again");
        }
    }

    /// Preallocates a file of `size` bytes, and fills it up to [`Preallocated::fill_end`].
    pub(super) fn preallocate_file(&mut self, size: u64) -> io::Result<()> {
        if let Some(other) = self.filling.take_if(|file| file.size != size) {
            self.disk.remove(Name::Preallocated(other.number))?;
        }
        if self.filling.is_none() {
            self.filling = Some(self.begin_file(size)?);
        }
        while self.filling.is_some() {
            self.fill_step()?;
        }
        Ok(())
    }

    /// Creates a preallocated file and reserves its space. If that fails, the file is removed.
    fn begin_file(&mut self, size: u64) -> io::Result<Preallocated> {
        let number = self.create_file()?;
        let name = Name::Preallocated(number);
        match self.disk.reserve(name, size) {
            Ok(true) => Ok(Preallocated { number, size, filled: 0, is_reserved: true }),
            Ok(false) => {
                self.segment_size = self.segment_size.min(FILLED_FILE_MAX_BYTES);
                Ok(Preallocated { number, size, filled: 0, is_reserved: false })
            }
            Err(error) => {
                // The file would only take space. If this fails too, the next start removes it.
                let _ = self.disk.remove(name);
                Err(error)
            }
        }
    }

    /// Creates an empty file under the next free name.
    fn create_file(&mut self) -> io::Result<u32> {
        let mut result = Err(io::ErrorKind::AlreadyExists.into());
        for _ in 0..NAMES_TRIED_MAX {
            let number = self.next_preallocated;
            self.next_preallocated = number.checked_add(1).unwrap_or(1);
            result = self.disk.create(Name::Preallocated(number)).map(|()| number);
            match &result {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                _ => break,
            }
        }
        result
    }

    /// Fills a piece of the file that is being made. If that fails, the file is removed.
    fn fill_step(&mut self) -> io::Result<()> {
        let Some(mut file) = self.filling.take() else { return Ok(()) };
        let name = Name::Preallocated(file.number);
        let length = WORK_PER_TURN_MIN_BYTES.min(file.fill_end() - file.filled);
        let zeros = &ZEROS[..usize::try_from(length).expect("at most a step")];
        if let Err(error) = self.disk.write(name, file.filled, zeros) {
            let _ = self.disk.remove(name);
            return Err(error);
        }
        file.filled += length;
        if file.filled < file.fill_end() {
            self.filling = Some(file);
            return Ok(());
        }
        // Preallocated files take no descriptors: this one is opened again when it is needed.
        self.disk.close(name);
        self.preallocated_slots += file_slots(file.size);
        // The next record must fit into the first file.
        if self.preallocated.front().is_some_and(|first| first.size < file.size) {
            self.preallocated.push_front(file);
        } else {
            self.preallocated.push_back(file);
        }
        Ok(())
    }

    /// Takes a file out of the list of preallocated ones.
    pub(super) fn take_preallocated(&mut self, index: usize) -> Option<Preallocated> {
        let file = self.preallocated.remove(index)?;
        self.preallocated_slots -= file_slots(file.size);
        Some(file)
    }

    /// Removes a preallocated file that is not needed.
    fn remove_preallocated(&mut self, index: usize) {
        let Some(file) = self.take_preallocated(index) else { return };
        if let Err(error) = self.disk.remove(Name::Preallocated(file.number)) {
            warn!("cannot remove an unneeded file, which stays until the next start: {error}");
        }
        // The largest file must be the first.
        let by_size = |index: &usize| self.preallocated[*index].size;
        if let Some(largest) = (0..self.preallocated.len()).max_by_key(by_size) {
            self.preallocated.swap(0, largest);
        }
    }

    /// The end of a turn: writes a piece of zeros, removes a preallocated file that is not needed,
    /// and makes at most `budget` bytes of one that is.
    pub(super) fn work_ahead(&mut self, budget: u64, now: Time) {
        self.write_zeros();
        if let Some(index) = self.surplus() {
            self.remove_preallocated(index);
        }
        if self.full_until.is_some_and(|at| at > now) {
            return;
        }
        let mut left = budget;
        while left > 0 && self.should_preallocate() {
            let begun = match self.filling {
                Some(_) => Ok(()),
                None => self.begin_file(self.segment_size).map(|it| self.filling = Some(it)),
            };
            match begun.and_then(|()| self.fill_step()) {
                Ok(()) if self.filling.is_none() => self.on_disk_space(),
                Ok(()) => {}
                // There may be space for a smaller one, which is better than none.
                Err(_) if self.preallocated.is_empty() => {
                    let made = self.try_preallocate_first();
                    self.on_preallocated(made, now);
                    return;
                }
                Err(error) => return self.on_disk_full(&error, now),
            }
            left = left.saturating_sub(WORK_PER_TURN_MIN_BYTES);
        }
    }

    /// Writes a piece of zeros ahead of the records. An error is ignored: the records that follow
    /// meet it too, and then it counts.
    fn write_zeros(&mut self) {
        let end = self.zeros_end();
        self.is_zeroing = end.is_some();
        let (Some(end), Some(current)) = (end, &mut self.current) else { return };
        let used = self.segment_index.current().map_or(0, |segment| segment.used);
        let start = current.zeroed.max(used);
        let length = WORK_PER_TURN_MIN_BYTES.min(end.saturating_sub(start));
        let zeros = &ZEROS[..usize::try_from(length).expect("at most a step")];
        current.zeroed = match self.disk.write(Name::Segment(current.number), start, zeros) {
            Ok(()) => start + length,
            Err(_) => current.layout.size,
        };
    }
}

/// Whether an error says that the disk or a quota is full, or that a file may not be so large.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::super::{SyncPolicy, Unavailable, testing::Fixture};
    use super::*;

    /// A put would be acknowledged of which the delete fails, so the job would run for ever.
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
        assert!(binlog.wal.is_full());
        for job in jobs {
            binlog.delete(job);
            binlog.turn();
        }
        binlog.wait(RETRY_DELAY);
        binlog.settle();
        assert!(!binlog.wal.is_full());
        binlog.put(200);
    }

    /// An operator would look for a full disk that has space.
    #[test]
    fn a_disk_that_has_space_again_is_full_no_longer_even_if_no_file_is_needed() {
        for (kibibytes, segment_kibibytes) in (16..200).step_by(4).zip([16, 32, 64].repeat(16)) {
            let mut binlog = Fixture::new(SyncPolicy::Never);
            binlog.wal.segment_size = segment_kibibytes * 1024;
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
            assert!(!binlog.wal.is_full(), "{size}");
            assert_eq!(binlog.wal.next_deadline(), None, "nothing is left to do: {size}");
        }
    }

    /// Somebody must see to it, or another machine go on: no job would make space.
    #[test]
    fn a_directory_in_which_no_file_can_be_made_is_no_full_disk() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.settle();
        binlog.disk.state().failing = Some("create");
        while binlog.try_put(500).is_ok() {
            binlog.turn();
        }
        assert!(binlog.wal.has_growth_failed() && !binlog.wal.is_full());
        binlog.disk.state().failing = None;
        binlog.wait(RETRY_DELAY);
        binlog.settle();
        assert!(!binlog.wal.has_growth_failed());
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

    /// Each sync would write to two places of the disk.
    #[test]
    fn zeros_are_written_ahead_in_whole_pieces() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.wal.segment_size = 4 << 20;
        while binlog.wal.current.is_none_or(|current| current.layout.size < 4 << 20) {
            binlog.put(1000);
            binlog.settle();
        }
        binlog.disk.take_calls();
        for _ in 0..2000 {
            binlog.put(1000);
            binlog.settle();
        }
        let calls = binlog.disk.take_calls();
        let writes = calls.iter().filter(|call| call.starts_with("write binlog")).count();
        // Two megabytes of records, and sixteen pieces of zeros.
        assert!((2010..2030).contains(&writes), "{writes}");
        let current = binlog.wal.current.expect("there is one");
        assert!(current.zeroed > binlog.wal.segment_index.current().expect("as well").used);
    }
}
