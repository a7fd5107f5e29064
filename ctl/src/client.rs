//! A blocking connection to a server, over which commands are pipelined.
//!
//! Up to [`WINDOW_COMMANDS`] commands are sent before their replies are read. A server that cannot
//! send replies stops reading commands. Still, pipelining causes no deadlock. A command with a body
//! has a short reply, and a command with a long reply is short. So the sockets' buffers have space
//! either for all commands sent or for all their replies.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::address::Address;
use crate::message::{conflict, describe_trouble};
use crate::stream::{Stream, TIMEOUT};
use crate::yaml;

/// The largest number of commands that are sent but not yet answered.
pub(crate) const WINDOW_COMMANDS: usize = 2_000;

/// Buffered commands are sent at the latest when they have this many bytes in total.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// The size of the buffer for replies, in bytes.
const READ_BUFFER_BYTES: usize = 256 * 1024;

/// Each line of a reply must be shorter than this, in bytes; every beanstalkd sends shorter lines.
const LINE_BYTES_MAX: u64 = 1024;

/// The longest body of a job, in bytes: twice the largest value of the daemon's `-z`.
const BODY_BYTES_MAX: u64 = 2 << 30;

/// The longest list or dictionary of a reply, in bytes: a million names of 200 bytes fit.
const YAML_BYTES_MAX: u64 = 256 << 20;

/// The time limit for asking a server why it refuses a change.
const TROUBLE_TIME_LIMIT: Duration = Duration::from_secs(2);

/// The most bytes of bodies requested at once; each body is assumed to have the maximum size.
const BODIES_BYTES_AT_ONCE: u64 = 128 << 20;

/// A reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The line, without CR LF.
    pub(crate) line: String,
    /// The body after the line, if the reply has one.
    pub(crate) body: Option<Vec<u8>>,
    /// The reason for a refusal, such as a full binlog, if the server reports a reason.
    pub(crate) trouble: Option<&'static str>,
}

impl Reply {
    /// Returns the first word of the reply.
    pub(crate) fn word(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// Whether `word` is the first word of the reply.
    pub(crate) fn is(&self, word: &str) -> bool {
        self.word() == word
    }

    /// Returns the number after the first word, such as the id of `INSERTED 7`.
    pub(crate) fn number(&self) -> Option<u64> {
        self.line.split(' ').nth(1)?.parse().ok()
    }

    /// Returns the body of an `OK` reply as text.
    pub(crate) fn into_yaml(self) -> Result<String> {
        match (self.is("OK"), self.body) {
            (true, Some(body)) => Ok(String::from_utf8(body)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())),
            _ => bail!("unexpected reply: {}", self.line),
        }
    }

    /// Makes the error for an unexpected reply; `to` describes the command.
    pub(crate) fn error_for(&self, to: &str) -> anyhow::Error {
        let line = &self.line;
        let refusal = match (self.word(), self.trouble) {
            (_, Some(trouble)) => trouble,
            ("OUT_OF_MEMORY", _) => "the server has no memory or disk space for the job",
            ("DRAINING", _) => "the server is draining and accepts no jobs",
            ("JOB_TOO_BIG", _) => "larger than the server accepts",
            ("INTERNAL_ERROR", _) => {
                return anyhow!("{to}: the server failed: see its log ({line})");
            }
            ("UNKNOWN_COMMAND", _) => {
                return anyhow!("{to}: the server does not know this command");
            }
            _ => return anyhow!("{to}: unexpected reply: {line}"),
        };
        conflict(format!("{to}: {refusal} ({line})"))
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<Stream>,
    address: Address,
    unsent: Vec<u8>,
    extensions: Option<Vec<String>>,
    max_job_size: Option<u64>,
    /// The largest number of unanswered commands. While the server carries out these commands, its
    /// other clients wait.
    pub(crate) window: usize,
    /// The reason why the server refuses the current commands; valid only if `is_trouble_known`.
    trouble: Option<&'static str>,
    is_trouble_known: bool,
    /// Whether replies to earlier commands are due; new commands would receive these replies.
    has_replies_due: bool,
}

impl Client {
    /// Connects a client to an address.
    pub(crate) fn connect(address: &Address) -> Result<Self> {
        Self::connect_until(address, None)
    }

