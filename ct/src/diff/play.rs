//! Plays acts on two daemons and watches for a difference.
//!
//! It knows what each connection has under way, gives jobs their ids, keeps to the time table, and
//! leaves out what may be answered in more than one way.
//!
//! The protocol itself leaves open how the commands of two connections mix. So commands stand
//! behind a waiting reserve on one connection at most. Meanwhile all others send one command at a
//! time, and the connection is not closed: nobody knows how many of them would still be carried
//! out. Before time passes, and at the end, it is half-closed, so that they are carried out now;
//! what concerns nobody else may wait on.
//!
//! The rest is what one of the daemons is declared to do differently:
//!
//! | mask | what is left out, or added |
//! |---|---|
//! | `waiters-swap` | a second client waiting for the same tube |
//! | `lone-cr-mutes`, `cr-at-224-eats`, `timeout-unchecked` | lines that would show it |
//! | `upload-visible` | looking at ids not known to be whole while a body is on its way |
//! | `timer-lost` | a long wait while others hold jobs; added: a word of the holder in time |
//!
//! When the acts are over everything is looked at, and then taken apart job by job, so that orders
//! show that no statistic tells.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use super::act::{Act, Command, INSPECTOR, Job, Part, Peer};
use super::record::{Event, Record, on_connection};
use super::reply::Reply;
use super::rig::{Chunk, Due, News, Rig, Settled};
use super::track::{Change, Oddity, Track, Verb};

/// How long a burst of acts may take in a run that lets time pass.
const BURST_MAX: Duration = Duration::from_millis(130);
/// How long the looking at the end may take in such a run.
const INSPECTION_MAX: Duration = Duration::from_millis(220);
/// How long a run may take that lets no time pass: no timer of the protocol ends before.
const QUICK_MAX: Duration = Duration::from_millis(800);
/// The pause between acts where time matters, so that timers are apart and their order is clear.
const PACE: Duration = Duration::from_millis(2);
/// How long after the beginning of a burst, whole seconds later, holders of jobs say something.
const POKES: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(190)];
/// How many commands may be under way on a connection that waits. The kernel holds back what
/// follows some ten small packets that were not acknowledged, and may take its time to acknowledge
/// what nobody reads.
const QUEUE_MAX: usize = 4;
/// How long that may take.
const POKE_MAX: Duration = Duration::from_millis(40);
/// Ids above this are ids of no job.
const ID_MAX: u64 = 1_000_000_000;
/// What is sent for a job that is not there (any more).
const NO_JOB: &[u8] = b"4000000000";
/// How many jobs are taken apart at the end.
const TAKEN_APART_MAX: usize = 40;

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The two answered the same to so many acts.
    Agreed(usize),
    /// It took so long that what is due when is not certain.
    TooSlow,
    /// They differed.
    Differed(Box<Found>),
}

impl Verdict {
    /// Returns the difference, if there is one for sure.
    pub(crate) fn found(self) -> Option<Found> {
        match self {
            Self::Differed(found) => Some(*found),
            Self::Agreed(_) | Self::TooSlow => None,
        }
    }
}

/// A difference, and how it was come by.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: Record,
    /// The acts of the looking at the end up to there, so that they can be left out one by one.
    pub(crate) looked: Vec<Act>,
}

/// Why a run stops before its end.
enum Stop {
    TooSlow,
    Differed,
}

/// Plays acts, and if `inspects` looks at everything afterwards.
pub(crate) fn play(
    rig: Rig,
    acts: &[Act],
    inspects: bool,
    masks: &BTreeSet<String>,
    job_size_limit: u64,
) -> Verdict {
    let is_timed = acts.iter().any(|act| matches!(act, Act::Pass(_)));
    let mut player = Player {
        rig,
        masks,
        job_size_limit,
        tracks: BTreeMap::new(),
        tails: BTreeMap::new(),
        half_closed: BTreeSet::new(),
        ids: BTreeMap::new(),
        is_timed,
        started: Instant::now(),
        burst_max: BURST_MAX,
        bursts: vec![Duration::ZERO],
        at: Duration::ZERO,
        passed: Duration::ZERO,
        record: Record { events: Vec::new(), message: String::new(), word: String::new() },
        looked: Vec::new(),
        done: 0,
    };
    let stopped = player.acts(acts).and_then(|()| if inspects { player.inspect() } else { Ok(()) });
    match stopped {
        Ok(()) => Verdict::Agreed(player.done),
        Err(Stop::TooSlow) => Verdict::TooSlow,
        Err(Stop::Differed) => {
            let Player { record, looked, .. } = player;
            Verdict::Differed(Box::new(Found { record, looked }))
        }
    }
}

