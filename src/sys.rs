//! Every call to libc that no safe library makes for us, and so every `unsafe` of the daemon.
//!
//! Each block holds one operation and says why it is sound. What comes out is safe: owned
//! descriptors, plain numbers, `io::Error`. Nothing here knows what the daemon does with it.
#![expect(unsafe_code, reason = "this is the one place for it")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_short, c_void},
    io,
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

/// Turns the system's -1 into the error it stands for.
fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The clock that counts on, also while the machine sleeps, and that nobody sets.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Reads the monotonic clock, in nanoseconds since some moment before this process began.
pub fn monotonic_nanoseconds() -> u64 {
    nanoseconds(CLOCK)
}

/// Reads the clock on the wall, in nanoseconds since 1970.
pub fn wall_nanoseconds() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

/// A moment as the calendar of UTC writes it: year, month, day, hour, minute, second.
pub fn utc(seconds: u64) -> [i32; 6] {
    let seconds = libc::time_t::try_from(seconds).unwrap_or(0);
    // SAFETY: a tm of zeros is valid: numbers, and a null pointer where it has one.
    let mut date: libc::tm = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: both pointers are valid for the call. It fails for years beyond an int, and then
    // leaves the date as it is.
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

/// Opens a TCP socket that listens on the first address of `host` and `service` (a name or a
/// number each) that can be had. Connections inherit its options: no delay, keepalive. Of an IPv6
/// socket on all addresses, IPv4 is a part, unless it is `apart`.
pub fn listen_tcp(host: &str, service: &str, apart: bool) -> io::Result<TcpListener> {
    Addresses::resolve(host, service)?.first(|address| listen_on(address, apart))
}

/// Connects to the first address of `host` and `service` that answers. Waits as long as the
/// system does.
pub fn connect_tcp(host: &str, service: &str) -> io::Result<TcpStream> {
    Addresses::resolve(host, service)?.first(|address| {
        let fd = open_socket(address)?;
        // SAFETY: the address is one that getaddrinfo made, with its own length.
        let connected =
            unsafe { libc::connect(fd.as_raw_fd(), address.ai_addr, address.ai_addrlen) };
        check(connected)?;
        Ok(TcpStream::from(fd))
    })
}

fn listen_on(address: &libc::addrinfo, apart: bool) -> io::Result<TcpListener> {
    let fd = open_socket(address)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if address.ai_family == libc::AF_INET6 {
        set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, c_int::from(apart))?;
    }
    set_tcp_options(&fd)?;
    // SAFETY: the address is one that getaddrinfo made, with its own length.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), address.ai_addr, address.ai_addrlen) };
    check(bound)?;
    // SAFETY: takes no pointers.
    let listening = unsafe { libc::listen(fd.as_raw_fd(), 1024) };
    check(listening)?;
    let listener = TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn open_socket(address: &libc::addrinfo) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(address.ai_family, libc::SOCK_STREAM, address.ai_protocol) };
    let fd = check(fd)?;
    // SAFETY: the descriptor is new, so nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_close_on_exec(&fd)?;
    Ok(fd)
}

/// Sets what the connections of a TCP listener inherit from it: no delay, keepalive.
pub fn set_tcp_options(fd: &impl AsFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    shorten_keepalive(fd)
}

/// A peer that vanished is found in about a quarter of an hour instead of over two hours.
#[cfg(target_os = "linux")]
fn shorten_keepalive(fd: &impl AsFd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 600)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 60)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 5)
}
#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the same shape on every system")]
fn shorten_keepalive(_: &impl AsFd) -> io::Result<()> {
    Ok(())
}

fn set_option(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    let length = libc::socklen_t::try_from(size_of::<c_int>()).expect("four");
    let value: *const c_int = &raw const value;
    // SAFETY: the pointer is valid for the length given, and the option takes an int.
    let result = unsafe { libc::setsockopt(fd, level, name, value.cast(), length) };
    check(result).map(drop)
}

