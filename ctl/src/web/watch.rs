//! Looks at a server again and again, in a thread of its own, while a page asks for it. An
//! unattended page costs the server nothing: no command, and no connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use super::metrics::{Histogram, Times};
use crate::address::Address;
use crate::client::{Client, Reply};
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::look::top::{Line, Sample, Watch};

/// The time between two looks, at least.
const INTERVAL: Duration = Duration::from_secs(1);

/// A look may take this part of the time, so that a server with many tubes is not kept busy.
const SHARE: u32 = 4;

/// A server that has not told all by then is told as one that does not answer.
const LOOK: Duration = Duration::from_secs(10);

/// How long after the last question the looks end.
const ATTENDED: Duration = Duration::from_secs(6);

/// How much of the past the charts show.
const PAST: Duration = Duration::from_secs(180);

/// The span whose waits are told as a median.
const RECENT: Duration = Duration::from_secs(60);

/// The most tubes of which each has its past kept. If there are more, only those that a page shows.
const TUBES: usize = 1_000;

/// The most tubes whose times are asked for.
pub(super) const WANTED: usize = 400;

/// One look at a server or a tube.
#[derive(Debug, Clone)]
pub(super) struct Point {
    /// Milliseconds since 1970.
    pub(super) at: u64,
    pub(super) counts: [u64; 5],
    /// Puts and deletes a second.
    pub(super) rates: Option<(f64, f64)>,
    /// The mean wait of the jobs reserved since the look before.
    pub(super) wait: Option<f64>,
    /// How long the next job has waited.
    pub(super) next: Option<f64>,
}

/// What is known of a tube beside its present numbers.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) past: VecDeque<Point>,
    /// Waits, by when they were asked for: the oldest is the first.
    waits: VecDeque<(Instant, Histogram)>,
    is_seen: bool,
}

impl Known {
    /// Returns the waits of the last minute.
    pub(super) fn recent(&self) -> Option<Histogram> {
        let ((_, first), (_, last)) = (self.waits.front()?, self.waits.back()?);
        last.since(first)
    }

    /// Takes what `metrics` told, and returns the mean of the waits since the last time.
    fn learn(&mut self, times: Times, now: Instant) -> Option<f64> {
        let wait = times.wait?;
        let since = self.waits.back().and_then(|(_, before)| wait.since(before));
        if since.is_none() {
            self.waits.clear();
        }
        while self.waits.get(1).is_some_and(|(at, _)| now.duration_since(*at) > RECENT) {
            self.waits.pop_front();
        }
        self.waits.push_back((now, wait));
        since?.mean()
    }

    fn push(&mut self, point: Point) {
        // The clock was set back: what seems to come later would stay until then.
        if self.past.back().is_some_and(|last| last.at > point.at) {
            self.past.clear();
        }
        let begin = point.at.saturating_sub(millis(PAST));
        while self.past.front().is_some_and(|old| old.at < begin) {
            self.past.pop_front();
        }
        self.past.push_back(point);
    }
}

