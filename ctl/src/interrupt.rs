//! Ctrl-C, SIGTERM and SIGHUP: the first one lets work in pieces end after the present piece, and
//! a line reports what is still waited for. The second one ends the program at once.

use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;
use std::{fmt, fs};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_usize;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::context::tell;

/// How long the program may take to end before it reports what it waits for.
const NOTICE_DELAY: Duration = Duration::from_millis(200);

/// Stands for a signal where the work was ended from within.
const ENDED: usize = usize::MAX;

/// Tells whether the user wants to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The last signal; 0 before one comes.
    signal: Arc<AtomicUsize>,
    /// Is readable from the first signal on.
    wake: OnceLock<UnixStream>,
    /// What is waited for after the first signal, and what a second one does.
    notice: Mutex<&'static str>,
    /// Process groups of running commands, which a second signal kills.
    groups: Mutex<Vec<Pid>>,
    /// The whole of which this is a part.
    whole: Option<Interrupt>,
}

/// The error of work that has ended because of a signal.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Locks data that no panic leaves half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the program was started with SIGHUP ignored, as by nohup. Where /proc is missing, it is
/// taken for not ignored.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

impl Interrupt {
    /// Begins to catch the signals.
    pub(crate) fn catch(&self) -> io::Result<()> {
        let signals: &[i32] =
            if ignores_hangup() { &[SIGINT, SIGTERM] } else { &[SIGINT, SIGTERM, SIGHUP] };
        let (mut sender, receiver) = UnixStream::pair()?;
        self.0.wake.set(receiver).expect("signals are caught once");
        for &signal in signals {
            // What a handler sets is seen by the next piece of work, however late a thread wakes.
            register_usize(
                signal,
                Arc::clone(&self.0.signal),
                usize::try_from(signal).unwrap_or(ENDED),
            )?;
        }
        let mut signals = Signals::new(signals)?;
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("signals".into()).spawn(move || {
            let mut is_second = false;
            for signal in signals.forever() {
                if is_second {
                    // Whoever waits for the commands learns no more of their ends.
                    let groups = lock(&shared.groups);
                    for &group in &*groups {
                        let _ = kill_process_group(group, Signal::KILL);
                    }
                    let _ = emulate_default_handler(signal);
                }
                is_second = true;
                // The other end lives as long as the program.
                let _ = sender.write_all(&[1]);
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    thread::sleep(NOTICE_DELAY);
                    tell(&format!("beanstalkctl: interrupted: {}", lock(&shared.notice)));
                });
            }
        })?;
        Ok(())
    }

    /// Returns a socket that is readable from the first signal on. The signals must be caught.
    pub(crate) fn wake(&self) -> io::Result<UnixStream> {
        self.0.wake.get().expect("signals are caught").try_clone()
    }

    /// Sets what is waited for after the first signal, and what a second one does.
    pub(crate) fn set_notice(&self, text: &'static str) {
        *lock(&self.0.notice) = text;
    }

    /// Lets work in pieces end, as a signal does.
    pub(crate) fn set(&self) {
        let order = Ordering::Relaxed;
        // A signal that has come stays known.
        let _ = self.0.signal.compare_exchange(0, ENDED, order, order);
    }

    /// Makes the interrupt of a part of the work, which ends with the whole or before it.
    pub(crate) fn part(&self) -> Self {
        Self(Arc::new(Shared { whole: Some(self.clone()), ..Shared::default() }))
    }

    /// Whether a signal has come.
    pub(crate) fn is_set(&self) -> bool {
        self.0.signal.load(Ordering::Relaxed) != 0
            || self.0.whole.as_ref().is_some_and(Self::is_set)
    }

    /// Returns the exit status after a signal, as of a program that it ended; `None` before.
    pub(crate) fn exit_status(&self) -> Option<u8> {
        let signal = u8::try_from(self.0.signal.load(Ordering::Relaxed)).ok();
        signal.filter(|signal| *signal > 0).map(|signal| 128_u8.saturating_add(signal))
    }

    /// Fails if a signal has come.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits until something can be read, and fails if a signal comes before.
    pub(crate) fn wait_to_read(&self, source: &impl AsFd) -> io::Result<()> {
        loop {
            if self.is_set() {
                return Err(io::Error::other(Interrupted));
            }
            let mut all = vec![PollFd::new(source, PollFlags::IN)];
            all.extend(self.0.wake.get().map(|wake| PollFd::new(wake, PollFlags::IN)));
            wait(&mut all, None)?;
            if !all[0].revents().is_empty() {
                return Ok(());
            }
        }
    }

    /// Lets a second signal kill the process group of a command that leads it.
    pub(crate) fn add_group(&self, leader: &Child) -> Pid {
        let group = Pid::from_child(leader);
        lock(&self.0.groups).push(group);
        group
    }

    /// Returns how a command has ended or been stopped, or `None` while it runs. The group of one
    /// that has ended is not killed any more, because its id may be another's.
    pub(crate) fn change_of(&self, group: Pid) -> io::Result<Option<ExitStatus>> {
        let mut groups = lock(&self.0.groups);
        let change = waitpid(Some(group), WaitOptions::NOHANG | WaitOptions::UNTRACED)?;
        let status = change.map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
        if status.is_some_and(|status| status.stopped_signal().is_none()) {
            groups.retain(|other| *other != group);
        }
        Ok(status)
    }
}

/// Waits for events, at most for the given time.
pub(crate) fn wait(events: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    // A limit that is too long for the system is none.
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(events, limit.as_ref()) {
        // A signal was handled, and nothing is ready yet.
        Err(Errno::INTR) | Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_an_error_of_the_next_piece() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check().is_ok() && interrupt.exit_status().is_none());
        interrupt.0.signal.store(1, Ordering::Relaxed);
        assert!(interrupt.is_set() && interrupt.check().is_err());
        assert_eq!(interrupt.exit_status(), Some(129));
    }
}
