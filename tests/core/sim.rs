//! The simulator: seeded clients, commands, clock jumps, lost connections, and kills and restarts
//! with a binlog, on the pure server, with a simple model as the oracle. After each step, all
//! replies, all counters and the bytes that jobs hold must be equal in server and model, and every
//! invariant must hold. A run that fails is shortened, and its seed is printed; `make sim SEED=…`
//! repeats it.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use beanstalkd::{
    clock::{Calendar, Time},
    memory::Supply,
    queue::Queue,
    server::{Server, Settings},
    wal::{self, Options, Restored, SyncPolicy, Wal},
};
use ct::{Prng, diff::shrink};

use crate::{
    disk::SimDisk,
    model::{Command, Found, Model, OUTPUT_BOUND, SECOND},
    seeds::{self, Seeds},
    world::{self, Arrival, World},
};

/// Steps of one run.
const STEPS: usize = 300;

const JOB_SIZE_LIMIT: u32 = 65_535;

/// The number of runs, unless `make sim` sets another.
const RUNS: u64 = 200;

/// The date at which a run begins; the run's clock begins at zero.
const DATE: i64 = 1_700_000_000_000_000_000;

/// A step of a run.
#[derive(Debug, Clone)]
enum Act {
    Connect,
    Send(usize, Vec<Command>),
    HalfClose(usize),
    Close(usize),
    Advance(u64),
    Drain,
    EndDrain,
    Restart,
}

impl Act {
    /// The client of the step, if the step has one.
    fn peer(&mut self) -> Option<&mut usize> {
        match self {
            Self::Send(peer, _) | Self::HalfClose(peer) | Self::Close(peer) => Some(peer),
            Self::Connect | Self::Advance(_) | Self::Drain | Self::EndDrain | Self::Restart => None,
        }
    }
}

/// Draws steps with a bias towards states in which faults are likely: few tubes, few priorities,
/// short times, ids that exist.
struct Generator {
    prng: Prng,
}

