//! Syncs written records at the times that the [`SyncPolicy`] sets.

use std::{io, time::Duration};

use super::{SyncPolicy, disk::Lease, log::Log, segment::End};
use crate::{clock::Time, collections::ShortTimes};

/// How often the daemon checks whether a sync that is under way has ended.
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The events of background syncs since the last commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncEvents {
    /// A sync has ended: all records that were written before it began survive a power cut.
    pub has_ended: bool,
    /// A sync of all records written so far has begun.
    pub has_begun: bool,
}

/// With `-f0`, syncs run in the background if they take at least this long on average. For shorter
/// syncs, the handover to a thread would take more time than it saves.
const BACKGROUND_FROM: Duration = Duration::from_micros(1500);

/// If syncs take less than this on average, they run in the thread of the event loop again.
const FOREGROUND_BELOW: Duration = Duration::from_micros(750);

/// How long syncs take, and which thread runs them with `-f0`.
#[derive(Debug, Default)]
pub(super) struct SyncTime {
    /// The moving average of the times of about the last eight syncs.
    average: Duration,
    /// Whether syncs take so long that with `-f0` they run in the background.
    pub(super) is_long: bool,
    /// The histogram of how long each sync of records took.
    pub(super) all: ShortTimes,
}

impl SyncTime {
    /// Adds the duration of a sync, `time`, to the average and to the histogram.
    fn add(&mut self, time: Duration) {
        self.all.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let is_first = self.average.is_zero();
        self.average = if is_first { time } else { (7 * self.average + time) / 8 };
        let limit = if self.is_long { FOREGROUND_BELOW } else { BACKGROUND_FROM };
        self.is_long = self.average >= limit;
    }
}

/// Which part of the binlog is synced, and when to sync the rest.
#[derive(Debug)]
pub(super) struct Syncs {
    policy: SyncPolicy,
    /// The time of the oldest write that no sync covers, not even a sync that is under way.
    pub(super) dirty_since: Option<Time>,
    /// How many bytes of the binlog are covered by the sync under way; `None` if there is none.
    in_flight: Option<u64>,
    pub(super) time: SyncTime,
    /// The events that no commit has reported yet.
    pub(super) events: SyncEvents,
    /// With `-f0`, the next background sync waits until this time, because more changes are
    /// expected before then.
    pub(super) wait_until: Option<Time>,
    /// How many bytes of the binlog are synced: see [`End::length`].
    pub(super) synced: u64,
}

impl Syncs {
    /// The state of the syncs after startup, which has synced all `synced` bytes of the binlog.
    pub(super) fn new(policy: SyncPolicy, synced: u64) -> Self {
        Self {
            policy,
            dirty_since: None,
            in_flight: None,
            time: SyncTime::default(),
            events: SyncEvents::default(),
            wait_until: None,
            synced,
        }
    }

    /// Whether records are ever synced: false with `-F`.
    pub(super) fn are_on(&self) -> bool {
        self.policy != SyncPolicy::Never
    }

    /// Whether each change is synced before it is confirmed.
    pub(super) fn are_of_each_change(&self) -> bool {
        self.policy == SyncPolicy::EACH_CHANGE
    }

    /// Whether all writes are synced.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty_since.is_none() && self.in_flight.is_none()
    }

    /// Returns how long syncs take on average. `None` if the next sync should not wait for more
    /// changes: without `-f0`, or during a sync, because more changes join the next sync anyway.
    pub(super) fn time_of_next(&self) -> Option<Duration> {
        let waits = self.are_of_each_change() && self.in_flight.is_none();
        waits.then_some(self.time.average)
    }

    /// Returns when to begin a sync, or when to check whether the sync under way has ended. The
    /// last check has just been made, at `now`.
    pub(super) fn next(&self, now: Time) -> Option<Time> {
        match (self.in_flight, self.dirty_since, self.policy) {
            (Some(_), _, _) => Some(now + SYNC_POLL_INTERVAL),
            (None, Some(since), SyncPolicy::Within(delay)) => {
                Some((since + delay).max(self.wait_until.unwrap_or_default()))
            }
            _ => None,
        }
    }

    /// Marks all records as synced.
    pub(super) fn on_all_synced(&mut self, end: End) {
        (self.dirty_since, self.in_flight) = (None, None);
        self.synced = end.length;
    }

    /// Takes the result of the sync under way if it has ended; if `waits`, first waits for its end.
    pub(super) fn end_flight(&mut self, lease: &mut Lease, waits: bool) -> io::Result<()> {
        let Some(covers) = self.in_flight else { return Ok(()) };
        let Some(result) = lease.sync_result(waits) else { return Ok(()) };
        self.in_flight = None;
        self.time.add(result?);
        self.synced = self.synced.max(covers);
        self.events.has_ended = true;
        Ok(())
    }
}

