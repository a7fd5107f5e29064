//! Samples a server in a separate thread while a page is open. While no page is open, the thread
//! sends no commands, and its connection is closed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Error, Result};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Failure;
use super::metrics::{Figures, Histogram};
use crate::address::Address;
use crate::client::Client;
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::sample::{Sample, Sampler, TubeSample};

/// The shortest time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The thread spends at most `1/SAMPLE_TIME_SHARE` of its time on samples, so that a server with
/// many tubes still has time for other clients.
const SAMPLE_TIME_SHARE: u32 = 4;

/// The time limit of a sample, after which the server is reported as down.
const SAMPLE_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Sampling ends this long after the last request of a page.
const ATTENTION_TIME: Duration = Duration::from_secs(6);

/// The time span of the charts.
const HISTORY_MILLISECONDS: u64 = 180_000;

/// Percentiles are computed from the waits of jobs within this time span.
const RECENT_TIME: Duration = Duration::from_secs(60);

/// If a server has more tubes than this, only the tubes that a page shows have a history.
const HISTORY_TUBES_MAX: usize = 1_000;

/// Each sample requests for at most this many tubes how long jobs have waited.
const TIMED_TUBES_MAX: usize = 400;

/// Work that has reached its time limit has this much more time to receive the server's replies,
/// and then fails.
const LATE_WORK_TIME: Duration = Duration::from_secs(10);

/// One sample of a server or a tube.
#[derive(Debug, Clone)]
pub(super) struct Point {
    /// Milliseconds since 1970.
    pub(super) at: u64,
    pub(super) counts: [u64; 5],
    /// Puts and deletes per second.
    pub(super) rates: Option<(f64, f64)>,
    /// The mean wait of jobs reserved since the previous sample, in seconds.
    pub(super) wait: Option<f64>,
    /// How long the next job has waited so far, in seconds.
    pub(super) next: Option<f64>,
}

/// The history of a tube or a server.
#[derive(Debug, Default)]
pub(super) struct TubeHistory {
    pub(super) points: VecDeque<Point>,
    /// Histograms of waits, each with the time of its sample, oldest first.
    waits: VecDeque<(Instant, Histogram)>,
    /// Jobs buried by `--bury-after`, if the server counts them.
    pub(super) losses: Option<u64>,
    is_seen: bool,
}

impl TubeHistory {
    /// Returns, from a tube's history, the histogram of the waits in the last minute.
    pub(super) fn recent_waits(&self) -> Option<Histogram> {
        let ((_, first), (_, last)) = (self.waits.front()?, self.waits.back()?);
        last.since(first)
    }

    /// Adds new figures to a tube's history, and returns the mean of the waits since the previous
    /// sample.
    fn update_figures(&mut self, figures: Figures, now: Instant) -> Option<f64> {
        self.losses = figures.losses;
        let wait = figures.wait?;
        let since = self.waits.back().and_then(|(_, before)| wait.since(before));
        if since.is_none() {
            self.waits.clear();
        }
        while self.waits.get(1).is_some_and(|(at, _)| now.duration_since(*at) > RECENT_TIME) {
            self.waits.pop_front();
        }
        self.waits.push_back((now, wait));
        since?.mean()
    }

