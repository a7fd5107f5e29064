//! The simulator's oracle: a work queue simple enough to be obviously correct. All jobs are in one
//! map, every query looks at all of them, and time is a plain number. It shares no code with the
//! daemon.

// These are included by path, because the fuzz targets include this file from elsewhere.
#[path = "model/command.rs"]
mod command;
#[path = "model/documents.rs"]
mod documents;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use self::command::{Command, Part};
use self::documents::list;

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The most bytes of replies that wait for a client, if documents are short: input pauses at 64
/// KiB, and one reply with the largest job may cross that.
pub(crate) const OUTPUT_BOUND: usize = 64 * 1024 + 65_535 + 64;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Delayed { until: u64 },
    Reserved { by: usize, until: u64, turn: u64 },
    Buried { turn: u64 },
}

#[derive(Debug, Clone)]
struct Job {
    tube: String,
    pri: u32,
    delay: u32,
    ttr: u32,
    body: Vec<u8>,
    state: State,
    /// The time since which it has been ready or reserved.
    since: u64,
    created: u64,
    reserves: u32,
    timeouts: u32,
    releases: u32,
    buries: u32,
    kicks: u32,
}

#[derive(Debug, Clone)]
struct Tube {
    name: String,
    pause: Option<(u32, u64)>,
    total: u64,
    deletes: u64,
    pauses: u64,
    has_had_a_job: bool,
    /// How long each job was ready before it was reserved, and reserved before it was deleted.
    waits: Vec<u64>,
    runs: Vec<u64>,
    buried_for_losses: u64,
}

/// The parameters of a job whose body has not arrived yet.
#[derive(Debug, Clone, Copy)]
struct Put {
    id: u64,
    pri: u32,
    delay: u32,
    ttr: u32,
    created: u64,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    until: Option<u64>,
    /// The number of the wait: the first to wait is served first.
    turn: u64,
    /// Input ends it.
    aborts: bool,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "plain facts, the plainer the better")]
struct Peer {
    /// The server's own index, which decides the order of events at the same time.
    slot: usize,
    uses: String,
    watches: Vec<String>,
    wait: Option<Wait>,
    /// A `put` whose body has not arrived yet.
    put: Option<Put>,
    /// How many bytes are counted for the part of that body that has arrived.
    upload: u64,
    queue: VecDeque<Command>,
    /// Part of a command has arrived, after the queue.
    has_part: bool,
    replies: Vec<u8>,
    has_ended: bool,
    is_open: bool,
    is_producer: bool,
    is_worker: bool,
}

impl Peer {
    fn new(slot: usize) -> Self {
        Self {
            slot,
            uses: "default".into(),
            watches: vec!["default".into()],
            wait: None,
            put: None,
            upload: 0,
            queue: VecDeque::new(),
            has_part: false,
            replies: Vec::new(),
            has_ended: false,
            is_open: true,
            is_producer: false,
            is_worker: false,
        }
    }
}

/// The state that a daemon found at startup, where the model allows several outcomes.
#[derive(Debug)]
pub(crate) struct Found {
    /// In the order of `list-tubes`.
    pub(crate) tubes: Vec<String>,
    /// How often each job was reserved, and ran out of time.
    pub(crate) jobs: BTreeMap<u64, (u32, u32)>,
    /// The id of the next job.
    pub(crate) next_id: u64,
}

/// An event that is due at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Delay { at: u64, id: u64 },
    Pause { at: u64, tube: usize },
    Client { at: u64, slot: usize, peer: usize },
}

impl Due {
    fn at(self) -> u64 {
        match self {
            Self::Delay { at, .. } | Self::Pause { at, .. } | Self::Client { at, .. } => at,
        }
    }
}

/// The expected state of the whole queue.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    now: u64,
    latest: u64,
    started: u64,
    /// A counter for everything that needs an order of its own.
    turn: u64,
    next_id: u64,
    /// The last id that a job has had.
    last_id: u64,
    jobs: BTreeMap<u64, Job>,
    /// Each job in the binlog, in its state after the last recorded change.
    log: BTreeMap<u64, Job>,
    tubes: Vec<Tube>,
    peers: Vec<Peer>,
    /// How many of the peers connected to an earlier run of the daemon.
    peers_before: usize,
    counters: BTreeMap<&'static str, u64>,
    timeouts: u64,
    total_jobs: u64,
    job_size_limit: u32,
    /// The limit on the memory of all bodies.
    memory_limit: Option<u64>,
    /// How many losses bury a job.
    bury_after: Option<u64>,
    buried_for_losses: u64,
    /// There is no memory: the next command is refused, if it may be.
    is_refusing: bool,
    pub(crate) is_draining: bool,
    /// Whether the model knows each time to the nanosecond. Work that is deferred for lack of
    /// memory comes later.
    pub(crate) has_exact_times: bool,
}