/// Asks for an option of the socket itself.
fn option(fd: BorrowedFd<'_>, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of::<c_int>()).expect("four");
    let place: *mut c_int = &raw mut value;
    let (fd, level) = (fd.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: both pointers are valid, the first for the length that the second points at.
    let result = unsafe { libc::getsockopt(fd, level, name, place.cast(), &raw mut length) };
    check(result).map(|_| value)
}

fn set_close_on_exec(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    check(result).map(drop)
}

/// Takes on a descriptor that whoever started this process has left open for it. Succeeds once.
pub fn inherit(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers, and only asks.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    // One that came through exec lacks this mark, and all that this process opens have it.
    if !check(flags).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "nothing is passed on there"));
    }
    // SAFETY: it is open and came through exec, so nobody in this process owns it; and the mark
    // that it gets now keeps it from being taken twice.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    set_close_on_exec(&fd)?;
    Ok(fd)
}

/// Whether the descriptor is a stream socket that listens.
pub fn is_listening_stream(fd: &impl AsFd) -> bool {
    let is = |name, wanted| option(fd.as_fd(), name).is_ok_and(|value| value == wanted);
    is(libc::SO_TYPE, libc::SOCK_STREAM) && is(libc::SO_ACCEPTCONN, 1)
}

/// Removes a variable from the environment. There must be no other thread yet.
pub fn forget_variable(name: &str) {
    // SAFETY: the daemon has one thread, and this is called at its start, where nothing of C is
    // reading the environment.
    unsafe { std::env::remove_var(name) };
}

/// The numbers of the device and the file behind a descriptor, with a colon between.
pub fn device_and_inode(fd: &impl AsFd) -> io::Result<String> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is valid for one stat.
    let result = unsafe { libc::fstat(fd.as_fd().as_raw_fd(), status.as_mut_ptr()) };
    check(result)?;
    // SAFETY: the call succeeded, so it has filled the stat.
    let status = unsafe { status.assume_init() };
    Ok(format!("{}:{}", status.st_dev, status.st_ino))
}

/// What getaddrinfo answered; freed when dropped.
struct Addresses(*mut libc::addrinfo);

impl Addresses {
    fn resolve(host: &str, service: &str) -> io::Result<Self> {
        // The resolver would take a number that is no port for another one.
        let number = service.trim_start();
        let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && number.parse::<i64>().map_or(true, |port| u16::try_from(port).is_err()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no such port"));
        }
        let (host, service) = (CString::new(host)?, CString::new(service)?);
        // SAFETY: an addrinfo of zeros is valid: numbers and null pointers.
        let mut hints: libc::addrinfo = unsafe { MaybeUninit::zeroed().assume_init() };
        hints.ai_family = libc::AF_UNSPEC;
        hints.ai_socktype = libc::SOCK_STREAM;
        hints.ai_flags = libc::AI_PASSIVE;
        let mut list = ptr::null_mut();
        // SAFETY: both strings end in NUL, and the other pointers are valid for the call.
        let code = unsafe {
            libc::getaddrinfo(host.as_ptr(), service.as_ptr(), &raw const hints, &raw mut list)
        };
        match code {
            0 => Ok(Self(list)),
            libc::EAI_SYSTEM => Err(io::Error::last_os_error()),
            code => Err(io::Error::other(resolver_message(code))),
        }
    }

    /// What can be made of the first address that serves; otherwise why the last one does not.
    fn first<T>(&self, make: impl Fn(&libc::addrinfo) -> io::Result<T>) -> io::Result<T> {
        let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.iter() {
            match make(address) {
                Ok(thing) => return Ok(thing),
                Err(failure) => error = failure,
            }
        }
        Err(error)
    }

