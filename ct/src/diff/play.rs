//! Plays acts on two daemons and watches for a difference.
//!
//! It knows what each connection has under way, gives jobs their ids, keeps to the time table, and
//! leaves out what may be answered in more than one way.
//!
//! The protocol itself leaves open how the commands of two connections mix. So while commands stand
//! behind a waiting reserve, all others send one command at a time, and the connection is not
//! closed: nobody knows how many of them would still be carried out.
//!
//! The rest is what one of the daemons is declared to do differently:
//!
//! | mask | what is left out, or added |
//! |---|---|
//! | `waiters-swap` | a second client waiting for the same tube |
//! | `lone-cr-mutes`, `cr-at-224-eats`, `timeout-unchecked` | lines that would show it |
//! | `upload-visible` | looking at ids not known to be whole while a body is on its way |
//! | `timer-lost` | added: after each moment when a time to run can end, its holder says something |
//!
//! When the acts are over everything is looked at, and then taken apart job by job, so that orders
//! show that no statistic tells.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use super::act::{Act, Command, INSPECTOR, Job, Part, Peer};
use super::record::{Event, Record, on_connection};
use super::reply::Reply;
use super::rig::{Chunk, News, Rig};
use super::track::{Change, Oddity, Track, Verb};

/// How long a burst of acts may take in a run that lets time pass.
const BURST_MAX: Duration = Duration::from_millis(100);
/// How long the looking at the end may take in such a run.
const INSPECTION_MAX: Duration = Duration::from_millis(150);
/// How long a run may take that lets no time pass: no timer of the protocol ends before.
const QUICK_MAX: Duration = Duration::from_millis(800);
/// The pause between acts where time matters, so that timers are apart and their order is clear.
const PACE: Duration = Duration::from_millis(2);
/// How long after the beginning of a burst, whole seconds later, holders of jobs say something.
const POKES: [Duration; 2] = [Duration::from_millis(110), Duration::from_millis(150)];
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
        let mut burst_max = BURST_MAX;
        for act in acts {
            if matches!(act, Act::Send { peer: INSPECTOR, .. }) {
                burst_max = INSPECTION_MAX;
            } else if self.is_timed && burst_max == BURST_MAX {
                thread::sleep(PACE);
            }
            self.act(act)?;
            self.keep_time(burst_max)?;
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
                self.settle(*peer, 0)
            }
            Act::Close(peer) => {
                if self.tracks.get(peer).is_none_or(Track::has_queue) {
                    return Ok(());
                }
                self.rig.close(*peer);
                self.note(Event::Close(*peer));
                self.forget(*peer);
                self.settle(*peer, 0)
            }
            Act::Drain => {
                self.rig.drain();
                self.note(Event::Drained);
                self.settle(INSPECTOR, 0)
            }
        }
    }

    /// Fails if this burst has taken longer than it may.
    fn keep_time(&self, burst_max: Duration) -> Result<(), Stop> {
        let start = self.bursts.last().copied().unwrap_or_default();
        let most = if self.is_timed { burst_max } else { QUICK_MAX };
        if self.started.elapsed() > start + most { Err(Stop::TooSlow) } else { Ok(()) }
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
        self.settle(peer, length)
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
        for outgoing in outgoing {
            track.sent(&outgoing.bytes(), outgoing.put);
        }
        let is_odd = track.oddities().iter().any(|oddity| {
            self.has_mask(match oddity {
                Oddity::LoneCr => "lone-cr-mutes",
                Oddity::CrAt224 => "cr-at-224-eats",
                Oddity::UncheckedTimeout => "timeout-unchecked",
            })
        });
        let mut others = self.tracks.iter().filter(|(other, _)| **other != peer);
        let swaps = self.has_mask("waiters-swap") && others.any(|(_, it)| it.waits_beside(&track));
        let shows = self.has_mask("upload-visible") && self.sees_upload(peer, &track);
        !(is_odd || swaps || shows)
    }

    /// Tells whether commands look at a job whose body may be on its way.
    fn sees_upload(&self, peer: Peer, track: &Track) -> bool {
        let others = self.tracks.iter().filter(|(other, _)| **other != peer);
        let is_uploading =
            track.is_uploading() || others.map(|(_, it)| it).any(Track::is_uploading);
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
    /// Waits until both have said everything, and takes it in; that of `first` first.
    fn settle(&mut self, first: Peer, bytes: usize) -> Result<(), Stop> {
        let (mut news, failure) = self.rig.settle(bytes);
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
        if self.has_mask("timer-lost") {
            self.free_holders()?;
            for moment in self.pokes(from, to) {
                self.wait_until(moment);
                self.poke()?;
            }
        }
        self.wait_until(to);
        self.bursts.push(to);
        self.settle(INSPECTOR, 0)
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
        for (peer, _) in self.holders(Track::is_at_rest) {
            if !self.tails.contains_key(&peer) && !self.half_closed.contains(&peer) {
                self.send_now(peer, &[poke()])?;
            }
        }
        Ok(())
    }

    /// Brings to an end what would keep a holder of jobs from saying something.
    fn free_holders(&mut self) -> Result<(), Stop> {
        for (peer, _) in self.holders(|_| true) {
            let is_sent = self.send_tail(peer)?;
            let is_stuck = |track: &Track| !track.is_at_rest() && !track.may_wait();
            if !is_sent || self.tracks.get(&peer).is_some_and(is_stuck) {
                // Not if commands are queued: then it has yet to be served anyway.
                self.act(&Act::Close(peer))?;
            }
        }
        Ok(())
    }

    fn holders(&self, test: impl Fn(&Track) -> bool) -> Vec<(Peer, u64)> {
        let holders = self.tracks.iter().filter(|(_, track)| test(track));
        holders.filter_map(|(&peer, track)| Some((peer, track.held(0)?))).collect()
    }
}

