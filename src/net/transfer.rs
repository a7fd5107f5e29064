//! Reads from connections, sends to them, and closes them when they end or to free memory.

use std::{io, time::Duration};

use log::{debug, warn};

use super::{EventLoop, LoopError};
use crate::{
    clock::{self, Time},
    collections::Key,
    conn::Conn,
    server::FeedResult,
};

/// The most bytes that are sent to one connection in a turn; the last write may exceed this limit.
const WRITE_MAX_BYTES: usize = 1024 * 1024;

/// The loop ends if this many successive lock checks each take longer than the interval between two
/// checks.
const LOCK_ATTEMPTS_MAX: u32 = 4;

/// The most time that a turn spends on closing connections; the last close may exceed this time.
/// The kernel can take a millisecond to close a single connection with much unread input.
const CLOSE_TIME_PER_TURN: Duration = Duration::from_micros(500);

/// If memory is too short for steps, or for new clients, for this long, connections are closed to
/// free memory.
const STARVATION_TIME: Duration = Duration::from_secs(1);

/// If resident memory is limited, the loop closes connections to free memory, at most 0.5 MB/s:
/// after each close, it waits this long per byte freed.
const CLOSE_DELAY_PER_BYTE: Duration = Duration::from_micros(2);

impl EventLoop {
    /// Reads once. Passes to the server the stored part of a line, if any, and then the bytes read.
    /// If there is no memory to store input that the server does not consume, peeks at the input,
    /// and after the server has consumed a part, reads only that part. The peek takes one more
    /// system call.
    pub(super) fn read(&mut self, key: Key<Conn>, command_limit: u32, now: Time) {
        let may_store = self.server.may_keep_input();
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        let left = socket.unconsumed.len();
        self.buffer[..left].copy_from_slice(&socket.unconsumed);
        let buffer = &mut self.buffer[left..];
        let end = match if may_store { socket.read(buffer) } else { socket.peek(buffer) } {
            Ok(0) => return self.server.end_of_input(key),
            Ok(count) => left + count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return self.enqueue(key),
            Err(error) => return self.fail(key, &error),
        };
        let bytes = &self.buffer[..end];
        let (consumed, mut feed_result) = self.server.feed(key, bytes, command_limit, now);
        // A part of a line is stored even if little memory is free. If the kernel kept that part,
        // it would take a whole buffer there, and perhaps leave no TCP window for the rest of the
        // line.
        let stores =
            may_store || feed_result == FeedResult::More && self.server.may_keep_part_of_line();
        let taken = if stores { end } else { consumed.max(left) };
        if feed_result == FeedResult::More && taken < end && socket.reads_until_blocked() {
            // The kernel may report no further event for the rest of the input, so the connection
            // is put into a queue of connections to read later.
            feed_result = FeedResult::Short;
        }
        let has_more = feed_result != FeedResult::More && taken < end;
        socket.unconsumed = bytes[consumed..taken].to_vec();
        if !may_store {
            if let Err(error) = socket.discard_peeked(&mut self.buffer[..taken - left]) {
                return self.fail(key, &error);
            }
            socket.is_readable |= has_more;
        }
        self.reschedule(key, feed_result, now);
    }

    /// Passes to the server the bytes that were read from a connection in earlier turns and stored.
    pub(super) fn feed_unconsumed(&mut self, key: Key<Conn>, command_limit: u32, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        let (consumed, feed_result) = self.server.feed(key, &socket.unconsumed, command_limit, now);
        socket.drop_consumed(consumed);
        self.reschedule(key, feed_result, now);
    }

    /// Sends the replies of this turn, and replies that earlier turns could not send. Only this
    /// function sends replies. If the lock of the binlog is lost, fails and sends nothing, because
    /// another daemon may hand out the same jobs.
    pub(super) fn flush(&mut self) -> Result<(), LoopError> {
        self.ensure_lock()?;
        for key in std::mem::take(&mut self.queues.writable) {
            self.send(key);
        }
        while let Some(key) = self.server.next_dirty() {
            self.send(key);
        }
        Ok(())
    }

    /// Sends the replies that need not wait for a sync. A reply may show a change of this turn to
    /// another client, so the records of all changes are written first: a kill then loses no
    /// change. If this write fails, no reply is sent; the commit decides which connections are
    /// closed.
    pub(super) fn flush_before_sync(&mut self, now: Time) -> Result<(), LoopError> {
        while let Some(key) = self.server.next_dirty() {
            self.queues.writable.push(key);
        }
        let has_replies =
            self.queues.writable.iter().any(|&key| self.server.conn(key).output.sendable() > 0);
        if has_replies && !self.server.write_changes(now) { Ok(()) } else { self.flush() }
    }