/// A command, or a part of one, on its way.
#[derive(Debug, Clone)]
struct Outgoing {
    chunks: Vec<Chunk>,
    /// Its number, if it puts a job.
    put: Option<usize>,
}

impl Outgoing {
    fn bytes(&self) -> Vec<u8> {
        Chunk::bytes(&self.chunks, 0)
    }
}

struct Player<'a> {
    rig: Rig,
    masks: &'a BTreeSet<String>,
    job_size_limit: u64,
    /// The open connections.
    tracks: BTreeMap<Peer, Track>,
    /// What is still to be sent of commands that were cut.
    tails: BTreeMap<Peer, Vec<Outgoing>>,
    half_closed: BTreeSet<Peer>,
    /// The id of every job that was inserted, and the number of its put where that is known.
    ids: BTreeMap<u64, Option<usize>>,
    is_timed: bool,
    started: Instant,
    /// How long the present burst may take.
    burst_max: Duration,
    /// When each burst of acts should have begun, after the start.
    bursts: Vec<Duration>,
    /// How far the time table has got, after the start.
    at: Duration,
    /// How much of that passed since the last event.
    passed: Duration,
    record: Record,
    looked: Vec<Act>,
    /// How many acts were carried out.
    done: usize,
}

impl Player<'_> {
    fn acts(&mut self, acts: &[Act]) -> Result<(), Stop> {
        for act in acts {
            if matches!(act, Act::Send { peer: INSPECTOR, .. }) {
                self.burst_max = INSPECTION_MAX;
            } else if self.is_timed && self.burst_max == BURST_MAX {
                thread::sleep(PACE);
            }
            self.act(act)?;
            self.keep_time()?;
        }
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Result<(), Stop> {
        match act {
            Act::Send { peer, commands, cut } => self.send(*peer, commands, *cut),
            Act::Pass(time) => self.pass(*time),
            Act::HalfClose(peer) => {
                if !self.tracks.contains_key(peer) || !self.half_closed.insert(*peer) {
                    return Ok(());
                }
                self.rig.half_close(*peer);
                self.note(Event::HalfClose(*peer));
                self.settle(*peer, 0, false)
            }
            Act::Close(peer) => {
                if self.tracks.get(peer).is_none_or(Track::has_queue) {
                    return Ok(());
                }
                self.rig.close(*peer);
                self.note(Event::Close(*peer));
                self.forget(*peer);
                self.settle(*peer, 0, false)
            }
            Act::Restart => {
                self.rig.restart();
                self.note(Event::Restarted);
                for peer in self.tracks.keys().copied().collect::<Vec<_>>() {
                    self.forget(peer);
                }
                self.settle(INSPECTOR, 0, false)
            }
            Act::Drain => {
                self.rig.drain();
                self.note(Event::Drained);
                self.settle(INSPECTOR, 0, false)
            }
        }
    }

    /// Fails if this burst has taken longer than it may.
    fn keep_time(&self) -> Result<(), Stop> {
        if self.is_late(Instant::now()) { Err(Stop::TooSlow) } else { Ok(()) }
    }

    fn is_late(&self, now: Instant) -> bool {
        let is_burst = self.bursts.last() == Some(&self.at);
        let most = match (self.is_timed, is_burst) {
            (false, _) => QUICK_MAX,
            (true, true) => self.burst_max,
            (true, false) => POKE_MAX,
        };
        now > self.started + self.at + most
    }

    fn note(&mut self, event: Event) {
        let passed = std::mem::take(&mut self.passed);
        if !passed.is_zero() {
            self.record.events.push(Event::Passed(passed));
        }
        self.record.events.push(event);
        self.done += 1;
    }

    fn forget(&mut self, peer: Peer) {
        self.tracks.remove(&peer);
        self.tails.remove(&peer);
        self.half_closed.remove(&peer);
    }

    fn has_mask(&self, mask: &str) -> bool {
        self.masks.contains(mask)
    }
}

