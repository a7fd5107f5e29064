//! One of the two compared daemons, with its connections, its barrier's connection and its binlog.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::operation::Peer;
use super::reply::{Baseline, Reply};
use crate::check::Program;
use crate::daemon::Daemon;
use crate::socket::Stream;

/// How long a daemon may take to answer a barrier, to read a batch, or to get a signal.
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two checks of a condition.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The names of the two daemons; every operation is performed on the left daemon first.
pub(crate) const SIDES: [&str; 2] = ["left", "right"];

/// A piece of the bytes to send. Job ids are relative to the last id before the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chunk {
    Bytes(Vec<u8>),
    Id(u64),
}

impl Chunk {
    /// Returns the bytes to send to a daemon whose highest id was `base` when the run began.
    pub(crate) fn bytes(chunks: &[Self], base: u64) -> Vec<u8> {
        let all = chunks.iter().map(|chunk| match chunk {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Id(id) => id.saturating_add(base).to_string().into_bytes(),
        });
        all.collect::<Vec<_>>().concat()
    }
}

/// The bytes that one daemon has sent on one connection since the replies were last taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) replies: Vec<Reply>,
    /// The beginning of an incomplete reply.
    pub(crate) rest: Vec<u8>,
    pub(crate) is_closed: bool,
}

impl Received {
    /// Describes what one daemon did after the first `same` replies, which both daemons sent.
    pub(super) fn after(&self, same: usize) -> String {
        match self.replies.get(same) {
            Some(reply) => format!("answered `{}`", reply.summary()),
            None if !self.rest.is_empty() => {
                format!("began `{}`", Reply::Line(self.rest.clone()).summary())
            }
            None if self.is_closed => "closed the connection".to_owned(),
            None => "was silent".to_owned(),
        }
    }
}

/// One connection to one daemon.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    arrived: Vec<u8>,
    pub(super) received: Received,
}

