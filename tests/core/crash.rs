//! Simulated crashes: the pure server with a binlog on a disk that loses, tears and reorders
//! writes, and refuses calls. A seed determines a history of commands. At many of the history's
//! disk operations the process is killed, or the power fails, and the jobs that a restart finds are
//! judged:
//!
//! - a job whose put was acknowledged is there, with its tube and body, in a state it had at or
//!   after the last acknowledged change;
//! - a job whose delete was acknowledged is not;
//! - there is no job that was never put, and no id that a client has seen is used again.
//!
//! What acknowledged changes must survive depends on the flag: with `-f0` a power cut, with `-f 50`
//! a power cut 50 ms later, with `-F` a kill. After each turn the counters must match the history.
//! A run that fails is shortened, and its seed is printed; `make sim SEED=…` repeats it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    num::NonZeroU32,
    time::Duration,
};

use beanstalkd::{
    clock::{Calendar, Time},
    collections::Key,
    conn::Conn,
    memory::Supply,
    queue::{JOB_OVERHEAD_BYTES, Job, Queue, State},
    server::{COMMANDS_PER_CONNECTION, Server, Settings},
    wal::{self, Name, Options, Restored, SHIFTS_AT_ONCE_MAX, SyncPolicy, Wal},
};
use ct::{Prng, diff::shrink};

use crate::{
    disk::{Met, Moment, SimDisk, Snapshot},
    seeds::{self, Seeds},
    world,
};

/// The number of histories, unless `make sim` sets another.
const RUNS: u64 = 2000;

/// The number of daemons in a history: one, then one after each crash.
const GENERATIONS: usize = 3;

/// The number of turns of each daemon.
const TURNS: usize = 40;

/// On a disk that lacks reserved space, one call of startup in this many finds the disk full.
const FULL_START_EVERY: u64 = 4;

const SYNC_DELAY: Duration = Duration::from_millis(50);

/// How far the wall clock may be wrong, in seconds.
const WRONG_BY: [i64; 6] = [0, 0, 2, -4000, 1_600_000_000, -1_600_000_000];

/// The time at which a history begins, and its date.
const START: Time = Time::from_nanoseconds(9_000_000_000_000_000_000);
const DATE: i64 = 1_700_000_000_000_000_000;

/// The part of a job's state that must survive a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Ready or reserved, or delayed until a date that has passed.
    Ready,
    Delayed(i64),
    Buried(i64),
}

/// The known state of a job between two changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    place: Place,
    pri: u32,
    delay: u32,
    releases: u32,
    buries: u32,
    kicks: u32,
}

impl Version {
    fn of(queue: &Queue, id: u64, calendar: Calendar) -> Option<Self> {
        let Job { record, dated, .. } = queue.job(queue.find(id)?);
        let date = calendar.date(record.state_at);
        let place = match record.state {
            // The job is ready only because its delay ended according to the wall clock.
            State::Ready if dated.is_state_at => Place::Delayed(date),
            State::Ready | State::Reserved(_) => Place::Ready,
            State::Delayed => Place::Delayed(date),
            State::Buried => Place::Buried(date),
        };
        Some(Self {
            place,
            pri: record.pri,
            delay: record.delay,
            releases: record.history.releases,
            buries: record.history.buries,
            kicks: record.history.kicks,
        })
    }

    /// Returns the state at a later date, if no command changes the job.
    fn at(mut self, now: i64) -> Self {
        if matches!(self.place, Place::Delayed(until) if until <= now) {
            self.place = Place::Ready;
        }
        self
    }
}

/// Everything that happened to one job, and in which step.
#[derive(Debug, Clone)]
struct History {
    tube: String,
    body: Vec<u8>,
    versions: Vec<(usize, Option<Version>)>,
    /// Whether a delete was executed, but the binlog failed before the reply: the job may exist.
    is_delete_uncertain: bool,
}

/// Replies that confirm a change.
const ACKNOWLEDGEMENTS: [&str; 5] = ["INSERTED", "DELETED", "RELEASED", "BURIED", "KICKED"];

/// A daemon, its disk and three clients.
struct Run {
    prng: Prng,
    server: Server,
    disk: SimDisk,
    sync: SyncPolicy,
    segment_size: u64,
    /// The present error of the wall clock in seconds, and whether the clock is ever set.
    wrong_by: i64,
    is_clock_set: bool,
    /// Each error of the wall clock, and the step from which on it had that error.
    clocks: Vec<(usize, i64)>,
    conns: [Key<Conn>; 3],
    now: Time,
    step: usize,
    moment: Moment,
    /// Steps that a power cut may still undo, and when they were committed.
    unsynced: Vec<(usize, Time)>,
    /// How many calls have failed on the disk.
    failures: u64,
    /// By client: the step of its last acknowledged change.
    changed_at: [usize; 3],
    /// The last step with an acknowledged change.
    acknowledged: usize,
    /// The number of writes to the binlog before this step.
    writes: u64,
    /// The bytes written to the binlog, and its live bytes, after the last step.
    written: (u64, u64),
    /// The bytes of segments that were damaged at the start; these segments are kept.
    damaged: u64,
    /// For this step and each earlier step that no sync covers: the sum of the bytes that the step
    /// wrote to the binlog and of the bytes that it made garbage.
    changes: Vec<(usize, u64)>,
    recoveries: u64,
    jobs: BTreeMap<u64, History>,
    /// Every id, tube and body that ever existed, including those before the last restart.
    ever: BTreeSet<(u64, String, Vec<u8>)>,
    /// The first id that this run assigns.
    first_id: u64,
    /// By client: the end of a put whose beginning the client has sent.
    unsent: [String; 3],
    has_trouble: bool,
    story: Vec<String>,
}