/// Sending, and what is not sent.
impl Player<'_> {
    fn send(&mut self, peer: Peer, commands: &[Command], cut: Option<u16>) -> Result<(), Stop> {
        if !self.send_tail(peer)? {
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
            self.tails.insert(peer, later);
        }
        self.send_now(peer, &now)
    }

    /// Sends the rest of commands that were cut; false if that must not be now.
    fn send_tail(&mut self, peer: Peer) -> Result<bool, Stop> {
        let Some(tail) = self.tails.get(&peer).cloned() else { return Ok(true) };
        let may_send = self.may_send(peer, &tail);
        if may_send {
            self.tails.remove(&peer);
            self.send_now(peer, &tail)?;
        }
        Ok(may_send)
    }

    fn send_now(&mut self, peer: Peer, outgoing: &[Outgoing]) -> Result<(), Stop> {
        let chunks: Vec<Chunk> =
            outgoing.iter().flat_map(|outgoing| outgoing.chunks.clone()).collect();
        if chunks.is_empty() {
            return Ok(());
        }
        if !self.rig.is_open(peer) {
            self.rig.open(peer);
        }
        let track = self.tracks.entry(peer).or_insert_with(|| Track::new(self.job_size_limit));
        let mut length = 0;
        for outgoing in outgoing {
            let bytes = outgoing.bytes();
            track.sent(&bytes, outgoing.put);
            length += bytes.len();
        }
        self.rig.send(peer, &chunks);
        self.note(Event::Sent(peer, chunks));
        let is_plain = self.tracks.get(&peer).is_some_and(|it| !it.may_wait() && !it.is_ending());
        self.settle(peer, length, is_plain && !self.tracks.values().any(Track::has_queue))
    }

    /// Fills in the ids.
    fn outgoing(&self, peer: Peer, command: &Command) -> Outgoing {
        let id = |job| match job {
            Job::Put(number) => {
                self.ids.iter().find(|(_, put)| **put == Some(number)).map(|(&id, _)| id)
            }
            Job::Held(back) => self.tracks.get(&peer).and_then(|track| track.held(back)),
        };
        let chunk = |part: &Part| match part {
            Part::Bytes(bytes) => Chunk::Bytes(bytes.clone()),
            Part::Id(job) => id(*job).map_or_else(|| Chunk::Bytes(NO_JOB.to_vec()), Chunk::Id),
        };
        Outgoing { chunks: command.parts.iter().map(chunk).collect(), put: command.put }
    }

    /// Tells whether both daemons are to answer this alike.
    fn may_send(&self, peer: Peer, outgoing: &[Outgoing]) -> bool {
        if self.half_closed.contains(&peer) {
            return false;
        }
        let fresh = || Track::new(self.job_size_limit);
        let mut track = self.tracks.get(&peer).cloned().unwrap_or_else(fresh);
        let before = track.pending().count();
        for outgoing in outgoing {
            track.sent(&outgoing.bytes(), outgoing.put);
        }
        let after = track.pending().count();
        let is_alone = after - before <= 1 && !track.has_queue();
        if track.is_reset()
            || track.has_queue() && after > QUEUE_MAX
            || !is_alone && self.others(peer).any(Track::has_queue)
        {
            return false;
        }
        let is_odd = track.oddities().iter().any(|oddity| {
            self.has_mask(match oddity {
                Oddity::LoneCr => "lone-cr-mutes",
                Oddity::CrAt224 => "cr-at-224-eats",
                Oddity::UncheckedTimeout => "timeout-unchecked",
            })
        });
        let swaps = self.has_mask("waiters-swap")
            && self.others(peer).any(|other| other.waits_beside(&track));
        let shows = self.has_mask("upload-visible") && self.sees_upload(peer, &track);
        !(is_odd || swaps || shows)
    }

    fn others(&self, peer: Peer) -> impl Iterator<Item = &Track> {
        self.tracks.iter().filter(move |(other, _)| **other != peer).map(|(_, track)| track)
    }

    /// Tells whether commands look at a job whose body may be on its way.
    fn sees_upload(&self, peer: Peer, track: &Track) -> bool {
        let is_uploading = track.is_uploading() || self.others(peer).any(Track::is_uploading);
        is_uploading
            && track.pending().any(|sent| match sent.verb {
                Verb::Look(id) => 0 < id && id < ID_MAX && !self.ids.contains_key(&id),
                _ => false,
            })
    }
}

/// Takes off what comes after so many bytes.
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

