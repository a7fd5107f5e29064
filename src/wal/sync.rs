//! Syncs what is written, when the [`SyncPolicy`] says so.

use std::{io, mem, time::Duration};

use log::debug;

use super::{Health, Name, SyncPolicy, Wal, no_segment};
use crate::{clock::Time, collections::ShortTimes, queue::Queue};

/// How often the daemon looks whether a sync that is under way has ended.
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How much of what has been written to the current segment outlasts a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncState {
    /// All of it.
    Clean,
    /// The oldest write that no sync covers was made at `since`.
    Dirty { since: Time },
    /// A sync of the first `covers` bytes of the binlog is under way, and its result is looked for
    /// at `poll_at`. The first write after it began was made at `dirty_since`, if there was one.
    InFlight { covers: u64, poll_at: Time, dirty_since: Option<Time> },
}

impl SyncState {
    /// Notes a write at `now`.
    fn mark_dirty(&mut self, now: Time) {
        match self {
            Self::Clean => *self = Self::Dirty { since: now },
            Self::Dirty { .. } => {}
            Self::InFlight { dirty_since, .. } => {
                dirty_since.get_or_insert(now);
            }
        }
    }

    /// Notes that what was written needs no sync any more. A sync that is under way goes on.
    pub(super) fn forget_writes(&mut self) {
        match self {
            Self::Clean => {}
            Self::Dirty { .. } => *self = Self::Clean,
            Self::InFlight { dirty_since, .. } => *dirty_since = None,
        }
    }

    /// Notes that the sync that was under way has ended.
    fn end_flight(&mut self) {
        if let Self::InFlight { dirty_since, .. } = *self {
            *self = dirty_since.map_or(Self::Clean, |since| Self::Dirty { since });
        }
    }
}

/// What syncs in the background have done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SyncEvents {
    pub(super) has_ended: bool,
    pub(super) has_begun: bool,
}

/// From this average on, syncs with `-f0` run in the background. Below, the hand-over to a thread
/// and back would cost more than it gains.
const BACKGROUND_FROM: Duration = Duration::from_micros(1500);

/// Below this average they run in the queue's thread again.
const FOREGROUND_BELOW: Duration = Duration::from_micros(750);

/// The longest wait for more changes before a sync in the queue's thread. A worker that is given a
/// job within it can delete it within it.
const FOREGROUND_WAIT_MAX: Duration = Duration::from_micros(200);

/// The longest wait for the next change. A client on the same machine that was just answered sends
/// one sooner.
const FOREGROUND_GAP_MAX: Duration = Duration::from_micros(60);

/// The longest wait before a sync in the background.
const BACKGROUND_WAIT_MAX: Duration = Duration::from_millis(1);

/// How long a sync may wait for more changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatheringTime {
    /// In all.
    pub longest: Duration,
    /// For the next one.
    pub gap: Duration,
}

/// How long syncs take, and where they run with `-f0`.
#[derive(Debug, Default)]
pub(super) struct SyncTime {
    /// A moving average over about eight syncs.
    average: Duration,
    is_long: bool,
    all: ShortTimes,
}

