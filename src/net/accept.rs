//! New connections: accepted at each listener while there are descriptors and memory for them.

use std::{io, time::Duration};

use log::{debug, info, warn};
use mio::{Registry, Token};

use super::{
    EventLoop, Listener,
    run_queue::Queues,
    socket::{Socket, Stream, interests},
};
use crate::{
    clock::Time,
    memory::{Need, OutOfMemory},
};

/// How many connections are accepted in a turn over all listeners: about a millisecond's work.
const ACCEPTS_PER_TURN: usize = 64;

/// How long no listener accepts if the system lacks descriptors or memory, unless a connection
/// closes earlier; also how long one listener pauses that keeps failing.
const BACK_OFF_TIME: Duration = Duration::from_secs(1);

/// The least time between two log lines about the same lasting problem.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The number of times in a row that a listener may fail to accept. An error caused by one client
/// is over with that client, so a listener that fails more often has a problem of its own.
const ACCEPT_FAILURES_MAX: u32 = 16;

/// A problem that may last long and recur often. Its beginning and its end are logged; a beginning
/// soon after the last one logged is not.
#[derive(Debug, Default)]
struct LastingProblem {
    is_reported: bool,
    /// No beginning is logged before this instant.
    reports_from: Time,
}

impl LastingProblem {
    /// Records that the problem exists. Returns whether to log its beginning.
    fn begin(&mut self, now: Time) -> bool {
        let is_new = !self.is_reported && self.reports_from <= now;
        if is_new {
            self.is_reported = true;
            self.reports_from = now + REPORT_INTERVAL;
        }
        is_new
    }

    /// Records that the problem is over. Returns whether to log its end.
    fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_reported)
    }
}

/// A listener, and whether it may have a client to accept. If not, an event will come.
#[derive(Debug)]
pub(super) struct ListenerSlot {
    pub(super) listener: Listener,
    pub(super) is_ready: bool,
    /// The number of failures to accept in a row.
    failures: u32,
    /// It has failed too often, and is not tried before this instant.
    pub(super) backs_off_until: Option<Time>,
    problem: LastingProblem,
}

impl ListenerSlot {
    pub(super) fn new(listener: Listener) -> Self {
        let problem = LastingProblem::default();
        Self { listener, is_ready: true, failures: 0, backs_off_until: None, problem }
    }

    /// Whether to try it now.
    fn is_open(&self, now: Time) -> bool {
        self.is_ready && self.backs_off_until.is_none_or(|until| until <= now)
    }

    fn on_failure(&mut self, error: &io::Error, now: Time) {
        self.failures = self.failures.saturating_add(1);
        if self.failures < ACCEPT_FAILURES_MAX {
            return;
        }
        self.backs_off_until = Some(now + BACK_OFF_TIME);
        if self.problem.begin(now) {
            warn!("{} accepts no connections: {error}", self.listener.address());
        }
    }

    fn on_success(&mut self) {
        self.failures = 0;
        self.backs_off_until = None;
        if self.problem.end() {
            info!("{} accepts connections again", self.listener.address());
        }
    }
}

/// All listeners, and whether any of them may accept.
#[derive(Debug)]
pub(super) struct Accepting {
    pub(super) listeners: Vec<ListenerSlot>,
    /// There are no descriptors or no memory: no connection is accepted before this instant, unless
    /// one is closed earlier.
    pub(super) backs_off_until: Option<Time>,
    /// The logged shortage of descriptors or memory. It ends when no listener has a client to
    /// accept.
    shortage: LastingProblem,
}

impl Accepting {
    pub(super) fn new(listeners: Vec<ListenerSlot>) -> Self {
        Self { listeners, backs_off_until: None, shortage: LastingProblem::default() }
    }
}

impl EventLoop {
    pub(super) fn accept(&mut self, now: Time) {
        if self.is_stopping || self.accepting.backs_off_until.is_some_and(|until| until > now) {
            return;
        }
        self.accepting.backs_off_until = None;
        let accept_limit = ACCEPTS_PER_TURN.div_ceil(self.accepting.listeners.len().max(1));
        for index in 0..self.accepting.listeners.len() {
            self.accept_at(index, accept_limit, now);
        }
        if self.accepting.listeners.iter().all(|slot| !slot.is_open(now))
            && self.accepting.shortage.end()
        {
            info!("connections are accepted again");
        }
    }

