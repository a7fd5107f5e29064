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
        let (name, is_damaged) = (Name::Segment(oldest.number), oldest.is_damaged);
        let kept = Name::Damaged(oldest.number);
        self.confirm_lock()?;
        let result = if is_damaged {
            self.disk.rename(name, kept).inspect(|()| {
                warn!(
                    "every job of {name} that could be read is in newer segments; the damaged file \
                     stays as {kept}"
                );
            })
        } else {
            debug!("no job needs {name}: it is removed");
            self.disk.remove(name).or_else(|error| self.truncate_unremovable(name, error))
        };
        match result {
            // It was removed by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let delay = self.drop_retry_delay;
                warn!("cannot remove an unneeded segment; it and all newer ones stay: {error}");
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
        warn!("cannot remove a segment of the binlog; it was emptied instead: {error}");
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::Fixture;
    use super::*;

    /// A power cut between the two would lose the job that was relocated.
    #[test]
    fn a_segment_stays_until_what_replaces_it_is_synced() {
        let mut binlog = Fixture::new(SyncPolicy::Within(Duration::from_secs(3600)));
        let kept = binlog.put(100);
        let others: Vec<_> = (0..20).map(|_| binlog.put(500)).collect();
        binlog.settle();
        for job in others {
            binlog.delete(job);
        }
        for _ in 0..20 {
            binlog.turn();
        }
        assert!(binlog.wal.counts().migrated > 0);
        assert_ne!(binlog.wal.segment_of(kept), 1);
        assert_eq!(binlog.wal.counts().oldest, 1, "no sync covers the relocated job yet");
        binlog.disk.state().ends_syncs = true;
        binlog.settle();
        assert!(binlog.wal.counts().oldest > 1);
        assert_eq!(binlog.ids_after_restart(), [1]);
    }

    #[test]
    fn garbage_of_few_busy_jobs_does_not_pile_up() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        for _ in 0..500 {
            let job = binlog.put(300);
            binlog.bury(job);
            binlog.delete(job);
            binlog.settle();
        }
        let bytes: usize = binlog.disk.state().files.values().map(Vec::len).sum();
        assert!(bytes <= 5 * 4096, "{bytes} bytes for no job");
        assert_eq!(binlog.ids_after_restart(), [0; 0]);
    }

    /// The file of an immutable directory entry, for one, cannot be removed.
    #[test]
    fn a_segment_that_cannot_be_removed_is_truncated_or_tried_again() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.disk.state().failing = Some("remove binlog");
        for _ in 0..50 {
            let job = binlog.put(300);
            binlog.delete(job);
            binlog.settle();
        }
        let oldest = binlog.wal.counts().oldest;
        assert!(oldest > 1, "its records are gone, so it does no harm");
        assert_eq!(binlog.disk.state().files[&Name::Segment(1)].len(), VERSION_BYTES);
        binlog.disk.state().failing = None;
        assert_eq!(binlog.ids_after_restart(), [0; 0]);
    }
}
