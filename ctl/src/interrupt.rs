//! Ctrl-C: work in pieces ends after the present piece. A second Ctrl-C ends the program at once,
//! and so does the first one while the program waits for its user.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Tells whether the user wants to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    has_come: Arc<AtomicBool>,
    /// The next signal ends the program.
    ends_at_once: Arc<AtomicBool>,
}

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
            // In this order the first signal only sets the flags, and the second one ends it.
            flag::register_conditional_default(signal, Arc::clone(&self.ends_at_once))?;
            flag::register(signal, Arc::clone(&self.has_come))?;
            flag::register(signal, Arc::clone(&self.ends_at_once))?;
        }
        Ok(())
    }

    /// Lets work in pieces end, as a signal does.
    pub(crate) fn set(&self) {
        self.has_come.store(true, Ordering::Relaxed);
    }

    /// Whether a signal has come.
    pub(crate) fn is_set(&self) -> bool {
        self.has_come.load(Ordering::Relaxed)
    }

    /// Does something that waits for the user, such as a read. A signal ends the program meanwhile.
    pub(crate) fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.ends_at_once.store(true, Ordering::Relaxed);
        let result = wait();
        self.ends_at_once.store(self.is_set(), Ordering::Relaxed);
        result
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
        interrupt.has_come.store(true, Ordering::Relaxed);
        assert!(interrupt.is_set() && interrupt.check().is_err());
    }
}