    /// Connects a client to an address. All commands fail after the deadline, if one is given.
    pub(crate) fn connect_until(address: &Address, deadline: Option<Instant>) -> Result<Self> {
        let stream = Stream::connect(address, deadline).with_context(|| format!("{address}"))?;
        let stream = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
        Ok(Self {
            stream,
            address: address.clone(),
            unsent: Vec::new(),
            extensions: None,
            max_job_size: None,
            window: WINDOW_COMMANDS,
            trouble: None,
            is_trouble_known: false,
            has_replies_due: false,
        })
    }

    /// Sends `stats` over a kept connection. If the kept connection fails, perhaps because the
    /// server was restarted, sends `stats` over a new connection.
    pub(crate) fn reuse(
        kept: Option<Self>,
        address: &Address,
        deadline: Option<Instant>,
    ) -> Result<(Self, String)> {
        if let Some(mut client) = kept {
            client.stream.get_mut().deadline = deadline;
            if let Ok(stats) = client.yaml("stats") {
                return Ok((client, stats));
            }
        }
        let mut client = Self::connect_until(address, deadline)?;
        let stats = client.yaml("stats")?;
        Ok((client, stats))
    }

    /// Returns the socket, which becomes readable when the server replies or ends the connection.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }

    /// Returns an error with the reason why the socket is readable although no reply is due.
    pub(crate) fn check_idle(&mut self) -> Result<()> {
        match self.stream.fill_buf() {
            Ok([_, ..]) => bail!("{}: the server sent data without a command", self.address),
            Ok([]) => Err(self.connection_error(&io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.connection_error(&error)),
        }
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sends the client's buffered commands.
    fn send(&mut self) -> Result<()> {
        let result = self.stream.get_mut().write_all(&self.unsent);
        self.unsent.clear();
        result.map_err(|error| self.connection_error(&error))
    }

    /// Makes the error that reports a failed connection.
    fn connection_error(&self, error: &io::Error) -> anyhow::Error {
        let address = &self.address;
        match error.kind() {
            io::ErrorKind::UnexpectedEof => anyhow!("{address}: the server closed the connection"),
            _ if Stream::is_timeout(error) && self.stream.get_ref().deadline.is_some() => {
                anyhow!("{address}: no complete reply in time")
            }
            _ if Stream::is_timeout(error) => {
                anyhow!("{address}: no complete reply within {} seconds", TIMEOUT.as_secs())
            }
            _ => anyhow!("{address}: connection lost: {error}"),
        }
    }

    /// Reads the next reply of the server.
    fn receive(&mut self) -> Result<Reply> {
        self.stream.get_mut().set_in_reply(true);
        let reply = self.read_reply().map_err(|error| self.connection_error(&error));
        self.stream.get_mut().set_in_reply(false);
        let mut reply = reply?;
        if ["OUT_OF_MEMORY", "INTERNAL_ERROR"].contains(&reply.word()) {
            if !mem::replace(&mut self.is_trouble_known, true) {
                self.trouble = self.ask_for_trouble();
            }
            reply.trouble = self.trouble;
        }
        Ok(reply)
    }

    /// Asks the server why it refused a command. Uses a new connection, because replies may still
    /// be due on this connection. Returns `None` if the server does not report the reason.
    fn ask_for_trouble(&self) -> Option<&'static str> {
        let deadline = Some(Instant::now() + TROUBLE_TIME_LIMIT);
        let mut other = Self::connect_until(&self.address, deadline).ok()?;
        other.send_line("capabilities").ok()?;
        let text = other.read_reply().ok()?.into_yaml().ok()?;
        yaml::value(&text, "state").and_then(describe_trouble)
    }

    /// Reads the line of a reply, and its body if a body follows.
    fn read_reply(&mut self) -> io::Result<Reply> {
        let mut line = Vec::with_capacity(32);
        self.stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.len() as u64 == LINE_BYTES_MAX {
            return Err(io::Error::other("not a beanstalkd server"));
        }
        if !line.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
        let line = line.ok_or_else(|| io::Error::other("not a beanstalkd server"))?.to_owned();
        let mut body = None;
        if ["OK ", "FOUND ", "RESERVED "].iter().any(|word| line.starts_with(word)) {
            let length = line.rsplit(' ').next().and_then(|digits| digits.parse::<u64>().ok());
            let most = if line.starts_with("OK ") { YAML_BYTES_MAX } else { BODY_BYTES_MAX };
            let length = length.filter(|length| *length <= most);
            let length = length.ok_or_else(|| io::Error::other(format!("bad reply: {line}")))?;
            // Allocate only a bounded buffer: a faulty server may announce a body of any length.
            let expected =
                usize::try_from(length + 2).unwrap_or(READ_BUFFER_BYTES).min(READ_BUFFER_BYTES);
            let mut bytes = Vec::with_capacity(expected);
            self.stream.by_ref().take(length + 2).read_to_end(&mut bytes)?;
            if (bytes.len() as u64) < length + 2 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !bytes.ends_with(b"\r\n") {
                return Err(io::Error::other(format!("no CR LF after the body: {line}")));
            }
            bytes.truncate(bytes.len() - 2);
            body = Some(bytes);
        }
        Ok(Reply { line, body, trouble: None })
    }

    /// Fails if replies to earlier commands are still due.
    fn begin_commands(&mut self) -> Result<()> {
        ensure!(!self.has_replies_due, "{}: connection lost", self.address);
        self.has_replies_due = true;
        self.is_trouble_known = false;
        Ok(())
    }

    /// Sends a command and waits for its reply.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Reply> {
        self.send_command(command)?;
        self.receive_reply()
    }

