//! Selects connections to run in a turn, sets their shares, and defers those that lack memory.

use std::collections::VecDeque;

use log::debug;

use super::EventLoop;
use crate::{
    clock::Time,
    collections::Key,
    conn::Conn,
    server::{COMMANDS_PER_CONNECTION, COMMANDS_PER_TURN, FeedResult, SHORTAGE_RETRY_DELAY},
    service::logging::Throttle,
};

/// The smallest share of a connection, in commands: fewer would not be worth the system calls.
const COMMANDS_PER_VISIT_MIN: u32 = 32;

/// The most connections that run in a turn. The system calls for each connection take some
/// microseconds, even if the connection has few commands.
const VISITS_PER_TURN: usize = 256;

/// The most connections of `busy` that run in a turn; all others that run are from `runnable`.
const BUSY_VISITS_PER_TURN: usize = VISITS_PER_TURN / 4;

/// Connections with work to do.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Connections that can continue because of an event.
    pub(super) runnable: VecDeque<Key<Conn>>,
    /// Connections that can continue without an event: those with more work than their share of a
    /// turn, and those whose client has hung up.
    pub(super) busy: VecDeque<Key<Conn>>,
    /// Connections that have ended and are not closed yet.
    pub(super) ended: VecDeque<Key<Conn>>,
    /// Connections that have unsent output and a writable socket.
    pub(super) writable: Vec<Key<Conn>>,
}

/// Connections that are deferred until there may be enough memory for their work.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    pub(super) queue: VecDeque<Key<Conn>>,
    /// When to run the connections in `queue` again.
    pub(super) retry_at: Option<Time>,
    /// From this instant on, connections are closed in order to free memory. `None` if there is
    /// enough memory for background work and for new clients.
    pub(super) close_at: Option<Time>,
    /// Limits the log lines about connections that were closed in order to free memory.
    pub(super) closed: Throttle,
}

impl EventLoop {
    /// Queues a connection that can continue because of an event.
    pub(super) fn enqueue(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.is_runnable, true) {
            self.queues.runnable.push_back(key);
        }
    }

    /// Defers a connection until there may be memory, or for [`SHORTAGE_RETRY_DELAY`] at most.
    pub(super) fn defer(&mut self, key: Key<Conn>, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.is_deferred, true) {
            self.deferred.queue.push_back(key);
        }
        self.deferred.retry_at.get_or_insert(now + SHORTAGE_RETRY_DELAY);
    }

    /// Queues the deferred connections again, if `retry_at` has come.
    pub(super) fn retry_deferred(&mut self, now: Time) {
        if self.deferred.retry_at.is_none_or(|at| at > now) {
            return;
        }
        self.deferred.retry_at = None;
        while let Some(key) = self.deferred.queue.pop_front() {
            if let Some(socket) = &mut self.sockets[key.index()] {
                socket.is_deferred = false;
            }
            self.enqueue_busy(key);
        }
    }

    /// Queues a connection that can continue without an event.
    pub(super) fn enqueue_busy(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.is_runnable, true) {
            self.queues.busy.push_back(key);
        }
    }

    /// Runs queued connections, each for its share of the turn: first those in `runnable`, then
    /// some in `busy`. Connections that do not run in this turn run in later turns, after the
    /// ticks, so timers need not wait until all connections have run.
    pub(super) fn advance_all(&mut self, now: Time) {
        let (fresh, busy) = (self.queues.runnable.len(), self.queues.busy.len());
        let all = u32::try_from(fresh + busy).unwrap_or(u32::MAX);
        let command_limit =
            (COMMANDS_PER_TURN / all.max(1)).clamp(COMMANDS_PER_VISIT_MIN, COMMANDS_PER_CONNECTION);
        let busy_visits = busy.min(BUSY_VISITS_PER_TURN);
        for _ in 0..fresh.min(VISITS_PER_TURN - busy_visits) {
            let Some(key) = self.queues.runnable.pop_front() else { break };
            self.advance(key, command_limit, now);
            if self.server.is_turn_over() {
                break;
            }
        }
        // At least one busy connection runs, even if other connections have used up the turn.
        for _ in 0..busy_visits {
            let Some(key) = self.queues.busy.pop_front() else { break };
            self.advance(key, command_limit, now);
            if self.server.is_turn_over() {
                break;
            }
        }
    }

    /// Runs a connection for its share: passes stored or newly read input to the server.
    fn advance(&mut self, key: Key<Conn>, command_limit: u32, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        socket.is_runnable = false;
        if socket.has_ended {
            return;
        }
        let has_hung_up = socket.has_hung_up || self.server.conn(key).is_half_closed;
        if has_hung_up && !self.server.may_step() {
            // There is no memory to answer the client. Closing the client's connection frees
            // memory, for which other connections may be waiting.
            debug!("{key:?} hung up, and there is no memory to answer it");
            return self.end(key);
        }
        if socket.has_hung_up {
            // `half_close` answers a `reserve` that is waiting.
            socket.has_hung_up = false;
            self.server.half_close(key);
        }
        if socket.is_writable && self.server.conn(key).output.sendable() > 0 {
            self.queues.writable.push(key);
        }
        if !self.server.conn(key).takes_input() {
            return;
        }
        if socket.feed_result == FeedResult::More {
            if socket.is_readable {
                self.read(key, command_limit, now);
            }
        } else {
            self.feed_unconsumed(key, command_limit, now);
        }
    }

    /// Queues or defers a connection that has executed its share of commands, as `feed_result`
    /// requires.
    pub(super) fn reschedule(&mut self, key: Key<Conn>, feed_result: FeedResult, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        socket.feed_result = feed_result;
        match feed_result {
            FeedResult::Later => self.enqueue_busy(key),
            FeedResult::More if socket.is_readable => self.enqueue_busy(key),
            // An event will queue the connection again, or the server will mark it as dirty.
            FeedResult::More | FeedResult::Paused => {}
            FeedResult::Short => self.defer(key, now),
        }
    }
}
