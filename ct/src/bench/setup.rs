//! A client that brings a daemon into a state quickly, over one blocking connection, and checks
//! every reply.
//!
//! The client makes backlogs, tubes, blocked workers and held jobs; its work is not measured.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::op::append_number;
use super::reader::{Body, Kind, Reader, Reply};

/// The most commands, or groups of commands, in flight.
const COMMANDS_PER_WINDOW: u64 = 400;
/// Time limit of a read or write.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

/// A blocking connection that sends many commands at a time and checks every reply.
#[derive(Debug)]
pub struct SetupClient {
    stream: TcpStream,
    reader: Reader,
    out: Vec<u8>,
    buffer: Vec<u8>,
    body: Body,
    deadline: Option<Instant>,
}

impl SetupClient {
    /// Connects a client for the setup to `host:port`; `body` is the expected body of every job.
    pub fn connect(address: &str, body: Body) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let (out, buffer) = (Vec::new(), vec![0; 64 * 1024]);
        Ok(Self { stream, reader: Reader::default(), out, buffer, body, deadline: None })
    }

    /// Makes the setup's [`Self::send`] fail after this time.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Changes the body that the setup client expects of every job.
    pub fn set_body(&mut self, body: Body) {
        self.body = body;
    }

    /// Returns the setup client's connection, on which no reply is due.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends `count` commands of the setup; `encode` appends the bytes of each command to a buffer.
    /// Calls `on_reply` with each reply. Fails if a reply is of another kind than `kind`.
    pub fn send(
        &mut self,
        count: u64,
        kind: Kind,
        encode: impl FnMut(u64, &mut Vec<u8>),
        on_reply: impl FnMut(Reply),
    ) -> io::Result<()> {
        self.send_groups(count, &[kind], encode, on_reply)
    }

    /// Works like [`Self::send`] for `count` groups of commands; `kinds` has the kinds of the
    /// replies to one group.
    fn send_groups(
        &mut self,
        count: u64,
        kinds: &[Kind],
        mut encode: impl FnMut(u64, &mut Vec<u8>),
        mut on_reply: impl FnMut(Reply),
    ) -> io::Result<()> {
        let mut sent = 0;
        while sent < count {
            let window = COMMANDS_PER_WINDOW.min(count - sent);
            self.out.clear();
            for index in sent..sent + window {
                encode(index, &mut self.out);
            }
            if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                let message = "the daemon takes too long to be brought into this state";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            self.stream.write_all(&self.out)?;
            self.read(window, kinds, &mut on_reply)?;
            sent += window;
        }
        Ok(())
    }

    /// Sends a line of the setup without waiting for a reply, such as the `reserve` of a worker
    /// that waits.
    pub fn send_unanswered(&mut self, line: &str) -> io::Result<()> {
        self.stream.write_all(line.as_bytes())
    }

    /// Sends one command line of the setup and checks the kind of its reply.
    pub fn command(&mut self, line: &str, kind: Kind) -> io::Result<()> {
        self.send(1, kind, |_, out| out.extend_from_slice(line.as_bytes()), |_| ())
    }

    /// Makes the setup client's connection use and watch this tube and no other.
    pub fn switch_to_tube(&mut self, tube: &str) -> io::Result<()> {
        self.command(&format!("use {tube}\r\n"), Kind::Using)?;
        self.command(&format!("watch {tube}\r\n"), Kind::Watching)?;
        self.command("ignore default\r\n", Kind::Watching)
    }

    /// Puts `count` jobs of the setup into the used tube and returns their ids; `numbers` returns
    /// the priority and the delay of each job.
    pub fn put(
        &mut self,
        count: u64,
        numbers: impl FnMut(u64) -> (u32, u32),
    ) -> io::Result<Vec<u64>> {
        self.put_in_turn(count, 1, numbers)
    }

    /// Puts jobs like [`Self::put`]; if `tubes` is above 1, spreads them over tubes `r0`, `r1`, ….
    pub fn put_in_turn(
        &mut self,
        count: u64,
        tubes: u64,
        mut numbers: impl FnMut(u64) -> (u32, u32),
    ) -> io::Result<Vec<u64>> {
        let mut ids = Vec::new();
        let bytes = self.body.bytes.clone();
        let kinds = [Kind::Using, Kind::Inserted];
        let kinds = if tubes > 1 { &kinds[..] } else { &kinds[1..] };
        let encode = |index, out: &mut Vec<u8>| {
            if tubes > 1 {
                let _ = write!(out, "use r{}\r\n", index % tubes);
            }
            let (priority, delay) = numbers(index);
            out.extend_from_slice(b"put");
            let length = bytes.len() as u64;
            for number in [u64::from(priority), u64::from(delay), u64::from(u32::MAX), length] {
                out.push(b' ');
                append_number(out, number);
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&bytes);
            out.extend_from_slice(b"\r\n");
        };
        self.send_groups(count, kinds, encode, |reply| {
            if reply.kind == Kind::Inserted {
                ids.push(reply.number);
            }
        })?;
        Ok(ids)
    }

    /// Reserves `count` jobs on the setup client's connection and returns their ids.
    pub fn reserve(&mut self, count: u64) -> io::Result<Vec<u64>> {
        let mut ids = Vec::new();
        let encode = |_, out: &mut Vec<u8>| out.extend_from_slice(b"reserve\r\n");
        self.send(count, Kind::Reserved, encode, |reply| ids.push(reply.number))?;
        Ok(ids)
    }

    /// Reserves and buries `count` jobs for a backlog, up to 400 at a time.
    pub fn bury(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let window = left.min(COMMANDS_PER_WINDOW);
            let ids = self.reserve(window)?;
            self.send_each(&ids, "bury", " 0", Kind::Buried)?;
            left -= window;
        }
        Ok(())
    }

    /// Deletes the setup's jobs by id.
    pub fn delete(&mut self, ids: &[u64]) -> io::Result<()> {
        self.send_each(ids, "delete", "", Kind::Deleted)
    }

    /// Sends a command of the setup for each of these ids.
    fn send_each(&mut self, ids: &[u64], verb: &str, rest: &str, kind: Kind) -> io::Result<()> {
        let encode = |index: u64, out: &mut Vec<u8>| {
            let index = usize::try_from(index).expect("an index of a slice");
            let _ = write!(out, "{verb} {}{rest}\r\n", ids[index]);
        };
        self.send(ids.len() as u64, kind, encode, |_| ())
    }

    /// Reads and checks the replies to the setup's commands.
    fn read(
        &mut self,
        groups: u64,
        kinds: &[Kind],
        on_reply: &mut impl FnMut(Reply),
    ) -> io::Result<()> {
        let mut expected = (0..groups).flat_map(|_| kinds).peekable();
        while expected.peek().is_some() {
            let length = self.stream.read(&mut self.buffer)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut rest = &self.buffer[..length];
            while let Some(reply) =
                self.reader.take(&mut rest, &self.body).map_err(io::Error::other)?
            {
                let kind = expected.next();
                if kind != Some(&reply.kind) {
                    let message = format!("expected {kind:?}, the daemon answered {reply:?}");
                    return Err(io::Error::other(message));
                }
                on_reply(reply);
            }
        }
        Ok(())
    }
}
