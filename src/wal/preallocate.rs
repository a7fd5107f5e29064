//! Space before it is needed: files for the segments to come, the *spares*, and zeros ahead of the
//! records in the one that is written.
//!
//! The file system sets the space of a spare aside, which takes it no time, and so a start and a
//! large job need not wait. A sync is quickest where zeros have been written before, so a short
//! stretch ahead of the records is filled with them, a piece in each turn. A file system that does
//! not set space aside has the whole spare filled; there spares are smaller.

use std::io;

use log::{info, warn};

use super::{
    NUMBER_MAX, RETRY_DELAY, WORK_PER_TURN_MIN_BYTES, Wal, ZEROS,
    disk::Name,
    space::{Demand, SEGMENT_ALIGN_BYTES, Space, file_slots},
};
use crate::clock::Time;

/// Zeros are written so far ahead of the records.
const ZEROS_AHEAD_BYTES: u64 = 1 << 20;

/// The largest spare where all of it must be filled with zeros, unless one record needs more.
const FILLED_FILE_MAX_BYTES: u64 = 64 << 20;

/// How many names are tried for a new spare: other files may have some.
const NAMES_TRIED_MAX: u32 = 1000;

/// Room for a segment to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preallocated {
    pub(super) number: u32,
    /// In bytes.
    pub(super) size: u64,
    /// How much of it has been filled with zeros.
    pub(super) filled: u64,
    /// Whether the file system has set its space aside.
    is_reserved: bool,
}

impl Preallocated {
    /// How far it must be filled before it may be used.
    fn fill_end(&self) -> u64 {
        if self.is_reserved { self.size.min(WORK_PER_TURN_MIN_BYTES) } else { self.size }
    }
}

/// How much room there is.
impl Wal {
    /// Whether another segment can follow the current one: numbers end where the original's do.
    pub(super) fn can_rotate(&self) -> bool {
        self.segment_index.current().is_none_or(|current| current.number < NUMBER_MAX)
    }

    /// The space for records that the disk has granted.
    pub(super) fn space(&self) -> Space {
        let used = self.segment_index.current().map_or(0, |current| current.used);
        let current = self.current.map_or(0, |current| current.layout.free(used));
        if !self.can_rotate() {
            return Space { current, next: 0, preallocated_slots: 0 };
        }
        let next = self.preallocated.front().map_or(0, |file| file.size);
        Space { current, next, preallocated_slots: self.preallocated_slots }
    }

    /// What needs space.
    pub(super) fn demand(&self) -> Demand {
        Demand {
            jobs: self.segment_index.jobs(),
            oldest_live: self.segment_index.oldest().map_or(0, |oldest| oldest.live),
            segment_size: self.segment_size,
        }
    }

    /// Whether all that needs space has it without the current segment.
    pub(super) fn can_leave(&self) -> bool {
        self.space().next > 0 && self.space().preallocated_slots >= self.demand().slots()
    }

    /// Whether a spare is to be made now. Garbage goes first while there is time for that: it may
    /// be the room that is needed.
    fn should_preallocate(&self) -> bool {
        let is_early = self.space().current > self.segment_size / 2;
        let has_garbage = self.is_oldest_unneeded() || self.next_relocation().is_some();
        let wants_file = self.can_rotate() && self.demand().wants_file(self.space());
        (self.filling.is_some() || wants_file) && !(is_early && has_garbage)
    }

    /// The index of the preallocated file that is to be removed, if one is: see
    /// [`Demand::has_surplus`]. The last of the usual size stays.
    fn surplus(&self) -> Option<usize> {
        let largest =
            (0..self.preallocated.len()).max_by_key(|&index| self.preallocated[index].size)?;
        let size = self.preallocated[largest].size;
        if self.preallocated.len() == 1 && size <= self.segment_size {
            return None;
        }
        self.demand().has_surplus(self.space(), size).then_some(largest)
    }

    /// How far the current segment is to be filled with zeros now, if it is.
    fn zeros_end(&self) -> Option<u64> {
        let (current, used) = (self.current?, self.segment_index.current()?.used);
        let end = current.layout.size.min(used + ZEROS_AHEAD_BYTES);
        // One piece follows another until all of the stretch is filled.
        let is_due = current.zeroed < current.layout.size.min(used + ZEROS_AHEAD_BYTES / 2);
        (is_due || (self.is_zeroing && current.zeroed < end)).then_some(end)
    }

