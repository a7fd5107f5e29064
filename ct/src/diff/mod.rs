//! The same traffic to two daemons, and what they do not agree on.
//!
//! [`compare`] draws runs from seeds, plays each on a fresh pair of daemons, and makes a short
//! golden script of what it finds. Most of a run is sleep, so many are played at a time.
//!
//! Reading order: `operation` is what a run is made of, `generate` draws it, `play` plays it on a `harness`
//! of two daemons with a `tracker` of each connection, `reply` says what is the same, `shrink` makes
//! a failing run short, and `record` writes it down.

mod generate;
mod harness;
mod operation;
mod record;
mod reply;
mod runner;
mod shrink;
mod tracker;

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::generate::{GeneratorOptions, generate};
use self::harness::{Binlog, Harness, SIDES, Side};
use self::operation::{Operation, simpler};
use self::reply::{Baseline, Comparator};
use self::runner::{Difference, Verdict, run_operations};
pub use self::shrink::shrink;
use crate::check::Program;
use crate::client::Client;
use crate::dialect::Dialect;
use crate::run::run;
use crate::script::Script;
use crate::socket::SocketStage;

/// How often a run that was too slow is tried again.
const ATTEMPTS_PER_RUN: usize = 4;
/// How often a difference may fail to show again before it is taken for chance, and how often its
/// short form is played to tell how surely it shows.
const REPRODUCTION_ATTEMPTS: usize = 5;
/// How long the slower daemon gets to catch up, and how long where the difference was seen before.
const CATCH_UP_TIME: Duration = Duration::from_millis(400);
const CATCH_UP_TIME_REPRODUCING: Duration = Duration::from_millis(100);
/// How many runs with restarts go on at a time.
const RESTART_PARALLEL: usize = 4;
/// How many candidates are tried at a time while shrinking.
const SHRINK_PARALLEL: usize = 8;

/// Where a daemon is found.
#[derive(Debug, Clone)]
pub enum Target {
    /// A fresh one is started for every run.
    Start(Program),
    /// It runs already, at `host:port` or `unix:/path`, holds no jobs, and nobody else uses it.
    /// Jobs that a run leaves there are deleted.
    Connect(String),
}

impl Target {
    /// Reads an address or a command line; the latter is split at blanks.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().map(str::to_owned);
        let first = words.next().ok_or("a daemon is an address or a command")?;
        let flags: Vec<String> = words.collect();
        let has_port = first.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if flags.is_empty() && (has_port || first.starts_with("unix:")) {
            return Ok(Self::Connect(first));
        }
        Ok(Self::Start(Program { path: first.into(), flags }))
    }
}

/// How many runs, and of what kind.
#[derive(Debug, Clone)]
pub struct Options {
    /// The seed of the first run; the others follow.
    pub seed: u64,
    /// How many runs.
    pub runs: u64,
    /// How many acts a run has; at most 400, and 60 where time passes.
    pub steps: usize,
    /// Whether most of what is sent is garbage.
    pub garbage: bool,
    /// Whether the daemons keep binlogs and are ended and started again in the middle.
    pub restart: bool,
    /// No run begins later than this after the start.
    pub time: Option<Duration>,
    /// How long the search for a shorter form of one failing run may take.
    pub shrink_time: Duration,
    /// How many runs are played at a time.
    pub parallel: usize,
    /// Whether to go on after the first difference.
    pub keeps_going: bool,
    /// The dialects of left and right; where none is given, the daemon's version tells.
    pub dialects: [Option<Dialect>; 2],
}

impl Default for Options {
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

/// A difference, made short.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The seed of the run.
    pub seed: u64,
    /// What left and right answered.
    pub message: String,
    /// A golden script of it, expecting the right one's answers.
    pub script: String,
    /// Whether the search for a shorter form came to its end: time was left, and nothing that was
    /// tried was too slow every time.
    pub is_shortest: bool,
    /// How often it showed, and how often it was played.
    pub reproduced: (usize, usize),
    /// What became of the script on each of the two.
    pub check: String,
}

