//! The types that callers of the binlog pass and receive.

use std::time::Duration;

#[cfg(doc)]
use super::Wal;
use super::{index::SegmentIndex, log::Log, syncs::SyncEvents};
use crate::{
    collections::Key,
    memory::Bodies,
    queue::{Job, Queue},
};

/// When written records are synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At most this long after a write. Zero means before a reply that confirms a change.
    Within(Duration),
    /// Never.
    Never,
}

impl SyncPolicy {
    /// Before each reply that confirms a change: `-f0`.
    pub const EACH_CHANGE: Self = Self::Within(Duration::ZERO);
}

/// The jobs that the binlog records, and their bodies.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a> {
    /// The jobs.
    pub queue: &'a Queue,
    /// Their bodies.
    pub bodies: &'a Bodies,
}

impl<'a> Jobs<'a> {
    /// Returns the bytes of a job's body, with its CR LF.
    pub fn body(self, job: Key<Job>) -> &'a [u8] {
        self.bodies.bytes(&self.queue.job(job).body)
    }
}

/// The options of a binlog, from the flags.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The size of a segment in bytes, rounded up to a multiple of 4096: `-s`.
    pub segment_size: u64,
    /// When records are synced: `-f` and `-F`.
    pub sync: SyncPolicy,
    /// An unpredictable number from which the salts of checksums are drawn.
    pub seed: u64,
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CommitOutcome {
    /// All records so far are as safe as the [`SyncPolicy`] promises.
    Done,
    /// With `-f0`: records are written, and some are not synced yet.
    Syncing(SyncEvents),
    /// Records of the turn may be missing, so replies that waited for them must not be sent. If the
    /// lock is lost, the process must end without another write: see [`Wal::lost_lock`].
    Failed,
    /// The binlog works again after a failure, and holds every job.
    Recovered,
}

/// Figures of the binlog, for `stats` and `metrics`.
#[derive(Debug, Clone, Copy, Default)]
pub struct BinlogCounts {
    /// The number of the oldest segment.
    pub oldest: u32,
    /// The number of the segment that is being written.
    pub current: u32,
    /// How many jobs have been written again so that their old segment could be removed.
    pub migrated: u64,
    /// The number of records written.
    pub written: u64,
    /// The bytes of all live records.
    pub live: u64,
    /// The bytes of all other records, which are garbage, and of the headers of segments.
    pub dead: u64,
    /// The bytes that have been written, or are pending, and are not synced yet. `None` if nothing
    /// is ever synced.
    pub unsynced: Option<u64>,
}

impl BinlogCounts {
    pub(super) fn new(log: &Log, index: &SegmentIndex, migrated: u64) -> Self {
        let unsynced = log.end.length.saturating_sub(log.syncs.synced);
        Self {
            oldest: index.oldest().map_or(0, |it| it.number),
            current: index.end.number,
            migrated,
            written: log.records,
            live: index.live(),
            dead: index.used().saturating_sub(index.live()),
            unsynced: log.syncs.are_on().then_some(unsynced),
        }
    }
}
