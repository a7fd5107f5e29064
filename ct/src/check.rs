//! Plays many scripts against real daemons and reports the result of each script.
//!
//! [`check_all`] gives every script a daemon of its own and plays many scripts in parallel, because
//! scripts mostly sleep. If a script fails because the machine is too slow for its schedule, the
//! script is played again alone. [`check_at`] plays one script after another on a running daemon,
//! and skips scripts that need a daemon of their own.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::daemon::Daemon;
use crate::dialect::Dialect;
use crate::run::{Failure, Outcome, run};
use crate::script::{Script, ScriptError};
use crate::socket::SocketStage;

/// The most scripts that are played in parallel.
const PARALLEL_SCRIPTS: usize = 16;
/// A failure is reported only if the script was late by at most this time. If a script is later
/// than this limit, a timer can end before a command that should come before its end. On a quiet
/// machine, a script that runs alone is late by less than half of this time.
const LATENESS_MAX: Duration = Duration::from_millis(100);
/// Scripts that fail because they ran late are repeated for this long. If they still fail then,
/// they count as skipped.
const RETRY_TIME: Duration = Duration::from_secs(180);

/// How to start a daemon: a binary, and flags in addition to a script's flags.
#[derive(Debug, Clone)]
pub struct Program {
    /// The binary.
    pub path: PathBuf,
    /// Flags for every start.
    pub flags: Vec<String>,
}

impl Program {
    /// Makes a program with this binary and without flags.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), flags: Vec::new() }
    }

    /// Starts the daemon for a script, with the program's flags and the script's flags.
    pub fn start(&self, flags: &[String]) -> io::Result<Daemon> {
        let flags: Vec<&str> = self.flags.iter().chain(flags).map(String::as_str).collect();
        Daemon::start(&self.path, &flags)
    }
}

/// How a script ended.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// All expectations were met.
    Passed,
    /// An expectation was not met.
    Failed(Failure),
    /// The script was not played, or its result proves nothing; the value is the reason.
    Skipped(String),
}

/// The result of one script.
#[derive(Debug, Clone)]
pub struct Report {
    /// The script's name.
    pub name: String,
    /// How the script ended.
    pub result: Verdict,
    /// The masks whose `when` part was executed.
    pub masks_used: BTreeSet<String>,
    /// The rules that the script proves.
    pub proves: Vec<String>,
    /// The conversation with the daemon.
    pub transcript: String,
    /// How long the script took, including the start of its daemon.
    pub duration: Duration,
    /// How late the script was at its end, compared with its schedule; zero in the reports of
    /// [`check_at`].
    pub lateness: Duration,
}

impl Report {
    /// Reports a script that could not be parsed.
    pub fn unreadable(path: &Path, error: &ScriptError) -> Self {
        let mut failure = failure(error.message.clone());
        failure.line = error.line;
        Self {
            name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            result: Verdict::Failed(failure),
            masks_used: BTreeSet::new(),
            proves: Vec::new(),
            transcript: String::new(),
            duration: Duration::ZERO,
            lateness: Duration::ZERO,
        }
    }

    /// Returns whether the script failed.
    pub fn is_failure(&self) -> bool {
        matches!(self.result, Verdict::Failed(_))
    }

    /// Returns whether the script failed and was late; a slow machine may be the cause.
    fn is_late_failure(&self) -> bool {
        self.is_failure() && self.lateness > LATENESS_MAX
    }
}

/// Plays every script against a daemon of its own; returns reports in the order of the scripts.
///
/// Scripts that sleep longest begin first, so that all scripts together take about as long as the
/// longest script. A script that failed may have failed only because the machine was slow; if it
/// ran late, it is played again alone. This is done for up to three minutes in total. A script that
/// is late each time, and always fails, is reported as skipped.
pub fn check_all(scripts: &[Script], how_to_start: &Program, dialect: &Dialect) -> Vec<Report> {
    let mut order: Vec<&Script> = scripts.iter().collect();
    order.sort_by_key(|script| std::cmp::Reverse(script.total_delay()));
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(Vec::new());
    let work = || {
        while let Some(script) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let report = check_one(script, how_to_start, dialect);
            reports.lock().expect("no worker panics while it reports").push(report);
        }
    };
    thread::scope(|scope| {
        for _ in 0..PARALLEL_SCRIPTS.min(scripts.len()) {
            scope.spawn(work);
        }
    });
    let mut reports = reports.into_inner().expect("no worker panics while it reports");
    let position = |report: &Report| scripts.iter().position(|script| script.name == report.name);
    reports.sort_by_key(position);
    let start = Instant::now();
    for (report, script) in reports.iter_mut().zip(scripts) {
        while report.is_late_failure() {
            if start.elapsed() >= RETRY_TIME {
                skip_as_too_slow(report);
                break;
            }
            *report = check_one(script, how_to_start, dialect);
        }
    }
    reports
}

