//! Counts the lookups of items, for tests that limit the number of lookups.

use super::Arena;

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
