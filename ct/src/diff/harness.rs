//! Drives two daemons in lockstep.
//!
//! Every operation is performed on the left daemon, then on the right one. Then [`Harness::settle`]
//! waits until neither daemon sends more. `settle` first awaits the replies that are certain to
//! come. Further replies may come, for example to waiting clients. So the harness makes round
//! trips: on a connection of its own it sends an unknown command (the barrier), and awaits the
//! reply. In each round trip the daemon reads all sockets. When enough round trips have brought
//! only the barrier's reply, nothing more is expected, and the replies of the two daemons are
//! compared. If replies differ, the slower daemon gets time to catch up.

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use super::operation::Peer;
use super::reply::Comparator;
use super::side::{Chunk, Connection, IO_TIMEOUT, POLL_INTERVAL, Received, SIDES, Side};
use crate::os;

/// A round trip is quiet if only the barrier's reply arrives. The harness waits for this many quiet
/// round trips if the replies show that all commands were executed.
const QUIET_TRIPS_IF_ANSWERED: usize = 1;
/// The harness waits for this many quiet round trips in succession if some commands have perhaps
/// not been executed yet.
const QUIET_TRIPS: usize = 3;
/// How long to wait for expected replies. After that, round trips are made, even if replies are
/// missing.
const REPLY_WAIT: Duration = Duration::from_millis(40);
/// For every so many bytes sent, the harness waits for one more quiet round trip, because some
/// daemons read a large body in small pieces without replying.
const BYTES_PER_TRIP: usize = 256;

/// The replies of both daemons on one connection, left and right.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedPair {
    pub(crate) peer: Peer,
    pub(crate) received: [Received; 2],
}

impl ReceivedPair {
    /// Returns the number of equal replies before the first difference of the two daemons, and that
    /// difference, if there is one.
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

/// The result of [`Harness::settle`].
#[derive(Debug)]
pub(crate) struct Settled {
    /// The replies of both daemons, for each connection that received anything.
    pub(crate) pairs: Vec<ReceivedPair>,
    /// Why a daemon can no longer be reached; `None` if both daemons can be reached.
    pub(crate) failure: Option<String>,
    /// When both daemons were quiet for the first time; after that, the slower daemon gets time to
    /// catch up.
    pub(crate) quiet_at: Instant,
}

/// The replies that must follow an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedReplies {
    /// The connection that the operation used.
    pub(crate) peer: Peer,
    /// The number of replies that are certain to come on that connection.
    pub(crate) replies: usize,
    /// Whether these replies show that a daemon has executed all commands.
    pub(crate) is_all: bool,
    /// The number of bytes that were sent.
    pub(crate) bytes: usize,
}

/// Both daemons.
#[derive(Debug)]
pub(crate) struct Harness {
    sides: [Side; 2],
    comparator: Comparator,
    /// How long the slower daemon gets to catch up.
    catch_up_time: Duration,
}

impl Harness {
    /// Makes a harness of two daemons.
    pub(crate) fn new(sides: [Side; 2], comparator: Comparator, catch_up_time: Duration) -> Self {
        Self { sides, comparator, catch_up_time }
    }

    /// Returns whether a connection to both daemons is open.
    pub(crate) fn is_open(&self, peer: Peer) -> bool {
        self.sides[0].connections.contains_key(&peer)
    }

    /// Opens one connection to each of the two daemons.
    pub(crate) fn open(&mut self, peer: Peer) {
        for side in &mut self.sides {
            match Connection::connect(&side.address) {
                Ok(connection) => drop(side.connections.insert(peer, connection)),
                Err(error) => side.fail(&error),
            }
        }
    }

    /// Sends the same chunks of bytes to both daemons.
    pub(crate) fn send(&mut self, peer: Peer, chunks: &[Chunk]) {
        for side in &mut self.sides {
            let bytes = Chunk::bytes(chunks, side.baseline.id);
            if let Some(connection) = side.connections.get_mut(&peer) {
                connection.send(&bytes);
            }
        }
    }

    /// Shuts down the sending side of a connection to both daemons.
    pub(crate) fn half_close(&mut self, peer: Peer) {
        for connection in self.sides.iter().filter_map(|side| side.connections.get(&peer)) {
            // An error of `shutdown` is ignored: it means that the daemon has closed the
            // connection, and the next read shows that.
            let _ = connection.stream.shut_down_writing();
        }
    }

    /// Closes a connection to both daemons.
    pub(crate) fn close(&mut self, peer: Peer) {
        for side in &mut self.sides {
            side.connections.remove(&peer);
        }
    }

    /// Sends SIGUSR1 to both daemons; does nothing if their processes are not known.
    pub(crate) fn drain(&self) {
        let daemons = self.sides.each_ref().map(|side| side.daemon.as_ref());
        if let [Some(left), Some(right)] = daemons {
            for daemon in [left, right] {
                // Sending the signal fails only if the daemon has ended, which the barrier shows.
                let _ = daemon.signal(libc::SIGUSR1);
            }
            for daemon in [left, right] {
                os::wait_until_delivered(daemon.pid(), libc::SIGUSR1, IO_TIMEOUT);
            }
        }
    }

    /// Stops both daemons and starts them again.
    pub(crate) fn restart(&mut self) {
        for side in &mut self.sides {
            if let Err(error) = side.restart() {
                side.fail(&error);
            }
        }
    }

    /// Waits until neither of the two daemons sends more.
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

    /// Makes a round trip: sends the barrier's command to both daemons and awaits both replies.
    /// Returns true if data arrived on other connections.
    fn barrier_round_trip(&mut self) -> bool {
        self.sides.iter_mut().for_each(Side::send_barrier);
        self.sides.iter_mut().for_each(Side::await_barrier);
        self.read_available(Duration::ZERO)
    }

    /// Waits up to `timeout` for data from either of the two daemons, and reads all data. Returns
    /// whether there was any data.
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

    /// Returns the answers of both daemons on each connection.
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

    /// Discards the received replies and the closed connections of both daemons.
    fn forget(&mut self) {
        for side in &mut self.sides {
            side.connections.retain(|_, connection| !connection.received.is_closed);
            for connection in side.connections.values_mut() {
                connection.received.replies.clear();
            }
        }
    }

    /// Describes which of the two daemons can no longer be reached, if any.
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
    use crate::diff::reply::Reply;

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
}
