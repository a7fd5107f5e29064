//! Catches signals, and reports them through a descriptor.

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, IntoRawFd, RawFd},
        unix::net::UnixStream,
    },
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

#[cfg(target_os = "linux")]
use libc::__errno_location as errno_location;

#[cfg(any(target_os = "netbsd", target_os = "openbsd"))]
use libc::__errno as errno_location;

#[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
use libc::__error as errno_location;

use super::check;

/// The socket to which signal handlers write. It stays open as long as the process runs.
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);

/// SIGUSR1 or SIGUSR2, whichever arrived last; 0 once [`Signals::take`] has returned the signal.
static LAST_USER: AtomicI32 = AtomicI32::new(0);

/// The signal of [`END_SIGNALS`] that arrived last; 0 once [`Signals::take`] has returned it.
static LAST_END: AtomicI32 = AtomicI32::new(0);

/// Signals that end the daemon.
const END_SIGNALS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The signals that wake the event loop. A process can have only one `Signals`, because signal
/// handlers can use only static variables.
#[derive(Debug)]
pub struct Signals {
    woken: UnixStream,
}

impl Signals {
    /// Catches SIGUSR1, SIGUSR2 and the signals that end the daemon. Ignores SIGPIPE and SIGXFSZ,
    /// because the system call that causes such a signal also fails with an error. If the process
    /// inherited one of `END_SIGNALS` as ignored, as under `nohup`, that signal stays ignored.
    pub fn catch() -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        WAKE_FD.store(wake.into_raw_fd(), Ordering::Relaxed);
        let on_arrival: extern "C" fn(c_int) = on_signal;
        let on_arrival = on_arrival as *const c_void as libc::sighandler_t;
        for signal in END_SIGNALS {
            if handler(signal)? != libc::SIG_IGN {
                set_handler(signal, on_arrival)?;
            }
        }
        for signal in [libc::SIGUSR1, libc::SIGUSR2] {
            set_handler(signal, on_arrival)?;
        }
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            set_handler(signal, libc::SIG_IGN)?;
        }
        Ok(Self { woken })
    }

    /// Whether a signal that ends the daemon has arrived, and `take` has not returned it yet.
    pub fn is_end_due(&self) -> bool {
        LAST_END.load(Ordering::Relaxed) != 0
    }

    /// Returns at most two signals that arrived since the previous call: the last of SIGUSR1 and
    /// SIGUSR2, and the last signal that ends the daemon. If two signals came before the process
    /// could run, their order is unknown: on Linux, the handler of the signal with the higher
    /// number interrupts the other handler, and so finishes first.
    pub fn take(&mut self) -> impl Iterator<Item = c_int> + use<> {
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut self.woken, &mut bytes), Ok(count) if count > 0) {}
        let arrived = [&LAST_USER, &LAST_END].map(|last| last.swap(0, Ordering::Relaxed));
        arrived.into_iter().filter(|&signal| signal != 0)
    }
}

impl AsRawFd for Signals {
    /// The descriptor that becomes readable when a signal arrives.
    fn as_raw_fd(&self) -> RawFd {
        self.woken.as_raw_fd()
    }
}

/// The current action of a signal.
fn handler(signal: c_int) -> io::Result<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null pointer changes nothing; the other pointer is valid for one sigaction.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    check(result)?;
    // SAFETY: the call succeeded, so it has filled the sigaction.
    Ok(unsafe { action.assume_init() }.sa_sigaction)
}

/// Sets the action of a signal.
fn set_handler(signal: c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: a sigaction of zeros is valid: no handler, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    // SAFETY: the handler is SIG_IGN or `on_signal`, which does only what is allowed in a handler.
    let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    check(result).map(drop)
}

/// Stores the signal and wakes the event loop. Atomic stores and `write` are allowed in a signal
/// handler, even if it interrupts another handler. If the socket is full, the loop wakes anyway.
extern "C" fn on_signal(signal: c_int) {
    let last = if END_SIGNALS.contains(&signal) { &LAST_END } else { &LAST_USER };
    last.store(signal, Ordering::Relaxed);
    let byte = 0u8;
    let pointer: *const u8 = &raw const byte;
    // SAFETY: the call returns a pointer to this thread's errno, valid until the thread ends.
    let errno = unsafe { errno_location() };
    // SAFETY: the pointer leads to this thread's errno.
    let before = unsafe { *errno };
    // SAFETY: the pointer is valid for one byte; the descriptor is open until the process ends.
    unsafe { libc::write(WAKE_FD.load(Ordering::Relaxed), pointer.cast(), 1) };
    // SAFETY: the same valid pointer. The interrupted code must find `errno` unchanged.
    unsafe { *errno = before };
}
