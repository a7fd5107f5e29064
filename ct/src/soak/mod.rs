//! A soak test of a daemon with a binlog: mixed load, kills, restarts, and short connections. The
//! daemon must not lose an acknowledged job; memory, descriptors and the binlog must not keep
//! growing.
//!
//! A *run* is the time from a start of the daemon to its end. In each run, clients send commands
//! (`acknowledged`) while short connections are opened and closed, and `monitor` samples memory,
//! descriptors and the binlog's size. The daemon's flag alternates between `-f50`, a sync within 50
//! ms, and `-f0`, a sync before each confirmation. The last run takes a third of the test's time,
//! to detect slow growth.
//!
//! A [`PlantedDefect`] tests the checks, which must find the defect.

mod acknowledged;
mod monitor;

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::acknowledged::AcknowledgedJobs;
pub use self::monitor::Descriptors;
use self::monitor::{SAMPLE_INTERVAL, Sample, descriptors, monitor};
use crate::{Client, Daemon, Program, os};

/// The durations of the runs in seconds; after the last duration, the first duration is used again.
const RUN_SECONDS: [u64; 5] = [20, 45, 90, 30, 150];
/// The size of a segment in bytes: small, so that segments fill up and are removed all the time.
const SEGMENT_BYTES: u64 = 1 << 20;
/// The number of clients that put, reserve and delete.
const CLIENT_COUNT: usize = 4;
/// Pause of a client between two batches.
const THINK_TIME: Duration = Duration::from_millis(2);
/// At the end of a run, the daemon may have this many more open binlog files than at its start,
/// because it preallocates files. The number of other descriptors must not grow.
const BINLOG_FILES_SLACK: usize = 4;
/// The count of the daemon's descriptors is repeated until all connections are closed, but at most
/// this many times.
const CLOSE_SAMPLES: usize = 40;
/// From the second to the last quarter of a run, memory may grow by a tenth plus this many bytes.
const MEMORY_SLACK_BYTES: u64 = 2 << 20;
/// The last run takes the time of the whole test, divided by this number.
const LAST_RUN_DIVISOR: u32 = 3;

/// The parameters of the test.
#[derive(Debug, Clone)]
pub struct Config {
    /// The daemon's program; flags for the binlog are added.
    pub program: Program,
    /// The duration of all runs together.
    pub time: Duration,
    /// The seed of the clients' random choices.
    pub seed: u64,
    /// The defect to plant, if there is one.
    pub plant: Option<PlantedDefect>,
}

/// A deliberate defect, which shows whether the test finds defects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedDefect {
    /// A file of the binlog is removed between two runs.
    Loss,
    /// Some connections are not closed at the end of a run.
    Leak,
    /// A client puts jobs that no client reserves.
    Growth,
}

impl PlantedDefect {
    /// Finds the defect with this name, which the command line has asked for.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "loss" => Some(Self::Loss),
            "leak" => Some(Self::Leak),
            "growth" => Some(Self::Growth),
            _ => None,
        }
    }
}

/// The results of the soak test.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The number of runs.
    pub runs: u64,
    /// How many runs ended by SIGKILL; the others ended by SIGTERM.
    pub kills: u64,
    /// The number of commands that were answered.
    pub commands: u64,
    /// The number of acknowledged jobs that were lost.
    pub lost: u64,
    /// All faults that were found, including lost jobs.
    pub faults: Vec<String>,
    /// The largest resident memory in bytes.
    pub memory: u64,
    /// The largest size of the binlog in bytes.
    pub binlog_bytes: u64,
    /// The longest time for which the binlog was larger than its bound.
    pub over_bound: Duration,
    /// The largest numbers of open descriptors counted in a daemon without clients: at the start of
    /// a run, and at its end.
    pub files: (Descriptors, Descriptors),
    /// The maximum resident memory, in bytes, of the second and the last quarter of the last run.
    pub last_run: (u64, u64),
    /// The number of short connections that were made.
    pub short_connections: u64,
}

/// The state that the threads of one run share.
#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    /// For each client, the bytes of its jobs' live records in the binlog.
    live_bytes: [AtomicU64; CLIENT_COUNT],
    commands: AtomicU64,
    faults: AtomicU64,
    short_connections: AtomicU64,
}

impl Shared {
    /// Returns whether the clients of the soak test shall stop.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns the size of the live records of all clients' jobs in the binlog, in bytes.
    fn live_bytes(&self) -> u64 {
        self.live_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }
}

