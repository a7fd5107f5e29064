//! Time: monotonic nanoseconds, and the only place that asks the operating system for them.
//!
//! Every call of the core that needs the present gets it as an argument, so tests jump instead of
//! sleeping. No deadline moves when somebody sets the wall clock.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

use crate::sys;

/// An instant: nanoseconds since an origin that only this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The instant `nanoseconds` after the origin.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanoseconds(self) -> u64 {
        self.0
    }

    /// The next instant there is.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// How long it is from `self` to `later`; zero where `later` has passed.
    pub const fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    /// Whole seconds from `self` to `later`, rounded towards zero; zero where `later` has passed.
    pub const fn seconds_until(self, later: Self) -> u64 {
        self.until(later).as_secs()
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    /// Saturates: what lies beyond 584 years never comes.
    fn add(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    /// Saturates at the origin.
    fn sub(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanoseconds))
    }
}

/// Reads the operating system's monotonic clock; one reading per turn of the event loop.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock;

impl Clock {
    /// The present. It counts the time the machine was suspended, where the system offers that.
    pub fn now(self) -> Time {
        Time(sys::monotonic_nanoseconds())
    }
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
    fn the_clock_does_not_go_back() {
        let first = Clock.now();
        assert!(Clock.now() >= first);
    }
}
