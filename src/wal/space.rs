//! Computes the need for disk space, without I/O.
//!
//! **The promise:** every job can be deleted on a full disk. So a record is appended only if a
//! short record for the delete of each job still fits after it, into the current segment or into
//! preallocated files. [`Space::has_room_for`] checks whether they fit.
//!
//! Because of three rules, records need more space than the sum of their lengths. A record never
//! spans two segments. A segment header, which has the length of a short record, comes first in
//! each segment, and again after each [`HEADER_INTERVAL_BYTES`] of records. And once the next
//! segment has begun, the rest of the previous segment is never used.
//!
//! A *slot* is space for one short record.

use super::record::{SHORT_RECORD_BYTES, VERSION_BYTES};

/// The size of a segment file is a multiple of this many bytes, and never zero.
pub(super) const SEGMENT_ALIGN_BYTES: u64 = 4096;

/// A segment header is repeated after this many bytes, so that damage to the start of a segment
/// does not make the rest unreadable. Headers take half a percent of the binlog.
pub(super) const HEADER_INTERVAL_BYTES: u64 = 16 * 1024;

/// The bytes of a segment before its records: the version and the first segment header.
pub(super) const HEADER_BYTES: u64 = (VERSION_BYTES + SHORT_RECORD_BYTES) as u64;

/// The length of a short record in bytes. A segment header has the same length.
pub(super) const SHORT_BYTES: u64 = SHORT_RECORD_BYTES as u64;

/// The length of the shortest full record in bytes: with a name of one letter and an empty body.
const PUT_MIN_BYTES: u64 = SHORT_BYTES + 1 + 2;

/// How many short records fit into two pages. A restart on a full disk needs this space in addition
/// to the space for deletes, because it begins another segment, and frees only whole pages of the
/// last segment.
pub(super) const RESTART_SLOTS: u64 = 2 * SEGMENT_ALIGN_BYTES / SHORT_BYTES;

/// Returns how many slots fit into `bytes` bytes, if no segment header is due at their beginning.
pub(super) fn slots(bytes: u64) -> u64 {
    bytes.saturating_sub((bytes / HEADER_INTERVAL_BYTES + 1) * SHORT_BYTES) / SHORT_BYTES
}

/// Returns how many slots a segment file of `size` bytes has.
pub(super) fn file_slots(size: u64) -> u64 {
    slots(size.saturating_sub(HEADER_BYTES))
}

/// Returns the size of a segment file for `records` bytes of records.
pub(super) fn file_size(records: u64) -> u64 {
    let headers = (records / HEADER_INTERVAL_BYTES + 1) * SHORT_BYTES;
    (HEADER_BYTES + records + headers).next_multiple_of(SEGMENT_ALIGN_BYTES)
}

/// The layout of one segment: where records and headers go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// The size of the file in bytes.
    pub(super) size: u64,
    /// A segment header precedes the first record at or after this offset.
    next_header: u64,
}

impl Layout {
    /// The layout of a new segment in a file of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { size, next_header: HEADER_BYTES + HEADER_INTERVAL_BYTES }
    }

    /// Returns how many bytes a segment file has after the first `used` bytes.
    pub(super) fn free(self, used: u64) -> u64 {
        self.size.saturating_sub(used)
    }

    /// Returns the largest number of jobs that can be put before the segment file is full.
    pub(super) fn puts(self) -> u64 {
        self.size / PUT_MIN_BYTES
    }

    /// Whether a record of `length` bytes and a segment header fit after the first `used` bytes.
    pub(super) fn fits(self, used: u64, length: u64) -> bool {
        length + SHORT_BYTES <= self.free(used)
    }

    /// Whether a segment header must precede the record at the offset `used`. If so, makes the next
    /// header due [`HEADER_INTERVAL_BYTES`] later.
    pub(super) fn takes_header(&mut self, used: u64) -> bool {
        let is_due = used >= self.next_header;
        if is_due {
            self.next_header = used + SHORT_BYTES + HEADER_INTERVAL_BYTES;
        }
        is_due
    }
}

