//! Decides whether a commit gathers more changes before its sync, and until when.
//!
//! A client that waits for each reply sends its next change right after the reply. If a sync began
//! before all these changes had arrived, each later sync, too, would cover the changes of only some
//! clients. So before a sync, the commands that have already arrived are carried out, round by
//! round, until a round contains no command that changes a job. The commit can also wait briefly
//! until all connections with replies from the last commit have sent another change. Each further
//! wait in vain increases the number of commits after it that do not wait. This file reads no
//! clock.

use std::time::Duration;

use crate::clock::Time;

/// If the last `MISSES_MAX` waits were in vain, the next `2^MISSES_MAX` commits do not wait.
const MISSES_MAX: u32 = 8;

/// A sync in the server's thread waits at most this long for one more change. A client on the same
/// machine sends its next change within this time after a reply.
const FOREGROUND_GAP_MAX: Duration = Duration::from_micros(60);

/// A sync in the second thread waits at most this long for more changes.
const BACKGROUND_WAIT_MAX: Duration = Duration::from_millis(1);

/// How long a sync with `-f0` may wait for more changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GatheringTime {
    /// The time limit of the wait for all changes together.
    longest: Duration,
    /// The longest wait from one change to the next.
    gap: Duration,
}

impl GatheringTime {
    /// Computes how long the next sync may wait for more changes, if a sync takes `average` on
    /// average.
    pub(super) fn new(average: Duration, in_background: bool) -> Self {
        if in_background {
            let longest = (average / 4).min(BACKGROUND_WAIT_MAX);
            return Self { longest, gap: longest };
        }
        Self { longest: average, gap: FOREGROUND_GAP_MAX }
    }
}

/// What a commit does before it syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeforeSync {
    /// Waits until this time at most for changes that are expected soon.
    WaitUntil(Time),
    /// Carries out the commands that have already arrived, without a wait.
    TakeArrived,
    /// Nothing: the sync begins at once.
    Sync,
}

/// Counts the connections that are expected to send a change before the next sync.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// The number of the last commit that released replies; wraps around after 2^32 commits.
    round: u32,
    /// How many connections got replies from the last commit and have sent no change since then.
    expected: u32,
    /// How many of the next commits do not wait for more changes.
    skip: u32,
    /// The number of waits in vain since the last useful wait; never above [`MISSES_MAX`].
    misses: u32,
    /// The wait before the next commit, if this wait has begun.
    wait: Option<Wait>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    /// The latest time at which the wait ends.
    until: Time,
    /// How many connections were expected to send a change when the wait began; 0 if the commit
    /// does not wait for them.
    expected_at_first: u32,
    /// When the latest change arrived, and how many connections were then still expected to send a
    /// change.
    last_join: (u32, Time),
    /// How many connections had held replies when the commit last executed the commands that had
    /// already arrived.
    held: usize,
}

impl Gathering {
    /// Stops expecting a change from a connection, which got its replies from the commit
    /// `answered_in`.
    pub(super) fn join(&mut self, answered_in: &mut u32) {
        let is_expected = *answered_in == self.round && self.round > 0;
        self.expected = self.expected.saturating_sub(u32::from(is_expected));
        *answered_in = 0;
    }