    /// Sends a command. The caller must receive the reply before it sends the next command.
    pub(crate) fn send_command(&mut self, command: &str) -> Result<()> {
        self.begin_commands()?;
        self.send_line(command)
    }

    /// Waits for the reply to the command that [`Self::send_command`] has sent.
    pub(crate) fn receive_reply(&mut self) -> Result<Reply> {
        let reply = self.receive()?;
        self.has_replies_due = false;
        Ok(reply)
    }

    /// Waits at most `limit` for the rest of a reply that has begun to arrive.
    pub(crate) fn receive_begun_reply(&mut self, limit: Duration) -> Result<Reply> {
        self.stream.get_mut().deadline = Some(Instant::now() + limit);
        let reply = self.receive_reply();
        self.stream.get_mut().deadline = None;
        reply
    }

    /// Sends a command, and fails unless its reply begins with this word.
    pub(crate) fn ask_for(&mut self, command: &str, word: &str) -> Result<Reply> {
        let reply = self.ask(command)?;
        if reply.is(word) { Ok(reply) } else { Err(reply.error_for(command)) }
    }

    /// Sends the line of a command.
    fn send_line(&mut self, command: &str) -> Result<()> {
        self.unsent.extend([command.as_bytes(), b"\r\n"].concat());
        self.send()
    }

    /// Sends a command whose reply is `OK` with a body, and returns the body.
    pub(crate) fn yaml(&mut self, command: &str) -> Result<String> {
        self.ask_for(command, "OK")?.into_yaml()
    }

