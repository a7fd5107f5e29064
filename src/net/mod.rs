//! The shell around the pure server: one thread, one poll loop, sockets, the clock.
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

mod listen;
mod socket;

use std::{borrow::Cow, collections::VecDeque, io, os::fd::AsRawFd, time::Duration};

use log::{debug, info, warn};
use mio::{
    Events, Interest, Poll, Registry, Token,
    event::{Event, Source},
    unix::SourceFd,
};

pub use self::listen::{ListenError, Listener};
use self::socket::{Socket, Stream};
use crate::{
    base::{Key, is_there},
    clock::{Clock, Time},
    conn::Conn,
    notify::Notifier,
    proto::LINE_LIMIT,
    server::{Appetite, SHARE, Server, TURN},
    sys::Signals,
    wal::Wal,
};

const SIGNALS: Token = Token(usize::MAX - 1);

/// The token of the first listener; those of connections lie far below.
const DOORS: usize = usize::MAX / 2;

/// How many commands one connection may always have obeyed when it is its turn: fewer would not be
/// worth the system calls.
const LEAST_SHARE: u32 = 32;

/// How many bytes one connection may bring in a turn: enough for a job of the default limit to
/// arrive whole, and so be copied once.
const READ_SHARE: usize = 128 * 1024;

/// How many bytes one connection may take away in a turn, give or take one write.
const WRITE_SHARE: usize = 1024 * 1024;

/// How many connections are accepted in a turn, over all listeners: a millisecond's worth.
const ACCEPT_SHARE: usize = 64;

/// How many connections may read and be answered in a turn: the system takes some microseconds for
/// each, however little they want.
const VISITS: usize = 256;

/// How many of them may be busy ones, who would use up any turn.
const BUSY_VISITS: usize = VISITS / 4;

/// For how long connections are closed in a turn, give or take one: with much that was not read,
/// the system may take a millisecond for a single one.
const CLOSE_TIME: Duration = Duration::from_micros(500);

/// How many events are taken from the system at once. It tells them in the order they came, so a
/// client behind a crowd is seen only when the crowd has been; and seeing takes far less time than
/// a visit.
const EVENTS: usize = 4096;

/// How long the listeners rest when the system has no descriptors to give, unless a connection
/// closes before.
const REST: Duration = Duration::from_secs(1);

/// How long it is, at least, from one report of such a shortage to the next.
const REPORT: Duration = Duration::from_secs(5);

/// A listener, and whether somebody may be at it; otherwise an event will come.
#[derive(Debug)]
struct Door {
    listener: Listener,
    is_knocked_at: bool,
}

/// The running daemon.
#[derive(Debug)]
pub struct Shell {
    poll: Poll,
    doors: Vec<Door>,
    /// Out of descriptors: nobody is let in until then, or until one is given back.
    rests_until: Option<Time>,
    /// A shortage of descriptors has been reported, and somebody has been at a door ever since.
    is_short: bool,
    /// No shortage is reported before.
    reports_from: Time,
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
    /// Connections that can take more of their output.
    writable: Vec<Key<Conn>>,
    /// Where bytes arrive; whatever is not consumed at once moves to its socket.
    buffer: Box<[u8]>,
    is_stopping: bool,
}

