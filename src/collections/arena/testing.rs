//! The number of visits to items, for tests that limit it.

use super::Arena;

impl<T, const CHUNK_LENGTH: usize> Arena<T, CHUNK_LENGTH> {
    /// The number of lookups by key. Tests use this number as the cost of a command, because unlike
    /// time it does not vary. Always 0 in a release build.
    pub fn visits(&self) -> u64 {
        #[cfg(debug_assertions)]
        return self.visits.get();
        #[cfg(not(debug_assertions))]
        return 0;
    }
}