    /// Sends a pipelined command for each item, and passes each item with its reply to `take`. If
    /// the call fails, the server may also have carried out commands whose replies were not read.
    pub(crate) fn pipeline<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&T, &mut Vec<u8>),
        mut take: impl FnMut(T, Reply) -> Result<()>,
    ) -> Result<()> {
        self.begin_commands()?;
        let mut items = items.into_iter();
        let mut due: VecDeque<T> = VecDeque::new();
        let mut is_over = false;
        while !is_over || !due.is_empty() {
            while !is_over && due.len() < self.window {
                let Some(item) = items.next() else {
                    is_over = true;
                    break;
                };
                write(&item, &mut self.unsent);
                due.push_back(item);
                if self.unsent.len() >= SEND_BUFFER_BYTES {
                    self.send()?;
                }
            }
            self.send()?;
            let rest = if is_over { 0 } else { self.window / 2 };
            while due.len() > rest {
                let reply = self.receive()?;
                let item = due.pop_front().expect("a reply is due");
                take(item, reply)?;
            }
        }
        self.has_replies_due = false;
        Ok(())
    }

    /// Sends a command of one line for each item, as [`Self::pipeline`] does.
    pub(crate) fn ask_each<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        line: impl Fn(&T) -> String,
        take: impl FnMut(T, Reply) -> Result<()>,
    ) -> Result<()> {
        let write = |item: &T, out: &mut Vec<u8>| out.extend((line(item) + "\r\n").into_bytes());
        self.pipeline(items, write, take)
    }

    /// Requests the YAML document of each item, and skips items that do not exist.
    pub(crate) fn yaml_of_each<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        line: impl Fn(&T) -> String,
        mut take: impl FnMut(T, String) -> Result<()>,
    ) -> Result<()> {
        self.ask_each(items, &line, |item, reply| match reply.word() {
            "OK" => take(item, reply.into_yaml()?),
            "NOT_FOUND" => Ok(()),
            _ => Err(reply.error_for(line(&item).split(' ').next().unwrap_or_default())),
        })
    }

    /// Returns the length of the longest body that the server accepts, in bytes.
    pub(crate) fn max_job_size(&mut self) -> Result<u64> {
        if let Some(size) = self.max_job_size {
            return Ok(size);
        }
        let stats = self.yaml("stats")?;
        // Releases before 1.4 do not report the limit; the default of all releases is 65,535.
        let size = yaml::value(&stats, "max-job-size").and_then(|size| size.parse().ok());
        Ok(*self.max_job_size.insert(size.unwrap_or(65_535).min(BODY_BYTES_MAX)))
    }

    /// Returns how many bodies, but at most `most`, can be requested at once and fit in memory.
    pub(crate) fn bodies_at_once(&mut self, most: usize) -> Result<usize> {
        let bodies = BODIES_BYTES_AT_ONCE / self.max_job_size()?.max(1);
        Ok(usize::try_from(bodies).unwrap_or(most).clamp(1, most))
    }

    /// Whether the server has this extension of the protocol.
    pub(crate) fn has_extension(&mut self, extension: &str) -> Result<bool> {
        if self.extensions.is_none() {
            let reply = self.ask("capabilities")?;
            let text = if reply.is("OK") { reply.into_yaml()? } else { String::new() };
            self.extensions = Some(yaml::items(&text).map(str::to_owned).collect());
        }
        Ok(self.extensions.iter().flatten().any(|name| name == extension))
    }

    /// Selects the connection's tube for later puts.
    pub(crate) fn use_tube(&mut self, tube: &str) -> Result<()> {
        self.ask_for(&format!("use {tube}"), "USING").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Runs `act` with a client whose server sends `replies`, whatever the client sends.
    fn serving(replies: Vec<u8>, act: impl FnOnce(&mut Client)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut peer, _) = listener.accept().unwrap();
                peer.write_all(&replies).unwrap();
                peer.shutdown(std::net::Shutdown::Write).unwrap();
                peer.read_to_end(&mut Vec::new()).unwrap();
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

    /// Whatever a server replies, the client must neither allocate without bound nor panic.
    #[test]
    fn what_no_beanstalkd_says_is_an_error() {
        let long = vec![b'x'; 5000];
        for (reply, expected) in [
            (&b"OK 18446744073709551615\r\n"[..], "bad reply"),
            (b"OK 99999999999\r\n", "bad reply"),
            (b"FOUND 1 x\r\n", "bad reply"),
            (b"OK 300000000\r\n", "bad reply"),
            (b"OK 200000000\r\nshort", "closed the connection"),
            (b"FOUND 1 2000000000\r\nshort", "closed the connection"),
            (b"OK 3\r\nabcde\r\n", "no CR LF after"),
            (b"\xff\xfe\r\n", "not a beanstalkd"),
            (b"HTTP/1.1 400\n\n", "not a beanstalkd"),
            (&long, "not a beanstalkd"),
            (b"NOT_FOU", "closed the connection"),
            (b"", "closed the connection"),
        ] {
            serving(reply.to_vec(), |client| {
                let error = client.ask("stats").unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
                let error = client.ask("stats").unwrap_err().to_string();
                assert!(
                    error.contains("connection lost"),
                    "a later reply may belong elsewhere: {error}"
                );
            });
        }
    }

    #[test]
    fn bodies_that_may_be_large_are_asked_for_in_smaller_numbers() {
        for (size, expected) in [(65_535, 1000), (10_000_000, 13), (1 << 30, 1)] {
            let stats = format!("---\nmax-job-size: {size}\n");
            let reply = format!("OK {}\r\n{stats}\r\n", stats.len());
            serving(reply.into_bytes(), |client| {
                assert_eq!(client.bodies_at_once(1000).unwrap(), expected);
            });
        }
    }

    #[test]
    fn each_reply_of_a_pipeline_meets_its_command() {
        let count = 3 * WINDOW_COMMANDS as u64 + 7;
        let replies: Vec<_> = (0..count).map(|id| format!("INSERTED {id}\r\n")).collect();
        serving(replies.concat().into_bytes(), |client| {
            let mut next = 0;
            let take = |id: u64, reply: Reply| {
                assert_eq!((reply.number(), id), (Some(id), next));
                next += 1;
                Ok(())
            };
            let write = |_: &_, out: &mut Vec<u8>| out.extend(b"put 1 2 3 1\r\nx\r\n");
            client.pipeline(0..count, write, take).unwrap();
            assert_eq!(next, count);
            assert!(client.pipeline([1], |_, _| {}, |_, _| Ok(())).is_err());
        });
    }
}