/// Reports as skipped a script that was late and failed.
fn skip_as_too_slow(report: &mut Report) {
    if let Verdict::Failed(Failure { line, message, .. }) = &report.result {
        let (late, first) = (report.lateness, message.lines().next().unwrap_or_default());
        let reason =
            format!("this machine is too slow: {late:.1?} late, and in line {line} {first}");
        report.result = Verdict::Skipped(reason);
    }
}

/// Plays one script against a daemon of its own.
pub fn check_one(script: &Script, how_to_start: &Program, dialect: &Dialect) -> Report {
    let start = Instant::now();
    let mut lateness = Duration::ZERO;
    // Only our daemon knows flags with long names. If a script has such a flag, daemons that do not
    // know it get none of the script's flags.
    let is_ours = !dialect.masks.contains("extensions-unknown");
    let is_known = is_ours || script.flags.iter().all(|flag| !flag.starts_with("--"));
    let flags = if is_known { &script.flags[..] } else { &[] };
    let result = match how_to_start.start(flags) {
        Err(error) => Err(failure(format!("the daemon did not start: {error}"))),
        Ok(mut daemon) => {
            let mut stage = SocketStage::new(daemon.address(), Some(daemon.pid()));
            let result = run(script, dialect, 0, &mut stage);
            lateness = stage.lateness();
            drop(stage);
            with_daemon_output(result, &mut daemon)
        }
    };
    Report { lateness, ..report(script, result, start.elapsed()) }
}

/// Plays scripts one after another against the daemon at `host:port` or `unix:/path`.
///
/// After each script, the jobs that the script has left are deleted. Fails if no daemon answers, or
/// if the daemon has jobs, because scripts and those jobs would affect each other.
pub fn check_at(scripts: &[Script], address: &str, dialect: &Dialect) -> io::Result<Vec<Report>> {
    let mut probe = Client::connect(address)?;
    require_no_jobs(&probe.yaml("stats")?)?;
    let mut reports = Vec::new();
    for script in scripts {
        let start = Instant::now();
        if script.needs_own_daemon() {
            reports.push(skipped(script, "needs a daemon of its own"));
            continue;
        }
        let base = highest_id(&mut probe)?;
        let mut stage = SocketStage::new(address, None);
        let result = run(script, dialect, base, &mut stage);
        drop(stage);
        reports.push(report(script, result, start.elapsed()));
        clean_up(&mut probe, base)?;
    }
    Ok(reports)
}

/// Makes a failure that belongs to no line of a script.
fn failure(message: String) -> Failure {
    Failure { line: 0, message, transcript: String::new(), masks_used: BTreeSet::new() }
}

/// Adds a daemon's exit status and output to a failure. If the daemon has ended, the script has
/// failed, too.
fn with_daemon_output(
    result: Result<Outcome, Failure>,
    daemon: &mut Daemon,
) -> Result<Outcome, Failure> {
    let ended = daemon.exit_status();
    let mut failure = match (result, ended) {
        (Ok(outcome), None) => return Ok(outcome),
        (Ok(Outcome { masks_used, transcript }), Some(_)) => {
            let message = "expected a living daemon".to_owned();
            Failure { line: 0, message, transcript, masks_used }
        }
        (Err(failure), _) => failure,
    };
    if let Some(status) = ended {
        add_line(&mut failure.message, format_args!("the daemon ended with {status}"));
    }
    let stderr = daemon.stderr();
    if !stderr.is_empty() {
        let first: String = stderr.chars().take(2000).collect();
        add_line(&mut failure.message, format_args!("the daemon printed: {}", first.trim_end()));
    }
    Err(failure)
}

/// Adds a line to the message of a script that failed a check, such as its daemon's exit status.
fn add_line(message: &mut String, line: std::fmt::Arguments<'_>) {
    write!(message, "\n{line}").expect("a String takes everything");
}

/// Makes the report of a script that was played.
fn report(script: &Script, result: Result<Outcome, Failure>, duration: Duration) -> Report {
    let (result, masks_used, transcript) = match result {
        Ok(Outcome { masks_used, transcript }) => (Verdict::Passed, masks_used, transcript),
        Err(failure) => {
            let (masks_used, transcript) = (failure.masks_used.clone(), failure.transcript.clone());
            (Verdict::Failed(failure), masks_used, transcript)
        }
    };
    let (name, proves) = (script.name.clone(), script.proves.clone());
    let lateness = Duration::ZERO;
    Report { name, result, masks_used, proves, transcript, duration, lateness }
}

/// Makes the report of a script that was skipped.
fn skipped(script: &Script, reason: &str) -> Report {
    let result = Verdict::Skipped(reason.to_owned());
    let (name, proves) = (script.name.clone(), script.proves.clone());
    let (masks_used, transcript) = (BTreeSet::new(), String::new());
    let (duration, lateness) = (Duration::ZERO, Duration::ZERO);
    Report { name, result, masks_used, proves, transcript, duration, lateness }
}

