//! Runs work in another thread, and stops waiting for the work after a deadline.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::interrupt::Interrupt;

/// The longest time limit.
const TIME_LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Work that reaches the deadline has this much more time to report its error.
const LATE_TIME: Duration = Duration::from_millis(200);

/// The interval at which a wait checks for Ctrl-C.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the deadline of work that begins now.
pub(crate) fn after_seconds(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds).min(TIME_LIMIT_MAX)
}

/// Begins work with a deadline in a separate thread, because the work may block, as a name lookup
/// does.
pub(crate) fn start<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Receiver<Result<T>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // If the work is late, the receiver no longer exists, and the result is dropped.
        let _ = sender.send(work());
    });
    receiver
}

/// Waits for the result of work, up to its deadline. The outer result is an error only after a
/// signal.
pub(crate) fn wait<T>(
    work: &Receiver<Result<T>>,
    deadline: Instant,
    interrupt: &Interrupt,
) -> Result<Result<T>> {
    loop {
        let left = (deadline + LATE_TIME).saturating_duration_since(Instant::now());
        match work.recv_timeout(left.min(INTERRUPT_INTERVAL)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => interrupt.check()?,
            Err(_) => return Ok(Err(anyhow!("no answer in time"))),
        }
    }
}
