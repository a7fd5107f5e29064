//! The figures of a measurement, the results of each target, and the rows of the table.

use std::collections::BTreeMap;
use std::time::Duration;

use super::measure::{Figures, SATURATED_SHARE};
use super::stats::{Spread, pairwise_ratios};

/// The figures of one measurement by name; times are in microseconds.
pub type Sample = BTreeMap<String, f64>;

/// A row of the table: one phase of a scenario on all targets.
#[derive(Debug, Clone)]
pub struct Row {
    /// The names of scenario and phase.
    pub name: String,
    /// The scenario's description.
    pub about: String,
    /// The variable of the curve, and its value in this row.
    pub curve: Option<(String, f64)>,
    /// The results of the targets, in the order of the command line.
    pub results: Vec<Outcome>,
    /// The first target's results in the base scenario, which has fewer tubes, jobs or workers.
    /// Their label is the name of the base scenario; the label of other results is the name of a
    /// target.
    pub base: Option<Outcome>,
}

impl Row {
    /// Returns the results of the target with this index. The index after the last target is that
    /// of the base scenario.
    pub(super) fn side(&mut self, index: usize) -> Option<&mut Outcome> {
        self.results.get_mut(index).or(self.base.as_mut())
    }
}

/// The results of one target in one row.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The target's label.
    pub label: String,
    /// One sample for each round.
    pub samples: Vec<Sample>,
    /// The error that ended the measurements, if there was one.
    pub error: Option<String>,
}

impl Outcome {
    /// Returns median and range of a figure of a target, if it was measured.
    pub fn spread(&self, figure: &str) -> Option<Spread> {
        let values: Vec<f64> =
            self.samples.iter().filter_map(|sample| sample.get(figure).copied()).collect();
        if values.is_empty() { None } else { Some(Spread::of(&values)) }
    }

    /// Divides this target's figure by another target's figure, in each round; returns median and
    /// range.
    pub fn ratio_to(&self, other: &Self, figure: &str) -> Option<Spread> {
        let pairs = self.samples.iter().zip(&other.samples).filter_map(|(own, others)| {
            Some((others.get(figure).copied()?, own.get(figure).copied()?))
        });
        let ratios = pairwise_ratios(pairs);
        if ratios.is_empty() { None } else { Some(Spread::of(&ratios)) }
    }

    /// Returns which side was saturated, according to the figures: daemon, load, both or none.
    ///
    /// The daemon or load also counts as busy while it waits for a core that other threads use.
    pub fn saturated(&self) -> &'static str {
        let share = |busy: &str, waited: &str| {
            let median = |figure| self.spread(figure).map_or(0.0, |spread| spread.median);
            median(busy) + median(waited) >= SATURATED_SHARE
        };
        match (share("busy", "waited"), share("load_busy", "load_waited")) {
            (true, true) => "both",
            (true, false) => "daemon",
            (false, true) => "load",
            (false, false) => "none",
        }
    }
}

/// Divides one count by another for a figure of a measurement, such as calls per command.
#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
pub(crate) fn ratio(count: u64, divisor: u64) -> f64 {
    count as f64 / divisor.max(1) as f64
}

/// Returns the figures of a measurement by name.
pub fn sample(figures: &Figures) -> Sample {
    let mut sample = named([
        ("rate", figures.rate()),
        ("cpu", figures.daemon_cpu()),
        ("system_share", figures.system_share),
        ("busy", figures.daemon_busy()),
        ("waited", figures.daemon_waited()),
        ("load_cpu", figures.load_cpu()),
        ("load_busy", figures.load_busy()),
        ("load_waited", figures.load_waited()),
    ]);
    let latency = &figures.tally.latency;
    if !latency.is_empty() {
        sample.extend(named([
            ("p50", microseconds(latency.value_at_quantile(0.5))),
            ("p99", microseconds(latency.value_at_quantile(0.99))),
            ("p99.9", microseconds(latency.value_at_quantile(0.999))),
            ("max", microseconds(latency.max())),
        ]));
    }
    let sojourn = &figures.tally.sojourn;
    if !sojourn.is_empty() {
        sample.extend(named([
            ("sojourn_p50", microseconds(sojourn.value_at_quantile(0.5))),
            ("sojourn_p99", microseconds(sojourn.value_at_quantile(0.99))),
        ]));
    }
    sample
}

/// Makes a sample from pairs of a figure's name and its value.
pub(crate) fn named<const N: usize>(figures: [(&str, f64); N]) -> Sample {
    figures.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Converts nanoseconds to microseconds, the unit of the figures for latency.
pub(crate) fn microseconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(figure: &'static str, values: &[f64]) -> Outcome {
        let samples = values.iter().map(|&value| named([(figure, value)])).collect();
        Outcome { label: "x".to_owned(), samples, error: None }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // In the second round the machine was ten times slower, which must not change the ratio.
        let (first, second) = (outcome("rate", &[30.0, 3.0]), outcome("rate", &[10.0, 1.0]));
        let ratio = first.ratio_to(&second, "rate").unwrap();
        assert!((ratio.least - 3.0).abs() < 1e-9 && (ratio.most - 3.0).abs() < 1e-9);
        assert_eq!(first.ratio_to(&second, "cpu"), None);
        assert_eq!(first.spread("cpu"), None);
    }

    #[test]
    fn a_row_says_which_side_was_saturated() {
        let busy = |daemon: f64, waited: f64, load: f64| {
            let sample = named([("busy", daemon), ("waited", waited), ("load_busy", load)]);
            Outcome { samples: vec![sample], ..Outcome::default() }.saturated()
        };
        assert_eq!(busy(0.95, 0.0, 0.5), "daemon");
        assert_eq!(busy(0.70, 0.25, 0.5), "daemon");
        assert_eq!(busy(0.70, 0.0, 0.95), "load");
        assert_eq!(busy(0.90, 0.0, 0.95), "both");
        assert_eq!(busy(0.5, 0.0, 0.5), "none");
    }
}
