//! A progress line if standard error is a terminal; and a limit on commands per second.

use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// A line that shows how much of the work is done.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Starts a progress line, which is shown only on a terminal.
    pub(crate) fn new(what: &str, total: Option<u64>) -> Self {
        if Output::is_dumb_terminal() {
            return Self::hidden();
        }
        let template = match total {
            Some(_) => "{msg} [{bar:30}] {human_pos} of {human_len}, {eta} left",
            None => "{msg} {spinner} {human_pos}, {per_sec}",
        };
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        bar.set_style(ProgressStyle::with_template(template).expect("a template of ours"));
        bar.set_message(what.to_owned());
        Self(bar)
    }

    /// Makes a progress line that is never shown.
    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// Sets the number of items done in the progress line.
    pub(crate) fn set_count(&self, count: u64) {
        self.0.set_position(count);
    }

    /// Adds to the number of items done in the progress line.
    pub(crate) fn add(&self, count: u64) {
        self.0.inc(count);
    }
}

impl Drop for Progress {
    /// Removes the progress line from the terminal.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Limits the rate of commands.
#[derive(Debug)]
pub(crate) struct Pacer {
    per_second: Option<u64>,
    began: Instant,
    count: u64,
}

impl Pacer {
    /// Makes a limit of `per_second` commands per second; `None` means no limit.
    pub(crate) fn new(per_second: Option<u64>) -> Self {
        Self { per_second, began: Instant::now(), count: 0 }
    }

    /// Returns how many commands may be sent at once within the limit; at most `most`.
    pub(crate) fn batch_size(&self, most: u64) -> u64 {
        self.per_second.map_or(most, |rate| most.min(rate.div_ceil(10)).max(1))
    }

    /// Counts commands that were sent, and sleeps until their rate is within the limit.
    pub(crate) fn pace(&mut self, count: u64) {
        self.count += count;
        let Some(rate) = self.per_second else { return };
        let due = Duration::from_secs_f64(count_as_f64(self.count) / count_as_f64(rate.max(1)));
        thread::sleep(due.saturating_sub(self.began.elapsed()));
    }
}

/// Converts a count to a float, where rounding does not matter.
#[expect(clippy::cast_precision_loss, reason = "counts for people and clocks are small enough")]
pub(crate) fn count_as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_bounds_the_batches_and_the_time() {
        assert_eq!(Pacer::new(None).batch_size(5000), 5000);
        assert_eq!(Pacer::new(Some(100)).batch_size(5000), 10);
        assert_eq!(Pacer::new(Some(1)).batch_size(5000), 1);
        let began = Instant::now();
        let mut pacer = Pacer::new(Some(1000));
        pacer.pace(30);
        assert!(began.elapsed() >= Duration::from_millis(30));
    }
}
