//! The seeds that the simulators play, and the handling of a run that panics.

#![expect(clippy::disallowed_methods, reason = "whoever says MINUTES means real ones")]

use std::{
    any::Any,
    cell::Cell,
    env, panic,
    panic::AssertUnwindSafe,
    sync::Once,
    time::{Duration, Instant},
};

/// Seeds from the environment. `SEED` alone selects a single seed. With `RUNS`, that many seeds are
/// played from `SEED` on; with `MINUTES`, seeds for that time. `make sim` runs two groups of
/// simulators one after the other, so each group takes half the minutes.
#[derive(Debug)]
pub(crate) struct Seeds {
    next: u64,
    end: u64,
    until: Option<Instant>,
}

impl Seeds {
    /// Selects `usual` seeds, unless the environment says otherwise.
    pub(crate) fn new(usual: u64) -> Self {
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let (seed, runs, minutes) = (number("SEED"), number("RUNS"), number("MINUTES"));
        let next = seed.unwrap_or(0);
        let end = match (minutes, runs) {
            (Some(_), _) => u64::MAX,
            (None, Some(runs)) => next + runs,
            (None, None) if seed.is_some() => next + 1,
            (None, None) => usual,
        };
        let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(minutes * 30));
        Self { next, end, until }
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let is_over = self.until.is_some_and(|until| Instant::now() >= until);
        let seed = Some(self.next).filter(|&seed| seed < self.end && !is_over)?;
        self.next += 1;
        Some(seed)
    }
}

/// Returns the outcome of a run. A panic is a failure, so that the run is shortened.
pub(crate) fn outcome(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or_else(|_| "a panic".into(), |it| (*it).into()),
    };
    panic::catch_unwind(AssertUnwindSafe(run)).map_err(text)?
}

thread_local! {
    /// Whether a panic of this thread is kept quiet.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs something that is known to panic many times, without printing the panics.
///
/// The process's only hook for panics is set once, and still prints the panics of other tests.
pub(crate) fn quietly<T>(act: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = act();
    IS_QUIET.set(false);
    result
}