    fn accept_at(&mut self, index: usize, accept_limit: usize, now: Time) {
        for _ in 0..accept_limit {
            let slot = &mut self.accepting.listeners[index];
            if !slot.is_open(now) || self.accepting.backs_off_until.is_some() {
                return;
            }
            // This is the last point at which a lack of memory can be handled.
            if let Err(OutOfMemory) = self.ensure_memory_to_accept() {
                return self.back_off(&io::ErrorKind::OutOfMemory.into(), now);
            }
            let slot = &mut self.accepting.listeners[index];
            match slot.listener.accept() {
                Ok(stream) => {
                    slot.on_success();
                    if let Err(error) = self.add_connection(stream, now) {
                        debug!("a new connection could not be registered: {error}");
                        self.back_off(&error, now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    slot.is_ready = false;
                    slot.on_success();
                }
                Err(error) if is_shortage(&error) => self.back_off(&error, now),
                // The client disconnected before it was accepted; another one may follow it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    debug!("accept: {error}");
                }
                Err(error) => {
                    debug!("accept: {error}");
                    slot.on_failure(&error, now);
                }
            }
        }
    }

    /// Makes sure that one more connection finds memory, in the loop and in the server.
    fn ensure_memory_to_accept(&mut self) -> Result<(), OutOfMemory> {
        self.server.ensure_memory_to_open()?;
        let budget = self.server.budget_mut();
        let count = self.sockets.len() + 1;
        budget.grow_vec(Need::Connection, &mut self.sockets, count)?;
        let Queues { runnable, busy, ended, .. } = &mut self.queues;
        for queue in [runnable, busy, ended, &mut self.deferred.queue] {
            budget.grow_deque(Need::Connection, queue, count)?;
        }
        Ok(())
    }

    pub(super) fn back_off(&mut self, error: &io::Error, now: Time) {
        self.accepting.backs_off_until = Some(now + BACK_OFF_TIME);
        if self.accepting.shortage.begin(now) {
            warn!("cannot accept connections until others close: {error}");
        }
    }

    fn add_connection(&mut self, mut stream: Stream, now: Time) -> io::Result<()> {
        let key = self.server.open();
        let registered = register(self.poll.registry(), &mut stream, Token(key.index()));
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

pub(super) fn register(registry: &Registry, stream: &mut Stream, token: Token) -> io::Result<()> {
    registry.register(stream.source(), token, interests())
}

/// Whether the system has no descriptor or no memory for another connection.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A problem that comes and goes each second would fill the log.
    #[test]
    fn a_problem_is_logged_when_it_begins_and_ends_but_not_again_and_again() {
        let start = Time::from_nanoseconds(1);
        let mut problem = LastingProblem::default();
        assert!(problem.begin(start));
        assert!(!problem.begin(start), "it is known");
        assert!(problem.end());
        assert!(!problem.end());
        assert!(!problem.begin(start + REPORT_INTERVAL / 2), "too soon after the last");
        assert!(!problem.end(), "without a line for its beginning there is none for its end");
        assert!(problem.begin(start + REPORT_INTERVAL));
    }

    #[test]
    fn a_listener_backs_off_after_many_failures_in_a_row() {
        let folder = tempfile::tempdir().expect("a directory");
        let address = crate::cli::Address::Unix(folder.path().join("socket"));
        let mut listeners = Listener::bind_all(&[address]).expect("the path is free");
        let mut slot = ListenerSlot::new(listeners.remove(0));
        let now = Time::from_nanoseconds(1);
        let error = io::Error::from_raw_os_error(libc::EPERM);
        for _ in 1..ACCEPT_FAILURES_MAX {
            slot.on_failure(&error, now);
            assert!(slot.is_open(now));
        }
        slot.on_failure(&error, now);
        assert!(!slot.is_open(now));
        assert!(slot.is_open(now + BACK_OFF_TIME));
        slot.on_success();
        slot.on_failure(&error, now);
        assert!(slot.is_open(now), "it counts from the start again");
    }
}