/// Makes what a holder says: it changes nothing but its own counter.
fn poke() -> Outgoing {
    Outgoing { chunks: vec![Chunk::Bytes(b"list-tube-used\r\n".to_vec())], put: None }
}

/// Looking at everything when the acts are over.
impl Player<'_> {
    fn inspect(&mut self) -> Result<(), Stop> {
        let tubes = self.look_at_all()?;
        for tube in &tubes {
            self.look(Command::line(format!("use {tube}")))?;
            self.look(Command::line(format!("pause-tube {tube} 0")))?;
            self.look(Command::line(format!("watch {tube}")))?;
            self.look(Command::line("peek-ready"))?;
            for _ in 0..TAKEN_APART_MAX {
                self.look(Command::line("peek-buried"))?;
                self.look(Command::line("peek-delayed"))?;
                if self.look(Command::line("kick 1"))? != "KICKED 1" {
                    break;
                }
            }
        }
        for _ in 0..TAKEN_APART_MAX {
            let answer = self.look(Command::line("reserve-with-timeout 0"))?;
            if !answer.starts_with("RESERVED") {
                break;
            }
        }
        for peer in self.tracks.keys().copied().collect::<Vec<_>>() {
            self.carry_out(&Act::Close(peer))?;
        }
        self.look_at_all().map(drop)
    }

    /// Looks at all statistics and jobs, and returns the tubes.
    fn look_at_all(&mut self) -> Result<Vec<String>, Stop> {
        self.look(Command::line("stats"))?;
        self.look(Command::line("list-tubes"))?;
        let tubes = match self.record.events.last() {
            Some(Event::Answered(_, Reply::Yaml(lines))) => {
                let names = lines.iter().filter_map(|line| line.strip_prefix(b"- "));
                names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
            }
            _ => Vec::new(),
        };
        for tube in &tubes {
            self.look(Command::line(format!("stats-tube {tube}")))?;
        }
        let top = self.ids.keys().next_back().copied().unwrap_or_default();
        for id in 1..=top + 1 {
            for word in ["stats-job", "peek"] {
                self.look(match self.ids.get(&id) {
                    Some(Some(put)) => Command::on_job(word, Job::Put(*put), ""),
                    _ => Command::line(format!("{word} {id}")),
                })?;
            }
        }
        Ok(tubes)
    }

    /// Sends a command and returns what both answered.
    fn look(&mut self, command: Command) -> Result<String, Stop> {
        self.carry_out(&Act::send(INSPECTOR, command))?;
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
        self.keep_time(INSPECTION_MAX)
    }
}