impl Shell {
    /// Makes ready to serve.
    pub fn new(
        server: Server,
        listeners: Vec<Listener>,
        signals: Signals,
        notifier: Notifier,
        clock: Clock,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut doors = Vec::new();
        for (index, mut listener) in listeners.into_iter().enumerate() {
            listener.register(poll.registry(), Token(DOORS + index), Interest::READABLE)?;
            doors.push(Door { listener, is_knocked_at: true });
        }
        let fd = signals.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), SIGNALS, Interest::READABLE)?;
        Ok(Self {
            poll,
            doors,
            rests_until: None,
            is_short: false,
            reports_from: Time::default(),
            notifier,
            signals,
            clock,
            server,
            sockets: Vec::new(),
            runnable: VecDeque::new(),
            busy: VecDeque::new(),
            ended: VecDeque::new(),
            writable: Vec::new(),
            buffer: vec![0; READ_SHARE + LINE_LIMIT].into(),
            is_stopping: false,
        })
    }

    /// Serves until a signal says to stop. Then the turn is done to its end, but nobody new is let
    /// in: whoever waits at a socket that outlasts this process is served by the next one.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        self.notifier.ready(self.status());
        while !self.is_stopping {
            self.wait(&mut events)?;
            let now = self.clock.now();
            if self.server.has_log() {
                self.server.set_calendar(self.clock.calendar(now));
            }
            self.server.tick(now);
            for event in &events {
                self.note(event);
            }
            self.accept(now);
            self.advance_all(now);
            self.server.commit(now);
            self.flush();
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
        let log = self.server.log();
        if log.is_some_and(|log| !log.is_sound()) {
            "the binlog has failed: changes are refused until it works again"
        } else if log.is_some_and(Wal::is_full) {
            "no room for the binlog: jobs are refused when it is used up"
        } else if self.server.is_draining() {
            "draining: new jobs are refused"
        } else {
            "serving"
        }
    }

    /// Sleeps until something happens or is due; not at all while work is left.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let is_knocked_at = self.doors.iter().any(|door| door.is_knocked_at);
        let accept = is_knocked_at.then(|| self.rests_until.unwrap_or_default());
        let lines = [&self.runnable, &self.busy, &self.ended];
        let work = lines.iter().any(|line| !line.is_empty()).then(Time::default);
        let due = [self.server.next_deadline(), self.notifier.next_deadline(), accept, work];
        let next = due.into_iter().flatten().min();
        // The turn has taken time; what is due must not wait as long again.
        let timeout = next.map(|at| self.clock.now().until(at));
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            result => result,
        }
    }

    fn note(&mut self, event: &Event) {
        match event.token() {
            SIGNALS => self.heed_signals(),
            Token(index) if index >= DOORS => self.doors[index - DOORS].is_knocked_at = true,
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
                    self.line_up_busy(key);
                } else {
                    self.line_up(key);
                }
            }
        }
    }

    fn heed_signals(&mut self) {
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

    /// Lets a connection go on, in this turn or soon after, since something happened to it.
    fn line_up(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.is_runnable, true) {
            self.runnable.push_back(key);
        }
    }

    /// Lets a connection go on that has had its share.
    fn line_up_busy(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.is_runnable, true) {
            self.busy.push_back(key);
        }
    }
}

/// New connections.
impl Shell {
    fn accept(&mut self, now: Time) {
        if self.is_stopping || self.rests_until.is_some_and(|until| until > now) {
            return;
        }
        // What a connection needs beside its descriptor cannot be refused later.
        let is_knocked_at = self.doors.iter().any(|door| door.is_knocked_at);
        if is_knocked_at && !is_there(0) {
            return self.rest(&io::ErrorKind::OutOfMemory.into(), now);
        }
        self.rests_until = None;
        let share = ACCEPT_SHARE.div_ceil(self.doors.len().max(1));
        for index in 0..self.doors.len() {
            self.accept_at(index, share, now);
        }
        let is_over = self.is_short && self.doors.iter().all(|door| !door.is_knocked_at);
        if is_over {
            info!("new connections are accepted again");
            self.is_short = false;
        }
    }

