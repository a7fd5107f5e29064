//! The two system calls that std does not offer, and every unsafe line of this crate.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends one byte as TCP urgent data.
#[expect(unsafe_code, reason = "std has no call for urgent data")]
pub(crate) fn send_urgent(socket: BorrowedFd<'_>, byte: u8) -> io::Result<()> {
    let buffer = [byte];
    // SAFETY: the descriptor is open for the length of the call, since it is borrowed, and the
    // pointer leads to one readable byte.
    let sent = unsafe { libc::send(socket.as_raw_fd(), buffer.as_ptr().cast(), 1, libc::MSG_OOB) };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to one process; 0 and what would mean a group are refused.
#[expect(unsafe_code, reason = "std can only kill")]
pub(crate) fn send_signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 0);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: kill reads no memory of ours.
    let result = unsafe { libc::kill(pid, signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
