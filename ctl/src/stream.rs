//! A socket, TCP or UNIX, with a time limit on every call.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::address::Address;

/// The time limit of a connect, a read or a write.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A reply may take longer than [`TIMEOUT`] if at least this many of its bytes arrive per second.
const REPLY_BYTES_PER_SECOND_MIN: u64 = 4096;

/// The pause before a connect is tried again.
const CONNECT_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// A connection on which no call takes longer than its time limit.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    /// All calls fail after this instant.
    pub(crate) deadline: Option<Instant>,
    /// The reply being read: when it began, and how many bytes of it were read.
    reply: Option<(Instant, u64)>,
}

/// Returns the time limit of the stream's next call: the shorter of `timeout` and the time until
/// the deadline.
fn stream_call_time_limit(timeout: Duration, deadline: Option<Instant>) -> io::Result<Duration> {
    let Some(deadline) = deadline else { return Ok(timeout) };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.min(timeout)) }
}

/// Connects a socket to a UNIX address. If a server hangs and its queue of clients is full, a
/// blocking connect would never return, so a nonblocking connect is repeated.
fn connect_unix_stream(path: &Path, deadline: Option<Instant>) -> io::Result<Socket> {
    let limited = Instant::now() + TIMEOUT;
    let until = Some(deadline.map_or(limited, |deadline| deadline.min(limited)));
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = SockAddr::unix(path)?;
    socket.set_nonblocking(true)?;
    while let Err(error) = socket.connect(&address) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        thread::sleep(stream_call_time_limit(CONNECT_RETRY_PAUSE, until)?);
    }
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Connects a socket to an address, TCP or UNIX.
fn connect_stream(address: &Address, deadline: Option<Instant>) -> io::Result<Socket> {
    let (host, port) = match address {
        Address::Tcp(host, port) => (host.as_str(), *port),
        Address::Unix(path) => return connect_unix_stream(path, deadline),
    };
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        match socket.connect_timeout(&address.into(), stream_call_time_limit(TIMEOUT, deadline)?) {
            Ok(()) => return socket.set_tcp_nodelay(true).map(|()| socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

impl Stream {
    /// Connects a stream. [`TIMEOUT`] limits the connect to each address of the host, and each read
    /// and write. If a deadline is given, all calls fail after the deadline.
    pub(crate) fn connect(address: &Address, deadline: Option<Instant>) -> io::Result<Self> {
        let socket = connect_stream(address, deadline)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { socket, deadline, reply: None })
    }

    /// Records that a reply begins or has ended, because a whole reply has a time limit.
    pub(crate) fn set_in_reply(&mut self, is_in_reply: bool) {
        self.reply = is_in_reply.then(|| (Instant::now(), 0));
    }

    /// Whether an error of a stream's read means that no byte arrived in time.
    pub(crate) fn is_timeout(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    }
}

impl AsFd for Stream {
    /// Returns the descriptor of the stream's socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for Stream {
    /// Reads from the stream, within the time limits of the socket and of the reply.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let reply_end = self.reply.map(|(began, bytes)| {
            began + TIMEOUT + Duration::from_secs(bytes / REPLY_BYTES_PER_SECOND_MIN)
        });
        let end = [self.deadline, reply_end].into_iter().flatten().min();
        if end.is_some() {
            let timeout = stream_call_time_limit(TIMEOUT, end)?;
            self.socket.set_read_timeout(Some(timeout))?;
        }
        let count = self.socket.read(buffer)?;
        if let Some((_, bytes)) = &mut self.reply {
            *bytes += count as u64;
        }
        Ok(count)
    }
}

impl Write for Stream {
    /// Writes to the stream, within the time limit.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.deadline.is_some() {
            self.socket.set_write_timeout(Some(stream_call_time_limit(TIMEOUT, self.deadline)?))?;
        }
        self.socket.write(bytes)
    }

    /// Does nothing, because the stream has no buffer.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A blocking connect to a server that hangs with a full backlog would never return.
    #[test]
    fn a_unix_socket_that_accepts_nothing_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // Call `listen` again, to set the length of the backlog.
        socket2::SockRef::from(&listener).listen(0).unwrap();
        let address = Address::Unix(path);
        let mut waiting = Vec::new();
        let failure = loop {
            let deadline = Some(Instant::now() + Duration::from_millis(200));
            match Stream::connect(&address, deadline) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the backlog is never full");
        };
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        let deadline = Some(Instant::now() + TIMEOUT);
        let accepted = thread::spawn(move || listener.accept().map(|_| listener));
        Stream::connect(&address, deadline).unwrap();
        accepted.join().unwrap().unwrap();
    }
}
