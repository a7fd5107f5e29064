//! The event loop around the pure server: one thread, one poll, sockets, the clock.
//!
//! It decides nothing about jobs. Each turn it collects readiness, lets the server act, and only
//! then sends replies. Everything in a turn has a bound: a read, a share of commands, a write, a
//! batch of new connections and of ended ones; whoever wants more is lined up for the next turn,
//! which then does not sleep. Who was quiet goes before those who always have more to do, so that
//! a thousand busy clients do not stand between a client and its answer.
//!
//! Both interests of a socket are registered once. Readiness is latched here, and cleared by
//! `WouldBlock` or a short read or write, so a quiet connection costs nothing and a busy one no
//! call that only says "nothing". Invariant: a connection that could go on is in `runnable`, or
//! waits for an event that will come.

mod accept;
mod listen;
mod run_queue;
mod socket;
mod transfer;

use std::{borrow::Cow, collections::VecDeque, io, os::fd::AsRawFd, time::Duration};

use log::info;
use mio::{Events, Interest, Poll, Token, event::Event, unix::SourceFd};

pub use self::listen::{ListenError, Listener};
use self::{
    accept::{LastingProblem, ListenerSlot},
    socket::Socket,
};
use crate::{
    clock::{Clock, Time},
    collections::Key,
    conn::Conn,
    proto::LINE_LIMIT,
    server::{Health, Server},
    service::logging::Throttle,
    service::notify::Notifier,
    sys::Signals,
};

const SIGNALS: Token = Token(usize::MAX - 1);

/// The token of the first listener; those of connections lie far below.
const FIRST_LISTENER_TOKEN: usize = usize::MAX / 2;

/// How many bytes one connection may bring in a turn: enough for a job of the default limit to
/// arrive whole, and so be copied once.
const READ_MAX_BYTES: usize = 128 * 1024;

/// How many events are taken from the system at once. It tells them in the order they came, so a
/// client behind a crowd is seen only when the crowd has been; and seeing takes far less time than
/// a visit.
const EVENTS_PER_POLL: usize = 4096;

/// How often an idle daemon looks at the clock on the wall, which may be set, while that moves
/// deadlines.
const CALENDAR_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The running daemon.
#[derive(Debug)]
pub struct EventLoop {
    poll: Poll,
    listeners: Vec<ListenerSlot>,
    /// Out of descriptors: nobody is let in until then, or until one is given back.
    backs_off_until: Option<Time>,
    /// Somebody has been at a door ever since it was reported.
    shortage: LastingProblem,
    notifier: Notifier,
    signals: Signals,
    clock: Clock,
    server: Server,
    /// By the index of the server's key.
    sockets: Vec<Option<Socket>>,
    /// Connections that can go on since something happened to them.
    runnable: VecDeque<Key<Conn>>,
    /// Those that can go on without that, for they had more to do than their share of a turn; and
    /// those that leave.
    busy: VecDeque<Key<Conn>>,
    /// Those that have ended and are not closed yet.
    ended: VecDeque<Key<Conn>>,
    /// Those that could go on if there were memory; and when they try again.
    deferred: VecDeque<Key<Conn>>,
    deferred_retry_at: Option<Time>,
    /// Nothing can be served for want of memory; from then on connections are closed for it.
    close_for_memory_at: Option<Time>,
    /// Connections that were closed for it.
    closed_for_memory: Throttle,
    /// Connections that can take more of their output.
    writable: Vec<Key<Conn>>,
    /// Where bytes arrive; whatever is not consumed at once moves to its socket.
    buffer: Box<[u8]>,
    is_stopping: bool,
}