/// Fails if these statistics of a running daemon count a job.
fn require_no_jobs(stats: &str) -> io::Result<()> {
    for line in stats.lines() {
        let Some((key, count)) = line.split_once(": ") else {
            continue;
        };
        let counts_jobs = key.starts_with("current-jobs-") && key != "current-jobs-urgent";
        if counts_jobs && count != "0" {
            return Err(io::Error::other(format!("the daemon holds jobs ({line})")));
        }
    }
    Ok(())
}

/// Puts a job into a running daemon, deletes the job, and returns its id, the highest so far.
pub(crate) fn highest_id(probe: &mut Client) -> io::Result<u64> {
    let reply = probe.put(u32::MAX, u32::MAX, 1, b"")?;
    let id = reply.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| io::Error::other(format!("put answered {reply}")))?;
    match probe.command(&format!("delete {id}"))?.as_str() {
        "DELETED" => Ok(id),
        other => Err(io::Error::other(format!("delete answered {other}"))),
    }
}

/// Cleans up after a script on a running daemon: deletes the jobs with ids above `base`, and ends a
/// pause of the default tube.
///
/// A job reserved by a closed connection can be deleted only once the daemon has noticed the close.
fn clean_up(probe: &mut Client, base: u64) -> io::Result<()> {
    let top = highest_id(probe)?;
    for _ in 0..100 {
        for id in base + 1..top {
            probe.command(&format!("delete {id}"))?;
        }
        if require_no_jobs(&probe.yaml("stats")?).is_ok() {
            probe.command("pause-tube default 0")?;
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    require_no_jobs(&probe.yaml("stats")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(name: &str) -> Script {
        Script::parse(name, "# s\nproves Q1\na> x\na< y").unwrap()
    }

    #[test]
    fn a_daemon_that_does_not_start_fails_each_script_in_their_order() {
        let scripts: Vec<Script> = (0..40).map(|number| script(&format!("s{number}"))).collect();
        let dialect = Dialect::named("ours").unwrap();
        let reports = check_all(&scripts, &Program::new("/bin/false"), &dialect);
        assert_eq!(reports.len(), 40);
        for (report, script) in reports.iter().zip(&scripts) {
            assert_eq!(report.name, script.name);
            assert_eq!(report.proves, ["Q1"]);
            let Verdict::Failed(failure) = &report.result else { panic!("{report:?}") };
            assert!(failure.message.contains("did not start"), "{}", failure.message);
        }
    }

    /// A timer that ends between two statements on a busy machine is no failure of the daemon.
    #[test]
    fn only_late_failures_are_repeated_and_then_skipped() {
        let failed = || Err(failure("expected `x`, got `y`".to_owned()));
        let at = |milliseconds| Duration::from_millis(milliseconds);
        let on_time = Report { lateness: at(99), ..report(&script("s"), failed(), at(500)) };
        assert!(on_time.is_failure() && !on_time.is_late_failure());
        let mut late = Report { lateness: at(101), ..report(&script("s"), failed(), at(500)) };
        assert!(late.is_late_failure());
        skip_as_too_slow(&mut late);
        assert!(!late.is_failure());
        let Verdict::Skipped(reason) = late.result else { panic!("it was not judged") };
        assert!(reason.contains("too slow") && reason.contains("got `y`"), "{reason}");
        let outcome = Outcome { masks_used: BTreeSet::new(), transcript: String::new() };
        let passed = Report { lateness: at(101), ..report(&script("s"), Ok(outcome), at(500)) };
        assert!(!passed.is_late_failure(), "it was late, but right");
    }

    #[test]
    fn a_daemon_that_holds_jobs_is_not_used() {
        let stats = "---\ncurrent-jobs-urgent: 1\ncurrent-jobs-ready: 0\ncurrent-jobs-buried: 0\n";
        assert!(require_no_jobs(stats).is_ok());
        let error = require_no_jobs(&stats.replace("buried: 0", "buried: 3")).unwrap_err();
        assert!(error.to_string().contains("current-jobs-buried: 3"), "{error}");
    }

    #[test]
    fn exit_status_and_output_of_a_daemon_are_reported() {
        let mut daemon = Daemon::spawn_raw("/bin/sh".as_ref(), &["-c", "echo ouch >&2; exit 3"]);
        let daemon = daemon.as_mut().unwrap();
        daemon.wait_exit(Duration::from_secs(20)).unwrap();
        let outcome = Outcome { masks_used: BTreeSet::new(), transcript: "a> x\n".to_owned() };
        let failure = with_daemon_output(Ok(outcome), daemon).unwrap_err();
        assert!(failure.message.contains("exit status: 3"), "{}", failure.message);
        assert!(failure.message.contains("printed: ouch"), "{}", failure.message);
        assert_eq!(failure.transcript, "a> x\n");
    }
}
