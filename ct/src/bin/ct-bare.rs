//! The bare responder: a program that keeps no jobs and is faster than any daemon could be.
//!
//! The responder waits, reads, finds line ends and writes `INSERTED 1` for each line that begins
//! with a lower-case letter. The other lines are bodies: no body of the load begins with a
//! lower-case letter. No real daemon with this event loop can be faster on one core.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

const USAGE: &str = "\
Usage: ct-bare [-l ADDRESS] [-p PORT]

Answers every line that begins with a lower-case letter with INSERTED 1, and drops the others.

 -l ADDRESS     listen on this address (127.0.0.1)
 -p PORT        listen on this port (11300)
 -v             print the version
 -h, --help     this help
";

const REPLY: &[u8] = b"INSERTED 1\r\n";
/// The most replies in one write.
const REPLIES_PER_WRITE: usize = 4096;
const LISTENER: Token = Token(usize::MAX);

/// Runs `ct-bare`, the bare responder, and returns its exit status.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments).and_then(|address| address.map_or(Ok(()), serve)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ct-bare: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::AddrInUse { 111 } else { 2 })
        }
    }
}

/// Returns the address for the bare responder to listen on; `None` if help or version was printed.
fn parse(arguments: &[String]) -> io::Result<Option<SocketAddr>> {
    let (mut host, mut port) = ("127.0.0.1", "11300");
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(flag) = arguments.next() {
        match flag {
            "-h" | "--help" => {
                print!("{USAGE}");
                return Ok(None);
            }
            "-v" => {
                println!("bare");
                return Ok(None);
            }
            "-l" => host = arguments.next().ok_or_else(|| io::Error::other(USAGE))?,
            "-p" => port = arguments.next().ok_or_else(|| io::Error::other(USAGE))?,
            _ => return Err(io::Error::other(USAGE)),
        }
    }
    format!("{host}:{port}").parse().map(Some).map_err(io::Error::other)
}

/// One client.
struct Connection {
    socket: TcpStream,
    /// Whether the next byte begins a line.
    at_start: bool,
    /// The number of bytes of replies that are not sent yet.
    unsent: usize,
}

/// Answers all connections of the bare responder, in an endless loop.
fn serve(address: SocketAddr) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(address)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(1024);
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    let replies = REPLY.repeat(REPLIES_PER_WRITE);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        }
        for event in &events {
            if event.token() == LISTENER {
                accept(&listener, &poll, &mut connections)?;
                continue;
            }
            let slot = &mut connections[event.token().0];
            let Some(connection) = slot else { continue };
            if connection.advance(&mut buffer, &replies).is_err() {
                *slot = None;
            }
        }
    }
}

/// Accepts the connections that wait for the bare responder.
fn accept(
    listener: &TcpListener,
    poll: &Poll,
    connections: &mut Vec<Option<Connection>>,
) -> io::Result<()> {
    loop {
        let mut socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        socket.set_nodelay(true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut socket, Token(connections.len()), interest)?;
        connections.push(Some(Connection { socket, at_start: true, unsent: 0 }));
    }
}

impl Connection {
    /// Answers the lines that the bare responder has received so far; an error means that the
    /// connection has ended.
    fn advance(&mut self, buffer: &mut [u8], replies: &[u8]) -> io::Result<()> {
        loop {
            if !self.flush(replies)? {
                return Ok(());
            }
            match self.socket.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    self.unsent += REPLY.len() * self.count_commands(&buffer[..length]);
                    if length < buffer.len() {
                        return self.flush(replies).map(|_| ());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts the lines that the bare responder answers: those that begin with a lower-case letter.
    fn count_commands(&mut self, bytes: &[u8]) -> usize {
        let mut commands = 0;
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            if self.at_start && first.is_ascii_lowercase() {
                commands += 1;
            }
            let end = memchr::memchr(b'\n', rest);
            self.at_start = end.is_some();
            rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
        }
        commands
    }

    /// Writes unsent replies of the bare responder; returns false if the socket's buffer is full.
    fn flush(&mut self, replies: &[u8]) -> io::Result<bool> {
        while self.unsent > 0 {
            match self.socket.write(tail(replies, self.unsent)) {
                Ok(length) => self.unsent -= length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Returns the bytes that the bare responder writes next: the rest of a partly sent reply, then
/// whole replies.
fn tail(replies: &[u8], unsent: usize) -> &[u8] {
    let length = match unsent.checked_sub(replies.len()) {
        Some(_) => replies.len() - REPLY.len() + unsent % REPLY.len(),
        None => unsent,
    };
    &replies[replies.len() - length..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Connection { socket: TcpStream::from_std(stream), at_start: true, unsent: 0 }
    }

    #[test]
    fn commands_are_counted_however_they_are_split() {
        let stream = b"put 0 0 60 3\r\n...\r\nreserve\r\n\r\ndelete 1\r\nput 0 0 60 0\r\n\r\n";
        for cut in 0..stream.len() {
            let (front, back) = stream.split_at(cut);
            let mut connection = connection();
            let counted = connection.count_commands(front) + connection.count_commands(back);
            assert_eq!(counted, 4, "cut at {cut}");
        }
    }

    #[test]
    fn partial_writes_join_to_whole_replies() {
        let replies = REPLY.repeat(3);
        for step in [1, 5, 11, 12, 13, 36] {
            let (mut unsent, mut sent) = (10 * REPLY.len(), Vec::new());
            while unsent > 0 {
                let part = tail(&replies, unsent);
                let part = &part[..part.len().min(step)];
                sent.extend_from_slice(part);
                unsent -= part.len();
            }
            assert_eq!(sent, REPLY.repeat(10), "in steps of {step}");
        }
    }
}