/// More ids than a segment of these simulations has jobs.
const IDS_SKIPPED_MAX: u64 = 100_000;

/// Bytes counted for a job besides its body and its CR LF, according to the manual.
const JOB_OVERHEAD_BYTES: u64 = 128;

impl Model {
    pub(crate) fn new(
        now: u64,
        job_size_limit: u32,
        memory_limit: Option<u64>,
        bury_after: Option<u32>,
    ) -> Self {
        let mut model = Self {
            now,
            latest: now,
            started: now,
            turn: 0,
            next_id: 1,
            last_id: 0,
            jobs: BTreeMap::new(),
            log: BTreeMap::new(),
            tubes: Vec::new(),
            peers: Vec::new(),
            peers_before: 0,
            counters: BTreeMap::new(),
            timeouts: 0,
            total_jobs: 0,
            job_size_limit,
            memory_limit,
            bury_after: bury_after.map(Into::into),
            buried_for_losses: 0,
            is_refusing: false,
            is_draining: false,
            has_exact_times: true,
        };
        model.touch_tube("default");
        model
    }

    pub(crate) fn connect(&mut self, slot: usize) {
        self.peers.push(Peer::new(slot));
    }

    /// Whether part of a command arrives with the commands of the next send.
    pub(crate) fn set_part(&mut self, peer: usize, has_part: bool) {
        self.peers[peer].has_part = has_part;
    }

    pub(crate) fn send(&mut self, peer: usize, commands: &[Command]) {
        self.peers[peer].queue.extend(commands.iter().cloned());
        self.settle();
    }

    /// Handles a command for which there is no memory.
    pub(crate) fn refuse(&mut self, peer: usize, commands: &[Command]) {
        self.is_refusing = true;
        self.send(peer, commands);
        self.is_refusing = false;
    }

    /// Whether the peer's next command has to wait for a reply to the one before.
    pub(crate) fn is_waiting(&self, peer: usize) -> bool {
        self.peers[peer].wait.is_some_and(|wait| !wait.aborts)
    }

    /// The replies that the peer has not read yet.
    pub(crate) fn replies(&self, peer: usize) -> &[u8] {
        &self.peers[peer].replies
    }

    pub(crate) fn half_close(&mut self, peer: usize) {
        self.peers[peer].has_ended = true;
        if self.peers[peer].is_open && self.peers[peer].wait.take().is_some() {
            self.reply(peer, "TIMED_OUT");
        }
        self.settle();
    }

    pub(crate) fn close(&mut self, peer: usize) {
        self.leave(peer);
        self.settle();
    }

    pub(crate) fn receive(&mut self, peer: usize) -> Vec<u8> {
        std::mem::take(&mut self.peers[peer].replies)
    }

    pub(crate) fn is_open(&self, peer: usize) -> bool {
        self.peers[peer].is_open
    }

