//! Signals, reported through a descriptor.

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

/// The end of the socket pair that signal handlers write to. This end stays open as long as the
/// process runs.
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);

/// The last of SIGUSR1 and SIGUSR2 that has arrived and was not taken; 0 if there is none.
static LAST_USER: AtomicI32 = AtomicI32::new(0);

/// The last of [`END_SIGNALS`] that has arrived and was not taken; 0 if there is none.
static LAST_END: AtomicI32 = AtomicI32::new(0);

/// Signals that end the daemon.
const END_SIGNALS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Signals that wake the event loop. A process has only one `Signals`, because handlers can reach
/// only statics.
#[derive(Debug)]
pub struct Signals {
    woken: UnixStream,
}

impl Signals {
    /// Catches SIGUSR1, SIGUSR2 and the signals that end the daemon. Ignores SIGPIPE and SIGXFSZ,
    /// because the call that causes one fails with an error, too. A signal to end that the process
    /// inherited as ignored, as under `nohup`, stays ignored.
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

    /// Whether a signal to end has arrived and has not been taken.
    pub fn is_end_due(&self) -> bool {
        LAST_END.load(Ordering::Relaxed) != 0
    }

    /// Returns the last of SIGUSR1 and SIGUSR2 and the last signal to end that arrived since the
    /// last call. The system does not report the order of two signals that came before the process
    /// could run: on Linux, the handler of the higher number interrupts the other, and so finishes
    /// first.
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
    // SAFETY: a null pointer changes nothing; the other is valid for one sigaction.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    check(result)?;
    // SAFETY: the call succeeded, so it has filled the sigaction.
    Ok(unsafe { action.assume_init() }.sa_sigaction)
}

fn set_handler(signal: c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: a sigaction of zeros is valid: no handler, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    // SAFETY: the handler is SIG_IGN or `on_signal`, which does only what handlers may.
    let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    check(result).map(drop)
}

/// Records the signal and wakes the loop: an atomic operation and a write, both allowed in a
/// handler, even one that interrupts another. If the socket pair is full, the loop wakes anyway.
extern "C" fn on_signal(signal: c_int) {
    let last = if END_SIGNALS.contains(&signal) { &LAST_END } else { &LAST_USER };
    last.store(signal, Ordering::Relaxed);
    let byte = 0u8;
    let pointer: *const u8 = &raw const byte;
    // SAFETY: returns a pointer to this thread's errno, valid as long as the thread.
    let errno = unsafe { errno_location() };
    // SAFETY: see above.
    let before = unsafe { *errno };
    // SAFETY: the pointer is valid for one byte; the descriptor is open as long as the process.
    unsafe { libc::write(WAKE_FD.load(Ordering::Relaxed), pointer.cast(), 1) };
    // SAFETY: see above. The interrupted code must find `errno` unchanged.
    unsafe { *errno = before };
}