/// The space that the file system has reserved for records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    /// Unused bytes of the current segment; zero if no segment is open.
    pub(super) current: u64,
    /// The size in bytes of the preallocated file that becomes the next segment; zero if there is
    /// no such file.
    pub(super) next: u64,
    /// The slots in all preallocated files, the file of size `next` included.
    pub(super) preallocated_slots: u64,
}

impl Space {
    /// Returns the number of slots in all of this space.
    pub(super) fn slots(self) -> u64 {
        slots(self.current) + self.preallocated_slots
    }

    /// Whether a record of `length` bytes can be appended, and then `short_records` short records.
    pub(super) fn has_room_for(self, length: u64, short_records: u64) -> bool {
        let length = length + SHORT_BYTES; // A segment header may precede the record.
        if length <= self.current {
            return slots(self.current - length) + self.preallocated_slots >= short_records;
        }
        // The record goes to the next segment, and the rest of the current segment is not used.
        let next = self.next.saturating_sub(HEADER_BYTES);
        length <= next
            && slots(next - length) + self.preallocated_slots - slots(next) >= short_records
    }
}

/// The figures from which the need for disk space is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    /// The number of jobs: each needs a slot for the record of its delete.
    pub(super) jobs: u64,
    /// Bytes of live full records in the oldest segment, which is removed only after their jobs are
    /// relocated.
    pub(super) oldest_live: u64,
    /// The size of a usual segment in bytes.
    pub(super) segment_size: u64,
}

impl Demand {
    /// Returns how many slots must be available.
    pub(super) fn slots(self) -> u64 {
        self.jobs + self.oldest_live.div_ceil(SHORT_BYTES) + RESTART_SLOTS
    }

    /// Returns how many more slots to make in advance: eight, and one for every two jobs. The slots
    /// for jobs are limited to the slots of one segment, and then reduced by [`RESTART_SLOTS`].
    fn slots_ahead(self) -> u64 {
        8 + (self.jobs / 2).min(file_slots(self.segment_size)).saturating_sub(RESTART_SLOTS)
    }

    /// Whether another file should be preallocated. At least one file should always exist.
    pub(super) fn wants_file(self, space: Space) -> bool {
        space.next == 0 || space.slots() < self.slots() + self.slots_ahead()
    }