fn calendar(wrong_by: i64) -> Calendar {
    Calendar::new(START, DATE + wrong_by * 1_000_000_000)
}

fn open(
    disk: &SimDisk,
    sync: SyncPolicy,
    segment_size: u64,
    seed: u64,
    wrong_by: i64,
    now: Time,
) -> Result<(Restored, Wal), String> {
    let restored = Restored::default();
    let opened = open_into(restored, disk, sync, segment_size, seed, wrong_by, now);
    opened.map_err(|error| format!("cannot be opened: {error}"))
}

fn open_into(
    mut restored: Restored,
    disk: &SimDisk,
    sync: SyncPolicy,
    segment_size: u64,
    seed: u64,
    wrong_by: i64,
    now: Time,
) -> Result<(Restored, Wal), wal::Error> {
    let options = Options { segment_size, sync, key: seed };
    let (disk, calendar) = (Box::new(disk.clone()), calendar(wrong_by));
    let (wal, _) = Wal::open(disk, options, &mut restored, calendar, now, &mut wal::go_on)?;
    restored.queue.check();
    wal.check();
    Ok((restored, wal))
}

/// The segments on a disk, with their sizes.
fn segments(disk: &SimDisk) -> Vec<(Name, usize)> {
    let mut files = disk.files();
    files.retain(|(name, _)| matches!(name, Name::Segment(_)));
    files
}

/// The tube and the body of a restored job, if there is one.
fn tube_and_body(restored: &Restored, id: u64) -> Option<(String, Vec<u8>)> {
    let job = restored.queue.find(id)?;
    let body = restored.jobs().body(job).to_vec();
    let tube = restored.queue.tube_name(restored.queue.job(job).tube);
    Some((tube.to_string(), body))
}

/// Returns a history for each restored job; the history begins now.
fn histories(restored: &Restored, wrong_by: i64) -> BTreeMap<u64, History> {
    let history = |id| {
        let (tube, body) = tube_and_body(restored, id)?;
        let versions = vec![(0, Version::of(&restored.queue, id, calendar(wrong_by)))];
        Some((id, History { tube, body, versions, is_delete_uncertain: false }))
    };
    (1..restored.queue.next_id()).filter_map(history).collect()
}

/// A memory source that refuses all requests after a certain number.
#[derive(Debug)]
struct Scarce {
    tries: u64,
}

impl Supply for Scarce {
    fn left(&mut self) -> usize {
        self.tries = self.tries.saturating_sub(1);
        if self.tries > 0 { usize::MAX } else { 0 }
    }
    fn refill(&mut self, _: usize) {}
}