impl Generator {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.prng.below(bound as u64)).expect("below a usize")
    }

    fn number(&mut self, choices: &[u32]) -> u32 {
        choices[self.below(choices.len())]
    }

    fn name(&mut self) -> String {
        ["default", "a", "b", "c", "long-name.with/all;kinds_(of)+$"][self.below(5)].into()
    }

    fn id(&mut self, model: &Model) -> u64 {
        let ids = model.ids();
        if ids.is_empty() || self.prng.chance(1, 20) {
            return self.prng.below(50);
        }
        ids[self.below(ids.len())]
    }

    fn next(&mut self, run: &Run) -> Act {
        let model = &run.model;
        let is_client = |&peer: &usize| peer != run.auditor && model.is_open(peer);
        let open: Vec<usize> = (0..run.peers).filter(is_client).collect();
        if open.is_empty() || open.len() < 8 && self.prng.chance(1, 20) {
            return Act::Connect;
        }
        let peer = open[self.below(open.len())];
        match self.below(100) {
            0 => Act::Close(peer),
            1 => Act::HalfClose(peer),
            2..=14 => Act::Advance(self.prng.below(SECOND * 3 / 2)),
            15 if self.prng.chance(1, 50) => Act::Drain,
            15 if self.prng.chance(1, 3) => Act::EndDrain,
            15 if run.setting.options.is_some() => Act::Restart,
            16..=22 if run.setting.fickle.is_none() => {
                let count = 1 + self.below(5);
                Act::Send(peer, (0..count).map(|_| self.command(model)).collect())
            }
            _ => Act::Send(peer, vec![self.command(model)]),
        }
    }

    fn command(&mut self, model: &Model) -> Command {
        let pri = self.number(&[0, 1, 1, 1023, 1024, u32::MAX]);
        let delay = self.number(&[0, 0, 0, 1, 2, 5, u32::MAX]);
        match self.below(40) {
            0..=7 => {
                let ttr = self.number(&[0, 1, 1, 2, 3, 10, u32::MAX]);
                let size = self.number(&[0, 1, 5, 20, 300, 5000, 20_000]) as usize;
                let body = (0..size).map(|at| b"\r\n\0put 0 stats"[at % 13]).collect();
                Command::Put { pri, delay, ttr, body }
            }
            8..=9 => Command::Use(self.name()),
            10 | 11 => Command::Reserve(None),
            12 => Command::ReserveWithAbort,
            13..=16 => Command::Reserve(Some(self.number(&[0, 0, 1, 2, 0x7FFF_FFFF]))),
            17 => Command::ReserveJob(self.id(model)),
            18..=20 => Command::Delete(self.id(model)),
            21..=22 => Command::Release { id: self.id(model), pri, delay },
            23..=24 => Command::Bury { id: self.id(model), pri },
            25 => Command::Touch(self.id(model)),
            26..=27 => Command::Watch(self.name()),
            28 => Command::Ignore(self.name()),
            29 => Command::Peek(self.id(model)),
            30 => [Command::PeekReady, Command::PeekDelayed, Command::PeekBuried][self.below(3)]
                .clone(),
            31 => Command::Kick(self.number(&[0, 1, 2, 100, u32::MAX])),
            32 => Command::KickJob(self.id(model)),
            33 => match self.below(9) {
                0 => Command::Stats,
                1 => {
                    let is_of_tube = self.prng.chance(2, 3) && model.has_exact_times;
                    Command::Metrics(is_of_tube.then(|| self.name()))
                }
                2 => Command::Capabilities,
                3 => Command::Drain(["status", "off", "off", "on"][self.below(4)]),
                4 => {
                    let state = [None, Some("ready"), Some("delayed"), Some("buried")];
                    let state = state[self.below(4)];
                    let last_id =
                        (state.is_some() && self.prng.chance(1, 2)).then(|| self.below(100) as u64);
                    Command::DeleteTube { name: self.name(), state, last_id }
                }
                _ => {
                    let limit = [None, Some(0), Some(1), Some(5), Some(10_000)][self.below(5)];
                    let state = ["ready", "delayed", "buried", "reserved"][self.below(4)];
                    Command::ListJobs { name: self.name(), state, limit }
                }
            },
            34 => Command::StatsJob(self.id(model)),
            35 => Command::StatsTube(self.name()),
            36 => [Command::ListTubes, Command::ListTubeUsed, Command::ListTubesWatched]
                [self.below(3)]
            .clone(),
            37..=38 => {
                let name = self.name();
                Command::PauseTube { name, delay: self.number(&[0, 1, 2, 5, u32::MAX]) }
            }
            _ if self.prng.chance(1, 5) => Command::Quit,
            _ => Command::ListTubes,
        }
    }
}

/// The settings of a run.
#[derive(Debug, Clone)]
struct Setting {
    arrival: Arrival,
    memory_limit: Option<u64>,
    bury_after: Option<NonZeroU32>,
    /// The options of the binlog, if there is one.
    options: Option<Options>,
    /// The seed of a memory source that sometimes refuses.
    fickle: Option<u64>,
}

/// A memory source that refuses at random, except while it is made reliable.
#[derive(Debug)]
struct Fickle {
    prng: Prng,
    is_reliable: Arc<AtomicBool>,
}

impl Supply for Fickle {
    fn left(&mut self) -> usize {
        let is_whole = self.is_reliable.load(Relaxed) || self.prng.chance(4, 5);
        if is_whole {
            usize::MAX
        } else {
            usize::try_from(self.prng.below(4 << 20)).expect("small")
        }
    }
    fn refill(&mut self, _: usize) {}
}

impl Setting {
    fn draw(prng: &mut Prng) -> Self {
        let arrival = match prng.below(4) {
            0 => Arrival::Pieces(prng.clone()),
            1 => Arrival::SingleBytes,
            _ => Arrival::Whole,
        };
        // Exactly two jobs of a usual size fit into the lowest limit.
        let memory_limit = match prng.below(12) {
            0 => Some(2 * (20 + 130)),
            1 => Some(10_000),
            2 => Some(50_000),
            _ => None,
        };
        let sync = match prng.below(3) {
            0 => SyncPolicy::Within(Duration::ZERO),
            1 => SyncPolicy::Within(Duration::from_millis(50)),
            _ => SyncPolicy::Never,
        };
        let segment_size = 4096 << prng.below(4);
        let options = Options { segment_size, sync, key: prng.next_u64() };
        let options = Some(options).filter(|_| prng.chance(1, 2));
        let bury_after = [0, 0, 1, 2, 3][usize::try_from(prng.below(5)).expect("small")];
        let bury_after = NonZeroU32::new(bury_after);
        Self { arrival, memory_limit, bury_after, options, fickle: None }
    }

