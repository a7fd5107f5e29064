//! Two daemons driven in lock step.
//!
//! Every operation is done to both, the left one first. Then [`Harness::settle`] waits until
//! neither sends more. First it waits for the replies that are certain to come. Others may come
//! too, for example to waiting clients. So it makes round trips on a connection of its own, the
//! barrier, until several in a row brought nothing on any connection. With each round trip the
//! daemon has looked at every socket again. If the two daemons differ by then, the slower one gets
//! time to catch up.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::operation::Peer;
use super::reply::{Baseline, Comparator, Reply};
use crate::check::Program;
use crate::daemon::Daemon;
use crate::os;
use crate::socket::Stream;

/// Quiet round trips that are enough if all expected replies have come. The daemon has executed the
/// last command, so its replies to others were sent before that to the barrier.
const QUIET_TRIPS_IF_ANSWERED: usize = 1;
/// Quiet round trips that are needed otherwise.
const QUIET_TRIPS: usize = 3;
/// How long to wait for expected replies. If fewer come, the round trips show it.
const REPLY_WAIT: Duration = Duration::from_millis(40);
/// One more quiet round trip is made for each of these many bytes, because some daemons read a
/// large body in small pieces without replying.
const BYTES_PER_TRIP: usize = 256;
/// A daemon that takes longer to answer a barrier, or to read what is sent, has failed.
const IO_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The two sides, in the order in which everything is done.
pub(crate) const SIDES: [&str; 2] = ["left", "right"];

/// A piece of what is sent. Ids count from the beginning of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chunk {
    Bytes(Vec<u8>),
    Id(u64),
}

impl Chunk {
    /// Returns the bytes for a daemon whose highest id was `base` when the run began.
    pub(crate) fn bytes(chunks: &[Self], base: u64) -> Vec<u8> {
        let all = chunks.iter().map(|chunk| match chunk {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Id(id) => id.saturating_add(base).to_string().into_bytes(),
        });
        all.collect::<Vec<_>>().concat()
    }
}

/// What one daemon sent on one connection since the last time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) replies: Vec<Reply>,
    /// The beginning of an incomplete reply.
    pub(crate) rest: Vec<u8>,
    pub(crate) is_closed: bool,
}

/// What both daemons sent on one connection, left and right.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedPair {
    pub(crate) peer: Peer,
    pub(crate) received: [Received; 2],
}

impl ReceivedPair {
    /// Returns how many replies are the same, and the first difference after those, if there is
    /// one.
    pub(crate) fn difference(&self, comparator: &Comparator) -> (usize, Option<String>) {
        let [left, right] = &self.received;
        let pairs = left.replies.iter().zip(&right.replies);
        for (index, (left, right)) in pairs.enumerate() {
            if let Some(message) = comparator.difference([left, right]) {
                return (index, Some(message));
            }
        }
        let same = left.replies.len().min(right.replies.len());
        let [left, right] = self.received.each_ref().map(|received| received.after(same));
        let message = (left != right).then(|| format!("left {left}, right {right}"));
        (same, message)
    }
}

