//! Times as numbers, for tests.

use super::Time;

impl Time {
    /// The instant `nanoseconds` after the origin.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanoseconds(self) -> u64 {
        self.0
    }
}
