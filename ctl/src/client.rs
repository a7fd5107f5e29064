//! One blocking connection to a server, and pipelining over it.
//!
//! Commands are sent far ahead of their replies. Neither side can wait for the other for ever:
//! [`WINDOW`] bounds how many replies are due, and a server that cannot send reads no more, so
//! either the commands or the replies of a window must fit into the buffers of the sockets.
//! Commands with a body have short replies, and commands with long replies are short.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::address::Address;
use crate::interrupt::Interrupt;
use crate::stream::{Stream, TIMEOUT};
use crate::yaml;

/// The most commands whose replies are due.
pub(crate) const WINDOW: usize = 2_000;

/// How many bytes of commands are sent at once.
const SEND_BYTES: usize = 64 * 1024;

/// The buffer of a connection for replies, in bytes.
const READ_BYTES: usize = 256 * 1024;

/// The longest line of a reply, in bytes. None of any release comes near.
const LINE_MAX: u64 = 1024;

/// The longest body of a job, in bytes: twice the largest that a daemon can be told to take.
const JOB_BODY_MAX: u64 = 2 << 30;

/// The longest list or dictionary, in bytes: a million tubes with names of 200 bytes fit.
const YAML_MAX: u64 = 256 << 20;

/// How many bytes of bodies are asked for at once, if they are as large as the server allows.
const BODIES_BYTES: u64 = 128 << 20;

/// How long a wait for a slow reply is before Ctrl-C is noticed.
const NAP: Duration = Duration::from_millis(100);

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
            (true, Some(body)) => Ok(String::from_utf8(body)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())),
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
            "JOB_TOO_BIG" => {
                anyhow!("{to}: that is larger than the server takes (JOB_TOO_BIG)")
            }
            _ => anyhow!("{to}: the server answers {}", self.line),
        }
    }
}