    /// From now on, expects changes only from connections whose replies this commit releases.
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.expected = 0;
    }

    /// Expects a change from one more connection; returns the number of the last commit.
    pub(super) fn expect(&mut self) -> u32 {
        self.expected += 1;
        self.round
    }

    /// Returns what the next commit should do before it syncs. The caller repeats the call after
    /// each round of commands; `held` is the present number of connections with held replies. Once
    /// [`GatheringTime::longest`] has passed since the first call, the commit syncs at once, so
    /// that clients that never pause do not delay the sync for ever.
    pub(super) fn before_sync(
        &mut self,
        time: GatheringTime,
        held: usize,
        now: Time,
    ) -> BeforeSync {
        let expected = self.expected;
        let wait = self.wait.get_or_insert(Wait {
            until: now + time.longest,
            expected_at_first: if self.skip > 0 { 0 } else { expected },
            last_join: (expected, now),
            held: 0,
        });
        if now >= wait.until {
            return BeforeSync::Sync;
        }
        if wait.last_join.0 != expected {
            wait.last_join = (expected, now);
        }
        let until = wait.until.min(wait.last_join.1 + time.gap);
        if expected > 0 && self.skip == 0 && now < until {
            return BeforeSync::WaitUntil(until);
        }
        let has_more = std::mem::replace(&mut wait.held, held) < held;
        if has_more { BeforeSync::TakeArrived } else { BeforeSync::Sync }
    }

    /// Ends a commit's wait for more changes. If most expected changes did not come, the next
    /// commits do not wait.
    pub(super) fn end(&mut self) {
        self.skip = self.skip.saturating_sub(1);
        let Some(wait) = self.wait.take().filter(|wait| wait.expected_at_first > 0) else { return };
        if 2 * self.expected > wait.expected_at_first {
            self.misses = (self.misses + 1).min(MISSES_MAX);
            self.skip = 1 << self.misses;
        } else {
            self.misses = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BeforeSync::*, *};

    const LONGEST: Duration = Duration::from_micros(200);
    const GAP: Duration = Duration::from_micros(60);
    const TIME: GatheringTime = GatheringTime { longest: LONGEST, gap: GAP };
    const NOW: Time = Time::from_nanoseconds(1_000_000);

    fn answer(gathering: &mut Gathering, count: usize) -> Vec<u32> {
        gathering.begin_round();
        (0..count).map(|_| gathering.expect()).collect()
    }

    #[test]
    fn a_lone_producer_never_waits() {
        let mut gathering = Gathering::default();
        for _ in 0..5 {
            for round in &mut answer(&mut gathering, 1) {
                gathering.join(round);
            }
            assert_eq!(gathering.before_sync(TIME, 1, NOW), TakeArrived);
            gathering.end();
        }
    }

    #[test]
    fn it_waits_until_all_that_were_answered_have_joined() {
        let mut gathering = Gathering::default();
        let mut rounds = answer(&mut gathering, 3);
        gathering.join(&mut 0);
        for round in &mut rounds {
            assert_eq!(gathering.before_sync(TIME, 1, NOW), WaitUntil(NOW + GAP));
            gathering.join(round);
        }
        assert_eq!(gathering.before_sync(TIME, 1, NOW), TakeArrived);
        gathering.join(&mut rounds[0]);
        assert_eq!(gathering.before_sync(TIME, 2, NOW), TakeArrived, "each joins once");
    }

    #[test]
    fn it_waits_for_the_next_one_and_not_for_ever() {
        let mut gathering = Gathering::default();
        let mut rounds = answer(&mut gathering, 10);
        let mut now = NOW;
        for round in &mut rounds[..4] {
            let until = (now + GAP).min(NOW + LONGEST);
            assert_eq!(gathering.before_sync(TIME, 1, now), WaitUntil(until));
            now = now + GAP * 9 / 10;
            gathering.join(round);
        }
        assert_eq!(gathering.before_sync(TIME, 1, now), Sync);
    }

    /// If each commit waited for other commands, even producers that put one job a second would
    /// slow each other down.
    #[test]
    fn it_waits_less_and_less_often_if_none_joins() {
        let mut gathering = Gathering::default();
        let mut waits = 0;
        for _ in 0..1000 {
            answer(&mut gathering, 2);
            waits += u32::from(gathering.before_sync(TIME, 1, NOW) == WaitUntil(NOW + GAP));
            let then = gathering.before_sync(TIME, 1, NOW + GAP);
            assert!(!matches!(then, WaitUntil(_)), "not longer");
            gathering.end();
        }
        assert!(waits < 15, "{waits}");
        let before = waits;
        for _ in 0..1000 {
            for round in &mut answer(&mut gathering, 2)[..1] {
                waits += u32::from(gathering.before_sync(TIME, 1, NOW) == WaitUntil(NOW + GAP));
                gathering.join(round);
            }
            gathering.end();
        }
        assert!(waits > before + 500, "it pays again: {waits}");
    }

    #[test]
    fn rounds_that_have_passed_are_not_expected() {
        let mut gathering = Gathering::default();
        let mut old = answer(&mut gathering, 1);
        let mut new = answer(&mut gathering, 1);
        gathering.join(&mut old[0]);
        assert_eq!(gathering.before_sync(TIME, 1, NOW), WaitUntil(NOW + GAP));
        gathering.join(&mut new[0]);
        assert_eq!(gathering.before_sync(TIME, 1, NOW), TakeArrived);
    }

    /// If a sync waited as long as changes arrive, busy clients could delay it for ever.
    #[test]
    fn changes_that_keep_arriving_do_not_delay_the_sync_for_ever() {
        let mut gathering = Gathering::default();
        for skip in [0, 1] {
            gathering.skip = skip;
            for held in 1..1000 {
                assert_eq!(gathering.before_sync(TIME, held, NOW), TakeArrived);
            }
            assert_eq!(gathering.before_sync(TIME, 1000, NOW + LONGEST), Sync);
            gathering.end();
        }
    }

    /// If commands that change nothing delayed a sync, readers would slow down a lone producer.
    #[test]
    fn a_round_without_a_change_is_the_last() {
        let mut gathering = Gathering::default();
        assert_eq!(gathering.before_sync(TIME, 1, NOW), TakeArrived);
        assert_eq!(gathering.before_sync(TIME, 1, NOW), Sync);
    }
}