impl SyncTime {
    /// Notes that a sync took `time`.
    fn add(&mut self, time: Duration) {
        self.all.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let is_first = self.average.is_zero();
        self.average = if is_first { time } else { (7 * self.average + time) / 8 };
        if self.average >= BACKGROUND_FROM {
            self.is_long = true;
        } else if self.average < FOREGROUND_BELOW {
            self.is_long = false;
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> &ShortTimes {
        &self.all
    }
}

/// With `-f0`.
impl Wal {
    /// Whether syncs with `-f0` run in the background.
    pub fn syncs_in_background(&self) -> bool {
        self.sync_time.is_long && self.health == Health::Sound
    }

    /// Whether a commit syncs in the queue's thread.
    pub fn syncs_in_foreground(&self) -> bool {
        self.sync == SyncPolicy::EACH_CHANGE && !self.syncs_in_background()
    }

    /// Whether a client may see the id of a job whose record is not synced: a restart after a power
    /// cut would not give that id to another job. Always, unless more puts have been given up than
    /// the segment has room for.
    pub fn may_show(&self, id: u64) -> bool {
        self.sync != SyncPolicy::EACH_CHANGE
            || self.current.is_none_or(|current| id < current.seen_below)
    }

    /// How long the next sync may wait for more changes. `None` if none is to come, or not with
    /// `-f0`, or if one is under way: what comes meanwhile joins the next one anyway.
    pub fn gathering_time(&self) -> Option<GatheringTime> {
        let is_idle = !matches!(self.sync_state, SyncState::InFlight { .. });
        if self.sync != SyncPolicy::EACH_CHANGE || !is_idle {
            return None;
        }
        Some(if self.syncs_in_background() {
            let longest = (self.sync_time.average / 4).min(BACKGROUND_WAIT_MAX);
            GatheringTime { longest, gap: longest }
        } else {
            let longest = self.sync_time.average.min(FOREGROUND_WAIT_MAX);
            GatheringTime { longest, gap: FOREGROUND_GAP_MAX }
        })
    }

    /// Has `wake` called from another thread when a sync in the background has ended.
    pub fn on_sync_end(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.disk.on_sync_end(wake);
    }
}

impl Wal {
    /// Syncs what has been written, unless the policy is never to sync: for the daemon's end.
    pub fn end(&mut self, queue: &Queue, now: Time) -> io::Result<()> {
        if self.lost_lock.is_some() {
            return Ok(());
        }
        self.end_sync()?;
        let is_written = self.health == Health::Sound && self.write_last_header(queue);
        if is_written && self.sync != SyncPolicy::Never {
            self.sync_state.mark_dirty(now);
        }
        let state = mem::replace(&mut self.sync_state, SyncState::Clean);
        if let (Some(current), SyncState::Dirty { .. }) = (self.current, state) {
            self.disk.sync(Name::Segment(current.number))?;
        }
        if let Err(error) = self.disk.end() {
            debug!("cannot note the end of this daemon in the directory: {error}");
        }
        Ok(())
    }

    /// Returns when a sync is to begin, or when to look for the result of one.
    pub(super) fn next_sync(&self) -> Option<Time> {
        match (self.sync_state, self.sync) {
            (SyncState::InFlight { poll_at, .. }, _) => Some(poll_at),
            (SyncState::Dirty { since }, SyncPolicy::Within(delay)) => {
                Some((since + delay).max(self.sync_waits_until.unwrap_or_default()))
            }
            (SyncState::Clean | SyncState::Dirty { .. }, _) => None,
        }
    }

    /// Waits for the sync that is under way, if one is.
    pub(super) fn end_sync(&mut self) -> io::Result<()> {
        if let SyncState::InFlight { covers, .. } = self.sync_state {
            self.sync_state.end_flight();
            self.disk.end_sync()?;
            self.note_synced(covers);
        }
        Ok(())
    }

    /// Notes the result of the sync that is under way, if it has ended.
    fn poll_sync(&mut self, now: Time) -> io::Result<()> {
        let SyncState::InFlight { covers, poll_at, .. } = &mut self.sync_state else {
            return Ok(());
        };
        let Some(result) = self.disk.sync_result() else {
            *poll_at = now + SYNC_POLL_INTERVAL;
            return Ok(());
        };
        let covers = *covers;
        self.sync_state.end_flight();
        result?;
        self.note_synced(covers);
        Ok(())
    }

    /// Notes that a sync in the background has ended well, which covered `covers` bytes.
    fn note_synced(&mut self, covers: u64) {
        self.synced = self.synced.max(covers);
        self.sync_time.add(self.disk.last_sync_time());
        self.sync_events.has_ended = true;
    }

    fn begin_sync(&mut self, name: Name, covers: u64, now: Time) -> io::Result<()> {
        self.disk.begin_sync(name)?;
        let poll_at = now + SYNC_POLL_INTERVAL;
        self.sync_state = SyncState::InFlight { covers, poll_at, dirty_since: None };
        self.sync_events.has_begun = true;
        Ok(())
    }

    /// Writes the pending records, and syncs them or begins to, if it is time.
    pub(super) fn write_and_sync(&mut self, now: Time) -> io::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.write()?;
        if mem::take(&mut self.is_written) {
            self.sync_state.mark_dirty(now);
        }
        self.poll_sync(now)?;
        let SyncState::Dirty { since } = self.sync_state else { return Ok(()) };
        let name = Name::Segment(self.current.ok_or_else(no_segment)?.number);
        let covers = self.segment_index.length();
        match self.sync {
            SyncPolicy::EACH_CHANGE if self.syncs_in_background() => {
                // After a sync the next one waits a turn: the clients just answered may join it.
                let may_begin = self.sync_waits_until.is_none_or(|until| until <= now);
                if may_begin && !self.sync_events.has_ended {
                    self.begin_sync(name, covers, now)?;
                }
                return Ok(());
            }
            SyncPolicy::EACH_CHANGE => {
                self.disk.sync(name)?;
                self.sync_time.add(self.disk.last_sync_time());
            }
            SyncPolicy::Never => {}
            SyncPolicy::Within(delay) => {
                if since + delay <= now || (self.is_oldest_unneeded() && !self.can_drop_oldest()) {
                    self.begin_sync(name, covers, now)?;
                }
                return Ok(());
            }
        }
        self.sync_state = SyncState::Clean;
        self.synced = covers;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CommitOutcome, testing::Fixture};
    use super::*;

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
            assert_eq!(binlog.wal.sync_state, SyncState::Clean);
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
        assert_eq!(binlog.wal.sync_state, SyncState::Dirty { since });
        binlog.wait(DELAY / 2);
        binlog.put(10);
        binlog.settle();
        assert_eq!(binlog.wal.next_sync(), Some(since + DELAY), "the second write waits no longer");
        syncs(&binlog);
        binlog.wait(DELAY / 2);
        binlog.turn();
        assert_eq!(syncs(&binlog), 1);
        assert!(matches!(binlog.wal.sync_state, SyncState::InFlight { .. }));
    }

