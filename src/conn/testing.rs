//! Counts the handles to bodies that a connection has, for checks in tests.

use super::{Conn, Phase};

impl Conn {
    /// The number of handles to bodies that the connection receives or sends.
    pub fn handles(&self) -> usize {
        let is_coming = matches!(&self.phase, Phase::Body(body) if body.got.is_some());
        usize::from(is_coming) + self.output.handles()
    }
}