/// Runs the soak test; calls `progress` with a line each minute. Fails only if the daemon cannot be
/// started at the beginning.
pub fn run(config: &Config, folder: &Path, progress: &mut dyn FnMut(&str)) -> io::Result<Outcome> {
    drop(start(config, folder, "-f50")?);
    let mut outcome = Outcome::default();
    let mut records: Vec<_> = (0..CLIENT_COUNT)
        .map(|number| AcknowledgedJobs::new(number, config.seed + number as u64))
        .collect();
    if let Err(error) = run_all(config, folder, &mut records, &mut outcome, progress) {
        outcome.faults.push(format!("the daemon could not be used: {error}"));
    }
    for record in records {
        outcome.lost += record.lost;
        outcome.commands += record.commands;
        outcome.faults.extend(record.faults);
    }
    Ok(outcome)
}

/// Performs the runs of the soak test until the time is over, and then reserves and deletes all
/// jobs.
fn run_all(
    config: &Config,
    folder: &Path,
    records: &mut [AcknowledgedJobs],
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(&str),
) -> io::Result<()> {
    let began = Instant::now();
    let mut next_line = Duration::from_secs(60);
    for (run, &seconds) in RUN_SECONDS.iter().cycle().enumerate() {
        let left = config.time.saturating_sub(began.elapsed());
        let last = config.time / LAST_RUN_DIVISOR;
        let is_last = left <= last;
        let time = if is_last {
            left
        } else {
            Duration::from_secs(seconds).min(left.saturating_sub(last))
        };
        let flag = ["-f50", "-f0"][run % 2];
        let mut daemon = start(config, folder, flag)?;
        outcome.runs += 1;
        verify(records, &daemon, outcome)?;
        // Gives the daemon time to open its files, and to notice the closed connections.
        thread::sleep(SAMPLE_INTERVAL);
        let files = descriptors(daemon.pid());
        outcome.files.0.raise(files);
        let answered: u64 = records.iter().map(|record| record.commands).sum();
        let earlier: usize = records.iter().map(|record| record.faults.len()).sum();
        let mut report_sample = |at: Instant, sample: &Sample, commands: u64, outcome: &Outcome| {
            if at - began >= next_line {
                let minute = next_line.as_secs() / 60;
                next_line += Duration::from_secs(60);
                let faults = earlier as u64 + sample.faults + outcome.faults.len() as u64;
                progress(&progress_line(minute, run, flag, sample, answered + commands, faults));
            }
        };
        let memory = run_once(
            config,
            records,
            &mut daemon,
            folder,
            (time, files),
            outcome,
            &mut report_sample,
        )?;
        // Every fifth run ends by SIGTERM, the other runs by SIGKILL.
        end_run(&mut daemon, run % 5 != 4, outcome)?;
        for record in &mut *records {
            record.mark_unanswered();
        }
        if config.plant == Some(PlantedDefect::Loss) && run == 1 {
            remove_oldest_binlog_file(folder)?;
        }
        if is_last {
            outcome.last_run = memory;
            break;
        }
    }
    drain_all(config, folder, records, outcome)
}

/// Ends the daemon of a run of the soak test, with SIGKILL or SIGTERM.
fn end_run(daemon: &mut Daemon, is_kill: bool, outcome: &mut Outcome) -> io::Result<()> {
    outcome.kills += u64::from(is_kill);
    if daemon.exit_status().is_some() {
        outcome.faults.push(format!("the daemon died by itself: {}", daemon.stderr()));
    } else {
        daemon.signal(if is_kill { libc::SIGKILL } else { libc::SIGTERM })?;
    }
    if daemon.wait_exit(Duration::from_secs(30)).is_none() {
        outcome.faults.push("the daemon does not end".to_owned());
    }
    Ok(())
}

/// At the end of the soak test, starts the daemon once more, and reserves and deletes all jobs.
fn drain_all(
    config: &Config,
    folder: &Path,
    records: &mut [AcknowledgedJobs],
    outcome: &mut Outcome,
) -> io::Result<()> {
    let daemon = start(config, folder, "-f50")?;
    verify(records, &daemon, outcome)?;
    let address = daemon.address();
    thread::scope(|scope| {
        let drains = records.iter_mut().map(|record| {
            scope.spawn(move || record.connect(address).and_then(|mut it| record.drain(&mut it)))
        });
        let drains: Vec<_> = drains.collect();
        drains.into_iter().try_for_each(|it| it.join().expect("a drain does not panic"))
    })?;
    let left = count_jobs(&mut Client::connect(address)?)?;
    if left > 0 {
        outcome.faults.push(format!("{left} jobs are left that no client put"));
    }
    Ok(())
}

