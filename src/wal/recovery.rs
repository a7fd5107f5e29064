//! The state of the binlog: it works, has failed, or recovers by writing all jobs to new segments.

use std::time::Duration;

use super::{index::SegmentIndex, syncs::Syncs};
use crate::clock::Time;

/// The delay before a full or failed disk is tried again.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The longest delay before the next attempt, after repeated failures. Delays double up to this
/// limit, because each attempt leaves a file behind.
pub(super) const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// Whether the binlog works.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    /// The binlog works.
    #[default]
    Sound,
    /// A write or sync has failed. The next attempt to open a segment is due at `retry_at`.
    Failed { retry_at: Time },
    /// The binlog works again, but does not hold every job yet.
    Recovering,
}

/// The state of the binlog, and the times of the next attempts after failures.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) state: State,
    /// The delay between the last failure and the next attempt.
    delay: Duration,
    /// When to try to remove the oldest segment again, if its removal has failed.
    pub(super) removal_retry_at: Option<Time>,
    /// How many bytes of unneeded segments this turn may still remove.
    pub(super) removable: u64,
}

impl Recovery {
    /// Schedules the next attempt to recover. The delay doubles if a recovery has failed.
    pub(super) fn retry_later(&mut self, now: Time) {
        self.delay = match self.state {
            State::Recovering => (2 * self.delay).min(RETRY_DELAY_MAX),
            State::Sound | State::Failed { .. } => RETRY_DELAY,
        };
        self.state = State::Failed { retry_at: now + self.delay };
    }

    /// Whether recovery is complete: all segments up to `rewrite_through` are removed. If the
    /// oldest segment cannot be removed, recovery is complete once no job needs these segments and
    /// all records are synced.
    pub(super) fn is_over(&self, index: &SegmentIndex, syncs: &Syncs) -> bool {
        let is_gone = || index.oldest().is_some_and(|it| it.number > index.rewrite_through);
        let is_relocated = || syncs.is_clean() && index.first_doubtful().is_none();
        let is_blocked = self.removal_retry_at.is_some();
        self.state == State::Recovering && (is_gone() || (is_blocked && is_relocated()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{
        Change, CommitOutcome, Name, SyncPolicy, Unavailable, disk::testing::Fixture,
    };

    const F0: SyncPolicy = SyncPolicy::EACH_CHANGE;

    /// If a change were acknowledged after a failed write, when the contents of the disk are
    /// unknown, the change might not survive a restart.
    #[test]
    fn after_a_failed_write_nothing_is_permitted_until_all_jobs_are_in_new_segments() {
        let mut binlog = Fixture::new(F0);
        let first = binlog.put(100);
        binlog.settle();
        binlog.disk.state().failing = Some("write");
        binlog.put(100);
        assert_eq!(binlog.commit(), CommitOutcome::Failed);
        assert_eq!(binlog.try_put(10), Err(Unavailable::Failed));
        assert!(binlog.wal.permit(Change::Update, binlog.now).is_err());
        assert!(binlog.wal.permit(Change::DeferrableUpdate, binlog.now).is_err());
        assert!(binlog.wal.permit(Change::Delete, binlog.now).is_err());
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

    /// If the daemon forgot a segment after a failed sync of the directory, the file would stay.
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

    /// If a segment that another process made were removed, the next startup would lack its jobs.
    #[test]
    fn a_segment_of_another_origin_is_not_removed_after_a_failure() {
        let mut binlog = Fixture::new(F0);
        binlog.put(2000);
        binlog.settle();
        binlog.disk.state().files.insert(Name::Segment(2), Vec::new());
        binlog.disk.state().failing = Some("rename spare.2 binlog.3");
        binlog.put(2000);
        assert_eq!(binlog.commit(), CommitOutcome::Failed);
        binlog.disk.state().failing = None;
        binlog.wait(RETRY_DELAY);
        while binlog.commit() != CommitOutcome::Recovered {}
        binlog.settle();
        assert_eq!(binlog.disk.names()[..3], ["binlog.2", "binlog.3", "binlog.4"]);
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
