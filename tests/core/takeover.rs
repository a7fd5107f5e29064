//! Two daemons and one directory on a network file system, simulated. The file system revokes the
//! active daemon's lock at any call of that daemon, and the other daemon takes over. Later the
//! network works again, and the first daemon, which has noticed nothing, continues: its clients
//! still send commands. Daemons are killed and started again in any order.
//!
//! - Any change that either daemon has acknowledged must exist at the end.
//! - Once a daemon has read the binlog, no other acknowledges a change.
//! - No daemon touches a file that the other daemon made after taking over.
#![expect(clippy::disallowed_types, reason = "two daemons share a directory")]

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    rc::Rc,
    time::Duration,
};

use beanstalkd::{
    clock::{Calendar, Time},
    collections::Key,
    conn::Conn,
    server::{COMMANDS_PER_CONNECTION, Server, Settings},
    wal::{Disk, LOCK_CONFIRM_INTERVAL, Name, Options, Restored, SyncPolicy, Wal, go_on},
};
use ct::Prng;

use crate::{seeds::Seeds, world};

/// The number of histories, unless `make sim` sets another.
const RUNS: u64 = 3000;

/// Steps of one history.
const STEPS: usize = 120;

/// How long a daemon waits after taking the lock before it reads, as with `--wait-for-lock`.
const TAKEOVER_DELAY: Duration = Duration::from_millis(500);

const START: Time = Time::from_nanoseconds(9_000_000_000_000_000_000);
const SEGMENT_BYTES: u64 = 4096;

type Content = Rc<RefCell<Vec<u8>>>;

/// The index of one of the two daemons.
type Side = usize;

#[derive(Debug, Clone)]
struct File {
    content: Content,
    maker: Side,
    /// The term of the lock in which the file was made.
    term: u64,
}

/// The state that both daemons see.
#[derive(Debug, Default)]
struct Shared {
    files: BTreeMap<Name, File>,
    holder: Option<Side>,
    /// How often the lock has passed to another daemon.
    term: u64,
    /// The line in the lock's file: the process that took the lock last.
    line: u64,
    starts: u64,
    foul: Option<String>,
}

/// A daemon's mount of the file system.
#[derive(Debug, Clone)]
struct Mount(Rc<RefCell<MountState>>);

#[derive(Debug)]
struct MountState {
    shared: Rc<RefCell<Shared>>,
    side: Side,
    /// The line that this process writes into the lock's file.
    line: u64,
    /// The term in which this process took the lock.
    term: u64,
    /// Whether the network is cut, so that every call fails.
    is_cut: bool,
    /// The network is cut after this many more calls.
    calls_left: Option<u32>,
    /// How often the file system has revoked locks.
    epoch: u64,
    /// Whether a file whose lock was revoked can no longer be written.
    fences: bool,
    open: BTreeMap<Name, (Content, u64)>,
    /// How often the daemon checks for the result of a background sync before there is one.
    looks: u32,
    sync_time: Duration,
    plant: Plant,
}

/// A defect of the simulation that the tests must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    /// The daemon does not check its lock when it recovers.
    RecoversWithoutAsking,
    /// A rename replaces a file that already has the new name.
    ReplacesFiles,
    /// The daemon does not check its lock again after a call that took long.
    AnswersWithoutAsking,
}

impl MountState {
    /// Cuts this mount off the network, which releases its lock.
    fn cut(&mut self) {
        self.is_cut = true;
        self.calls_left = None;
        self.epoch += 1;
        let mut shared = self.shared.borrow_mut();
        if shared.holder == Some(self.side) {
            shared.holder = None;
        }
    }

    fn call(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.calls_left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.cut();
            }
        }
        if self.is_cut { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }

    /// Records a fault if the file belongs to a daemon that has taken over.
    fn judge(&mut self, act: &str, name: Name) {
        let mut shared = self.shared.borrow_mut();
        if let Some(file) = shared.files.get(&name) {
            if file.maker != self.side && file.term > self.term {
                shared.foul = Some(format!("{act} {name}, which the other daemon has made"));
            }
        }
    }

    /// Opens a file for writing.
    fn file(&mut self, name: Name) -> io::Result<Content> {
        self.call()?;
        if let Some((content, epoch)) = self.open.get(&name) {
            if self.fences && *epoch < self.epoch {
                return Err(io::Error::from_raw_os_error(libc::EBADF));
            }
            return Ok(Rc::clone(content));
        }
        self.judge("writes", name);
        let shared = self.shared.borrow();
        let file = shared.files.get(&name).ok_or(io::ErrorKind::NotFound)?;
        self.open.insert(name, (Rc::clone(&file.content), self.epoch));
        Ok(Rc::clone(&file.content))
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a small file")
}

