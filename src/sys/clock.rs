//! The clocks of the system.

use std::{
    io,
    time::{Duration, SystemTime},
};

use super::check;

/// A clock that cannot be set, and that also runs while the machine is suspended.
#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;

#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Reads the wall clock, in nanoseconds since 1970. Uses the standard library, because some 32-bit
/// C libraries have no dates after 2038.
#[expect(clippy::disallowed_methods, reason = "this is the one place for it")]
pub fn wall_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
}

/// Reads the monotonic clock, in nanoseconds since an instant before this process began.
pub fn monotonic_nanoseconds() -> u64 {
    let time = read(CLOCK).expect("every supported system has this clock");
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

/// Returns the CPU time of the calling thread, or zero if the system does not report that time.
pub fn thread_cpu_time() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// Reads a clock of the system.
fn read(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for one timespec.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)))
}
