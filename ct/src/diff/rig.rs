//! Two daemons side by side, met in lock step.
//!
//! Everything is done to both, the left one first. Then [`Rig::settle`] waits until neither has
//! anything more to say. It is told how many replies are due, and waits for them. What else may
//! come nobody knows: others that wait may be served, garbage may be anything. So it makes round
//! trips on a connection of its own, the barrier, until some in a row brought nothing on any
//! connection: with each of them the daemon has looked at every socket again. If the two do not
//! agree by then, the slower one gets time to catch up.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::act::Peer;
use super::reply::{Baseline, Judge, Reply};
use crate::check::Program;
use crate::daemon::Daemon;
use crate::os;
use crate::socket::Stream;

/// Round trips without news after which no news is coming, where all that is due has come: the
/// daemon had seen the last command, so what it said to others is on its way before the barrier's.
const QUIET_TRIPS_ANSWERED: usize = 1;
/// Round trips without news after which no news is coming, where that is not certain.
const QUIET_TRIPS: usize = 3;
/// How long is waited for replies that are due; if the count was wrong, round trips tell.
const DUE_TIME: Duration = Duration::from_millis(40);
/// Bytes for each further quiet trip: some daemons take a large body in small bites, without a
/// sign of life.
const BYTES_PER_TRIP: usize = 256;
/// How long a daemon may take for a barrier, or for taking what we send, before it hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often is looked whether something has changed.
const POLL: Duration = Duration::from_millis(1);

/// The two sides, in the order in which everything is done.
pub(crate) const SIDES: [&str; 2] = ["left", "right"];

/// A piece of what is sent, its ids counted from where the run began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chunk {
    Bytes(Vec<u8>),
    Id(u64),
}

impl Chunk {
    /// Writes chunks for a daemon that has given ids up to `base`.
    pub(crate) fn bytes(chunks: &[Self], base: u64) -> Vec<u8> {
        let all = chunks.iter().map(|chunk| match chunk {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Id(id) => id.saturating_add(base).to_string().into_bytes(),
        });
        all.collect::<Vec<_>>().concat()
    }
}

/// What one daemon said on one connection since the last time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) replies: Vec<Reply>,
    /// The beginning of a reply.
    pub(crate) rest: Vec<u8>,
    pub(crate) is_closed: bool,
}

/// What both said on one connection, left and right.
#[derive(Debug, Clone)]
pub(crate) struct News {
    pub(crate) peer: Peer,
    pub(crate) said: [Said; 2],
}

impl News {
    /// Returns how many replies are the same, and how the two differ after those, if they do.
    pub(crate) fn difference(&self, judge: &Judge) -> (usize, Option<String>) {
        let [left, right] = &self.said;
        let pairs = left.replies.iter().zip(&right.replies);
        for (index, (left, right)) in pairs.enumerate() {
            if let Some(told) = judge.difference([left, right]) {
                return (index, Some(told));
            }
        }
        let same = left.replies.len().min(right.replies.len());
        let [left, right] = self.said.each_ref().map(|said| said.after(same));
        let told = (left != right).then(|| format!("left {left}, right {right}"));
        (same, told)
    }
}

impl Said {
    /// Tells what comes after so many replies.
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
struct Wire {
    stream: Stream,
    arrived: Vec<u8>,
    said: Said,
}

impl Wire {
    fn connect(address: &str) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        match &stream {
            Stream::Tcp(tcp) => tcp.set_nonblocking(true)?,
            Stream::Unix(unix) => unix.set_nonblocking(true)?,
        }
        Ok(Self { stream, arrived: Vec::new(), said: Said::default() })
    }

