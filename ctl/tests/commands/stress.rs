//! Acts that signals end at random moments, while other clients work or the server restarts. No job
//! may be lost, exist twice, or be deleted without confirmation, unless that is reported.
//!
//! `ACTS=n cargo test -p beanstalkctl --test commands stress -- --ignored` makes n runs, from the
//! run `FROM` on. A failing run prints its number, the seed of all its choices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Ran, Server, programs, put};
use ct::Prng;

/// The number of jobs of an act.
const JOBS: usize = 3_000;

/// The acts, as arguments of the program.
const ACTS: [&str; 6] = [
    "clear a --yes",
    "clear a --yes --save",
    "clear a --yes --older-than 0",
    "move a b --yes",
    "move a b --yes --save",
    "export",
];

const SIGNALS: [&str; 4] = ["INT", "TERM", "HUP", "KILL"];

/// What else happens at the server during the act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Another client puts, reserves and releases jobs.
    Others,
    /// The server is killed, and started again with its binlog.
    Restart,
}

/// One run. Its number is the seed of all choices.
#[derive(Debug)]
struct Run {
    act: &'static str,
    signal: &'static str,
    /// The number of signals, 20 ms apart.
    signals: u64,
    /// The time until the first signal, in units of 10 ms.
    at: u64,
    beside: Beside,
}

impl Run {
    fn choose(number: u64) -> Self {
        let mut random = Prng::new(number);
        let mut choose = |count: usize| usize::try_from(random.below(count as u64)).unwrap();
        Self {
            act: ACTS[choose(ACTS.len())],
            signal: SIGNALS[choose(SIGNALS.len())],
            signals: 1 + choose(2) as u64,
            at: choose(40) as u64,
            beside: [Beside::Nothing, Beside::Others, Beside::Restart][choose(3)],
        }
    }

    /// Whether the act writes jobs to a file.
    fn is_saved(&self) -> bool {
        self.act.ends_with("--save") || self.act == "export"
    }
}

/// Fills the tube with jobs in all states that an act changes, and returns their bodies.
fn fill(server: &Server) -> BTreeSet<Vec<u8>> {
    let line = |number: usize| {
        let state = match number {
            number if number % 7 == 1 => r#","delay":1000"#,
            number if number % 11 == 4 => r#","state":"buried""#,
            _ => "",
        };
        let pri = 5 + number % 3;
        format!("{{\"tube\":\"a\",\"body\":\"job {number}\",\"pri\":{pri}{state}}}\n")
    };
    let lines: String = (0..JOBS).map(line).collect();
    let ran = server.run_with(lines.as_bytes(), &["import"]);
    assert!(ran.status.success(), "{ran:?}");
    (0..JOBS).map(|number| format!("job {number}").into_bytes()).collect()
}

/// Puts new jobs, and reserves and releases jobs, until the act is over. Returns the new bodies.
fn others(server: &Server, is_over: &AtomicBool) -> BTreeSet<Vec<u8>> {
    let mut client = server.client();
    client.command("watch a").unwrap();
    let mut new = BTreeSet::new();
    while !is_over.load(Ordering::Relaxed) {
        let body = format!("new {}", new.len()).into_bytes();
        put(&mut client, "a", 6, 0, &body);
        new.insert(body);
        let line = client.command("reserve-with-timeout 0").unwrap();
        if let Some(rest) = line.strip_prefix("RESERVED ") {
            let (id, length) = rest.split_once(' ').unwrap();
            client.bytes(length.parse::<usize>().unwrap() + 2).unwrap();
            // The release succeeds, because the time to run of this job has not passed.
            let reply = client.command(&format!("release {id} 7 0")).unwrap();
            assert_eq!(reply, "RELEASED");
        }
        thread::sleep(Duration::from_millis(2));
    }
    new
}

/// Sends the signals of a run, and waits for the end of the command.
fn end(child: Child, run: &Run) -> Ran {
    thread::sleep(Duration::from_millis(10 * run.at));
    for _ in 0..run.signals {
        let mut probe = std::process::Command::new("sh");
        let kill = format!("kill -{} {} 2> /dev/null", run.signal, child.id());
        // The command may have ended before the signal.
        let _ = probe.args(["-c", &kill]).status();
        thread::sleep(Duration::from_millis(20));
    }
    Ran::of(child.wait_with_output().unwrap())
}

/// Returns the bodies in the complete lines of a file.
fn saved(path: &str) -> BTreeSet<Vec<u8>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let objects = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let bodies = objects.filter_map(|job| Some(job["body"].as_str()?.as_bytes().to_vec()));
    bodies.collect()
}

