//! A socket, TCP or UNIX, with a time limit on every call.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Type};

use crate::address::Address;

/// The time limit of a connect, a read or a write.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The pause before a connect is tried again.
const CONNECT_RETRY_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection on which no call takes longer than its time limit.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    /// The time limit of a read.
    read_timeout: Duration,
    /// All calls fail after this time.
    pub(crate) deadline: Option<Instant>,
}

/// Returns the time limit of the next call, which ends at the deadline at the latest.
fn limit(timeout: Duration, deadline: Option<Instant>) -> io::Result<Duration> {
    let Some(deadline) = deadline else { return Ok(timeout) };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.min(timeout)) }
}

/// Connects to a UNIX socket. While the queue of a hung server is full, a blocking connect would
/// never return, so a nonblocking one is repeated.
fn connect_unix(path: &Path, deadline: Option<Instant>) -> io::Result<UnixStream> {
    let limited = Instant::now() + TIMEOUT;
    let until = Some(deadline.map_or(limited, |deadline| deadline.min(limited)));
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = SockAddr::unix(path)?;
    socket.set_nonblocking(true)?;
    while let Err(error) = socket.connect(&address) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        thread::sleep(limit(CONNECT_RETRY_PAUSE, until)?);
    }
    socket.set_nonblocking(false)?;
    Ok(OwnedFd::from(socket).into())
}

impl Socket {
    fn connect(address: &Address, deadline: Option<Instant>) -> io::Result<Self> {
        let (host, port) = match address {
            Address::Tcp(host, port) => (host.as_str(), *port),
            Address::Unix(path) => return connect_unix(path, deadline).map(Self::Unix),
        };
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, limit(TIMEOUT, deadline)?) {
                Ok(tcp) => {
                    tcp.set_nodelay(true)?;
                    return Ok(Self::Tcp(tcp));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_read_timeout(Some(timeout)),
            Self::Unix(unix) => unix.set_read_timeout(Some(timeout)),
        }
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_write_timeout(Some(timeout)),
            Self::Unix(unix) => unix.set_write_timeout(Some(timeout)),
        }
    }
}

impl Stream {
    /// Connects within the time limit, which also applies to each later read and write. All calls
    /// fail after the deadline, if there is one.
    pub(crate) fn connect(address: &Address, deadline: Option<Instant>) -> io::Result<Self> {
        let socket = Socket::connect(address, deadline)?;
        socket.set_read_timeout(TIMEOUT)?;
        socket.set_write_timeout(TIMEOUT)?;
        Ok(Self { socket, read_timeout: TIMEOUT, deadline })
    }

    /// Changes the time limit of reads.
    pub(crate) fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.read_timeout = timeout;
        self.socket.set_read_timeout(timeout)
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        limit(TIMEOUT, self.deadline).is_err()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(tcp) => tcp.as_fd(),
            Socket::Unix(unix) => unix.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.deadline.is_some() {
            self.socket.set_read_timeout(limit(self.read_timeout, self.deadline)?)?;
        }
        match &mut self.socket {
            Socket::Tcp(tcp) => tcp.read(buffer),
            Socket::Unix(unix) => unix.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.deadline.is_some() {
            self.socket.set_write_timeout(limit(TIMEOUT, self.deadline)?)?;
        }
        match &mut self.socket {
            Socket::Tcp(tcp) => tcp.write(bytes),
            Socket::Unix(unix) => unix.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // Nothing is buffered.
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A hung server's queue of connections is full, and then a plain connect never returns.
    #[test]
    fn a_unix_socket_that_accepts_nothing_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // A second call sets how many may wait.
        socket2::SockRef::from(&listener).listen(0).unwrap();
        let address = Address::Unix(path);
        let mut waiting = Vec::new();
        let failure = loop {
            let deadline = Some(Instant::now() + Duration::from_millis(200));
            match Stream::connect(&address, deadline) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "nothing is full");
        };
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        let deadline = Some(Instant::now() + TIMEOUT);
        let accepted = thread::spawn(move || listener.accept().map(|_| listener));
        Stream::connect(&address, deadline).unwrap();
        accepted.join().unwrap().unwrap();
    }
}
