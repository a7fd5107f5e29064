//! Busy polling: decides whether the event loop polls for some microseconds before it sleeps.
//!
//! If a client waits for each reply before it sends the next command, the loop spends more time on
//! going to sleep and waking up than on all other work. If the next event comes within
//! microseconds, polling is faster than sleeping. Whether polling takes more CPU time than sleeping
//! depends on the machine and the clients. So while events follow each other quickly, the loop
//! makes a *trial* now and then: it measures the CPU time per event, first with sleeping, then with
//! polling. If polling takes no more CPU time than sleeping, the loop polls until several polls
//! find nothing or the next trial begins. A daemon with little to do never polls.
//!
//! The decision does not depend on the number of processors. A client on this thread's processor
//! runs only while the thread sleeps, so polls find nothing, and the trial fails. A daemon that is
//! pinned to one processor can poll if its clients run on other processors. Polling uses up a CPU
//! quota no faster than sleeping, because the loop polls only while polling takes no more CPU time
//! than going to sleep and waking up.

use std::time::Duration;

/// The number of waits in each half of a trial.
const WAITS_PER_TRIAL: u32 = 32;

/// The number of short waits before the first trial.
const REST_MIN_WAITS: u32 = 64;

/// Each failed trial doubles the number of short waits before the next trial, up to this number.
const REST_MAX_WAITS: u32 = 16 * 1024;

/// After this many waits in [`Phase::Polling`], another trial compares polling with sleeping.
const WAITS_BETWEEN_TRIALS: u32 = 8 * 1024;

/// How much a poll without an event adds to the score `misses` of [`Phase::Polling`]. A poll that
/// finds an event subtracts 1 from that score.
const MISS: u32 = 16;

/// If the score `misses` of [`Phase::Polling`] is above this limit, the loop stops polling at once.
const MISSES_MAX: u32 = 4 * MISS;

/// Waits are short if their average is below this multiple of the time limit of a poll. Sleeping
/// makes a wait longer: if loop and client sleep, a wait that polling would end within its time
/// limit can take three times that limit.
const SHORT_WAIT_FACTOR: u32 = 3;

/// How a wait ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    /// How long the wait took.
    pub(super) time: Duration,
    /// How many events ended the wait.
    pub(super) events: usize,
    /// Whether the loop slept. If the loop polled before it slept, the poll found no event.
    pub(super) has_slept: bool,
}

/// Decides before each wait whether to poll first.
#[derive(Debug)]
pub(super) struct BusyPoll {
    /// The time limit of a poll; zero if the loop never polls.
    limit: Duration,
    phase: Phase,
    /// The number of short waits in the next [`Phase::Rest`].
    rest: u32,
    /// The moving average of the lengths of about the last eight waits.
    average_wait: Duration,
}

#[derive(Debug)]
enum Phase {
    /// The loop sleeps without polling, until `left` more short waits have ended.
    Rest { left: u32 },
    /// Compares sleeping with polling.
    Try(HalfTrial),
    /// The loop polls before each sleep, because the last trial favoured polling.
    Polling { left: u32, misses: u32 },
}

#[derive(Debug)]
struct HalfTrial {
    left: u32,
    events: u32,
    /// The thread's CPU time at the beginning of this half of the trial.
    cpu_before: Duration,
    /// The CPU time per event in the first half of the trial, in which the loop sleeps; `None`
    /// while the first half runs.
    with_sleep: Option<Duration>,
}

impl HalfTrial {
    /// Begins one half of a trial.
    fn new(cpu_before: Duration, with_sleep: Option<Duration>) -> Self {
        Self { left: WAITS_PER_TRIAL, events: 0, cpu_before, with_sleep }
    }
}