    /// All ids that exist, for a generator.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.jobs.keys().copied().collect()
    }

    /// The daemon is killed and started again with its binlog: no client is connected, the counters
    /// are zero, and every job has the state in the binlog. Tubes come in the order in which they
    /// are found. The binlog may have lower counts of a job's reserves and timeouts.
    pub(crate) fn restart(&mut self, found: &Found) {
        for peer in &mut self.peers {
            *peer = Peer { is_open: false, ..Peer::new(peer.slot) };
            peer.uses.clear();
            peer.watches.clear();
        }
        for (id, mut job) in self.log.clone() {
            let is_over = match job.state {
                State::Delayed { until } => until <= self.now,
                State::Reserved { .. } => true,
                State::Ready | State::Buried { .. } => false,
            };
            if is_over {
                job.state = State::Ready;
            }
            // It has been waiting since the daemon started.
            job.since = 0;
            let &(reserves, timeouts) = found.jobs.get(&id).expect("the job was acknowledged");
            let before = &self.jobs[&id];
            let ended = before.reserves - u32::from(matches!(before.state, State::Reserved { .. }));
            assert!((job.reserves..=ended).contains(&reserves), "reserves of {id}");
            assert!((job.timeouts..=before.timeouts).contains(&timeouts), "timeouts of {id}");
            (job.reserves, job.timeouts) = (reserves, timeouts);
            self.jobs.insert(id, job);
        }
        assert_eq!(found.jobs.len(), self.jobs.len(), "jobs that nobody put");
        self.log = self.jobs.clone();
        let mut names: Vec<&str> = self.jobs.values().map(|job| &*job.tube).collect();
        names.push("default");
        names.sort_unstable();
        names.dedup();
        let mut tubes = found.tubes.clone();
        tubes.sort_unstable();
        assert_eq!(names, tubes);
        self.tubes.clear();
        for name in &found.tubes {
            self.touch_tube(name);
        }
        for tube in &mut self.tubes {
            tube.has_had_a_job = self.jobs.values().any(|job| job.tube == tube.name);
        }
        // After a crash, ids that clients may have seen are skipped: as many as a segment can have
        // jobs.
        let ids = self.last_id + 1..=self.next_id + IDS_SKIPPED_MAX;
        assert!(ids.contains(&found.next_id), "{}", found.next_id);
        self.next_id = found.next_id;
        self.peers_before = self.peers.len();
        self.counters.clear();
        (self.timeouts, self.total_jobs, self.is_draining) = (0, 0, false);
        self.buried_for_losses = 0;
        (self.started, self.latest) = (self.now, self.now);
    }

    /// How many bytes all jobs hold.
    pub(crate) fn held(&self) -> u64 {
        self.jobs.values().map(|job| job.body.len() as u64 + 2 + JOB_OVERHEAD_BYTES).sum()
    }

    /// All counters.
    pub(crate) fn questions(&self) -> Vec<Command> {
        let tubes = self.tubes.iter().map(|tube| Command::StatsTube(tube.name.clone()));
        let times = self.tubes.iter().filter(|_| self.has_exact_times);
        let times = times.map(|tube| Command::Metrics(Some(tube.name.clone())));
        let jobs = self.jobs.keys().map(|&id| Command::StatsJob(id));
        let all = [Command::Stats, Command::ListTubes].into_iter();
        all.chain(tubes).chain(times).chain(jobs).collect()
    }

    pub(crate) fn advance(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        while let Some(at) = self.dues().map(Due::at).min().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            let now = self.instant();
            while let Some(due) = self.dues().filter(|due| due.at() <= now).min() {
                self.happen(due, now);
            }
            self.settle();
        }
        self.now = end;
    }

    fn instant(&mut self) -> u64 {
        self.latest = self.now.max(self.latest + 1);
        self.latest
    }

    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// Everything that will be due. The order of the variants is the order of a tick.
    fn dues(&self) -> impl Iterator<Item = Due> + '_ {
        let delays = self.jobs.iter().filter_map(|(&id, job)| match job.state {
            State::Delayed { until } => Some(Due::Delay { at: until, id }),
            _ => None,
        });
        let pauses = self
            .tubes
            .iter()
            .enumerate()
            .filter_map(|(tube, it)| it.pause.map(|(_, until)| Due::Pause { at: until, tube }));
        let clients =
            self.peers.iter().enumerate().filter(|(_, it)| it.is_open).filter_map(|(peer, it)| {
                let held = self.soonest_deadline(peer);
                let at = match it.wait {
                    Some(wait) => held.map(|at| at - SECOND).into_iter().chain(wait.until).min(),
                    None => held,
                };
                at.map(|at| Due::Client { at, slot: it.slot, peer })
            });
        delays.chain(pauses).chain(clients)
    }

    fn soonest_deadline(&self, peer: usize) -> Option<u64> {
        let held = self.jobs.values().filter_map(|job| match job.state {
            State::Reserved { by, until, .. } if by == peer => Some(until),
            _ => None,
        });
        held.min()
    }

    fn happen(&mut self, due: Due, now: u64) {
        match due {
            Due::Delay { at, id } => self.make_ready(id, at, now),
            Due::Pause { tube, .. } => {
                self.tubes[tube].pause = None;
                self.serve(now);
            }
            Due::Client { peer, .. } => {
                if self.peers[peer].wait.take().is_some() {
                    let is_soon = self.is_deadline_soon(peer, now);
                    self.reply(peer, if is_soon { "DEADLINE_SOON" } else { "TIMED_OUT" });
                    return;
                }
                let expired = self.jobs.iter().filter_map(|(&id, job)| match job.state {
                    State::Reserved { by, until, .. } if by == peer => Some((until, id)),
                    _ => None,
                });
                let (until, id) = expired.min().expect("the peer holds a job that is due");
                self.timeouts += 1;
                self.job(id).timeouts += 1;
                self.lose(id, until, now);
            }
        }
    }

    fn is_deadline_soon(&self, peer: usize, now: u64) -> bool {
        self.soonest_deadline(peer).is_some_and(|at| at - SECOND <= now)
    }

    fn job(&mut self, id: u64) -> &mut Job {
        self.jobs.get_mut(&id).expect("the model names only jobs it has")
    }

    fn reply(&mut self, peer: usize, line: &str) {
        self.peers[peer].replies.extend_from_slice(line.as_bytes());
        self.peers[peer].replies.extend_from_slice(b"\r\n");
    }

    fn reply_with(&mut self, peer: usize, word: &str, id: u64) {
        let body = self.jobs[&id].body.clone();
        self.reply(peer, &format!("{word} {id} {}", body.len()));
        self.peers[peer].replies.extend_from_slice(&body);
        self.peers[peer].replies.extend_from_slice(b"\r\n");
    }

    fn document(&mut self, peer: usize, text: &str) {
        self.reply(peer, &format!("OK {}", text.len()));
        self.reply(peer, text);
    }
}

