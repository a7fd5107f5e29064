//! Permits for changes: whether there is space for the record now, and for the deletes of all jobs
//! later.

use std::{error::Error, fmt};

/// Why the binlog cannot take a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The disk is full.
    Full,
    /// The disk has failed, and not all jobs have been written again.
    Failed,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the disk is full",
            Self::Failed => "the disk has failed",
        })
    }
}

impl Error for Unavailable {}

/// Permission to append the record of one change, consumed by the append. There is space for the
/// record, unless the change may be deferred.
#[must_use = "a change that is not appended does not outlast a restart"]
#[derive(Debug)]
pub struct Permit(pub(super) Change);

/// A change that a permit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A new job, whose full record has this many bytes: see [`full_length`](super::full_length).
    Put(u64),
    /// A new state, priority or delay.
    Update,
    /// A new state, priority or delay that must not fail because the disk is full. Its record is
    /// appended when there is space; a crash before that undoes the change.
    DeferrableUpdate,
    /// The delete of a job. Permitted even on a full disk, where its space has been kept, and
    /// during recovery.
    Delete,
}

impl Permit {
    /// Consumes the permit for `change`. Panics if it was given for a different change.
    pub(super) fn spend(self, change: Change) {
        assert_eq!(self.0, change, "a permit is for one change");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{SyncPolicy, testing::Fixture};

    #[test]
    #[should_panic(expected = "a permit is for one change")]
    fn a_permit_for_a_put_is_none_for_a_delete() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        let job = binlog.put(10);
        let permit = binlog.wal.permit(Change::Put(200), binlog.now).expect("there is space");
        binlog.wal.delete(permit, &binlog.restored.queue, job);
    }
}
