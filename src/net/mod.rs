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
    base::{Key, Need, NoRoom},
    clock::{Clock, Time},
    conn::Conn,
    logging::Seldom,
    notify::Notifier,
    proto::LINE_LIMIT,
    server::{Appetite, PATIENCE, SHARE, Server, TURN},
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
/// closes before; and how long one rests that can accept nothing.
const REST: Duration = Duration::from_secs(1);

/// How long it is, at least, from one report of such a trouble to the next.
const REPORT: Duration = Duration::from_secs(5);

/// How often an idle daemon looks at the clock on the wall, which may be set, while that moves
/// deadlines.
const LOOK: Duration = Duration::from_secs(5);

/// How long nothing is served for want of memory until those are closed who keep the most of it.
const STARVATION: Duration = Duration::from_secs(1);

/// How often in a row a listener may fail to accept: one that fails for a reason of the client's
/// has rid itself of that client, and one that goes on failing has a reason of its own.
const FAILURES: u32 = 16;

/// Something that may last long and come often: it is reported when it begins and when it is
/// over, and what begins soon after the last report is not reported.
#[derive(Debug, Default)]
struct Trouble {
    is_reported: bool,
    /// None is reported before.
    reports_from: Time,
}

impl Trouble {
    /// It is there, maybe for long already; whether that is to be reported.
    fn is_there(&mut self, now: Time) -> bool {
        let is_new = !self.is_reported && self.reports_from <= now;
        if is_new {
            self.is_reported = true;
            self.reports_from = now + REPORT;
        }
        is_new
    }

    /// It is there no more; whether that is to be reported.
    fn is_over(&mut self) -> bool {
        std::mem::take(&mut self.is_reported)
    }
}

/// A listener, and whether somebody may be at it; otherwise an event will come.
#[derive(Debug)]
struct Door {
    listener: Listener,
    is_knocked_at: bool,
    /// How often in a row it has failed to accept.
    failures: u32,
    /// It has failed too often, and is not tried before.
    rests_until: Option<Time>,
    trouble: Trouble,
}

impl Door {
    fn new(listener: Listener) -> Self {
        let trouble = Trouble::default();
        Self { listener, is_knocked_at: true, failures: 0, rests_until: None, trouble }
    }

    /// Whether to try it now.
    fn is_open(&self, now: Time) -> bool {
        self.is_knocked_at && self.rests_until.is_none_or(|until| until <= now)
    }

    fn has_failed(&mut self, error: &io::Error, now: Time) {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES {
            return;
        }
        self.rests_until = Some(now + REST);
        if self.trouble.is_there(now) {
            warn!("{} accepts no connections: {error}", self.listener.place());
        }
    }

    fn has_worked(&mut self) {
        self.failures = 0;
        self.rests_until = None;
        if self.trouble.is_over() {
            info!("{} accepts connections again", self.listener.place());
        }
    }
}