    /// Adds a point to a tube's history, and drops old points.
    fn push_point(&mut self, point: Point) {
        // If the clock was set back, drop all points: at least the last point is in the future.
        if self.points.back().is_some_and(|last| last.at > point.at) {
            self.points.clear();
        }
        let begin = point.at.saturating_sub(HISTORY_MILLISECONDS);
        while self.points.front().is_some_and(|old| old.at < begin) {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

/// The state shared by requests of pages and the sampling thread.
#[derive(Debug, Default)]
pub(super) struct Watched {
    asked: Option<Instant>,
    /// The tubes shown by pages, each with the time of the last request for the tube.
    wanted: HashMap<String, Instant>,
    /// The number of samples, including failed samples.
    samples: usize,
    sampled_at: Option<Instant>,
    /// The last sample, or the error if the server is down.
    pub(super) now: Option<Result<Sample, String>>,
    pub(super) server: TubeHistory,
    pub(super) tubes: HashMap<String, TubeHistory>,
    /// How long the next job of each tube had waited at the last sample, in seconds.
    pub(super) next: HashMap<String, f64>,
}

#[derive(Debug, Default)]
struct SharedState {
    state: Mutex<Watched>,
    changed: Condvar,
}

/// A server and the thread that samples it.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) address: Address,
    /// Once this interrupt is set, all HTTP requests that use this server end.
    pub(super) interrupt: Interrupt,
    shared: Arc<SharedState>,
}

impl SharedState {
    /// Locks the state of the watched server. The state is always consistent, because a panic ends
    /// the program.
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample of the watched server, and wakes the requests that wait for a sample.
    fn take_sample(&self, sampler: &mut Sampler) {
        let result = sampler.sample(&Tubes::default());
        let now = Instant::now();
        let (mut wanted, turn): (HashSet<_>, _) = {
            let mut state = self.lock();
            state.wanted.retain(|_, asked| now.duration_since(*asked) < ATTENTION_TIME);
            (state.wanted.keys().cloned().collect(), state.samples)
        };
        let mut result = result.map_err(|error| format!("{error:#}"));
        let mut figures = HashMap::new();
        if let (Ok(sample), Some(client)) = (&result, sampler.client()) {
            wanted.retain(|name| sample.find_tube(name).is_some());
            Watched::add_tubes_in_turn(&mut wanted, sample, turn);
            match Figures::ask(client, wanted) {
                Ok(found) => figures = found,
                Err(error) => result = Err(format!("{error:#}")),
            }
        }
        self.lock().add_sample(result, figures, now);
        self.changed.notify_all();
    }
}

/// A request to the sampling thread for a sample. Any thread can wait for the answer.
#[derive(Debug)]
pub(super) struct SampleRequest(Arc<SharedState>);

impl SampleRequest {
    /// Returns the current state of the watched server. If the last sample is too old, first waits
    /// for a new sample, but not longer than `patience`.
    pub(super) fn wait(&self, patience: Duration) -> MutexGuard<'_, Watched> {
        let state = self.0.lock();
        if state.sampled_at.is_some_and(|at| at.elapsed() < ATTENTION_TIME) {
            return state;
        }
        let before = state.samples;
        let changed = self.0.changed.wait_timeout_while(state, patience, |it| it.samples == before);
        changed.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// If a request is dropped, ends the work for the request after the current batch.
struct InterruptOnDrop(Interrupt);

impl Drop for InterruptOnDrop {
    /// Ends the work for a request that is dropped.
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Watcher {
    /// Starts the sampling thread of a server; the thread waits for requests.
    pub(super) fn start(address: Address, interrupt: Interrupt) -> Self {
        let shared = Arc::new(SharedState::default());
        let (given, theirs) = (address.clone(), Arc::clone(&shared));
        thread::spawn(move || run(&given, &theirs));
        Self { address, interrupt, shared }
    }

    /// Requests samples of the watched server, and the figures of these tubes.
    pub(super) fn request<'a>(&self, tubes: impl IntoIterator<Item = &'a str>) -> SampleRequest {
        let now = Instant::now();
        let mut state = self.shared.lock();
        state.asked = Some(now);
        for tube in tubes {
            if state.wanted.len() < TIMED_TUBES_MAX || state.wanted.contains_key(tube) {
                state.wanted.insert(tube.to_owned(), now);
            }
        }
        drop(state);
        self.shared.changed.notify_all();
        SampleRequest(Arc::clone(&self.shared))
    }

    /// Runs `act` in another thread, over a new connection to the server. After `limit`, or when
    /// the page is shut down, the interrupt is set, so that the work ends after its current batch.
    /// If the server does not answer, the work fails [`LATE_WORK_TIME`] later than `limit`.
    pub(super) async fn with_client<T: Send + 'static>(
        &self,
        limit: Duration,
        act: impl FnOnce(&mut Client, &Interrupt) -> Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let interrupt = self.interrupt.for_part();
        let _guard = InterruptOnDrop(interrupt.clone());
        let (address, given) = (self.address.clone(), interrupt.clone());
        let deadline = Some(Instant::now() + limit + LATE_WORK_TIME);
        let mut work =
            spawn_blocking(move || act(&mut Client::connect_until(&address, deadline)?, &given));
        let done = if let Ok(done) = timeout(limit, &mut work).await {
            done
        } else {
            interrupt.set();
            work.await
        };
        done.map_err(Error::from)?.map_err(Into::into)
    }
}

/// The sampling thread: samples the server while pages send requests.
fn run(address: &Address, shared: &SharedState) {
    loop {
        let is_idle =
            |it: &mut Watched| it.asked.is_none_or(|asked| asked.elapsed() >= ATTENTION_TIME);
        let state = shared.changed.wait_while(shared.lock(), is_idle);
        drop(state.unwrap_or_else(PoisonError::into_inner));
        let mut sampler = Sampler::new(address.clone(), Some(SAMPLE_TIME_LIMIT));
        loop {
            let began = Instant::now();
            shared.take_sample(&mut sampler);
            let busy = began.elapsed();
            thread::sleep(SAMPLE_INTERVAL.max(busy * SAMPLE_TIME_SHARE).saturating_sub(busy));
            if is_idle(&mut shared.lock()) {
                break;
            }
        }
    }
}

impl Watched {
    /// Adds a sample to the state of the watched server.
    fn add_sample(
        &mut self,
        result: Result<Sample, String>,
        mut figures: HashMap<String, Figures>,
        now: Instant,
    ) {
        self.samples += 1;
        self.sampled_at = Some(now);
        if let Ok(sample) = &result {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let at = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let has_rates = sample.has_rates;
            let point = |line: &TubeSample, wait, next| {
                let rates = has_rates.then_some((line.puts, line.deletes));
                Point { at, counts: line.counts, rates, wait, next }
            };
            self.server.push_point(point(&sample.server, None, None));
            let found = figures.iter().filter_map(|(name, it)| Some((name.clone(), it.next?)));
            self.next.extend(found);
            self.next.retain(|name, _| sample.find_tube(name).is_some_and(|it| it.counts[0] > 0));
            let has_all = sample.tubes.len() <= HISTORY_TUBES_MAX;
            for line in &sample.tubes {
                if has_all || self.wanted.contains_key(&line.tube) {
                    let known = self.tubes.entry(line.tube.clone()).or_default();
                    let figures = figures.remove(&line.tube).unwrap_or_default();
                    let next = figures.next;
                    let wait = known.update_figures(figures, now);
                    known.push_point(point(line, wait, next));
                    known.is_seen = true;
                }
            }
            // Drop the history of tubes that no longer exist. If the server has many tubes, also
            // drop the history of tubes that no page shows.
            self.tubes.retain(|_, known| std::mem::take(&mut known.is_seen));
        }
        self.now = Some(result);
    }

    /// Adds tubes that have ready jobs and that no open page shows, to find jobs that wait too
    /// long. If there are too many such tubes for one sample, each sample adds the next tubes, in
    /// rotation.
    fn add_tubes_in_turn(wanted: &mut HashSet<String>, sample: &Sample, turn: usize) {
        let room = TIMED_TUBES_MAX.saturating_sub(wanted.len());
        let is_other = |line: &&TubeSample| line.counts[0] > 0 && !wanted.contains(&line.tube);
        let others: Vec<_> =
            sample.tubes.iter().filter(is_other).map(|it| it.tube.clone()).collect();
        let begin = turn.wrapping_mul(room) % others.len().max(1);
        let room = room.min(others.len());
        wanted.extend(others.into_iter().cycle().skip(begin).take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(counts: [u64; 2], sum: f64) -> Figures {
        let [low, all] = counts;
        Figures::read(&format!(
            "---\nwait-seconds-le-1: {low}\nwait-seconds-le-inf: {all}\nwait-seconds-sum: {sum}\n"
        ))
    }

    #[test]
    fn the_waits_of_the_last_minute_are_known() {
        let (mut known, start) = (TubeHistory::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(known.update_figures(waits([5, 9], 100.0), at(0)), None);
        assert_eq!(known.update_figures(waits([5, 10], 103.0), at(1)), Some(3.0));
        assert_eq!(known.update_figures(waits([5, 10], 103.0), at(2)), None, "none was reserved");
        assert_eq!(known.recent_waits().unwrap().mean(), Some(3.0));
        assert_eq!(known.update_figures(waits([6, 11], 104.0), at(90)), Some(1.0));
        assert_eq!(known.recent_waits().unwrap().mean(), Some(1.0), "old waits are dropped");
        assert_eq!(
            known.update_figures(waits([0, 1], 2.0), at(91)),
            None,
            "the tube was created again"
        );
        assert_eq!(known.update_figures(Figures::default(), at(92)), None);
    }

    /// Without the rotation, jobs that wait too long in the last tubes would never be found.
    #[test]
    fn every_tube_has_its_turn() {
        let line = |number| TubeSample {
            tube: format!("t{number:04}"),
            counts: [1, 0, 0, 0, 0],
            puts: 0.0,
            deletes: 0.0,
            paused: 0,
            watching: 1,
        };
        let (server, tubes) = (line(9_999), (0..1_000).map(line).collect());
        let (uptime, connections, has_rates, stats) = (1, 1, false, String::new());
        let sample = Sample { server, tubes, uptime, connections, has_rates, stats };
        let mut asked = HashSet::new();
        for turn in 0..3 {
            let mut wanted = HashSet::from(["t0007".to_owned()]);
            Watched::add_tubes_in_turn(&mut wanted, &sample, turn);
            assert_eq!(wanted.len(), TIMED_TUBES_MAX);
            asked.extend(wanted);
        }
        assert_eq!(asked.len(), 1_000);
    }

    #[test]
    fn the_past_is_bounded() {
        let mut known = TubeHistory::default();
        let point = |at| Point { at, counts: [0; 5], rates: None, wait: None, next: None };
        for at in 0..1_000 {
            known.push_point(point(at * 1_000));
        }
        assert_eq!(known.points.len(), 181);
        for at in 0..1_000 {
            known.push_point(point(at * 1_000));
            assert!(known.points.len() <= 181, "the clock was set back");
        }
    }
}
