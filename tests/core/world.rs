//! A world without sockets: the pure server, clients whose bytes arrive in pieces of any size,
//! and a clock that jumps.

use std::{collections::VecDeque, num::NonZeroU32, time::Duration};

use beanstalkd::{
    clock::Time,
    collections::Key,
    conn::Conn,
    memory::Supply,
    server::{COMMANDS_PER_CONNECTION, FeedResult, Identity, Server, Settings},
};
use ct::Prng;

use crate::allocations::{self, Bytes};

/// How the bytes of one send arrive.
#[derive(Debug, Clone)]
pub(crate) enum Arrival {
    /// All bytes at once.
    Whole,
    /// One byte at a time.
    SingleBytes,
    /// In pieces of random length.
    Pieces(Prng),
}

impl Arrival {
    fn next_piece(&mut self, available: usize) -> usize {
        match self {
            Self::Whole => available,
            Self::SingleBytes => 1,
            Self::Pieces(prng) => {
                1 + usize::try_from(prng.below(available as u64)).expect("below a usize")
            }
        }
    }
}

/// A client's end of a connection.
#[derive(Debug)]
struct Peer {
    key: Key<Conn>,
    in_flight: VecDeque<u8>,
    arrived: Vec<u8>,
    received: Vec<u8>,
    has_ended: bool,
    is_open: bool,
    feed_result: FeedResult,
}

/// The server and all its clients.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) now: Time,
    settings: Settings,
    arrival: Arrival,
    peers: Vec<Peer>,
    /// Whether work deferred for lack of memory is retried at once: then everything is due now that
    /// is due by the latest time that the server has set.
    is_short: bool,
    /// Whether nothing happens except in turns that the test requests.
    is_paused: bool,
    /// How many commands of a client are executed before their replies are sent.
    share: u32,
    /// The most bytes of replies that have ever waited for a client.
    pub(crate) most_waiting: usize,
    /// The most memory that a command or a tick has taken, since it was last set.
    pub(crate) most_taken: Bytes,
}

/// Appends to `sent` all bytes that a connection may send now.
pub(crate) fn send(server: &mut Server, key: Key<Conn>, sent: &mut Vec<u8>) {
    while server.conn(key).output.sendable() > 0 {
        let (slices, count) = server.output(key);
        let part: Vec<u8> = slices[..count].iter().flat_map(|it| it.to_vec()).collect();
        server.sent(key, part.len());
        sent.extend(part);
    }
}

/// Constants in place of the values that the real daemon gets from the system.
pub(crate) fn identity() -> Identity {
    Identity {
        pid: 4711,
        version: env!("CARGO_PKG_VERSION").into(),
        id: "0123456789abcdef".into(),
        hostname: "host".into(),
        os: "os 1".into(),
        platform: "machine".into(),
        rusage: Default::default,
    }
}

impl World {
    pub(crate) fn new(arrival: Arrival, job_size_limit: u32) -> Self {
        let now = Time::from_nanoseconds(1_000_000_000_000);
        let settings = Settings { job_size_limit, ..Settings::default() };
        let server = Server::new(identity(), settings, now);
        let peers = Vec::new();
        Self {
            server,
            now,
            settings,
            arrival,
            peers,
            is_short: false,
            is_paused: false,
            share: COMMANDS_PER_CONNECTION,
            most_waiting: 0,
            most_taken: Bytes::default(),
        }
    }

    /// Limits the memory of all bodies; called before any client connects. From now on replies are
    /// sent one by one, because unsent replies are counted, too.
    pub(crate) fn limit_memory(&mut self, bytes: u64) {
        self.share = 1;
        self.settings.memory_limit = Some(bytes);
        self.server = Server::new(identity(), self.settings, self.now);
    }

    /// Makes the world execute one command of a client at a time.
    pub(crate) fn single_steps(&mut self) {
        self.share = 1;
    }

    /// Sets how many losses bury a job; called before any client connects.
    pub(crate) fn bury_after(&mut self, losses: NonZeroU32) {
        self.settings.bury_after = Some(losses);
        self.server = Server::new(identity(), self.settings, self.now);
    }

    /// Sets a source of memory that may refuse at any call. Refused work that must be done is
    /// retried at once.
    pub(crate) fn set_supply(&mut self, memory: Box<dyn Supply>) {
        self.server.set_supply(memory);
        self.server.retry_at_once();
        self.is_short = true;
    }

    /// Replaces this server by another one, which has no clients.
    pub(crate) fn replace(&mut self, server: Server) {
        for peer in &mut self.peers {
            peer.is_open = false;
        }
        self.server = server;
    }

    /// Opens a connection and returns its number.
    pub(crate) fn connect(&mut self) -> usize {
        self.peers.push(Peer {
            key: self.server.open(),
            in_flight: VecDeque::new(),
            arrived: Vec::new(),
            received: Vec::new(),
            has_ended: false,
            is_open: true,
            feed_result: FeedResult::More,
        });
        self.peers.len() - 1
    }

    /// Returns the server's index of a connection, which decides the order of simultaneous events.
    pub(crate) fn slot(&self, peer: usize) -> usize {
        self.peers[peer].key.index()
    }

