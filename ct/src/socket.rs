//! A [`Stage`] over sockets: plays scripts against any daemon that listens at an address.
//!
//! Reads and writes block, up to a time limit. To let time pass, the stage sleeps.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::os;
use crate::run::{Arrived, Patience, Stage};

/// Time limit of an expected reply, long enough for a busy machine.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an expected silence must last; short, because after a barrier no reply is in transit.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(80);
/// Time limit of a write to a daemon that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// One connection, over TCP or a UNIX socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects a socket to `host:port` or `unix:/path`.
    pub(crate) fn connect(address: &str) -> io::Result<Self> {
        let stream = match address.strip_prefix("unix:") {
            Some(path) => Self::Unix(UnixStream::connect(path)?),
            None => Self::Tcp(TcpStream::connect(address)?),
        };
        match &stream {
            Self::Tcp(tcp) => {
                tcp.set_nodelay(true)?;
                tcp.set_write_timeout(Some(SEND_TIMEOUT))?;
            }
            Self::Unix(unix) => unix.set_write_timeout(Some(SEND_TIMEOUT))?,
        }
        Ok(stream)
    }

    /// Sets the time limit of the socket's reads.
    pub(crate) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_read_timeout(Some(timeout)),
            Self::Unix(unix) => unix.set_read_timeout(Some(timeout)),
        }
    }

    /// Returns the descriptor of the socket.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
        }
    }

    /// Shuts down the sending side of the socket.
    pub(crate) fn shut_down_writing(&self) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Write),
            Self::Unix(unix) => unix.shutdown(Shutdown::Write),
        }
    }
}

impl Drop for Stream {
    /// Shuts down the sending side of the socket before the descriptor is closed.
    ///
    /// Without the shutdown, the daemon may notice the close late. If another thread starts a
    /// process, that process has copies of all descriptors between fork and exec, and the copies
    /// keep the connection open.
    fn drop(&mut self) {
        // Shutting down fails only if the connection is already closed.
        let _ = self.shut_down_writing();
    }
}

impl Read for Stream {
    /// Reads from the socket.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(buffer),
            Self::Unix(unix) => unix.read(buffer),
        }
    }
}

impl Write for Stream {
    /// Writes to the socket.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            Self::Unix(unix) => unix.write(bytes),
        }
    }

    /// Does nothing, because `Stream` does not buffer writes.
    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // Nothing is buffered here.
    }
}

/// Plays scripts against a daemon at an address.
#[derive(Debug)]
pub struct SocketStage {
    address: String,
    pid: Option<u32>,
    streams: HashMap<String, Stream>,
    began: Instant,
    /// The time spent on waits that the script requires.
    time_waited: Duration,
}

impl SocketStage {
    /// Makes a stage, on which scripts are played, for a daemon at `host:port` or `unix:/path`.
    /// Does not connect yet.
    ///
    /// Scripts can drain the daemon only if its pid is given. While the stage is in use, the caller
    /// must not reap the process, because its pid could be used again.
    pub fn new(address: &str, pid: Option<u32>) -> Self {
        let (streams, began, time_waited) = (HashMap::new(), Instant::now(), Duration::ZERO);
        Self { address: address.to_owned(), pid, streams, began, time_waited }
    }

    /// Returns how late the script is: the time spent on sending and receiving, and the time by
    /// which sleeps were too long.
    pub fn lateness(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.time_waited)
    }

    /// Returns the socket of a script's connection.
    fn stream(&mut self, connection: &str) -> Result<&mut Stream, String> {
        self.streams.get_mut(connection).ok_or_else(|| format!("{connection} is not connected"))
    }
}

/// Turns an error of a socket into a message.
fn describe<'a>(doing: &'a str, connection: &'a str) -> impl Fn(io::Error) -> String + 'a {
    move |error| format!("{connection} could not {doing}: {error}")
}

impl Stage for SocketStage {
    /// Opens the socket of a script's connection.
    fn connect(&mut self, connection: &str) -> Result<(), String> {
        let stream = Stream::connect(&self.address).map_err(describe("connect", connection))?;
        self.streams.insert(connection.to_owned(), stream);
        Ok(())
    }

    /// Sends bytes on the socket of a script's connection.
    fn send(&mut self, connection: &str, bytes: &[u8]) -> Result<(), String> {
        self.stream(connection)?.write_all(bytes).map_err(describe("send", connection))
    }

