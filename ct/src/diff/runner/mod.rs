//! Executes operations on two daemons and compares their replies.
//!
//! The runner tracks the state of each connection, fills in job ids, keeps to a `schedule`, and
//! omits commands that may be answered in more than one way.
//!
//! The protocol does not define how the commands of two connections interleave. So at most one
//! connection has commands queued after a waiting reserve. Meanwhile all other connections send one
//! command at a time. A connection with queued commands is not closed: it is unknown how many of
//! them would be executed. Before a pause and at the end of a run, a connection with queued
//! commands is half-closed, so that the daemon executes these commands. In a pause, commands that
//! affect no other connection may stay queued.
//!
//! If a mask applies to one of the two daemons, the runner avoids the difference that the mask
//! describes:
//!
//! * With the mask `waiters-swap`, no two clients wait for the same tube.
//! * With `lone-cr-mutes`, `cr-at-224-eats` or `timeout-unchecked`, lines to which the daemons
//!   would reply differently are not sent.
//! * With `upload-visible`, no client reads a job whose body may still be arriving.
//! * With `timer-lost`, the runner lets no client wait in `reserve` during a pause in which another
//!   client holds a job. Clients that hold jobs send keep-alives.
//!
//! At the end of a run, `inspection` reads all state, and then reserves every job, because only
//! reserving shows the order of the jobs.

mod inspection;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use crate::diff::harness::{ExpectedReplies, Harness, ReceivedPair, Settled};
use crate::diff::operation::{Command, INSPECTOR, Job, Operation, Part, Peer};
use crate::diff::record::{Event, Record, on_connection};
use crate::diff::reply::Reply;
use crate::diff::side::Chunk;
use crate::diff::tracker::{Change, Quirk, Tracker, Verb};

/// In a run with pauses, how long the operations between two pauses may take.
const BURST_TIME_MAX: Duration = Duration::from_millis(130);
/// In a run with pauses, how long the inspection may take.
const INSPECTION_TIME_MAX: Duration = Duration::from_millis(220);
/// How long a run without pauses may take: less than any timer of the protocol.
const QUICK_RUN_TIME_MAX: Duration = Duration::from_millis(800);
/// The interval between operations in a run with pauses, so that timers end one by one.
const OPERATION_INTERVAL: Duration = Duration::from_millis(2);
/// The most commands without a reply on a connection that waits in `reserve`. The kernel sends at
/// most some ten small segments until it has an acknowledgement, and is slow to acknowledge unread
/// data.
const QUEUED_COMMANDS_MAX: usize = 4;
/// How long a round of keep-alives may take.
const KEEP_ALIVE_TIME_MAX: Duration = Duration::from_millis(40);
/// A number that is higher than every job id of a run.
const JOB_ID_MAX: u64 = 1_000_000_000;
/// The id that is sent if a command refers to a job that does not exist.
const NO_JOB: &[u8] = b"4000000000";

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// All answers were the same; the value is the number of events.
    Agreed(usize),
    /// The run took so long that the state of timers is uncertain.
    TooSlow,
    /// An answer differed.
    Differed(Box<Difference>),
}

impl Verdict {
    /// Returns the difference that the runner found, if a difference is certain.
    pub(crate) fn found(self) -> Option<Difference> {
        match self {
            Self::Differed(found) => Some(*found),
            Self::Agreed(_) | Self::TooSlow => None,
        }
    }
}

/// A difference, and the events that led to it.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) record: Record,
    /// The inspection's operations up to the difference. Shortening the run can remove each of
    /// these operations.
    pub(crate) inspection: Vec<Operation>,
}

/// Why a run stops before its end.
enum StopReason {
    TooSlow,
    Differed,
}

/// Executes operations on two daemons and compares the replies; if `inspects`, also inspects all
/// state afterwards.
pub(crate) fn run_operations(
    harness: Harness,
    operations: &[Operation],
    inspects: bool,
    masks: &BTreeSet<String>,
    job_size_limit: u64,
) -> Verdict {
    let is_timed = operations.iter().any(|operation| matches!(operation, Operation::Sleep(_)));
    let mut runner = Runner {
        harness,
        masks,
        job_size_limit,
        trackers: BTreeMap::new(),
        unsent: BTreeMap::new(),
        half_closed: BTreeSet::new(),
        job_ids: BTreeMap::new(),
        is_timed,
        started: Instant::now(),
        burst_time_max: BURST_TIME_MAX,
        burst_starts: vec![Duration::ZERO],
        scheduled: Duration::ZERO,
        slept: Duration::ZERO,
        record: Record { events: Vec::new(), message: String::new(), word: String::new() },
        inspection: Vec::new(),
        event_count: 0,
    };
    let stopped =
        runner.run_all(operations).and_then(|()| if inspects { runner.inspect() } else { Ok(()) });
    match stopped {
        Ok(()) => Verdict::Agreed(runner.event_count),
        Err(StopReason::TooSlow) => Verdict::TooSlow,
        Err(StopReason::Differed) => {
            let Runner { record, inspection, .. } = runner;
            Verdict::Differed(Box::new(Difference { record, inspection }))
        }
    }
}

