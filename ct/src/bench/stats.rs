//! Medians and ranges of a few repeated measurements.

/// Median and range of several measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The smallest value.
    pub least: f64,
    /// The middle value, or the mean of the two middle values.
    pub median: f64,
    /// The largest value.
    pub most: f64,
}

impl Spread {
    /// Returns the median and the range of some values; zeros if there are no values.
    pub fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (values.first(), values.last()) else {
            return Self { least: 0.0, median: 0.0, most: 0.0 };
        };
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Self { least, median, most }
    }

    /// Returns the range of repeated measurements as a share of the median.
    pub fn width(&self) -> f64 {
        if self.median > 0.0 { (self.most - self.least) / self.median } else { 0.0 }
    }
}

/// Divides each pair's second number by the first; pairs whose first number is zero are omitted.
pub fn pairwise_ratios(pairs: impl IntoIterator<Item = (f64, f64)>) -> Vec<f64> {
    pairs.into_iter().filter(|pair| pair.0 > 0.0).map(|(first, second)| second / first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        let odd = Spread::of(&[3.0, 1.0, 100.0]);
        assert_eq!(odd, Spread { least: 1.0, median: 3.0, most: 100.0 });
        let even = Spread::of(&[4.0, 1.0, 2.0, 100.0]);
        assert_eq!(even, Spread { least: 1.0, median: 3.0, most: 100.0 });
        assert_eq!(Spread::of(&[5.0]), Spread { least: 5.0, median: 5.0, most: 5.0 });
        assert_eq!(Spread::of(&[]).width().to_bits(), 0.0_f64.to_bits());
        assert!((odd.width() - 33.0).abs() < 1e-9);
    }

    #[test]
    fn a_ratio_needs_something_to_divide_by() {
        assert_eq!(pairwise_ratios([(2.0, 3.0), (0.0, 1.0), (4.0, 2.0)]), [1.5, 0.5]);
    }
}
