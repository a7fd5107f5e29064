//! Sends the same traffic to two daemons and reports where their answers differ.
//!
//! [`compare`] generates runs from seeds, and executes each run on a new pair of daemons. If the
//! daemons differ in a run, `compare` makes a short golden script from that run. Runs mostly sleep,
//! so many runs are executed in parallel.
//!
//! Reading order: `operation` has the parts of a run, `generate` makes a run, and `runner` executes
//! the run. `harness` drives the two daemons, and `tracker` follows the state of each connection.
//! `target` starts or finds a daemon, and `side` has the connections to a daemon. `reply` compares
//! replies, `shrink` shortens a failing run, and `record` writes the run as a script.

mod generate;
mod harness;
mod operation;
mod record;
mod reply;
mod runner;
mod shrink;
mod side;
mod target;
mod tracker;

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::generate::{GeneratorOptions, generate};
use self::harness::Harness;
use self::operation::{Operation, simpler};
use self::reply::Comparator;
use self::runner::{Difference, Verdict, run_operations};
pub use self::shrink::shrink;
use self::side::SIDES;
pub use self::target::Target;
use self::target::{DaemonInfo, clean_up, dialect_of, open_side};
use crate::dialect::Dialect;
use crate::run::run;
use crate::script::Script;
use crate::socket::SocketStage;

/// A run that is too slow is attempted at most this many times.
const ATTEMPTS_PER_RUN: usize = 4;
/// A run with a difference is repeated until a difference appears again, at most this many times.
/// The shortened run is always repeated this many times, to show how often the daemons differ.
const REPRODUCTION_ATTEMPTS: usize = 5;
/// How long the slower daemon gets to catch up when a run is executed for the first time.
const CATCH_UP_TIME: Duration = Duration::from_millis(400);
/// How long the slower daemon gets to catch up when a run's difference is reproduced.
const CATCH_UP_TIME_REPRODUCING: Duration = Duration::from_millis(100);
/// The most runs with restarts that are executed in parallel.
const PARALLEL_RESTART_RUNS: usize = 4;
/// To shorten a run, at most this many shorter runs are tried in parallel.
const PARALLEL_CANDIDATES: usize = 8;

/// The number and the kind of runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// The seed of the first run; every later run has the next number as its seed.
    pub seed: u64,
    /// The number of runs.
    pub runs: u64,
    /// The number of operations of a run; at most 400, or 60 in a run with pauses.
    pub steps: usize,
    /// Whether most commands are garbage.
    pub garbage: bool,
    /// Whether the daemons keep binlogs and are restarted during the run.
    pub restart: bool,
    /// No new run begins once this much time has passed.
    pub time: Option<Duration>,
    /// Time limit for shrinking one failing run.
    pub shrink_time: Duration,
    /// The most runs in parallel.
    pub parallel: usize,
    /// Whether to continue after the first difference.
    pub keeps_going: bool,
    /// The dialects of the left and the right daemon; `None` selects the dialect by the version.
    pub dialects: [Option<Dialect>; 2],
}

impl Default for Options {
    /// Returns the default options of a comparison of two daemons.
    fn default() -> Self {
        Self {
            seed: 1,
            runs: 100,
            steps: 200,
            garbage: false,
            restart: false,
            time: None,
            shrink_time: Duration::from_secs(60),
            parallel: 24,
            keeps_going: false,
            dialects: [None, None],
        }
    }
}

/// A difference between the daemons, with a short script that shows the difference.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The seed of the run.
    pub seed: u64,
    /// The different answers of the left and the right daemon.
    pub message: String,
    /// A golden script that expects the right daemon's answers.
    pub script: String,
    /// Whether the script cannot be shortened further; false if the time for shortening was over,
    /// or if a run was too slow in all attempts.
    pub is_shortest: bool,
    /// The number of times the difference appeared, and the number of attempts.
    pub reproduced: (usize, usize),
    /// The result of the script on each daemon.
    pub check: String,
}

/// The results of all runs.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// The number of runs without a difference.
    pub agreed: u64,
    /// The number of events, such as sends and replies, in the runs without a difference.
    pub events: u64,
    /// Seeds of runs that were too slow in every attempt.
    pub too_slow: Vec<u64>,
    /// Differences that were reproduced.
    pub findings: Vec<Finding>,
    /// Differences that no repetition showed: a daemon has a race, or the machine was busy.
    pub unreproduced: Vec<Finding>,
}

