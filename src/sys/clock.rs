//! The clocks of the system.

use std::{mem::MaybeUninit, time::SystemTime};

use super::check;

/// A clock that cannot be set, and that also counts while the machine is suspended.
#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;

#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Reads the wall clock, in nanoseconds since 1970. The C library's types end in 2038 on some
/// 32-bit systems; the standard library's do not.
#[expect(clippy::disallowed_methods, reason = "this is the one place for it")]
pub fn wall_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
}

/// Reads the monotonic clock, in nanoseconds since an instant before this process began.
pub fn monotonic_nanoseconds() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is valid for one timespec.
    let result = unsafe { libc::clock_gettime(CLOCK, time.as_mut_ptr()) };
    check(result).expect("every supported system has this clock");
    // SAFETY: the call succeeded, so it has filled the timespec.
    let time = unsafe { time.assume_init() };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanoseconds
}