impl Log {
    /// If a sync is due, syncs all written records, or begins their sync in the background. If
    /// `is_urgent`, a sync is due at once, unless the policy is never to sync.
    pub(super) fn sync_if_due(&mut self, in_background: bool, is_urgent: bool) -> io::Result<()> {
        let Self { syncs, lease, end, now, .. } = self;
        let (Some(since), None) = (syncs.dirty_since, syncs.in_flight) else { return Ok(()) };
        let SyncPolicy::Within(delay) = syncs.policy else {
            syncs.on_all_synced(*end);
            return Ok(());
        };
        if delay.is_zero() && !in_background {
            syncs.time.add(lease.ask_if_due(*now)?.sync(end.name())?);
            syncs.on_all_synced(*end);
            return Ok(());
        }
        // With `-f0`, no background sync begins in the turn in which the previous one has ended. So
        // the next sync also covers changes that clients send after they have got the replies.
        let waits = syncs.wait_until.is_some_and(|until| until > *now)
            || (delay.is_zero() && syncs.events.has_ended);
        if !waits && (is_urgent || since + delay <= *now) {
            lease.ask_if_due(*now)?.begin_sync(end.name())?;
            (syncs.dirty_since, syncs.in_flight) = (None, Some(end.length));
            syncs.events.has_begun = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{CommitOutcome, disk::testing::Fixture};

    const DELAY: Duration = Duration::from_millis(50);

    fn syncs(binlog: &Fixture) -> usize {
        let calls = binlog.disk.take_calls();
        calls.iter().filter(|call| call.contains("sync binlog")).count()
    }

    #[test]
    fn with_f0_each_commit_syncs_what_it_wrote() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.settle();
        syncs(&binlog);
        for _ in 0..3 {
            binlog.put(10);
            assert_eq!(binlog.commit(), CommitOutcome::Done);
            assert_eq!(syncs(&binlog), 1);
            assert!(binlog.wal.log.syncs.is_clean());
        }
        assert_eq!(binlog.commit(), CommitOutcome::Done);
        assert_eq!(syncs(&binlog), 0, "nothing was written");
    }

    #[test]
    fn a_sync_begins_when_the_oldest_write_is_old_enough() {
        let mut binlog = Fixture::new(SyncPolicy::Within(DELAY));
        binlog.settle();
        let since = binlog.now;
        binlog.put(10);
        binlog.settle();
        assert_eq!(binlog.wal.log.syncs.dirty_since, Some(since));
        binlog.wait(DELAY / 2);
        binlog.put(10);
        binlog.settle();
        let next = binlog.wal.log.syncs.next(binlog.now);
        assert_eq!(next, Some(since + DELAY), "the second write waits no longer");
        syncs(&binlog);
        binlog.wait(DELAY / 2);
        binlog.turn();
        assert_eq!(syncs(&binlog), 1);
        assert!(binlog.wal.log.syncs.in_flight.is_some());
    }

    /// If a write during a sync were taken as synced, a power cut could lose that write.
    #[test]
    fn a_write_during_a_sync_needs_another() {
        let mut binlog = Fixture::new(SyncPolicy::Within(DELAY));
        binlog.put(10);
        binlog.settle();
        binlog.wait(DELAY);
        binlog.turn();
        let before = binlog.wal.log.syncs.synced;
        let since = binlog.now;
        binlog.put(10);
        binlog.turn();
        let syncs = &binlog.wal.log.syncs;
        let covers = syncs.in_flight.expect("the sync is under way");
        assert_eq!(syncs.dirty_since, Some(since));
        assert!(covers < binlog.wal.log.end.length);
        binlog.disk.state().ends_syncs = true;
        binlog.wait(SYNC_POLL_INTERVAL);
        binlog.turn();
        let syncs = &binlog.wal.log.syncs;
        assert_eq!((syncs.dirty_since, syncs.in_flight.is_some()), (Some(since), false));
        assert_eq!(syncs.synced, covers);
        assert!(syncs.synced > before);
    }

    #[test]
    fn a_sync_that_fails_in_the_background_fails_the_commit() {
        let mut binlog = Fixture::new(SyncPolicy::Within(DELAY));
        binlog.put(10);
        binlog.settle();
        binlog.wait(DELAY);
        binlog.turn();
        let mut state = binlog.disk.state();
        (state.failing, state.ends_syncs) = (Some("end-sync"), true);
        drop(state);
        assert_eq!(binlog.commit(), CommitOutcome::Failed);
    }

    /// If long syncs ran in the thread of the event loop, all clients would wait for each sync.
    #[test]
    fn with_f0_long_syncs_run_in_the_background() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.disk.state().sync_time = Duration::from_millis(5);
        binlog.put(10);
        assert_eq!(binlog.commit(), CommitOutcome::Done, "it is not known yet");
        assert!(binlog.wal.syncs_in_background());
        binlog.put(10);
        let begun = CommitOutcome::Syncing(SyncEvents { has_ended: false, has_begun: true });
        assert_eq!(binlog.commit(), begun);
        binlog.put(10);
        let neither = CommitOutcome::Syncing(SyncEvents { has_ended: false, has_begun: false });
        assert_eq!(binlog.commit(), neither, "one sync at a time");
        binlog.disk.state().ends_syncs = true;
        let ended = CommitOutcome::Syncing(SyncEvents { has_ended: true, has_begun: false });
        assert_eq!(binlog.commit(), ended, "clients just answered may join the next one");
        assert_eq!(binlog.commit(), begun);
        assert_eq!(binlog.commit(), CommitOutcome::Done);
        binlog.disk.state().sync_time = Duration::from_micros(50);
        for _ in 0..50 {
            binlog.put(10);
            binlog.settle();
        }
        assert!(!binlog.wal.syncs_in_background(), "the disk is fast again");
        binlog.put(10);
        assert_eq!(binlog.commit(), CommitOutcome::Done);
    }

