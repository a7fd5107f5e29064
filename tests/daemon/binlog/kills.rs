//! A daemon that is killed at any instant keeps every change that it has acknowledged.
//!
//! Several clients keep the daemon busy, each with jobs of its own in a tube of its own. So each
//! client knows every expected reply, and the state that a restart must find: the state after its
//! last acknowledged command, or after one that was sent and not yet answered. Half of the commands
//! are sent in batches. After each kill the daemon starts again on the same directory, and every
//! job is compared; then the load continues.
//!
//! A kill loses nothing that was written, synced or not, so the tests use all flags.
//! `tests/core/crash.rs` simulates power cuts.

use std::{
    collections::BTreeMap,
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use ct::{Client, LONG, Prng};

use crate::harness::{Folder, OURS, Peer, Seen, complaints, end, from_environment};

/// How many kills with each flag, unless RUNS is set.
const RUNS: u64 = 10;

/// The number of kills with one directory.
const KILLS_PER_FOLDER: u64 = 10;

const CLIENTS: usize = 4;

/// The size of a segment: small, so that files fill up and are compacted all the time.
const SEGMENT: &str = "16384";

/// A delay that does not end during a test.
const FAR: u32 = 100_000;

/// The state of a job that is visible after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    state: &'static str,
    pri: u32,
    releases: u32,
    buries: u32,
    kicks: u32,
}

impl Version {
    fn of(seen: &Seen) -> Self {
        let state = ["ready", "delayed", "buried"].into_iter().find(|&it| it == seen.text("state"));
        Self {
            state: state.expect("no job is reserved after a restart"),
            pri: seen.number("pri"),
            releases: seen.number("releases"),
            buries: seen.number("buries"),
            kicks: seen.number("kicks"),
        }
    }
}

/// A client's knowledge of a job.
#[derive(Debug)]
struct Job {
    body: Vec<u8>,
    /// The job's version after each command that changed it; `None` once the job is deleted.
    versions: Vec<(u64, Option<Version>)>,
    is_held: bool,
}

impl Job {
    fn now(&self) -> Option<Version> {
        self.versions.last().and_then(|&(_, version)| version)
    }

    /// Returns the versions that the job may have after a restart, if `answered` of its client's
    /// commands were answered.
    fn allowed(&self, answered: u64) -> &[(u64, Option<Version>)] {
        let later = self.versions.partition_point(|&(command, _)| command < answered);
        &self.versions[later.saturating_sub(1)..]
    }

    /// Returns when the job took its position in the order of buried or delayed jobs.
    fn since(&self) -> u64 {
        self.versions.last().map_or(0, |&(command, _)| command)
    }
}

/// A put that has been sent.
#[derive(Debug, Clone)]
struct Put {
    /// The number of the command among its client's.
    command: u64,
    pri: u32,
    delay: u32,
    body: Vec<u8>,
}

/// The reply that a command must get.
#[derive(Debug)]
enum Expected {
    Line(String),
    Reserved(u64, Vec<u8>),
    Inserted(Put),
}

/// One client: its knowledge, and the choice of its commands.
#[derive(Debug)]
struct Load {
    prng: Prng,
    tube: String,
    jobs: BTreeMap<u64, Job>,
    /// The number of commands that the client has drawn, and of those that were answered.
    commands: u64,
    answered: u64,
    /// The puts that were sent and not yet answered.
    puts: Vec<Put>,
}

impl Load {
    fn new(number: usize, seed: u64) -> Self {
        Self {
            prng: Prng::new(seed),
            tube: format!("tube-{number}"),
            jobs: BTreeMap::new(),
            commands: 0,
            answered: 0,
            puts: Vec::new(),
        }
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = self.prng.below(choices.len() as u64);
        choices[usize::try_from(index).expect("an index")]
    }

