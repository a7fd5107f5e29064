//! Counts, for each of several fixed bounds, how many durations were no longer than the bound.

use std::time::Duration;

/// A histogram for durations of microseconds to seconds.
pub type ShortTimes = Histogram<{ SHORT_BOUNDS.len() }, 1_000>;

/// A histogram for durations of milliseconds to hours.
pub type LongTimes = Histogram<{ LONG_BOUNDS.len() }, 1_000_000>;

/// Upper bounds in microseconds.
const SHORT_BOUNDS: [u64; 9] = [20, 100, 500, 2_000, 10_000, 50_000, 200_000, 1_000_000, 5_000_000];

/// Upper bounds in milliseconds.
const LONG_BOUNDS: [u64; 11] =
    [1, 5, 25, 100, 500, 2_500, 10_000, 60_000, 300_000, 1_800_000, 7_200_000];

/// The number of durations in each range of lengths. A histogram takes a fixed amount of memory.
#[derive(Debug, Clone)]
pub struct Histogram<const BOUNDS: usize, const UNIT: u64> {
    /// Rising upper bounds in units of `UNIT` nanoseconds. Each bucket includes its upper bound.
    bounds: &'static [u64; BOUNDS],
    /// One count for each bound; durations longer than all bounds are counted only in `count`.
    buckets: [u64; BOUNDS],
    count: u64,
    /// The sum of all durations in nanoseconds.
    sum: u64,
}

impl Default for ShortTimes {
    /// An empty histogram of durations of microseconds to seconds.
    fn default() -> Self {
        Self::new(&SHORT_BOUNDS)
    }
}

impl Default for LongTimes {
    /// An empty histogram of durations of milliseconds to hours.
    fn default() -> Self {
        Self::new(&LONG_BOUNDS)
    }
}

impl<const BOUNDS: usize, const UNIT: u64> Histogram<BOUNDS, UNIT> {
    /// An empty histogram with these upper bounds, which must be in rising order.
    const fn new(bounds: &'static [u64; BOUNDS]) -> Self {
        Self { bounds, buckets: [0; BOUNDS], count: 0, sum: 0 }
    }

    /// Adds one duration, in nanoseconds. O(bounds).
    #[inline]
    pub fn add(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(nanoseconds);
        for (bound, bucket) in self.bounds.iter().zip(&mut self.buckets) {
            if nanoseconds <= bound * UNIT {
                *bucket += 1;
                return;
            }
        }
    }

    /// The number of durations added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of the durations added; the sum saturates after 584 years.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns each bound, with the number of durations that were no longer than the bound.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.bounds.iter().map(|&bound| Duration::from_nanos(bound * UNIT)).zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 2] = [1_000, 10_000_000];

    #[test]
    fn a_bound_belongs_to_its_bucket_and_what_is_longer_is_only_counted() {
        let mut histogram = Histogram::<2, 1_000>::new(&BOUNDS);
        let lengths = [0, 1_000_000, 1_000_001, 10_000_000_000, 10_000_000_001];
        for nanoseconds in lengths {
            histogram.add(nanoseconds);
        }
        let found: Vec<_> = histogram.cumulative().collect();
        assert_eq!(found, [(Duration::from_millis(1), 2), (Duration::from_secs(10), 4)]);
        assert_eq!(histogram.count(), 5);
        assert_eq!(histogram.sum(), Duration::from_nanos(lengths.iter().sum()));
    }

    #[test]
    fn the_sum_saturates() {
        let mut histogram = Histogram::<2, 1_000>::new(&BOUNDS);
        histogram.add(u64::MAX);
        histogram.add(1);
        assert_eq!((histogram.count(), histogram.sum()), (2, Duration::from_nanos(u64::MAX)));
    }
}
