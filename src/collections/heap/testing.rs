//! A check of the invariants of a heap.

use super::{Heap, Key};

impl<K: Ord + Copy, T> Heap<K, T> {
    /// Panics if an entry is smaller than its parent, or if `position_of` returns a wrong position.
    pub fn check(&self, position_of: impl Fn(Key<T>) -> u32) {
        for (position, &(key, item)) in self.entries.iter().enumerate() {
            assert!(position == 0 || self.entries[(position - 1) / 2].0 <= key);
            assert_eq!(position_of(item) as usize, position);
        }
        assert!(self.entries.capacity() >= self.min_capacity, "capacity is kept");
    }
}
