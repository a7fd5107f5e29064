//! Ctrl-C: work in pieces ends after the present piece. A second Ctrl-C ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Tells whether the user wants to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// The error of work that has ended because of Ctrl-C.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// Begins to catch SIGINT and SIGTERM.
    pub(crate) fn catch(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            // In this order the first signal only sets the flag, which lets the second one through.
            flag::register_conditional_default(signal, Arc::clone(&self.0))?;
            flag::register(signal, Arc::clone(&self.0))?;
        }
        Ok(())
    }

    /// Lets work in pieces end, as a signal does.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a signal has come.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if a signal has come.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_an_error_of_the_next_piece() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check().is_ok());
        interrupt.0.store(true, Ordering::Relaxed);
        assert!(interrupt.is_set() && interrupt.check().is_err());
    }
}