    pub(crate) fn send(&mut self, peer: usize, bytes: &[u8]) {
        self.peers[peer].in_flight.extend(bytes);
        self.settle();
    }

    /// Closes the client's sending side; it still reads.
    pub(crate) fn half_close(&mut self, peer: usize) {
        self.peers[peer].has_ended = true;
        if self.peers[peer].is_open {
            self.server.half_close(self.peers[peer].key);
        }
        self.settle();
    }

    /// Closes the client's connection.
    pub(crate) fn close(&mut self, peer: usize) {
        self.close_here(peer);
        self.settle();
    }

    /// What the client has received since the last call.
    pub(crate) fn receive(&mut self, peer: usize) -> Vec<u8> {
        std::mem::take(&mut self.peers[peer].received)
    }

    /// What the client has received and not yet taken by `receive`.
    pub(crate) fn received(&self, peer: usize) -> &[u8] {
        &self.peers[peer].received
    }

    pub(crate) fn is_open(&self, peer: usize) -> bool {
        self.peers[peer].is_open
    }

    pub(crate) fn drain(&mut self) {
        self.server.set_draining(true);
    }

    pub(crate) fn end_drain(&mut self) {
        self.server.set_draining(false);
    }

    /// Lets time pass, from one deadline to the next.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let next = self.server.next_deadline().filter(|&at| at <= end && !self.is_paused);
            let Some(deadline) = next else { break };
            self.now = self.now.max(deadline);
            self.tick();
            self.settle();
        }
        self.now = end;
    }

    /// Makes everything happen only in [`World::turn`] from now on.
    pub(crate) fn pause_turns(&mut self) {
        self.is_paused = true;
    }

    /// Performs one turn, as the event loop does: due work, then a share of every client's bytes.
    pub(crate) fn turn(&mut self) {
        self.server.tick(self.now);
        for peer in 0..self.peers.len() {
            self.deliver(peer);
        }
        self.flush();
        self.server.reclaim();
    }

    /// Feeds one share of a client's bytes, and sends nothing.
    pub(crate) fn feed(&mut self, peer: usize) {
        self.deliver(peer);
    }

    /// Runs turns until nothing is left to do at this instant. Each client in turn proceeds as far
    /// as it can, so that the order of events does not depend on how bytes arrive.
    fn settle(&mut self) {
        let mut is_busy = !self.is_paused;
        while is_busy {
            is_busy = self.flush();
            if self.server.next_deadline().is_some_and(|at| at <= self.due_by()) {
                self.tick();
                is_busy = true;
            }
            for peer in 0..self.peers.len() {
                while self.deliver(peer) {
                    is_busy = true;
                    self.flush();
                }
            }
            // A tick may have answered a wait that further input could also end.
            is_busy |= self.flush();
            self.server.reclaim();
        }
    }

    /// Returns the time up to which due work must be done now.
    fn due_by(&self) -> Time {
        if self.is_short { self.now.max(self.server.latest()) } else { self.now }
    }

    /// Does the due work.
    fn tick(&mut self) {
        let (server, now) = (&mut self.server, self.now);
        let ((), taken) = allocations::measured(|| server.tick(now));
        self.most_taken = self.most_taken.max(taken);
    }

    /// Feeds a share of a client's bytes to the server; returns whether the server took any.
    fn deliver(&mut self, number: usize) -> bool {
        let peer = &mut self.peers[number];
        if !peer.is_open || !self.server.conn(peer.key).takes_input() {
            return false;
        }
        if peer.feed_result == FeedResult::More {
            if peer.in_flight.is_empty() {
                if peer.has_ended {
                    peer.has_ended = false;
                    self.server.end_of_input(peer.key);
                    return true;
                }
                return false;
            }
            let piece = self.arrival.next_piece(peer.in_flight.len());
            peer.arrived.extend(peer.in_flight.drain(..piece));
        }
        let (server, share, now) = (&mut self.server, self.share, self.now);
        let ((consumed, feed_result), taken) =
            allocations::measured(|| server.feed(peer.key, &peer.arrived, share, now));
        self.most_taken = self.most_taken.max(taken);
        peer.arrived.drain(..consumed);
        peer.feed_result = feed_result;
        true
    }

    /// Sends all replies; returns whether there were any.
    fn flush(&mut self) -> bool {
        let mut is_busy = false;
        self.server.commit(self.now);
        while let Some(key) = self.server.next_dirty() {
            is_busy = true;
            let of_key = |peer: &Peer| peer.is_open && peer.key == key;
            if let Some(number) = self.peers.iter().position(of_key) {
                self.transmit(number);
            }
        }
        is_busy
    }

    fn transmit(&mut self, number: usize) {
        let Self { peers, most_waiting, .. } = self;
        let Peer { key, received, .. } = &mut peers[number];
        *most_waiting = self.server.conn(*key).output.len().max(*most_waiting);
        send(&mut self.server, *key, received);
        if self.server.conn(*key).is_finished() {
            self.close_here(number);
        }
    }

    fn close_here(&mut self, number: usize) {
        let peer = &mut self.peers[number];
        if std::mem::replace(&mut peer.is_open, false) {
            self.server.close(peer.key, self.now);
        }
    }
}