impl Disk for Mount {
    fn confirm_lock(&mut self) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if state.plant != Plant::Nothing {
            return Ok(());
        }
        state.call()?;
        let mut shared = state.shared.borrow_mut();
        if *shared.holder.get_or_insert(state.side) != state.side || shared.line != state.line {
            return Err(io::Error::other("another daemon has it"));
        }
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        let mut state = self.0.borrow_mut();
        state.call()?;
        let shared = state.shared.borrow();
        let size = |file: &File| file.content.borrow().len() as u64;
        Ok(shared.files.iter().map(|(&name, file)| (name, size(file))).collect())
    }

    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        state.call()?;
        let shared = state.shared.borrow();
        let content = shared.files.get(&name).ok_or(io::ErrorKind::NotFound)?.content.borrow();
        let rest = content.get(index(offset)..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn next_data(&mut self, _: Name, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }

    fn create(&mut self, name: Name) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.call()?;
        let (maker, epoch) = (state.side, state.epoch);
        let content = Content::default();
        {
            let mut shared = state.shared.borrow_mut();
            if shared.files.contains_key(&name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let term = shared.term;
            shared.files.insert(name, File { content: Rc::clone(&content), maker, term });
        }
        state.open.insert(name, (content, epoch));
        Ok(())
    }

    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        let content = self.0.borrow_mut().file(name)?;
        let length = content.borrow().len().max(index(size));
        content.borrow_mut().resize(length, 0);
        Ok(true)
    }

    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let content = self.0.borrow_mut().file(name)?;
        let mut content = content.borrow_mut();
        let end = index(offset) + bytes.len();
        let length = content.len().max(end);
        content.resize(length, 0);
        content[index(offset)..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        let content = self.0.borrow_mut().file(name)?;
        content.borrow_mut().resize(index(size), 0);
        Ok(())
    }

    fn sync(&mut self, name: Name) -> io::Result<Duration> {
        let mut state = self.0.borrow_mut();
        let synced =
            if state.open.contains_key(&name) { state.file(name).map(drop) } else { state.call() };
        synced.map(|()| state.sync_time)
    }

    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        self.0.borrow_mut().looks = 2;
        self.sync(name).map(drop)
    }

    fn sync_result(&mut self, waits: bool) -> Option<io::Result<Duration>> {
        let mut state = self.0.borrow_mut();
        state.looks = state.looks.saturating_sub(1);
        (waits || state.looks == 0).then(|| state.call().map(|()| state.sync_time))
    }

    fn close(&mut self, name: Name) {
        self.0.borrow_mut().open.remove(&name);
    }

    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.call()?;
        state.judge("renames", from);
        if state.plant == Plant::ReplacesFiles {
            state.judge("replaces", to);
        } else if state.shared.borrow().files.contains_key(&to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.shared.borrow_mut().files.remove(&from).ok_or(io::ErrorKind::NotFound)?;
        state.shared.borrow_mut().files.insert(to, file);
        if let Some(open) = state.open.remove(&from) {
            state.open.insert(to, open);
        }
        Ok(())
    }

    fn remove(&mut self, name: Name) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.call()?;
        state.judge("removes", name);
        state.open.remove(&name);
        let removed = state.shared.borrow_mut().files.remove(&name);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        self.0.borrow_mut().call()
    }
}

/// A process with a mount.
enum Process {
    Down,
    /// The process has had the lock since this time, and has not read the binlog yet.
    TakesOver(Mount, Time),
    Serves {
        mount: Mount,
        server: Box<Server>,
        conn: Key<Conn>,
        /// The commands of its clients that have no reply yet.
        asked: Vec<Asked>,
    },
}

/// A command that has no reply yet.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Put(u64),
    Delete(u64),
    /// A command that changes nothing that a restart keeps.
    Other,
}

/// Sends all replies, and closes the connections that have ended. Returns the replies, and whether
/// a connection was closed.
fn take_replies(server: &mut Server, now: Time) -> (String, bool) {
    let (mut bytes, mut is_closed) = (Vec::new(), false);
    while let Some(key) = server.next_dirty() {
        world::send(server, key, &mut bytes);
        if server.conn(key).is_finished() {
            server.close(key, now);
            is_closed = true;
        }
    }
    server.reclaim();
    (String::from_utf8(bytes).expect("replies are text"), is_closed)
}