impl Received {
    /// Describes what follows the first `same` replies.
    fn after(&self, same: usize) -> String {
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
struct Connection {
    stream: Stream,
    arrived: Vec<u8>,
    received: Received,
}

impl Connection {
    fn connect(address: &str) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        match &stream {
            Stream::Tcp(tcp) => tcp.set_nonblocking(true)?,
            Stream::Unix(unix) => unix.set_nonblocking(true)?,
        }
        Ok(Self { stream, arrived: Vec::new(), received: Received::default() })
    }

    /// Sends all bytes, unless the daemon has closed the connection; reading shows that.
    fn send(&mut self, bytes: &[u8]) {
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

    /// Reads what has arrived; true if there was anything.
    fn read_available(&mut self, baseline: &Baseline) -> bool {
        let mut buffer = [0; 16 << 10];
        let mut has_data = false;
        while !self.received.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.received.is_closed = true,
                Ok(length) => {
                    self.arrived.extend_from_slice(&buffer[..length]);
                    // A short read emptied the socket; the next call reads what follows.
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

/// The directory of a daemon's binlog in one run, removed when dropped.
#[derive(Debug)]
pub(crate) struct Binlog {
    program: Program,
    folder: PathBuf,
}

impl Binlog {
    /// Makes an empty directory.
    pub(crate) fn new(program: &Program) -> io::Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ct-binlog-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        let mut program = program.clone();
        // Small files are created quickly.
        let flags = ["-b", &folder.to_string_lossy(), "-s", "262144"].map(str::to_owned);
        program.flags.extend(flags);
        Ok(Self { program, folder })
    }

    /// Starts the daemon for the first time.
    pub(crate) fn start(&self) -> io::Result<Daemon> {
        self.program.start(&[])
    }

    fn restart(&self, daemon: &mut Daemon) -> io::Result<()> {
        let flags: Vec<&str> = self.program.flags.iter().map(String::as_str).collect();
        daemon.restart(&self.program.path, &flags)
    }
}

impl Drop for Binlog {
    fn drop(&mut self) {
        // Fails only if another process has removed it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// One of the two daemons.
#[derive(Debug)]
pub(crate) struct Side {
    address: String,
    baseline: Baseline,
    /// The process, if it was started for the run.
    daemon: Option<Daemon>,
    /// Its binlog, if it keeps one; used to restart it.
    binlog: Option<Binlog>,
    barrier: Stream,
    connections: BTreeMap<Peer, Connection>,
    /// Why the daemon cannot be reached any more.
    failure: Option<String>,
}

impl Side {
    /// Opens the barrier to a daemon that was started for the run.
    pub(crate) fn with_daemon(daemon: Daemon, binlog: Option<Binlog>) -> io::Result<Self> {
        let address = daemon.address().to_owned();
        let side = Self::at_address(&address, Baseline::default())?;
        Ok(Self { daemon: Some(daemon), binlog, ..side })
    }

    /// Ends the daemon and starts it again. All connections are lost.
    fn restart(&mut self) -> io::Result<()> {
        if let (Some(daemon), Some(binlog)) = (&mut self.daemon, &self.binlog) {
            binlog.restart(daemon)?;
            self.barrier = Stream::connect(&self.address)?;
            self.barrier.set_read_timeout(IO_TIMEOUT)?;
        }
        // Not earlier: if the connections closed first, the daemon would execute queued commands.
        self.connections.clear();
        Ok(())
    }

    /// Opens the barrier to a daemon at an address.
    pub(crate) fn at_address(address: &str, baseline: Baseline) -> io::Result<Self> {
        let barrier = Stream::connect(address)?;
        barrier.set_read_timeout(IO_TIMEOUT)?;
        let address = address.to_owned();
        let (daemon, binlog, connections, failure) = (None, None, BTreeMap::new(), None);
        Ok(Self { address, baseline, daemon, binlog, barrier, connections, failure })
    }

    /// Records why the daemon cannot be reached, with its exit status and output if it has ended.
    fn fail(&mut self, error: &io::Error) {
        let mut message = error.to_string();
        if let Some(daemon) = &mut self.daemon {
            if let Some(status) = daemon.wait_exit(Duration::from_millis(100)) {
                let stderr: String = daemon.stderr().chars().take(500).collect();
                message = format!("ended with {status}, and had printed `{}`", stderr.trim_end());
            }
        }
        self.failure.get_or_insert(message);
    }

    fn send_barrier(&mut self) {
        if self.failure.is_none() {
            if let Err(error) = self.barrier.write_all(b"barrier\r\n") {
                self.fail(&error);
            }
        }
    }

    fn await_barrier(&mut self) {
        const ANSWER: &[u8] = b"UNKNOWN_COMMAND\r\n";
        let mut buffer = [0; ANSWER.len()];
        if self.failure.is_none() {
            match self.barrier.read_exact(&mut buffer) {
                Ok(()) if buffer == ANSWER => {}
                Ok(()) => self.fail(&io::Error::other("it answers the barrier wrongly")),
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Tells whether a connection has received this number of replies, or will receive no more.
    fn has_received(&self, peer: Peer, replies: usize) -> bool {
        self.failure.is_some()
            || self.connections.get(&peer).is_none_or(|connection| {
                connection.received.is_closed || connection.received.replies.len() >= replies
            })
    }
}

/// The result of [`Harness::settle`].
#[derive(Debug)]
pub(crate) struct Settled {
    /// What both daemons sent, for each connection that received anything.
    pub(crate) pairs: Vec<ReceivedPair>,
    /// Why one of the daemons is gone.
    pub(crate) failure: Option<String>,
    /// When both were first quiet, before the slower one got time to catch up.
    pub(crate) quiet_at: Instant,
}

/// What must come after an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedReplies {
    /// The connection that the operation used.
    pub(crate) peer: Peer,
    /// The number of replies that are certain to come on it.
    pub(crate) replies: usize,
    /// Whether nothing else can come on other connections because of queued commands.
    pub(crate) is_all: bool,
    /// The number of bytes that were sent.
    pub(crate) bytes: usize,
}

/// Both daemons.
#[derive(Debug)]
pub(crate) struct Harness {
    sides: [Side; 2],
    comparator: Comparator,
    /// How long the slower one gets to catch up.
    catch_up_time: Duration,
}

impl Harness {
    pub(crate) fn new(sides: [Side; 2], comparator: Comparator, catch_up_time: Duration) -> Self {
        Self { sides, comparator, catch_up_time }
    }

    /// Tells whether a connection is open.
    pub(crate) fn is_open(&self, peer: Peer) -> bool {
        self.sides[0].connections.contains_key(&peer)
    }

    /// Opens a connection to both.
    pub(crate) fn open(&mut self, peer: Peer) {
        for side in &mut self.sides {
            match Connection::connect(&side.address) {
                Ok(connection) => drop(side.connections.insert(peer, connection)),
                Err(error) => side.fail(&error),
            }
        }
    }

    /// Sends the same to both.
    pub(crate) fn send(&mut self, peer: Peer, chunks: &[Chunk]) {
        for side in &mut self.sides {
            let bytes = Chunk::bytes(chunks, side.baseline.id);
            if let Some(connection) = side.connections.get_mut(&peer) {
                connection.send(&bytes);
            }
        }
    }

    /// Shuts down the sending side of a connection.
    pub(crate) fn half_close(&mut self, peer: Peer) {
        for connection in self.sides.iter().filter_map(|side| side.connections.get(&peer)) {
            // Fails only if the daemon has closed the connection; reading shows that.
            let _ = connection.stream.shut_down_writing();
        }
    }

    /// Closes a connection.
    pub(crate) fn close(&mut self, peer: Peer) {
        for side in &mut self.sides {
            side.connections.remove(&peer);
        }
    }

    /// Sends SIGUSR1 to both; does nothing if their processes are not known.
    pub(crate) fn drain(&self) {
        let daemons = self.sides.each_ref().map(|side| side.daemon.as_ref());
        if let [Some(left), Some(right)] = daemons {
            for daemon in [left, right] {
                // Fails only if it has ended; the barrier shows that.
                let _ = daemon.signal(libc::SIGUSR1);
            }
            for daemon in [left, right] {
                os::wait_until_delivered(daemon.pid(), libc::SIGUSR1, IO_TIMEOUT);
            }
        }
    }

    /// Ends both and starts them again.
    pub(crate) fn restart(&mut self) {
        for side in &mut self.sides {
            if let Err(error) = side.restart() {
                side.fail(&error);
            }
        }
    }

    /// Waits until neither daemon sends more.
    pub(crate) fn settle(&mut self, expected: ExpectedReplies) -> Settled {
        let start = Instant::now();
        let has_received_all = |harness: &Self| {
            harness.sides.iter().all(|it| it.has_received(expected.peer, expected.replies))
        };
        while !has_received_all(self) && start.elapsed() < REPLY_WAIT {
            self.read_available(REPLY_WAIT);
        }
        let needed = if expected.is_all && has_received_all(self) {
            QUIET_TRIPS_IF_ANSWERED
        } else {
            QUIET_TRIPS + expected.bytes / BYTES_PER_TRIP
        };
        let mut quiet_trips = 0;
        let mut first = None;
        loop {
            let has_data = self.barrier_round_trip();
            quiet_trips = if has_data { 0 } else { quiet_trips + 1 };
            if quiet_trips < needed {
                continue;
            }
            let quiet_at = *first.get_or_insert_with(Instant::now);
            let pairs = self.received_pairs();
            let differ = pairs.iter().any(|pair| pair.difference(&self.comparator).1.is_some());
            let has_failed = self.sides.iter().any(|side| side.failure.is_some());
            if !differ || has_failed || start.elapsed() > self.catch_up_time {
                self.forget();
                return Settled { pairs, failure: self.failure(), quiet_at };
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the comparator for the two daemons' dialects.
    pub(crate) fn comparator(&self) -> &Comparator {
        &self.comparator
    }

    fn barrier_round_trip(&mut self) -> bool {
        self.sides.iter_mut().for_each(Side::send_barrier);
        self.sides.iter_mut().for_each(Side::await_barrier);
        self.read_available(Duration::ZERO)
    }

    /// Waits up to `timeout` for data on any connection and reads it; true if there was anything.
    fn read_available(&mut self, timeout: Duration) -> bool {
        let connections = || self.sides.iter().flat_map(|side| side.connections.values());
        let open: Vec<BorrowedFd<'_>> = connections()
            .filter(|connection| !connection.received.is_closed)
            .map(|connection| connection.stream.as_fd())
            .collect();
        let mut ready = os::readable(&open, timeout).into_iter();
        let mut has_data = false;
        for side in &mut self.sides {
            for connection in
                side.connections.values_mut().filter(|connection| !connection.received.is_closed)
            {
                if ready.next().unwrap_or_default() {
                    has_data |= connection.read_available(&side.baseline);
                }
            }
        }
        has_data
    }

    fn received_pairs(&self) -> Vec<ReceivedPair> {
        let peers = self.sides[0].connections.keys().copied();
        let pairs = peers.map(|peer| {
            let received = |side: &Side| {
                side.connections.get(&peer).map(|connection| connection.received.clone())
            };
            ReceivedPair {
                peer,
                received: self.sides.each_ref().map(|side| received(side).unwrap_or_default()),
            }
        });
        pairs
            .filter(|pair| pair.received.iter().any(|received| *received != Received::default()))
            .collect()
    }

    /// Discards what was received, and the connections that were closed.
    fn forget(&mut self) {
        for side in &mut self.sides {
            side.connections.retain(|_, connection| !connection.received.is_closed);
            for connection in side.connections.values_mut() {
                connection.received.replies.clear();
            }
        }
    }

    fn failure(&self) -> Option<String> {
        let message = self.sides.iter().zip(SIDES).filter_map(|(side, name)| {
            side.failure.as_ref().map(|failure| format!("{name} is gone: {failure}"))
        });
        let message: Vec<String> = message.collect();
        (!message.is_empty()).then(|| message.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;

    fn received(replies: &[&str], rest: &str, is_closed: bool) -> Received {
        let replies = replies.iter().map(|line| Reply::Line(line.as_bytes().to_vec())).collect();
        Received { replies, rest: rest.as_bytes().to_vec(), is_closed }
    }

    #[test]
    fn the_first_difference_is_reported_with_both_answers() {
        let ours = Dialect::named("ours").unwrap();
        let comparator = Comparator::new([&ours, &ours], false);
        let table = [
            (received(&["A"], "", true), received(&["A"], "", true), 1, None),
            (
                received(&["A"], "", false),
                received(&["B"], "", false),
                0,
                Some("left answered `A`, right `B`"),
            ),
            (
                received(&["A", "B"], "", false),
                received(&["A"], "", false),
                1,
                Some("right was silent"),
            ),
            (received(&["A"], "", false), received(&["A"], "", true), 1, Some("right closed the")),
            (
                received(&["A"], "x", false),
                received(&["A"], "", true),
                1,
                Some("left began `x`, right"),
            ),
        ];
        for (left, right, same, message) in table {
            let (count, difference) =
                ReceivedPair { peer: 0, received: [left, right] }.difference(&comparator);
            assert_eq!(count, same);
            match (difference, message) {
                (Some(difference), Some(message)) => {
                    assert!(difference.contains(message), "{difference}");
                }
                (difference, message) => assert_eq!(difference.as_deref(), message),
            }
        }
    }

    #[test]
    fn ids_are_counted_from_where_the_run_began() {
        let chunks =
            [Chunk::Bytes(b"delete ".to_vec()), Chunk::Id(3), Chunk::Bytes(b"\r\n".into())];
        assert_eq!(Chunk::bytes(&chunks, 40), b"delete 43\r\n");
        assert_eq!(Chunk::bytes(&chunks, 0), b"delete 3\r\n");
    }
}
