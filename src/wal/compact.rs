//! Writes jobs that still need the oldest segment again, and removes the segment.

use std::io;

use log::{debug, warn};

use super::{
    Health, Jobs, Name, RETRY_DELAY, RETRY_DELAY_MAX, SyncPolicy, Wal,
    reader::VERSION_BYTES,
    segments,
    space::{SHORT_BYTES, file_size},
    sync::SyncState,
};
use crate::{
    clock::Time,
    collections::Key,
    queue::{Job, Queue},
};

impl Wal {
    /// Whether a record has been deferred for which there is space now.
    pub(super) fn can_append_deferred(&self) -> bool {
        self.segment_index.has_deferred() && self.space().admits(SHORT_BYTES, self.demand().slots())
    }

    pub(super) fn append_deferred(&mut self, queue: &Queue) {
        while self.can_append_deferred() {
            let Some(job) = self.segment_index.next_deferred() else { return };
            self.append_short(queue, job);
        }
    }

    /// Returns the job to write again next, if any: from suspect segments, from others in doubt, or
    /// from the oldest if the closed segments have more than twice the live bytes.
    pub(super) fn next_relocation(&self) -> Option<Key<Job>> {
        let suspect = self.segment_index.first_job_in(self.suspect_from..=self.rewrite_through);
        suspect.or_else(|| self.segment_index.first_job_in(0..=self.rewrite_through)).or_else(
            || {
                let (_, job) = self.segment_index.oldest_closed()?;
                job.filter(|_| self.segment_index.closed() > 2 * self.segment_index.live())
            },
        )
    }

    /// Writes jobs again, in the order of [`Wal::next_relocation`], until they have `budget` bytes
    /// or more.
    pub(super) fn compact(&mut self, jobs: Jobs<'_>, budget: u64, now: Time) {
        let mut left = budget;
        while left > 0 && self.failure.is_none() {
            let Some(job) = self.next_relocation() else { return };
            let length = u64::from(self.segment_index.length_of(job));
            // The space kept for compaction may be used, but not that of deletes.
            while !self.space().admits(length, self.segment_index.jobs()) {
                if !self.preallocate(file_size(length), now) {
                    return;
                }
            }
            self.append_full(jobs, job);
            self.segment_index.relocate(job);
            self.migrated += 1;
            left = left.saturating_sub(length);
        }
    }

    /// Whether every job is in segments that are relied on, and these are synced.
    pub(super) fn is_all_relocated(&self) -> bool {
        self.sync_state == SyncState::Clean
            && self.segment_index.first_job_in(0..=self.rewrite_through).is_none()
    }

    /// Whether no job needs the oldest segment. That is unknown while a job's record is in a
    /// suspect segment: if that record never reached the disk, an older one counts.
    pub(super) fn is_oldest_unneeded(&self) -> bool {
        let suspect = self.segment_index.first_job_in(self.suspect_from..=self.rewrite_through);
        suspect.is_none()
            && self.segment_index.oldest_closed().is_some_and(|(_, job)| job.is_none())
    }

    /// Whether the oldest segment may be removed: no job needs it, and what replaces its records is
    /// synced. Later records need not be, or constant writing would keep it. After a failure all
    /// records must be.
    pub(super) fn can_drop_oldest(&self) -> bool {
        let is_synced = match self.health {
            Health::Sound => {
                let oldest = self.segment_index.oldest();
                oldest.is_none_or(|oldest| oldest.last_removal_at <= self.synced)
            }
            _ => self.sync_state == SyncState::Clean,
        };
        is_synced && self.is_oldest_unneeded()
    }

    /// Removes the oldest segment if [`Wal::can_drop_oldest`], or renames it if it is damaged. If
    /// that fails, the binlog still works, and tries again after longer and longer delays.
    pub(super) fn drop_oldest(&mut self, now: Time) -> io::Result<()> {
        if self.drop_retry_at.is_some_and(|at| at > now) {
            return Ok(());
        }
        self.drop_retry_at = None;
        let Some((oldest, _)) =
            self.segment_index.oldest_closed().filter(|_| self.can_drop_oldest())
        else {
            return Ok(());
        };
        let name = Name::Segment(oldest.number);
        let result = if oldest.is_damaged {
            let kept = Name::Damaged(oldest.number);
            self.disk.rename(name, kept).inspect(|()| {
                warn!("every job of {name} is in newer files; what was damaged stays in {kept}");
            })
        } else {
            debug!("{name} is of no more use");
            self.disk.remove(name).or_else(|error| self.truncate_unremovable(name, error))
        };
        match result {
            // It was removed by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let delay = self.drop_retry_delay;
                warn!("a file of the binlog stays that no job needs, and all behind it: {error}");
                self.drop_retry_at = Some(now + delay);
                self.drop_retry_delay = (2 * delay).min(RETRY_DELAY_MAX);
                return Ok(());
            }
            Ok(()) => {}
        }
        self.drop_retry_delay = RETRY_DELAY;
        if self.sync != SyncPolicy::Never {
            self.disk.sync_directory()?;
        }
        self.segment_index.drop_oldest();
        Ok(())
    }

    /// Truncates a segment that cannot be removed, so that a restart finds no old records.
    pub(super) fn truncate_unremovable(&mut self, name: Name, error: io::Error) -> io::Result<()> {
        if error.kind() == io::ErrorKind::NotFound
            || self.disk.truncate(name, VERSION_BYTES as u64).is_err()
        {
            return Err(error);
        }
        if self.sync != SyncPolicy::Never {
            self.disk.sync(name)?;
        }
        self.disk.close(name);
        warn!("an empty file of the binlog stays: {error}");
        Ok(())
    }

    /// Whether the current segment was made for a large job that was deleted. Most of it is
    /// garbage, whose space is freed only after the segment is closed.
    pub(super) fn should_leave_segment(&self) -> bool {
        let is_large = |segment: &&segments::Segment| segment.used > self.segment_size;
        let current = self.segment_index.current().filter(is_large);
        current.is_some_and(|current| 2 * current.live < current.used)
            && self.current.is_some()
            && self.can_leave()
    }

    pub(super) fn leave_garbage_segment(&mut self, queue: &Queue) {
        if self.failure.is_none() && self.should_leave_segment() {
            if let Err(error) = self.rotate(0, queue) {
                self.failure = Some(error);
            }
        }
    }
}