/// What all runs came to.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// How many runs agreed from beginning to end.
    pub agreed: u64,
    /// How many things were done in them: bytes sent, answers compared, connections ended.
    pub events: u64,
    /// The seeds of runs that were too slow for their time table, every time they were tried.
    pub too_slow: Vec<u64>,
    /// Differences that show again.
    pub findings: Vec<Finding>,
    /// Differences that did not show again: a race in a daemon, or this machine was busy.
    pub unreproduced: Vec<Finding>,
}

/// Plays runs on two daemons and tells where they differ. `progress` hears of every run's end.
///
/// An error if a daemon cannot be started or met, or if it holds jobs.
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

/// Two daemons, and what is known about them.
struct Comparison<'a> {
    targets: [&'a Target; 2],
    options: &'a Options,
    dialects: [Dialect; 2],
    masks: BTreeSet<String>,
    job_size_limit: u64,
}

impl<'a> Comparison<'a> {
    /// Asks both who they are.
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

    fn is_started(&self) -> bool {
        self.targets.iter().all(|target| matches!(target, Target::Start(_)))
    }

    /// Returns how many runs may go on at a time: daemons at an address have room for one.
    fn parallel(&self, wanted: usize) -> usize {
        match (self.is_started(), self.options.restart) {
            (false, _) => 1,
            // They wait for the disk, not for the clock.
            (true, true) => wanted.clamp(1, RESTART_PARALLEL),
            (true, false) => wanted.max(1),
        }
    }

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

    /// Plays acts on a fresh pair, or on the pair at hand.
    fn run_once(&self, operations: &[Operation], inspects: bool) -> io::Result<Verdict> {
        let comparator = Comparator::new(self.dialects.each_ref(), self.options.restart);
        let [left, right] = self.targets.map(|target| side(target, self.options.restart));
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

    /// The same, again where it was too slow.
    fn run_with_retries(&self, operations: &[Operation], inspects: bool) -> io::Result<Verdict> {
        for _ in 1..ATTEMPTS_PER_RUN {
            let verdict = self.run_once(operations, inspects)?;
            if !matches!(verdict, Verdict::TooSlow) {
                return Ok(verdict);
            }
        }
        self.run_once(operations, inspects)
    }

    fn reproduce(&self, operations: &[Operation]) -> io::Result<Verdict> {
        self.run_with_retries(operations, false)
    }

    /// Looks for a shorter run that fails, with many daemons at a time; says whether it could look
    /// to the end.
    fn shrink(
        &self,
        operations: Vec<Operation>,
        found: Difference,
    ) -> (Vec<Operation>, Difference, bool) {
        let start = Instant::now();
        let mut last = found;
        let mut is_shortest = true;
        let width = self.parallel(SHRINK_PARALLEL);
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

    /// Plays some runs at the same time. Says whether those before the one that fails are sure not
    /// to: one that is too slow, or whose daemon does not start, shows nothing.
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

    fn count_reproductions(&self, operations: &[Operation]) -> io::Result<(usize, usize)> {
        let mut reproduced = 0;
        for _ in 0..REPRODUCTION_ATTEMPTS {
            reproduced += usize::from(self.reproduce(operations)?.found().is_some());
        }
        Ok((reproduced, REPRODUCTION_ATTEMPTS))
    }

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

    /// Plays the script itself on both.
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
                        Ok(_) => format!("{name} total_delay"),
                        Err(failure) => format!("{name} fails in line {}", failure.line),
                    }
                }
            }
        });
        results.join(", ")
    }
}

/// What a daemon says about itself.
struct DaemonInfo {
    version: String,
    job_size_limit: u64,
}

