//! Handles Ctrl-C, SIGTERM, SIGQUIT and SIGHUP. The first signal ends the work after its current
//! batch; if the batch takes long, a notice is printed. A second signal ends the program at once.
//! In `work`, Ctrl-Z also suspends the user's commands, and Ctrl-\ kills them.

use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::flag::register_usize;
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, raise};

use crate::message::print_notice;

/// The time from a signal until the notice is printed.
const NOTICE_DELAY: Duration = Duration::from_millis(200);

/// The value stored in place of a signal's number if the program itself ends the work.
const ENDED_FROM_WITHIN: usize = usize::MAX;

/// A flag: once it is set, work ends after its current batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The number of the last signal; 0 before the first signal.
    signal: Arc<AtomicUsize>,
    /// The socket that becomes readable at the first signal.
    wake: OnceLock<UnixStream>,
    /// The notice printed after a signal: why the program waits, and what a second signal does.
    notice: Mutex<&'static str>,
    /// Process groups of running commands, to be killed by a second signal.
    groups: Mutex<Vec<Pid>>,
    /// How often Ctrl-Z has suspended the program and its commands.
    suspensions: AtomicUsize,
    /// The interrupt of the whole program, if `self` ends only a part of the program's work.
    parent: Option<Interrupt>,
}

/// The error that work returns if an interrupt has ended it.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    /// Formats the error of work that an interrupt has ended.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Whether the program was started to ignore SIGHUP, as with nohup. Without /proc, returns false.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

impl Shared {
    /// Sends `sent` to the running commands, and then takes the default action of `signal`.
    fn pass_on(&self, sent: Signal, signal: i32) {
        // Keep the lock, so that no worker notices that its command was ended or suspended.
        let groups = Interrupt::lock(&self.groups);
        for &group in &*groups {
            let _ = kill_process_group(group, sent);
        }
        let _ = emulate_default_handler(signal);
    }
}

