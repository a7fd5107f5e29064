//! Sockets, with the options that the standard library does not offer.

use std::{
    ffi::{CStr, CString, c_int, c_short},
    io,
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use super::check;

/// Listens on the first usable TCP address of `host` and `service`, each a name or a number.
/// Connections inherit two options of the socket: no delay and keepalive. A socket that listens on
/// all IPv6 addresses also accepts IPv4, unless `ipv6_only` is set.
pub fn listen_tcp(host: &str, service: &str, ipv6_only: bool) -> io::Result<TcpListener> {
    Addresses::resolve(host, service)?.first(|address| listen_on(address, ipv6_only))
}

/// Connects to the first address of `host` and `service` that answers within the system's timeout.
pub fn connect_tcp(host: &str, service: &str) -> io::Result<TcpStream> {
    Addresses::resolve(host, service)?.first(|address| {
        let fd = open_socket(address)?;
        // SAFETY: getaddrinfo made the address, and the length that belongs to it.
        let connected =
            unsafe { libc::connect(fd.as_raw_fd(), address.ai_addr, address.ai_addrlen) };
        check(connected)?;
        Ok(TcpStream::from(fd))
    })
}

/// Whether a write of at most `PIPE_BUF` bytes would return at once, perhaps with an error.
pub fn is_writable(file: &impl AsFd) -> bool {
    is_ready(file, libc::POLLOUT)
}

/// Whether a listening socket has a connection to accept, or an error.
pub fn has_client(listener: &impl AsFd) -> bool {
    is_ready(listener, libc::POLLIN)
}

/// Whether a socket or pipe is ready for any of `events`.
fn is_ready(file: &impl AsFd, events: c_short) -> bool {
    let mut asked = libc::pollfd { fd: file.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: the pointer is valid for one entry.
    unsafe { libc::poll(&raw mut asked, 1, 0) != 0 }
}

/// Opens a TCP listener on one resolved address.
fn listen_on(address: &libc::addrinfo, ipv6_only: bool) -> io::Result<TcpListener> {
    let fd = open_socket(address)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if address.ai_family == libc::AF_INET6 {
        let only = set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, c_int::from(ipv6_only));
        match only {
            // On OpenBSD, no IPv6 socket accepts IPv4, whatever the value of this option is.
            Err(error) if !ipv6_only && error.raw_os_error() == Some(libc::EINVAL) => {}
            result => result?,
        }
    }
    set_tcp_options(&fd)?;
    // SAFETY: getaddrinfo made the address, and the length that belongs to it.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), address.ai_addr, address.ai_addrlen) };
    check(bound)?;
    // SAFETY: takes no pointers.
    let listening = unsafe { libc::listen(fd.as_raw_fd(), 1024) };
    check(listening)?;
    let listener = TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Opens a stream socket for a resolved address.
fn open_socket(address: &libc::addrinfo) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(address.ai_family, libc::SOCK_STREAM, address.ai_protocol) };
    let fd = check(fd)?;
    // SAFETY: the descriptor is new, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_close_on_exec(&fd)?;
    Ok(fd)
}

/// How long a connection may be silent before its peer is probed. Load balancers of cloud providers
/// drop a silent connection after 240 seconds or more, without notice.
const KEEPALIVE_IDLE_SECONDS: c_int = 200;

/// The interval between probes. The loss of a peer is noticed after [`KEEPALIVE_PROBES`] probes:
/// five minutes after its last byte. With the system's defaults, that would take over two hours.
const KEEPALIVE_INTERVAL_SECONDS: c_int = 20;
const KEEPALIVE_PROBES: c_int = 5;

