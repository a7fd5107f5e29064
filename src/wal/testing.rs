//! For tests: `check` of all invariants of the binlog; access to the jobs of [`Restored`].

use super::{Jobs, Restored, Wal, log::Log};

impl Wal {
    /// Panics if an invariant does not hold. O(jobs): for tests.
    pub fn check(&self) {
        self.log.check();
        self.index.check();
        assert!(self.log.failure.is_some() || self.index.end == self.log.end);
    }
}

impl Log {
    /// Panics if an invariant does not hold.
    pub(super) fn check(&self) {
        self.reserve.check();
        assert!(self.pending.len() as u64 <= self.end.used && self.end.used <= self.end.length);
        assert!(self.syncs.synced <= self.end.length);
        if let Some(current) = self.current {
            assert!(self.end.used <= current.layout.size, "it fits into its file");
        }
    }
}

impl Restored {
    /// Borrows the jobs and their bodies.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs { queue: &self.queue, bodies: &self.bodies }
    }
}