    /// What is written while a sync is under way may not be covered by it.
    #[test]
    fn a_write_during_a_sync_needs_another() {
        let mut binlog = Fixture::new(SyncPolicy::Within(DELAY));
        binlog.put(10);
        binlog.settle();
        binlog.wait(DELAY);
        binlog.turn();
        let before = binlog.wal.synced;
        let since = binlog.now;
        binlog.put(10);
        binlog.turn();
        let SyncState::InFlight { covers, dirty_since, .. } = binlog.wal.sync_state else {
            panic!("the sync is under way");
        };
        assert_eq!(dirty_since, Some(since));
        assert!(covers < binlog.wal.segment_index.length());
        binlog.disk.state().ends_syncs = true;
        binlog.wait(SYNC_POLL_INTERVAL);
        binlog.turn();
        assert_eq!(binlog.wal.sync_state, SyncState::Dirty { since });
        assert_eq!(binlog.wal.synced, covers);
        assert!(binlog.wal.synced > before);
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

    /// On a disk with syncs of milliseconds, all clients would wait for each of them.
    #[test]
    fn with_f0_long_syncs_run_in_the_background() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.disk.state().sync_time = Duration::from_millis(5);
        binlog.put(10);
        assert_eq!(binlog.commit(), CommitOutcome::Done, "it is not known yet");
        assert!(binlog.wal.syncs_in_background());
        binlog.put(10);
        let begun = CommitOutcome::Syncing { has_ended: false, has_begun: true };
        assert_eq!(binlog.commit(), begun);
        binlog.put(10);
        let neither = CommitOutcome::Syncing { has_ended: false, has_begun: false };
        assert_eq!(binlog.commit(), neither, "one sync at a time");
        binlog.disk.state().ends_syncs = true;
        let ended = CommitOutcome::Syncing { has_ended: true, has_begun: false };
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

    /// The server would take replies for covered by a sync that has not begun.
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
        assert!(!binlog.wal.sync_events.has_begun && !binlog.wal.sync_events.has_ended);
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
        let neither = CommitOutcome::Syncing { has_ended: false, has_begun: false };
        assert_eq!(outcome, neither);
        assert_eq!(binlog.wal.next_sync(), Some(until));
        binlog.now = until;
        let outcome = binlog.wal.commit(jobs, Some(until), binlog.now);
        assert_eq!(outcome, CommitOutcome::Syncing { has_ended: false, has_begun: true });
    }

    #[test]
    fn without_syncs_none_is_asked_for() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        for size in [10, 5000, 10] {
            binlog.put(size);
            binlog.settle();
        }
        binlog.wal.end(&binlog.restored.queue, binlog.now).expect("nothing is to do");
        assert_eq!(syncs(&binlog), 0);
    }

    #[test]
    fn the_end_of_the_daemon_syncs_what_is_dirty() {
        let mut binlog = Fixture::new(SyncPolicy::Within(DELAY));
        binlog.put(10);
        binlog.settle();
        syncs(&binlog);
        binlog.wal.end(&binlog.restored.queue, binlog.now).expect("the disk works");
        assert_eq!(syncs(&binlog), 1);
        binlog.wal.end(&binlog.restored.queue, binlog.now).expect("the disk works");
        assert_eq!(syncs(&binlog), 0, "nothing is dirty any more");
    }
}
