//! For tests: checks of the invariants of a heap and of a list, and the lookups in an arena.

use super::{Arena, Heap, Key, Linked, List};

impl<T, const CHUNK_LENGTH: usize> Arena<T, CHUNK_LENGTH> {
    /// The number of lookups by key. Tests take the number of lookups as the cost of a command,
    /// because this number, unlike the time, is equal in all runs. A release build returns 0.
    pub fn visits(&self) -> u64 {
        #[cfg(debug_assertions)]
        return self.visits.get();
        #[cfg(not(debug_assertions))]
        return 0;
    }
}

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

impl<T: Linked> List<T> {
    /// Panics if the links or the length are wrong.
    pub fn check(&self, items: &Arena<T>) {
        let mut before = None;
        let mut len = 0;
        for key in self.iter(items) {
            assert_eq!(items[key].links().before, before);
            before = Some(key);
            len += 1;
        }
        assert_eq!((before, len), (self.tail, self.len()));
    }
}