/// A command to be sent, or a part of a command.
#[derive(Debug, Clone)]
struct Outgoing {
    chunks: Vec<Chunk>,
    /// Which put of the run it is, if the command is a put.
    put: Option<usize>,
}

impl Outgoing {
    /// Returns the bytes of a command that the runner sends.
    fn bytes(&self) -> Vec<u8> {
        Chunk::bytes(&self.chunks, 0)
    }
}

struct Runner<'a> {
    harness: Harness,
    masks: &'a BTreeSet<String>,
    job_size_limit: u64,
    /// The open connections.
    trackers: BTreeMap<Peer, Tracker>,
    /// For each connection, the part of its last commands that is not sent yet.
    unsent: BTreeMap<Peer, Vec<Outgoing>>,
    half_closed: BTreeSet<Peer>,
    /// The ids of all inserted jobs, each with the number of the `put` that inserted the job;
    /// `None` if this number is not known.
    job_ids: BTreeMap<u64, Option<usize>>,
    is_timed: bool,
    started: Instant,
    /// How long the current burst of operations may take.
    burst_time_max: Duration,
    /// The scheduled start of each burst, counted from the start of the run.
    burst_starts: Vec<Duration>,
    /// The present time in the schedule, counted from the start of the run.
    scheduled: Duration,
    /// How much time has passed in the schedule since the last event.
    slept: Duration,
    record: Record,
    inspection: Vec<Operation>,
    /// The number of events so far.
    event_count: usize,
}

impl Runner<'_> {
    /// Executes the operations of a run one by one, and stops at the first difference.
    fn run_all(&mut self, operations: &[Operation]) -> Result<(), StopReason> {
        for operation in operations {
            if matches!(operation, Operation::Send { peer: INSPECTOR, .. }) {
                self.burst_time_max = INSPECTION_TIME_MAX;
            } else if self.is_timed && self.burst_time_max == BURST_TIME_MAX {
                thread::sleep(OPERATION_INTERVAL);
            }
            self.run_one(operation)?;
            self.check_schedule()?;
        }
        Ok(())
    }

    /// Executes one operation of a run on both daemons.
    fn run_one(&mut self, operation: &Operation) -> Result<(), StopReason> {
        match operation {
            Operation::Send { peer, commands, cut } => self.send(*peer, commands, *cut),
            Operation::Sleep(time) => self.sleep(*time),
            Operation::HalfClose(peer) => {
                if !self.trackers.contains_key(peer) || !self.half_closed.insert(*peer) {
                    return Ok(());
                }
                self.harness.half_close(*peer);
                self.record_event(Event::HalfClose(*peer));
                self.settle(*peer, 0, false)
            }
            Operation::Close(peer) => {
                if self.trackers.get(peer).is_none_or(Tracker::has_queued_commands) {
                    return Ok(());
                }
                self.harness.close(*peer);
                self.record_event(Event::Close(*peer));
                self.forget(*peer);
                self.settle(*peer, 0, false)
            }
            Operation::Restart => {
                self.harness.restart();
                self.record_event(Event::Restarted);
                for peer in self.trackers.keys().copied().collect::<Vec<_>>() {
                    self.forget(peer);
                }
                self.settle(INSPECTOR, 0, false)
            }
            Operation::Drain => {
                self.harness.drain();
                self.record_event(Event::Drained);
                self.settle(INSPECTOR, 0, false)
            }
        }
    }

    /// Stops the runner if the current burst has taken too long.
    fn check_schedule(&self) -> Result<(), StopReason> {
        if self.is_late(Instant::now()) { Err(StopReason::TooSlow) } else { Ok(()) }
    }

    /// Returns whether the current burst or the current round of keep-alives has taken too long.
    fn is_late(&self, now: Instant) -> bool {
        let is_burst = self.burst_starts.last() == Some(&self.scheduled);
        let most = match (self.is_timed, is_burst) {
            (false, _) => QUICK_RUN_TIME_MAX,
            (true, true) => self.burst_time_max,
            (true, false) => KEEP_ALIVE_TIME_MAX,
        };
        now > self.started + self.scheduled + most
    }

    /// Adds an event to the runner's record; if time passed before the event, first adds that time.
    fn record_event(&mut self, event: Event) {
        let slept = std::mem::take(&mut self.slept);
        if !slept.is_zero() {
            self.record.events.push(Event::Slept(slept));
        }
        self.record.events.push(event);
        self.event_count += 1;
    }

    /// Discards the runner's state of a connection.
    fn forget(&mut self, peer: Peer) {
        self.trackers.remove(&peer);
        self.unsent.remove(&peer);
        self.half_closed.remove(&peer);
    }

    /// Returns whether one of the runner's two daemons has this mask.
    fn has_mask(&self, mask: &str) -> bool {
        self.masks.contains(mask)
    }
}

