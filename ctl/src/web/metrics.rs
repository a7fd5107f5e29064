//! Figures of tubes, from our daemon's command `metrics`: histograms, the wait of the next job, and
//! the number of jobs that `--bury-after` has buried. If a server lacks the command, the figures
//! are unknown, not zero.

use std::collections::{HashMap, HashSet};

use anyhow::Result;

use crate::client::Client;
use crate::yaml;

/// For each upper bound, in rising order, the number of durations up to that bound.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Histogram {
    counts: Vec<(f64, u64)>,
    sum: f64,
}

/// The figures of a tube.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    /// For how many seconds the job that will be reserved next has been ready.
    pub(super) next: Option<f64>,
    /// How long jobs were ready before they were reserved.
    pub(super) wait: Option<Histogram>,
    /// Jobs buried by `--bury-after`.
    pub(super) losses: Option<u64>,
}

impl Figures {
    /// Reads the figures of a tube from the dictionary of `metrics <tube>`.
    pub(super) fn read(text: &str) -> Self {
        let next = yaml::value(text, "next-ready-wait").and_then(|value| value.parse().ok());
        let losses = yaml::value(text, "jobs-buried-for-losses").and_then(|it| it.parse().ok());
        Self { next, wait: Histogram::read(text, "wait-seconds"), losses }
    }

    /// Requests the figures of tubes, if the server reports them.
    pub(super) fn ask(
        client: &mut Client,
        tubes: HashSet<String>,
    ) -> Result<HashMap<String, Self>> {
        let mut figures = HashMap::new();
        if !client.has_extension("metrics")? {
            return Ok(figures);
        }
        let line = |name: &String| format!("metrics {name}");
        client.yaml_of_each(tubes, line, |name, text| {
            figures.insert(name, Self::read(&text));
            Ok(())
        })?;
        Ok(figures)
    }
}

impl Histogram {
    /// Reads a tube's histogram from the keys with this prefix; `None` if no key has the prefix.
    fn read(text: &str, name: &str) -> Option<Self> {
        let mut found = Self::default();
        for (key, value) in yaml::pairs(text) {
            let Some(rest) = key.strip_prefix(name) else { continue };
            if rest == "-sum" {
                found.sum = value.parse().ok()?;
            } else if let Some(bound) = rest.strip_prefix("-le-") {
                found.counts.push((bound.parse().ok()?, value.parse().ok()?));
            }
        }
        (!found.counts.is_empty()).then_some(found)
    }

    /// Returns the number of durations in a tube's histogram.
    fn count(&self) -> u64 {
        self.counts.last().map_or(0, |(_, count)| *count)
    }

    /// Returns the durations counted since `before`; `None` if the tube was deleted and created
    /// again since.
    pub(super) fn since(&self, before: &Self) -> Option<Self> {
        if self.counts.len() != before.counts.len() {
            return None;
        }
        let pairs = self.counts.iter().zip(&before.counts);
        let counts: Option<Vec<_>> =
            pairs.map(|(now, then)| Some((now.0, now.1.checked_sub(then.1)?))).collect();
        Some(Self { counts: counts?, sum: self.sum - before.sum })
    }

    /// Returns the mean of a tube's durations; `None` if there are no durations.
    pub(super) fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| (self.sum / crate::progress::count_as_f64(count)).max(0.0))
    }

    /// Returns an upper bound on this percentile of a tube's durations; the bound may be infinite.
    pub(super) fn percentile(&self, percent: u64) -> Option<f64> {
        let count = self.count();
        let rank = (u128::from(count) * u128::from(percent)).div_ceil(100);
        let found = self.counts.iter().find(|(_, below)| u128::from(*below) >= rank);
        found.filter(|_| count > 0).map(|(bound, _)| *bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "---\nname: \"a\"\nnext-ready-age: 12\nnext-ready-wait: 3.250000000\n\
                        wait-seconds-le-0.001: 0\nwait-seconds-le-0.5: 6\nwait-seconds-le-10: 9\n\
                        wait-seconds-le-inf: 10\nwait-seconds-sum: 15.000000000\n\
                        run-seconds-le-inf: 9\nrun-seconds-sum: 2.0\n";

    #[test]
    fn bounds_are_those_of_the_keys() {
        let times = Figures::read(TEXT);
        assert_eq!(times.next, Some(3.25));
        let wait = times.wait.unwrap();
        assert_eq!((wait.count(), wait.mean()), (10, Some(1.5)));
        assert_eq!((wait.percentile(50), wait.percentile(90)), (Some(0.5), Some(10.0)));
        assert_eq!(wait.percentile(95), Some(f64::INFINITY));
    }

    #[test]
    fn what_is_not_told_is_not_zero() {
        assert_eq!(Figures::read("---\nname: \"a\"\n"), Figures::default());
        assert_eq!(Histogram::default().mean(), None);
        assert_eq!(Histogram::default().percentile(50), None);
    }

    #[test]
    fn only_what_came_since_counts() {
        let now = Figures::read(TEXT).wait.unwrap();
        let mut before = now.clone();
        before.counts = vec![(0.001, 0), (0.5, 6), (10.0, 7), (f64::INFINITY, 7)];
        before.sum = 6.0;
        let since = now.since(&before).unwrap();
        assert_eq!((since.count(), since.mean(), since.percentile(50)), (3, Some(3.0), Some(10.0)));
        assert_eq!(before.since(&now), None, "a tube that was created again counts from 0");
    }
}
