//! The event loop, which runs the server in one thread, and owns the sockets, signals and clock.
//!
//! All work in a turn is bounded. A connection that has more work to do is queued for the next
//! turn, which then begins without a sleep. Invariant: a connection that could continue is in a
//! queue of the loop, or an event or a deadline will put it in a queue.
//!
//! | file | contents |
//! |---|---|
//! | this file | [`EventLoop`]: the turn, the wait, `gather`, events, signals; [`LoopError`] |
//! | `accept` | accepts and registers connections; pauses a listener that fails |
//! | `listen` | opens sockets to listen on, TCP and UNIX, or takes them from a service manager |
//! | `run_queue` | selects connections to run; sets their shares; defers those that lack memory |
//! | `transfer` | reads and feeds input; checks the lock; sends replies; closes connections |
//! | `socket` | one socket: its readiness, one read, peek or write, and input not consumed yet |
//! | `busy_poll` | decides by trials whether to poll for some microseconds before a sleep |

mod accept;
mod busy_poll;
mod listen;
mod run_queue;
mod socket;
mod transfer;

use std::{error::Error, fmt, io, os::fd::AsRawFd, time::Duration};

use log::{info, warn};
use mio::{Events, Interest, Poll, Token, Waker, event::Event, unix::SourceFd};

pub use self::listen::{ListenError, Listener};
use self::{
    accept::ListenerSlot,
    busy_poll::{BusyPoll, Wait},
    run_queue::{Deferred, Queues},
    socket::Socket,
};
use crate::{
    clock::{self, Time},
    collections::Key,
    proto::LINE_LIMIT,
    server::{BeforeSync, Health, Server},
    service::logging::{DrainLog, counted},
    service::notify::Notifier,
    sys::{self, Signals},
};

const SIGNALS: Token = Token(usize::MAX - 1);

/// The token of the event that reports the end of a background sync. The next commit finds out
/// whether the sync succeeded.
const SYNC_ENDED: Token = Token(usize::MAX - 2);

/// The token of the first listener. The tokens of connections are far smaller.
const FIRST_LISTENER_TOKEN: usize = usize::MAX / 2;

/// One read takes at most this many bytes, plus the length of a line. A job of the default largest
/// size fits in one read, so the job's body is copied only once.
const READ_MAX_BYTES: usize = 128 * 1024;

/// The most events of one poll. Handling an event is far faster than executing a connection's
/// commands.
const EVENTS_PER_POLL: usize = 4096;

/// How often an idle daemon with a binlog and delayed jobs checks whether the wall clock was set.
const CALENDAR_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Why the event loop ended.
#[derive(Debug)]
pub enum LoopError {
    /// A system call failed.
    System(io::Error),
    /// Another daemon may have taken over the binlog's directory.
    LockLost(String),
    /// The binlog has failed for as long as `--exit-on-binlog-failure` allows.
    BinlogFailed,
}

impl fmt::Display for LoopError {
    /// Formats the reason why the event loop has ended.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => write!(f, "the event loop failed: {error}"),
            Self::LockLost(error) => write!(
                f,
                "the lock is lost, so another daemon may have taken over; shutting down without \
                 writing anything more: {error}"
            ),
            Self::BinlogFailed => {
                f.write_str("the binlog has failed, and --exit-on-binlog-failure ends the daemon")
            }
        }
    }
}

impl Error for LoopError {}