    /// Ensures, before replies are sent, that the lock of the binlog was confirmed within the last
    /// quarter of a second. Fails if the lock is lost, or if the file system takes too long to
    /// confirm the lock.
    fn ensure_lock(&mut self) -> Result<(), LoopError> {
        if self.server.wal().is_none() {
            return Ok(());
        }
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let asked = self.server.confirm_lock_if_due(clock::now());
            if let Some(error) = self.server.lost_lock() {
                return Err(LoopError::LockLost(error.to_string()));
            }
            if !asked {
                return Ok(());
            }
        }
        Err(LoopError::LockLost("the file system is too slow to confirm it".into()))
    }

    /// Sends as many replies as the socket takes, and queues the connection if work remains.
    fn send(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if socket.has_ended {
            return;
        }
        let before = self.server.conn(key).output.len();
        let mut byte_limit = WRITE_MAX_BYTES;
        while socket.is_writable && self.server.conn(key).output.sendable() > 0 && byte_limit > 0 {
            let (slices, count) = self.server.output(key);
            match socket.write(&slices[..count]) {
                Ok(sent) => {
                    self.server.sent(key, sent);
                    byte_limit = byte_limit.saturating_sub(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail(key, &error),
            }
        }
        let conn = self.server.conn(key);
        if conn.is_finished() {
            return self.end(key);
        }
        let can_send = socket.is_writable && conn.output.sendable() > 0;
        // A deferred connection is tried again when some of its output has been sent.
        let may_fit = !socket.is_deferred || conn.output.len() < before;
        let can_feed = conn.takes_input()
            && may_fit
            && (socket.is_readable || socket.feed_result != FeedResult::More);
        if can_send || can_feed {
            self.enqueue_busy(key);
        }
    }

    /// Ends a connection whose socket has failed.
    pub(super) fn fail(&mut self, key: Key<Conn>, error: &io::Error) {
        debug!("{key:?} failed: {error}");
        self.end(key);
    }

    /// Marks a connection as ended, so that it is closed in this turn or soon after.
    pub(super) fn end(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.has_ended, true) {
            self.queues.ended.push_back(key);
        }
        if socket.is_deferred {
            // A deferred connection must leave its queue before it is closed and its memory is
            // freed.
            self.deferred.retry_at = Some(Time::AT_ONCE);
        }
    }

    /// If for [`STARVATION_TIME`] there was no memory for any step or for new clients, closes one
    /// connection per turn until there is memory. Prefers connections that were idle for that time,
    /// and among these, or among the others, the connection with the most bytes of unread output
    /// and unfinished input. If resident memory is limited, waits before the next close. Call this
    /// after sending all replies for which the sockets have space. O(connections) if a connection
    /// is closed, O(listeners) if not.
    pub(super) fn close_for_memory(&mut self, now: Time) {
        let refuses_clients = self.listeners.iter().any(|slot| slot.lacks_memory);
        if self.deferred.close_at.is_none() && !refuses_clients && !self.server.lacks_memory() {
            return;
        }
        if !refuses_clients && self.server.may_step() {
            self.deferred.close_at = None;
            return;
        }
        if self.deferred.close_at.is_none() {
            self.sockets.iter_mut().flatten().for_each(|socket| socket.is_idle = true);
        }
        let is_due = *self.deferred.close_at.get_or_insert(now + STARVATION_TIME) <= now;
        // The connections that have ended are closed first, which may free enough memory.
        if !is_due || !self.queues.ended.is_empty() {
            return;
        }
        // Output for a writable socket is not counted, because a later turn sends it. Unfinished
        // input of a readable or deferred connection is not counted, because its rest may come
        // without an effort of the client.
        let held = self.sockets.iter().enumerate().filter_map(|(index, socket)| {
            let (socket, key) = (socket.as_ref()?, Key::from_index(index));
            let unread = if socket.is_writable { 0 } else { self.server.conn(key).output.len() };
            let may_go_on = socket.is_readable || socket.is_deferred;
            let held = unread + if may_go_on { 0 } else { self.server.conn(key).received() };
            (held > 0).then_some((socket.is_idle, held, key))
        });
        let Some((_, held, key)) = held.max_by_key(|&(is_idle, held, _)| (is_idle, held)) else {
            // Closing a connection would free no memory, for example because jobs take all of it.
            self.deferred.close_at = Some(now + STARVATION_TIME);
            return;
        };
        debug!("{key:?} is closed to free {held} bytes of unread replies and unfinished puts");
        if let Some(count) = self.deferred.closed.pass(now) {
            warn!(
                "out of memory: connections closed that did not read replies or finish puts: \
                 {count}"
            );
        }
        self.end(key);
        // If resident memory is limited, freed memory is perhaps still counted as resident for two
        // seconds.
        if self.server.bodies().memory.limits_resident {
            let bytes = u32::try_from(held).unwrap_or(u32::MAX);
            self.deferred.close_at = Some(now + CLOSE_DELAY_PER_BYTE * bytes);
        }
    }

    /// Closes connections that have ended, until [`CLOSE_TIME_PER_TURN`] is over.
    pub(super) fn close_ended(&mut self, now: Time) -> Result<(), LoopError> {
        if self.queues.ended.is_empty() {
            return Ok(());
        }
        let until = clock::now() + CLOSE_TIME_PER_TURN;
        for _ in 0..self.queues.ended.len() {
            let Some(key) = self.queues.ended.pop_front() else { break };
            let socket = self.sockets[key.index()].as_ref();
            if socket.is_some_and(|socket| socket.is_runnable || socket.is_deferred) {
                // While a queue has a connection's key, no other connection may get the key.
                self.queues.ended.push_back(key);
            } else {
                self.close(key, now);
            }
            if clock::now() >= until {
                break;
            }
        }
        // Sends the replies to other clients that have got jobs of the closed connections.
        self.flush()
    }

    /// Closes the socket of a connection, and removes the connection from the server.
    pub(super) fn close(&mut self, key: Key<Conn>, now: Time) {
        debug!("{key:?} closed");
        self.sockets[key.index()] = None;
        self.server.close(key, now);
        // The closed connection has freed a descriptor and memory for new and deferred connections.
        for slot in &mut self.listeners {
            slot.backs_off_until = None;
        }
        self.deferred.retry_at = self.deferred.retry_at.map(|_| Time::AT_ONCE);
    }
}
