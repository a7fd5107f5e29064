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

/// The signals that have arrived since they were last taken, packed in order of each one's last
/// arrival. The first is in the lowest [`SIGNAL_BITS`].
static ARRIVED: AtomicI32 = AtomicI32::new(0);

/// The bits of one packed signal: enough for numbers 1 to 31.
const SIGNAL_BITS: usize = 5;

/// How many different signals can be packed.
const SIGNALS_MAX: usize = 31 / SIGNAL_BITS;

/// The signals in `packed`, from the first on.
fn unpack(mut packed: c_int) -> impl Iterator<Item = c_int> {
    std::iter::from_fn(move || {
        let first = packed & ((1 << SIGNAL_BITS) - 1);
        packed >>= SIGNAL_BITS;
        (first != 0).then_some(first)
    })
}

/// Moves `signal` to the end of `packed`, or adds it there.
fn move_to_end(packed: c_int, signal: c_int) -> c_int {
    let others = unpack(packed).filter(|&number| number != signal);
    let signals = others.chain([signal]).zip((0..).step_by(SIGNAL_BITS)).take(SIGNALS_MAX);
    signals.fold(0, |packed, (number, at)| packed | number << at)
}

/// Signals that wake the event loop. A process has only one `Signals`, because handlers can reach
/// only statics.
#[derive(Debug)]
pub struct Signals {
    woken: UnixStream,
}

impl Signals {
    /// Catches the given signals: at most six, with numbers below 32. Ignores SIGPIPE and SIGXFSZ,
    /// because the call that causes one fails with an error, too. Any of `end_signals` that the
    /// process inherited as ignored, as under `nohup`, stays ignored.
    pub fn catch(end_signals: &[c_int], others: &[c_int]) -> io::Result<Self> {
        assert!(end_signals.len() + others.len() <= SIGNALS_MAX, "each has its place");
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        WAKE_FD.store(wake.into_raw_fd(), Ordering::Relaxed);
        let on_arrival: extern "C" fn(c_int) = on_signal;
        let on_arrival = on_arrival as *const c_void as libc::sighandler_t;
        for &signal in end_signals {
            if handler(signal)? != libc::SIG_IGN {
                set_handler(signal, on_arrival)?;
            }
        }
        for &signal in others {
            set_handler(signal, on_arrival)?;
        }
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            set_handler(signal, libc::SIG_IGN)?;
        }
        Ok(Self { woken })
    }

    /// Whether one of `signals` has arrived and has not been taken.
    pub fn has_come(&self, signals: &[c_int]) -> bool {
        unpack(ARRIVED.load(Ordering::Relaxed)).any(|number| signals.contains(&number))
    }

    /// Returns the signals that arrived since the last call, each once, ordered by last arrival.
    /// The system does not report the order of two signals that came before the process could run:
    /// on Linux, the handler of the higher number interrupts the other, and so finishes first.
    pub fn take(&mut self) -> impl Iterator<Item = c_int> + use<> {
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut self.woken, &mut bytes), Ok(count) if count > 0) {}
        unpack(ARRIVED.swap(0, Ordering::Relaxed))
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

/// Records the signal and wakes the loop: atomic operations and a write, all allowed in a handler,
/// even one that interrupts another. If the socket pair is full, the loop wakes anyway.
extern "C" fn on_signal(signal: c_int) {
    let add = |packed| Some(move_to_end(packed, signal));
    let updated = ARRIVED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    debug_assert!(updated.is_ok(), "there is always a new row");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_kept_in_the_order_of_last_arrival() {
        let after = |came: &[c_int]| {
            let packed = came.iter().fold(0, |packed, &signal| move_to_end(packed, signal));
            unpack(packed).collect::<Vec<_>>()
        };
        assert_eq!(after(&[]), [0; 0]);
        assert_eq!(after(&[12, 10]), [12, 10]);
        assert_eq!(after(&[10, 12, 12]), [10, 12]);
        assert_eq!(after(&[12, 10, 12]), [10, 12]);
        assert_eq!(after(&[1, 2, 15, 10, 12, 31]), [1, 2, 15, 10, 12, 31]);
        assert_eq!(after(&[1, 2, 15, 10, 12, 31, 15, 1]), [2, 10, 12, 31, 15, 1]);
    }
}
