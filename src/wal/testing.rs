//! For tests: checks all invariants of the binlog, and gives access to the jobs of [`Restored`].

use super::{
    Jobs, Restored, Wal,
    index::SegmentIndex,
    log::Log,
    reserve::Reserve,
    space::{SHORT_BYTES, file_slots},
};

impl Wal {
    /// Panics if an invariant does not hold. O(jobs): for tests.
    pub fn check(&self) {
        self.log.check();
        self.index.check();
        assert!(self.log.failure.is_some() || self.index.end == self.log.end);
    }
}

impl Log {
    /// Panics if an invariant does not hold.
    pub(super) fn check(&self) {
        self.reserve.check();
        assert!(self.pending.len() as u64 <= self.end.used && self.end.used <= self.end.length);
        assert!(self.syncs.synced <= self.end.length);
        if let Some(current) = self.current {
            assert!(self.end.used <= current.layout.size, "it fits into its file");
        }
    }
}

impl Restored {
    /// Borrows the jobs and their bodies.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs { queue: &self.queue, bodies: &self.bodies }
    }
}

impl SegmentIndex {
    /// Panics if an invariant does not hold. O(jobs): for tests.
    pub(super) fn check(&self) {
        let (mut live, mut jobs) = (0, 0);
        for segment in self.segments.values() {
            segment.jobs.check(&self.locations);
            jobs += segment.jobs.len();
            let here = || segment.jobs.iter(&self.locations).map(|key| &self.locations[key]);
            assert!(here().all(|location| location.segment == segment.number));
            assert_eq!(here().map(|it| u64::from(it.length)).sum::<u64>(), segment.live);
            live += segment.live + SHORT_BYTES * here().filter(|it| it.is_updated).count() as u64;
        }
        let deferred = self.locations.iter().filter(|(_, location)| location.is_deferred).count();
        assert_eq!(deferred as u64, self.deferred);
        assert_eq!((live, jobs), (self.live, self.locations.len()));
        let used = self.segments.values().rev().skip(1).map(|segment| segment.used);
        assert_eq!(used.sum::<u64>(), self.closed);
        let unneeded = self.segments.range(..self.needed_from);
        assert_eq!(unneeded.map(|(_, segment)| segment.used).sum::<u64>(), self.unneeded_bytes);
        assert!(self.oldest_needed().is_none_or(|segment| !segment.jobs.is_empty()));
    }
}

impl Reserve {
    /// Panics if an invariant does not hold.
    pub(super) fn check(&self) {
        assert_eq!(self.slots, self.files.values().map(|file| file_slots(file.size)).sum::<u64>());
        let largest = self.files.values().map(|file| file.size).max();
        assert_eq!(self.first().map(|file| file.size), largest, "the next record must fit");
        assert!(self.files.values().all(|file| file.filled == file.fill_end));
    }
}