/// Turns: each peer that may act does.
impl Model {
    /// Lets each peer in turn proceed as far as it can, until none can proceed.
    fn settle(&mut self) {
        let mut is_busy = true;
        while is_busy {
            is_busy = false;
            for peer in 0..self.peers.len() {
                is_busy |= self.step(peer);
            }
        }
    }

    fn step(&mut self, peer: usize) -> bool {
        let mut is_busy = false;
        while self.peers[peer].is_open {
            let Peer { wait, ref queue, has_part, .. } = self.peers[peer];
            let is_aborted = |wait: Wait| wait.aborts && (has_part || !queue.is_empty());
            if wait.is_some_and(is_aborted) {
                is_busy = true;
                self.peers[peer].wait = None;
                self.reply(peer, "ABORTED");
            } else if wait.is_some() {
                break;
            }
            let Some(command) = self.peers[peer].queue.pop_front() else { break };
            is_busy = true;
            self.obey(peer, command);
        }
        let Peer { is_open, has_ended, wait, .. } = self.peers[peer];
        if is_open && has_ended && wait.is_none() {
            self.leave(peer);
            return true;
        }
        is_busy
    }

    fn leave(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.peers[peer].is_open, false) {
            return;
        }
        self.peers[peer].wait = None;
        self.peers[peer].upload = 0;
        // Watches end in the original's order: the first, then from the last on backwards.
        let mut watches = std::mem::take(&mut self.peers[peer].watches);
        while !watches.is_empty() {
            watches.swap_remove(0);
            self.peers[peer].watches.clone_from(&watches);
            self.drop_idle_tubes();
        }
        self.peers[peer].uses.clear();
        self.drop_idle_tubes();
        let now = self.instant();
        let mut held: Vec<_> = self
            .jobs
            .iter()
            .filter_map(|(&id, job)| match job.state {
                State::Reserved { by, turn, .. } if by == peer => Some((turn, id)),
                _ => None,
            })
            .collect();
        held.sort_unstable();
        for (_, id) in held {
            self.lose(id, now, now);
        }
    }
}

/// Tubes.
impl Model {
    fn touch_tube(&mut self, name: &str) {
        if self.find_tube(name).is_none() {
            let name = name.to_owned();
            self.tubes.push(Tube {
                name,
                pause: None,
                total: 0,
                deletes: 0,
                pauses: 0,
                has_had_a_job: false,
                waits: Vec::new(),
                runs: Vec::new(),
                buried_for_losses: 0,
            });
        }
    }

    fn find_tube(&self, name: &str) -> Option<usize> {
        self.tubes.iter().position(|tube| tube.name == name)
    }

    fn drop_idle_tubes(&mut self) {
        let mut place = 0;
        while place < self.tubes.len() {
            let name = &self.tubes[place].name;
            let is_needed = name == "default"
                || self.jobs.values().any(|job| &job.tube == name)
                || self.peers.iter().any(|peer| &peer.uses == name || peer.watches.contains(name));
            if is_needed {
                place += 1;
            } else {
                self.tubes.swap_remove(place);
            }
        }
    }

    fn is_paused(&self, name: &str) -> bool {
        self.find_tube(name).is_some_and(|tube| self.tubes[tube].pause.is_some())
    }
}

/// Jobs from state to state.
impl Model {
    /// Makes the job ready, as of `since`. It may be reserved now.
    fn make_ready(&mut self, id: u64, since: u64, now: u64) {
        self.job(id).state = State::Ready;
        self.job(id).since = since;
        self.serve(now);
    }

    /// A client has lost the job. It is ready as of `since`, or buried if it was lost too often.
    fn lose(&mut self, id: u64, since: u64, now: u64) {
        let job = &self.jobs[&id];
        let [reserves, ended, kicks] =
            [job.reserves, job.releases + job.buries, job.kicks].map(u64::from);
        let is_too_often = |n| reserves >= ended + n + kicks * (n - 1);
        if !self.bury_after.is_some_and(is_too_often) {
            self.job(id).state = State::Ready;
            if self.bury_after.is_some() {
                self.write_down(id);
            }
            return self.make_ready(id, since, now);
        }
        let (pri, tube) = (job.pri, self.find_tube(&job.tube).expect("a job has a tube"));
        self.tubes[tube].buried_for_losses += 1;
        self.buried_for_losses += 1;
        self.latest = now.max(self.latest + 1);
        self.bury(id, pri);
    }

