//! System calls that std does not offer, and all unsafe code of this crate.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Sends one byte as TCP urgent data.
#[expect(unsafe_code, reason = "std has no call for urgent data")]
pub(crate) fn send_urgent(socket: BorrowedFd<'_>, byte: u8) -> io::Result<()> {
    let buffer = [byte];
    // SAFETY: the descriptor is open during the call, because it is borrowed; the pointer points to
    // one readable byte.
    let sent = unsafe { libc::send(socket.as_raw_fd(), buffer.as_ptr().cast(), 1, libc::MSG_OOB) };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to one process. Fails for pid 0 and for numbers that mean a process group.
#[expect(unsafe_code, reason = "std can only kill")]
pub(crate) fn send_signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 0);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the function `kill` accesses no memory of this process.
    let result = unsafe { libc::kill(pid, signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How long to wait for the effect of a delivered signal: the effect itself cannot be observed.
const SIGNAL_EFFECT_TIME: Duration = Duration::from_millis(20);
/// Pause between two checks of whether a signal is still pending.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Waits, up to `timeout`, until a signal was delivered to a process, then for the signal's effect.
///
/// On a busy system, the signal stays pending while the process waits for a processor. On a system
/// without `/proc`, this function only waits for [`SIGNAL_EFFECT_TIME`].
pub(crate) fn wait_until_delivered(pid: u32, signal: i32, timeout: Duration) {
    let start = Instant::now();
    while start.elapsed() < timeout && is_pending(pid, signal) {
        thread::sleep(SIGNAL_POLL_INTERVAL);
    }
    thread::sleep(SIGNAL_EFFECT_TIME);
}

/// Returns whether a signal to a process is pending, according to `/proc`.
fn is_pending(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Waits, up to `timeout`, for an event on one of the descriptors. Returns, for each descriptor,
/// whether it is readable, closed or failed. If a signal interrupts the wait, every result is
/// false.
#[expect(unsafe_code, reason = "std waits for one descriptor only")]
pub(crate) fn readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> Vec<bool> {
    let asked =
        |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut asked: Vec<libc::pollfd> = descriptors.iter().map(asked).collect();
    let count = libc::nfds_t::try_from(asked.len()).expect("a descriptor each");
    let timeout = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the pointer points to `count` writable records.
    let result = unsafe { libc::poll(asked.as_mut_ptr(), count, timeout) };
    asked.iter().map(|answer| result > 0 && answer.revents != 0).collect()
}

/// Makes the kernel report a socket as readable only when at least `bytes` bytes have come.
pub(crate) fn set_receive_low_water(socket: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &value)
}

/// Makes the kernel reset the connection when the socket is closed, instead of ending it normally.
pub(crate) fn reset_on_close(socket: &impl AsRawFd) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 })
}

/// Sets an option of a socket by setsockopt(2).
#[expect(unsafe_code, reason = "std has few options of sockets")]
fn set_option<T>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).expect("a few bytes");
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the pointer points to a readable value of the length given; the kernel refuses a
    // descriptor that is not a socket.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Connects from the given source address, with a receive buffer of the given size, if a size is