    /// Starts a server with the jobs of its binlog.
    fn start(&self, options: Options, disk: &SimDisk, now: Time) -> Server {
        let mut restored = Restored::default();
        let calendar = Calendar::new(Time::default(), DATE);
        let disk = Box::new(disk.clone());
        let (wal, report) = Wal::open(disk, options, &mut restored, calendar, now, &mut wal::go_on)
            .expect("this disk does not fail");
        assert!(!report.is_damaged(), "{report:?}");
        wal.check();
        let settings = Settings {
            job_size_limit: JOB_SIZE_LIMIT,
            binlog_size: options.segment_size,
            memory_limit: self.memory_limit,
            bury_after: self.bury_after,
        };
        Server::with_wal(world::identity(), settings, restored, Some(wal), now)
    }
}

/// The state that a daemon has found at startup, where the model allows several outcomes.
fn found(queue: &Queue) -> Found {
    let record = |id| queue.find(id).map(|job| (id, &queue.job(job).record));
    Found {
        tubes: queue.tube_names(None).map(Into::into).collect(),
        jobs: (1..queue.next_id())
            .filter_map(record)
            .map(|(id, record)| (id, (record.history.reserves, record.history.timeouts)))
            .collect(),
        next_id: queue.next_id(),
    }
}

/// Returns replies without the facts about a binlog that the model does not know: the file of a
/// job, and the counts of files and records. Such facts have any number of digits, so documents may
/// have any length.
fn masked(replies: &[u8]) -> Vec<u8> {
    let lines = replies.split_inclusive(|&byte| byte == b'\n');
    lines.fold(Vec::new(), |mut masked, line| {
        let is_masked = |start: &&[u8]| line.starts_with(start);
        let starts: [&[u8]; 3] = [b"OK ", b"file: ", b"binlog-"];
        let shown = starts.into_iter().find(is_masked).unwrap_or(line);
        // `metrics` has more lines about the binlog if there is one.
        if !(shown == b"binlog-" && masked.ends_with(shown)) {
            masked.extend_from_slice(shown);
        }
        masked
    })
}

/// The server and the model, side by side.
struct Run {
    setting: Setting,
    disk: SimDisk,
    world: World,
    model: Model,
    peers: usize,
    /// The client that requests all counters after each step, and does nothing else.
    auditor: usize,
    /// Whether memory is granted always, as while the auditor asks for the counters.
    is_reliable: Arc<AtomicBool>,
}

impl Run {
    fn begin(setting: &Setting) -> Self {
        let mut world = World::new(setting.arrival.clone(), JOB_SIZE_LIMIT);
        if let Some(bytes) = setting.memory_limit {
            world.limit_memory(bytes);
        }
        if let Some(losses) = setting.bury_after {
            world.bury_after(losses);
        }
        let disk = SimDisk::new(Prng::new(0));
        if let Some(options) = setting.options {
            world.replace(setting.start(options, &disk, world.now));
        }
        let now = world.now.as_nanoseconds();
        let bury_after = setting.bury_after.map(NonZeroU32::get);
        let mut model = Model::new(now, JOB_SIZE_LIMIT, setting.memory_limit, bury_after);
        model.has_exact_times = setting.fickle.is_none();
        let setting = setting.clone();
        let is_reliable = Arc::default();
        let mut run = Self { setting, disk, world, model, peers: 0, auditor: 0, is_reliable };
        run.connect();
        run.make_fickle();
        run
    }

    fn make_fickle(&mut self) {
        if let Some(seed) = self.setting.fickle {
            let (prng, is_reliable) = (Prng::new(seed), self.is_reliable.clone());
            self.world.set_supply(Box::new(Fickle { prng, is_reliable }));
        }
    }

    fn advance(&mut self, nanoseconds: u64) {
        self.world.advance(Duration::from_nanos(nanoseconds));
        self.model.advance(nanoseconds);
    }

    /// Kills the daemon, and starts it again a moment later.
    fn restart(&mut self) {
        let Some(options) = self.setting.options else { return };
        self.disk.end_process();
        self.world.replace(self.setting.start(options, &self.disk, self.world.now));
        self.model.restart(&found(self.world.server.queue()));
        self.auditor = self.peers;
        self.connect();
        self.make_fickle();
    }