/// Returns the bodies of all jobs of a tube; none if the tube does not exist.
fn bodies(server: &Server, tube: &str) -> Vec<Vec<u8>> {
    // `--probe` is needed because after a restart the original does not report its last id.
    let ran = server.run(&["list", tube, "--bodies", "--json", "--probe"]);
    assert!(
        ran.status.success() || ran.stderr.contains("no matching tube"),
        "a part is listed: {ran:?}"
    );
    let objects = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
    let body = |job: serde_json::Value| job["body"].as_str().unwrap().as_bytes().to_vec();
    objects.map(body).collect()
}

/// Counts how often each body occurs.
fn counts(bodies: impl IntoIterator<Item = Vec<u8>>) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    bodies.into_iter().for_each(|body| *counts.entry(body).or_insert(0) += 1);
    counts
}

fn one(program: &Path, run: &Run) {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-b", folder.path().to_str().unwrap()];
    let mut server = Server::tcp(program, &flags);
    let old = fill(&server);
    let file = server.file("saved");
    let mut arguments: Vec<_> = run.act.split(' ').collect();
    if run.is_saved() {
        arguments.push(&file);
    }
    let child = server.command(&arguments).spawn().unwrap();
    let is_over = AtomicBool::new(false);
    let (ran, new) = match run.beside {
        Beside::Nothing => (end(child, run), BTreeSet::new()),
        Beside::Others => thread::scope(|scope| {
            let new = scope.spawn(|| others(&server, &is_over));
            let ran = end(child, run);
            is_over.store(true, Ordering::Relaxed);
            (ran, new.join().unwrap())
        }),
        Beside::Restart => {
            thread::sleep(Duration::from_millis(5 * run.at));
            server.daemon.signal(9).unwrap();
            let ran = end(child, run);
            server.restart(&flags);
            (ran, BTreeSet::new())
        }
    };
    // A killed command's jobs are ready once the server has noticed the end of the connection.
    ct::eventually("no job is reserved", || {
        server.objects(&["stats"])[0]["current-jobs-reserved"] == 0
    });
    let saved = if run.is_saved() { saved(&file) } else { BTreeSet::new() };
    judge(&server, run, &ran, [old, new, saved]);
}

/// Compares the jobs after a run, and the saved jobs, with the jobs before the run, with the jobs
/// that others put, and with the report.
fn judge(server: &Server, run: &Run, ran: &Ran, [old, new, saved]: [BTreeSet<Vec<u8>>; 3]) {
    let (left, moved) = (bodies(server, "a"), bodies(server, "b"));
    let there = counts(left.iter().chain(&moved).cloned());
    let is_killed = ran.code().is_none();
    let told = ran.stderr.as_str();
    // A job that others put before the plan may be cleared. All other new jobs must stay.
    for body in &new {
        let gone = !there.contains_key(body) && !saved.contains(body);
        let may_be_planned = run.act.starts_with("clear");
        assert!(!gone || may_be_planned, "{} is gone: {ran:?}", String::from_utf8_lossy(body));
    }
    for body in &old {
        let shown = String::from_utf8_lossy(body);
        let count = there.get(body).copied().unwrap_or(0);
        assert!(count <= 2, "{shown} is there {count} times: {ran:?}");
        let is_reported = is_killed || told.contains("may be in both places");
        assert!(count < 2 || is_reported, "{shown} is there twice: {ran:?}");
        if run.act == "export" {
            assert!(count == 1, "{shown} is gone by an export");
        } else if count == 0 {
            let may_go = run.act.starts_with("clear") && !run.is_saved();
            assert!(may_go || saved.contains(body), "{shown} is lost: {ran:?}");
        } else if saved.contains(body) && run.act.starts_with("clear") {
            let is_reported =
                is_killed || told.contains("not deleted") || told.contains("all of them");
            assert!(is_reported, "{shown} is in the file and on the server: {ran:?}");
        }
    }
    // The reported number must be the number of old jobs that are no longer in the tube `a`.
    let gone = old.iter().filter(|body| !left.contains(body)).count();
    let done = if run.act.starts_with("move") { " moved (" } else { " deleted (" };
    let number = told.lines().find(|line| line.contains(done));
    let number = number.and_then(|line| line.split(' ').nth(2)?.parse::<usize>().ok());
    if let (Some(number), Beside::Nothing, true) = (number, run.beside, run.act != "export") {
        assert_eq!(number, gone, "{ran:?}");
    }
    assert!(is_killed || !told.is_empty() || run.act == "export", "{ran:?}");
}

/// Each run chooses an act, a signal, its moment, and other events at the server.
#[test]
#[ignore = "it takes minutes: make acts"]
fn acts_that_end_at_any_moment_lose_nothing() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, count) = (number("FROM", 0), number("ACTS", 100));
    let programs = programs();
    for number in first..first + count {
        let run = Run::choose(number);
        let program = &programs[usize::try_from(number).unwrap() % programs.len()];
        eprintln!("run {number}: {} {run:?}", program.display());
        one(program, &run);
    }
}
