//! The socket below a connection, TCP or UNIX, with a time limit on whatever it does.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::address::Address;

/// The time limit of a connect, a read or a write.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to an address.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects within the time limit, which then holds for each read and write.
    pub(crate) fn connect(address: &Address) -> io::Result<Self> {
        let (host, port) = match address {
            Address::Tcp(host, port) => (host.as_str(), *port),
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(Self::Unix(stream));
            }
        };
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    return Ok(Self::Tcp(stream));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

impl Stream {
    /// Sets another time limit for reads.
    pub(crate) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_read_timeout(Some(timeout)),
            Self::Unix(unix) => unix.set_read_timeout(Some(timeout)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(buffer),
            Self::Unix(unix) => unix.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            Self::Unix(unix) => unix.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // Nothing is kept back.
    }
}