/// Sends commands, and omits commands that may be answered in more than one way.
impl Runner<'_> {
    /// Sends the commands of an operation, or omits all of them if one may be answered in more than
    /// one way.
    fn send(
        &mut self,
        peer: Peer,
        commands: &[Command],
        cut: Option<u16>,
    ) -> Result<(), StopReason> {
        if !self.send_rest(peer)? {
            return Ok(());
        }
        let mut now: Vec<Outgoing> =
            commands.iter().map(|command| self.outgoing(peer, command)).collect();
        if !self.may_send(peer, &now) {
            return Ok(());
        }
        let mut later = Vec::new();
        if let Some(cut) = cut {
            let whole: usize = now.iter().map(|outgoing| outgoing.bytes().len()).sum();
            later = split_off(&mut now, whole * usize::from(cut) / 1000);
        }
        if !later.is_empty() {
            self.unsent.insert(peer, later);
        }
        self.send_now(peer, &now)
    }

    /// Sends the rest of commands that were cut; returns false if the rest must not be sent yet.
    fn send_rest(&mut self, peer: Peer) -> Result<bool, StopReason> {
        let Some(rest) = self.unsent.get(&peer).cloned() else { return Ok(true) };
        let may_send = self.may_send(peer, &rest);
        if may_send {
            self.unsent.remove(&peer);
            self.send_now(peer, &rest)?;
        }
        Ok(may_send)
    }

    /// Sends commands to both daemons, and processes the replies.
    fn send_now(&mut self, peer: Peer, outgoing: &[Outgoing]) -> Result<(), StopReason> {
        let chunks: Vec<Chunk> =
            outgoing.iter().flat_map(|outgoing| outgoing.chunks.clone()).collect();
        if chunks.is_empty() {
            return Ok(());
        }
        if !self.harness.is_open(peer) {
            self.harness.open(peer);
        }
        let tracker =
            self.trackers.entry(peer).or_insert_with(|| Tracker::new(self.job_size_limit));
        let mut length = 0;
        for outgoing in outgoing {
            let bytes = outgoing.bytes();
            tracker.sent(&bytes, outgoing.put);
            length += bytes.len();
        }
        self.harness.send(peer, &chunks);
        self.record_event(Event::Sent(peer, chunks));
        let is_plain = self.trackers.get(&peer).is_some_and(|it| !it.may_wait() && !it.is_ending());
        self.settle(
            peer,
            length,
            is_plain && !self.trackers.values().any(Tracker::has_queued_commands),
        )
    }

    /// Fills in the job ids of a command that the runner sends.
    fn outgoing(&self, peer: Peer, command: &Command) -> Outgoing {
        let id = |job| match job {
            Job::Put(number) => {
                self.job_ids.iter().find(|(_, put)| **put == Some(number)).map(|(&id, _)| id)
            }
            Job::Held(back) => self.trackers.get(&peer).and_then(|tracker| tracker.held(back)),
        };
        let chunk = |part: &Part| match part {
            Part::Bytes(bytes) => Chunk::Bytes(bytes.clone()),
            Part::Id(job) => id(*job).map_or_else(|| Chunk::Bytes(NO_JOB.to_vec()), Chunk::Id),
        };
        Outgoing { chunks: command.parts.iter().map(chunk).collect(), put: command.put }
    }

    /// Returns whether the runner may send these commands: only if both daemons must answer them in
    /// the same way.
    fn may_send(&self, peer: Peer, outgoing: &[Outgoing]) -> bool {
        if self.half_closed.contains(&peer) {
            return false;
        }
        let new_tracker = || Tracker::new(self.job_size_limit);
        let mut tracker = self.trackers.get(&peer).cloned().unwrap_or_else(new_tracker);
        let before = tracker.pending().count();
        for outgoing in outgoing {
            tracker.sent(&outgoing.bytes(), outgoing.put);
        }
        let after = tracker.pending().count();
        let is_alone = after - before <= 1 && !tracker.has_queued_commands();
        if tracker.is_reset()
            || tracker.has_queued_commands() && after > QUEUED_COMMANDS_MAX
            || !is_alone && self.others(peer).any(Tracker::has_queued_commands)
        {
            return false;
        }
        let has_quirk = tracker.quirks().iter().any(|quirk| {
            self.has_mask(match quirk {
                Quirk::LoneCr => "lone-cr-mutes",
                Quirk::CrAt224 => "cr-at-224-eats",
                Quirk::UncheckedTimeout => "timeout-unchecked",
            })
        });
        let is_swap = self.has_mask("waiters-swap")
            && self.others(peer).any(|other| other.competes_with(&tracker));
        let shows = self.has_mask("upload-visible") && self.inspects_upload(peer, &tracker);
        !(has_quirk || is_swap || shows)
    }

    /// Returns the trackers of all connections except `peer`.
    fn others(&self, peer: Peer) -> impl Iterator<Item = &Tracker> {
        self.trackers.iter().filter(move |(other, _)| **other != peer).map(|(_, tracker)| tracker)
    }

    /// Returns whether a command reads a job whose body may still be arriving.
    fn inspects_upload(&self, peer: Peer, tracker: &Tracker) -> bool {
        let is_uploading = tracker.is_uploading() || self.others(peer).any(Tracker::is_uploading);
        is_uploading
            && tracker.pending().any(|sent| match sent.verb {
                Verb::Inspect(id) => 0 < id && id < JOB_ID_MAX && !self.job_ids.contains_key(&id),
                _ => false,
            })
    }
}