    fn iter(&self) -> impl Iterator<Item = &libc::addrinfo> {
        // SAFETY: a pointer in the list is null or valid until `self` is dropped.
        let deref = |pointer: *mut libc::addrinfo| unsafe { pointer.as_ref() };
        std::iter::successors(deref(self.0), move |address| deref(address.ai_next))
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: the list came from getaddrinfo and is freed once.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

fn resolver_message(code: c_int) -> String {
    // SAFETY: the call answers a valid pointer for any code.
    let text = unsafe { libc::gai_strerror(code) };
    // SAFETY: the text is static and ends in NUL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Why a user could not be taken on.
#[derive(Debug)]
pub enum UserError {
    /// The user database could not be read.
    Lookup(io::Error),
    /// It has no such user.
    Unknown,
    /// The system did not allow the change; the operation and its error.
    Denied(&'static str, io::Error),
}

/// Becomes `name` and its primary group, and lets go of all supplementary groups. A process that
/// is that user already changes nothing.
pub fn become_user(name: &str) -> Result<(), UserError> {
    let (uid, gid) = find_user(name)?;
    let denied = |operation| move |error| UserError::Denied(operation, error);
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root {
        // SAFETY: no groups, so the pointer is not read.
        let result = unsafe { libc::setgroups(0, ptr::null()) };
        check(result).map_err(denied("setgroups"))?;
    }
    // SAFETY: takes no pointers.
    let result = unsafe { libc::setgid(gid) };
    check(result).map_err(denied("setgid"))?;
    // SAFETY: takes no pointers.
    let result = unsafe { libc::setuid(uid) };
    check(result).map_err(denied("setuid"))?;
    Ok(())
}

fn find_user(name: &str) -> Result<(libc::uid_t, libc::gid_t), UserError> {
    let name = CString::new(name).map_err(|_| UserError::Unknown)?;
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut strings = vec![0 as c_char; 64 * 1024];
    let mut found = ptr::null_mut();
    // SAFETY: every pointer is valid for the length given or implied.
    let code = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            strings.as_mut_ptr(),
            strings.len(),
            &raw mut found,
        )
    };
    if code != 0 {
        return Err(UserError::Lookup(io::Error::from_raw_os_error(code)));
    }
    // SAFETY: null where there is no such user; otherwise it points at `entry`, now filled.
    let entry = unsafe { found.as_ref() }.ok_or(UserError::Unknown)?;
    Ok((entry.pw_uid, entry.pw_gid))
}

/// Raises the limit on open descriptors as far as the process may, and answers what it is then.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for one rlimit.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    check(result)?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer is valid for one rlimit.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    check(result)?;
    Ok(limit.rlim_cur)
}

/// Has the kernel make the pages of some memory ready in one call, but for a last one that is not
/// all of it; false if it cannot, and then each is made ready as it is touched.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn populate(bytes: &mut [u8]) -> bool {
    // SAFETY: takes no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let before = bytes.as_ptr().addr() % page;
    let start = bytes.as_mut_ptr().wrapping_sub(before);
    let length = (before + bytes.len()) / page * page;
    // SAFETY: no byte of any page changes, and pages that are not there fail the call.
    let result = unsafe { libc::madvise(start.cast(), length, libc::MADV_POPULATE_WRITE) };
    check(result).is_ok()
}

/// The same where no system call does it.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn populate(_: &mut [u8]) -> bool {
    false
}

/// Takes the POSIX lock on a whole file for this process, which keeps it until it ends or closes
/// any descriptor of that file. Fails at once where another process has it.
pub fn lock_file(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: a flock of zeros is valid: from the start to the end of the file.
    let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    lock.l_type = c_short::try_from(libc::F_WRLCK).expect("a small constant");
    lock.l_whence = c_short::try_from(libc::SEEK_SET).expect("a small constant");
    // SAFETY: the pointer is valid for one flock.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    check(result).map(drop)
}

/// The first offset of a file, from this one on, at which a byte may stand that is not zero; `None`
/// if there are only zeros up to its end. A system or a file system that does not tell holes from
/// data answers the offset itself.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub fn next_data(file: &impl AsRawFd, offset: u64) -> io::Result<Option<u64>> {
    let Ok(from) = libc::off_t::try_from(offset) else { return Ok(None) };
    // SAFETY: takes no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from, libc::SEEK_DATA) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found.max(offset)));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS | libc::ESPIPE) => Ok(Some(offset)),
        _ => Err(error),
    }
}
/// The same where holes cannot be asked for.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
#[expect(clippy::unnecessary_wraps, reason = "the same shape on every system")]
pub fn next_data(_: &impl AsRawFd, offset: u64) -> io::Result<Option<u64>> {
    Ok(Some(offset))
}