    /// Sends everything, unless the daemon has closed: reading will tell.
    fn send(&mut self, bytes: &[u8]) {
        let start = Instant::now();
        let mut rest = bytes;
        while !rest.is_empty() && start.elapsed() < TIMEOUT {
            match self.stream.write(rest) {
                Ok(length) => rest = &rest[length..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(POLL),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Takes what has arrived, and says whether that is anything.
    fn listen(&mut self, baseline: &Baseline) -> bool {
        let mut buffer = [0; 16 << 10];
        let mut has_news = false;
        while !self.said.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.said.is_closed = true,
                Ok(length) => {
                    self.arrived.extend_from_slice(&buffer[..length]);
                    // A short read took all there was; the next look sees what follows.
                    if length < buffer.len() {
                        has_news = true;
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => self.said.is_closed = true,
            }
            has_news = true;
        }
        while let Some(reply) = Reply::take(&mut self.arrived) {
            self.said.replies.push(baseline.relative(reply));
        }
        self.said.rest.clone_from(&self.arrived);
        has_news
    }
}

/// A folder for the binlog of one daemon in one run; it goes with the run.
#[derive(Debug)]
pub(crate) struct Binlog {
    program: Program,
    folder: PathBuf,
}

impl Binlog {
    /// Makes an empty folder.
    pub(crate) fn new(program: &Program) -> io::Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ct-binlog-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        let mut program = program.clone();
        // Small files are made quickly.
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
        // Fails only where somebody else has taken it away.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// One of the two daemons.
#[derive(Debug)]
pub(crate) struct Side {
    address: String,
    baseline: Baseline,
    /// If it was started for the run.
    daemon: Option<Daemon>,
    /// How that is started again, if it keeps a binlog.
    binlog: Option<Binlog>,
    barrier: Stream,
    wires: BTreeMap<Peer, Wire>,
    /// Why it cannot be met any more.
    failure: Option<String>,
}

impl Side {
    /// Opens the barrier to a daemon that was started for the run.
    pub(crate) fn started(daemon: Daemon, binlog: Option<Binlog>) -> io::Result<Self> {
        let address = daemon.address().to_owned();
        let met = Self::met(&address, Baseline::default())?;
        Ok(Self { daemon: Some(daemon), binlog, ..met })
    }

    /// Ends it and starts it again; all connections are gone.
    fn restart(&mut self) -> io::Result<()> {
        if let (Some(daemon), Some(binlog)) = (&mut self.daemon, &self.binlog) {
            binlog.restart(daemon)?;
            self.barrier = Stream::connect(&self.address)?;
            self.barrier.set_read_timeout(TIMEOUT)?;
        }
        // Only now: a hang-up before the end would let it carry out what is queued.
        self.wires.clear();
        Ok(())
    }

    /// Opens the barrier to a daemon at an address.
    pub(crate) fn met(address: &str, baseline: Baseline) -> io::Result<Self> {
        let barrier = Stream::connect(address)?;
        barrier.set_read_timeout(TIMEOUT)?;
        let address = address.to_owned();
        let (daemon, binlog, wires, failure) = (None, None, BTreeMap::new(), None);
        Ok(Self { address, baseline, daemon, binlog, barrier, wires, failure })
    }

    /// Remembers why it cannot be met any more, and what its end was.
    fn fail(&mut self, error: &io::Error) {
        let mut told = error.to_string();
        if let Some(daemon) = &mut self.daemon {
            if let Some(status) = daemon.wait_exit(Duration::from_millis(100)) {
                let stderr: String = daemon.stderr().chars().take(500).collect();
                told = format!("ended with {status}, and had printed `{}`", stderr.trim_end());
            }
        }
        self.failure.get_or_insert(told);
    }

    fn ask(&mut self) {
        if self.failure.is_none() {
            if let Err(error) = self.barrier.write_all(b"barrier\r\n") {
                self.fail(&error);
            }
        }
    }

    fn await_answer(&mut self) {
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

    /// Tells whether so many replies have come on a connection, or all that ever will.
    fn has_said(&self, peer: Peer, replies: usize) -> bool {
        self.failure.is_some()
            || self
                .wires
                .get(&peer)
                .is_none_or(|wire| wire.said.is_closed || wire.said.replies.len() >= replies)
    }
}

/// What came after something was done.
#[derive(Debug)]
pub(crate) struct Settled {
    /// What both said.
    pub(crate) news: Vec<News>,
    /// Why one of them is gone.
    pub(crate) failure: Option<String>,
    /// When there was silence, before the slower one got more time.
    pub(crate) at: Instant,
}

/// What is to come after something was done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// On this connection,
    pub(crate) peer: Peer,
    /// so many replies.
    pub(crate) replies: usize,
    /// Whether that is all there is to wait for on any connection whose commands are queued.
    pub(crate) is_all: bool,
    /// How many bytes were sent.
    pub(crate) bytes: usize,
}

/// Both daemons.
#[derive(Debug)]
pub(crate) struct Rig {
    sides: [Side; 2],
    judge: Judge,
    /// How long the slower one gets to catch up.
    patience: Duration,
}

impl Rig {
    /// Brings two daemons together.
    pub(crate) fn new(sides: [Side; 2], judge: Judge, patience: Duration) -> Self {
        Self { sides, judge, patience }
    }

    /// Tells whether a connection is open.
    pub(crate) fn is_open(&self, peer: Peer) -> bool {
        self.sides[0].wires.contains_key(&peer)
    }

    /// Opens a connection to both.
    pub(crate) fn open(&mut self, peer: Peer) {
        for side in &mut self.sides {
            match Wire::connect(&side.address) {
                Ok(wire) => drop(side.wires.insert(peer, wire)),
                Err(error) => side.fail(&error),
            }
        }
    }

    /// Sends the same to both.
    pub(crate) fn send(&mut self, peer: Peer, chunks: &[Chunk]) {
        for side in &mut self.sides {
            let bytes = Chunk::bytes(chunks, side.baseline.id);
            if let Some(wire) = side.wires.get_mut(&peer) {
                wire.send(&bytes);
            }
        }
    }

    /// Ends our direction.
    pub(crate) fn half_close(&mut self, peer: Peer) {
        for wire in self.sides.iter().filter_map(|side| side.wires.get(&peer)) {
            // Fails only where the daemon has closed; reading will tell.
            let _ = wire.stream.shut_down_writing();
        }
    }

    /// Closes a connection.
    pub(crate) fn close(&mut self, peer: Peer) {
        for side in &mut self.sides {
            side.wires.remove(&peer);
        }
    }

    /// Sends both SIGUSR1; does nothing where that cannot be.
    pub(crate) fn drain(&self) {
        let daemons = self.sides.each_ref().map(|side| side.daemon.as_ref());
        if let [Some(left), Some(right)] = daemons {
            for daemon in [left, right] {
                // Fails only if it has ended; the barrier will tell.
                let _ = daemon.signal(libc::SIGUSR1);
            }
            for daemon in [left, right] {
                os::wait_until_taken(daemon.pid(), libc::SIGUSR1, TIMEOUT);
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

    /// Waits until neither has more to say.
    pub(crate) fn settle(&mut self, due: Due) -> Settled {
        let start = Instant::now();
        let has_all = |rig: &Self| rig.sides.iter().all(|it| it.has_said(due.peer, due.replies));
        while !has_all(self) && start.elapsed() < DUE_TIME {
            self.listen(DUE_TIME);
        }
        let needed = if due.is_all && has_all(self) {
            QUIET_TRIPS_ANSWERED
        } else {
            QUIET_TRIPS + due.bytes / BYTES_PER_TRIP
        };
        let mut quiet = 0;
        let mut first = None;
        loop {
            let has_news = self.trip();
            quiet = if has_news { 0 } else { quiet + 1 };
            if quiet < needed {
                continue;
            }
            let at = *first.get_or_insert_with(Instant::now);
            let news = self.news();
            let differ = news.iter().any(|news| news.difference(&self.judge).1.is_some());
            let has_failed = self.sides.iter().any(|side| side.failure.is_some());
            if !differ || has_failed || start.elapsed() > self.patience {
                self.forget();
                return Settled { news, failure: self.failure(), at };
            }
            thread::sleep(POLL);
        }
    }

    /// Compares by what is declared about the two.
    pub(crate) fn judge(&self) -> &Judge {
        &self.judge
    }

    fn trip(&mut self) -> bool {
        self.sides.iter_mut().for_each(Side::ask);
        self.sides.iter_mut().for_each(Side::await_answer);
        self.listen(Duration::ZERO)
    }

    /// Takes what has arrived anywhere, waits a while for the first of it, and says whether that is
    /// anything.
    fn listen(&mut self, timeout: Duration) -> bool {
        let wires = || self.sides.iter().flat_map(|side| side.wires.values());
        let open: Vec<BorrowedFd<'_>> =
            wires().filter(|wire| !wire.said.is_closed).map(|wire| wire.stream.as_fd()).collect();
        let mut ready = os::readable(&open, timeout).into_iter();
        let mut has_news = false;
        for side in &mut self.sides {
            for wire in side.wires.values_mut().filter(|wire| !wire.said.is_closed) {
                if ready.next().unwrap_or_default() {
                    has_news |= wire.listen(&side.baseline);
                }
            }
        }
        has_news
    }

    fn news(&self) -> Vec<News> {
        let peers = self.sides[0].wires.keys().copied();
        let news = peers.map(|peer| {
            let said = |side: &Side| side.wires.get(&peer).map(|wire| wire.said.clone());
            News { peer, said: self.sides.each_ref().map(|side| said(side).unwrap_or_default()) }
        });
        news.filter(|news| news.said.iter().any(|said| *said != Said::default())).collect()
    }

    /// Forgets what was told, and the connections that both have closed.
    fn forget(&mut self) {
        for side in &mut self.sides {
            side.wires.retain(|_, wire| !wire.said.is_closed);
            for wire in side.wires.values_mut() {
                wire.said.replies.clear();
            }
        }
    }

    fn failure(&self) -> Option<String> {
        let told = self.sides.iter().zip(SIDES).filter_map(|(side, name)| {
            side.failure.as_ref().map(|failure| format!("{name} is gone: {failure}"))
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;

    fn said(replies: &[&str], rest: &str, is_closed: bool) -> Said {
        let replies = replies.iter().map(|line| Reply::Line(line.as_bytes().to_vec())).collect();
        Said { replies, rest: rest.as_bytes().to_vec(), is_closed }
    }

    #[test]
    fn the_first_difference_is_told_with_both_answers() {
        let ours = Dialect::named("ours").unwrap();
        let judge = Judge::new([&ours, &ours], false);
        let table = [
            (said(&["A"], "", true), said(&["A"], "", true), 1, None),
            (
                said(&["A"], "", false),
                said(&["B"], "", false),
                0,
                Some("left answered `A`, right `B`"),
            ),
            (said(&["A", "B"], "", false), said(&["A"], "", false), 1, Some("right was silent")),
            (said(&["A"], "", false), said(&["A"], "", true), 1, Some("right closed the")),
            (said(&["A"], "x", false), said(&["A"], "", true), 1, Some("left began `x`, right")),
        ];
        for (left, right, same, told) in table {
            let (count, difference) = News { peer: 0, said: [left, right] }.difference(&judge);
            assert_eq!(count, same);
            match (difference, told) {
                (Some(difference), Some(told)) => {
                    assert!(difference.contains(told), "{difference}");
                }
                (difference, told) => assert_eq!(difference.as_deref(), told),
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