impl Interrupt {
    /// Locks data of signals or child processes, even after a panic, because a panic cannot leave
    /// the data half changed.
    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to catch Ctrl-C, SIGTERM, SIGQUIT and SIGHUP.
    pub(crate) fn catch_signals(&self) -> io::Result<()> {
        let signals = &[SIGINT, SIGTERM, SIGQUIT, SIGHUP];
        let signals = &signals[..if is_hangup_ignored() { 3 } else { 4 }];
        let (mut sender, receiver) = UnixStream::pair()?;
        self.0.wake.set(receiver).expect("signals are caught once");
        for &signal in signals {
            // The signal handler stores the number at once, even if the thread below wakes late.
            let number = usize::try_from(signal).unwrap_or(ENDED_FROM_WITHIN);
            register_usize(signal, Arc::clone(&self.0.signal), number)?;
        }
        let mut signals = Signals::new(signals)?;
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("signals".into()).spawn(move || {
            let mut is_second = false;
            for signal in signals.forever() {
                if is_second {
                    shared.pass_on(Signal::KILL, signal);
                }
                is_second = true;
                // The write cannot fail: the receiver exists as long as the program runs.
                let _ = sender.write_all(&[1]);
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    thread::sleep(NOTICE_DELAY);
                    let notice = *Self::lock(&shared.notice);
                    print_notice(&format!("beanstalkctl: interrupted: {notice}"));
                });
            }
        })?;
        Ok(())
    }

    /// Returns a socket that becomes readable at the first signal. Panics if
    /// [`Self::catch_signals`] was not called before.
    pub(crate) fn wake_socket(&self) -> io::Result<UnixStream> {
        self.0.wake.get().expect("signals are caught").try_clone()
    }

    /// Sets the notice that is printed after a signal: why the program waits, and the effect of a
    /// second signal.
    pub(crate) fn set_notice(&self, text: &'static str) {
        *Self::lock(&self.0.notice) = text;
    }

    /// Sets the interrupt: ends the work after its current batch, as a signal does.
    pub(crate) fn set(&self) {
        let order = Ordering::Relaxed;
        // Keep the number of an earlier signal.
        let _ = self.0.signal.compare_exchange(0, ENDED_FROM_WITHIN, order, order);
    }

    /// Makes an interrupt for a part of the work, so that this part can be ended alone.
    pub(crate) fn for_part(&self) -> Self {
        Self(Arc::new(Shared { parent: Some(self.clone()), ..Shared::default() }))
    }

    /// Whether the interrupt is set, which means that the work should end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.signal.load(Ordering::Relaxed) != 0
            || self.0.parent.as_ref().is_some_and(Self::is_set)
    }

    /// Returns 128 plus the number of the signal, as the exit status of a program that a signal
    /// ended; `None` if there was no signal.
    pub(crate) fn exit_status(&self) -> Option<u8> {
        let signal = u8::try_from(self.0.signal.load(Ordering::Relaxed)).ok();
        signal.filter(|signal| *signal > 0).map(|signal| 128_u8.saturating_add(signal))
    }

    /// Fails if the interrupt is set, which means that the work should end.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits until `source` is readable; fails if a signal arrives first.
    pub(crate) fn wait_to_read(&self, source: &impl AsFd) -> io::Result<()> {
        loop {
            if self.is_set() {
                return Err(io::Error::other(Interrupted));
            }
            let mut all = vec![PollFd::new(source, PollFlags::IN)];
            all.extend(self.0.wake.get().map(|wake| PollFd::new(wake, PollFlags::IN)));
            Self::poll(&mut all, None)?;
            if !all[0].revents().is_empty() {
                return Ok(());
            }
        }
    }

    /// Sleeps for `length`, and then returns true. If a signal arrives, returns false at once.
    pub(crate) fn sleep(&self, length: Duration) -> bool {
        let began = Instant::now();
        loop {
            let left = length.saturating_sub(began.elapsed());
            if self.is_set() || left.is_zero() {
                return !self.is_set();
            }
            let mut wake = self.0.wake.get().map(|wake| PollFd::new(wake, PollFlags::IN));
            // If the poll ends early without a signal, the loop polls again.
            let _ = Self::poll(wake.as_mut_slice(), Some(left));
        }
    }

    /// After this call, Ctrl-Z also suspends the user's commands, and Ctrl-\ also kills them.
    pub(crate) fn catch_job_control(&self) -> io::Result<()> {
        let mut signals = Signals::new([SIGQUIT, SIGTSTP])?;
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("job control".into()).spawn(move || {
            for signal in signals.forever() {
                let sent = if signal == SIGTSTP { Signal::TSTP } else { Signal::KILL };
                // After Ctrl-Z, `pass_on` returns once SIGCONT has resumed the program.
                shared.pass_on(sent, signal);
                shared.suspensions.fetch_add(1, Ordering::Relaxed);
                // SIGCHLD wakes the workers, which then resume their commands.
                let _ = raise(SIGCHLD);
            }
        })?;
        Ok(())
    }

    /// Returns how often Ctrl-Z has suspended the commands.
    pub(crate) fn suspensions(&self) -> usize {
        self.0.suspensions.load(Ordering::Relaxed)
    }

    /// Starts a command as the leader of a process group, which a second signal kills.
    pub(crate) fn spawn_group(&self, command: &mut Command) -> io::Result<(Child, Pid)> {
        let mut groups = Self::lock(&self.0.groups);
        let child = command.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        groups.push(group);
        Ok((child, group))
    }

    /// Returns the status of a command that has ended or was suspended; `None` while it runs.
    /// Forgets the group of an ended command, because the system may reuse the group's id.
    pub(crate) fn process_group_status(&self, group: Pid) -> io::Result<Option<ExitStatus>> {
        let mut groups = Self::lock(&self.0.groups);
        let change = waitpid(Some(group), WaitOptions::NOHANG | WaitOptions::UNTRACED)?;
        let status = change.map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
        if status.is_some_and(|status| status.stopped_signal().is_none()) {
            groups.retain(|other| *other != group);
        }
        Ok(status)
    }

    /// Waits for events on descriptors, at most for `limit`.
    pub(crate) fn poll(events: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
        // A limit that is too long for the system is treated as no limit.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(events, limit.as_ref()) {
            // A poll ends when a signal was handled, an event is ready, or the limit has passed.
            Err(Errno::INTR) | Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
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