impl From<io::Error> for LoopError {
    /// Makes the error for a failed system call.
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The running daemon.
#[derive(Debug)]
pub struct EventLoop {
    poll: Poll,
    listeners: Vec<ListenerSlot>,
    notifier: Notifier,
    signals: Signals,
    /// The loop ends once the binlog has failed for this time; `None` sets no limit.
    binlog_failure_max: Option<Duration>,
    busy_poll: BusyPoll,
    server: Server,
    /// The sockets, indexed by the keys of their connections.
    sockets: Vec<Option<Socket>>,
    queues: Queues,
    deferred: Deferred,
    drain_log: DrainLog,
    /// The buffer for reads. Bytes that the server does not consume move to `Socket::unconsumed`.
    buffer: Box<[u8]>,
    is_stopping: bool,
}

impl EventLoop {
    /// Makes the event loop: registers the listeners and the signals. Before a sleep, the loop
    /// polls for at most the time `busy_poll`. The loop ends once the binlog has failed for the
    /// time `binlog_failure_max`.
    pub fn new(
        mut server: Server,
        listeners: Vec<Listener>,
        signals: Signals,
        notifier: Notifier,
        busy_poll: Duration,
        binlog_failure_max: Option<Duration>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut slots = Vec::new();
        for (index, mut listener) in listeners.into_iter().enumerate() {
            let token = Token(FIRST_LISTENER_TOKEN + index);
            poll.registry().register(listener.source(), token, Interest::READABLE)?;
            slots.push(ListenerSlot::new(listener));
        }
        if server.wal().is_some() {
            let waker = Waker::new(poll.registry(), SYNC_ENDED)?;
            // If the waker fails, a later commit still finds out that the sync has ended.
            server.on_sync_end(Box::new(move || drop(waker.wake())));
        }
        let fd = signals.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), SIGNALS, Interest::READABLE)?;
        // Checks that a descriptor is free: without it, no client could ever connect.
        drop(poll.registry().try_clone()?);
        Ok(Self {
            poll,
            listeners: slots,
            notifier,
            signals,
            binlog_failure_max,
            busy_poll: BusyPoll::new(busy_poll),
            server,
            sockets: Vec::new(),
            queues: Queues::default(),
            deferred: Deferred::default(),
            drain_log: DrainLog::default(),
            buffer: vec![0; READ_MAX_BYTES + LINE_LIMIT].into(),
            is_stopping: false,
        })
    }

    /// Runs the event loop until a signal ends the daemon. Completes the turn in which the signal
    /// arrives, but accepts no more clients: clients at a service manager's socket wait for the
    /// next daemon.
    pub fn run(&mut self) -> Result<(), LoopError> {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        self.notifier.ready(self.status());
        let mut ended_at = clock::now();
        while !self.is_stopping {
            let now = self.wait(&mut events, ended_at)?;
            if self.server.wal().is_some() {
                self.server.set_calendar(clock::calendar(now), now);
            }
            self.server.tick(now);
            for event in &events {
                self.on_event(event);
            }
            self.accept(now);
            self.retry_deferred(now);
            self.advance_all(now);
            self.drain_log.log(self.server.is_draining(), now);
            self.gather(&mut events)?;
            self.server.commit(now);
            if self.binlog_exit_at().is_some_and(|at| at <= now) {
                return Err(LoopError::BinlogFailed);
            }
            self.flush()?;
            self.close_for_memory(now);
            self.close_ended(now)?;
            self.server.reclaim();
            self.notifier.status(self.status());
            self.notifier.feed_watchdog(now);
            ended_at = clock::now();
            self.server.count_turn(now, ended_at);
        }
        self.notifier.stopping();
        let result = self.server.shut_down();
        self.flush()?;
        Ok(result?)
    }

    /// When the loop must end because the binlog has failed.
    fn binlog_exit_at(&self) -> Option<Time> {
        Some(self.server.binlog_failed_since()? + self.binlog_failure_max?)
    }

    /// If the commit will sync in this thread, first sends the replies that need not wait for the
    /// sync. Then carries out commands that have arrived, and polls for some microseconds if
    /// clients that have just got a reply will probably send another change. One sync then covers
    /// the changes of many clients.
    fn gather(&mut self, events: &mut Events) -> Result<(), LoopError> {
        while self.server.commit_blocks() {
            let now = clock::now();
            self.flush_before_sync(now)?;
            if self.server.is_turn_over() {
                break;
            }
            let before = self.server.before_sync(now);
            if before == BeforeSync::Sync {
                break;
            }
            self.poll(events, Some(Duration::ZERO))?;
            let is_idle = events.is_empty() && self.queues.runnable.is_empty();
            if is_idle && before == BeforeSync::TakeArrived {
                break;
            }
            for event in &*events {
                self.on_event(event);
            }
            self.advance_all(now);
        }
        Ok(())
    }

    /// The status line for the service manager, which shows the health of the server.
    fn status(&self) -> &'static str {
        match self.server.health() {
            Health::BinlogFailed => {
                "the binlog has failed: changes are refused until it works again"
            }
            Health::BinlogFull => {
                "no disk space for the binlog: jobs are refused once the present segments are full"
            }
            Health::Draining => "draining: new jobs are refused",
            Health::Serving => "serving",
        }
    }

    /// Waits for an event or the next deadline; does not sleep if there is already work to do.
    /// `now` is the end of the previous turn. Returns the time at the end of the wait.
    fn wait(&mut self, events: &mut Events, now: Time) -> io::Result<Time> {
        let ready = self.listeners.iter().filter(|slot| slot.is_ready);
        let accept = ready.map(|slot| slot.backs_off_until.unwrap_or_default()).min();
        let queues = [&self.queues.runnable, &self.queues.busy, &self.queues.ended];
        let work = queues.iter().any(|queue| !queue.is_empty()).then(Time::default);
        let (retry, close) = (self.deferred.retry_at, self.deferred.close_at);
        let (server, notifier) = (self.server.next_deadline(), self.notifier.next_deadline());
        let drain = self.drain_log.next_deadline(self.server.is_draining());
        // The delays of restored jobs end at dates of the wall clock. The loop must look at this
        // clock to notice that it was set.
        let is_dated = self.server.wal().is_some() && self.server.queue().counts().delayed > 0;
        let calendar = is_dated.then(|| now + CALENDAR_CHECK_INTERVAL);
        let exit = self.binlog_exit_at();
        let due = [server, notifier, accept, work, retry, close, drain, calendar, exit];
        let timeout = due.into_iter().flatten().min().map(|at| now.until(at));
        if timeout == Some(Duration::ZERO) {
            self.poll(events, timeout)?;
            return Ok(clock::now());
        }
        self.poll_then_sleep(events, timeout, now)
    }

    /// If `busy_poll` decides to poll, polls for some microseconds. Sleeps if no event has come.
    /// Poll and sleep together take at most `timeout`.
    fn poll_then_sleep(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
        began: Time,
    ) -> io::Result<Time> {
        let polls_for = self.busy_poll.time_before_sleep();
        let polls_until = began + polls_for.min(timeout.unwrap_or(polls_for));
        let mut now = began;
        events.clear();
        while events.is_empty() && now < polls_until {
            self.poll(events, Some(Duration::ZERO))?;
            now = clock::now();
        }
        let has_slept = events.is_empty();
        if has_slept {
            let polled = began.until(now);
            self.poll(events, timeout.map(|timeout| timeout.saturating_sub(polled)))?;
            now = clock::now();
        }
        let wait = Wait { time: began.until(now), events: events.iter().count(), has_slept };
        self.busy_poll.add(wait, sys::thread_cpu_time);
        Ok(now)
    }

    /// Polls once, for at most `timeout`. A signal may end the poll early, without events.
    fn poll(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            result => result,
        }
    }

    /// Handles an event. An event of a connection puts the connection in a queue.
    fn on_event(&mut self, event: &Event) {
        match event.token() {
            SIGNALS => self.handle_signals(),
            SYNC_ENDED => {}
            Token(index) if index >= FIRST_LISTENER_TOKEN => {
                self.listeners[index - FIRST_LISTENER_TOKEN].is_ready = true;
            }
            Token(index) => {
                let Some(socket) = self.sockets.get_mut(index).and_then(Option::as_mut) else {
                    return;
                };
                socket.latch(event);
                let key = Key::from_index(index);
                if socket.has_hung_up {
                    // A client that hung up gets no more jobs. Its connection is queued as busy, so
                    // that thousands of such connections do not delay other connections.
                    self.server.hang_up(key);
                    self.enqueue_busy(key);
                } else {
                    self.enqueue(key);
                }
            }
        }
    }

    /// Begins draining, ends draining, or stops the loop, as the signals that arrived require.
    fn handle_signals(&mut self) {
        let arrived = self.signals.take();
        // On some systems, mio reports only one event, until the descriptor is registered again.
        let fd = self.signals.as_raw_fd();
        let source = &mut SourceFd(&fd);
        if let Err(error) = self.poll.registry().reregister(source, SIGNALS, Interest::READABLE) {
            warn!("signals are no longer received: {error}");
        }
        for signal in arrived {
            match signal {
                libc::SIGUSR1 => self.server.set_draining(true),
                libc::SIGUSR2 => self.server.set_draining(false),
                signal => {
                    let connections = self.sockets.iter().flatten().count();
                    let connections = counted(connections, "connection");
                    let jobs = counted(self.server.queue().jobs(), "job");
                    let name = signal_name(signal);
                    info!("shutting down on {name}, with {connections} and {jobs}");
                    self.is_stopping = true;
                }
            }
        }
    }
}

/// The name of a signal that ends the event loop, for a log line.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGTERM => "SIGTERM",
        libc::SIGINT => "SIGINT",
        _ => "SIGHUP",
    }
}
