//! The connections of an attack: many connections from several addresses, or one connection that
//! pipelines commands.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::STALL_TIMEOUT;
use crate::os;

/// The number of loopback addresses from which attackers connect. Each address has ports for some
/// 28,000 connections.
const SOURCE_ADDRESSES: u8 = 8;

/// The daemon under attack and the size of the attack.
#[derive(Debug, Clone)]
pub(super) struct Attack {
    pub(super) address: SocketAddrV4,
    pub(super) pid: u32,
    /// The number of connections of an attack that opens many connections.
    pub(super) connections: usize,
    /// The number of jobs, tubes or commands of an attack that uses many of them.
    pub(super) items: usize,
    /// An attack that is not complete by this time fails.
    pub(super) deadline: Instant,
}

impl Attack {
    /// Returns whether the attack has taken too long and must be given up.
    pub(super) fn is_past_deadline(&self) -> bool {
        Instant::now() > self.deadline
    }

    /// Connects an attacker from the loopback address with the index `number` modulo
    /// [`SOURCE_ADDRESSES`].
    pub(super) fn connect(&self, number: usize) -> io::Result<TcpStream> {
        self.connect_with(number, None, STALL_TIMEOUT)
    }

    /// Connects an attacker like [`Attack::connect`], but connecting and each write fail after a
    /// tenth of [`STALL_TIMEOUT`].
    pub(super) fn connect_quickly(&self, number: usize) -> io::Result<TcpStream> {
        self.connect_with(number, None, STALL_TIMEOUT / 10)
    }

    /// Connects an attacker from one of the loopback addresses, with a receive buffer of this size.
    fn connect_with(
        &self,
        number: usize,
        buffer: Option<usize>,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let source = u8::try_from(number % usize::from(SOURCE_ADDRESSES)).expect("a small number");
        let source = Ipv4Addr::new(127, 0, 0, 1 + source);
        let stream = os::connect_from(source, self.address, buffer, timeout)?;
        stream.set_read_timeout(Some(STALL_TIMEOUT))?;
        Ok(stream)
    }

    /// Opens `count` connections of attackers and sends `bytes` on each.
    pub(super) fn connect_many(&self, count: usize, bytes: &[u8]) -> io::Result<Vec<TcpStream>> {
        self.connect_many_with(count, bytes, None)
    }

    /// Opens `count` connections of attackers with receive buffers of 4 KiB and sends `bytes` on
    /// each. Unread replies soon fill the small buffers.
    pub(super) fn connect_many_with_small_buffers(
        &self,
        count: usize,
        bytes: &[u8],
    ) -> io::Result<Vec<TcpStream>> {
        self.connect_many_with(count, bytes, Some(4096))
    }

    /// Opens `count` connections of attackers with receive buffers of this size.
    fn connect_many_with(
        &self,
        count: usize,
        bytes: &[u8],
        buffer: Option<usize>,
    ) -> io::Result<Vec<TcpStream>> {
        let mut attackers = Vec::with_capacity(count);
        for number in 0..count {
            let mut stream = self.connect_with(number, buffer, STALL_TIMEOUT)?;
            stream.write_all(bytes)?;
            attackers.push(stream);
            if self.is_past_deadline() {
                return Err(timed_out(&format!("{} of {count} connections", attackers.len())));
            }
        }
        Ok(attackers)
    }

    /// Opens an attacker's connection for [`PipelineClient::exchange`].
    pub(super) fn pipeline_client(&self) -> io::Result<PipelineClient> {
        let stream = self.connect(0)?;
        stream.set_nodelay(true)?;
        Ok(PipelineClient {
            reader: BufReader::with_capacity(1 << 16, stream),
            deadline: self.deadline,
        })
    }
}

/// Makes the error for an attack that was given up before it was complete.
pub(super) fn timed_out(done: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("given up after {done}"))
}

/// Returns the commands of an attacker that delete the jobs with these ids.
pub(super) fn delete_commands(ids: &[u64]) -> Vec<u8> {
    ids.iter().flat_map(|id| format!("delete {id}\r\n").into_bytes()).collect()
}