/// given. The connect and each later write fail if they take longer than `timeout`.
#[expect(unsafe_code, reason = "std lets the system choose the source address")]
pub(crate) fn connect_from(
    source: Ipv4Addr,
    to: SocketAddrV4,
    receive_buffer: Option<usize>,
    timeout: Duration,
) -> io::Result<TcpStream> {
    // SAFETY: the function `socket` takes no pointers.
    let number = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: `F_SETFD` takes no pointers. Processes started later do not inherit the socket.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    let stream = TcpStream::from(socket);
    if let Some(bytes) = receive_buffer {
        let value = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        set_option(&stream, libc::SOL_SOCKET, libc::SO_RCVBUF, &value)?;
    }
    // Without this socket option, `bind` would reserve the port for all destinations, until a
    // minute after the socket is closed.
    #[cfg(target_os = "linux")]
    set_option(&stream, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1_i32)?;
    stream.set_write_timeout(Some(timeout))?;
    let address = internet_address(SocketAddrV4::new(source, 0));
    let length = libc::socklen_t::try_from(size_of_val(&address)).expect("a few bytes");
    // SAFETY: the pointer points to a readable `sockaddr` of the length given.
    if unsafe { libc::bind(number, (&raw const address).cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let address = internet_address(to);
    // SAFETY: the pointer points to a readable `sockaddr` of the length given.
    if unsafe { libc::connect(number, (&raw const address).cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stream)
}

/// Converts an IPv4 address to the structure that system calls take.
#[expect(unsafe_code, reason = "an address has fields that differ by system")]
fn internet_address(address: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: all zeros is a valid address.
    let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    raw.sin_family = libc::sa_family_t::try_from(libc::AF_INET).expect("a small number");
    raw.sin_port = address.port().to_be();
    raw.sin_addr.s_addr = u32::from(*address.ip()).to_be();
    raw
}

/// A resource limit of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    /// How many files may be open: one more than the largest allowed descriptor.
    Files,
    /// Bytes of address space, as with `ulimit -v`. A limit that the process already has is kept.
    Memory,
}

/// Sets a limit of a running process. The process keeps files and memory that it already has, even
/// beyond the limit.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no call for limits")]
pub(crate) fn set_limit(
    pid: u32,
    what: Limit,
    value: impl TryInto<libc::rlim_t>,
) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let resource = match what {
        Limit::Files => libc::RLIMIT_NOFILE,
        Limit::Memory => libc::RLIMIT_AS,
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the last pointer points to a writable limit, and no new limit is given.
    if unsafe { libc::prlimit(pid, resource, std::ptr::null(), &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if matches!(what, Limit::Memory) && limit.rlim_cur != libc::RLIM_INFINITY {
        return Ok(());
    }
    limit.rlim_cur = value.try_into().unwrap_or(limit.rlim_max).min(limit.rlim_max);
    // SAFETY: the first pointer points to a readable limit, and the old limit is not requested.
    let result = unsafe { libc::prlimit(pid, resource, &raw const limit, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lowers the priority of the calling thread on Linux, and of this process on other systems.
/// Ignores errors.
#[expect(unsafe_code, reason = "std has no call for priorities")]
pub(crate) fn lower_priority() {
    // SAFETY: the function `setpriority` takes no pointers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// Returns the cores on which this process is allowed to run; none on systems other than Linux.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std only reports their number")]
pub(crate) fn cores() -> io::Result<Vec<usize>> {
    // SAFETY: all zeros is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer points to a writable set of the size given.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let limit = usize::try_from(libc::CPU_SETSIZE).expect("a small number");
    // SAFETY: the index is below the size of the set.
    Ok((0..limit).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

/// Pins the calling thread, and all threads and processes that it starts later, to these cores.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no call for it")]
pub(crate) fn pin_to_cores(cores: &[usize]) -> io::Result<()> {
    let limit = usize::try_from(libc::CPU_SETSIZE).expect("a small number");
    if cores.iter().any(|&core| core >= limit) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all zeros is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores {
        // SAFETY: the index is below the size of the set.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: the pointer points to a readable set of the size given.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the CPU time that all threads of a process have used so far.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std knows no clocks of other processes")]
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut clock = 0;
    // SAFETY: the pointer points to a writable clock id.
    let result = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer points to a writable timespec.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).expect("CPU time is positive");
    Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).expect("below a second")))
}

#[cfg(not(target_os = "linux"))]
pub(crate) use self::elsewhere::{cores, cpu_time, pin_to_cores, set_limit};

/// Stubs for systems other than Linux, on which the crate must compile but is not used.
#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::{Duration, Limit, io};

    /// Returns no cores, so that nothing is pinned.
    pub(crate) fn cores() -> io::Result<Vec<usize>> {
        Ok(Vec::new())
    }

    /// Fails, because this system has no call to pin a thread.
    pub(crate) fn pin_to_cores(_: &[usize]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, because this system has no call to set the limit of a running process.
    pub(crate) fn set_limit(_: u32, _: Limit, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, because this system has no call for the CPU time of a process.
    pub(crate) fn cpu_time(_: u32) -> io::Result<Duration> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A limit on open files: enough for ten thousand connections to each of several daemons.
const OPEN_FILES_WANTED: libc::rlim_t = 100_000;

/// Raises the limit on open files as far as possible. Returns the limit; children inherit it.
#[expect(unsafe_code, reason = "std has no call for limits")]
pub(crate) fn raise_open_files() -> io::Result<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for writing one `rlimit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for most in [limit.rlim_max.max(OPEN_FILES_WANTED), limit.rlim_max] {
        limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the pointer points to a readable limit.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0 {
            return Ok(usize::try_from(most).unwrap_or(usize::MAX));
        }
    }
    Err(io::Error::last_os_error())
}