/// A client's knowledge of a job, by the number in its body.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    is_put: bool,
    is_deleted: bool,
    /// Whether a delete was sent, so that the job may be gone.
    may_be_gone: bool,
}

struct History {
    prng: Prng,
    shared: Rc<RefCell<Shared>>,
    processes: [Process; 2],
    now: Time,
    jobs: BTreeMap<u64, Known>,
    fences: bool,
    sync_time: Duration,
    plant: Plant,
    /// Whether a daemon hangs; meanwhile everything is done by the other daemon.
    is_hanging: bool,
    story: Vec<String>,
    takeovers: u64,
}

impl History {
    fn new(seed: u64, plant: Plant) -> Self {
        let mut prng = Prng::new(seed);
        let fences = prng.chance(1, 2);
        let sync_time = Duration::from_millis(if prng.chance(1, 2) { 5 } else { 0 });
        Self {
            prng,
            shared: Rc::default(),
            processes: [Process::Down, Process::Down],
            now: START,
            jobs: BTreeMap::new(),
            fences,
            sync_time,
            plant,
            story: vec![format!("seed {seed}, fences {fences}, syncs take {sync_time:?}")],
            takeovers: 0,
            is_hanging: false,
        }
    }

    fn tell(&mut self, side: Side, what: impl std::fmt::Display) {
        let at = START.until(self.now);
        self.story.push(format!("{at:?} {}: {what}", ["A", "B"][side]));
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            let pause =
                [1, 1, 20, 100, 300, 1200][usize::try_from(self.prng.below(6)).expect("small")];
            self.now = self.now + Duration::from_millis(pause);
            let side = usize::try_from(self.prng.below(2)).expect("one of two");
            match self.prng.below(12) {
                0 => self.cut(side),
                1 | 2 => self.heal(side),
                3 if self.prng.chance(1, 4) => self.kill(side),
                _ => {}
            }
            for side in [side, 1 - side] {
                self.step(side)?;
            }
        }
        self.judge()
    }

    fn step(&mut self, side: Side) -> Result<(), String> {
        match self.processes[side] {
            Process::Down => self.try_lock(side),
            Process::TakesOver(..) => self.try_start(side)?,
            Process::Serves { .. } => self.turn(side)?,
        }
        self.shared.borrow_mut().foul.take().map_or(Ok(()), Err)
    }

    /// Makes the last call of a daemon hang while the file system revokes the daemon's lock.
    fn hang(&mut self, side: Side) -> Result<(), String> {
        let Some(mount) = self.mount(side) else { return Ok(()) };
        if self.is_hanging || mount.0.borrow().is_cut || !self.prng.chance(1, 10) {
            return Ok(());
        }
        self.tell(side, "hangs, and loses its lock");
        mount.0.borrow_mut().cut();
        self.is_hanging = true;
        for _ in 0..self.prng.below(20) {
            self.now = self.now + Duration::from_millis(100);
            self.step(1 - side)?;
        }
        self.is_hanging = false;
        mount.0.borrow_mut().is_cut = false;
        Ok(())
    }

    fn mount(&self, side: Side) -> Option<Mount> {
        match &self.processes[side] {
            Process::Down => None,
            Process::TakesOver(mount, _) | Process::Serves { mount, .. } => Some(mount.clone()),
        }
    }

    /// Cuts a daemon off the network, at once or in the middle of its next turns.
    fn cut(&mut self, side: Side) {
        let Some(mount) = self.mount(side) else { return };
        let calls = u32::try_from(self.prng.below(12)).expect("small");
        self.tell(side, format_args!("is cut off after {calls} calls"));
        let mut state = mount.0.borrow_mut();
        match calls {
            0 => state.cut(),
            calls => state.calls_left = Some(calls),
        }
    }

    fn heal(&mut self, side: Side) {
        let Some(mount) = self.mount(side).filter(|mount| mount.0.borrow().is_cut) else { return };
        self.tell(side, "is connected again");
        mount.0.borrow_mut().is_cut = false;
    }

    fn kill(&mut self, side: Side) {
        self.tell(side, "is killed");
        self.end(side);
    }

    fn end(&mut self, side: Side) {
        self.processes[side] = Process::Down;
        let mut shared = self.shared.borrow_mut();
        if shared.holder == Some(side) {
            shared.holder = None;
        }
    }

    fn try_lock(&mut self, side: Side) {
        let mut shared = self.shared.borrow_mut();
        if shared.holder.is_some() || !self.prng.chance(1, 3) {
            return;
        }
        shared.holder = Some(side);
        shared.starts += 1;
        shared.term += 1;
        shared.line = shared.starts;
        let state = MountState {
            shared: Rc::clone(&self.shared),
            side,
            line: shared.line,
            term: shared.term,
            is_cut: false,
            calls_left: None,
            epoch: 0,
            fences: self.fences,
            open: BTreeMap::new(),
            looks: 0,
            sync_time: self.sync_time,
            plant: self.plant,
        };
        drop(shared);
        self.processes[side] = Process::TakesOver(Mount(Rc::new(RefCell::new(state))), self.now);
        self.tell(side, "has the lock");
    }

    fn try_start(&mut self, side: Side) -> Result<(), String> {
        let Process::TakesOver(mount, since) = &self.processes[side] else { return Ok(()) };
        if since.until(self.now) < TAKEOVER_DELAY {
            return Ok(());
        }
        let mut mount = mount.clone();
        if mount.confirm_lock().is_err() {
            self.tell(side, "has lost the lock before it started");
            self.end(side);
            return Ok(());
        }
        let options = Options {
            segment_size: SEGMENT_BYTES,
            sync: SyncPolicy::Within(Duration::ZERO),
            key: self.prng.next_u64(),
        };
        let mut restored = Restored::default();
        let disk = Box::new(mount.clone());
        let opened = Wal::open(disk, options, &mut restored, calendar(), self.now, &mut go_on);
        let Ok((wal, report)) = opened else {
            self.tell(side, "cannot start");
            self.end(side);
            return Ok(());
        };
        if report.is_damaged() {
            return Err(format!("a start finds damage: {report:?}"));
        }
        let settings = Settings { binlog_size: SEGMENT_BYTES, ..Settings::default() };
        let mut server =
            Server::with_wal(world::identity(), settings, restored, Some(wal), self.now);
        let conn = server.open();
        let server = Box::new(server);
        self.processes[side] = Process::Serves { mount, server, conn, asked: Vec::new() };
        self.takeovers += 1;
        self.tell(side, "serves");
        Ok(())
    }

    /// Performs one turn of a daemon, with some commands.
    fn turn(&mut self, side: Side) -> Result<(), String> {
        let commands = self.prng.below(4);
        let lines: Vec<(Asked, String)> = (0..commands).map(|_| self.command(side)).collect();
        let Process::Serves { server, conn, asked, .. } = &mut self.processes[side] else {
            return Ok(());
        };
        server.set_calendar(calendar(), self.now);
        server.tick(self.now);
        for (ask, line) in lines {
            let (consumed, _) =
                server.feed(*conn, line.as_bytes(), COMMANDS_PER_CONNECTION, self.now);
            if consumed == line.len() {
                asked.push(ask);
            }
        }
        server.commit(self.now);
        if server.lost_lock().is_none() {
            self.hang(side)?;
        }
        let other_serves = matches!(self.processes[1 - side], Process::Serves { .. });
        let Process::Serves { server, conn, asked, .. } = &mut self.processes[side] else {
            return Ok(());
        };
        // The event loop, too, confirms the lock before it sends replies.
        if self.plant != Plant::AnswersWithoutAsking {
            server.confirm_lock_if_due(self.now);
        }
        if let Some(error) = server.lost_lock() {
            let error = error.to_string();
            self.tell(side, format_args!("ends: {error}"));
            self.end(side);
            return Ok(());
        }
        let (text, is_closed) = take_replies(server, self.now);
        let replies: Vec<&str> = text.lines().collect();
        let answered: Vec<Asked> = asked.drain(..replies.len().min(asked.len())).collect();
        if is_closed {
            asked.clear();
            *conn = server.open();
        }
        // The other daemon has read the binlog, so it misses changes that come later.
        let is_stale = other_serves && self.shared.borrow().holder == Some(1 - side);
        for (ask, reply) in answered.into_iter().zip(replies) {
            match (ask, reply.split(' ').next()) {
                (Asked::Put(_), Some("INSERTED")) | (Asked::Delete(_), Some("DELETED"))
                    if is_stale =>
                {
                    return Err(format!("{ask:?} is acknowledged after the takeover"));
                }
                (Asked::Put(number), Some("INSERTED")) => {
                    self.jobs.entry(number).or_default().is_put = true;
                }
                (Asked::Delete(number), Some("DELETED")) => {
                    self.jobs.entry(number).or_default().is_deleted = true;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn command(&mut self, side: Side) -> (Asked, String) {
        let Process::Serves { server, .. } = &self.processes[side] else {
            return (Asked::Other, "use a\r\n".into());
        };
        let queue = server.queue();
        let living: Vec<u64> =
            (1..queue.next_id()).filter(|&id| queue.find(id).is_some()).collect();
        let nth = usize::try_from(self.prng.below(living.len().max(1) as u64)).expect("small");
        match (self.prng.below(8), living.get(nth)) {
            (0..=3, _) | (_, None) => {
                let number = self.jobs.len() as u64;
                self.jobs.insert(number, Known::default());
                let nth = usize::try_from(self.prng.below(4)).expect("small");
                let width = [10, 10, 300, 900][nth];
                (Asked::Put(number), format!("put 0 0 60 {width}\r\n{number:0width$}\r\n"))
            }
            (4..=6, Some(&id)) => {
                let job = queue.find(id).expect("it lives");
                let number = number_of(server.jobs().body(job));
                self.jobs.entry(number).or_default().may_be_gone = true;
                (Asked::Delete(number), format!("delete {id}\r\n"))
            }
            (_, Some(&id)) => (Asked::Other, format!("kick-job {id}\r\n")),
        }
    }

    /// Judges the jobs that a final startup finds.
    fn judge(&mut self) -> Result<(), String> {
        for side in [0, 1] {
            self.end(side);
        }
        self.now = self.now + Duration::from_secs(5);
        while matches!(self.processes[0], Process::Down) {
            self.try_lock(0);
        }
        self.now = self.now + TAKEOVER_DELAY;
        self.try_start(0)?;
        let Process::Serves { server, .. } = &self.processes[0] else {
            return Err("the last start failed".into());
        };
        let queue = server.queue();
        let ids = (1..queue.next_id()).filter_map(|id| queue.find(id));
        let found: BTreeSet<u64> = ids.map(|job| number_of(server.jobs().body(job))).collect();
        for (number, known) in &self.jobs {
            let is_there = found.contains(number);
            if known.is_put && !known.may_be_gone && !is_there {
                return Err(format!("job {number} was acknowledged, and it is lost"));
            }
            if known.is_deleted && is_there {
                return Err(format!("the delete of job {number} was acknowledged, and it is back"));
            }
        }
        Ok(())
    }
}

/// Returns the number in a body.
fn number_of(body: &[u8]) -> u64 {
    let text = std::str::from_utf8(body).expect("digits");
    text.trim_end().parse().expect("a number")
}

fn calendar() -> Calendar {
    Calendar::new(START, 1_700_000_000_000_000_000)
}

/// Returns the first seed that fails, with a description of the run.
fn first_failure(runs: u64, plant: Plant) -> Option<String> {
    Seeds::new(runs).find_map(|seed| {
        let mut history = History::new(seed, plant);
        let error = history.run().err()?;
        Some(format!("{}\n{error}\nSEED={seed} repeats it", history.story.join("\n")))
    })
}

#[test]
fn no_daemon_loses_what_another_has_acknowledged() {
    const { assert!(LOCK_CONFIRM_INTERVAL.as_millis() < TAKEOVER_DELAY.as_millis()) };

    if let Some(failure) = first_failure(RUNS, Plant::Nothing) {
        panic!("{failure}");
    }
    let mut takeovers = 0;
    for seed in 0..100 {
        let mut history = History::new(seed, Plant::Nothing);
        history.run().expect("it has passed");
        takeovers += history.takeovers;
    }
    assert!(takeovers > 300, "{takeovers} takeovers in a hundred histories prove little");
}

/// Tests the simulation itself: it must find a daemon that recovers without checking its lock, one
/// whose rename replaces a file, and one that answers after a long call without checking its lock.
#[test]
fn planted_defects_are_found() {
    for plant in [Plant::RecoversWithoutAsking, Plant::ReplacesFiles, Plant::AnswersWithoutAsking] {
        let failures: BTreeSet<String> = (0..300)
            .filter_map(|seed| History::new(seed, plant).run().err())
            .map(|error| error.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        assert!(!failures.is_empty(), "{plant:?}");
        assert_eq!(failures.contains("replaces"), plant == Plant::ReplacesFiles, "{failures:?}");
    }
}