/// Splits the bytes of the runner's unsent commands after `bytes` bytes; keeps the first part, and
/// returns the second.
fn split_off(outgoing: &mut Vec<Outgoing>, bytes: usize) -> Vec<Outgoing> {
    let mut left = bytes;
    for index in 0..outgoing.len() {
        let whole = outgoing[index].bytes();
        if left < whole.len() {
            let mut later = outgoing.split_off(index);
            if left > 0 {
                let (now, rest) = whole.split_at(left);
                let part = |bytes: &[u8]| vec![Chunk::Bytes(bytes.to_vec())];
                outgoing.push(Outgoing { chunks: part(now), put: later[0].put });
                later[0].chunks = part(rest);
            }
            return later;
        }
        left -= whole.len();
    }
    Vec::new()
}

/// Receives replies.
impl Runner<'_> {
    /// Waits until both daemons are quiet. Then processes their replies for the runner, beginning
    /// with the replies on the connection `first`. `is_all` means: once a daemon has sent the
    /// expected replies on the connection `first`, it has executed all commands.
    fn settle(&mut self, first: Peer, bytes: usize, is_all: bool) -> Result<(), StopReason> {
        let replies = self.trackers.get(&first).map_or(0, Tracker::certain_replies);
        let expected = ExpectedReplies { peer: first, replies, is_all, bytes };
        let Settled { mut pairs, failure, quiet_at } = self.harness.settle(expected);
        pairs.sort_by_key(|pair| (pair.peer != first, pair.peer));
        let mut difference = None;
        for pair in &pairs {
            let (same, message) = pair.difference(self.harness.comparator());
            for reply in &pair.received[1].replies[..same] {
                self.replied(pair.peer, reply);
            }
            match message {
                Some(message) => difference = difference.or(Some((pair, same, message))),
                None if pair.received[1].is_closed => {
                    self.record_event(Event::Closed(pair.peer));
                    self.forget(pair.peer);
                }
                None => {}
            }
        }
        if let Some((pair, same, message)) = difference {
            if self.is_late(quiet_at) {
                return Err(StopReason::TooSlow);
            }
            self.record_difference(pair, same, &message);
        }
        if let Some(failure) = failure {
            self.record.message = format!("{failure}; {}", self.record.message);
            return Err(StopReason::Differed);
        }
        if self.record.message.is_empty() { Ok(()) } else { Err(StopReason::Differed) }
    }

    /// Records a reply of both daemons, and updates the tracker and the ids of inserted jobs.
    fn replied(&mut self, peer: Peer, reply: &Reply) {
        self.record_event(Event::Answered(peer, reply.clone()));
        let change = self.trackers.get_mut(&peer).map(|tracker| tracker.replied(reply.head()));
        if let Some(Change::Inserted { put, id }) = change {
            self.job_ids.insert(id, put);
        }
    }

    /// Ends the record with the replies of the right (second) daemon, beginning at the first
    /// difference.
    fn record_difference(&mut self, pair: &ReceivedPair, same: usize, message: &str) {
        let received = &pair.received[1];
        let pending = self.trackers.get(&pair.peer).and_then(|tracker| tracker.pending().next());
        self.record.word = pending.map(|sent| sent.word.clone()).unwrap_or_default();
        self.record.message = on_connection(pair.peer, message);
        for reply in &received.replies[same..] {
            self.record_event(Event::Answered(pair.peer, reply.clone()));
        }
        if received.is_closed {
            self.record_event(Event::Closed(pair.peer));
        } else if received.replies.len() == same {
            self.record_event(Event::Silent(pair.peer));
        }
    }
}