impl Connection {
    /// Opens a connection to one of the two daemons.
    pub(super) fn connect(address: &str) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        match &stream {
            Stream::Tcp(tcp) => tcp.set_nonblocking(true)?,
            Stream::Unix(unix) => unix.set_nonblocking(true)?,
        }
        Ok(Self { stream, arrived: Vec::new(), received: Received::default() })
    }

    /// Sends all bytes to one of the two daemons. Ignores errors: if the connection is closed, a
    /// later read shows the close.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let start = Instant::now();
        let mut rest = bytes;
        while !rest.is_empty() && start.elapsed() < IO_TIMEOUT {
            match self.stream.write(rest) {
                Ok(length) => rest = &rest[length..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(POLL_INTERVAL);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Reads the bytes that have arrived from one daemon; returns true if bytes have arrived or the
    /// connection has closed.
    pub(super) fn read_available(&mut self, baseline: &Baseline) -> bool {
        let mut buffer = [0; 16 << 10];
        let mut has_data = false;
        while !self.received.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.received.is_closed = true,
                Ok(length) => {
                    self.arrived.extend_from_slice(&buffer[..length]);
                    // After a short read the socket is empty; the next call reads later bytes.
                    if length < buffer.len() {
                        has_data = true;
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => self.received.is_closed = true,
            }
            has_data = true;
        }
        while let Some(reply) = Reply::take(&mut self.arrived) {
            self.received.replies.push(baseline.relative(reply));
        }
        self.received.rest.clone_from(&self.arrived);
        has_data
    }
}

/// The directory of a daemon's binlog in one run; dropping this value removes the directory.
#[derive(Debug)]
pub(crate) struct Binlog {
    program: Program,
    folder: PathBuf,
}

impl Binlog {
    /// Makes an empty directory for the daemon's binlog.
    pub(crate) fn new(program: &Program) -> io::Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ct-binlog-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        let mut program = program.clone();
        // Sets a small size of segments, because small files are created quickly.
        let flags = ["-b", &folder.to_string_lossy(), "-s", "262144"].map(str::to_owned);
        program.flags.extend(flags);
        Ok(Self { program, folder })
    }

    /// Starts the daemon with its binlog for the first time.
    pub(crate) fn start(&self) -> io::Result<Daemon> {
        self.program.start(&[])
    }

    /// Stops the daemon and starts it again with its binlog.
    fn restart(&self, daemon: &mut Daemon) -> io::Result<()> {
        let flags: Vec<&str> = self.program.flags.iter().map(String::as_str).collect();
        daemon.restart(&self.program.path, &flags)
    }
}

impl Drop for Binlog {
    /// Removes the directory of the daemon's binlog.
    fn drop(&mut self) {
        // Removing the directory fails only if another process has removed it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// One of the two daemons.
#[derive(Debug)]
pub(crate) struct Side {
    pub(super) address: String,
    pub(super) baseline: Baseline,
    /// The daemon's process, if it was started for the run.
    pub(super) daemon: Option<Daemon>,
    /// The daemon's binlog, if the daemon keeps one and reads it after a restart.
    binlog: Option<Binlog>,
    barrier: Stream,
    pub(super) connections: BTreeMap<Peer, Connection>,
    /// Why the daemon can no longer be reached; `None` if it can be reached.
    pub(super) failure: Option<String>,
}

impl Side {
    /// Makes the side of a daemon that was started for the run.
    pub(crate) fn with_daemon(daemon: Daemon, binlog: Option<Binlog>) -> io::Result<Self> {
        let address = daemon.address().to_owned();
        let side = Self::at_address(&address, Baseline::default())?;
        Ok(Self { daemon: Some(daemon), binlog, ..side })
    }

    /// Stops the daemon of this side and starts it again. All connections end.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        if let (Some(daemon), Some(binlog)) = (&mut self.daemon, &self.binlog) {
            binlog.restart(daemon)?;
            self.barrier = Stream::connect(&self.address)?;
            self.barrier.set_read_timeout(IO_TIMEOUT)?;
        }
        // Connections are closed only after the restart: if they were closed before, the old
        // process would execute their queued commands.
        self.connections.clear();
        Ok(())
    }

    /// Makes the side of a daemon at an address.
    pub(crate) fn at_address(address: &str, baseline: Baseline) -> io::Result<Self> {
        let barrier = Stream::connect(address)?;
        barrier.set_read_timeout(IO_TIMEOUT)?;
        let address = address.to_owned();
        let (daemon, binlog, connections, failure) = (None, None, BTreeMap::new(), None);
        Ok(Self { address, baseline, daemon, binlog, barrier, connections, failure })
    }

    /// Records why the daemon of this side cannot be reached, with its exit status and output if it
    /// has ended.
    pub(super) fn fail(&mut self, error: &io::Error) {
        let mut message = error.to_string();
        if let Some(daemon) = &mut self.daemon {
            if let Some(status) = daemon.wait_exit(Duration::from_millis(100)) {
                let stderr: String = daemon.stderr().chars().take(500).collect();
                message = format!("ended with {status}, and had printed `{}`", stderr.trim_end());
            }
        }
        self.failure.get_or_insert(message);
    }

    /// Sends the barrier's command to the daemon of this side.
    pub(super) fn send_barrier(&mut self) {
        if self.failure.is_none() {
            if let Err(error) = self.barrier.write_all(b"barrier\r\n") {
                self.fail(&error);
            }
        }
    }

    /// Reads the reply to the barrier's command from the daemon of this side.
    pub(super) fn await_barrier(&mut self) {
        const ANSWER: &[u8] = b"UNKNOWN_COMMAND\r\n";
        let mut buffer = [0; ANSWER.len()];
        if self.failure.is_none() {
            match self.barrier.read_exact(&mut buffer) {
                Ok(()) if buffer == ANSWER => {}
                Ok(()) => self.fail(&io::Error::other("it sent a wrong reply to the barrier")),
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Returns whether a connection to this side's daemon has received this number of replies, or
    /// will receive no more.
    pub(super) fn has_received(&self, peer: Peer, replies: usize) -> bool {
        self.failure.is_some()
            || self.connections.get(&peer).is_none_or(|connection| {
                connection.received.is_closed || connection.received.replies.len() >= replies
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_from_where_the_run_began() {
        let chunks =
            [Chunk::Bytes(b"delete ".to_vec()), Chunk::Id(3), Chunk::Bytes(b"\r\n".into())];
        assert_eq!(Chunk::bytes(&chunks, 40), b"delete 43\r\n");
        assert_eq!(Chunk::bytes(&chunks, 0), b"delete 3\r\n");
    }
}