    fn bury(&mut self, id: u64, pri: u32) {
        let turn = self.next_turn();
        let job = self.job(id);
        job.pri = pri;
        job.buries += 1;
        job.state = State::Buried { turn };
        self.write_down(id);
    }

    /// Gives ready jobs to waiting clients until no pair is left: the best job that a client waits
    /// for, to the client that has waited longest for its tube.
    fn serve(&mut self, now: u64) {
        loop {
            let best = self
                .jobs
                .iter()
                .filter(|(_, job)| job.state == State::Ready && !self.is_paused(&job.tube))
                .filter_map(|(&id, job)| {
                    let waiting = self.peers.iter().enumerate().filter_map(|(peer, it)| {
                        let wait = it.wait.filter(|_| it.watches.contains(&job.tube))?;
                        Some((wait.turn, peer))
                    });
                    waiting.min().map(|(_, peer)| (job.pri, id, peer))
                })
                .min();
            let Some((_, id, peer)) = best else { return };
            self.peers[peer].wait = None;
            self.latest = now.max(self.latest + 1);
            self.hand(id, peer, self.latest);
        }
    }

    fn hand(&mut self, id: u64, peer: usize, now: u64) {
        let turn = self.next_turn();
        let started = self.started;
        let job = self.job(id);
        let wait = (job.state == State::Ready).then(|| now - job.since.max(started));
        job.since = now;
        job.reserves += 1;
        job.state = State::Reserved { by: peer, until: now + u64::from(job.ttr) * SECOND, turn };
        let tube = self.find_tube(&self.jobs[&id].tube).expect("a job has a tube");
        self.tubes[tube].waits.extend(wait);
        self.reply_with(peer, "RESERVED", id);
    }

    fn enqueue(&mut self, id: u64, delay: u32, now: u64) {
        self.job(id).state = match delay {
            0 => State::Ready,
            _ => State::Delayed { until: now + u64::from(delay) * SECOND },
        };
        self.job(id).since = now;
        self.write_down(id);
        self.serve(now);
    }

    fn kick(&mut self, id: u64, now: u64) {
        let job = self.job(id);
        job.kicks += 1;
        job.since = now;
        job.state = State::Ready;
        self.write_down(id);
        self.serve(now);
    }

    /// Writes the job's current state to the binlog.
    fn write_down(&mut self, id: u64) {
        let mut job = self.jobs[&id].clone();
        job.reserves -= u32::from(matches!(job.state, State::Reserved { .. }));
        self.log.insert(id, job);
    }

    fn best_ready(&self, tubes: &[String]) -> Option<u64> {
        let ready = self.jobs.iter().filter(|(_, job)| {
            job.state == State::Ready && tubes.contains(&job.tube) && !self.is_paused(&job.tube)
        });
        ready.map(|(&id, job)| (job.pri, id)).min().map(|(_, id)| id)
    }

    fn first_ready(&self, tube: &str) -> Option<u64> {
        let ready = self.jobs.iter().filter(|(_, job)| job.tube == tube);
        let ready = ready.filter(|(_, job)| job.state == State::Ready);
        ready.map(|(&id, job)| (job.pri, id)).min().map(|(_, id)| id)
    }