/// What the page and the thread share.
#[derive(Debug, Default)]
pub(super) struct State {
    asked: Option<Instant>,
    /// The tubes that a page shows, and when it asked last.
    wanted: HashMap<String, Instant>,
    /// Counts the looks, also those that failed.
    looks: usize,
    looked: Option<Instant>,
    /// The last look; the error of a server that is down.
    pub(super) now: Option<Result<Sample, String>>,
    pub(super) server: Known,
    pub(super) tubes: HashMap<String, Known>,
    /// How long the next job of a tube had waited when that was asked last, in seconds.
    pub(super) next: HashMap<String, f64>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A server that is looked at.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) address: Address,
    /// Ends all work on the server.
    pub(super) interrupt: Interrupt,
    shared: Arc<Shared>,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Shared {
    /// A thread that panicked ends the program, so the state is never half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question to the thread, which may wait for the answer on another one.
#[derive(Debug)]
pub(super) struct Ask(Arc<Shared>);

impl Ask {
    /// Returns what is known now. After a time without questions it waits a moment for a new look.
    pub(super) fn wait(&self, patience: Duration) -> MutexGuard<'_, State> {
        let state = self.0.lock();
        if state.looked.is_some_and(|at| at.elapsed() < ATTENDED) {
            return state;
        }
        let before = state.looks;
        let changed = self.0.changed.wait_timeout_while(state, patience, |it| it.looks == before);
        changed.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Watcher {
    /// Begins a thread that waits for questions.
    pub(super) fn start(address: Address, interrupt: Interrupt) -> Self {
        let shared = Arc::new(Shared::default());
        let (given, theirs) = (address.clone(), Arc::clone(&shared));
        thread::spawn(move || looks(&given, &theirs));
        Self { address, interrupt, shared }
    }

    /// Asks for looks at the server, and for the times of these tubes.
    pub(super) fn ask<'a>(&self, tubes: impl IntoIterator<Item = &'a str>) -> Ask {
        let now = Instant::now();
        let mut state = self.shared.lock();
        state.asked = Some(now);
        for tube in tubes {
            if state.wanted.len() < WANTED || state.wanted.contains_key(tube) {
                state.wanted.insert(tube.to_owned(), now);
            }
        }
        drop(state);
        self.shared.changed.notify_all();
        Ask(Arc::clone(&self.shared))
    }
}

/// The life of the thread.
fn looks(address: &Address, shared: &Shared) {
    loop {
        let is_idle =
            |state: &mut State| state.asked.is_none_or(|asked| asked.elapsed() >= ATTENDED);
        let state = shared.changed.wait_while(shared.lock(), is_idle);
        drop(state.unwrap_or_else(PoisonError::into_inner));
        let mut watch = Watch::new(address.clone()).within(LOOK);
        loop {
            let began = Instant::now();
            look(&mut watch, shared);
            thread::sleep(INTERVAL.max(began.elapsed() * SHARE).saturating_sub(began.elapsed()));
            if is_idle(&mut shared.lock()) {
                break;
            }
        }
    }
}

/// Looks once, and tells it to those who wait.
fn look(watch: &mut Watch, shared: &Shared) {
    let result = watch.look(&Tubes::default());
    let now = Instant::now();
    let (mut wanted, turn): (HashSet<_>, _) = {
        let mut state = shared.lock();
        state.wanted.retain(|_, asked| now.duration_since(*asked) < ATTENDED);
        (state.wanted.keys().cloned().collect(), state.looks)
    };
    let mut result = result.map_err(|error| format!("{error:#}"));
    let mut times = HashMap::new();
    if let (Ok(sample), Some(client)) = (&result, watch.client()) {
        wanted.retain(|name| find(sample, name).is_some());
        add_turn(&mut wanted, sample, turn);
        match times_of(client, &wanted) {
            Ok(told) => times = told,
            Err(error) => result = Err(format!("{error:#}")),
        }
    }
    let mut state = shared.lock();
    state.take(result, times, now);
    drop(state);
    shared.changed.notify_all();
}

/// Finds a tube; they are in the order of names.
fn find<'a>(sample: &'a Sample, name: &str) -> Option<&'a Line> {
    let at = sample.tubes.binary_search_by(|line| line.tube.as_str().cmp(name)).ok();
    at.map(|at| &sample.tubes[at])
}

/// Adds tubes with ready jobs that no page shows, others with each look if they are many, so that
/// it is known which wait for too long.
fn add_turn(wanted: &mut HashSet<String>, sample: &Sample, turn: usize) {
    let room = WANTED.saturating_sub(wanted.len());
    let is_meant = |line: &&Line| line.counts[0] > 0 && !wanted.contains(&line.tube);
    let others: Vec<_> = sample.tubes.iter().filter(is_meant).map(|it| it.tube.clone()).collect();
    let begin = turn.wrapping_mul(room) % others.len().max(1);
    let room = room.min(others.len());
    wanted.extend(others.into_iter().cycle().skip(begin).take(room));
}

/// Asks for the times of tubes, if the server tells them.
fn times_of(client: &mut Client, tubes: &HashSet<String>) -> Result<HashMap<String, Times>> {
    let mut times = HashMap::new();
    if !client.has("metrics")? {
        return Ok(times);
    }
    let write = |name: &&String, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("metrics {name}\r\n").as_bytes());
    };
    client.pipeline(tubes, write, |name, reply: Reply| {
        if reply.is("OK") {
            times.insert(name.clone(), Times::read(&reply.into_yaml()?));
        } else if !reply.is("NOT_FOUND") {
            return Err(reply.unexpected("metrics"));
        }
        Ok(())
    })?;
    Ok(times)
}

