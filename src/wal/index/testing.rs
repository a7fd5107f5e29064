//! A check of all invariants of the index.

use super::{SHORT_BYTES, SegmentIndex};

impl SegmentIndex {
    /// Panics if an invariant does not hold. O(jobs): for tests.
    pub(in crate::wal) fn check(&self) {
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