    /// Reads from the socket of a script's connection, but waits no longer than `patience` allows.
    fn receive(&mut self, connection: &str, patience: Patience) -> Result<Arrived, String> {
        let timeout = match patience {
            Patience::Reply => REPLY_TIMEOUT,
            Patience::Silence => SILENCE_TIMEOUT,
        };
        let stream = self.stream(connection)?;
        stream.set_read_timeout(timeout).map_err(describe("set a time limit", connection))?;
        let mut buffer = vec![0; 64 << 10];
        let begun = Instant::now();
        loop {
            let error = match stream.read(&mut buffer) {
                Ok(0) => return Ok(Arrived::Closed),
                Ok(length) => {
                    buffer.truncate(length);
                    return Ok(Arrived::Bytes(buffer));
                }
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    // The kernel may end a long wait seconds late. If a reply is missing, the
                    // daemon has failed, so the wait does not count as lateness of the script.
                    self.time_waited += match patience {
                        Patience::Reply => begun.elapsed(),
                        Patience::Silence => timeout,
                    };
                    return Ok(Arrived::Nothing);
                }
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    return Ok(Arrived::Closed);
                }
                _ => return Err(describe("receive", connection)(error)),
            }
        }
    }

    /// Shuts down the sending side of the socket of a script's connection.
    fn half_close(&mut self, connection: &str) -> Result<(), String> {
        self.stream(connection)?.shut_down_writing().map_err(describe("half-close", connection))
    }

    /// Closes the socket of a script's connection.
    fn close(&mut self, connection: &str) -> Result<(), String> {
        match self.streams.remove(connection) {
            Some(_) => Ok(()),
            None => Err(format!("{connection} is not connected")),
        }
    }

    /// Sends a byte as TCP urgent data; does nothing on a UNIX socket.
    fn urgent(&mut self, connection: &str, byte: u8) -> Result<(), String> {
        match self.stream(connection)? {
            Stream::Tcp(tcp) => {
                os::send_urgent(tcp.as_fd(), byte).map_err(describe("send", connection))
            }
            Stream::Unix(_) => Ok(()), // A UNIX socket has no urgent data.
        }
    }

    /// Sends SIGUSR1 to the daemon's process, and waits until the signal was delivered.
    fn drain(&mut self) -> Result<(), String> {
        let pid = self.pid.ok_or("the daemon's pid is not known, so it cannot be signalled")?;
        os::send_signal(pid, libc::SIGUSR1).map_err(|error| format!("no signal: {error}"))?;
        os::wait_until_delivered(pid, libc::SIGUSR1, REPLY_TIMEOUT);
        Ok(())
    }

    /// Sleeps, so that time passes.
    fn advance(&mut self, time: Duration) -> Result<(), String> {
        thread::sleep(time);
        self.time_waited += time;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Runs `test` on a stage, and `serve` on the connection that the stage opens.
    fn with_peer(serve: impl FnOnce(TcpStream) + Send, test: impl FnOnce(&mut SocketStage)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::scope(|scope| {
            scope.spawn(move || serve(listener.accept().unwrap().0));
            test(&mut SocketStage::new(&address, None));
        });
    }

    #[test]
    fn bytes_silence_and_the_end_are_distinguished() {
        let serve = |mut peer: TcpStream| {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            peer.write_all(&all).unwrap();
        };
        with_peer(serve, |stage| {
            stage.connect("a").unwrap();
            stage.send("a", b"echo").unwrap();
            assert_eq!(stage.receive("a", Patience::Silence), Ok(Arrived::Nothing));
            stage.half_close("a").unwrap();
            let echo = Arrived::Bytes(b"echo".to_vec());
            assert_eq!(stage.receive("a", Patience::Reply), Ok(echo));
            assert_eq!(stage.receive("a", Patience::Reply), Ok(Arrived::Closed));
        });
    }

    #[test]
    fn a_reset_is_an_end_and_not_a_fault() {
        let serve = |mut peer: TcpStream| {
            // Does not read all bytes, so that closing resets the connection.
            peer.read_exact(&mut [0; 1]).unwrap();
        };
        with_peer(serve, |stage| {
            stage.connect("a").unwrap();
            stage.send("a", b"ignored").unwrap();
            assert_eq!(stage.receive("a", Patience::Reply), Ok(Arrived::Closed));
            stage.close("a").unwrap();
            assert_eq!(stage.close("a"), Err("a is not connected".to_owned()));
        });
    }

    #[test]
    fn an_urgent_byte_is_no_part_of_the_stream() {
        let serve = |mut peer: TcpStream| {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            assert_eq!(all, b"beforeafter");
        };
        with_peer(serve, |stage| {
            stage.connect("a").unwrap();
            stage.send("a", b"before").unwrap();
            stage.urgent("a", b'!').unwrap();
            stage.send("a", b"after").unwrap();
            stage.close("a").unwrap();
        });
    }

    #[test]
    fn without_a_pid_nothing_is_signalled() {
        let error = SocketStage::new("127.0.0.1:1", None).drain().unwrap_err();
        assert!(error.contains("pid is not known"), "{error}");
    }
}