/// Listening.
impl Player<'_> {
    /// Waits until both have said everything, and takes it in; that of `first` first. With `is_all`
    /// the daemon has done everything when it has answered what is due there.
    fn settle(&mut self, first: Peer, bytes: usize, is_all: bool) -> Result<(), Stop> {
        let replies = self.tracks.get(&first).map_or(0, Track::due);
        let due = Due { peer: first, replies, is_all, bytes };
        let Settled { mut news, failure, at } = self.rig.settle(due);
        news.sort_by_key(|news| (news.peer != first, news.peer));
        let mut differing = None;
        for news in &news {
            let (same, told) = news.difference(self.rig.judge());
            for reply in &news.said[1].replies[..same] {
                self.replied(news.peer, reply);
            }
            match told {
                Some(told) => differing = differing.or(Some((news, same, told))),
                None if news.said[1].is_closed => {
                    self.note(Event::Closed(news.peer));
                    self.forget(news.peer);
                }
                None => {}
            }
        }
        if let Some((news, same, told)) = differing {
            if self.is_late(at) {
                return Err(Stop::TooSlow);
            }
            self.differed(news, same, &told);
        }
        if let Some(failure) = failure {
            self.record.message = format!("{failure}; {}", self.record.message);
            return Err(Stop::Differed);
        }
        if self.record.message.is_empty() { Ok(()) } else { Err(Stop::Differed) }
    }

    fn replied(&mut self, peer: Peer, reply: &Reply) {
        self.note(Event::Answered(peer, reply.clone()));
        let change = self.tracks.get_mut(&peer).map(|track| track.replied(reply.head()));
        if let Some(Change::Inserted { put, id }) = change {
            self.ids.insert(id, put);
        }
    }

    /// Ends the record with what the right one said where the left one said something else.
    fn differed(&mut self, news: &News, same: usize, told: &str) {
        let said = &news.said[1];
        let pending = self.tracks.get(&news.peer).and_then(|track| track.pending().next());
        self.record.word = pending.map(|sent| sent.word.clone()).unwrap_or_default();
        self.record.message = on_connection(news.peer, told);
        for reply in &said.replies[same..] {
            self.note(Event::Answered(news.peer, reply.clone()));
        }
        if said.is_closed {
            self.note(Event::Closed(news.peer));
        } else if said.replies.len() == same {
            self.note(Event::Silent(news.peer));
        }
    }
}

/// The time table.
impl Player<'_> {
    fn pass(&mut self, time: Duration) -> Result<(), Stop> {
        let (from, to) = (self.at, self.at + time);
        self.clear_queues(Track::is_queue_private)?;
        if self.has_mask("timer-lost") {
            self.free_holders()?;
            for moment in self.pokes(from, to) {
                self.wait_until(moment);
                self.poke()?;
            }
        }
        self.wait_until(to);
        self.bursts.push(to);
        self.settle(INSPECTOR, 0, false)
    }

    /// Lets what stands behind a waiting reserve be carried out now, unless it may stay.
    fn clear_queues(&mut self, may_stay: impl Fn(&Track) -> bool) -> Result<(), Stop> {
        let queues = self.tracks.iter().filter(|(_, it)| it.has_queue() && !may_stay(it));
        for peer in queues.map(|(&peer, _)| peer).collect::<Vec<_>>() {
            self.act(&Act::HalfClose(peer))?;
        }
        Ok(())
    }

    fn wait_until(&mut self, moment: Duration) {
        thread::sleep(moment.saturating_sub(self.started.elapsed()));
        self.passed += moment.saturating_sub(self.at);
        self.at = moment;
    }

    /// Returns when timers may have ended, a little later.
    fn pokes(&self, from: Duration, to: Duration) -> Vec<Duration> {
        let seconds = |burst: &Duration| {
            let burst = *burst;
            (1..=to.as_secs() + 1).map(move |second| burst + Duration::from_secs(second))
        };
        let ends = self.bursts.iter().flat_map(seconds);
        let pokes = ends.flat_map(|end| POKES.map(|later| end + later));
        let mut pokes: Vec<Duration> = pokes.filter(|poke| (from..to).contains(poke)).collect();
        pokes.sort_unstable();
        pokes
    }

    /// Lets everybody who holds a job say something.
    fn poke(&mut self) -> Result<(), Stop> {
        let holders = self.tracks.iter().filter(|(_, it)| it.is_at_rest() && it.held(0).is_some());
        for peer in holders.map(|(&peer, _)| peer).collect::<Vec<_>>() {
            if !self.tails.contains_key(&peer) && !self.half_closed.contains(&peer) {
                self.send_now(peer, &[poke()])?;
            }
        }
        Ok(())
    }

    /// Brings to an end what would keep a holder of jobs from saying something, and what would show
    /// that a time to run was over before that.
    fn free_holders(&mut self) -> Result<(), Stop> {
        for peer in self.tracks.keys().copied().collect::<Vec<_>>() {
            let holds = |track: &Track| track.held(0).is_some();
            let Some(track) = self.tracks.get(&peer) else { continue };
            if track.may_wait() && self.others(peer).any(holds) {
                self.act(&Act::HalfClose(peer))?;
            } else if holds(track) {
                let is_sent = self.send_tail(peer)?;
                let is_stuck = |track: &Track| !track.is_at_rest() && !track.may_wait();
                if !is_sent || self.tracks.get(&peer).is_some_and(is_stuck) {
                    self.act(&Act::Close(peer))?;
                }
            }
        }
        Ok(())
    }
}

