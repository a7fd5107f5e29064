//! Counts the handles to bodies that a connection has, for checks in tests.

use super::{Conn, Output, Phase, output::Piece};

impl Conn {
    /// The number of handles to bodies that the connection receives or sends.
    pub fn handles(&self) -> usize {
        let is_coming = matches!(&self.phase, Phase::Body(body) if body.got.is_some());
        usize::from(is_coming) + self.output.handles()
    }
}

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