/// Starts the daemon of the soak test, with its binlog and this flag for syncs.
fn start(config: &Config, folder: &Path, flag: &str) -> io::Result<Daemon> {
    let size = SEGMENT_BYTES.to_string();
    let folder = folder.to_string_lossy();
    let flags = ["-b", &folder, flag, "-s", &size].map(str::to_owned);
    config.program.start(&flags)
}

/// Checks every client's acknowledged jobs on a daemon that has just started.
fn verify(
    records: &mut [AcknowledgedJobs],
    daemon: &Daemon,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let address = daemon.address();
    let found = count_jobs(&mut Client::connect(address)?)?;
    let (sure, unsure) = records.iter().map(AcknowledgedJobs::count).fold((0, 0), add);
    if found < sure || found > sure + unsure {
        let text = format!("{found} jobs after a restart, not {sure} to {}", sure + unsure);
        outcome.faults.push(text);
    }
    for record in records {
        let mut client = record.connect(address)?;
        record.verify(&mut client)?;
    }
    Ok(())
}

/// Adds the counts of two clients: jobs that must exist, and further jobs that perhaps exist.
fn add((a, b): (usize, usize), (c, d): (usize, usize)) -> (usize, usize) {
    (a + c, b + d)
}

/// Counts the jobs of the soak test's daemon in all states.
fn count_jobs(client: &mut Client) -> io::Result<usize> {
    let text = client.yaml("stats")?;
    let states = ["ready", "reserved", "delayed", "buried"];
    let count = |state: &str| {
        let key = format!("current-jobs-{state}: ");
        let line = text.lines().find_map(|line| line.strip_prefix(&key));
        line.and_then(|line| line.parse::<usize>().ok()).unwrap_or_default()
    };
    Ok(states.iter().map(|state| count(state)).sum())
}

/// Samples the daemon while the clients send commands for `time`. `before` has the numbers of
/// descriptors that were open at the start. Returns the maximum memory of the second and of the
/// fourth quarter of `time`.
fn run_once(
    config: &Config,
    records: &mut [AcknowledgedJobs],
    daemon: &mut Daemon,
    folder: &Path,
    (time, before): (Duration, Descriptors),
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Instant, &Sample, u64, &Outcome),
) -> io::Result<(u64, u64)> {
    let shared = Shared::default();
    let (address, pid) = (daemon.address().to_owned(), daemon.pid());
    let leaked = match config.plant {
        Some(PlantedDefect::Leak) => (0..10).map(|_| TcpStream::connect(&address)).collect(),
        _ => Vec::new(),
    };
    let memory = thread::scope(|scope| {
        for (number, record) in records.iter_mut().enumerate() {
            let (shared, address) = (&shared, &address);
            scope.spawn(move || work(number, record, address, shared));
        }
        if config.plant == Some(PlantedDefect::Growth) {
            scope.spawn(|| put_unconsumed_jobs(&address, &shared));
        }
        let churn = scope.spawn(|| churn_connections(&address, &shared));
        let monitored = monitor(daemon, folder, time, &shared, outcome, progress);
        shared.is_over.store(true, Ordering::Relaxed);
        let _ = churn.join();
        outcome.short_connections += shared.short_connections.load(Ordering::Relaxed);
        monitored
    })?;
    // All clients have closed their connections. A busy machine may need a moment until only the
    // daemon's own descriptors remain.
    let is_more = |files: &Descriptors| {
        files.others > before.others || files.binlog > before.binlog + BINLOG_FILES_SLACK
    };
    let mut samples = (0..CLOSE_SAMPLES).map(|_| {
        thread::sleep(SAMPLE_INTERVAL);
        descriptors(pid)
    });
    let files = samples.find(|files| !is_more(files)).unwrap_or_else(|| descriptors(pid));
    outcome.files.1.raise(files);
    if is_more(&files) {
        let text = format!("descriptors without clients: {files}; at the start: {before}");
        outcome.faults.push(text);
    }
    drop(leaked);
    Ok(memory)
}