/// A connection that pipelines commands.
#[derive(Debug)]
pub(super) struct PipelineClient {
    reader: BufReader<TcpStream>,
    pub(super) deadline: Instant,
}

/// The replies to the commands of one [`PipelineClient::exchange`].
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// Ids of the jobs that were put or reserved.
    pub(super) ids: Vec<u64>,
    /// The number of `OUT_OF_MEMORY` replies.
    pub(super) out_of_memory: usize,
    /// The number of other replies that do not mean success, such as `NOT_FOUND` and `TIMED_OUT`.
    pub(super) others: usize,
}

impl PipelineClient {
    /// Writes an attacker's pipelined `bytes` in a second thread, and meanwhile reads `replies`
    /// replies.
    pub(super) fn exchange(&mut self, bytes: &[u8], replies: usize) -> io::Result<Replies> {
        let mut writer = self.reader.get_ref().try_clone()?;
        thread::scope(|scope| {
            let writing = scope.spawn(move || {
                os::lower_priority();
                writer.write_all(bytes)
            });
            let found = self.read_replies(replies);
            if found.is_err() {
                // Ends the writing thread, which may wait for a daemon that does not read.
                let _ = self.reader.get_ref().shutdown(std::net::Shutdown::Both);
            }
            let written = writing.join().expect("the writer does not panic");
            found.and_then(|found| written.map(|()| found))
        })
    }

    /// Reads the replies to an attacker's pipelined commands.
    fn read_replies(&mut self, replies: usize) -> io::Result<Replies> {
        let mut found = Replies::default();
        let mut line = Vec::new();
        for count in 0..replies {
            if count % 64 == 0 && Instant::now() > self.deadline {
                return Err(timed_out(&format!("{count} of {replies} replies")));
            }
            line.clear();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let silence = STALL_TIMEOUT.as_secs();
                    return Err(timed_out(&format!(
                        "{count} of {replies} replies and {silence} s of silence"
                    )));
                }
                result => drop(result?),
            }
            let text = String::from_utf8_lossy(&line);
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
            let body = match (words.first().copied(), words.len()) {
                (Some("INSERTED"), _) => {
                    found.ids.extend(number(1));
                    None
                }
                (Some("RESERVED"), _) => {
                    found.ids.extend(number(1));
                    number(2)
                }
                (Some("OK"), _) => number(1),
                (Some("OUT_OF_MEMORY"), _) => {
                    found.out_of_memory += 1;
                    None
                }
                (Some("DELETED" | "WATCHING" | "USING"), _) => None,
                _ => {
                    found.others += 1;
                    None
                }
            };
            if let Some(length) = body {
                let body = (&mut self.reader).take(length + 2);
                io::copy(&mut { body }, &mut io::sink())?;
            }
        }
        Ok(found)
    }

    /// Deletes an attacker's jobs, 1,000 in a batch, and returns how many were not found.
    pub(super) fn delete(&mut self, ids: &[u64]) -> io::Result<usize> {
        let mut missing = 0;
        for ids in ids.chunks(1000) {
            missing += self.exchange(&delete_commands(ids), ids.len())?.others;
        }
        Ok(missing)
    }

    /// Sends an attacker's command for statistics, and returns the number named `name` from the
    /// reply's body.
    pub(super) fn statistic(&mut self, command: &str, name: &str) -> io::Result<u64> {
        self.reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let length = line.strip_prefix("OK ").and_then(|rest| rest.trim_end().parse().ok());
        let length: usize = length.ok_or_else(|| io::Error::other(line.trim_end().to_owned()))?;
        let mut body = vec![0; length + 2];
        self.reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        let head = format!("{name}: ");
        let value = body.lines().find_map(|line| line.strip_prefix(&head)?.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("no {name}")))
    }

    /// Sets the deadline of an attacker's exchanges to `time` from now.
    pub(super) fn extend_deadline(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }
}
