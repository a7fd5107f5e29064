//! Figures of the binlog, for `stats`, `stats-job` and `metrics`.

use super::{SyncPolicy, Wal, segments::Segment};
use crate::{
    collections::{Key, ShortTimes},
    queue::Job,
};

/// What `stats` reports of the binlog.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// The number of the oldest segment.
    pub oldest: u32,
    /// The number of the segment that is being written.
    pub current: u32,
    /// How many jobs have been written again so that their old segment could be removed.
    pub migrated: u64,
    /// How many records have been written.
    pub written: u64,
}

/// Figures of the binlog.
impl Wal {
    /// Returns what `stats` reports.
    pub fn counts(&self) -> Counts {
        let number = |segment: Option<&Segment>| segment.map_or(0, |it| it.number);
        Counts {
            oldest: number(self.segment_index.oldest()),
            current: number(self.segment_index.current()),
            migrated: self.migrated,
            written: self.written,
        }
    }

    /// Returns the bytes of all live records. All others are garbage.
    pub fn live(&self) -> u64 {
        self.segment_index.live()
    }

    /// Returns the bytes of all other records, and of the headers of segments.
    pub fn dead(&self) -> u64 {
        self.segment_index.used().saturating_sub(self.segment_index.live())
    }

    /// Returns how many bytes have been written, or are about to be, and are not synced yet. `None`
    /// if nothing is ever synced.
    pub fn unsynced(&self) -> Option<u64> {
        let is_synced = self.sync != SyncPolicy::Never;
        is_synced.then(|| self.segment_index.length().saturating_sub(self.synced))
    }

    /// How long syncs of records have taken.
    pub fn sync_times(&self) -> &ShortTimes {
        self.sync_time.all()
    }

    /// Returns the number of the segment with a job's full record: `file` of `stats-job`.
    pub fn segment_of(&self, job: Key<Job>) -> u32 {
        self.segment_index.segment_of(job)
    }
}