    fn accept_at(&mut self, index: usize, share: usize, now: Time) {
        for _ in 0..share {
            let door = &mut self.doors[index];
            if !door.is_knocked_at || self.rests_until.is_some() {
                return;
            }
            match door.listener.accept() {
                Ok(stream) => {
                    if let Err(error) = self.welcome(stream, now) {
                        warn!("a new connection could not be registered: {error}");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    door.is_knocked_at = false;
                }
                Err(error) if is_shortage(&error) => self.rest(&error, now),
                // The client has gone before we came to the door; the next one may be there.
                Err(error) => debug!("accept: {error}"),
            }
        }
    }

    fn rest(&mut self, error: &io::Error, now: Time) {
        self.rests_until = Some(now + REST);
        if !self.is_short && self.reports_from <= now {
            warn!("no new connections until others close: {error}");
            self.is_short = true;
            self.reports_from = now + REPORT;
        }
    }

    fn welcome(&mut self, mut stream: Stream, now: Time) -> io::Result<()> {
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

fn register(registry: &Registry, stream: &mut Stream, token: Token) -> io::Result<()> {
    let interests = Interest::READABLE | Interest::WRITABLE;
    // A read stops at an urgent byte, and no other event tells that bytes follow it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let interests = interests | Interest::PRIORITY;
    stream.register(registry, token, interests)
}

fn signal_name(signal: i32) -> Cow<'static, str> {
    match signal {
        libc::SIGTERM => "SIGTERM".into(),
        libc::SIGINT => "SIGINT".into(),
        libc::SIGHUP => "SIGHUP".into(),
        other => format!("signal {other}").into(),
    }
}

/// Whether the system has no descriptor or no memory for another connection.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Bytes in.
impl Shell {
    /// Shares the turn among the connections in line: first those that something happened to, but
    /// for a part that is kept for busy ones. Where they are very many, the rest of a line comes
    /// first in the next turn, so that what is due need not wait for all of them.
    fn advance_all(&mut self, now: Time) {
        let (fresh, busy) = (self.runnable.len(), self.busy.len());
        let all = u32::try_from(fresh + busy).unwrap_or(u32::MAX);
        let share = (TURN / all.max(1)).clamp(LEAST_SHARE, SHARE);
        let kept = busy.min(BUSY_VISITS);
        for _ in 0..fresh.min(VISITS - kept) {
            let Some(key) = self.runnable.pop_front() else { break };
            self.advance(key, share, now);
            if self.server.is_turn_over() {
                break;
            }
        }
        // One of them at least, even where others have used the turn up.
        for _ in 0..kept {
            let Some(key) = self.busy.pop_front() else { break };
            self.advance(key, share, now);
            if self.server.is_turn_over() {
                break;
            }
        }
    }

    /// Gives a connection its share of the turn.
    fn advance(&mut self, key: Key<Conn>, share: u32, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        socket.is_runnable = false;
        if socket.has_ended {
            return;
        }
        if std::mem::take(&mut socket.has_hung_up) {
            self.server.half_close(key);
        }
        if socket.is_writable && self.server.unsent(key) > 0 {
            self.writable.push(key);
        }
        if !self.server.takes_input(key) {
            return;
        }
        if socket.appetite == Appetite::More {
            if socket.is_readable {
                self.read(key, share, now);
            }
        } else {
            self.feed_left_over(key, share, now);
        }
    }

    /// Reads once and feeds that, behind the part of a line that was left over.
    fn read(&mut self, key: Key<Conn>, share: u32, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        let left = socket.left_over.len();
        self.buffer[..left].copy_from_slice(&socket.left_over);
        match socket.read(&mut self.buffer[left..]) {
            Ok(0) => self.server.end_of_input(key),
            Ok(count) => {
                let bytes = &self.buffer[..left + count];
                let (consumed, appetite) = self.server.feed(key, bytes, share, now);
                socket.leave_over(&bytes[consumed..]);
                self.go_on(key, appetite);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.line_up(key),
            Err(error) => self.fail(key, &error),
        }
    }

    /// Feeds what was left over when the connection's share was used up or its input paused.
    fn feed_left_over(&mut self, key: Key<Conn>, share: u32, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        let (consumed, appetite) = self.server.feed(key, &socket.left_over, share, now);
        socket.drop_left_over(consumed);
        self.go_on(key, appetite);
    }

    fn go_on(&mut self, key: Key<Conn>, appetite: Appetite) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        socket.appetite = appetite;
        match appetite {
            Appetite::Later => self.line_up_busy(key),
            Appetite::More if socket.is_readable => self.line_up_busy(key),
            // An event, or a note of the server's, will come.
            Appetite::More | Appetite::Paused => {}
        }
    }
}

/// Bytes out.
impl Shell {
    /// Sends the replies of this turn, and what earlier turns could not send.
    fn flush(&mut self) {
        for key in std::mem::take(&mut self.writable) {
            self.send(key);
        }
        while let Some(key) = self.server.next_noted() {
            self.send(key);
        }
    }

    fn send(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if socket.has_ended {
            return;
        }
        let mut share = WRITE_SHARE;
        while socket.is_writable && self.server.unsent(key) > 0 && share > 0 {
            let (slices, count) = self.server.output(key);
            match socket.write(&slices[..count]) {
                Ok(sent) => {
                    self.server.sent(key, sent);
                    share = share.saturating_sub(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail(key, &error),
            }
        }
        if self.server.is_finished(key) {
            return self.end(key);
        }
        let can_send = socket.is_writable && self.server.unsent(key) > 0;
        let can_feed = self.server.takes_input(key)
            && (socket.is_readable || socket.appetite != Appetite::More);
        if can_send || can_feed {
            self.line_up_busy(key);
        }
    }

    fn fail(&mut self, key: Key<Conn>, error: &io::Error) {
        debug!("{key:?} failed: {error}");
        self.end(key);
    }

    /// Lets a connection come to its end, in this turn or soon after.
    fn end(&mut self, key: Key<Conn>) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.has_ended, true) {
            self.ended.push_back(key);
        }
    }

    /// Closes connections that have ended, as many as there is time for.
    fn close_ended(&mut self, now: Time) {
        if self.ended.is_empty() {
            return;
        }
        let until = self.clock.now() + CLOSE_TIME;
        for _ in 0..self.ended.len() {
            let Some(key) = self.ended.pop_front() else { break };
            if self.sockets[key.index()].as_ref().is_some_and(|socket| socket.is_runnable) {
                // Its key is in a line still, and must not name another connection there.
                self.ended.push_back(key);
            } else {
                self.close(key, now);
            }
            if self.clock.now() >= until {
                break;
            }
        }
        // The jobs they held may have gone to others, who hear of it now.
        self.flush();
    }

    fn close(&mut self, key: Key<Conn>, now: Time) {
        debug!("{key:?} closed");
        self.sockets[key.index()] = None;
        self.server.close(key, now);
        self.rests_until = None;
    }
}