/// The running daemon.
#[derive(Debug)]
pub struct Shell {
    poll: Poll,
    doors: Vec<Door>,
    /// Out of descriptors: nobody is let in until then, or until one is given back.
    rests_until: Option<Time>,
    /// Somebody has been at a door ever since it was reported.
    shortage: Trouble,
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
    put_off: VecDeque<Key<Conn>>,
    try_again_at: Option<Time>,
    /// Nothing can be served for want of memory; from then on connections are closed for it.
    relief_at: Option<Time>,
    /// Connections that were closed for it.
    relieved: Seldom,
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
            doors.push(Door::new(listener));
        }
        let fd = signals.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), SIGNALS, Interest::READABLE)?;
        Ok(Self {
            poll,
            doors,
            rests_until: None,
            shortage: Trouble::default(),
            notifier,
            signals,
            clock,
            server,
            sockets: Vec::new(),
            runnable: VecDeque::new(),
            busy: VecDeque::new(),
            ended: VecDeque::new(),
            put_off: VecDeque::new(),
            try_again_at: None,
            relief_at: None,
            relieved: Seldom::default(),
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
            self.try_again(now);
            self.advance_all(now);
            self.server.commit(now);
            self.flush();
            self.relieve(now);
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
        let knocked_at = self.doors.iter().filter(|door| door.is_knocked_at);
        let accept =
            knocked_at.map(|door| door.rests_until.max(self.rests_until).unwrap_or_default()).min();
        let lines = [&self.runnable, &self.busy, &self.ended];
        let work = lines.iter().any(|line| !line.is_empty()).then(Time::default);
        let (again, relief) = (self.try_again_at, self.relief_at);
        let (server, notifier) = (self.server.next_deadline(), self.notifier.next_deadline());
        let due = [server, notifier, accept, work, again, relief];
        let next = due.into_iter().flatten().min();
        // The turn has taken time; what is due must not wait as long again.
        let timeout = next.map(|at| self.clock.now().until(at));
        // The log dates delayed jobs, and no event tells that the clock on the wall was set.
        let is_dated = self.server.has_log() && self.server.queue().counts().delayed > 0;
        let look = is_dated.then_some(LOOK);
        let timeout = [timeout, look].into_iter().flatten().min();
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

    /// Lets a connection go on when there may be memory for it.
    fn put_off(&mut self, key: Key<Conn>, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        if !std::mem::replace(&mut socket.is_put_off, true) {
            self.put_off.push_back(key);
        }
        self.try_again_at.get_or_insert(now + PATIENCE);
    }

    /// Lets those go on that there was no memory for, if it is time.
    fn try_again(&mut self, now: Time) {
        if self.try_again_at.is_none_or(|at| at > now) {
            return;
        }
        self.try_again_at = None;
        while let Some(key) = self.put_off.pop_front() {
            if let Some(socket) = &mut self.sockets[key.index()] {
                socket.is_put_off = false;
            }
            self.line_up_busy(key);
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
        self.rests_until = None;
        let share = ACCEPT_SHARE.div_ceil(self.doors.len().max(1));
        for index in 0..self.doors.len() {
            self.accept_at(index, share, now);
        }
        if self.doors.iter().all(|door| !door.is_open(now)) && self.shortage.is_over() {
            info!("new connections are accepted again");
        }
    }

    fn accept_at(&mut self, index: usize, share: usize, now: Time) {
        for _ in 0..share {
            let door = &mut self.doors[index];
            if !door.is_open(now) || self.rests_until.is_some() {
                return;
            }
            // What a connection needs beside its descriptor cannot be refused later.
            if let Err(NoRoom) = self.make_room() {
                return self.rest(&io::ErrorKind::OutOfMemory.into(), now);
            }
            let door = &mut self.doors[index];
            match door.listener.accept() {
                Ok(stream) => {
                    door.has_worked();
                    if let Err(error) = self.welcome(stream, now) {
                        debug!("a new connection could not be registered: {error}");
                        self.rest(&error, now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    door.is_knocked_at = false;
                    door.has_worked();
                }
                Err(error) if is_shortage(&error) => self.rest(&error, now),
                // The client has gone before we came to the door; the next one may be there.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    debug!("accept: {error}");
                }
                Err(error) => {
                    debug!("accept: {error}");
                    door.has_failed(&error, now);
                }
            }
        }
    }

    /// Makes sure that another connection finds memory, here and in the server.
    fn make_room(&mut self) -> Result<(), NoRoom> {
        self.server.make_room_to_open()?;
        let room = self.server.room_mut();
        let count = self.sockets.len() + 1;
        room.grow(Need::Connection, &mut self.sockets, count)?;
        for line in [&mut self.runnable, &mut self.busy, &mut self.ended, &mut self.put_off] {
            room.grow_line(Need::Connection, line, count)?;
        }
        Ok(())
    }

    fn rest(&mut self, error: &io::Error, now: Time) {
        self.rests_until = Some(now + REST);
        if self.shortage.is_there(now) {
            warn!("no new connections until others close: {error}");
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
        let has_hung_up = socket.has_hung_up || self.server.has_hung_up(key);
        if has_hung_up && !self.server.has_room() {
            // It cannot be answered, and those who leave must not wait for the memory they have.
            debug!("{key:?} hung up, and there is no memory to answer it");
            return self.end(key);
        }
        if socket.has_hung_up {
            // It may be told that it waits no longer.
            socket.has_hung_up = false;
            self.server.half_close(key);
        }
        if socket.is_writable && self.server.unsent(key) > 0 {
            self.writable.push(key);
        }
        if !self.server.takes_input(key) {
            return;
        }
        if socket.appetite == Appetite::More {
            if socket.is_readable && self.server.room_mut().has(Need::More, self.buffer.len()) {
                self.read(key, share, now);
            } else if socket.is_readable {
                self.look(key, share, now);
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
                let before = socket.left_over.capacity();
                socket.leave_over(&bytes[consumed..]);
                self.server.room_mut().follow(before, socket.left_over.capacity());
                self.go_on(key, appetite, now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.line_up(key),
            Err(error) => self.fail(key, &error),
        }
    }

    /// Does what [`Shell::read`] does where there is no memory to keep what cannot be consumed at
    /// once: that stays in the system, for one call more.
    fn look(&mut self, key: Key<Conn>, share: u32, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        let left = socket.left_over.len();
        self.buffer[..left].copy_from_slice(&socket.left_over);
        match socket.peek(&mut self.buffer[left..]) {
            Ok(0) => self.server.end_of_input(key),
            Ok(count) => {
                let bytes = &self.buffer[..left + count];
                let (consumed, appetite) = self.server.feed(key, bytes, share, now);
                // A part of a line stays there too, until more comes; unless no event may tell that.
                let is_part = appetite == Appetite::More && socket.reads_on();
                let taken = if is_part { left + count } else { consumed.max(left) };
                let has_more = appetite != Appetite::More && taken < left + count;
                let (before, is_readable) = (socket.left_over.capacity(), socket.is_readable);
                socket.leave_over(&bytes[consumed..taken]);
                self.server.room_mut().follow(before, socket.left_over.capacity());
                if let Err(error) = socket.drop_seen(&mut self.buffer[..taken - left]) {
                    return self.fail(key, &error);
                }
                socket.is_readable = is_readable || has_more;
                self.go_on(key, appetite, now);
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
        let before = socket.left_over.capacity();
        socket.drop_left_over(consumed);
        self.server.room_mut().follow(before, socket.left_over.capacity());
        self.go_on(key, appetite, now);
    }

    fn go_on(&mut self, key: Key<Conn>, appetite: Appetite, now: Time) {
        let Some(socket) = &mut self.sockets[key.index()] else { return };
        socket.appetite = appetite;
        match appetite {
            Appetite::Later => self.line_up_busy(key),
            Appetite::More if socket.is_readable => self.line_up_busy(key),
            // An event, or a note of the server's, will come.
            Appetite::More | Appetite::Paused => {}
            Appetite::Short => self.put_off(key, now),
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
        let before = self.server.unsent(key);
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
        // One that there was no memory for has better prospects now that it has less to read.
        let has_prospects = !socket.is_put_off || self.server.unsent(key) < before;
        let can_feed = self.server.takes_input(key)
            && has_prospects
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
        if socket.is_put_off {
            // It leaves that line, and gives its memory to the others.
            self.try_again_at = Some(Time::default());
        }
    }

    /// Where nothing has been served for a while for want of memory, closes the connection that has
    /// the most to read and does not: one in a turn, until there is memory. Called when all was
    /// sent that the clients take. O(connections) then, and O(1) otherwise.
    fn relieve(&mut self, now: Time) {
        if self.relief_at.is_none() && !self.server.lacks_room() {
            return;
        }
        if self.server.has_room() {
            self.relief_at = None;
            return;
        }
        let is_due = *self.relief_at.get_or_insert(now + STARVATION) <= now;
        // Those who are about to be closed may be enough.
        if !is_due || !self.ended.is_empty() {
            return;
        }
        let sockets = self.sockets.iter().enumerate().filter(|(_, socket)| socket.is_some());
        let unsent = sockets.map(|(index, _)| Key::from_index(index));
        let unsent = unsent.map(|key| (self.server.unsent(key), key));
        let most = unsent.max_by_key(|&(unsent, _)| unsent).filter(|&(unsent, _)| unsent > 0);
        let Some((unsent, key)) = most else {
            // It is others who have the memory: jobs, for one.
            self.relief_at = Some(now + STARVATION);
            return;
        };
        debug!("{key:?} does not read {unsent} bytes, and there is no memory");
        if let Some(count) = self.relieved.again(now) {
            warn!("connections closed that did not read, for want of memory: {count}");
        }
        self.end(key);
    }

    /// Closes connections that have ended, as many as there is time for.
    fn close_ended(&mut self, now: Time) {
        if self.ended.is_empty() {
            return;
        }
        let until = self.clock.now() + CLOSE_TIME;
        for _ in 0..self.ended.len() {
            let Some(key) = self.ended.pop_front() else { break };
            let socket = self.sockets[key.index()].as_ref();
            if socket.is_some_and(|socket| socket.is_runnable || socket.is_put_off) {
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
        // There may be memory for others now.
        self.try_again_at = self.try_again_at.map(|_| Time::default());
    }
}