/// Executes runs on two daemons and returns their differences. `progress` is called at the end of
/// every run.
///
/// Fails if a daemon cannot be started or reached, or if it has jobs.
pub fn compare(
    targets: [&Target; 2],
    options: &Options,
    progress: &(dyn Fn(&Summary) + Sync),
) -> io::Result<Summary> {
    let comparison = Comparison::new(targets, options)?;
    let start = Instant::now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let state = Mutex::new((Summary::default(), None));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_late = options.time.is_some_and(|time| start.elapsed() >= time);
            if number >= options.runs || is_late || stop.load(Ordering::Relaxed) {
                return;
            }
            let result = comparison.run(options.seed.wrapping_add(number));
            let mut state = state.lock().expect("no worker panics while it counts");
            let (summary, error) = &mut *state;
            match result {
                Ok(result) => summary.count(result),
                Err(failure) => *error = Some(failure),
            }
            let has_finding = !summary.findings.is_empty() && !options.keeps_going;
            stop.fetch_or(has_finding || error.is_some(), Ordering::Relaxed);
            progress(summary);
        }
    };
    thread::scope(|scope| {
        for _ in 0..comparison.parallel(options.parallel) {
            scope.spawn(work);
        }
    });
    match state.into_inner().expect("no worker panics while it counts") {
        (summary, None) => Ok(summary),
        (_, Some(error)) => Err(error),
    }
}

/// How one run ended.
enum RunEnd {
    Agreed(usize),
    TooSlow(u64),
    Finding(Finding),
    Unreproduced(Finding),
}

impl Summary {
    /// Adds the result of a run to the summary of the comparison.
    fn count(&mut self, end: RunEnd) {
        match end {
            RunEnd::Agreed(events) => {
                self.agreed += 1;
                self.events += events as u64;
            }
            RunEnd::TooSlow(seed) => self.too_slow.push(seed),
            RunEnd::Finding(finding) => self.findings.push(finding),
            RunEnd::Unreproduced(finding) => self.unreproduced.push(finding),
        }
    }
}

/// Two daemons, with their dialects and limits.
struct Comparison<'a> {
    targets: [&'a Target; 2],
    options: &'a Options,
    dialects: [Dialect; 2],
    masks: BTreeSet<String>,
    job_size_limit: u64,
}