    /// If a sync were reported to have ended after the commit has failed, the server would confirm
    /// changes that no sync covers.
    #[test]
    fn a_commit_that_fails_leaves_no_sync_to_report() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.disk.state().sync_time = Duration::from_millis(5);
        binlog.put(10);
        binlog.settle();
        let jobs: Vec<_> = (0..3).map(|_| binlog.put(1500)).collect();
        binlog.disk.state().ends_syncs = true;
        binlog.settle();
        for job in jobs {
            binlog.delete(job);
        }
        binlog.disk.state().failing = Some("sync directory");
        while binlog.commit() != CommitOutcome::Failed {
            binlog.put(1000);
        }
        assert!(!binlog.wal.log.syncs.events.has_begun && !binlog.wal.log.syncs.events.has_ended);
    }

    #[test]
    fn a_sync_in_the_background_waits_as_long_as_it_is_told() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.disk.state().sync_time = Duration::from_millis(5);
        binlog.put(10);
        binlog.settle();
        binlog.put(10);
        let until = binlog.now + Duration::from_micros(300);
        let jobs = binlog.restored.jobs();
        let outcome = binlog.wal.commit(jobs, Some(until), binlog.now);
        let neither = CommitOutcome::Syncing(SyncEvents { has_ended: false, has_begun: false });
        assert_eq!(outcome, neither);
        assert_eq!(binlog.wal.log.syncs.next(binlog.now), Some(until));
        binlog.now = until;
        let outcome = binlog.wal.commit(jobs, Some(until), binlog.now);
        assert_eq!(
            outcome,
            CommitOutcome::Syncing(SyncEvents { has_ended: false, has_begun: true })
        );
    }

    #[test]
    fn without_syncs_none_is_asked_for() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        for size in [10, 5000, 10] {
            binlog.put(size);
            binlog.settle();
        }
        binlog.wal.shut_down(&binlog.restored.queue).expect("nothing is to do");
        assert_eq!(syncs(&binlog), 0);
    }

    #[test]
    fn the_end_of_the_daemon_syncs_what_is_dirty() {
        let mut binlog = Fixture::new(SyncPolicy::Within(DELAY));
        binlog.put(10);
        binlog.settle();
        syncs(&binlog);
        binlog.wal.shut_down(&binlog.restored.queue).expect("the disk works");
        assert_eq!(syncs(&binlog), 1);
    }
}
