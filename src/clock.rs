//! Instants and dates. Only this file reads the clocks, except that log lines read the wall clock.
//!
//! A function of the server or the queue gets the present time as an argument, so tests need not
//! sleep. If the wall clock is set, only jobs that were read from a binlog get other times.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

use crate::sys;

/// An instant: nanoseconds since an origin 290 years before the boot of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The earliest instant, for a deadline that is always due.
    pub const AT_ONCE: Self = Self(0);

    /// The instant `nanoseconds` after the origin.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// The nanoseconds from the origin to this instant.
    pub const fn as_nanoseconds(self) -> u64 {
        self.0
    }

    /// The instant one nanosecond after `self`.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The time from `self` to `later`; zero if `later` is before `self`.
    pub const fn until(self, later: Self) -> Duration {
        Duration::from_nanos(self.nanoseconds_until(later))
    }

    /// The nanoseconds from `self` to `later`; zero if `later` is before `self`.
    pub const fn nanoseconds_until(self, later: Self) -> u64 {
        later.0.saturating_sub(self.0)
    }

    /// Whole seconds from `self` to `later`, rounded down; zero if `later` is before `self`.
    pub const fn seconds_until(self, later: Self) -> u64 {
        self.until(later).as_secs()
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    /// Adds a duration; the sum is at most the last instant, 584 years after the origin.
    fn add(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    /// Subtracts a duration; the result is never before the origin.
    fn sub(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanoseconds))
    }
}

/// Converts between instants and dates of the wall clock, for the binlog.
#[derive(Debug, Clone, Copy)]
pub struct Calendar {
    /// The date of the origin in nanoseconds since 1970, normally a negative number.
    offset: i128,
}

impl Calendar {
    /// Makes the calendar that converts the instant `now` to this date, in nanoseconds since 1970.
    pub fn new(now: Time, nanoseconds: i64) -> Self {
        Self { offset: i128::from(nanoseconds) - i128::from(now.0) }
    }

    /// Whether two calendars have offsets that differ by a second or more, which shows that the
    /// wall clock was set. A smaller difference can arise because the monotonic clock and the wall
    /// clock are not read at the same instant. If the difference is smaller, the caller keeps its
    /// calendar, so that dates do not go backwards.
    pub fn is_set_otherwise(self, other: Self) -> bool {
        self.offset.abs_diff(other.offset) >= 1_000_000_000
    }

    /// The date of an instant, in nanoseconds since 1970, or the nearest date that fits an `i64`.
    pub fn date(self, at: Time) -> i64 {
        let date = i128::from(at.0) + self.offset;
        i64::try_from(date).unwrap_or(if date < 0 { i64::MIN } else { i64::MAX })
    }

    /// The instant of `date`, in nanoseconds since 1970, or the nearest instant that fits a `u64`.
    pub fn instant(self, date: i64) -> Time {
        let at = i128::from(date) - self.offset;
        Time(u64::try_from(at).unwrap_or(if at < 0 { 0 } else { u64::MAX }))
    }
}

/// The time from the origin to the boot of the machine: half of the range of [`Time`]. A job from
/// the binlog may have been put before the boot. If the wall clock was wrong, dates of jobs may be
/// centuries in the past or the future.
const ORIGIN_BEFORE_START: Duration = Duration::from_secs(290 * 365 * 24 * 60 * 60);

/// Reads the present time from the monotonic clock. This clock also runs while the machine is
/// suspended, if the system supports that.
pub fn now() -> Time {
    Time(sys::monotonic_nanoseconds()) + ORIGIN_BEFORE_START
}

/// Reads the wall clock, and returns a calendar that converts `now` to the date on that clock.
pub fn calendar(now: Time) -> Calendar {
    Calendar::new(now, i64::try_from(sys::wall_nanoseconds()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_round_down_and_never_go_below_zero() {
        let (early, late) = (Time(1_500_000_000), Time(4_499_999_999));
        assert_eq!(early.seconds_until(late), 2);
        assert_eq!(late.seconds_until(early), 0);
    }

    #[test]
    fn the_far_end_of_time_saturates() {
        assert_eq!(Time(5) + Duration::MAX, Time(u64::MAX));
        assert_eq!(Time(5) - Duration::from_secs(1), Time(0));
    }

    #[test]
    fn dates_and_instants_saturate_at_both_ends() {
        let calendar = Calendar::new(Time(1_000), 5_000);
        assert_eq!((calendar.date(Time(1_001)), calendar.instant(5_001)), (5_001, Time(1_001)));
        assert_eq!((calendar.instant(-1), calendar.instant(i64::MIN)), (Time(0), Time(0)));
        assert_eq!(calendar.date(Time(u64::MAX)), i64::MAX);
        let late = Calendar::new(Time(u64::MAX), 0);
        assert_eq!((late.date(Time(0)), late.instant(i64::MAX)), (i64::MIN, Time(u64::MAX)));
    }

    #[test]
    fn only_a_clock_that_was_set_is_another_calendar() {
        let calendar = Calendar::new(Time(1_000), 5_000_000_000);
        for (date, expected) in
            [(5_000_000_000, false), (4_000_000_001, false), (6_000_000_000, true)]
        {
            assert_eq!(calendar.is_set_otherwise(Calendar::new(Time(1_000), date)), expected);
            assert_eq!(Calendar::new(Time(1_000), date).is_set_otherwise(calendar), expected);
        }
    }

    #[test]
    fn a_job_may_be_older_than_the_machines_start() {
        let now = now();
        let calendar = calendar(now);
        let a_year_ago = calendar.date(now) - 31_536_000_000_000_000;
        assert_eq!(calendar.instant(a_year_ago).seconds_until(now), 31_536_000);
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let first = now();
        assert!(now() >= first);
    }
}