impl<'a> Comparison<'a> {
    /// Prepares the comparison: reads the versions and the limits of both daemons.
    fn new(targets: [&'a Target; 2], options: &'a Options) -> io::Result<Self> {
        let [left, right] = targets.map(DaemonInfo::query);
        let known = [left?, right?];
        let dialect = |side: usize| {
            let named = options.dialects[side].clone();
            named.unwrap_or_else(|| dialect_of(&known[side].version))
        };
        if options.restart && targets.iter().any(|target| matches!(target, Target::Connect(_))) {
            return Err(io::Error::other("only daemons that are started here can be restarted"));
        }
        let dialects = [dialect(0), dialect(1)];
        let masks = dialects.iter().flat_map(|dialect| dialect.masks.clone()).collect();
        let job_size_limit = known[1].job_size_limit;
        Ok(Self { targets, options, dialects, masks, job_size_limit })
    }

    /// Returns whether the comparison starts both daemons itself.
    fn is_started(&self) -> bool {
        self.targets.iter().all(|target| matches!(target, Target::Start(_)))
    }

    /// Returns how many runs may be executed in parallel: only one if a target is an address.
    fn parallel(&self, wanted: usize) -> usize {
        match (self.is_started(), self.options.restart) {
            (false, _) => 1,
            // Runs with restarts mostly wait for the disk, so few of them run in parallel.
            (true, true) => wanted.clamp(1, PARALLEL_RESTART_RUNS),
            (true, false) => wanted.max(1),
        }
    }

    /// Executes the run of a seed, and shrinks the run if the two daemons differ.
    fn run(&self, seed: u64) -> io::Result<RunEnd> {
        let Options { steps, garbage, restart, .. } = *self.options;
        let can_drain = self.is_started() && !restart;
        let mut operations =
            generate(seed, GeneratorOptions { steps, garbage, can_drain, restarts: restart });
        let found = match self.run_with_retries(&operations, true)? {
            Verdict::Agreed(events) => return Ok(RunEnd::Agreed(events)),
            Verdict::TooSlow => return Ok(RunEnd::TooSlow(seed)),
            Verdict::Differed(found) => *found,
        };
        operations.extend(found.inspection.iter().cloned());
        for _ in 0..REPRODUCTION_ATTEMPTS {
            if let Some(again) = self.reproduce(&operations)?.found() {
                let (shorter, found, is_shortest) = self.shrink(operations, again);
                let reproduced = self.count_reproductions(&shorter)?;
                let finding = self.finding(seed, &found, reproduced);
                return Ok(RunEnd::Finding(Finding { is_shortest, ..finding }));
            }
        }
        Ok(RunEnd::Unreproduced(self.finding(seed, &found, (0, REPRODUCTION_ATTEMPTS))))
    }

    /// Executes the operations of a run on a new pair of daemons, or on the daemons at the given
    /// addresses.
    fn run_once(&self, operations: &[Operation], inspects: bool) -> io::Result<Verdict> {
        let comparator = Comparator::new(self.dialects.each_ref(), self.options.restart);
        let [left, right] = self.targets.map(|target| open_side(target, self.options.restart));
        let catch_up_time = if inspects { CATCH_UP_TIME } else { CATCH_UP_TIME_REPRODUCING };
        let verdict = run_operations(
            Harness::new([left?, right?], comparator, catch_up_time),
            operations,
            inspects,
            &self.masks,
            self.job_size_limit,
        );
        for target in self.targets {
            if let Target::Connect(address) = target {
                clean_up(address)?;
            }
        }
        Ok(verdict)
    }

    /// Executes the operations of a run like [`Self::run_once`], and repeats a run that was too
    /// slow.
    fn run_with_retries(&self, operations: &[Operation], inspects: bool) -> io::Result<Verdict> {
        for _ in 1..ATTEMPTS_PER_RUN {
            let verdict = self.run_once(operations, inspects)?;
            if !matches!(verdict, Verdict::TooSlow) {
                return Ok(verdict);
            }
        }
        self.run_once(operations, inspects)
    }

    /// Executes operations once more, without an inspection at the end.
    fn reproduce(&self, operations: &[Operation]) -> io::Result<Verdict> {
        self.run_with_retries(operations, false)
    }

    /// Shortens a run in which the daemons differ, by executing several shorter runs in parallel.
    /// Also returns whether shortening was completed.
    fn shrink(
        &self,
        operations: Vec<Operation>,
        found: Difference,
    ) -> (Vec<Operation>, Difference, bool) {
        let start = Instant::now();
        let mut last = found;
        let mut is_shortest = true;
        let width = self.parallel(PARALLEL_CANDIDATES);
        let find_failing = |candidates: &[Vec<Operation>]| {
            for (group, candidates) in candidates.chunks(width).enumerate() {
                if start.elapsed() > self.options.shrink_time {
                    is_shortest = false;
                    return None;
                }
                let (failing, is_sure) = self.first_failing(candidates);
                is_shortest &= is_sure;
                if let Some((index, found)) = failing {
                    last = found;
                    return Some(group * width + index);
                }
            }
            None
        };
        let operations = shrink(operations, simpler, find_failing);
        (operations, last, is_shortest)
    }

    /// Executes in parallel several candidates for a shorter run. Returns the first run in which a
    /// difference was found, and whether all runs before it were executed in time, and so have
    /// none. A run proves nothing if it was too slow, or if its daemon did not start.
    fn first_failing(&self, candidates: &[Vec<Operation>]) -> (Option<(usize, Difference)>, bool) {
        let verdicts: Vec<Option<Verdict>> = thread::scope(|scope| {
            let threads: Vec<_> = candidates
                .iter()
                .map(|operations| scope.spawn(|| self.reproduce(operations).ok()))
                .collect();
            threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
        });
        let mut is_sure = true;
        for (index, verdict) in verdicts.into_iter().enumerate() {
            match verdict {
                Some(Verdict::Differed(found)) => return (Some((index, *found)), is_sure),
                Some(Verdict::Agreed(_)) => {}
                Some(Verdict::TooSlow) | None => is_sure = false,
            }
        }
        (None, is_sure)
    }

    /// Counts how often the two daemons differ if the operations are repeated.
    fn count_reproductions(&self, operations: &[Operation]) -> io::Result<(usize, usize)> {
        let mut reproduced = 0;
        for _ in 0..REPRODUCTION_ATTEMPTS {
            reproduced += usize::from(self.reproduce(operations)?.found().is_some());
        }
        Ok((reproduced, REPRODUCTION_ATTEMPTS))
    }

    /// Describes a difference of the two daemons, with its script.
    fn finding(&self, seed: u64, found: &Difference, reproduced: (usize, usize)) -> Finding {
        let Options { steps, garbage, .. } = *self.options;
        let garbage = if garbage { " --garbage" } else { "" };
        let restart = if self.options.restart { " --restart" } else { "" };
        let origin = format!("ct-diff --seed {seed} --steps {steps}{garbage}{restart}");
        let script = found.record.script(&origin);
        let check = self.check(&script);
        let message = found.record.message.clone();
        Finding { seed, message, script, is_shortest: false, reproduced, check }
    }

    /// Plays the script of a difference on both daemons.
    fn check(&self, text: &str) -> String {
        let script = match Script::parse("found", text) {
            Ok(script) => script,
            Err(error) => return format!("the script cannot be read: {error}"),
        };
        let results = [0, 1].map(|side| {
            let Target::Start(program) = self.targets[side] else {
                return format!("{} needs a fresh daemon for it", SIDES[side]);
            };
            let name = SIDES[side];
            match program.start(&script.flags) {
                Err(error) => format!("{name} does not start: {error}"),
                Ok(daemon) => {
                    let mut stage = SocketStage::new(daemon.address(), Some(daemon.pid()));
                    match run(&script, &self.dialects[side], 0, &mut stage) {
                        Ok(_) => format!("{name} passes"),
                        Err(failure) => format!("{name} fails in line {}", failure.line),
                    }
                }
            }
        });
        results.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_start_is_an_error_and_no_difference() {
        let target = Target::parse("/bin/false").unwrap();
        let error = compare([&target, &target], &Options::default(), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
    }
}
