//! The test plays a server that has more commands than the original, and checks which of these
//! commands `beanstalkctl` sends, and in which form.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server that sends given replies to some commands, and `UNKNOWN_COMMAND` to all others.
struct Played {
    address: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Played {
    fn new(replies: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let replies = replies.iter().map(|(command, reply)| {
            let is_yaml = reply.starts_with("---");
            let text = if is_yaml {
                format!("OK {}\r\n{reply}", reply.len())
            } else {
                (*reply).to_owned()
            };
            ((*command).to_owned(), text)
        });
        let replies: HashMap<String, String> = replies.collect();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for line in lines.map_while(Result::ok) {
                    let reply = replies.get(&line).map_or("UNKNOWN_COMMAND", String::as_str);
                    stream.write_all(format!("{reply}\r\n").as_bytes()).unwrap();
                    log.lock().unwrap().push(line);
                }
            }
        });
        Self { address, heard }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_beanstalkctl"));
        command.env("BEANSTALKD_SERVER", &self.address).args(arguments).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn has_heard(&self, command: &str) -> bool {
        self.heard.lock().unwrap().iter().any(|line| line == command)
    }
}

const CAPABILITIES: &str = "---\nversion: \"2.0.0\"\nstate: serving\nextensions:\n- capabilities\n\
                            - list-jobs\n- delete-tube\n- drain\n";

/// Returns the statistics of a tube with this number of ready jobs and two delayed jobs.
fn tube(ready: u64) -> String {
    format!(
        "---\nname: \"a\"\ncurrent-jobs-ready: {ready}\ncurrent-jobs-reserved: 0\n\
         current-jobs-delayed: 2\ncurrent-jobs-buried: 0\ntotal-jobs: 10003\n"
    )
}