    /// Whether [`Wal::work_ahead`] has something to do, were there room for it.
    pub(super) fn has_work_ahead(&self) -> bool {
        self.should_preallocate() || self.zeros_end().is_some() || self.surplus().is_some()
    }
}

/// Making spares.
impl Wal {
    /// Makes a spare at once: of the usual size if the disk has room for that, else of the half, or
    /// a quarter, and so on, but of `least` bytes. A large record gets a segment in which others
    /// can follow it. False if the disk has no room, now or when it was last tried.
    pub(super) fn preallocate(&mut self, least: u64, now: Time) -> bool {
        if self.full_until.is_some_and(|until| until > now) || !self.can_rotate() {
            return false;
        }
        let made = self.try_preallocate(least);
        self.on_preallocated(made, now)
    }

    /// Makes the spare that a new segment needs at once: with room for all deletes if the disk has
    /// that, or else for some of them, which make room for the others.
    pub(super) fn try_preallocate_first(&mut self) -> io::Result<bool> {
        match self.try_preallocate(self.demand().file_size_for_deletes()) {
            Err(error) if is_full(&error) => self.try_preallocate(SEGMENT_ALIGN_BYTES),
            made => made,
        }
    }

    /// Notes what making a spare has come to; whether there is one.
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

    /// Does the same whatever has been tried before; says whether the spare has the usual size, or
    /// why there is none. `least` is a size by [`file_size`](super::space::file_size).
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
        if self.full_until.replace(now + RETRY_DELAY).is_none() {
            warn!(
                "no disk space for another segment; jobs are refused once the present ones are \
                 full: {error}"
            );
        }
    }

    fn on_disk_space(&mut self) {
        if self.full_until.take().is_some() {
            info!("the disk has space for the binlog again");
        }
    }

    /// Makes a spare of this size and fills it as far as it must be.
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

    /// Makes the file of a spare. If that fails there is none.
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
                // What is left of it would only take room from others; the next start removes it.
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

    /// Fills a piece of the spare that is being made. Where that fails, the spare is given up.
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
        // It is opened again when it is needed: spares take no descriptors.
        self.disk.close(name);
        self.preallocated_slots += file_slots(file.size);
        // The first one is where the next record must fit.
        if self.preallocated.front().is_some_and(|first| first.size < file.size) {
            self.preallocated.push_front(file);
        } else {
            self.preallocated.push_back(file);
        }
        Ok(())
    }

    /// Takes a spare out of the list.
    pub(super) fn take_preallocated(&mut self, index: usize) -> Option<Preallocated> {
        let file = self.preallocated.remove(index)?;
        self.preallocated_slots -= file_slots(file.size);
        Some(file)
    }

    /// Removes a spare that is not needed.
    fn remove_preallocated(&mut self, index: usize) {
        let Some(file) = self.take_preallocated(index) else { return };
        if let Err(error) = self.disk.remove(Name::Preallocated(file.number)) {
            warn!("cannot remove an unneeded file, which stays until the next start: {error}");
        }
        // The largest one is to be the first.
        let by_size = |index: &usize| self.preallocated[*index].size;
        if let Some(largest) = (0..self.preallocated.len()).max_by_key(by_size) {
            self.preallocated.swap(0, largest);
        }
    }

    /// The end of a turn: goes on with the spare that is being made, or begins one that is wanted;
    /// fills the next piece of zeros; gives back a spare that is not wanted any more.
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
                // There may be room for a smaller one, which is better than none.
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

    /// Writes a piece of zeros ahead of the records. If that fails, so will a record, which is when
    /// it matters.
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

/// Whether an error says that the disk is full, or the user's part of it.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let mut binlog = Fixture::new(SyncPolicy::Within(Duration::ZERO));
        let large = binlog.put(1_000_000);
        binlog.settle();
        binlog.delete(large);
        binlog.settle();
        let bytes: usize = binlog.disk.state().files.values().map(Vec::len).sum();
        assert!(bytes < 64 * 1024, "{bytes} bytes in {:?}", binlog.disk.names());
    }
}
