//! Counts the bodies in the output, for checks in tests.

use super::{Output, Piece};

impl Output {
    /// How many bytes of copied bodies this output adds to `Bodies::counted`.
    pub fn copied(&self) -> u64 {
        let copied = self.pieces().map(|piece| match piece {
            Piece::Copied(_, of_bodies) => *of_bodies,
            Piece::Shared(_) => 0,
        });
        copied.sum()
    }

    /// How many handles to bodies the output has.
    pub fn handles(&self) -> usize {
        self.pieces().filter(|piece| matches!(piece, Piece::Shared(_))).count()
    }
}
