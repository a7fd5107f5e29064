//! A check of all invariants of the reserve.

use super::{Reserve, file_slots};

impl Reserve {
    /// Panics if an invariant does not hold.
    pub(in crate::wal) fn check(&self) {
        assert_eq!(self.slots, self.files.values().map(|file| file_slots(file.size)).sum::<u64>());
        let largest = self.files.values().map(|file| file.size).max();
        assert_eq!(self.first().map(|file| file.size), largest, "the next record must fit");
        assert!(self.files.values().all(|file| file.filled == file.fill_end));
    }
}