/// Puts jobs that no client reserves, which is the defect [`PlantedDefect::Growth`].
fn put_unconsumed_jobs(address: &str, shared: &Shared) {
    let Ok(mut client) = Client::connect(address) else { return };
    while !shared.is_over() && client.put(0, 3600, 60, &[b'x'; 10_000]).is_ok() {
        thread::sleep(SAMPLE_INTERVAL / 25);
    }
}

/// Plants the defect [`PlantedDefect::Loss`]: removes the oldest file of the binlog.
fn remove_oldest_binlog_file(folder: &Path) -> io::Result<()> {
    let number = |path: &Path| path.to_str()?.rsplit_once("binlog.")?.1.parse::<u64>().ok();
    let paths = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let oldest = paths.filter_map(|path| Some((number(&path)?, path))).min();
    oldest.map_or(Ok(()), |(_, path)| fs::remove_file(path))
}

/// Sends the commands of a client of the soak test until the run is over.
fn work(number: usize, record: &mut AcknowledgedJobs, address: &str, shared: &Shared) {
    let before = record.commands;
    let mut worked = || -> io::Result<()> {
        let mut client = record.connect(address)?;
        while !shared.is_over() {
            let done = record.commands;
            let earlier = record.faults.len();
            record.run_batch(&mut client)?;
            shared.faults.fetch_add((record.faults.len() - earlier) as u64, Ordering::Relaxed);
            shared.live_bytes[number].store(record.live_bytes(), Ordering::Relaxed);
            shared.commands.fetch_add(record.commands - done, Ordering::Relaxed);
            thread::sleep(THINK_TIME);
        }
        Ok(())
    };
    if let Err(error) = worked() {
        let after = record.commands - before;
        record.faults.push(format!("client {number} failed after {after} commands: {error}"));
    }
}

/// Opens and closes connections that send nothing, a command, or a part of a command.
fn churn_connections(address: &str, shared: &Shared) {
    let words: [&[u8]; 4] =
        [b"", b"put 0 0 1 500\r\nhalf a bo", b"watch away\r\nreserve\r\n", b"stats\r\nsta"];
    for word in words.iter().cycle() {
        if shared.is_over() {
            return;
        }
        if let Ok(mut stream) = TcpStream::connect(address) {
            // Ignores errors: the clients report a daemon that has ended.
            let _ = io::Write::write_all(&mut stream, word);
            shared.short_connections.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Converts bytes to MB for the report of the soak test.
#[expect(clippy::cast_precision_loss, reason = "megabytes for the eye")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Formats the line that the soak test shows each minute.
fn progress_line(
    minute: u64,
    run: usize,
    flag: &str,
    sample: &Sample,
    commands: u64,
    faults: u64,
) -> String {
    format!(
        "minute {minute:3}: run {} ({flag}), {commands} commands, memory {:.1} MB, \
         descriptors: {}, \
         binlog {:.1} MB of {:.1} allowed, {} faults",
        run + 1,
        megabytes(sample.memory),
        sample.files,
        megabytes(sample.binlog_bytes),
        megabytes(sample.bound),
        faults
    )
}

impl Outcome {
    /// Formats the results of the soak test in a few lines.
    pub fn report(&self) -> String {
        let mut text = format!(
            "{} runs, {} kills, {} commands, {} short connections\n\
             jobs lost: {}\n\
             memory at most {:.1} MB; in the last run {:.1} MB in its second quarter, {:.1} MB in \
             its last\n\
             binlog at most {:.1} MB, beyond its bound for {:.1} s at most\n\
             descriptors at most: {} at a start; {} without clients at the end of a run\n",
            self.runs,
            self.kills,
            self.commands,
            self.short_connections,
            self.lost,
            megabytes(self.memory),
            megabytes(self.last_run.0),
            megabytes(self.last_run.1),
            megabytes(self.binlog_bytes),
            self.over_bound.as_secs_f64(),
            self.files.0,
            self.files.1
        );
        for fault in self.faults.iter().take(20) {
            text = text + "FAULT " + fault + "\n";
        }
        text + if self.faults.is_empty() { "no faults\n" } else { "faults found\n" }
    }
}

/// Raises, for the soak test, the limit on open files, which daemons inherit from this process.
pub fn prepare() -> io::Result<()> {
    os::raise_open_files().map(drop)
}