impl EventLoop {
    /// Makes ready to serve.
    pub fn new(
        server: Server,
        listeners: Vec<Listener>,
        signals: Signals,
        notifier: Notifier,
        clock: Clock,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut slots = Vec::new();
        for (index, mut listener) in listeners.into_iter().enumerate() {
            let token = Token(FIRST_LISTENER_TOKEN + index);
            poll.registry().register(listener.source(), token, Interest::READABLE)?;
            slots.push(ListenerSlot::new(listener));
        }
        let fd = signals.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), SIGNALS, Interest::READABLE)?;
        // Without one descriptor more no client could ever connect: better to end and say so.
        drop(poll.registry().try_clone()?);
        Ok(Self {
            poll,
            listeners: slots,
            backs_off_until: None,
            shortage: LastingProblem::default(),
            notifier,
            signals,
            clock,
            server,
            sockets: Vec::new(),
            runnable: VecDeque::new(),
            busy: VecDeque::new(),
            ended: VecDeque::new(),
            deferred: VecDeque::new(),
            deferred_retry_at: None,
            close_for_memory_at: None,
            closed_for_memory: Throttle::default(),
            writable: Vec::new(),
            buffer: vec![0; READ_MAX_BYTES + LINE_LIMIT].into(),
            is_stopping: false,
        })
    }

    /// Serves until a signal says to stop. Then the turn is done to its end, but nobody new is let
    /// in: whoever waits at a socket that outlasts this process is served by the next one.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        self.notifier.ready(self.status());
        while !self.is_stopping {
            self.wait(&mut events)?;
            let now = self.clock.now();
            if self.server.has_wal() {
                self.server.set_calendar(self.clock.calendar(now));
            }
            self.server.tick(now);
            for event in &events {
                self.on_event(event);
            }
            self.accept(now);
            self.retry_deferred(now);
            self.advance_all(now);
            self.server.commit(now);
            self.flush();
            self.close_for_memory(now);
            self.close_ended(now);
            self.server.reclaim();
            self.notifier.status(self.status());
            self.notifier.feed_watchdog(now);
        }
        self.notifier.stopping();
        self.server.end()
    }

    /// What a service manager shows of the daemon.
    fn status(&self) -> &'static str {
        match self.server.health() {
            Health::BinlogFailed => {
                "the binlog has failed: changes are refused until it works again"
            }
            Health::BinlogFull => {
                "no disk space for the binlog: jobs are refused when the current segments are full"
            }
            Health::Draining => "draining: new jobs are refused",
            Health::Serving => "serving",
        }
    }

    /// Sleeps until something happens or is due; not at all while work is left.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let ready = self.listeners.iter().filter(|slot| slot.is_ready);
        let accept = ready
            .map(|slot| slot.backs_off_until.max(self.backs_off_until).unwrap_or_default())
            .min();
        let lines = [&self.runnable, &self.busy, &self.ended];
        let work = lines.iter().any(|line| !line.is_empty()).then(Time::default);
        let (again, relief) = (self.deferred_retry_at, self.close_for_memory_at);
        let (server, notifier) = (self.server.next_deadline(), self.notifier.next_deadline());
        let due = [server, notifier, accept, work, again, relief];
        let next = due.into_iter().flatten().min();
        // The turn has taken time; what is due must not wait as long again.
        let timeout = next.map(|at| self.clock.now().until(at));
        // The log dates delayed jobs, and no event tells that the clock on the wall was set.
        let is_dated = self.server.has_wal() && self.server.queue().counts().delayed > 0;
        let look = is_dated.then_some(CALENDAR_CHECK_INTERVAL);
        let timeout = [timeout, look].into_iter().flatten().min();
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            result => result,
        }
    }

    fn on_event(&mut self, event: &Event) {
        match event.token() {
            SIGNALS => self.handle_signals(),
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
                    // It gets no more jobs; but thousands that leave at once must not stand before
                    // those who stay.
                    self.server.hang_up(key);
                    self.enqueue_busy(key);
                } else {
                    self.enqueue(key);
                }
            }
        }
    }

    fn handle_signals(&mut self) {
        for signal in self.signals.take() {
            match signal {
                libc::SIGUSR1 => {
                    info!("draining: new jobs are refused from now on");
                    self.server.drain();
                }
                libc::SIGUSR2 => {
                    info!("no longer draining: new jobs are taken again");
                    self.server.end_drain();
                }
                signal => {
                    let (connections, jobs) = (self.connections(), self.server.queue().jobs());
                    let name = signal_name(signal);
                    info!("ending on {name}, with {connections} connections and {jobs} jobs");
                    self.is_stopping = true;
                }
            }
        }
    }

    fn connections(&self) -> usize {
        self.sockets.iter().flatten().count()
    }
}

fn signal_name(signal: i32) -> Cow<'static, str> {
    match signal {
        libc::SIGTERM => "SIGTERM".into(),
        libc::SIGINT => "SIGINT".into(),
        libc::SIGHUP => "SIGHUP".into(),
        other => format!("signal {other}").into(),
    }
}