impl Run {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.prng.below(bound as u64)).expect("below a usize")
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Starts a daemon on the disk; the jobs found there are treated as acknowledged.
    fn begin(
        disk: SimDisk,
        mut prng: Prng,
        sync: SyncPolicy,
        segment_size: u64,
        now: Time,
        ever: BTreeSet<(u64, String, Vec<u8>)>,
    ) -> Result<Self, String> {
        let seed = prng.next_u64();
        let is_clock_set = prng.chance(1, 3);
        let nth = usize::try_from(prng.below(WRONG_BY.len() as u64)).expect("small");
        let wrong_by = if is_clock_set { WRONG_BY[nth] } else { 0 };
        let before = segments(&disk);
        let (restored, wal) = open(&disk, sync, segment_size, seed, wrong_by, now)?;
        let still = segments(&disk);
        let found = still.iter().map(|&(_, size)| size as u64).sum();
        // Damaged segments keep their sizes; others were truncated to their records.
        let is_whole = |file: &&(Name, usize)| still.contains(file);
        let damaged = before.iter().filter(is_whole).map(|&(_, size)| size as u64).sum();
        let next_id = restored.queue.next_id();
        let jobs = histories(&restored, wrong_by);
        let bury_after = NonZeroU32::new(u32::from(prng.chance(1, 3)));
        let settings = Settings { binlog_size: segment_size, bury_after, ..Settings::default() };
        let mut server = Server::with_wal(world::identity(), settings, restored, Some(wal), now);
        let conns = std::array::from_fn(|_| server.open());
        let mut run = Self {
            prng,
            server,
            disk,
            sync,
            segment_size,
            wrong_by,
            is_clock_set,
            clocks: vec![(0, wrong_by)],
            conns,
            now,
            step: 0,
            moment: Moment::default(),
            unsynced: Vec::new(),
            failures: 0,
            changed_at: [0; 3],
            acknowledged: 0,
            writes: 0,
            written: (0, 0),
            damaged,
            // The jobs in segments of the last run are rewritten first, and synced.
            changes: vec![(1, found)],
            recoveries: 0,
            jobs,
            ever,
            first_id: next_id,
            unsent: Default::default(),
            has_trouble: false,
            story: Vec::new(),
        };
        for number in 0..3 {
            run.feed(number, b"watch a\r\nwatch b\r\nuse a\r\n");
        }
        Ok(run)
    }

    fn feed(&mut self, number: usize, bytes: &[u8]) {
        let (consumed, _) =
            self.server.feed(self.conns[number], bytes, COMMANDS_PER_CONNECTION, self.now);
        assert_eq!(consumed, bytes.len(), "no client is ever made to wait");
    }

    fn is_sound(&self) -> bool {
        self.server.wal().is_some_and(Wal::is_sound)
    }

    /// Records the state of every job; returns whether any has changed.
    fn observe(&mut self) -> bool {
        let mut has_changed = false;
        let (queue, jobs) = (self.server.queue(), self.server.jobs());
        for id in self.first_id..queue.next_id() {
            // A put that was refused, or is not finished, leaves a gap in the ids.
            let Some(job) = queue.find(id).filter(|_| !self.jobs.contains_key(&id)) else {
                continue;
            };
            let body = jobs.body(job);
            let job = queue.job(job);
            let (tube, body) = (queue.tube_name(job.tube).to_string(), body.to_vec());
            self.ever.insert((id, tube.clone(), body.clone()));
            let versions = vec![(0, None)];
            let history = History { tube, body, versions, is_delete_uncertain: false };
            self.jobs.insert(id, history);
            has_changed = true;
        }
        for (&id, history) in &mut self.jobs {
            let version = Version::of(queue, id, calendar(self.wrong_by));
            if history.versions.last().is_none_or(|&(_, last)| last != version) {
                history.versions.push((self.step, version));
                has_changed = true;
            }
        }
        has_changed
    }

    /// Checks the counters, and the memory that jobs take, against the history.
    fn count(&self) -> Result<(), String> {
        let queue = self.server.queue();
        let lives = |history: &History| history.versions.last().is_some_and(|it| it.1.is_some());
        let of_this_run = |&(&id, _): &(&u64, &History)| id >= self.first_id;
        let put = self.jobs.iter().filter(of_this_run).count() as u64;
        let living: Vec<_> = self.jobs.values().filter(|history| lives(history)).collect();
        let held = living.iter().map(|it| it.body.len() as u64 + JOB_OVERHEAD_BYTES).sum::<u64>();
        let (got, wanted) = ((queue.counts().total_jobs, queue.job_bytes()), (put, held));
        if got != wanted {
            return Err(format!("jobs put, and bytes held: {got:?}, wanted: {wanted:?}"));
        }
        for name in ["a", "b"] {
            // If the server closes a client's connection, the client's empty tube vanishes, too.
            let Some(tube) = queue.find_tube(name).filter(|_| !self.has_trouble) else { continue };
            let tube = queue.tube(tube);
            let all = || self.jobs.iter().filter(|(_, history)| history.tube == name);
            let put = all().filter(of_this_run).count() as u64;
            let deleted = all().filter(|(_, history)| !lives(history)).count() as u64;
            let (got, wanted) = ((tube.total_jobs, tube.deletes), (put, deleted));
            if got != wanted {
                return Err(format!("jobs put into {name}, deleted: {got:?}, wanted: {wanted:?}"));
            }
        }
        Ok(())
    }

    /// Draws a command of a client, most often the first, and sends it if `is_obeyed`.
    fn command(&mut self, is_obeyed: bool) {
        let number = self.pick(&[0, 0, 0, 1, 2]);
        let known: Vec<u64> = self
            .jobs
            .iter()
            .filter(|(_, history)| history.versions.last().is_some_and(|it| it.1.is_some()))
            .map(|(&id, _)| id)
            .collect();
        let nth = self.below(known.len());
        let id = known.get(nth).copied().unwrap_or(1);
        let pri = self.pick(&[0, 1, 5, 2000]);
        let delay = self.pick(&[0, 0, 0, 1, 100]);
        if self.prng.chance(1, 40) {
            return self.leave(number, is_obeyed);
        }
        let (is_split, pauses) = (self.prng.chance(1, 10), self.prng.chance(1, 2));
        let line = match self.below(16) {
            0..=5 => {
                let size = self.pick(&[0, 1, 20, 20, 20, 300, 300, 1500, 5000]);
                let letter = b'a' + u8::try_from(self.below(26)).expect("a letter");
                let body = String::from_utf8(vec![letter; size]).expect("a letter");
                let tube = self.pick(&["a", "b"]);
                format!("use {tube}\r\nput {pri} {delay} 60 {size}\r\n{body}\r\n")
            }
            6..=8 => "reserve-with-timeout 0\r\n".into(),
            9 => format!("reserve-job {id}\r\n"),
            10..=11 => format!("delete {id}\r\n"),
            12 => format!("release {id} {pri} {delay}\r\n"),
            13 => format!("bury {id} {pri}\r\n"),
            14 if self.prng.chance(1, 4) => {
                let (tube, state) = (self.pick(&["a", "b"]), self.pick(&["", " buried", " ready"]));
                format!("delete-tube {tube}{state}\r\n")
            }
            14 => format!("kick {}\r\n", self.below(4)),
            _ => format!("kick-job {id}\r\n"),
        };
        if is_obeyed {
            let mut line = line;
            if !self.unsent[number].is_empty() {
                if pauses {
                    return;
                }
                line = std::mem::take(&mut self.unsent[number]);
            } else if is_split && line.starts_with("use ") {
                self.unsent[number] = line.split_off(line.len() - 2);
            }
            self.story.push(format!("  {number}: {}", &line[..line.len().min(40)].escape_debug()));
            self.feed(number, line.as_bytes());
            let is_reserve = line.starts_with("reserve");
            if self.observe() && !is_reserve {
                self.changed_at[number] = self.step;
            }
        }
    }

    /// Connects a client again.
    fn connect(&mut self, number: usize) {
        self.unsent[number].clear();
        self.conns[number] = self.server.open();
        self.feed(number, b"watch a\r\nwatch b\r\nuse a\r\n");
    }

    /// Disconnects a client, perhaps while its replies wait for a sync, and connects another.
    fn leave(&mut self, number: usize, is_obeyed: bool) {
        if !is_obeyed {
            return;
        }
        self.story.push(format!("  {number}: leaves"));
        self.server.close(self.conns[number], self.now);
        self.changed_at[number] = 0;
        self.connect(number);
        let _ = self.observe();
    }

    /// Performs one turn of the daemon, and checks what must hold after a turn.
    fn turn(&mut self, commands: usize, told: &mut Told) -> Result<(), String> {
        let pause = self.pick(&[0, 1_000, 10_000_000, 30_000_000, 60_000_000, 1_500_000_000]);
        self.now = self.now + Duration::from_nanos(pause);
        self.step += 1;
        self.story.push(format!("step {} at {:?}", self.step, START.until(self.now)));
        self.moment.now = self.now.as_nanoseconds();
        self.moment.steps = self.step;
        self.disk.0.borrow_mut().moment = self.moment;
        self.set_clock();
        self.server.tick(self.now);
        let _ = self.observe();
        let was_sound = self.is_sound();
        for _ in 0..commands {
            let is_obeyed = told.is_next_obeyed();
            self.command(is_obeyed);
        }
        if self.server.commit_blocks() && self.server.write_changes(self.now) {
            let early = self.replies();
            if ACKNOWLEDGEMENTS.iter().any(|word| early.contains(word)) {
                return Err(format!("acknowledged before the sync: {early}"));
            }
        }
        let jobs = self.jobs.keys().filter(|&&id| self.server.queue().find(id).is_some());
        let lived: Vec<u64> = jobs.copied().collect();
        self.server.commit(self.now);
        let replies = self.replies();
        let met = self.disk.0.borrow().met;
        let failures = met.failed_syncs + met.failed_writes + met.full;
        let has_failed = failures > std::mem::replace(&mut self.failures, failures);
        if !self.is_sound() && (was_sound || has_failed) {
            self.lose_unrecorded(&lived, was_sound)?;
        }
        if was_sound && !self.is_sound() {
            self.story.push("  the log has failed".into());
            self.disk.0.borrow_mut().abandon();
            if ACKNOWLEDGEMENTS.iter().any(|word| replies.contains(word)) {
                return Err(format!("a failed commit was acknowledged: {replies}"));
            }
        }
        let is_refused = ["OUT_OF_MEMORY", "INTERNAL_ERROR"].iter().any(|it| replies.contains(it));
        if is_refused && !self.has_trouble {
            return Err(format!("an error without a fault: {replies}"));
        }
        self.recoveries += u64::from(!was_sound && self.is_sound());
        self.promise()?;
        self.count()?;
        self.measure()?;
        if self.now.as_nanoseconds() % 7 == 0 {
            self.server.check();
            self.server.wal().expect("there is one").check();
        }
        Ok(())
    }

    /// Makes the disk full or faulty for some turns. Sets `had_space` to whether a preallocated
    /// file existed when the disk became full; for a moment between two files there is none.
    fn trouble_disk(&mut self, trouble: u64, turn: usize, had_space: &mut bool) {
        if trouble == 1 && turn % 8 == 0 {
            let (room, is_full) = (self.below(6) * 4096, turn % 16 != 0);
            let is_spare = |(name, _): &(Name, usize)| matches!(name, Name::Preallocated(_));
            *had_space = is_full && self.disk.files().iter().any(is_spare);
            let capacity = if is_full { self.disk.size() + room } else { usize::MAX };
            self.disk.0.borrow_mut().capacity = capacity;
        }
        if matches!(trouble, 2 | 3) {
            self.disk.0.borrow_mut().fail_every = if turn % 20 < 10 { 25 } else { 0 };
        }
    }

    /// Sets the wall clock of the daemon, sometimes to another time.
    fn set_clock(&mut self) {
        let may_shift = self.is_clock_set && self.clocks.len() <= SHIFTS_AT_ONCE_MAX as usize;
        if may_shift && self.prng.chance(1, 12) {
            self.wrong_by = self.pick(&WRONG_BY);
            self.clocks.push((self.step, self.wrong_by));
            self.story.push(format!("  the wall clock is wrong by {} s", self.wrong_by));
        }
        self.server.set_calendar(calendar(self.wrong_by), self.now);
    }

    /// Handles a failed binlog. Changes that could not be recorded are gone, but a restart may find
    /// them. Deletes are confirmed even while the binlog recovers, and it may fail again before the
    /// deletes are synced.
    fn lose_unrecorded(&mut self, lived: &[u64], was_sound: bool) -> Result<(), String> {
        let _ = self.observe();
        for id in lived {
            let first = self.jobs[id].versions.iter().find(|(_, version)| version.is_some());
            if self.server.queue().find(*id).is_none() && first.map(|it| it.0) != Some(self.step) {
                return Err(format!("job {id} is gone, put in an earlier step"));
            }
        }
        let synced = if was_sound { 0 } else { self.disk.0.borrow().synced_step };
        let floor = self.moment.cut_floor.max(synced);
        for history in self.jobs.values_mut() {
            let last = history.versions.last();
            history.is_delete_uncertain |=
                last.is_some_and(|&(step, version)| step > floor && version.is_none());
        }
        Ok(())
    }

    /// Sends all replies; clients whose connection ends connect again.
    fn replies(&mut self) -> String {
        let (mut all, mut gone) = (Vec::new(), Vec::new());
        while let Some(key) = self.server.next_dirty() {
            if !self.conns.contains(&key) {
                continue; // The client has disconnected.
            }
            let before = all.len();
            world::send(&mut self.server, key, &mut all);
            let text = String::from_utf8_lossy(&all[before..]);
            let is_told = ACKNOWLEDGEMENTS.iter().any(|word| text.contains(word));
            if let Some(number) = self.conns.iter().position(|&other| other == key) {
                if is_told && self.server.conn(key).output.is_empty() {
                    self.acknowledged = self.acknowledged.max(self.changed_at[number]);
                }
            }
            if self.server.conn(key).is_finished() {
                self.server.close(key, self.now);
                gone.push(key);
            }
        }
        let text = String::from_utf8_lossy(&all);
        for line in text.lines() {
            let mut words = line.split(' ');
            if matches!(words.next(), Some("INSERTED" | "RESERVED" | "FOUND")) {
                let id = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                self.moment.seen = self.moment.seen.max(id);
            }
        }
        self.disk.0.borrow_mut().moment.seen = self.moment.seen;
        self.server.reclaim();
        for key in gone {
            let number = self.conns.iter().position(|&other| other == key).expect("one of three");
            self.connect(number);
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Records which steps the flag promises to keep if a crash comes now.
    fn promise(&mut self) -> Result<(), String> {
        if !self.is_sound() {
            self.unsynced.clear();
            // The writes so far are synced once the binlog works again.
            self.writes = self.disk.0.borrow().writes;
            return Ok(());
        }
        self.moment.kill_floor = self.step;
        let SyncPolicy::Within(delay) = self.sync else { return Ok(()) };
        if delay.is_zero() {
            // The flag promises all acknowledged changes and all synced changes.
            let is_synced = self.disk.0.borrow().is_synced();
            let floor = if is_synced { self.step } else { self.acknowledged };
            self.moment.cut_floor = self.moment.cut_floor.max(floor);
            return Ok(());
        }
        let state = self.disk.0.borrow();
        if state.writes > std::mem::replace(&mut self.writes, state.writes) {
            self.unsynced.push((self.step, self.now));
        }
        while let Some(&(step, written_at)) = self.unsynced.first() {
            if step > state.synced_step && !state.is_synced() {
                let is_late = written_at + delay <= self.now && !state.is_syncing();
                return if is_late { Err(format!("step {step} is not synced")) } else { Ok(()) };
            }
            self.moment.cut_floor = self.moment.cut_floor.max(step);
            self.unsynced.remove(0);
        }
        self.moment.cut_floor = self.step;
        Ok(())
    }

    /// Compares the jobs that a restart finds on a disk with those that it may find.
    fn judge(
        &mut self,
        disk: &SimDisk,
        floor: Option<usize>,
        last_seen_id: u64,
        now: Time,
    ) -> Result<(), String> {
        let (seed, wrong_by) = (self.prng.next_u64(), self.wrong_by);
        let (restored, _wal) = open(disk, self.sync, self.segment_size, seed, wrong_by, now)?;
        // The dates of the last changes may have been written before the wall clock was set.
        let since = |&(step, _): &(usize, i64)| floor.is_none_or(|floor| step <= floor);
        let first = self.clocks.iter().rposition(since).filter(|_| !self.has_trouble);
        let clocks = self.clocks[first.unwrap_or(0)..].iter();
        let todays: Vec<i64> = clocks.map(|&(_, wrong_by)| calendar(wrong_by).date(now)).collect();
        let are_same = |one: Option<Version>, other: Option<Version>| {
            let at = |it: Option<Version>, today| it.map(|it| it.at(today));
            todays.iter().any(|&today| at(one, today) == at(other, today))
        };
        let next_id = restored.queue.next_id();
        if next_id > 100_000 && floor.is_none() {
            // The rest of a torn header may pass for the delete of a job with so high an id.
            return Ok(());
        }
        self.judge_ids(&restored, last_seen_id)?;
        for (&id, history) in &self.jobs {
            let version = Version::of(&restored.queue, id, calendar(wrong_by));
            // Without a promise, the job may have any state that it ever had, even before the last
            // restart.
            let at_floor = |&(step, _): &(usize, _)| floor.is_some_and(|floor| step <= floor);
            let allowed =
                &history.versions[history.versions.iter().rposition(at_floor).unwrap_or(0)..];
            let mut is_allowed =
                floor.is_none() || allowed.iter().any(|&(_, it)| are_same(it, version));
            let is_uncertain = allowed[0].1.is_some() || history.is_delete_uncertain;
            if self.has_trouble && version.is_some() && is_uncertain {
                // Without space, a release without delay and a reserve-job are not in the binlog
                // yet.
                is_allowed |= history.versions.iter().any(|&(_, it)| are_same(it, version));
            }
            if !is_allowed {
                return Err(format!("job {id} is {version:?}, allowed: {allowed:?} at {now:?}"));
            }
            let is_same = |(tube, body)| tube == history.tube && body == history.body;
            if floor.is_some() && !tube_and_body(&restored, id).is_none_or(is_same) {
                return Err(format!("job {id} has another tube or body"));
            }
            let is_promised = history.versions.iter().any(|it| at_floor(it) && it.1.is_some());
            if is_promised && next_id <= id {
                return Err(format!("the id {id} would be given out again"));
            }
        }
        // Without a promise, a job may come back that was deleted before the last restart.
        let found = self.jobs.keys().filter(|&&id| restored.queue.find(id).is_some()).count();
        let unknown = restored.queue.jobs() - found;
        if floor.is_some() && unknown > 0 {
            return Err(format!("{unknown} jobs were there that nobody put"));
        }
        Ok(())
    }

    /// Checks the next id after a restart, and that each job was put at some time.
    fn judge_ids(&self, restored: &Restored, last_seen_id: u64) -> Result<(), String> {
        let next_id = restored.queue.next_id();
        if next_id > 100_000 {
            return Err(format!("the next id would be {next_id}"));
        }
        if next_id <= last_seen_id {
            return Err(format!(
                "a client has seen the id {last_seen_id}, and it would be given out again"
            ));
        }
        for id in 1..next_id {
            let Some((tube, body)) = tube_and_body(restored, id) else { continue };
            if !self.ever.contains(&(id, tube, body)) {
                return Err(format!("job {id} was never put with that tube and body"));
            }
        }
        Ok(())
    }

    /// Kills the daemon, and restarts it some times on the same full disk. Then it must be possible
    /// to delete all jobs.
    fn judge_full(&mut self) -> Result<(), String> {
        let (disk, prng, now) = (self.disk.copy(), Prng::new(self.prng.next_u64()), self.now);
        disk.0.borrow_mut().capacity = self.disk.0.borrow().capacity;
        for seed in 0..self.prng.below(4) {
            open(&disk, self.sync, self.segment_size, seed, self.wrong_by, now)?;
            disk.end_process();
        }
        let ever = BTreeSet::new();
        let mut run = Self::begin(disk, prng, self.sync, self.segment_size, now, ever)?;
        let (files, jobs) = (run.disk.files(), run.jobs.len());
        // The first job is tried twice: the first attempt frees space of an unfinished record.
        for id in run.jobs.keys().chain(run.jobs.keys().next()).copied().collect::<Vec<_>>() {
            run.now = run.now + Duration::from_secs(1);
            run.server.tick(run.now);
            run.feed(0, format!("delete {id}\r\n").as_bytes());
            run.server.commit(run.now);
            run.replies();
        }
        match run.server.queue().jobs() {
            0 => Ok(()),
            left => Err(format!("{left} of {jobs} jobs cannot be deleted: {files:?}")),
        }
    }

    /// Judges a startup in which memory is refused from a certain request on, or a call on the disk
    /// fails. Such a startup may still succeed. But it must find all jobs or leave the disk
    /// unchanged, and the next startup must find the same jobs.
    fn judge_refused(
        &mut self,
        disk: &SimDisk,
        now: Time,
        total: &mut Total,
    ) -> Result<(), String> {
        let seed = self.prng.next_u64();
        let start = |disk: &SimDisk, restored| {
            open_into(restored, disk, self.sync, self.segment_size, seed, self.wrong_by, now)
        };
        let whole = disk.copy();
        let known = |restored: &Restored| {
            let queue = &restored.queue;
            let all =
                (1..queue.next_id().min(100_000)).filter_map(|id| Some((id, queue.find(id)?)));
            let version = |id| Version::of(queue, id, calendar(0));
            let body = |job| restored.jobs().body(job).to_vec();
            all.map(|(id, job)| (id, body(job), version(id))).collect::<Vec<_>>()
        };
        let (wanted, _) = start(&whole, Restored::default()).map_err(|error| error.to_string())?;
        let wanted = known(&wanted);
        let before = disk.segments();
        let mut restored = Restored::default();
        let what = if self.prng.chance(1, 2) {
            let tries = self.prng.below(60);
            restored.bodies.memory.set_supply(Box::new(Scarce { tries }));
            format!("memory after {tries} tries")
        } else {
            let call = self.prng.below(40);
            let errors = [libc::EMFILE, libc::ENOMEM, libc::EACCES, libc::EROFS];
            let error = errors[usize::try_from(self.prng.below(4)).expect("small")];
            disk.0.borrow_mut().fault = Some((call, error));
            format!("call {call} with {}", io::Error::from_raw_os_error(error))
        };
        let result = start(disk, restored);
        let is_refused = result.is_err();
        disk.0.borrow_mut().fault = None;
        match result {
            Ok((restored, _)) if known(&restored) != wanted => {
                return Err(format!("refused {what}, and it started with other jobs"));
            }
            Ok(_) => {}
            Err(_) => {
                total.refused_starts += 1;
                disk.judge_untouched(&before).map_err(|it| format!("refused {what}: {it}"))?;
            }
        }
        let (restored, _) = start(disk, Restored::default())
            .map_err(|error| format!("refused {what}, and the next start: {error}"))?;
        if known(&restored) != wanted {
            return Err(format!("refused {what} ({is_refused}), and the next start lacks jobs"));
        }
        Ok(())
    }

    /// Commits until the binlog has nothing left to do, and then judges how much space it takes.
    fn settle(&mut self) -> Result<(), String> {
        self.now = self.now + Duration::from_secs(3);
        for round in 0.. {
            self.server.tick(self.now);
            let _ = self.observe();
            self.server.commit(self.now);
            self.replies();
            let next = self.server.next_deadline();
            // A sync that is under way is polled soon.
            let soon = self.now + Duration::from_millis(100);
            if self.is_sound() && next.is_none_or(|at| at > soon) {
                break;
            }
            if round > 5000 {
                return Err(format!("never comes to rest, next {next:?}"));
            }
            self.now =
                next.unwrap_or_default().clamp(self.now, self.now + Duration::from_millis(500));
        }
        // The disk must have exactly the server's jobs, with their dates.
        let (seed, wrong_by) = (self.prng.next_u64(), self.wrong_by);
        let copy = self.disk.copy();
        let (restored, _wal) = open(&copy, self.sync, self.segment_size, seed, wrong_by, self.now)?;
        let today = calendar(wrong_by).date(self.now);
        for &id in self.jobs.keys() {
            let of = |queue| Version::of(queue, id, calendar(wrong_by)).map(|it| it.at(today));
            let (is, found) = (of(self.server.queue()), of(&restored.queue));
            if is != found {
                return Err(format!("job {id} is {is:?}, and on the disk {found:?}"));
            }
        }
        self.changes.clear();
        self.judge_size()
    }

    /// Records how much this step has changed in the binlog. Judges the size only without faults: a
    /// file whose removal fails stays, and a full disk may lack the space to remove another file.
    fn measure(&mut self) -> Result<(), String> {
        let live = self.server.wal().expect("there is one").counts().live;
        let (is_synced, synced_step, written) = {
            let state = self.disk.0.borrow();
            (state.is_synced(), state.synced_step, state.written_bytes)
        };
        let before = std::mem::replace(&mut self.written, (written, live));
        let changed = (2 * (written - before.0) + before.1).saturating_sub(live);
        let is_covered = |step| step <= synced_step || is_synced || self.sync == SyncPolicy::Never;
        self.changes.retain(|&(step, _)| !is_covered(step));
        self.changes.push((self.step, changed));
        if self.has_trouble { Ok(()) } else { self.judge_size() }
    }

    /// Judges how much space the binlog takes, at the end of a turn.
    fn judge_size(&self) -> Result<(), String> {
        let log = self.server.wal().expect("there is one");
        log.check();
        let (live, jobs) = (log.counts().live, self.server.queue().jobs() as u64);
        // A job larger than a segment has a segment of its own.
        let largest = self.jobs.values().map(|it| it.body.len() as u64 + 300).max().unwrap_or(0);
        let segment = self.segment_size.next_multiple_of(4096).max(largest + 4096);
        // On a full disk the daemon makes smaller segments, and more of them.
        let segments = if self.has_trouble { 5 } else { 3 };
        let for_restart = 2 * 4096;
        let changed: u64 = self.changes.iter().map(|&(_, bytes)| bytes).sum();
        let bound =
            self.damaged + 2 * (live + changed) + 84 * jobs + segments * segment + for_restart;
        let files = self.disk.files();
        let is_log = |&&(name, _): &&(Name, usize)| !matches!(name, Name::Damaged(_));
        let size = files.iter().filter(is_log).map(|&(_, size)| size as u64).sum::<u64>();
        if size > bound {
            return Err(format!(
                "{size} bytes for {live} live and {changed} changed, more than {bound}: {files:?}"
            ));
        }
        Ok(())
    }
}

/// Counts of the events in a test run.
#[derive(Debug, Default)]
struct Total {
    crashes: u64,
    rotations: u64,
    compactions: u64,
    recoveries: u64,
    refused_starts: u64,
    met: Met,
}

/// The commands of a seed that are executed: all, or only some while a failing run is shortened.
#[derive(Debug, Default)]
struct Told {
    drawn: usize,
    only: Option<BTreeSet<usize>>,
}

impl Told {
    fn is_next_obeyed(&mut self) -> bool {
        self.drawn += 1;
        self.only.as_ref().is_none_or(|only| only.contains(&self.drawn))
    }
}

/// Plays one seed. The error describes everything that happened.
fn play(seed: u64, told: &mut Told, total: &mut Total) -> Result<(), String> {
    let mut prng = Prng::new(seed);
    let within = |delay| SyncPolicy::Within(delay);
    let syncs = [within(Duration::ZERO), within(SYNC_DELAY), SyncPolicy::Never];
    let sync = syncs[usize::try_from(prng.below(3)).expect("small")];
    let segment_size = [4096, 4096, 8192, 20_000][usize::try_from(prng.below(4)).expect("small")];
    let trouble = prng.below(5);
    let mut disk = SimDisk::new(Prng::new(prng.next_u64()));
    let can_reserve = prng.chance(2, 3);
    // If a sync takes two milliseconds, the daemon syncs in the background.
    let sync_time = 2 * prng.below(2);
    let mut now = START;
    let mut ever = BTreeSet::new();
    for generation in 0..GENERATIONS {
        {
            let mut state = disk.0.borrow_mut();
            state.snapshot_every = 12;
            state.can_reserve = can_reserve;
            state.sync_time = Duration::from_millis(sync_time);
            state.lacks_reserved = trouble == 3;
            state.fail_every = if trouble == 3 { FULL_START_EVERY } else { 0 };
            state.moment = Moment { now: now.as_nanoseconds(), ..Moment::default() };
        }
        let own = Prng::new(prng.next_u64());
        let mut run = Run::begin(disk.clone(), own, sync, segment_size, now, ever)?;
        run.has_trouble = matches!(trouble, 1..=3);
        let (mut next, mut had_space) = (None, false);
        for turn in 0..TURNS {
            run.trouble_disk(trouble, turn, &mut had_space);
            let commands = run.below(6);
            let has_been_full = had_space && turn % 8 == 7;
            let result = run
                .turn(commands, told)
                .and_then(|()| if has_been_full { run.judge_full() } else { Ok(()) })
                .and_then(|()| judge_all(&mut run, &mut prng, total));
            next = result
                .map_err(|what| {
                    let story = run.story.join("\n");
                    let story = &story[story.len().saturating_sub(6000)..];
                    format!("{story}\nseed {seed}, generation {generation}, {sync:?}: {what}")
                })?
                .or(next);
        }
        {
            let mut state = disk.0.borrow_mut();
            (state.capacity, state.fail_every, state.snapshot_every) = (usize::MAX, 0, 0);
        }
        run.settle().map_err(|what| format!("seed {seed}, {sync:?}: {what}"))?;
        let counts = run.server.wal().expect("there is one").counts();
        total.rotations += u64::from(counts.current.saturating_sub(1));
        total.compactions += counts.migrated;
        total.recoveries += run.recoveries;
        total.met.add(disk.0.borrow().met);
        let Some((after, at)) = next else { break };
        (disk, now, ever) = (after, at, run.ever);
    }
    Ok(())
}

/// Judges every crash that could have ended the last turn; the history may continue after one of
/// them.
fn judge_all(
    run: &mut Run,
    prng: &mut Prng,
    total: &mut Total,
) -> Result<Option<(SimDisk, Time)>, String> {
    let snapshots: Vec<Snapshot> = std::mem::take(&mut run.disk.0.borrow_mut().snapshots);
    let mut next = None;
    for snapshot in snapshots {
        let moment = snapshot.moment;
        let at =
            Time::from_nanoseconds(moment.now) + Duration::from_nanos(prng.below(2_000_000_000));
        let (seed, other) = (prng.next_u64(), prng.next_u64());
        let killed = || snapshot.after_kill(Prng::new(seed));
        run.judge(&killed(), Some(moment.kill_floor), moment.seen, at)
            .map_err(|what| format!("killed in step {}: {what}", moment.steps))?;
        let (cut, torn) = snapshot.after_power_cut(Prng::new(other));
        // During startup, writes that the last run did not sync are not synced yet.
        let is_promised = run.sync != SyncPolicy::Never && moment.steps > 0;
        let floor = is_promised.then_some(moment.cut_floor);
        {
            // The daemon must start and serve although its files have less space than was reserved
            // for them.
            let mut state = cut.0.borrow_mut();
            state.lacks_reserved = run.disk.0.borrow().lacks_reserved;
            state.fail_every = if state.lacks_reserved { FULL_START_EVERY } else { 0 };
        }
        let last_seen_id = if run.sync == SyncPolicy::Never { 0 } else { moment.seen };
        run.judge(&cut, floor, last_seen_id, at)
            .map_err(|what| format!("power cut in step {}: {what}", moment.steps))?;
        if prng.chance(1, 4) {
            run.judge_refused(&killed(), at, total)
                .map_err(|what| format!("a start after step {}: {what}", moment.steps))?;
        }
        total.crashes += 2;
        total.met.torn += torn;
        // After a failed sync and a kill, the contents that a reader sees may not be on the disk,
        // and that cannot be detected. So a history with faults continues only after power cuts.
        next = if !run.has_trouble && prng.chance(1, 2) {
            Some((killed(), at))
        } else {
            Some((snapshot.after_power_cut(Prng::new(other)).0, at))
        };
    }
    Ok(next)
}

/// Returns how the seed fails, if it does, when only these of its commands are executed.
fn failure(seed: u64, only: &[usize]) -> Option<String> {
    let mut told = Told { drawn: 0, only: Some(only.iter().copied().collect()) };
    seeds::outcome(|| play(seed, &mut told, &mut Total::default())).err()
}

/// A crash would lose an acknowledged change that the flags promise to keep.
///
/// Proves: B7, B8, B9, B10, B11, B12, B13, B16, B34, E26, E29.
#[test]
fn no_acknowledged_change_is_lost() {
    let seeds = Seeds::new(RUNS);
    let (mut count, mut total) = (0, Total::default());
    for seed in seeds {
        let mut told = Told::default();
        if let Err(story) = seeds::outcome(|| play(seed, &mut told, &mut total)) {
            let is_failing = |only: &Vec<usize>| failure(seed, only).is_some();
            let only = seeds::quietly(|| {
                let all = (1..=told.drawn).collect();
                shrink(all, |_| Vec::new(), |some| some.iter().position(is_failing))
            });
            // With fewer commands the disk may draw other faults, and the run may succeed.
            let story = failure(seed, &only).unwrap_or(story);
            panic!(
                "{story}\n\n{} of {} commands are enough\nrepeat with: make sim SEED={seed}",
                only.len(),
                told.drawn
            );
        }
        count += 1;
    }
    println!("{count} histories: {total:?}");
    let Total { rotations, compactions, recoveries, met, .. } = &total;
    let (rotations, compactions, recoveries) = (*rotations, *compactions, *recoveries);
    let often = [
        ("rotation", rotations),
        ("compaction", compactions),
        ("a dropped segment", met.drops),
        ("a torn write", met.torn),
        ("a failed sync", met.failed_syncs),
        ("a failed write", met.failed_writes),
        ("a recovery", recoveries),
        ("a full disk", met.full),
        ("a refused start", total.refused_starts),
        ("a crash between remove and sync", met.between_remove_and_sync),
    ];
    for (what, times) in often {
        assert!(count < RUNS || times >= 100, "the histories met {what} only {times} times");
    }
}