    fn connect(&mut self) {
        let peer = self.world.connect();
        self.model.connect(self.world.slot(peer));
        self.peers += 1;
    }

    fn send(&mut self, peer: usize, commands: &[Command]) {
        let bytes: Vec<u8> = commands.iter().flat_map(Command::bytes).collect();
        self.world.send(peer, &bytes);
        self.model.send(peer, commands);
    }

    /// Performs a step, unless its client has disconnected or never existed, as in a shortened run.
    fn apply(&mut self, act: &Act) {
        match *act {
            Act::Connect => self.connect(),
            Act::Restart => self.restart(),
            Act::Advance(nanoseconds) => self.advance(nanoseconds),
            Act::Drain => {
                self.world.drain();
                self.model.is_draining = true;
            }
            Act::EndDrain => {
                self.world.end_drain();
                self.model.is_draining = false;
            }
            Act::Send(peer, _) | Act::HalfClose(peer) | Act::Close(peer)
                if peer >= self.peers || !self.model.is_open(peer) => {}
            // A command that waits for the end of another might be refused at any time.
            Act::Send(peer, _) if self.setting.fickle.is_some() && self.model.is_waiting(peer) => {}
            Act::Send(peer, ref commands) => {
                let before = self.setting.fickle.map(|_| self.model.clone());
                self.send(peer, commands);
                let is_refused = |replies: &[u8]| replies.ends_with(b"OUT_OF_MEMORY\r\n");
                let is_only_here =
                    is_refused(self.world.received(peer)) && !is_refused(self.model.replies(peer));
                if let Some(before) = before.filter(|_| is_only_here) {
                    self.model = before;
                    self.model.refuse(peer, commands);
                }
            }
            Act::HalfClose(peer) => {
                self.world.half_close(peer);
                self.model.half_close(peer);
            }
            Act::Close(peer) => {
                self.world.close(peer);
                self.model.close(peer);
            }
        }
    }

    /// Performs a step, and compares everything that can be compared after it.
    fn step(&mut self, act: &Act) -> Result<(), String> {
        if matches!(act, Act::Restart) {
            // The restart closes all clients, so first they get everything that is due.
            self.advance(SECOND / 1000);
            self.compare()?;
        }
        self.apply(act);
        self.compare()?;
        let questions = self.model.questions();
        self.is_reliable.store(true, Relaxed);
        self.send(self.auditor, &questions);
        self.is_reliable.store(false, Relaxed);
        self.compare()
    }

    fn compare(&mut self) -> Result<(), String> {
        let queue = self.world.server.queue();
        self.world.server.check();
        let (held, wanted) = (queue.job_bytes(), self.model.held());
        let limit = self.setting.memory_limit.unwrap_or(u64::MAX);
        if held != wanted || held > limit {
            return Err(format!("{held} bytes are held, should be {wanted}, up to {limit}"));
        }
        if let Some(log) = self.world.server.wal() {
            log.check();
        }
        if self.world.most_waiting > OUTPUT_BOUND {
            return Err(format!("{} bytes of replies have waited", self.world.most_waiting));
        }
        for peer in 0..self.peers {
            let (mut got, mut wanted) = (self.world.receive(peer), self.model.receive(peer));
            if self.setting.options.is_some() {
                (got, wanted) = (masked(&got), masked(&wanted));
            }
            let (is_open, should_be) = (self.world.is_open(peer), self.model.is_open(peer));
            if got != wanted || is_open != should_be {
                let same =
                    got.iter().zip(&wanted).take_while(|(got, wanted)| got == wanted).count();
                let from = same.saturating_sub(100);
                let part =
                    |all: &[u8]| all[from..all.len().min(same + 200)].escape_ascii().to_string();
                let (got, wanted) = (part(&got), part(&wanted));
                return Err(format!(
                    "peer {peer} got (open: {is_open})\n{got}\n\
                     and should have got (open: {should_be})\n{wanted}"
                ));
            }
        }
        Ok(())
    }
}

