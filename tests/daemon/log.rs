//! The daemon's log lines, and their form.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use ct::{Daemon, LONG, eventually};

use crate::harness::{
    Folder, OURS, Peer, check, daemon, serve, start, terminate, undated, wait_for_count,
};

/// Ordinary clients would fill the log, or an operator would not learn when the daemon started and
/// ended.
///
/// Proves: Q22.
#[test]
fn it_says_how_it_starts_and_ends_and_nothing_of_ordinary_days() {
    let mut daemon = daemon(&["-z", "70000"]);
    ordinary_day(daemon.address());
    daemon.signal(libc::SIGUSR1).expect("it runs");
    eventually("it drains", || daemon.stderr().contains("from now on"));
    daemon.signal(libc::SIGUSR2).expect("it runs");
    eventually("it takes jobs", || daemon.stderr().contains("again"));
    assert_eq!(terminate(&mut daemon), 0);
    let (place, pid, version) = (daemon.address(), daemon.pid(), env!("CARGO_PKG_VERSION"));
    let port = place.strip_prefix("127.0.0.1:").expect("a port of the loopback");
    let wanted = [
        format!(
            "beanstalkd: version {version}, process {pid}, started with -l 127.0.0.1 -p {port} \
             -z 70000"
        ),
        format!("beanstalkd: listens on {place}"),
        "beanstalkd: draining: new jobs are refused from now on".into(),
        "beanstalkd: no longer draining: new jobs are accepted again".into(),
        "beanstalkd: shutting down on SIGTERM, with 1 connection and 0 jobs".into(),
    ];
    let stderr = undated(&daemon.stderr());
    let told: Vec<_> = stderr.lines().collect();
    // The last client's connection may or may not have been closed by then.
    let (last, rest) = told.split_last().expect("lines");
    assert_eq!(rest, &wanted[..4], "{stderr}");
    let closed = wanted[4].replace("1 connection", "0 connections");
    assert!(last == &wanted[4] || *last == closed, "{stderr}");
    assert_eq!(daemon.stdout(), "");
}

/// Log lines in a file would not show when something happened.
///
/// Proves: Q22.
#[test]
fn a_line_begins_with_its_date() {
    let (daemon, _) = start(OURS, &["-l127.0.0.1", "-p0"]);
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:"]).output().expect("a date");
    let date = String::from_utf8_lossy(&date.stdout);
    let stderr = daemon.stderr();
    for line in stderr.lines() {
        let shape: String =
            line[..25].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000Z ", "{line}");
        // The hour may just have changed.
        assert!(line.starts_with(&date[..11]) || date.ends_with("T00:\n"), "{line}: {date}");
    }
}

/// An operator who searches for a fault would not see the commands of clients.
///
/// Proves: Q22.
#[test]
fn more_flags_v_tell_more() {
    let mut told = Vec::new();
    for flags in [&[][..], &["-V"], &["-VV"], &["-VVV"], &["--verbose", "--verbose"]] {
        let (daemon, place) = start(OURS, &[flags, &["-l127.0.0.1", "-p0"]].concat());
        ordinary_day(&place);
        let stderr = undated(&daemon.stderr());
        assert!(stderr.contains(&format!("beanstalkd: listens on {place}\n")), "{stderr}");
        assert!(stderr.lines().all(|line| line.starts_with("beanstalkd: ")), "{stderr}");
        assert!(!stderr.contains("secret"), "bodies are no matter for a log: {stderr}");
        assert_eq!(daemon.stdout(), "");
        told.push(stderr);
    }
    let tells = |word: &str| told.iter().map(|text| text.contains(word)).collect::<Vec<_>>();
    assert_eq!(tells(" connected"), [false, true, true, true, true]);
    assert_eq!(tells(" > put 0 0 60 6"), [false, false, true, true, true]);
    assert_eq!(tells(" > delete 1"), [false, false, true, true, true]);
    assert_eq!(tells(" < INSERTED 1"), [false, false, true, true, true]);
}

/// Any client that sends HTTP could fill the disk with log lines.
#[test]
fn a_crowd_of_browsers_does_not_fill_the_log() {
    let (daemon, place) = start(OURS, &["-l127.0.0.1", "-p0"]);
    let began = Instant::now();
    let request = [b"POST /", &[0xff; 200][..], b" HTTP/1.1\r\n"].concat();
    for _ in 0..100 {
        let mut browser = Peer::at(&place);
        browser.send(&request);
        assert!(browser.is_ended());
    }
    let said = daemon.stderr();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("HTTP")).collect();
    let most = 1 + began.elapsed().as_secs() / 5;
    assert!(!lines.is_empty() && lines.len() as u64 <= most, "{said}");
    assert!(lines.iter().all(|line| line.len() < 200), "{said}");
    // With `-V` each request is logged.
    let (daemon, place) = start(OURS, &["-V", "-l127.0.0.1", "-p0"]);
    for _ in 0..10 {
        let mut browser = Peer::at(&place);
        browser.send(&request);
        assert!(browser.is_ended());
    }
    eventually("each is told", || daemon.stderr().matches(" sent HTTP").count() >= 10);
}

