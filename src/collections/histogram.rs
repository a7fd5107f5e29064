//! A histogram of durations: how many were at most as long as each of a few fixed bounds.

use std::time::Duration;

/// For what takes microseconds to seconds.
pub type ShortTimes = Histogram<{ SHORT_BOUNDS.len() }>;

/// For what takes milliseconds to hours.
pub type LongTimes = Histogram<{ LONG_BOUNDS.len() }>;

const SHORT_BOUNDS: [Duration; 9] = [
    Duration::from_micros(20),
    Duration::from_micros(100),
    Duration::from_micros(500),
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

const LONG_BOUNDS: [Duration; 11] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_millis(2500),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(1800),
    Duration::from_secs(7200),
];

/// Counts of durations by their length. Its memory is fixed.
#[derive(Debug, Clone)]
pub struct Histogram<const BOUNDS: usize> {
    /// Upper bounds, in rising order. A bound belongs to its bucket.
    bounds: &'static [Duration; BOUNDS],
    /// One count per bound; longer durations are only in `count`.
    buckets: [u64; BOUNDS],
    count: u64,
    nanoseconds: u64,
}

impl Default for ShortTimes {
    fn default() -> Self {
        Self::new(&SHORT_BOUNDS)
    }
}

impl Default for LongTimes {
    fn default() -> Self {
        Self::new(&LONG_BOUNDS)
    }
}

impl<const BOUNDS: usize> Histogram<BOUNDS> {
    /// An empty histogram with these upper bounds, which must rise.
    const fn new(bounds: &'static [Duration; BOUNDS]) -> Self {
        Self { bounds, buckets: [0; BOUNDS], count: 0, nanoseconds: 0 }
    }

    /// Counts one duration. O(bounds).
    pub fn add(&mut self, duration: Duration) {
        self.count += 1;
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds = self.nanoseconds.saturating_add(nanoseconds);
        if let Some(bucket) = self.bounds.iter().position(|&bound| duration <= bound) {
            self.buckets[bucket] += 1;
        }
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum; it saturates after 584 years.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }

    /// Each bound, with how many durations were at most as long.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.bounds.iter().copied().zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(10)];

    #[test]
    fn a_bound_belongs_to_its_bucket_and_what_is_longer_is_only_counted() {
        let mut histogram = Histogram::new(&BOUNDS);
        let lengths = [0, 1_000_000, 1_000_001, 10_000_000_000, 10_000_000_001];
        for nanoseconds in lengths {
            histogram.add(Duration::from_nanos(nanoseconds));
        }
        let found: Vec<_> = histogram.cumulative().collect();
        assert_eq!(found, [(BOUNDS[0], 2), (BOUNDS[1], 4)]);
        assert_eq!(histogram.count(), 5);
        assert_eq!(histogram.sum(), Duration::from_nanos(lengths.iter().sum()));
    }

    #[test]
    fn the_sum_saturates() {
        let mut histogram = Histogram::new(&BOUNDS);
        histogram.add(Duration::MAX);
        histogram.add(Duration::from_secs(1));
        assert_eq!((histogram.count(), histogram.sum()), (2, Duration::from_nanos(u64::MAX)));
    }
}
