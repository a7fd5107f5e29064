//! Waits for a condition that no event announces, on a machine of any speed.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for a condition; far longer than any machine should need.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits for a condition, which is checked every two milliseconds until it is true.
///
/// # Panics
///
/// Panics if the condition is still false after [`LONG`]; `what` names the condition.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
