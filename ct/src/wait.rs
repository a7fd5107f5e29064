//! Waiting for something that has no event, without judging how fast a machine is.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for what must happen: far longer than any machine should take.
pub const LONG: Duration = Duration::from_secs(60);

/// Asks every two milliseconds until the answer is yes.
///
/// # Panics
///
/// If it is still no after [`LONG`]; `what` names it.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