impl DaemonInfo {
    fn query(target: &Target) -> io::Result<Self> {
        let daemon = match target {
            Target::Start(program) => Some(program.start(&[])?),
            Target::Connect(_) => None,
        };
        let address = match (target, &daemon) {
            (Target::Connect(address), _) => address,
            (Target::Start(_), Some(daemon)) => daemon.address(),
            (Target::Start(_), None) => "",
        };
        let stats = Client::connect(address)?.yaml("stats")?;
        let value = |key: &str| {
            let mut entries = stats.lines().filter_map(|line| line.split_once(": "));
            entries.find(|(name, _)| *name == key).map_or("", |(_, value)| value)
        };
        let version = value("version").trim_matches('"').to_owned();
        let job_size_limit = value("max-job-size").parse().map_err(io::Error::other)?;
        Ok(Self { version, job_size_limit })
    }
}

/// Tells the dialect by the version; whoever is unknown is taken for ours.
fn dialect_of(version: &str) -> Dialect {
    Dialect::named(version)
        .or_else(|| Dialect::named("ours"))
        .expect("the table of dialects has ours")
}

/// Makes ready to meet a daemon, a fresh one where it is started.
fn side(target: &Target, has_binlog: bool) -> io::Result<Side> {
    match target {
        Target::Start(program) if has_binlog => {
            let binlog = Binlog::new(program)?;
            Side::with_daemon(binlog.start()?, Some(binlog))
        }
        Target::Start(program) => Side::with_daemon(program.start(&[])?, None),
        Target::Connect(address) => Side::at_address(address, baseline(address)?),
    }
}

/// Learns from where to count at a daemon that has been used.
fn baseline(address: &str) -> io::Result<Baseline> {
    let mut client = Client::connect(address)?;
    let stats = client.yaml("stats")?;
    let holds_jobs =
        stats.lines().any(|line| line.starts_with("current-jobs-") && !line.ends_with(": 0"));
    if holds_jobs {
        return Err(io::Error::other(format!("the daemon at {address} holds jobs")));
    }
    let id = highest_id(&mut client)?;
    let counters = Baseline::counters(&client.yaml("stats")?);
    let default_tube = Baseline::counters(&client.yaml("stats-tube default")?);
    Ok(Baseline { id, counters, default_tube })
}

/// Finds the highest job id so far by making one more.
fn highest_id(client: &mut Client) -> io::Result<u64> {
    let reply = client.put(u32::MAX, u32::MAX, 1, b"")?;
    let id = reply.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| io::Error::other(format!("put answered {reply}")))?;
    client.command(&format!("delete {id}"))?;
    Ok(id)
}

/// Deletes what a run has left at an address.
fn clean_up(address: &str) -> io::Result<()> {
    let mut client = Client::connect(address)?;
    client.command("pause-tube default 0")?;
    let top = highest_id(&mut client)?;
    // A hang-up gives jobs back, but it may be noticed a little later than we ask.
    for _ in 0..100 {
        for id in top.saturating_sub(JOBS_PER_RUN_MAX)..top {
            client.command(&format!("delete {id}"))?;
        }
        if baseline(address).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    baseline(address).map(drop)
}

/// More jobs than a run makes.
const JOBS_PER_RUN_MAX: u64 = 3000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_command() {
        for address in ["127.0.0.1:11300", "localhost:1", "[::1]:11300", "unix:/tmp/x"] {
            assert!(matches!(Target::parse(address), Ok(Target::Connect(_))), "{address}");
        }
        let Ok(Target::Start(program)) = Target::parse("/usr/bin/beanstalkd -z 100") else {
            panic!("a command")
        };
        assert_eq!(program.flags, ["-z", "100"]);
        assert!(matches!(Target::parse("beanstalkd"), Ok(Target::Start(_))));
        assert!(Target::parse(" ").is_err());
    }

    #[test]
    fn a_daemon_that_does_not_start_is_an_error_and_no_difference() {
        let target = Target::parse("/bin/false").unwrap();
        let error = compare([&target, &target], &Options::default(), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
    }

    #[test]
    fn versions_tell_dialects() {
        assert_eq!(dialect_of("1.12").name, "1.12");
        assert_eq!(dialect_of("2.0.0").name, "ours");
    }
}
