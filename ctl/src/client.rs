//! One blocking connection to a server, and pipelining over it.
//!
//! Commands are sent far ahead of their replies. Neither side can wait for the other for ever:
//! [`WINDOW`] bounds how many replies are due, and a server that cannot send reads no more, so
//! either the commands or the replies of a window must fit into the buffers of the sockets.
//! Commands with a body have short replies, and commands with long replies are short.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::address::Address;
use crate::yaml;

/// The most commands whose replies are due.
pub(crate) const WINDOW: usize = 2_000;

/// How many bytes of commands are sent at once.
const SEND_BYTES: usize = 64 * 1024;

/// The time limit of a connect, a read or a write.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest line of a reply, and its longest body: statistics, lists, and jobs. No job can be
/// larger. What is longer comes from no beanstalkd.
const LINE_BYTES: u64 = 8 * 1024;
const BODY_BYTES: usize = 1 << 30;

/// The buffer of a connection for replies, in bytes.
const READ_BYTES: usize = 256 * 1024;

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket, of which no call takes longer than its time limit.
#[derive(Debug)]
struct Stream {
    socket: Socket,
    /// All must be over by then.
    deadline: Option<Instant>,
}

/// Returns the time limit of the next call.
fn limit(deadline: Option<Instant>) -> io::Result<Duration> {
    let Some(deadline) = deadline else { return Ok(TIMEOUT) };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl Stream {
    fn connect(address: &Address, deadline: Option<Instant>) -> io::Result<Self> {
        let (host, port) = match address {
            Address::Tcp(host, port) => (host.as_str(), *port),
            Address::Unix(path) => {
                let unix = UnixStream::connect(path)?;
                unix.set_read_timeout(Some(TIMEOUT))?;
                unix.set_write_timeout(Some(TIMEOUT))?;
                return Ok(Self { socket: Socket::Unix(unix), deadline });
            }
        };
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, limit(deadline)?) {
                Ok(tcp) => {
                    tcp.set_nodelay(true)?;
                    tcp.set_read_timeout(Some(TIMEOUT))?;
                    tcp.set_write_timeout(Some(TIMEOUT))?;
                    return Ok(Self { socket: Socket::Tcp(tcp), deadline });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.map(|_| limit(self.deadline)).transpose()?;
        match &mut self.socket {
            Socket::Tcp(tcp) => {
                left.map_or(Ok(()), |left| tcp.set_read_timeout(Some(left)))?;
                tcp.read(buffer)
            }
            Socket::Unix(unix) => {
                left.map_or(Ok(()), |left| unix.set_read_timeout(Some(left)))?;
                unix.read(buffer)
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.deadline.map(|_| limit(self.deadline)).transpose()?;
        match &mut self.socket {
            Socket::Tcp(tcp) => {
                left.map_or(Ok(()), |left| tcp.set_write_timeout(Some(left)))?;
                tcp.write(bytes)
            }
            Socket::Unix(unix) => {
                left.map_or(Ok(()), |left| unix.set_write_timeout(Some(left)))?;
                unix.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // Nothing is kept back.
    }
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Its line, without CR LF.
    pub(crate) line: String,
    /// The body behind the line, of those that have one.
    pub(crate) body: Option<Vec<u8>>,
}

impl Reply {
    /// Returns the first word.
    pub(crate) fn word(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// Whether the first word is this one.
    pub(crate) fn is(&self, word: &str) -> bool {
        self.word() == word
    }

    /// Returns the number behind the first word, as the id of `INSERTED 7`.
    pub(crate) fn number(&self) -> Option<u64> {
        self.line.split(' ').nth(1)?.parse().ok()
    }

    /// Returns the body of `OK`, as text.
    pub(crate) fn into_yaml(self) -> Result<String> {
        match (self.is("OK"), self.body) {
            (true, Some(body)) => Ok(String::from_utf8_lossy(&body).into_owned()),
            _ => bail!("the server answers {}", self.line),
        }
    }

    /// Makes an error of a reply that was not to be expected.
    pub(crate) fn unexpected(&self, to: &str) -> anyhow::Error {
        match self.word() {
            "OUT_OF_MEMORY" => anyhow!("{to}: the server has no room (OUT_OF_MEMORY)"),
            "DRAINING" => anyhow!("{to}: the server drains, and takes no jobs (DRAINING)"),
            "INTERNAL_ERROR" => {
                anyhow!("{to}: the server could not do it; see its log (INTERNAL_ERROR)")
            }
            "UNKNOWN_COMMAND" => anyhow!("{to}: the server does not know this command"),
            _ => anyhow!("{to}: the server answers {}", self.line),
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<Stream>,
    address: Address,
    unsent: Vec<u8>,
    extensions: Option<Vec<String>>,
}

impl Client {
    /// Connects to an address.
    pub(crate) fn connect(address: &Address) -> Result<Self> {
        Self::connect_until(address, None)
    }

    /// Connects to an address. If there is a deadline, all that is asked must be over by then.
    pub(crate) fn connect_until(address: &Address, deadline: Option<Instant>) -> Result<Self> {
        let stream = Stream::connect(address, deadline).with_context(|| format!("{address}"))?;
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        Ok(Self { stream, address: address.clone(), unsent: Vec::new(), extensions: None })
    }

    /// Returns where the server listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sets when all that is asked from now on must be over.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.stream.get_mut().deadline = Some(deadline);
    }

    /// Sends what has been written.
    fn send(&mut self) -> Result<()> {
        let result = self.stream.get_mut().write_all(&self.unsent);
        self.unsent.clear();
        result.map_err(|error| self.lost(&error))
    }

    /// Describes the end of a connection.
    fn lost(&self, error: &io::Error) -> anyhow::Error {
        let address = &self.address;
        match error.kind() {
            io::ErrorKind::UnexpectedEof => anyhow!("{address}: the server closed the connection"),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                if self.stream.get_ref().deadline.is_some() =>
            {
                anyhow!("{address}: it has not told all in time")
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                anyhow!("{address}: no reply within {} seconds", TIMEOUT.as_secs())
            }
            _ => anyhow!("{address}: the connection is lost: {error}"),
        }
    }

    /// Reads the next reply.
    fn receive(&mut self) -> Result<Reply> {
        self.read_reply().map_err(|error| self.lost(&error))
    }

    fn read_reply(&mut self) -> io::Result<Reply> {
        let mut line = Vec::with_capacity(32);
        (&mut self.stream).take(LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.len() as u64 == LINE_BYTES {
            return Err(io::Error::other("no beanstalkd: a line without an end"));
        }
        if !line.ends_with(b"\r\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        let line = String::from_utf8(line).map_err(|_| io::Error::other("no beanstalkd"))?;
        let mut body = None;
        if ["OK ", "FOUND ", "RESERVED "].iter().any(|word| line.starts_with(word)) {
            let length = line.rsplit(' ').next().and_then(|digits| digits.parse::<usize>().ok());
            let length = length.ok_or_else(|| io::Error::other(format!("odd reply: {line}")))?;
            if length > BODY_BYTES {
                return Err(io::Error::other(format!("odd reply: {line}")));
            }
            // Room grows with what comes: a server may promise more than it has.
            let whole = length + 2;
            let mut bytes = Vec::with_capacity(whole.min(READ_BYTES));
            (&mut self.stream).take(whole as u64).read_to_end(&mut bytes)?;
            if bytes.len() < whole {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !bytes.ends_with(b"\r\n") {
                return Err(io::Error::other(format!("a body without its end: {line}")));
            }
            bytes.truncate(length);
            body = Some(bytes);
        }
        Ok(Reply { line, body })
    }

    /// Sends a command and waits for its reply.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Reply> {
        self.unsent.extend_from_slice(command.as_bytes());
        self.unsent.extend_from_slice(b"\r\n");
        self.send()?;
        self.receive()
    }

    /// Sends a command that answers `OK` and a body, and returns that.
    pub(crate) fn yaml(&mut self, command: &str) -> Result<String> {
        let reply = self.ask(command)?;
        if reply.is("OK") { reply.into_yaml() } else { Err(reply.unexpected(command)) }
    }

    /// Sends a command for each item and gives each reply with its item, many on their way.
    ///
    /// If this fails, the items that `take` has not got may or may not have been carried out.
    pub(crate) fn pipeline<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&T, &mut Vec<u8>),
        take: impl FnMut(T, Reply) -> Result<()>,
    ) -> Result<()> {
        self.pipeline_of(WINDOW, items, write, take)
    }

    /// The same with so many replies due at most. Fewer hold up other clients less.
    pub(crate) fn pipeline_of<T>(
        &mut self,
        window: usize,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&T, &mut Vec<u8>),
        mut take: impl FnMut(T, Reply) -> Result<()>,
    ) -> Result<()> {
        let mut items = items.into_iter();
        let mut due: VecDeque<T> = VecDeque::new();
        let mut is_over = false;
        while !is_over || !due.is_empty() {
            while !is_over && due.len() < window {
                let Some(item) = items.next() else {
                    is_over = true;
                    break;
                };
                write(&item, &mut self.unsent);
                due.push_back(item);
                if self.unsent.len() >= SEND_BYTES {
                    self.send()?;
                }
            }
            self.send()?;
            let rest = if is_over { 0 } else { window / 2 };
            while due.len() > rest {
                let reply = self.receive()?;
                let item = due.pop_front().expect("a reply is due");
                take(item, reply)?;
            }
        }
        Ok(())
    }

    /// Whether the server has a command beyond those of the original.
    pub(crate) fn has(&mut self, extension: &str) -> Result<bool> {
        if self.extensions.is_none() {
            let reply = self.ask("capabilities")?;
            let text = if reply.is("OK") { reply.into_yaml()? } else { String::new() };
            self.extensions = Some(yaml::items(&text).map(str::to_owned).collect());
        }
        Ok(self.extensions.iter().flatten().any(|name| name == extension))
    }
}

/// Writes a command that is a word and a number.
pub(crate) fn write_numbered(out: &mut Vec<u8>, word: &str, number: u64) {
    write!(out, "{word} {number}\r\n").expect("memory takes it");
}

/// Writes a `put` with its body.
pub(crate) fn write_put(out: &mut Vec<u8>, pri: u32, delay: u64, ttr: u64, body: &[u8]) {
    write!(out, "put {pri} {delay} {ttr} {}\r\n", body.len()).expect("memory takes it");
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Serves one connection with these bytes, whatever it sends.
    fn serving(replies: Vec<u8>, act: impl FnOnce(&mut Client)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut peer, _) = listener.accept().unwrap();
                peer.write_all(&replies).unwrap();
                peer.shutdown(std::net::Shutdown::Write).unwrap();
                let mut rest = Vec::new();
                peer.read_to_end(&mut rest).unwrap();
            });
            act(&mut Client::connect(&Address::Tcp("127.0.0.1".into(), port)).unwrap());
        });
    }

    #[test]
    fn bodies_may_be_any_bytes() {
        serving(b"FOUND 1 4\r\n\0\r\n\xff\r\nNOT_FOUND\r\nOK 5\r\n---\nx\r\n".to_vec(), |client| {
            let found = client.ask("peek 1").unwrap();
            assert_eq!((found.word(), found.number()), ("FOUND", Some(1)));
            assert_eq!(found.body.unwrap(), b"\0\r\n\xff");
            assert!(client.ask("peek 2").unwrap().is("NOT_FOUND"));
            assert_eq!(client.yaml("stats").unwrap(), "---\nx");
            let error = client.ask("stats").unwrap_err().to_string();
            assert!(error.contains("closed the connection"), "{error}");
        });
    }

    /// What is no beanstalkd must neither fill the memory nor end the program.
    #[test]
    fn a_reply_of_any_promised_length_is_only_an_error() {
        for length in ["18446744073709551615", "9223372036854775807", "200000000000", "900000000"] {
            serving(format!("OK {length}\r\n---\n").into_bytes(), |client| {
                assert!(client.ask("stats").is_err(), "{length}");
            });
        }
        serving(vec![b'x'; 1 << 20], |client| {
            let error = client.ask("stats").unwrap_err().to_string();
            assert!(error.contains("a line without an end"), "{error}");
        });
    }

    #[test]
    fn each_reply_of_a_pipeline_meets_its_command() {
        let count = 3 * WINDOW as u64 + 7;
        let reply = |id: u64| format!("INSERTED {id}\r\n");
        let replies = (0..count).map(reply).collect::<Vec<_>>().concat();
        serving(replies.into_bytes(), |client| {
            let mut next = 0;
            let take = |id: u64, reply: Reply| {
                assert_eq!((reply.number(), id), (Some(id), next));
                next += 1;
                Ok(())
            };
            client.pipeline(0..count, |_, out| write_put(out, 1, 2, 3, b"x"), take).unwrap();
            assert_eq!(next, count);
            assert!(client.pipeline([1], |_, _| {}, |_, _| Ok(())).is_err());
        });
    }
}