    /// Whether a preallocated file of `size` bytes should be removed, because the large job or the
    /// many small jobs for which the file was made are deleted. A file of the usual size is removed
    /// only if the slots of one more segment remain unused after that, so that files are not made
    /// and removed alternately.
    pub(super) fn has_surplus(self, space: Space, size: u64) -> bool {
        let is_larger = size > self.segment_size;
        let margin = if is_larger { 0 } else { file_slots(self.segment_size) };
        let kept = self.slots() + 2 * self.slots_ahead() + margin;
        space.slots().saturating_sub(file_slots(size)) >= kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies the binlog's rules for appending records, but writes no bytes.
    struct Appender {
        layout: Layout,
        used: u64,
        files: Vec<u64>,
    }

    impl Appender {
        fn space(&self) -> Space {
            Space {
                current: self.layout.free(self.used),
                next: self.files.first().copied().unwrap_or(0),
                preallocated_slots: self.files.iter().map(|&size| file_slots(size)).sum(),
            }
        }

        /// Appends a record, and returns whether there was space for it.
        fn append(&mut self, length: u64) -> bool {
            if !self.layout.fits(self.used, length) {
                if self.files.is_empty() {
                    return false;
                }
                self.layout = Layout::new(self.files.remove(0));
                self.used = HEADER_BYTES;
            }
            self.used += u64::from(self.layout.takes_header(self.used)) * SHORT_BYTES + length;
            self.used <= self.layout.size
        }
    }

    /// Returns how many short records fit after a record of `length` bytes. `None` if the record
    /// itself does not fit.
    fn most_short_records(space: Space, length: u64) -> Option<u64> {
        let most = (0..=space.slots()).rev().find(|&count| space.has_room_for(length, count))?;
        assert!(!space.has_room_for(length, most + 1), "more than all, after {length} bytes");
        Some(most)
    }

    /// A record that is admitted without space could take the space of a later delete.
    #[test]
    fn what_is_admitted_fits_in_every_small_case() {
        let interval = HEADER_INTERVAL_BYTES;
        let mut cases = 0u32;
        for files in [&[][..], &[4096], &[8192, 4096], &[20480, 4096]] {
            let next = files.first().map_or(0, |size| size - HEADER_BYTES);
            for free in (0..=2 * SHORT_BYTES).chain((0..interval + 3 * SHORT_BYTES).step_by(29)) {
                for due_in in [0, 1, SHORT_BYTES - 1, SHORT_BYTES, free / 2, free, interval] {
                    let near = |bytes: u64| bytes.saturating_sub(2 * SHORT_BYTES + 1);
                    for length in [SHORT_BYTES, SHORT_BYTES + 1, near(free), near(next) + 1] {
                        let used = HEADER_BYTES + interval;
                        let layout = Layout { size: used + free, next_header: used + due_in };
                        let mut appender = Appender { layout, used, files: files.to_vec() };
                        let Some(most) = most_short_records(appender.space(), length) else {
                            continue;
                        };
                        let case =
                            format!("{length} bytes, {free} free, due in {due_in}; {files:?}");
                        assert!(appender.append(length), "{case}");
                        for nth in 0..most {
                            assert!(appender.append(SHORT_BYTES), "{case}: short record {nth}");
                        }
                        cases += 1;
                    }
                }
            }
        }
        assert!(cases > 20_000, "{cases}");
    }

    /// If more than one slot were wasted, a put would be refused on a disk with space for the job.
    #[test]
    fn at_most_one_slot_is_wasted() {
        for bytes in 0..40_000 {
            let appended = {
                let layout = Layout { size: bytes, next_header: HEADER_INTERVAL_BYTES };
                let mut appender = Appender { layout, used: 0, files: Vec::new() };
                (0..bytes).take_while(|_| appender.append(SHORT_BYTES)).count() as u64
            };
            let counted = slots(bytes);
            assert!(counted <= appended && appended <= counted + 1, "{counted} in {bytes} bytes");
        }
    }

    #[test]
    fn a_file_has_the_size_of_what_it_is_made_for() {
        for length in (1..=400).map(|count| count * SHORT_BYTES).chain(100_000..104_200) {
            let size = file_size(length);
            assert_eq!(size % SEGMENT_ALIGN_BYTES, 0);
            let space = Space { current: 0, next: size, preallocated_slots: file_slots(size) };
            assert!(space.has_room_for(length, 0), "{length}");
            assert!(file_slots(size) >= length / SHORT_BYTES, "{length}");
        }
    }

    #[test]
    fn what_is_wanted_ahead_grows_with_the_jobs_up_to_a_segment() {
        let demand = |jobs| Demand { jobs, oldest_live: 0, segment_size: 65_536 };
        assert_eq!(
            [0, 100, 300, 1_000_000].map(|it| demand(it).slots_ahead()),
            [8, 8, 8 + 150 - RESTART_SLOTS, 8 + file_slots(65_536) - RESTART_SLOTS]
        );
    }

    #[test]
    fn without_space_nothing_is_admitted() {
        let none = Space { current: 0, next: 0, preallocated_slots: 0 };
        assert!(!none.has_room_for(0, 0) && !none.has_room_for(SHORT_BYTES, 0));
        assert!(!none.has_room_for(u64::MAX / 2, 0));
    }

    /// If a file were both wanted and surplus, files would be made and removed in each turn.
    #[test]
    fn no_file_is_both_wanted_and_surplus() {
        for jobs in (0..300).chain([1000, 10_000, 100_000]) {
            for oldest_live in [0, SHORT_BYTES, 5000, 100_000] {
                let demand = Demand { jobs, oldest_live, segment_size: 8192 };
                for count in 1..8 {
                    let sizes = [8192, 65536].into_iter();
                    for size in sizes.filter(|&size| count > 1 || size > demand.segment_size) {
                        let slots = file_slots(size) * count;
                        let space = Space { current: 100, next: size, preallocated_slots: slots };
                        if demand.has_surplus(space, size) && count > 1 {
                            let slots = slots - file_slots(size);
                            let left = Space { preallocated_slots: slots, ..space };
                            assert!(!demand.wants_file(left), "{demand:?} {count} of {size}");
                        }
                    }
                }
            }
        }
    }
}
