//! Signals, which a descriptor tells of.

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

use super::check;

/// Takes on the descriptor of the pair's end that signals write to, for the life of the process.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Which signals have come since they were last taken, in the order in which each came last: the
/// first in the lowest [`PLACE`].
static ARRIVED: AtomicI32 = AtomicI32::new(0);

/// The bits of one signal's number: those of 1 to 31 fit.
const PLACE: usize = 5;

/// How many different signals have a place.
const PLACES: usize = 31 / PLACE;

/// The numbers in a row of places, from the first on.
fn numbers(mut row: c_int) -> impl Iterator<Item = c_int> {
    std::iter::from_fn(move || {
        let first = row & ((1 << PLACE) - 1);
        row >>= PLACE;
        (first != 0).then_some(first)
    })
}

/// A row of places with a signal at its end, and nowhere else.
fn with_last(row: c_int, signal: c_int) -> c_int {
    let others = numbers(row).filter(|&number| number != signal);
    let places = others.chain([signal]).zip((0..).step_by(PLACE)).take(PLACES);
    places.fold(0, |row, (number, at)| row | number << at)
}

/// Signals that wake the event loop. There is one of these in a process: handlers can only reach
/// what is static.
#[derive(Debug)]
pub struct Signals {
    woken: UnixStream,
}

impl Signals {
    /// Catches the signals given, at most six with numbers below 32, and ignores SIGPIPE and
    /// SIGXFSZ, for what they say is also said by the call that failed. Of `ends`, those that
    /// whoever started the process has had ignored (as `nohup` does) stay ignored.
    pub fn catch(ends: &[c_int], others: &[c_int]) -> io::Result<Self> {
        assert!(ends.len() + others.len() <= PLACES, "each has its place");
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        WAKE.store(wake.into_raw_fd(), Ordering::Relaxed);
        let note: extern "C" fn(c_int) = note_signal;
        let note = note as *const c_void as libc::sighandler_t;
        for &signal in ends {
            if handler(signal)? != libc::SIG_IGN {
                set_handler(signal, note)?;
            }
        }
        for &signal in others {
            set_handler(signal, note)?;
        }
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            set_handler(signal, libc::SIG_IGN)?;
        }
        Ok(Self { woken })
    }

    /// Whether one of these has come and has not been taken.
    pub fn has_come(&self, signals: &[c_int]) -> bool {
        numbers(ARRIVED.load(Ordering::Relaxed)).any(|number| signals.contains(&number))
    }

    /// The signals that came since the last call, each once, in the order in which each came last.
    /// Of two that came before the process could run, the system does not tell the order; Linux
    /// lets the handler of the higher number interrupt the other, and so finish first.
    pub fn take(&mut self) -> impl Iterator<Item = c_int> + use<> {
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut self.woken, &mut bytes), Ok(count) if count > 0) {}
        numbers(ARRIVED.swap(0, Ordering::Relaxed))
    }
}

impl AsRawFd for Signals {
    /// Becomes readable when a signal comes.
    fn as_raw_fd(&self) -> RawFd {
        self.woken.as_raw_fd()
    }
}

/// What a signal does at present.
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
    // SAFETY: the handler is SIG_IGN or `note_signal`, which does only what handlers may.
    let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    check(result).map(drop)
}

/// Notes the signal and wakes the loop: atomic operations and a write, all allowed in a handler,
/// also in one that has interrupted another. A full pair is as good as a write: the loop will wake.
extern "C" fn note_signal(signal: c_int) {
    let note = |row| Some(with_last(row, signal));
    let dirty = ARRIVED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, note);
    debug_assert!(dirty.is_ok(), "there is always a new row");
    let byte = 0u8;
    let pointer: *const u8 = &raw const byte;
    let errno = io::Error::last_os_error().raw_os_error();
    // SAFETY: the pointer is valid for one byte; the descriptor is open as long as the process.
    unsafe { libc::write(WAKE.load(Ordering::Relaxed), pointer.cast(), 1) };
    restore_errno(errno);
}

/// The interrupted code must find the errno it left.
fn restore_errno(errno: Option<i32>) {
    #[cfg(target_os = "linux")]
    if let Some(errno) = errno {
        // SAFETY: answers a pointer to this thread's errno.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: that pointer is valid as long as the thread.
        unsafe { *place = errno };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = errno;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_stay_in_the_order_of_their_last_coming() {
        let after = |came: &[c_int]| {
            let row = came.iter().fold(0, |row, &signal| with_last(row, signal));
            numbers(row).collect::<Vec<_>>()
        };
        assert_eq!(after(&[]), [0; 0]);
        assert_eq!(after(&[12, 10]), [12, 10]);
        assert_eq!(after(&[10, 12, 12]), [10, 12]);
        assert_eq!(after(&[12, 10, 12]), [10, 12]);
        assert_eq!(after(&[1, 2, 15, 10, 12, 31]), [1, 2, 15, 10, 12, 31]);
        assert_eq!(after(&[1, 2, 15, 10, 12, 31, 15, 1]), [2, 10, 12, 31, 15, 1]);
    }
}
