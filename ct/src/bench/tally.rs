//! The counters of a run.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency that is recorded, in nanoseconds.
pub(super) const LATENCY_MAX_NS: u64 = 120_000_000_000;

/// The counters of a run.
pub struct Tally {
    /// The number of replies.
    pub commands: u64,
    /// The number of completed cycles; a cycle that sends each of its commands n times in a batch
    /// counts n times.
    pub cycles: u64,
    /// Time from the first command to the last reply.
    pub wall: Duration,
    /// Latency of each reply, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Time from the planned `put` of a stamped job to its `RESERVED` reply, in nanoseconds.
    pub sojourn: Histogram<u64>,
}

impl fmt::Debug for Tally {
    /// Shows the counters of a run without the latencies.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commands, cycles, wall, .. } = self;
        write!(out, "Tally {{ {commands} commands, {cycles} cycles, {wall:?} }}")
    }
}

impl Tally {
    /// Makes the counters of a run, all zero.
    pub(super) fn new() -> Self {
        let histogram =
            || Histogram::new_with_max(LATENCY_MAX_NS, 3).expect("three digits are valid");
        let (latency, sojourn) = (histogram(), histogram());
        Self { commands: 0, cycles: 0, wall: Duration::ZERO, latency, sojourn }
    }
}

/// Converts a time of a run to nanoseconds.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a run is shorter than 500 years")
}