/// Sets the options that connections inherit from a TCP listener: no delay, and keepalive. Probes
/// come earlier and more often than by default, but not on OpenBSD, where the settings of probes
/// are the same for all sockets.
pub fn set_tcp_options(fd: &impl AsFd) -> io::Result<()> {
    #[cfg(target_vendor = "apple")]
    use libc::TCP_KEEPALIVE as TCP_KEEPIDLE;
    #[cfg(not(any(target_vendor = "apple", target_os = "openbsd")))]
    use libc::TCP_KEEPIDLE;

    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    #[cfg(not(target_os = "openbsd"))]
    for (name, value) in [
        (TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
        (libc::TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS),
        (libc::TCP_KEEPCNT, KEEPALIVE_PROBES),
    ] {
        set_option(fd, libc::IPPROTO_TCP, name, value)?;
    }
    Ok(())
}

/// Sets an option of a socket to a number.
fn set_option(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    let length = libc::socklen_t::try_from(size_of::<c_int>()).expect("four");
    let value: *const c_int = &raw const value;
    // SAFETY: the pointer is valid for the length given, and the option takes an int.
    let result = unsafe { libc::setsockopt(fd, level, name, value.cast(), length) };
    check(result).map(drop)
}

/// Reads an option of level `SOL_SOCKET`.
fn option(fd: BorrowedFd<'_>, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of::<c_int>()).expect("four");
    let pointer: *mut c_int = &raw mut value;
    let (fd, level) = (fd.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: both pointers are valid, the first for the length that the second points at.
    let result = unsafe { libc::getsockopt(fd, level, name, pointer.cast(), &raw mut length) };
    check(result).map(|_| value)
}

/// Ensures that no program that this process starts inherits the socket.
fn set_close_on_exec(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    check(result).map(drop)
}

/// Takes over a descriptor that this process inherited. Succeeds only once for each descriptor.
pub fn inherit(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers, and changes nothing.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    // A descriptor that was passed through exec lacks FD_CLOEXEC. All descriptors that this process
    // opens have FD_CLOEXEC.
    if !check(flags).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no socket was passed on there"));
    }
    // SAFETY: the descriptor is open and was passed through exec, so nothing in this process owns
    // it. FD_CLOEXEC, which is set below, prevents a second takeover.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    set_close_on_exec(&fd)?;
    Ok(fd)
}

/// Whether the descriptor is a listening stream socket. Some systems, such as OpenBSD, do not
/// report whether a socket listens; on such systems, returns true for any stream socket.
pub fn is_listening_stream(fd: &impl AsFd) -> bool {
    let is_stream = option(fd.as_fd(), libc::SO_TYPE).is_ok_and(|value| value == libc::SOCK_STREAM);
    is_stream
        && match option(fd.as_fd(), libc::SO_ACCEPTCONN) {
            // FreeBSD returns 2.
            Ok(value) => value != 0,
            Err(error) => error.raw_os_error() == Some(libc::ENOPROTOOPT),
        }
}

/// The result of getaddrinfo, freed when dropped.
struct Addresses(*mut libc::addrinfo);

impl Addresses {
    /// Looks up the TCP addresses of `host` and `service`.
    fn resolve(host: &str, service: &str) -> io::Result<Self> {
        // The resolver would replace a number that is not a valid port with another port.
        let number = service.trim_start();
        let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && number.parse::<i64>().map_or(true, |port| u16::try_from(port).is_err()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a port: use 0 to 65535"));
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

    /// Calls `make` for each address until a call succeeds, and returns the result of that call. If
    /// no call succeeds, returns the last error.
    fn first<T>(&self, make: impl Fn(&libc::addrinfo) -> io::Result<T>) -> io::Result<T> {
        // SAFETY: each pointer in the list is either null, or valid until `self` is dropped.
        let deref = |pointer: *mut libc::addrinfo| unsafe { pointer.as_ref() };
        let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut next = deref(self.0);
        while let Some(address) = next {
            match make(address) {
                Ok(thing) => return Ok(thing),
                Err(failure) => error = failure,
            }
            next = deref(address.ai_next);
        }
        Err(error)
    }
}

impl Drop for Addresses {
    /// Frees the list of resolved addresses.
    fn drop(&mut self) {
        // SAFETY: the list came from getaddrinfo and is freed once.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// The text for an error code of the resolver.
fn resolver_message(code: c_int) -> String {
    // SAFETY: the call returns a valid pointer for any code.
    let text = unsafe { libc::gai_strerror(code) };
    // SAFETY: the text is static and ends in NUL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
