//! The simulator's oracle: a work queue simple enough to be obviously correct. All jobs are in one
//! map, every query looks at all of them, and time is a plain number. The model shares no code with
//! the daemon.

// These modules have paths, because the fuzz targets include this file from elsewhere.
#[path = "model/command.rs"]
mod command;
#[path = "model/documents.rs"]
mod documents;
#[path = "model/obey.rs"]
mod obey;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use self::command::{Command, Part};

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The most bytes of replies that wait for a client, if documents are short: at 64 KiB the server
/// stops reading, and the last reply may have the largest job.
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
    /// The time since which the job has been ready or reserved.
    since: u64,
    created: u64,
    reserves: u32,
    timeouts: u32,
    releases: u32,
    buries: u32,
    kicks: u32,
}

#[derive(Debug, Clone, Default)]
struct Tube {
    name: String,
    pause: Option<(u32, u64)>,
    total: u64,
    deletes: u64,
    pauses: u64,
    has_had_a_job: bool,
    /// How long each job was ready before a reserve, and how long reserved before its delete.
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
    /// The number of the wait; the lowest number is served first.
    turn: u64,
    /// Whether further input ends the wait.
    aborts: bool,
}

#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "plain facts, the plainer the better")]
struct Peer {
    /// The server's index of the connection, which decides the order of simultaneous events.
    slot: usize,
    uses: String,
    watches: Vec<String>,
    wait: Option<Wait>,
    /// A `put` whose body has not arrived yet.
    put: Option<Put>,
    /// The bytes counted for the part of that `put`'s body that has arrived.
    upload: u64,
    queue: VecDeque<Command>,
    /// Whether part of a command has arrived after the commands in `queue`.
    has_part: bool,
    replies: Vec<u8>,
    has_ended: bool,
    is_open: bool,
    is_producer: bool,
    is_worker: bool,
}

impl Peer {
    fn new(slot: usize) -> Self {
        let tube = String::from("default");
        Self { slot, uses: tube.clone(), watches: vec![tube], is_open: true, ..Self::default() }
    }
}

/// The state that a daemon found at startup, where the model allows several outcomes.
#[derive(Debug)]
pub(crate) struct Found {
    /// The tubes in the order of `list-tubes`.
    pub(crate) tubes: Vec<String>,
    /// How often each job was reserved, and how often its time to run ended.
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
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    now: u64,
    latest: u64,
    started: u64,
    /// A counter that numbers the events whose order matters.
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
    /// A job that workers have lost this often is buried.
    bury_after: Option<u64>,
    buried_for_losses: u64,
    /// Whether memory is refused, so that the next command is refused if possible.
    is_refusing: bool,
    pub(crate) is_draining: bool,
    /// Whether the model knows each time to the nanosecond: not if work is deferred for lack of
    /// memory.
    pub(crate) has_exact_times: bool,
}

/// More ids than jobs fit into a segment of these simulations.
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
            next_id: 1,
            job_size_limit,
            memory_limit,
            bury_after: bury_after.map(Into::into),
            has_exact_times: true,
            ..Self::default()
        };
        model.touch_tube("default");
        model
    }

    pub(crate) fn connect(&mut self, slot: usize) {
        self.peers.push(Peer::new(slot));
    }

    /// Sets whether part of a command arrives with the commands of the next send.
    pub(crate) fn set_part(&mut self, peer: usize, has_part: bool) {
        self.peers[peer].has_part = has_part;
    }

    pub(crate) fn send(&mut self, peer: usize, commands: &[Command]) {
        self.peers[peer].queue.extend(commands.iter().cloned());
        self.settle();
    }

    /// Sends commands while there is no memory, so that the next one is refused.
    pub(crate) fn refuse(&mut self, peer: usize, commands: &[Command]) {
        self.is_refusing = true;
        self.send(peer, commands);
        self.is_refusing = false;
    }

    /// Whether the peer's next command has to wait for the reply to its previous command.
    pub(crate) fn is_waiting(&self, peer: usize) -> bool {
        self.peers[peer].wait.is_some_and(|wait| !wait.aborts)
    }

    /// Returns the replies that the peer has not read yet.
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

    /// Returns the ids of all jobs that exist, for a generator.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.jobs.keys().copied().collect()
    }

    /// Kills the daemon and starts it again with its binlog: no client is connected, the counters
    /// are zero, and every job has the state in the binlog. Tubes take the order in which the
    /// daemon found them. The binlog may have lower counts of a job's reserves and timeouts.
    pub(crate) fn restart(&mut self, found: &Found) {
        for peer in &mut self.peers {
            *peer = Peer { slot: peer.slot, ..Peer::default() };
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
            // A restored job has been ready since the daemon started.
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

    /// Returns how many bytes all jobs hold.
    pub(crate) fn held(&self) -> u64 {
        self.jobs.values().map(|job| job.body.len() as u64 + 2 + JOB_OVERHEAD_BYTES).sum()
    }

    /// Returns the commands that ask for all counters.
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
            let now = self.now.max(self.latest);
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

    /// Returns all events that will be due. The order of the variants is the order of a tick.
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

/// Turns, in which each peer acts that can.
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

/// The methods about tubes.
impl Model {
    fn touch_tube(&mut self, name: &str) {
        if self.find_tube(name).is_none() {
            self.tubes.push(Tube { name: name.to_owned(), ..Tube::default() });
        }
    }

    fn find_tube(&self, name: &str) -> Option<usize> {
        self.tubes.iter().position(|tube| tube.name == name)
    }

    fn tube(&self, name: &str) -> &Tube {
        &self.tubes[self.find_tube(name).expect("the model names only tubes it has")]
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

/// The changes of the states of jobs.
impl Model {
    /// Makes the job ready as of `since`; a waiting client may reserve it at once.
    fn make_ready(&mut self, id: u64, since: u64, now: u64) {
        self.job(id).state = State::Ready;
        self.job(id).since = since;
        self.serve(now);
    }

    /// Takes a lost job from its client: ready as of `since`, or buried if lost too often.
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

    /// Returns the jobs of a tube in a state, in the order of service.
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