    fn delayed(&self, tube: &str) -> Vec<u64> {
        let mut found: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.tube == tube)
            .filter_map(|(&id, job)| match job.state {
                State::Delayed { until } => Some((until, id)),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn buried(&self, tube: &str) -> Vec<u64> {
        let mut found: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.tube == tube)
            .filter_map(|(&id, job)| match job.state {
                State::Buried { turn } => Some((turn, id)),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn held_by(&self, peer: usize, id: u64) -> bool {
        self.jobs.get(&id).is_some_and(|job| match job.state {
            State::Reserved { by, .. } => by == peer,
            _ => false,
        })
    }

    /// The jobs of a tube in a state, in the order of service.
    fn in_state(&self, tube: &str, state: &str) -> Vec<u64> {
        let of_tube = self.jobs.iter().filter(|(_, job)| job.tube == tube);
        let mut found: Vec<_> = of_tube
            .filter_map(|(&id, job)| match job.state {
                State::Ready => (state == "ready").then_some((job.pri.into(), id)),
                State::Delayed { until } => (state == "delayed").then_some((until, id)),
                State::Buried { turn } => (state == "buried").then_some((turn, id)),
                State::Reserved { until, .. } => (state == "reserved").then_some((until, id)),
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn is_reserved(&self, id: u64) -> bool {
        self.jobs.get(&id).is_some_and(|job| matches!(job.state, State::Reserved { .. }))
    }
}

/// Commands.
impl Model {
    #[expect(clippy::too_many_lines, reason = "one arm per command, to be read from top to bottom")]
    fn obey(&mut self, peer: usize, command: Command) {
        // The end of a skipped body is not a command and takes no time; neither does HTTP.
        match command {
            Command::Part(Part::Skipped(reply)) => return self.reply(peer, reply),
            Command::Part(Part::Body(_)) if self.peers[peer].put.is_none() => {
                return self.reply(peer, "OUT_OF_MEMORY");
            }
            Command::Part(Part::Http) => return self.leave(peer),
            Command::Part(Part::Arrived(bytes)) => return self.arrived(peer, bytes),
            _ => {}
        }
        let now = self.instant();
        if let Some(counter) = command.counter() {
            *self.counters.entry(counter).or_default() += 1;
        }
        let uses = self.peers[peer].uses.clone();
        if self.is_refusing {
            return self.refuse_for_memory(peer, now, &command);
        }
        match command {
            Command::Put { pri, delay, ttr, mut body } => {
                if !self.header(peer, now, pri, delay, ttr, body.len() as u64) {
                    return self.reply(peer, "OUT_OF_MEMORY");
                }
                body.extend_from_slice(b"\r\n");
                let now = self.instant();
                self.body(peer, now, body);
            }
            Command::Part(Part::Header { pri, delay, ttr, size }) => {
                self.header(peer, now, pri, delay, ttr, size);
            }
            Command::Part(Part::Body(body)) => self.body(peer, now, body),
            Command::Part(Part::BadLine { reply, .. }) => {
                if let Some(reply) = reply {
                    self.reply(peer, reply);
                }
            }
            Command::Part(Part::Skipped(_) | Part::Http | Part::Arrived(_)) => {}
            Command::Use(name) => {
                self.touch_tube(&name);
                self.peers[peer].uses.clone_from(&name);
                self.drop_idle_tubes();
                self.reply(peer, &format!("USING {name}"));
            }
            Command::Reserve(timeout) => self.reserve(peer, timeout, false, now),
            Command::ReserveWithAbort => self.reserve(peer, None, true, now),
            Command::ReserveJob(id) => {
                if !self.jobs.contains_key(&id) || self.is_reserved(id) {
                    return self.reply(peer, "NOT_FOUND");
                }
                self.peers[peer].is_worker = true;
                let is_ready = self.jobs[&id].state == State::Ready;
                self.hand(id, peer, now);
                if !is_ready {
                    self.write_down(id);
                }
            }
            Command::Delete(id) => {
                if !self.jobs.contains_key(&id) || self.is_reserved(id) && !self.held_by(peer, id) {
                    return self.reply(peer, "NOT_FOUND");
                }
                let job = self.jobs.remove(&id).expect("it was just found");
                self.log.remove(&id);
                let tube = self.find_tube(&job.tube).expect("a job has a tube");
                self.tubes[tube].deletes += 1;
                let is_held = matches!(job.state, State::Reserved { .. });
                self.tubes[tube].runs.extend(is_held.then(|| now - job.since));
                self.drop_idle_tubes();
                self.reply(peer, "DELETED");
            }
            Command::Release { id, pri, delay } => {
                if !self.held_by(peer, id) {
                    return self.reply(peer, "NOT_FOUND");
                }
                let job = self.job(id);
                job.pri = pri;
                job.delay = delay;
                job.releases += 1;
                self.reply(peer, "RELEASED");
                self.enqueue(id, delay, now);
            }
            Command::Bury { id, pri } => {
                if !self.held_by(peer, id) {
                    return self.reply(peer, "NOT_FOUND");
                }
                self.bury(id, pri);
                self.reply(peer, "BURIED");
            }
            Command::Touch(id) => {
                if !self.held_by(peer, id) {
                    return self.reply(peer, "NOT_FOUND");
                }
                let job = self.job(id);
                let whole = u64::from(job.ttr) * SECOND;
                if let State::Reserved { until, .. } = &mut job.state {
                    *until = now + whole;
                }
                self.reply(peer, "TOUCHED");
            }
            Command::Watch(name) => {
                self.touch_tube(&name);
                let watches = &mut self.peers[peer].watches;
                if !watches.contains(&name) {
                    watches.push(name);
                }
                let count = watches.len();
                self.reply(peer, &format!("WATCHING {count}"));
            }
            Command::Ignore(name) => {
                let watches = &mut self.peers[peer].watches;
                if let Some(place) = watches.iter().position(|watched| *watched == name) {
                    if watches.len() == 1 {
                        return self.reply(peer, "NOT_IGNORED");
                    }
                    watches.swap_remove(place);
                }
                let count = watches.len();
                self.drop_idle_tubes();
                self.reply(peer, &format!("WATCHING {count}"));
            }
            Command::Peek(id) => self.found(peer, Some(id).filter(|id| self.jobs.contains_key(id))),
            Command::PeekReady => self.found(peer, self.first_ready(&uses)),
            Command::PeekDelayed => self.found(peer, self.delayed(&uses).first().copied()),
            Command::PeekBuried => self.found(peer, self.buried(&uses).first().copied()),
            Command::Kick(bound) => {
                let mut chosen = self.buried(&uses);
                if chosen.is_empty() {
                    chosen = self.delayed(&uses);
                }
                chosen.truncate(bound as usize);
                for &id in &chosen {
                    self.kick(id, now);
                }
                self.reply(peer, &format!("KICKED {}", chosen.len()));
            }
            Command::KickJob(id) => {
                let is_kickable = self.jobs.get(&id).is_some_and(|job| {
                    matches!(job.state, State::Buried { .. } | State::Delayed { .. })
                });
                if !is_kickable {
                    return self.reply(peer, "NOT_FOUND");
                }
                self.reply(peer, "KICKED");
                self.kick(id, now);
            }
            Command::Stats => {
                let text = self.stats(now);
                self.document(peer, &text);
            }
            Command::Capabilities => {
                let state = if self.is_draining { "draining" } else { "serving" };
                let bury_after = self.bury_after.map(|losses| format!("bury-after: {losses}\n"));
                let text = format!(
                    "---\nversion: \"{}\"\nstate: {state}\nmax-job-size: {}\n\
                     max-line-size: 224\nmax-tube-name-size: 200\n{}extensions:\n- capabilities\n\
                     - list-jobs\n- delete-tube\n- drain\n- metrics\n- reserve-with-abort\n",
                    env!("CARGO_PKG_VERSION"),
                    self.job_size_limit,
                    bury_after.unwrap_or_default(),
                );
                self.document(peer, &text);
            }
            Command::ListJobs { name, state, limit } => {
                if self.find_tube(&name).is_none() {
                    return self.reply(peer, "NOT_FOUND");
                }
                let mut text = String::from("---\n");
                let limit = limit.unwrap_or(100) as usize;
                for id in self.in_state(&name, state).into_iter().take(limit) {
                    text += &self.listed(id, now);
                }
                self.document(peer, &text);
            }
            Command::DeleteTube { name, state, last_id } => {
                let Some(tube) = self.find_tube(&name) else {
                    return self.reply(peer, "NOT_FOUND");
                };
                let states = state.map_or(vec!["ready", "delayed", "buried"], |state| vec![state]);
                let chosen = states.into_iter().flat_map(|state| self.in_state(&name, state));
                let chosen: Vec<u64> =
                    chosen.filter(|&id| last_id.is_none_or(|last_id| id <= last_id)).collect();
                for id in &chosen {
                    self.jobs.remove(id);
                    self.log.remove(id);
                }
                let deleted = chosen.len() as u64;
                self.tubes[tube].deletes += deleted;
                self.drop_idle_tubes();
                self.reply(peer, &format!("DELETED {deleted}"));
            }
            Command::Drain(what) => {
                self.is_draining = what == "on" || what == "status" && self.is_draining;
                self.reply(peer, if self.is_draining { "DRAINING" } else { "NOT_DRAINING" });
            }
            Command::Metrics(None) => {
                let text = self.metrics();
                self.document(peer, &text);
            }
            Command::Metrics(Some(name)) => match self.metrics_of_tube(&name, now) {
                Some(text) => self.document(peer, &text),
                None => self.reply(peer, "NOT_FOUND"),
            },
            Command::StatsJob(id) => match self.stats_job(id, now) {
                Some(text) => self.document(peer, &text),
                None => self.reply(peer, "NOT_FOUND"),
            },
            Command::StatsTube(name) => match self.stats_tube(&name, now) {
                Some(text) => self.document(peer, &text),
                None => self.reply(peer, "NOT_FOUND"),
            },
            Command::ListTubes => {
                let names: Vec<_> = self.tubes.iter().map(|tube| tube.name.clone()).collect();
                self.document(peer, &list(&names));
            }
            Command::ListTubeUsed => self.reply(peer, &format!("USING {uses}")),
            Command::ListTubesWatched => {
                let text = list(&self.peers[peer].watches);
                self.document(peer, &text);
            }
            Command::PauseTube { name, delay } => {
                let Some(tube) = self.find_tube(&name) else {
                    return self.reply(peer, "NOT_FOUND");
                };
                self.tubes[tube].pauses += 1;
                self.tubes[tube].pause =
                    (delay > 0).then(|| (delay, now + u64::from(delay) * SECOND));
                self.reply(peer, "PAUSED");
                self.serve(now);
            }
            Command::Quit => self.leave(peer),
        }
    }

    /// Whether the limit on memory admits another job of this size.
    fn has_memory(&self, size: u64) -> bool {
        self.admits(size + 2)
    }

    /// Whether the limit on memory admits this many bytes of another body.
    fn admits(&self, bytes: u64) -> bool {
        let uploads: u64 = self.peers.iter().map(|peer| peer.upload).sum();
        self.memory_limit
            .is_none_or(|limit| self.held() + uploads + bytes + JOB_OVERHEAD_BYTES <= limit)
    }

    /// Counts a part of a body. If the limit does not admit it, it is dropped, and the rest of the
    /// body is skipped.
    fn arrived(&mut self, peer: usize, bytes: u64) {
        self.peers[peer].upload = 0;
        if self.peers[peer].put.is_none() {
            return;
        }
        if self.admits(bytes) {
            self.peers[peer].upload = bytes + JOB_OVERHEAD_BYTES;
        } else {
            self.peers[peer].put = None;
        }
    }

    /// Applies a command for which there is no memory, and returns the reply.
    fn refuse_for_memory(&mut self, peer: usize, now: u64, command: &Command) {
        match *command {
            Command::Put { pri, delay, ttr, ref body } => {
                assert!(self.header(peer, now, pri, delay, ttr, body.len() as u64));
                self.peers[peer].put = None;
            }
            Command::Reserve(_) | Command::ReserveWithAbort => {
                self.peers[peer].is_worker = true;
            }
            Command::ReserveJob(id) => {
                assert!(self.jobs.contains_key(&id) && !self.is_reserved(id));
                self.peers[peer].is_worker = true;
            }
            Command::Release { id, delay, .. } => assert!(self.held_by(peer, id) && delay > 0),
            Command::Use(ref name) => assert_eq!(self.find_tube(name), None),
            Command::Watch(ref name) => assert!(!self.peers[peer].watches.contains(name)),
            Command::Kick(_) | Command::ListTubes | Command::ListTubesWatched => {}
            Command::ListJobs { ref name, .. } | Command::DeleteTube { ref name, .. } => {
                assert!(self.find_tube(name).is_some());
            }
            _ => panic!("{command:?} needs no memory"),
        }
        self.reply(peer, "OUT_OF_MEMORY");
    }

    /// Whether the body is accepted; if not, it is skipped, and takes no id.
    fn header(
        &mut self,
        peer: usize,
        created: u64,
        pri: u32,
        delay: u32,
        ttr: u32,
        size: u64,
    ) -> bool {
        self.peers[peer].is_producer = true;
        if !self.has_memory(size) {
            return false;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.peers[peer].put = Some(Put { id, pri, delay, ttr, created });
        true
    }

    fn body(&mut self, peer: usize, now: u64, mut body: Vec<u8>) {
        let put = self.peers[peer].put.take().expect("a line comes before its body");
        let Put { id, pri, delay, ttr, created } = put;
        self.peers[peer].upload = 0;
        // Others may have used the memory that there was when the line was read.
        if !self.has_memory(body.len() as u64 - 2) {
            return self.reply(peer, "OUT_OF_MEMORY");
        }
        if !body.ends_with(b"\r\n") {
            return self.reply(peer, "EXPECTED_CRLF");
        }
        body.truncate(body.len() - 2);
        if self.is_draining {
            return self.reply(peer, "DRAINING");
        }
        let tube = self.peers[peer].uses.clone();
        let place = self.find_tube(&tube).expect("a used tube exists");
        self.tubes[place].total += 1;
        self.tubes[place].has_had_a_job = true;
        self.total_jobs += 1;
        let job = Job {
            tube,
            pri,
            delay,
            ttr: ttr.max(1),
            body,
            state: State::Ready,
            since: now,
            created,
            reserves: 0,
            timeouts: 0,
            releases: 0,
            buries: 0,
            kicks: 0,
        };
        self.jobs.insert(id, job);
        self.last_id = self.last_id.max(id);
        self.reply(peer, &format!("INSERTED {id}"));
        self.enqueue(id, delay, now);
    }

    fn reserve(&mut self, peer: usize, timeout: Option<u32>, aborts: bool, now: u64) {
        self.peers[peer].is_worker = true;
        if let Some(id) = self.best_ready(&self.peers[peer].watches) {
            return self.hand(id, peer, now);
        }
        if self.is_deadline_soon(peer, now) {
            return self.reply(peer, "DEADLINE_SOON");
        }
        if timeout == Some(0) || self.peers[peer].has_ended {
            return self.reply(peer, "TIMED_OUT");
        }
        let until = timeout.map(|seconds| now + u64::from(seconds) * SECOND);
        self.peers[peer].wait = Some(Wait { until, turn: self.next_turn(), aborts });
    }

    fn found(&mut self, peer: usize, id: Option<u64>) {
        match id {
            Some(id) => self.reply_with(peer, "FOUND", id),
            None => self.reply(peer, "NOT_FOUND"),
        }
    }
}