/// Whether an error of a read only tells that nothing came in time.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<Stream>,
    address: Address,
    unsent: Vec<u8>,
    extensions: Option<Vec<String>>,
    max_job_size: Option<u64>,
    /// Replies are due that were not read: the next one would be taken for that of another command.
    is_behind: bool,
    /// How long a slow reply may take until the server must answer something else.
    patience: Duration,
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
        Ok(Self {
            stream,
            address: address.clone(),
            unsent: Vec::new(),
            extensions: None,
            max_job_size: None,
            is_behind: false,
            patience: TIMEOUT,
        })
    }

    /// Asks for `stats` over a connection that was kept, or over a new one: the server may have
    /// been started anew since.
    pub(crate) fn resume(
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

    /// Returns the socket, which can be read when the server closes the connection.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }

    /// Fails if the server has closed the connection or sends a reply to no command. The socket
    /// must be readable.
    pub(crate) fn check_idle(&mut self) -> Result<()> {
        match self.stream.fill_buf() {
            Ok([_, ..]) => bail!("{}: the server sends a reply to no command", self.address),
            Ok([]) => Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.lost(&error)),
        }
    }

    /// Returns where the server listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
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
            _ if is_timeout(error) && self.stream.get_ref().deadline.is_some() => {
                anyhow!("{address}: no complete reply in time")
            }
            _ if is_timeout(error) => {
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
        self.stream.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.len() as u64 == LINE_MAX {
            return Err(io::Error::other("this is no beanstalkd"));
        }
        if !line.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
        let line = line.ok_or_else(|| io::Error::other("this is no beanstalkd"))?.to_owned();
        let mut body = None;
        if ["OK ", "FOUND ", "RESERVED "].iter().any(|word| line.starts_with(word)) {
            let length = line.rsplit(' ').next().and_then(|digits| digits.parse::<u64>().ok());
            let most = if line.starts_with("OK ") { YAML_MAX } else { JOB_BODY_MAX };
            let length = length.filter(|length| *length <= most);
            let length = length.ok_or_else(|| io::Error::other(format!("odd reply: {line}")))?;
            // Beyond a buffer, memory grows with what comes, not with what is promised.
            let expected = usize::try_from(length + 2).unwrap_or(READ_BYTES).min(READ_BYTES);
            let mut bytes = Vec::with_capacity(expected);
            self.stream.by_ref().take(length + 2).read_to_end(&mut bytes)?;
            if (bytes.len() as u64) < length + 2 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !bytes.ends_with(b"\r\n") {
                return Err(io::Error::other(format!("a body without its end: {line}")));
            }
            bytes.truncate(bytes.len() - 2);
            body = Some(bytes);
        }
        Ok(Reply { line, body })
    }

    /// Fails if replies are due that belong to earlier commands.
    fn begin(&mut self) -> Result<()> {
        if self.is_behind {
            bail!("{}: the connection is lost", self.address);
        }
        self.is_behind = true;
        Ok(())
    }

    /// Sends a command and waits for its reply.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Reply> {
        self.begin()?;
        self.send_line(command)?;
        let reply = self.receive()?;
        self.is_behind = false;
        Ok(reply)
    }

    fn send_line(&mut self, command: &str) -> Result<()> {
        self.unsent.extend([command.as_bytes(), b"\r\n"].concat());
        self.send()
    }

    /// Sends a command whose reply may take minutes, because it is about very many jobs. It waits
    /// as long as the server answers others.
    ///
    /// After Ctrl-C it waits no longer. The server goes on with the command.
    pub(crate) fn ask_slowly(&mut self, command: &str, interrupt: &Interrupt) -> Result<Reply> {
        self.begin()?;
        self.send_line(command)?;
        self.stream.get_mut().set_read_timeout(NAP)?;
        let mut asked = Instant::now();
        while let Err(error) = self.stream.fill_buf() {
            if !is_timeout(&error) || self.stream.get_ref().is_over() {
                return Err(self.lost(&error));
            }
            interrupt.check().with_context(|| format!("the server goes on with {command}"))?;
            if asked.elapsed() >= self.patience {
                Self::connect(&self.address)?.ask("list-tube-used")?;
                asked = Instant::now();
            }
        }
        self.stream.get_mut().set_read_timeout(TIMEOUT)?;
        let reply = self.receive()?;
        self.is_behind = false;
        Ok(reply)
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

    /// Does what [`Self::pipeline`] does, with at most `window` replies due. A smaller window
    /// delays other clients less.
    pub(crate) fn pipeline_of<T>(
        &mut self,
        window: usize,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&T, &mut Vec<u8>),
        mut take: impl FnMut(T, Reply) -> Result<()>,
    ) -> Result<()> {
        self.begin()?;
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
        self.is_behind = false;
        Ok(())
    }

    /// Returns the longest body that the server takes, in bytes.
    pub(crate) fn max_job_size(&mut self) -> Result<u64> {
        if let Some(size) = self.max_job_size {
            return Ok(size);
        }
        let stats = self.yaml("stats")?;
        // Releases before 1.4 do not tell, and take as much as the others by default.
        let size = yaml::value(&stats, "max-job-size").and_then(|size| size.parse().ok());
        Ok(*self.max_job_size.insert(size.unwrap_or(65_535).min(JOB_BODY_MAX)))
    }

    /// Returns how many jobs, of at most `most`, to ask for with their bodies at once, so that
    /// memory is enough for them.
    pub(crate) fn bodies_at_once(&mut self, most: usize) -> Result<usize> {
        let bodies = BODIES_BYTES / self.max_job_size()?.max(1);
        Ok(usize::try_from(bodies).unwrap_or(most).clamp(1, most))
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
///
/// The numbers are those of the protocol: if one were larger, the server would refuse the line, and
/// take the body for commands.
pub(crate) fn write_put(out: &mut Vec<u8>, pri: u32, delay: u32, ttr: u32, body: &[u8]) {
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

    /// What a server says is no reason to take memory, or to end in a panic.
    #[test]
    fn what_no_beanstalkd_says_is_an_error() {
        let long = vec![b'x'; 5000];
        for (reply, expected) in [
            (&b"OK 18446744073709551615\r\n"[..], "odd reply"),
            (b"OK 99999999999\r\n", "odd reply"),
            (b"FOUND 1 x\r\n", "odd reply"),
            (b"OK 300000000\r\n", "odd reply"),
            (b"OK 200000000\r\nshort", "closed the connection"),
            (b"FOUND 1 2000000000\r\nshort", "closed the connection"),
            (b"OK 3\r\nabcde\r\n", "without its end"),
            (b"\xff\xfe\r\n", "no beanstalkd"),
            (b"HTTP/1.1 400\n\n", "no beanstalkd"),
            (&long, "no beanstalkd"),
            (b"NOT_FOU", "closed the connection"),
            (b"", "closed the connection"),
        ] {
            serving(reply.to_vec(), |client| {
                let error = client.ask("stats").unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
                let error = client.ask("stats").unwrap_err().to_string();
                assert!(error.contains("is lost"), "a later reply may belong elsewhere: {error}");
            });
        }
    }

    /// A long command must not be given up while its server is alive, nor waited for if it is not.
    #[test]
    fn a_slow_reply_is_waited_for_while_the_server_answers_others() {
        for is_alive in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = thread::spawn(move || {
                let (mut slow, _) = listener.accept().unwrap();
                let (mut other, _) = listener.accept().unwrap();
                if is_alive {
                    other.write_all(b"USING default\r\n").unwrap();
                    slow.write_all(b"DELETED 7\r\n").unwrap();
                    // Slower machines may ask once more.
                    while other.read(&mut [0; 64]).unwrap() > 0 {}
                }
            });
            let mut client = Client::connect(&Address::Tcp("127.0.0.1".into(), port)).unwrap();
            client.patience = NAP;
            let reply = client.ask_slowly("delete-tube a", &Interrupt::default());
            if is_alive {
                assert_eq!(reply.unwrap().line, "DELETED 7");
            } else {
                assert!(reply.unwrap_err().to_string().contains("connection"));
            }
            server.join().unwrap();
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