/// Draws and plays one seed. Fails with the steps up to the first difference.
fn play(seed: u64, is_fickle: bool) -> Result<(), (Setting, Vec<Act>)> {
    let mut prng = Prng::new(seed);
    let mut setting = Setting::draw(&mut prng);
    setting.fickle = is_fickle.then_some(seed);
    let mut run = Run::begin(&setting);
    let mut generator = Generator { prng };
    let mut acts = Vec::new();
    for _ in 0..STEPS {
        let act = generator.next(&run);
        acts.push(act.clone());
        if seeds::outcome(|| run.step(&act)).is_err() {
            return Err((setting, acts));
        }
    }
    Ok(())
}

/// Plays these steps; returns how they fail, if they do.
fn failure(setting: &Setting, acts: &[Act]) -> Option<String> {
    seeds::outcome(|| {
        let mut run = Run::begin(setting);
        acts.iter().try_for_each(|act| run.step(act))
    })
    .err()
}

/// Simpler runs: without a client that does nothing, or with one command fewer of one client.
fn simpler(acts: &[Act]) -> Vec<Vec<Act>> {
    let without = |place: usize| [&acts[..place], &acts[place + 1..]].concat();
    let mut stories = Vec::new();
    for (place, act) in acts.iter().enumerate() {
        match act {
            Act::Connect => {
                let comes = |act: &&Act| matches!(act, Act::Connect | Act::Restart);
                let number = 1 + acts[..place].iter().filter(comes).count();
                let mut story = without(place);
                if story.iter_mut().filter_map(Act::peer).all(|peer| *peer != number) {
                    let later = story.iter_mut().filter_map(Act::peer);
                    later.filter(|peer| **peer > number).for_each(|peer| *peer -= 1);
                    stories.push(story);
                }
            }
            Act::Send(peer, commands) if commands.len() > 1 => {
                for nth in 0..commands.len() {
                    let mut fewer = commands.clone();
                    fewer.remove(nth);
                    let mut story = acts.to_vec();
                    story[place] = Act::Send(*peer, fewer);
                    stories.push(story);
                }
            }
            _ => {}
        }
    }
    stories
}

/// A fault that comes once in a million commands would lose a job every hour.
///
/// Proves: Q4, Q5, Q7, Q8, Q9, Q10, Q11, Q13, Q14, Q15, Q16, Q17, Q18, Q26, B1, B21.
#[test]
fn agrees_with_the_model() {
    simulate(RUNS, false);
}

/// If memory is refused in the middle of a command, half of the command would be carried out, or a
/// job on its way to a worker would be lost. A refused command must have had no effect; work that
/// cannot be refused must be done a moment later.
#[test]
fn agrees_with_the_model_where_memory_is_refused() {
    simulate(RUNS / 2, true);
}

fn simulate(runs: u64, is_fickle: bool) {
    let mut count = 0;
    for seed in Seeds::new(runs) {
        if let Err((setting, acts)) = play(seed, is_fickle) {
            let steps = acts.len();
            let is_failing = |acts: &Vec<Act>| failure(&setting, acts).is_some();
            let acts = seeds::quietly(|| {
                shrink(acts, simpler, |stories| stories.iter().position(is_failing))
            });
            let what = failure(&setting, &acts).unwrap_or_else(|| "it does not fail again".into());
            let story = acts.iter().fold(String::new(), |story, act| story + &format!("{act:?}\n"));
            panic!(
                "seed {seed}, {setting:?}: {} of {steps} steps are enough\n{story}{what}\n\n\
                 repeat with: make sim SEED={seed}",
                acts.len()
            );
        }
        count += 1;
    }
    println!("{count} runs of {STEPS} steps agree with the model");
}

/// A year without commands would break the clock's arithmetic, or take long to simulate.
#[test]
fn a_year_of_silence_costs_nothing() {
    let mut world = World::new(Arrival::Whole, 65_535);
    let peer = world.connect();
    world.send(peer, b"put 0 4294967295 1 1\r\nx\r\nput 0 31535999 1 1\r\ny\r\n");
    let before = world.now;
    world.advance(Duration::from_secs(31_536_000));
    world.send(peer, b"reserve-with-timeout 0\r\n");
    let replies = String::from_utf8(world.receive(peer)).expect("replies are text");
    assert!(replies.ends_with("RESERVED 2 1\r\ny\r\n"), "{replies}");
    assert!(before < world.now && world.now < Time::from_nanoseconds(u64::MAX));
}