/// Makes what a holder says: it changes nothing but its own counter.
fn poke() -> Outgoing {
    Outgoing { chunks: vec![Chunk::Bytes(b"list-tube-used\r\n".to_vec())], put: None }
}

/// Looking at everything when the acts are over.
impl Player<'_> {
    fn inspect(&mut self) -> Result<(), Stop> {
        self.burst_max = INSPECTION_MAX;
        let peers: Vec<Peer> = self.tracks.keys().copied().collect();
        for &peer in &peers {
            if self.tracks.get(&peer).is_some_and(Track::has_queue) {
                self.carry_out(&Act::HalfClose(peer))?;
            }
        }
        let tubes = self.look_at_all()?;
        for tube in &tubes {
            let first =
                [format!("use {tube}"), format!("pause-tube {tube} 0"), format!("watch {tube}")];
            let first = first.map(Command::line).into_iter();
            self.look(first.chain([Command::line("peek-ready")]).collect())?;
            self.look_until(&["peek-buried", "peek-delayed", "kick 1"], |last| last != "KICKED 1")?;
        }
        self.look_until(&["reserve-with-timeout 0"], |last| !last.starts_with("RESERVED"))?;
        for &peer in &peers {
            self.carry_out(&Act::Close(peer))?;
        }
        self.look_at_all().map(drop)
    }

    /// Looks at all statistics and jobs, and returns the tubes.
    fn look_at_all(&mut self) -> Result<Vec<String>, Stop> {
        self.look(["stats", "list-tubes"].map(Command::line).to_vec())?;
        let tubes: Vec<String> = match self.record.events.last() {
            Some(Event::Answered(_, Reply::Yaml(lines))) => {
                let names = lines.iter().filter_map(|line| line.strip_prefix(b"- "));
                names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
            }
            _ => Vec::new(),
        };
        let mut commands: Vec<Command> =
            tubes.iter().map(|tube| Command::line(format!("stats-tube {tube}"))).collect();
        let top = self.ids.keys().next_back().copied().unwrap_or_default();
        for id in 1..=top + 1 {
            for word in ["stats-job", "peek"] {
                commands.push(match self.ids.get(&id) {
                    Some(Some(put)) => Command::on_job(word, Job::Put(*put), ""),
                    _ => Command::line(format!("{word} {id}")),
                });
            }
        }
        self.look(commands)?;
        Ok(tubes)
    }

    /// Sends the same again and again until the last answer tells to stop.
    fn look_until(&mut self, lines: &[&str], is_last: fn(&str) -> bool) -> Result<(), Stop> {
        for _ in 0..TAKEN_APART_MAX {
            let round = lines.iter().map(|line| Command::line(*line));
            let last = self.look(round.collect())?;
            if is_last(&last) {
                break;
            }
        }
        Ok(())
    }

    /// Sends commands and returns what both answered to the last one.
    fn look(&mut self, commands: Vec<Command>) -> Result<String, Stop> {
        // One by one, so that each can be left out when the run is made short.
        self.looked.extend(commands.iter().map(|it| Act::send(INSPECTOR, it.clone())));
        self.act(&Act::Send { peer: INSPECTOR, commands, cut: None })?;
        self.keep_time()?;
        Ok(match self.record.events.last() {
            Some(Event::Answered(INSPECTOR, reply)) => {
                String::from_utf8_lossy(reply.head()).into_owned()
            }
            _ => String::new(),
        })
    }

    fn carry_out(&mut self, act: &Act) -> Result<(), Stop> {
        self.looked.push(act.clone());
        self.act(act)?;
        self.keep_time()
    }
}