/// What some file systems answer, though the number is the kernel's own.
#[cfg(any(target_os = "linux", target_os = "android"))]
const ENOTSUPP: c_int = 524;

/// Makes a file `size` bytes long and has the file system set their space aside. False if it does
/// not offer that; then nothing has changed.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn reserve_space(file: &impl AsRawFd, size: u64) -> io::Result<bool> {
    let size = libc::off_t::try_from(size).map_err(|_| io::ErrorKind::StorageFull)?;
    loop {
        // SAFETY: takes no pointers.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) };
        let Err(error) = check(result) else { return Ok(true) };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(
                libc::EOPNOTSUPP
                | libc::ENOSYS
                | libc::EINVAL
                | libc::ENODEV
                | libc::EPERM
                | ENOTSUPP,
            ) => return Ok(false),
            _ => return Err(error),
        }
    }
}
/// The same where no system call does it without writing.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[expect(clippy::unnecessary_wraps, reason = "the same shape on every system")]
pub fn reserve_space(_: &impl AsRawFd, _: u64) -> io::Result<bool> {
    Ok(false)
}

/// What `uname` tells of the machine.
#[derive(Debug, Clone)]
pub struct Uname {
    /// The machine's name.
    pub nodename: String,
    /// The kernel's version.
    pub version: String,
    /// The processor's kind.
    pub machine: String,
}

/// Asks the kernel about itself.
pub fn uname() -> io::Result<Uname> {
    let mut names = MaybeUninit::<libc::utsname>::uninit();
    // SAFETY: the pointer is valid for one utsname.
    let result = unsafe { libc::uname(names.as_mut_ptr()) };
    check(result)?;
    // SAFETY: the call succeeded, so it has filled the utsname.
    let names = unsafe { names.assume_init() };
    Ok(Uname {
        nodename: text(&names.nodename),
        version: text(&names.version),
        machine: text(&names.machine),
    })
}

/// The text in a C array up to its NUL.
fn text(array: &[c_char]) -> String {
    let bytes = array.iter().map(|c| c.to_le_bytes()[0]).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// CPU time of this process, in seconds and microseconds: its own, and the kernel's for it.
pub fn cpu_time() -> ((u64, u32), (u64, u32)) {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for one rusage.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if result == -1 {
        return Default::default();
    }
    // SAFETY: the call succeeded, so it has filled the rusage.
    let usage = unsafe { usage.assume_init() };
    let split = |time: libc::timeval| {
        (u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_usec).unwrap_or(0))
    };
    (split(usage.ru_utime), split(usage.ru_stime))
}

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

/// Has large blocks of memory come from the system one by one, so that each goes back to it when
/// it is freed. The C library would otherwise change its mind at the first one that is freed.
pub fn keep_large_blocks_apart() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. It can only refuse, and then memory is kept longer.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024)
    };
}

/// Looks at what has arrived at a socket, up to the length of the buffer, and leaves it there.
pub fn peek(socket: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (start, length) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the pointer is valid for the length given.
    let count = unsafe { libc::recv(socket.as_raw_fd(), start.cast(), length, libc::MSG_PEEK) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Has all threads share one place that small blocks of memory come from. The C library would
/// otherwise take 64 MiB of address space for each thread, however little it allocates, and a
/// limit on address space counts that.
pub fn share_small_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. It can only refuse, and then address space is used up.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Eight bytes that no other run of the daemon has.
pub fn random_bytes() -> io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    // SAFETY: the pointer is valid for the length given, which is within getentropy's 256.
    let result = unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) };
    check(result)?;
    Ok(bytes)
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