#[test]
fn lists_of_the_server_are_used() {
    let ready =
        "---\n- id: 9\n  pri: 0\n  age: 5\n  size: 10\n- id: 2\n  pri: 7\n  age: 6\n  size: 1\n";
    let delayed = "---\n- id: 5\n  pri: 1\n  age: 0\n  size: 3\n  time-left: 42\n";
    let server = Played::new(&[
        ("capabilities", CAPABILITIES),
        ("list-tubes", "---\n- a\n"),
        ("stats-tube a", &tube(2)),
        ("list-jobs a ready 10000", ready),
        ("list-jobs a delayed 10000", delayed),
        ("list-jobs a ready 1", ready.split("- id: 2").next().unwrap()),
    ]);
    let output = server.run(&["--json", "list", "a"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let jobs: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown: Vec<_> = jobs.iter().map(|job| (job["id"].as_u64(), job["size"].as_u64())).collect();
    assert_eq!(shown, [(Some(9), Some(10)), (Some(2), Some(1)), (Some(5), Some(3))]);
    assert_eq!(jobs[2]["time-left"], 42);
    assert_eq!((&jobs[2]["state"], &jobs[1]["pri"]), (&"delayed".into(), &7.into()));
    assert!(!server.has_heard("list-jobs a buried 10000"), "there is none");
    let output = server.run(&["list", "a", "--limit", "1", "--state", "ready"]);
    assert!(output.status.success() && server.has_heard("list-jobs a ready 1"));
}

/// `list-jobs` returns at most 10,000 jobs of a state. For more jobs, `list` must use a sweep.
#[test]
fn more_jobs_than_a_list_has_are_swept() {
    let (many, one) =
        (tube(10_001), "---\nid: 1\ntube: \"a\"\nstate: ready\npri: 0\nage: 0\nttr: 1\n");
    let stats = "---\ncurrent-jobs-ready: 10003\ncmd-put: 3\ntotal-jobs: 3\nuptime: 9\n";
    let server = Played::new(&[
        ("capabilities", CAPABILITIES),
        ("list-tubes", "---\n- a\n"),
        ("stats-tube a", &many),
        ("stats", stats),
        ("stats-job 1", one),
        ("stats-job 2", "NOT_FOUND"),
        ("stats-job 3", "NOT_FOUND"),
        ("peek 1", "FOUND 1 1\r\nx"),
    ]);
    let output = server.run(&["--json", "list", "a"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
    assert!(server.has_heard("stats-job 3") && !server.has_heard("list-jobs a ready 10000"));
}

#[test]
fn the_server_drains_by_a_command() {
    let server = Played::new(&[
        ("capabilities", CAPABILITIES),
        ("drain on", "DRAINING"),
        ("drain off", "NOT_DRAINING"),
        ("drain status", "NOT_DRAINING"),
    ]);
    assert_eq!(server.run(&["drain", "on"]).stdout, b"draining\n");
    assert_eq!(server.run(&["drain", "off"]).stdout, b"not draining\n");
    assert_eq!(server.run(&["drain", "status"]).stdout, b"not draining\n");
}

/// If a server does not report its numbers of jobs, a command must fail and not assume 0.
#[test]
fn a_server_without_statistics_is_not_taken_for_an_empty_one() {
    let server = Played::new(&[
        ("stats", "---\nsome: thing\n"),
        ("list-tubes", "---\n- a\n"),
        ("stats-tube a", "---\nname: a\n"),
    ]);
    for arguments in [&["list", "*"][..], &["clear", "*", "--yes"], &["export"]] {
        let output = server.run(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && told.contains(" has no "), "{told}");
    }
}

/// If a reply describes another job than was asked for, the command must fail and delete nothing.
#[test]
fn a_reply_about_another_job_ends_the_command() {
    let stats = |id: u64| format!("---\nid: {id}\ntube: a\nstate: ready\npri: 0\nage: 0\n");
    let server = Played::new(&[("stats-job 1", &stats(2)), ("delete 1", "DELETED")]);
    let output = server.run(&["delete", "1", "--yes"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("described job 2") && !server.has_heard("delete 1"), "{told}");
    let server = Played::new(&[("stats-job 1", &stats(1)), ("peek 1", "FOUND 3 1\r\nx")]);
    let output = server.run(&["job", "1"]);
    assert!(!output.status.success() && output.stdout.is_empty());
}

/// A full list may lack the least urgent jobs, so `list` must use a sweep instead.
#[test]
fn a_list_that_is_full_is_swept() {
    let items = (1..=10_000).map(|id| format!("- id: {id}\n  pri: 0\n  age: 0\n  size: 1\n"));
    let list = format!("---\n{}", items.collect::<String>());
    let one = "---\nid: 1\ntube: \"a\"\nstate: ready\npri: 0\nage: 0\nttr: 1\n";
    let stats = "---\ncurrent-jobs-ready: 10001\ncmd-put: 3\ntotal-jobs: 3\nuptime: 9\n";
    let server = Played::new(&[
        ("capabilities", CAPABILITIES),
        ("list-tubes", "---\n- a\n"),
        ("stats-tube a", &tube(9_999)),
        ("stats", stats),
        ("list-jobs a ready 10000", &list),
        ("stats-job 1", one),
        ("stats-job 2", "NOT_FOUND"),
        ("stats-job 3", "NOT_FOUND"),
        ("peek 1", "FOUND 1 1\r\nx"),
    ]);
    let output = server.run(&["--json", "list", "a", "--state", "ready"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
    assert!(server.has_heard("stats-job 3"));
}

/// If the filter drops the most urgent job, `--limit 1` must show the next job.
#[test]
fn a_limit_counts_only_jobs_that_are_meant() {
    let ready =
        "---\n- id: 9\n  pri: 0\n  age: 5\n  size: 10\n- id: 2\n  pri: 7\n  age: 60\n  size: 1\n";
    let server = Played::new(&[
        ("capabilities", CAPABILITIES),
        ("list-tubes", "---\n- a\n"),
        ("stats-tube a", &tube(2)),
        ("list-jobs a ready 10000", ready),
        ("list-jobs a ready 1", ready.split("- id: 2").next().unwrap()),
    ]);
    let arguments = ["list", "a", "--state", "ready", "--older-than", "30", "--limit", "1"];
    let output = server.run(&[&["--json"], &arguments[..]].concat());
    assert!(String::from_utf8(output.stdout).unwrap().contains("\"id\":2"));
}
