//! Accepts connections, and pauses a listener while descriptors or memory are short.

use std::{io, time::Duration};

use log::{debug, info, warn};
use mio::{Token, net::TcpStream};

use super::{
    EventLoop, Listener,
    run_queue::Queues,
    socket::{INTERESTS, Socket},
};
use crate::{
    clock::Time,
    collections::{Growth, grow, grow_deque},
};

/// The most connections accepted in a turn, over all listeners: about a millisecond's work.
const ACCEPTS_PER_TURN: usize = 64;

/// How long a listener pauses after it could not accept a connection, usually for lack of
/// descriptors or memory. If a connection is closed during the pause, the pause ends at once.
const BACK_OFF_TIME: Duration = Duration::from_secs(1);

/// The least time between two warnings that a listener cannot accept connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// A listener, and whether a client may be waiting to be accepted. If no client is waiting, an
/// event will report the next client.
#[derive(Debug)]
pub(super) struct ListenerSlot {
    pub(super) listener: Listener,
    pub(super) is_ready: bool,
    /// No client is accepted before this instant.
    pub(super) backs_off_until: Option<Time>,
    /// Whether a client is waiting that cannot be accepted for lack of memory.
    pub(super) lacks_memory: bool,
    /// Whether the last log line on accepting reports a failure. The end of the failure is then
    /// still to be logged.
    is_reported: bool,
    /// The next failure to accept is not logged before this instant.
    reports_from: Time,
}

impl ListenerSlot {
    /// A listener that may have clients to accept.
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener,
            is_ready: true,
            backs_off_until: None,
            lacks_memory: false,
            is_reported: false,
            reports_from: Time::default(),
        }
    }

    /// Whether to try to accept a client at this listener now.
    fn is_open(&self, now: Time) -> bool {
        self.is_ready && self.backs_off_until.is_none_or(|until| until <= now)
    }

    /// Pauses the listener after a failure to accept, and logs the failure.
    fn back_off(&mut self, error: &io::Error, now: Time) {
        self.backs_off_until = Some(now + BACK_OFF_TIME);
        if !self.is_reported && self.reports_from <= now {
            (self.is_reported, self.reports_from) = (true, now + REPORT_INTERVAL);
            let address = self.listener.address();
            warn!("cannot accept connections on {address}: {error}");
        }
    }

    /// Stops accepting at this listener until the next event. If a failure to accept was logged,
    /// logs that the failure is over.
    fn on_empty(&mut self) {
        self.is_ready = false;
        if std::mem::take(&mut self.is_reported) {
            info!("accepts connections on {} again", self.listener.address());
        }
    }
}

impl EventLoop {
    /// Accepts the connections that wait at the listeners, at most as many as a turn permits.
    pub(super) fn accept(&mut self, now: Time) {
        if self.is_stopping {
            return;
        }
        let accept_limit = ACCEPTS_PER_TURN.div_ceil(self.listeners.len().max(1));
        for index in 0..self.listeners.len() {
            for _ in 0..accept_limit {
                if !self.listeners[index].is_open(now) {
                    break;
                }
                if let Err(error) = self.accept_one(index, now) {
                    self.listeners[index].back_off(&error, now);
                }
            }
        }
    }

    /// Accepts a connection at a listener. Fails if descriptors or memory are short.
    fn accept_one(&mut self, index: usize, now: Time) -> io::Result<()> {
        use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        // Without memory, no client is accepted: the daemon could only disconnect the client.
        let has_memory = self.make_room_to_accept().is_ok();
        let slot = &mut self.listeners[index];
        slot.lacks_memory = !has_memory && slot.listener.has_client();
        if slot.lacks_memory {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if !has_memory {
            slot.is_ready = false;
            return Ok(());
        }
        match slot.listener.accept() {
            Ok(stream) => return self.add_connection(stream, now),
            Err(error) if error.kind() == WouldBlock => slot.on_empty(),
            // The client disconnected before it was accepted; another client may be waiting.
            Err(error) if matches!(error.kind(), ConnectionAborted | Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Allocates memory for one more connection, in the event loop and in the server.
    fn make_room_to_accept(&mut self) -> Growth {
        self.server.make_room_to_open()?;
        let count = self.sockets.len() + 1;
        grow(&mut self.sockets, count)?;
        let Queues { runnable, busy, ended, .. } = &mut self.queues;
        for queue in [runnable, busy, ended, &mut self.deferred.queue] {
            grow_deque(queue, count)?;
        }
        Ok(())
    }

    /// Adds an accepted connection to the loop, the poll and the server.
    fn add_connection(&mut self, mut stream: TcpStream, now: Time) -> io::Result<()> {
        let key = self.server.open();
        let registry = self.poll.registry();
        let registered = registry.register(&mut stream, Token(key.index()), INTERESTS);
        if let Err(error) = registered {
            self.server.close(key, now);
            return Err(error);
        }
        if self.sockets.len() <= key.index() {
            self.sockets.resize_with(key.index() + 1, || None);
        }
        debug!("{key:?} connected");
        self.sockets[key.index()] = Some(Socket::new(stream));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(folder: &tempfile::TempDir) -> ListenerSlot {
        let address = crate::cli::Address::Unix(folder.path().join("socket"));
        ListenerSlot::new(Listener::bind_all(&[address]).expect("the path is free").remove(0))
    }

    /// If each failure to accept were logged, a failure that comes and goes would fill the log.
    #[test]
    fn a_problem_is_logged_when_it_begins_and_ends_but_not_again_and_again() {
        let folder = tempfile::tempdir().expect("a directory");
        let mut slot = slot(&folder);
        let start = Time::from_nanoseconds(1);
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        slot.back_off(&error, start);
        assert!(slot.is_reported);
        slot.on_empty();
        assert!(!slot.is_reported);
        slot.back_off(&error, start + REPORT_INTERVAL / 2);
        assert!(!slot.is_reported, "too soon after the last");
        slot.back_off(&error, start + REPORT_INTERVAL);
        assert!(slot.is_reported);
    }

    #[test]
    fn a_listener_rests_after_a_failure() {
        let folder = tempfile::tempdir().expect("a directory");
        let mut slot = slot(&folder);
        let now = Time::from_nanoseconds(1);
        slot.back_off(&io::Error::from_raw_os_error(libc::EPERM), now);
        assert!(!slot.is_open(now));
        assert!(slot.is_open(now + BACK_OFF_TIME));
    }
}