/// Any client that switches draining could fill the disk with log lines.
#[test]
fn a_client_that_switches_draining_does_not_fill_the_log() {
    let (daemon, place) = start(OURS, &["-l127.0.0.1", "-p0"]);
    let began = Instant::now();
    let mut client = Peer::at(&place);
    for _ in 0..1000 {
        client.tell("drain on", "DRAINING");
        client.tell("drain off", "NOT_DRAINING");
    }
    client.tell("drain on", "DRAINING");
    eventually("the last state is told", || {
        daemon.stderr().trim_end().ends_with("draining: new jobs are refused from now on")
    });
    let said = daemon.stderr();
    let most = 1 + began.elapsed().as_secs() / 5;
    assert!(said.matches("draining: ").count() as u64 <= most, "{said}");
}

/// If the program that reads the log hangs, the service would stop.
///
/// Proves: Q22.
#[test]
fn a_pipe_that_nobody_reads_stops_no_client() {
    let folder = Folder::new();
    let pipe = folder.path().join("log");
    let script = format!("mkfifo '{0}' && exec 3<>'{0}' 2>&3; exec \"$0\" \"$@\"", pipe.display());
    let place = format!("unix:{}", folder.path().join("socket").display());
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, OURS, "-VV", "-l", &place]);
    let mut daemon = Daemon::spawn_command(command.stdin(Stdio::null())).expect("it starts");
    daemon.wait_until_accepts(&place, LONG).expect("it listens");
    let mut client = Peer::at(&place);
    client.turns(2000);
    // Reads as much as the pipe holds, or less.
    let read = || {
        Command::new("dd")
            .arg("bs=65536")
            .arg("count=1")
            .arg(format!("if={}", pipe.display()))
            .output()
    };
    let log = read().expect("dd runs").stdout;
    assert!(log.len() > 4096 && !String::from_utf8_lossy(&log).contains("dropped"));
    client.turns(1);
    let log = read().expect("dd runs").stdout;
    let log = String::from_utf8_lossy(&log);
    let dropped = "warning: log lines dropped, because the reader of the log was too slow: ";
    assert!(log.contains(dropped), "{log}");
}

/// In the journal, every line would have the same priority, and two dates.
///
/// Proves: Q22.
#[test]
fn the_journal_gets_priorities_instead_of_dates() {
    let run = |stream: &str| {
        let script = format!("export JOURNAL_STREAM={stream}; exec \"$0\" \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, OURS, "-V", "-c", "-l127.0.0.1", "-p0"]);
        let (mut daemon, places) = serve(command.stdin(Stdio::null()));
        check(&places[0]);
        assert_eq!(terminate(&mut daemon), 0);
        daemon.stderr()
    };
    let told = run("$(stat -L -c %d:%i /proc/self/fd/2)");
    let places = ["<4>-c does nothing", "<6>version ", "<6>listens on ", "<6>shutting down on "];
    for wanted in places {
        assert!(told.lines().any(|line| line.starts_with(wanted)), "{wanted}: {told}");
    }
    assert!(told.lines().any(|line| line.starts_with("<7>") && line.contains(" connected")));
    assert!(told.lines().all(|line| line.starts_with('<')), "{told}");
    // The variable names the journal, but standard error has been redirected since.
    let told = run("8:12345");
    assert!(told.lines().all(|line| line.contains("Z beanstalkd: ")), "{told}");
}

/// The usual commands of clients, mistakes included.
fn ordinary_day(address: &str) {
    let (mut client, mut other) = (Peer::at(address), Peer::at(address));
    assert_eq!(client.put(0, 0, b"secret"), 1);
    assert_eq!(client.reserve(), (1, b"secret".to_vec()));
    assert_eq!(client.ask("delete 1"), "DELETED");
    assert_eq!(client.ask("delete 1"), "NOT_FOUND");
    assert_eq!(client.ask("nonsense"), "UNKNOWN_COMMAND");
    client.send("put 0 0 60 6\r\nsec");
    drop(client);
    wait_for_count(&mut other, "stats", "current-connections", 1);
}
