//! The clocks of the system.

use std::mem::MaybeUninit;

use super::check;

/// A clock that cannot be set, and that also counts while the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Reads the monotonic clock, in nanoseconds since an instant before this process began.
pub fn monotonic_nanoseconds() -> u64 {
    nanoseconds(CLOCK)
}

/// Reads the wall clock, in nanoseconds since 1970.
pub fn wall_nanoseconds() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

/// Converts seconds since 1970 to UTC: year, month, day, hour, minute, second.
pub fn utc(seconds: u64) -> [i32; 6] {
    let seconds = libc::time_t::try_from(seconds).unwrap_or(0);
    // SAFETY: a tm of zeros is valid: numbers and, on some systems, a null pointer.
    let mut date: libc::tm = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: both pointers are valid for the call. It fails if the year does not fit an int, and
    // then does not change the date.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut date) };
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = date;
    [1900 + tm_year, 1 + tm_mon, tm_mday, tm_hour, tm_min, tm_sec]
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is valid for one timespec.
    let result = unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) };
    check(result).expect("every supported system has this clock");
    // SAFETY: the call succeeded, so it has filled the timespec.
    let time = unsafe { time.assume_init() };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanoseconds
}