impl BusyPoll {
    /// Begins with a phase in which the loop only sleeps. A later poll takes at most `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        let phase = Phase::Rest { left: REST_MIN_WAITS };
        Self { limit, phase, rest: REST_MIN_WAITS, average_wait: limit * SHORT_WAIT_FACTOR }
    }

    /// Returns how long to poll before the next sleep; zero if the loop is not to poll.
    pub(super) fn time_before_sleep(&self) -> Duration {
        match self.phase {
            Phase::Rest { .. } | Phase::Try(HalfTrial { with_sleep: None, .. }) => Duration::ZERO,
            Phase::Try(_) | Phase::Polling { .. } => self.limit,
        }
    }

    /// Records a wait that has ended, which may change the phase of busy polling. `cpu_now` reads
    /// the CPU time.
    pub(super) fn add(&mut self, wait: Wait, cpu_now: impl FnOnce() -> Duration) {
        self.average_wait = (self.average_wait * 7 + wait.time) / 8;
        match &mut self.phase {
            Phase::Rest { left } => {
                let is_short = self.average_wait < self.limit * SHORT_WAIT_FACTOR;
                *left -= u32::from(is_short);
                if *left == 0 {
                    self.phase = Phase::Try(HalfTrial::new(cpu_now(), None));
                }
            }
            Phase::Try(half) => {
                half.left -= 1;
                half.events += u32::try_from(wait.events).unwrap_or(u32::MAX);
                if half.left > 0 {
                    return;
                }
                let cpu = cpu_now();
                let per_event = cpu.saturating_sub(half.cpu_before) / half.events.max(1);
                match half.with_sleep {
                    None => self.phase = Phase::Try(HalfTrial::new(cpu, Some(per_event))),
                    Some(with_sleep) if per_event <= with_sleep => {
                        self.phase = Phase::Polling { left: WAITS_BETWEEN_TRIALS, misses: 0 };
                        self.rest = REST_MIN_WAITS;
                    }
                    Some(_) => self.fail(),
                }
            }
            Phase::Polling { left, misses } => {
                *left -= 1;
                *misses = if wait.has_slept { *misses + MISS } else { misses.saturating_sub(1) };
                if *misses > MISSES_MAX {
                    self.fail();
                } else if *left == 0 {
                    // A trial begins after the next short wait.
                    self.phase = Phase::Rest { left: 1 };
                }
            }
        }
    }

    /// Makes the loop sleep in the next `rest` short waits, and doubles `rest` for later failures.
    fn fail(&mut self) {
        self.phase = Phase::Rest { left: self.rest };
        self.rest = (2 * self.rest).min(REST_MAX_WAITS);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    /// A simulated machine with the daemon and a client. `sleep` is the CPU time of a sleep and the
    /// wake-up after it. If both programs share a processor, the client runs only while the daemon
    /// sleeps.
    struct Machine {
        busy_poll: BusyPoll,
        sleep: Duration,
        cpu: Duration,
        shares_processor: bool,
        polls: u32,
        polls_in_vain: u32,
    }

    impl Machine {
        fn new(sleep_microseconds: u64) -> Self {
            Self {
                busy_poll: BusyPoll::new(LIMIT),
                sleep: Duration::from_micros(sleep_microseconds),
                cpu: Duration::ZERO,
                shares_processor: false,
                polls: 0,
                polls_in_vain: 0,
            }
        }

        /// Waits for commands. `gaps` are the times from a reply to the next command, in
        /// microseconds.
        fn wait(&mut self, gaps: impl IntoIterator<Item = u64>) {
            for gap in gaps.into_iter().map(Duration::from_micros) {
                let polls_for = self.busy_poll.time_before_sleep();
                let has_slept = gap > polls_for || self.shares_processor;
                self.polls += u32::from(!polls_for.is_zero());
                self.polls_in_vain += u32::from(!polls_for.is_zero() && has_slept);
                let spent = if has_slept { polls_for + self.sleep } else { gap };
                self.cpu += Duration::from_micros(10) + spent;
                let polled = if self.shares_processor { polls_for } else { Duration::ZERO };
                let time = if has_slept { polled + gap + self.sleep } else { gap };
                self.busy_poll.add(Wait { time, events: 1, has_slept }, || self.cpu);
            }
        }
    }

    #[test]
    fn it_polls_for_a_lone_client_that_answers_fast() {
        let mut machine = Machine::new(25);
        machine.wait(repeat_n(15, 100_000));
        assert!(machine.polls > 99_000, "{}", machine.polls);
        assert!(machine.cpu < Duration::from_millis(2600));
    }

    #[test]
    fn it_stops_at_once_if_the_client_is_gone_and_begins_soon_if_it_is_back() {
        let mut machine = Machine::new(25);
        machine.wait(repeat_n(15, 1000));
        machine.polls_in_vain = 0;
        machine.wait(repeat_n(1_000_000, 100));
        assert!(machine.polls_in_vain <= 5, "{}", machine.polls_in_vain);
        machine.polls = 0;
        machine.wait(repeat_n(15, 1000));
        assert!(machine.polls > 800, "{}", machine.polls);
    }

    #[test]
    fn it_sleeps_if_a_sleep_takes_less_than_polling() {
        let mut machine = Machine::new(5);
        machine.wait(repeat_n(15, 100_000));
        assert!(machine.polls < 500, "{}", machine.polls);
    }

    #[test]
    fn a_daemon_with_little_to_do_sleeps() {
        let mut machine = Machine::new(25);
        machine.wait(repeat_n(1000, 10_000));
        assert_eq!(machine.polls, 0);
    }

    /// Every third command comes too late for a poll, so polling takes more CPU time than sleeping.
    #[test]
    fn what_costs_more_than_sleeping_is_tried_rarely() {
        let mut machine = Machine::new(25);
        let gaps = [17, 17, 190].iter().copied().cycle().take(100_000);
        let mut sleeping = Machine::new(25);
        sleeping.busy_poll.limit = Duration::ZERO;
        machine.wait(gaps.clone());
        sleeping.wait(gaps);
        let more = machine.cpu.as_secs_f64() / sleeping.cpu.as_secs_f64();
        assert!((1.0..1.005).contains(&more), "{more}");
    }

    #[test]
    fn beside_a_client_on_the_same_processor_it_sleeps_until_that_has_moved() {
        let mut machine = Machine::new(25);
        machine.shares_processor = true;
        machine.wait(repeat_n(15, 100_000));
        assert!(machine.polls < 500, "{}", machine.polls);
        machine.shares_processor = false;
        machine.wait(repeat_n(15, 100_000));
        assert!(machine.polls > 80_000, "{}", machine.polls);
    }

    /// Without further trials, the daemon would go on polling while other processes need the CPU.
    #[test]
    fn what_has_paid_is_tried_again() {
        let mut machine = Machine::new(25);
        machine.wait(repeat_n(15, 10_000));
        machine.shares_processor = true;
        machine.polls = 0;
        machine.wait(repeat_n(15, 20_000));
        assert!(machine.polls < 500, "{}", machine.polls);
    }

    #[test]
    fn without_time_to_poll_it_never_does() {
        let mut machine = Machine::new(25);
        machine.busy_poll = BusyPoll::new(Duration::ZERO);
        machine.wait(repeat_n(15, 10_000));
        assert_eq!(machine.polls, 0);
    }
}
