//! The types that callers of the binlog pass and receive.

use std::{error, fmt, io, time::Duration};

#[cfg(doc)]
use super::Wal;
use super::syncs::SyncEvents;
use crate::{
    collections::{Key, OutOfMemory},
    memory::Bodies,
    queue::{Job, Queue},
};

/// When written records are synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// A sync of records is due this long after their write. If the time is zero, records are
    /// synced before the reply that confirms the change.
    Within(Duration),
    /// Records are never synced.
    Never,
}

impl SyncPolicy {
    /// With `-f0`, records are synced before each reply that confirms a change.
    pub const EACH_CHANGE: Self = Self::Within(Duration::ZERO);
}

/// The jobs that the binlog records, and their bodies.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a> {
    /// The jobs.
    pub queue: &'a Queue,
    /// The bodies of these jobs.
    pub bodies: &'a Bodies,
}

impl<'a> Jobs<'a> {
    /// Returns the bytes of a job's body, with the CR LF, for a record of the job.
    pub fn body(self, job: Key<Job>) -> &'a [u8] {
        self.bodies.bytes(&self.queue.job(job).body)
    }
}

/// The options of a binlog, from the flags.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The size of a segment in bytes, not yet rounded up to a multiple of 4096: `-s`.
    pub segment_size: u64,
    /// When records are synced: `-f` and `-F`.
    pub sync: SyncPolicy,
    /// A random number, which becomes the directory's key if no file in the directory has a key.
    pub key: u64,
}

/// Why a binlog cannot be opened or read. A failed call has changed no record. The error's message
/// is one line that names the file or the call, and, if possible, a remedy.
#[derive(Debug)]
pub enum Error {
    /// A call on the directory or on one of its files has failed.
    Disk(io::Error),
    /// Another process has locked the directory. The text names that process, if the name is known.
    Locked(String),
    /// There is not enough memory. The text names the purpose of the memory, or is empty.
    OutOfMemory(String),
    /// Only the program that wrote a segment can read its layout. The text names the segment and
    /// the layout.
    Foreign(String),
    /// The caller's progress function has interrupted the replay.
    Interrupted,
}

impl From<io::Error> for Error {
    /// Converts the error of a call on the disk to an error of the binlog.
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<OutOfMemory> for Error {
    /// Converts a lack of memory to an error of the binlog.
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory(String::new())
    }
}

impl fmt::Display for Error {
    /// Formats an error of the binlog.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => write!(f, "{error}"),
            Self::Locked(text) | Self::Foreign(text) => f.write_str(text),
            Self::OutOfMemory(it) => write!(f, "not enough memory{it}. Nothing has been changed"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl error::Error for Error {}

/// Allocates an empty buffer with a capacity of `length` bytes. If there is no memory for the
/// buffer, the error names this `purpose` of the buffer.
pub(super) fn buffer(length: usize, purpose: &str) -> Result<Vec<u8>, Error> {
    let mut buffer = Vec::new();
    let no_memory = |_| Error::OutOfMemory(format!(" {purpose}"));
    buffer.try_reserve_exact(length).map_err(no_memory)?;
    Ok(buffer)
}

/// Why the binlog cannot record a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The disk is full.
    Full,
    /// The disk has failed, and not all jobs have been relocated since; or no file can be created.
    Failed,
}

impl fmt::Display for Unavailable {
    /// Formats the reason for which the binlog permits no change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the disk is full",
            Self::Failed => "the disk has failed",
        })
    }
}

impl error::Error for Unavailable {}

/// Permission to append the record of one change. Appending the record consumes the permit. Space
/// for the record is reserved, unless the record may be deferred.
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
    /// A new state, priority or delay that even a full disk must not prevent. The record is
    /// appended once there is space; a crash before the append undoes the change.
    DeferrableUpdate,
    /// The delete of a job. Deletes are permitted during recovery, and also on a full disk, because
    /// space for deletes is kept.
    Delete,
}

impl Permit {
    /// Consumes the permit for `change`. Panics if the permit is for a different change.
    pub(super) fn spend(self, change: Change) {
        assert_eq!(self.0, change, "a permit is for one change");
    }
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CommitOutcome {
    /// All records so far are as safe as the [`SyncPolicy`] promises.
    Done,
    /// With `-f0`, all records are written, but some are not synced yet.
    Syncing(SyncEvents),
    /// Records of the turn may be missing, so replies that wait for these records must not be sent.
    /// If the lock is lost, the process must end without another write: see [`Wal::lost_lock`].
    Failed,
    /// The binlog works again after a failure, and holds every job.
    Recovered,
}

/// Figures of the binlog, for `stats` and `metrics`.
#[derive(Debug, Clone, Copy, Default)]
pub struct BinlogCounts {
    /// The number of the oldest segment.
    pub oldest: u32,
    /// The number of the segment to which records are appended.
    pub current: u32,
    /// How many times jobs were relocated.
    pub migrated: u64,
    /// The number of records written.
    pub written: u64,
    /// The bytes of all live records.
    pub live: u64,
    /// The bytes of all garbage, and of the headers of segments.
    pub dead: u64,
    /// The bytes, written or pending, that are not synced yet. `None` if nothing is ever synced.
    pub unsynced: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{SyncPolicy, disk::testing::Fixture};

    #[test]
    #[should_panic(expected = "a permit is for one change")]
    fn a_permit_for_a_put_is_none_for_a_delete() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        let job = binlog.put(10);
        let permit = binlog.wal.permit(Change::Put(200), binlog.now).expect("there is space");
        binlog.wal.delete(permit, &binlog.restored.queue, job);
    }
}
