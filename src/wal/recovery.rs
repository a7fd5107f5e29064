//! A failure of the disk, and the recovery: all jobs are written to new segments.

use std::io;

use super::{Health, Name, RETRY_DELAY, RETRY_DELAY_MAX, Wal};
use crate::{clock::Time, queue::Queue};

impl Wal {
    /// Stops writing after an error. Records of this turn may be missing on the disk although the
    /// index counts on them, so the segment becomes suspect.
    pub(super) fn fail(&mut self, now: Time) {
        self.abandon_segment();
        let last = self.segment_index.current().map_or(0, |segment| segment.number);
        self.suspect_from = self.suspect_from.min(last);
        self.retry_later(now);
    }

    /// Stops using the current segment. Nothing is written to it before the next attempt.
    pub(super) fn abandon_segment(&mut self) {
        if let Some(current) = self.current.take() {
            let used = self.segment_index.current().map_or(0, |segment| segment.used);
            self.abandoned = Some((current.number, used.saturating_sub(self.pending.len() as u64)));
            self.disk.close(Name::Segment(current.number));
            self.suspect_from = self.suspect_from.min(current.number);
        }
        self.pending.clear();
        self.is_written = false;
        self.is_zeroing = false;
        self.failure = None;
        self.sync_state.forget_writes();
    }

    pub(super) fn retry_later(&mut self, now: Time) {
        self.retry_delay = match self.health {
            Health::Recovering => (2 * self.retry_delay).min(RETRY_DELAY_MAX),
            _ => RETRY_DELAY,
        };
        self.health = Health::Failed { retry_at: now + self.retry_delay };
    }

    /// Opens a new segment. Every job is then to be written to it or its successors. Before all
    /// else it asks for the lock: another daemon may have taken over while the disk failed.
    pub(super) fn try_recover(&mut self, queue: &Queue, now: Time) -> io::Result<()> {
        self.confirm_lock()?;
        if let Some((number, used)) = self.abandoned.take() {
            // Its zeros may take the space that is needed. An error here changes nothing.
            let _ = self.disk.truncate(Name::Segment(number), used);
            self.disk.close(Name::Segment(number));
        }
        if self.preallocated.is_empty() {
            let made = self.try_preallocate_first();
            if !self.on_preallocated(made, now) {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let last = self.segment_index.current().map_or(0, |current| current.number);
        self.open_next(0, queue)?;
        if self.suspect_from <= last {
            self.rewrite_through = last;
        }
        self.health = Health::Recovering;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CommitOutcome, SyncPolicy, Unavailable, testing::Fixture};
    use super::*;

    const F0: SyncPolicy = SyncPolicy::EACH_CHANGE;

    /// What the disk has after a failed write is unknown; acknowledging more would promise too
    /// much.
    #[test]
    fn after_a_failed_write_nothing_is_permitted_until_all_jobs_are_in_new_segments() {
        let mut binlog = Fixture::new(F0);
        let first = binlog.put(100);
        binlog.settle();
        binlog.disk.state().failing = Some("write");
        binlog.put(100);
        assert_eq!(binlog.commit(), CommitOutcome::Failed);
        assert_eq!(binlog.try_put(10), Err(Unavailable::Failed));
        assert!(binlog.wal.permit_update(binlog.now).is_err());
        assert!(binlog.wal.permit_deferrable_update().is_err());
        assert!(binlog.wal.permit_delete(binlog.now).is_err());
        assert_eq!(binlog.commit(), CommitOutcome::Done, "nothing is tried before its time");
        binlog.disk.state().failing = None;
        binlog.wait(RETRY_DELAY);
        let mut outcomes = Vec::new();
        while !binlog.wal.is_sound() && outcomes.len() < 100 {
            outcomes.push(binlog.commit());
        }
        assert_eq!(outcomes.last(), Some(&CommitOutcome::Recovered));
        assert!(binlog.wal.segment_of(first) > 1);
        binlog.put(10);
        binlog.settle();
        assert_eq!(binlog.ids_after_restart(), [1, 2, 3]);
    }

    /// The file would be taken for one of another origin, and stay until the next start.
    #[test]
    fn a_segment_whose_directory_could_not_be_synced_is_removed_later() {
        let mut binlog = Fixture::new(F0);
        binlog.put(100);
        binlog.settle();
        for failing in ["write", "sync directory", "sync directory"] {
            binlog.disk.state().failing = Some(failing);
            if binlog.wal.is_sound() {
                binlog.put(100);
            }
            assert_ne!(binlog.commit(), CommitOutcome::Recovered);
            binlog.wait(RETRY_DELAY_MAX);
        }
        binlog.disk.state().failing = None;
        binlog.settle();
        assert!(binlog.wal.is_sound());
        let names = binlog.disk.names();
        let segments = names.iter().filter(|name| name.starts_with("binlog.")).count();
        assert_eq!(segments, 1, "{names:?}");
        assert_eq!(binlog.ids_after_restart(), [1, 2]);
    }

    #[test]
    fn a_disk_that_fails_again_while_recovering_is_tried_less_and_less_often() {
        let mut binlog = Fixture::new(F0);
        binlog.put(100);
        binlog.settle();
        binlog.disk.state().failing = Some("sync binlog");
        binlog.put(100);
        let mut delays = Vec::new();
        for _ in 0..10 {
            while binlog.commit() != CommitOutcome::Failed {}
            let retry_at = binlog.wal.next_deadline().expect("it is tried again");
            delays.push(binlog.now.until(retry_at).as_secs());
            binlog.now = retry_at;
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }
}