impl State {
    /// Takes a look.
    fn take(
        &mut self,
        result: Result<Sample, String>,
        mut times: HashMap<String, Times>,
        now: Instant,
    ) {
        self.looks += 1;
        self.looked = Some(now);
        if let Ok(sample) = &result {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
            let has_rates = sample.has_rates;
            let point = |line: &Line, wait, next| {
                let rates = has_rates.then_some((line.puts, line.deletes));
                Point { at, counts: line.counts, rates, wait, next }
            };
            self.server.push(point(&sample.server, None, None));
            let told = times.iter().filter_map(|(name, it)| Some((name.clone(), it.next?)));
            self.next.extend(told);
            self.next.retain(|name, _| find(sample, name).is_some_and(|it| it.counts[0] > 0));
            let has_all = sample.tubes.len() <= TUBES;
            for line in &sample.tubes {
                if has_all || self.wanted.contains_key(&line.tube) {
                    let known = self.tubes.entry(line.tube.clone()).or_default();
                    let times = times.remove(&line.tube).unwrap_or_default();
                    let next = times.next;
                    let wait = known.learn(times, now);
                    known.push(point(line, wait, next));
                    known.is_seen = true;
                }
            }
            // Tubes that vanished, or that no page shows any more.
            self.tubes.retain(|_, known| std::mem::take(&mut known.is_seen));
        }
        self.now = Some(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(counts: [u64; 2], sum: f64) -> Times {
        let [low, all] = counts;
        Times::read(&format!(
            "---\nwait-seconds-le-1: {low}\nwait-seconds-le-inf: {all}\nwait-seconds-sum: {sum}\n"
        ))
    }

    #[test]
    fn the_waits_of_the_last_minute_are_known() {
        let (mut known, start) = (Known::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(known.learn(waits([5, 9], 100.0), at(0)), None);
        assert_eq!(known.learn(waits([5, 10], 103.0), at(1)), Some(3.0));
        assert_eq!(known.learn(waits([5, 10], 103.0), at(2)), None, "none was reserved");
        assert_eq!(known.recent().unwrap().mean(), Some(3.0));
        assert_eq!(known.learn(waits([6, 11], 104.0), at(90)), Some(1.0));
        assert_eq!(known.recent().unwrap().mean(), Some(1.0), "what is older has gone");
        assert_eq!(known.learn(waits([0, 1], 2.0), at(91)), None, "a tube that began anew");
        assert_eq!(known.learn(Times::default(), at(92)), None);
    }

    /// A job could wait for ever in a tube far down the list.
    #[test]
    fn every_tube_has_its_turn() {
        let line = |number| Line {
            tube: format!("t{number:04}"),
            counts: [1, 0, 0, 0, 0],
            puts: 0.0,
            deletes: 0.0,
            paused: 0,
            watching: 1,
        };
        let (server, tubes) = (line(9_999), (0..1_000).map(line).collect());
        let (uptime, connections, has_rates) = (1, 1, false);
        let (stats, trouble) = (String::new(), None);
        let sample = Sample { server, tubes, uptime, connections, has_rates, stats, trouble };
        let mut asked = HashSet::new();
        for turn in 0..3 {
            let mut wanted = HashSet::from(["t0007".to_owned()]);
            add_turn(&mut wanted, &sample, turn);
            assert_eq!(wanted.len(), WANTED);
            asked.extend(wanted);
        }
        assert_eq!(asked.len(), 1_000);
    }

    #[test]
    fn the_past_is_bounded() {
        let mut known = Known::default();
        let point = |at| Point { at, counts: [0; 5], rates: None, wait: None, next: None };
        for at in 0..1_000 {
            known.push(point(at * 1_000));
        }
        assert_eq!(known.past.len(), 181);
        for at in 0..1_000 {
            known.push(point(at * 1_000));
            assert!(known.past.len() <= 181, "the clock was set back");
        }
    }
}