    /// Sends commands until the connection ends.
    fn run(&mut self, address: &str, answered: &AtomicU64) -> io::Error {
        match self.try_run(address, answered) {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn try_run(
        &mut self,
        address: &str,
        answered: &AtomicU64,
    ) -> io::Result<std::convert::Infallible> {
        let mut client = Client::connect(address)?;
        client.set_timeout(LONG)?;
        let tube = self.tube.clone();
        client.command(&format!("use {tube}"))?;
        client.command(&format!("watch {tube}"))?;
        client.command("ignore default")?;
        loop {
            let size = self.pick(&[1, 1, 1, 5, 30]);
            let mut bytes = Vec::new();
            let batch: Vec<_> = (0..size).map(|_| self.think(&mut bytes)).collect();
            client.send(&bytes)?;
            for expected in batch {
                self.receive(&mut client, expected)?;
                self.answered += 1;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn receive(&mut self, client: &mut Client, expected: Expected) -> io::Result<()> {
        let line = client.line()?;
        match expected {
            Expected::Line(wanted) => assert_eq!(line, wanted),
            Expected::Reserved(id, body) => {
                assert_eq!(line, format!("RESERVED {id} {}", body.len()));
                let got = client.bytes(body.len() + 2)?;
                assert!(got[..body.len()] == body, "job {id} has another body");
            }
            Expected::Inserted(put) => {
                let id = line.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{line}"));
                let id = id.parse().expect("an id");
                self.puts.remove(0);
                self.adopt(id, put);
            }
        }
        Ok(())
    }

    fn adopt(&mut self, id: u64, put: Put) {
        let state = if put.delay > 0 { "delayed" } else { "ready" };
        let version = Version { state, pri: put.pri, releases: 0, buries: 0, kicks: 0 };
        let versions = vec![(put.command, Some(version))];
        self.jobs.insert(id, Job { body: put.body, versions, is_held: false });
    }

    /// The free jobs in a state, in the order in which they entered it.
    fn free(&self, state: &str) -> Vec<u64> {
        let is_so = |job: &Job| !job.is_held && job.now().is_some_and(|it| it.state == state);
        let jobs = self.jobs.iter().filter(|(_, job)| is_so(job));
        let mut ids: Vec<_> = jobs.map(|(&id, job)| (job.since(), id)).collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Appends the next command, and applies it to the known state.
    fn think(&mut self, bytes: &mut Vec<u8>) -> Expected {
        let (line, expected) = self.choose();
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        if let Expected::Inserted(put) = &expected {
            bytes.extend_from_slice(&put.body);
            bytes.extend_from_slice(b"\r\n");
        }
        self.commands += 1;
        expected
    }

    fn choose(&mut self) -> (String, Expected) {
        let alive: Vec<_> = self.jobs.iter().filter(|(_, job)| job.now().is_some()).collect();
        let alive: Vec<_> = alive.into_iter().map(|(&id, _)| id).collect();
        let is_crowded = alive.len() > 60;
        let dice = self.prng.below(12);
        if alive.is_empty() || (dice < 4 && !is_crowded) {
            return self.put();
        }
        if dice == 4 && self.puts.is_empty() {
            return self.reserve_any();
        }
        // A job whose put is not answered yet might be kicked as well.
        if dice == 5 && self.puts.is_empty() {
            return self.kick();
        }
        let id = self.pick(&alive);
        let job = &self.jobs[&id];
        let state = job.now().expect("alive").state;
        match (job.is_held, dice) {
            (_, 6 | 7) => self.delete(id),
            (_, 8) if is_crowded => self.delete(id),
            (true, 0..=1) => self.release(id, 0),
            (true, 2..=3) => self.release(id, FAR),
            (true, 4) => (format!("touch {id}"), Expected::Line("TOUCHED".into())),
            (true, _) => self.bury(id),
            (false, 9) if state != "ready" => self.kick_job(id),
            (false, _) => self.take(id),
        }
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut Version)) {
        let command = self.commands;
        let job = self.jobs.get_mut(&id).expect("a job of ours");
        let mut version = job.now().expect("it is alive");
        change(&mut version);
        job.versions.push((command, Some(version)));
    }

    fn hold(&mut self, id: u64, is_held: bool) {
        self.jobs.get_mut(&id).expect("a job of ours").is_held = is_held;
    }

    fn put(&mut self) -> (String, Expected) {
        let size = self.pick(&[0, 10, 100, 100, 300, 1000, 3000, 20_000]);
        let mut body = format!("{} {} ", self.tube, self.commands).into_bytes();
        let letter = b'a' + u8::try_from(self.prng.below(26)).expect("a letter");
        body.resize(body.len() + size, letter);
        let (pri, delay) = (self.pick(&[0, 1, 7, u32::MAX]), self.pick(&[0, 0, FAR]));
        let put = Put { command: self.commands, pri, delay, body };
        self.puts.push(put.clone());
        let line = format!("put {} {} 600 {}", put.pri, put.delay, put.body.len());
        (line, Expected::Inserted(put))
    }

    /// The worker's command. The job that it gets is known, because no other client puts into this
    /// tube.
    fn reserve_any(&mut self) -> (String, Expected) {
        let line = "reserve-with-timeout 0".into();
        let ready = self.free("ready").into_iter();
        let first = ready.min_by_key(|&id| (self.jobs[&id].now().map(|version| version.pri), id));
        let Some(id) = first else { return (line, Expected::Line("TIMED_OUT".into())) };
        self.hold(id, true);
        (line, Expected::Reserved(id, self.jobs[&id].body.clone()))
    }

    fn take(&mut self, id: u64) -> (String, Expected) {
        if self.jobs[&id].now().is_some_and(|version| version.state != "ready") {
            self.change(id, |version| version.state = "ready");
        }
        self.hold(id, true);
        (format!("reserve-job {id}"), Expected::Reserved(id, self.jobs[&id].body.clone()))
    }

    fn delete(&mut self, id: u64) -> (String, Expected) {
        let command = self.commands;
        self.jobs.get_mut(&id).expect("a job of ours").versions.push((command, None));
        (format!("delete {id}"), Expected::Line("DELETED".into()))
    }

    fn release(&mut self, id: u64, delay: u32) -> (String, Expected) {
        let pri = self.pick(&[0, 1, 7, u32::MAX]);
        self.change(id, |version| {
            version.state = if delay > 0 { "delayed" } else { "ready" };
            version.pri = pri;
            version.releases += 1;
        });
        self.hold(id, false);
        (format!("release {id} {pri} {delay}"), Expected::Line("RELEASED".into()))
    }

    fn bury(&mut self, id: u64) -> (String, Expected) {
        let pri = self.pick(&[0, 1, 7, u32::MAX]);
        self.change(id, |version| {
            version.state = "buried";
            version.pri = pri;
            version.buries += 1;
        });
        self.hold(id, false);
        (format!("bury {id} {pri}"), Expected::Line("BURIED".into()))
    }

    fn kick_job(&mut self, id: u64) -> (String, Expected) {
        self.kicked(id);
        (format!("kick-job {id}"), Expected::Line("KICKED".into()))
    }

    fn kicked(&mut self, id: u64) {
        self.change(id, |version| {
            version.state = "ready";
            version.kicks += 1;
        });
    }

    /// Kicks several jobs: buried ones, longest buried first; delayed ones if none is buried.
    fn kick(&mut self) -> (String, Expected) {
        let bound = self.pick(&[0, 1, 3, 10]);
        let mut jobs = self.free("buried");
        if jobs.is_empty() {
            jobs = self.free("delayed");
        }
        jobs.truncate(bound);
        for &id in &jobs {
            self.kicked(id);
        }
        (format!("kick {bound}"), Expected::Line(format!("KICKED {}", jobs.len())))
    }

    /// Returns the most live bytes of the binlog, and the most that belong to unanswered commands.
    fn bytes(&self) -> (u64, u64) {
        // A full record and a short one, with the tube's name and CR LF.
        let length = |body: &Vec<u8>| body.len() as u64 + 2 * 84 + self.tube.len() as u64 + 2;
        let may_live = |job: &&Job| job.allowed(self.answered).iter().any(|it| it.1.is_some());
        let live = self.jobs.values().filter(may_live).map(|job| length(&job.body)).sum();
        let put: u64 = self.puts.iter().map(|put| length(&put.body)).sum();
        let changed = self.jobs.values().filter(|job| job.since() > self.answered);
        let changed: u64 = changed.map(|job| length(&job.body)).sum();
        (live, put + changed + (self.commands - self.answered) * 84)
    }

    /// Compares the client's knowledge with the jobs that a restart has found, adopts facts that
    /// the client cannot know, and removes the client's jobs from `found`.
    fn judge(&mut self, found: &mut BTreeMap<u64, Seen>) {
        for (id, job) in &mut self.jobs {
            let seen = found.remove(id);
            if let Some(seen) = &seen {
                assert!(seen.body == job.body, "job {id} has another body");
                assert_eq!(seen.text("tube"), self.tube, "job {id}");
            }
            let version = seen.as_ref().map(Version::of);
            let allowed = job.allowed(self.answered);
            let it = allowed.iter().find(|&&(_, allowed)| allowed == version);
            let it =
                it.unwrap_or_else(|| panic!("job {id} is {version:?}, not one of {allowed:?}"));
            job.versions = vec![*it];
            job.is_held = false;
        }
        self.jobs.retain(|_, job| job.now().is_some());
        // Commands that were sent and not answered may have been executed.
        for put in std::mem::take(&mut self.puts) {
            let found_one = found.iter().find(|(_, seen)| seen.body == put.body);
            let Some((&id, _)) = found_one else { continue };
            let seen = found.remove(&id).expect("it was found");
            self.adopt(id, put);
            assert_eq!(self.jobs[&id].now(), Some(Version::of(&seen)), "job {id}");
            assert_eq!(seen.text("tube"), self.tube, "job {id}");
        }
        self.answered = self.commands;
    }
}

/// Counts of the events around the kills.
#[derive(Debug, Default)]
struct Met {
    kills: u64,
    commands: u64,
    jobs: usize,
    segments: u64,
    dropped: u64,
    moved: u64,
}

impl Met {
    /// The events that occurred less often than `least` times.
    fn lacks(&self, least: u64) -> Vec<&'static str> {
        let counts = [("rotation", self.segments), ("drop", self.dropped), ("move", self.moved)];
        counts.into_iter().filter(|(_, count)| *count < least).map(|(what, _)| what).collect()
    }
}

fn kill_again_and_again(flags: &[&str], seed: u64) {
    let runs = from_environment("RUNS").unwrap_or(RUNS);
    let mut met = Met::default();
    let mut prng = Prng::new(seed);
    for first in (0..runs).step_by(usize::try_from(KILLS_PER_FOLDER).expect("small")) {
        let kills = KILLS_PER_FOLDER.min(runs - first);
        kill_in_one_folder(flags, kills, 1, &mut prng, &mut met);
    }
    // A fast machine may have answered all commands before its disk has synced once; then the load
    // is made longer.
    for length in [4, 16, 64] {
        if !met.lacks(runs / 5).is_empty() {
            kill_in_one_folder(flags, KILLS_PER_FOLDER, length, &mut prng, &mut met);
        }
    }
    println!("{flags:?}: {met:?}");
    let lacks = met.lacks(runs / 5);
    assert!(lacks.is_empty(), "too few of {lacks:?}: {met:?}");
}

/// Kills daemons on one directory, each after `length` times the usual number of commands.
fn kill_in_one_folder(flags: &[&str], kills: u64, length: u64, prng: &mut Prng, met: &mut Met) {
    let folder = Folder::new();
    let all = [&["-s", SEGMENT], flags].concat();
    let mut loads: Vec<_> = (0..CLIENTS).map(|it| Load::new(it, prng.next_u64())).collect();
    for _ in 0..kills {
        let daemon = folder.serve(OURS, &all);
        let (answered, is_killed) = (AtomicU64::new(0), AtomicBool::new(false));
        let wanted = length * (200 + prng.below(1200));
        let mut control = Peer::of(&daemon);
        let address = daemon.address().to_owned();
        thread::scope(|scope| {
            let start = |load| {
                let (address, answered, is_killed) = (&address, &answered, &is_killed);
                scope.spawn(move || {
                    let error = Load::run(load, address, answered);
                    assert!(is_killed.load(Ordering::SeqCst), "{error}");
                })
            };
            let threads: Vec<_> = loads.iter_mut().map(start).collect();
            let (mut oldest, mut current, mut moved) = (0, 0, 0);
            let [oldest_at_first, at_first] = ["oldest", "current"]
                .map(|which| control.value("stats", &format!("binlog-{which}-index")));
            let has_failed = || threads.iter().any(ScopedJoinHandle::is_finished);
            // Checks again after enough replies, because this process may not have had a processor
            // until then.
            let mut is_enough = false;
            while !is_enough && !has_failed() {
                is_enough = answered.load(Ordering::Relaxed) >= wanted;
                oldest = control.value::<u64>("stats", "binlog-oldest-index");
                current = control.value::<u64>("stats", "binlog-current-index");
                moved = control.value::<u64>("stats", "binlog-records-migrated");
                // The kill comes at a random point of the daemon's turn.
                thread::sleep(Duration::from_micros(prng.below(3000)));
            }
            is_killed.store(true, Ordering::SeqCst);
            end(daemon, libc::SIGKILL);
            met.segments += current.saturating_sub(at_first);
            met.dropped += oldest.saturating_sub(oldest_at_first);
            met.moved += moved;
        });
        if flags == ["-F"] {
            judge_size(&folder, &loads);
        }
        met.kills += 1;
        met.commands += answered.into_inner();
        judge(&folder, &all, &mut loads, met);
    }
}

/// Judges how much space the binlog took when the daemon was killed. Without syncs, all turns but
/// the last one are complete.
fn judge_size(folder: &Folder, loads: &[Load]) {
    let bytes = loads.iter().map(Load::bytes);
    let (live, open) = bytes.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let jobs: usize = loads.iter().map(|load| load.jobs.len() + load.puts.len()).sum();
    // The largest job has a segment of its size. One segment of that size is current, one is
    // preallocated, and one is about to be removed.
    let segment = SEGMENT.parse::<u64>().expect("a number") + 21_000u64.next_multiple_of(4096);
    let bound = 2 * (live + open) + 2 * open + 84 * jobs as u64 + 3 * segment;
    let files = folder.files();
    let size: u64 = files.values().sum();
    assert!(size <= bound, "{size} bytes for {live} live and {open} open, {bound}: {files:?}");
}

/// Starts the daemon again, and compares every job.
fn judge(folder: &Folder, flags: &[&str], loads: &mut [Load], met: &mut Met) {
    let daemon = folder.serve(OURS, flags);
    let mut client = Peer::of(&daemon);
    let next = client.put(0, FAR, b"");
    client.tell(&format!("delete {next}"), "DELETED");
    let mut found = client.look_through(1..next);
    assert_eq!(complaints(&daemon), "", "a torn tail is no error");
    met.jobs += found.len();
    for load in loads {
        load.judge(&mut found);
    }
    assert!(found.is_empty(), "deleted or never put: {:?}", found.keys());
    // The daemon may also be killed again at once.
    end(daemon, libc::SIGKILL);
}

/// A kill would lose jobs whose put was acknowledged, or bring back jobs whose delete was.
///
/// Proves: Q19, B12, B13, B16.
#[test]
fn a_killed_daemon_keeps_what_it_acknowledged() {
    kill_again_and_again(&[], 1);
}

/// With `-f0` a kill would lose acknowledged changes.
///
/// Proves: Q19, B12.
#[test]
fn a_killed_daemon_that_syncs_always_keeps_what_it_acknowledged() {
    kill_again_and_again(&["-f0"], 2);
}

/// With `-F` a kill would lose acknowledged changes, though only a power cut may do that.
///
/// Proves: Q19, B12.
#[test]
fn a_killed_daemon_that_never_syncs_keeps_what_it_acknowledged() {
    kill_again_and_again(&["-F"], 3);
}
