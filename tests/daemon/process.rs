//! The real binary as its operators and clients meet it: flags and exit codes, signals, sockets,
//! descriptors, and what holds it together under clients that misbehave.
//!
//! What the protocol says is proved by the golden scripts; here is what takes a process to show.
//! Each test starts daemons of its own on free ports of the loopback and ends exactly those. A
//! test that must know what happens inside a single turn of the daemon stops the process, lays
//! everything ready, and lets it go on; so nothing here depends on who is faster, and what is
//! counted is commands, bytes and descriptors rather than time. Only "does not spin" takes a
//! moment of watching.
//!
//! What is known of a process comes from `/proc`, so these tests run on Linux. A test that needs
//! root, or a program or a network that not every machine has, says so and is skipped.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use beanstalkd::{
    cli,
    server::{COMMANDS_PER_CONNECTION, JOBS_PER_SLICE},
    sys,
};
use ct::{Arrived, Client, Daemon, LONG, Patience, Prng, SocketStage, Stage, eventually, skip};

const BEANSTALKD: &str = env!("CARGO_BIN_EXE_beanstalkd");

/// How long a daemon is watched that should have nothing to do.
const WATCHED: Duration = Duration::from_millis(1500);

/// Runs a program in the daemon's place after a shell has changed something for it.
const THEN_BECOME: &str = r#"; exec "$0" "$@""#;

// ---- Flags and exit codes ----

/// Whoever asks for help or the version would start a daemon, or get a script's error handling.
///
/// Proves: Q22.
#[test]
fn help_and_version_are_printed_and_nothing_starts() {
    let version = format!("beanstalkd {}\n", env!("CARGO_PKG_VERSION"));
    let cases = [
        ("-h", cli::usage()),
        ("--help", cli::usage()),
        ("-VhV", cli::usage()),
        ("--verbose --help --version", cli::usage()),
        ("--version", version.clone()),
        ("-v", version.clone()),
        ("-p 1 -Vv -h", version.clone()),
        // What stands behind is not looked at any more.
        ("-hx", cli::usage()),
        ("-h -x -p", cli::usage()),
        ("-v --porter start", version.clone()),
        ("-vz ten", version),
    ];
    for (line, wanted) in cases {
        let wanted = Ended { code: 0, stdout: wanted, stderr: String::new() };
        assert_eq!(run_to_its_end(BEANSTALKD, &words(line)), wanted, "{line}");
    }
}

/// A service file with a slip would start a daemon that nobody wanted so.
///
/// Proves: Q22.
#[test]
fn arguments_that_make_no_sense_end_it_with_status_5() {
    let cases = [
        ("-x", "unknown flag: -x"),
        ("-Vx", "unknown flag: -x"),
        ("--porter 1", "unknown flag: --porter"),
        ("--port", "flag requires an argument: --port"),
        ("--verbose=2", "flag takes no argument: --verbose"),
        ("-l ::1,", "an address is missing: ::1,"),
        ("start", "unknown argument: start"),
        ("-p 0 stop", "unknown argument: stop"),
        ("-l", "flag requires an argument: -l"),
        ("-VVp", "flag requires an argument: -p"),
        ("-z 10k", "invalid size: 10k"),
        ("-zten", "invalid size: ten"),
        ("-f soon", "invalid size: soon"),
        ("--", "unknown flag: --"),
        ("-p 0 -- -V", "unknown flag: --"),
        // The first mistake is the one that is told, and nothing behind it mends it.
        ("-z ten -z 5", "invalid size: ten"),
        ("-s 4096k -s 4096", "invalid size: 4096k"),
        ("-f soon -F -x", "invalid size: soon"),
        ("-l ::1, -l ::1", "an address is missing: ::1,"),
        ("-x -h", "unknown flag: -x"),
        ("start -v", "unknown argument: start"),
    ];
    for (line, wanted) in cases {
        let stderr = format!("beanstalkd: {wanted}\n{}", cli::usage());
        let wanted = Ended { code: 5, stdout: String::new(), stderr };
        assert_eq!(run_to_its_end(BEANSTALKD, &words(line)), wanted, "{line}");
    }
}

/// A script that asks for help on a full disk would find a core dump instead of a message, and
/// one that makes a mistake there would not find the status that means a mistake.
///
/// Proves: Q22.
#[test]
fn a_text_that_cannot_be_printed_is_no_reason_to_panic() {
    for (script, wanted) in
        [(r#""$0" -x 2>/dev/full"#, 5), (r#""$0" -h >/dev/full"#, 1), (r#""$0" -v >/dev/full"#, 1)]
    {
        let Ended { code, stderr, .. } = run_to_its_end("/bin/sh", &["-c", script, BEANSTALKD]);
        assert!(!stderr.contains("panicked"), "{script}: {stderr}");
        assert_eq!(code, wanted, "{script}");
    }
}

/// A daemon that cannot start would not tell why, or tell the service manager the wrong reason.
///
/// Proves: Q22.
#[test]
fn each_reason_not_to_start_has_its_status_and_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port();
    let cases = [
        ("-b /no/such/directory -p 0".into(), 10, "-b: "),
        ("-u no-such-user -l 127.0.0.1 -p 0".into(), 33, "no-such-user"),
        (format!("-l 127.0.0.1 -p {port}"), 111, "Address already in use"),
        // The original takes these for other ports.
        (format!("-l 127.0.0.1 -p {}", u32::from(port) + 65536), 111, "there is no such port"),
        ("-l 127.0.0.1 -p 4294967296".into(), 111, "there is no such port"),
        ("-l 127.0.0.1 -p 18446744073709551616".into(), 111, "there is no such port"),
        ("-l 127.0.0.1 -p -65535".into(), 111, "there is no such port"),
        // No resolver asks the network for a name with an empty label.
        ("-l no..such..host -p 0".into(), 111, "no..such..host"),
        // An address that is nobody's: it stands in documents (RFC 5737).
        ("-l 192.0.2.1 -p 0".into(), 111, "192.0.2.1"),
        ("-l 127.0.0.1 -p no-such-service".into(), 111, "no-such-service"),
        ("-l unix:/no/such/directory/socket".into(), 111, "/no/such/directory/socket"),
        ("-l unix:".into(), 111, "unix:"),
    ];
    for (line, status, wanted) in cases {
        let Ended { code, stdout, stderr } = run_to_its_end(BEANSTALKD, &words(&line));
        assert_eq!((code, &*stdout), (status, ""), "{line}: {stderr}");
        let errors: Vec<_> =
            stderr.lines().filter_map(|line| line.strip_prefix("beanstalkd: error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(wanted), "{line}: {stderr}");
        assert!(stderr.ends_with(&format!("{}\n", errors[0])), "{line}: {stderr}");
    }
    // The original keeps its binlog in the root directory then.
    let Ended { code, stderr, .. } = run_to_its_end(BEANSTALKD, &["-b", "", "-p0", "-l127.0.0.1"]);
    assert_eq!(code, 10, "{stderr}");
}

/// Command lines written for the original would be read otherwise.
///
/// Proves: Q22.
#[test]
fn flags_can_be_joined_combined_and_repeated() {
    let cases = [
        ("-VVp0 -l127.0.0.1 -z10", 10),
        ("-Vl 127.0.0.1 -p0 -z 10 -z20", 20),
        ("-z 10 -l 192.0.2.1 -p 1 -V -z 30 -l localhost -p 0", 30),
    ];
    for (line, job_size) in cases {
        let (_daemon, place) = start(BEANSTALKD, &words(line));
        assert_eq!(Peer::at(&place).count("stats", "max-job-size"), job_size, "{line}");
    }
}

/// A port that is given by its name, as other services' are, would not be found.
///
/// Proves: Q22.
#[test]
fn a_port_can_be_a_service_name() {
    let services = fs::read_to_string("/etc/services").unwrap_or_default();
    let services = services.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, place) = (words.next()?, words.next()?);
        let port: u16 = place.strip_suffix("/tcp")?.parse().ok()?;
        // Beyond what needs privileges, below what the system gives to clients.
        (1024..32768).contains(&port).then_some((name, port))
    });
    for (name, port) in services {
        if let Ok((_daemon, place)) = try_start(BEANSTALKD, &["-Vl127.0.0.1", "-p", name]) {
            assert_eq!(place, format!("127.0.0.1:{port}"), "{name}");
            Peer::at(&place).check();
            return;
        }
    }
    skip("no service of /etc/services is free");
}

/// Flags of old service files that no longer mean the same would be obeyed without a word.
///
/// Proves: Q22.
#[test]
fn what_is_not_obeyed_to_the_letter_is_warned_of() {
    let cases = [
        ("-c", "-c does nothing", 65_535),
        ("-n", "-n does nothing", 65_535),
        ("-z 1073741824", "", 1 << 30),
        ("-z 1073741825", "-z 1073741825 is too large", 1 << 30),
        ("-z -1", "-z -1 is too large", 1 << 30),
        ("-z 18446744073709551616", "-z 18446744073709551616 is too large", 1 << 30),
        ("-s 2147483649", "-s 2147483649 is too large", 65_535),
        ("-s 99999999999999999999", "-s 99999999999999999999 is too large", 65_535),
    ];
    for (line, warning, job_size) in cases {
        let daemon = daemon(&words(line));
        assert_eq!(peer(&daemon).count("stats", "max-job-size"), job_size, "{line}");
        let stderr = daemon.stderr();
        let warnings: Vec<_> = stderr.lines().filter(|line| line.contains("warning: ")).collect();
        assert_eq!(warnings.len(), usize::from(!warning.is_empty()), "{line}: {stderr}");
        assert!(warnings.iter().all(|line| line.contains(warning)), "{line}: {stderr}");
    }
}

/// A slip in a size would fill the disk, or the directory with a file for each job; one in the
/// time between syncs would end the daemon.
#[test]
fn a_size_out_of_all_proportion_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain name");
    let (mut daemon, place) = start(BEANSTALKD, &["-l127.0.0.1", "-p0", "-s1", "-f-1", "-b", path]);
    let mut client = Peer::at(&place);
    for _ in 0..3 {
        client.put(b"x");
    }
    assert_eq!(end(&mut daemon, libc::SIGTERM), 0);
    let names = fs::read_dir(path).expect("a folder").flatten().map(|entry| entry.file_name());
    let segments = names.filter(|name| name.to_string_lossy().starts_with("binlog."));
    assert_eq!(segments.count(), 1, "three small jobs fit into 4096 bytes");
    // Without a binlog it is only shown.
    let daemon = self::daemon(&["-s", "-1"]);
    assert_eq!(peer(&daemon).count("stats", "binlog-max-size"), 1 << 31);
}

/// An ordinary day would fill the log, or leave an operator without a word on what it did.
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
    assert_eq!(end(&mut daemon, libc::SIGTERM), 0);
    let (place, pid, version) = (daemon.address(), daemon.pid(), env!("CARGO_PKG_VERSION"));
    let port = place.strip_prefix("127.0.0.1:").expect("a port of the loopback");
    let wanted = [
        format!(
            "beanstalkd: version {version}, process {pid}, started with -l 127.0.0.1 -p {port} \
             -z 70000"
        ),
        format!("beanstalkd: listens on {place}"),
        "beanstalkd: draining: new jobs are refused from now on".into(),
        "beanstalkd: no longer draining: new jobs are taken again".into(),
        "beanstalkd: ending on SIGTERM, with 1 connections and 0 jobs".into(),
    ];
    let stderr = undated(&daemon.stderr());
    let told: Vec<_> = stderr.lines().collect();
    // Whether the last client has been seen off by then is chance.
    let (last, rest) = told.split_last().expect("lines");
    assert_eq!(rest, &wanted[..4], "{stderr}");
    assert!(last.starts_with("beanstalkd: ending on SIGTERM, with "), "{stderr}");
    assert_eq!(daemon.stdout(), "");
}

/// Lines in a file would not tell when something was.
///
/// Proves: Q22.
#[test]
fn a_line_begins_with_its_date() {
    let (daemon, _) = start(BEANSTALKD, &["-l127.0.0.1", "-p0"]);
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:"]).output().expect("a date");
    let date = String::from_utf8_lossy(&date.stdout);
    let stderr = daemon.stderr();
    for line in stderr.lines() {
        let shape: String =
            line[..25].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000Z ", "{line}");
        // The hour may just have changed.
        assert!(line.starts_with(&date[..11]) || date.ends_with("T00:"), "{line}: {date}");
    }
}

/// An operator who looks for a fault would not learn what clients ask for.
///
/// Proves: Q22.
#[test]
fn more_flags_v_tell_more() {
    let mut told = Vec::new();
    for flags in [&[][..], &["-V"], &["-VV"], &["-VVV"], &["--verbose", "--verbose"]] {
        let (daemon, place) = start(BEANSTALKD, &[flags, &["-l127.0.0.1", "-p0"]].concat());
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
    assert_eq!(tells(" < Inserted"), [false, false, true, true, true]);
}

// ---- Signals ----

/// A restart would cut off answers that were earned already, and look like a crash.
///
/// Proves: Q19.
#[test]
fn a_signal_ends_it_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        if is_ignored(signal) {
            skip(&format!("whoever started the tests ignores signal {signal}"));
            continue;
        }
        let path = folder.path().join("socket");
        let unix = format!("unix:{}", path.display());
        for address in ["127.0.0.1", &*unix] {
            let (mut daemon, place) = start(BEANSTALKD, &["-V", "-l", address, "-p0"]);
            let mut clients: [Peer; 4] = std::array::from_fn(|_| Peer::at(&place));
            let [producer, worker, reader, idle] = &mut clients;
            reader.ask("use other");
            reader.put(&vec![b'x'; 65_535]);
            idle.check();
            worker.send("reserve\r\n");
            wait_for_count(producer, "stats", "current-waiting", 1);

            freeze(&daemon);
            producer.send("put 0 0 60 1\r\na\r\nput 0 0 60 1\r\nb\r\nput 0 0 60 4\r\nha");
            reader.send("peek 1\r\n");
            daemon.signal(signal).expect("it runs");
            thaw(&daemon);

            assert_eq!([producer.line(), producer.line()], ["INSERTED 2", "INSERTED 3"]);
            assert_eq!([worker.line(), worker.line()], ["RESERVED 2 1", "a"]);
            assert_eq!(reader.line(), "FOUND 1 65535");
            assert_eq!(reader.line(), "x".repeat(65_535));
            for client in &mut clients {
                assert!(client.is_ended(), "signal {signal}");
            }
            let status = daemon.wait_exit(LONG).expect("it ends");
            assert_eq!(status.code(), Some(0), "signal {signal}: {status}");
            assert!(!path.exists(), "the socket file stays after signal {signal}");
        }
    }
}

/// A client that does not read, or stops in the middle of a job, would keep a restart waiting.
///
/// Proves: Q19.
#[test]
fn nobody_can_hold_up_the_end() {
    let mut daemon = daemon(&[]);
    let (mut silent, mut stalled, mut other) = (peer(&daemon), peer(&daemon), peer(&daemon));
    other.put(&vec![b'x'; 65_535]);
    silent.send("peek 1\r\n".repeat(1000));
    stalled.send("put 0 0 60 1000\r\nonly this");
    other.turns(100);
    assert_eq!(end(&mut daemon, libc::SIGTERM), 0);
}

/// Stopped again right after its start, it would look like a crash and leave its socket file.
///
/// Proves: Q19.
#[test]
fn a_signal_while_it_starts_ends_it_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    // It listens before it says so, and cannot say so until somebody reads: no other moment of a
    // start can be held fast from outside.
    let (mut reader, log) = UnixStream::pair().expect("a pair");
    fill(&log);
    let mut daemon = Command::new(BEANSTALKD)
        .args(["-l", &address])
        .stdin(Stdio::null())
        .stderr(OwnedFd::from(log))
        .spawn()
        .map(Killed)
        .expect("it starts");
    eventually("it listens", || Client::connect(&address).is_ok());
    signal_process(daemon.0.id(), "TERM");
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        reader.read_to_end(&mut said).map(|_| said)
    });
    let mut status = None;
    eventually("it ends", || {
        status = daemon.0.try_wait().expect("a child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{status:?}");
    assert!(!path.exists(), "the socket file stays");
    let said = said.join().expect("a reader").expect("a log");
    assert!(String::from_utf8_lossy(&said).contains(" listens on "));
}

/// In a container it is process 1, which the system treats otherwise: it could not be stopped.
///
/// Proves: Q19, B29.
#[test]
fn a_signal_ends_process_1() {
    let apart = ["--pid", "--fork", "--kill-child"];
    let probe = Command::new("unshare").args(apart).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return skip("unshare --pid needs root and util-linux");
    }
    for (name, signal) in [("TERM", libc::SIGTERM), ("INT", libc::SIGINT), ("HUP", libc::SIGHUP)] {
        if is_ignored(signal) {
            skip(&format!("whoever started the tests ignores signal {signal}"));
            continue;
        }
        let arguments = [&apart[..], &[BEANSTALKD, "-V", "-l127.0.0.1", "-p0"]].concat();
        let (mut unshare, place) = start("unshare", &arguments);
        let mut client = Peer::at(&place);
        assert_eq!(client.count("stats", "pid"), 1);
        client.put(b"x");
        signal_process(child_of(unshare.pid()), name);
        assert!(client.is_ended());
        let status = unshare.wait_exit(LONG).expect("it ends with its child");
        assert_eq!(status.code(), Some(0), "SIG{name}: {status}");
    }
}

/// Started with nohup, or in the background of a script, it would end with the terminal or at
/// somebody's Ctrl-C all the same: the original leaves a signal ignored that it finds ignored.
///
/// Proves: Q19.
#[test]
fn a_signal_that_is_ignored_from_the_start_stays_so() {
    let script = format!(r#"trap "" HUP INT{THEN_BECOME}"#);
    let arguments = ["-c", &script, BEANSTALKD, "-V", "-l127.0.0.1", "-p0"];
    let (daemon, place) = start("/bin/sh", &arguments);
    let mut client = Peer::at(&place);
    client.check();
    for signal in [libc::SIGHUP, libc::SIGINT] {
        daemon.signal(signal).expect("it runs");
        // Whoever ends on a signal may still serve one turn, but not two.
        assert!(client.0.command("list-tube-used").is_ok(), "it ended on signal {signal}");
        assert!(client.0.command("list-tube-used").is_ok(), "it ended on signal {signal}");
    }
}

/// Before an exchange it would go on taking jobs, or refuse to let the old ones be finished; or,
/// where the exchange is called off, take no jobs for ever.
///
/// Proves: Q18.
#[test]
fn a_signal_makes_it_drain_and_another_one_ends_that() {
    let daemon = daemon(&[]);
    let (mut client, mut uploading) = (peer(&daemon), peer(&daemon));
    client.put(b"old");
    uploading.send("put 0 0 60 11\r\nlist-");
    assert!(client.yaml("stats").contains("\ndraining: false\n"));
    for _ in 0..2 {
        daemon.signal(libc::SIGUSR1).expect("it runs");
        eventually("it drains", || client.yaml("stats").contains("\ndraining: true\n"));
        // The body that is refused is not taken for commands, be it under way already or not.
        client.send("put 0 0 60 14\r\nlist-tube-used\r\n");
        assert_eq!(client.line(), "DRAINING");
    }
    uploading.send("tubes\r\r\n");
    assert_eq!(uploading.line(), "DRAINING");
    for _ in 0..2 {
        daemon.signal(libc::SIGUSR2).expect("it runs");
        eventually("it takes jobs", || client.yaml("stats").contains("\ndraining: false\n"));
    }
    assert_eq!(client.put(b"new"), 5);
    assert_eq!(client.ask("delete 5"), "DELETED");
    daemon.signal(libc::SIGUSR1).expect("it runs");
    eventually("it drains again", || client.yaml("stats").contains("\ndraining: true\n"));
    assert_eq!(client.reserve(), (1, b"old".to_vec()));
    assert_eq!(client.ask("release 1 0 0"), "RELEASED");
    assert_eq!(client.reserve(), (1, b"old".to_vec()));
    assert_eq!(client.ask("delete 1"), "DELETED");
    peer(&daemon).check();
}

/// A client that goes while it is answered, or a log reader that goes, would take the daemon
/// along.
///
/// Proves: Q19.
#[test]
fn a_broken_pipe_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}", folder.path().join("socket").display());
    let mut daemon = Command::new(BEANSTALKD)
        .args(["-VVV", "-l", &address])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map(Killed)
        .expect("it starts");
    drop(daemon.0.stderr.take());
    eventually("it listens", || Client::connect(&address).is_ok());
    let mut client = Peer::at(&address);
    client.put(&vec![b'x'; 65_535]);
    for _ in 0..10 {
        Peer::at(&address).send("peek 1\r\n".repeat(100));
        client.check();
    }
    signal_process(daemon.0.id(), "PIPE");
    client.turns(2);
    assert!(matches!(daemon.0.try_wait(), Ok(None)));
}

/// Anybody who can connect could fill the disk with log lines.
#[test]
fn a_crowd_of_browsers_does_not_fill_the_log() {
    let (daemon, place) = start(BEANSTALKD, &["-l127.0.0.1", "-p0"]);
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
    // Who asks for more is told of each.
    let (daemon, place) = start(BEANSTALKD, &["-V", "-l127.0.0.1", "-p0"]);
    for _ in 0..10 {
        let mut browser = Peer::at(&place);
        browser.send(&request);
        assert!(browser.is_ended());
    }
    eventually("each is told", || daemon.stderr().matches(" sent HTTP").count() >= 10);
}

// ---- UNIX sockets ----

/// Clients on the same machine could not reach it, or anybody could.
///
/// Proves: Q23.
#[test]
fn a_unix_socket_has_the_mode_of_the_umask() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    for (scheme, umask, mode) in [("unix:", "077", 0o700), ("unix://", "027", 0o750)] {
        let script = format!("umask {umask}{THEN_BECOME}");
        let address = format!("{scheme}{}", path.display());
        let (daemon, place) = start("/bin/sh", &["-c", &script, BEANSTALKD, "-Vl", &address]);
        assert_eq!(place, address);
        let found = fs::metadata(&path).expect("a socket file");
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o777, mode);
        let mut client = Peer::at(&format!("unix:{}", path.display()));
        client.put(b"a\r\nb");
        assert_eq!(client.reserve(), (1, b"a\r\nb".to_vec()));
        drop(daemon); // Killed, so the next one finds its file.
    }
}

/// After a crash it would not start again until somebody removed a file.
///
/// Proves: Q23.
#[test]
fn a_socket_file_that_was_left_over_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    drop(UnixListener::bind(&path).expect("a socket"));
    let address = format!("unix:{}", path.display());
    for _ in 0..2 {
        let (daemon, _) = start(BEANSTALKD, &["-Vl", &address]);
        Peer::at(&address).check();
        drop(daemon);
        assert!(path.exists(), "a process that is killed removes nothing");
    }
    let (mut daemon, _) = start(BEANSTALKD, &["-Vl", &address]);
    assert_eq!(end(&mut daemon, libc::SIGTERM), 0);
    assert!(!path.exists(), "the socket file stays");
}

/// Started twice by mistake, the second would cut the first one off from its clients for ever.
///
/// Proves: B18, Q23.
#[test]
fn a_second_start_leaves_the_first_one_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    let (mut first, _) = start(BEANSTALKD, &["-Vl", &address]);
    let mut client = Peer::at(&address);
    client.put(b"x");
    for _ in 0..2 {
        let Ended { code, stdout, stderr } = run_to_its_end(BEANSTALKD, &["-l", &address]);
        assert_eq!((code, &*stdout), (111, ""));
        let place = path.display();
        let wanted = format!("beanstalkd: error: cannot listen on {place}: another process does\n");
        assert_eq!(stderr, wanted);
        client.check();
        assert_eq!(Peer::at(&address).ask("delete 2"), "NOT_FOUND");
    }
    assert_eq!(client.reserve(), (1, b"x".to_vec()));
    assert_eq!(end(&mut first, libc::SIGTERM), 0);
    assert!(!path.exists(), "the socket file stays");
}

/// Two that find the same socket left over, as after a power cut, would each take the other's new
/// one for it: both would run, and the first without its clients.
///
/// Proves: B18.
#[test]
fn of_several_starts_at_once_one_serves_and_the_others_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    // Each waits for the end of its input before it becomes the daemon, so all go on at once.
    let script = r#"echo waits >&2; read -r _; exec "$0" -l "$1""#;
    for round in 0..40 {
        drop(UnixListener::bind(&path).expect("a socket"));
        let (waits, gate) = UnixStream::pair().expect("a pair");
        let start = |_| {
            let mut command = Command::new("/bin/sh");
            let input = OwnedFd::from(waits.try_clone().expect("a copy"));
            command.args(["-c", script, BEANSTALKD, &address]).stdin(input);
            Daemon::spawn_command(&mut command)
        };
        let started: Result<Vec<_>, _> = (0..4).map(start).collect();
        let started = started.expect("they start");
        for daemon in &started {
            eventually("it waits", || daemon.stderr().contains("waits"));
        }
        drop(gate);
        let mut serving = Vec::new();
        for mut daemon in started {
            let says = |daemon: &Daemon, word| daemon.stderr().contains(word);
            let mut status = None;
            eventually("it listens or ends", || {
                status = daemon.exit_status();
                status.is_some() || says(&daemon, "listens on")
            });
            match status {
                None => serving.push(daemon),
                Some(status) => assert_eq!(status.code(), Some(111), "{}", daemon.stderr()),
            }
        }
        assert_eq!(serving.len(), 1, "round {round}");
        Peer::at(&address).check();
        let names = fs::read_dir(folder.path()).expect("a folder").flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["socket"], "nothing else is left beside it");
        assert_eq!(end(&mut serving[0], libc::SIGTERM), 0);
    }
}

/// The same, in the one moment that counts: while one process sets its socket up, another looks.
///
/// Proves: B18.
#[test]
fn a_start_does_not_touch_a_socket_that_another_is_setting_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    // Bound, and not listening yet.
    drop(UnixListener::bind(&path).expect("a socket"));
    let before = fs::metadata(&path).expect("a socket file").ino();
    let lock = folder.path().join(".socket.beanstalkd-start");
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
    let file = file.expect("a file");
    sys::lock_file(&file).expect("nobody else has it");
    let Ended { code, stderr, .. } = run_to_its_end(BEANSTALKD, &["-l", &address]);
    assert_eq!(code, 111, "{stderr}");
    let place = path.display();
    let wanted = format!("cannot listen on {place}: another process is about to\n");
    assert_eq!(stderr, format!("beanstalkd: error: {wanted}"));
    assert_eq!(fs::metadata(&path).expect("it stays").ino(), before);
    // One that was killed just then leaves both behind, and the next start minds neither.
    drop(file);
    assert!(lock.exists());
    let (mut daemon, _) = start(BEANSTALKD, &["-l", &address]);
    Peer::at(&address).check();
    assert!(!lock.exists());
    assert_eq!(end(&mut daemon, libc::SIGTERM), 0);
}

/// Beside one that is too busy to accept, a second start would hang for ever, unseen.
///
/// Proves: B18.
#[test]
fn a_second_start_does_not_wait_for_a_busy_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let busy = UnixListener::bind(&path).expect("a socket");
    shrink_backlog(&busy);
    let address = format!("unix:{}", path.display());
    let _first_in_line = Client::connect(&address).expect("room for one");
    let mut second = Daemon::spawn_raw(Path::new(BEANSTALKD), &["-l", &address]).expect("a start");
    let status = second.wait_exit(LONG).expect("it ends");
    assert_eq!(status.code(), Some(111));
    assert!(second.stderr().contains("another process does"), "{}", second.stderr());
    assert!(path.exists());
}

/// A slip in a path would cost somebody a file.
///
/// Proves: B18, Q23.
#[test]
fn what_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "precious").expect("a file");
    fs::create_dir(at("folder")).expect("a folder");
    std::os::unix::fs::symlink(at("file"), at("link")).expect("a link");
    for name in ["file", "folder", "link"] {
        let address = format!("unix:{}", at(name).display());
        let Ended { code, stdout, stderr } = run_to_its_end(BEANSTALKD, &["-l", &address]);
        assert_eq!((code, &*stdout), (111, ""), "{name}");
        let place = at(name).display().to_string();
        let wanted = format!("beanstalkd: error: cannot listen on {place}: a file is in the way\n");
        assert_eq!(stderr, wanted);
    }
    assert_eq!(fs::read_to_string(at("link")).expect("a link to a file"), "precious");
    assert!(at("folder").is_dir());
}

/// At its end it would remove the socket of the daemon that has taken its place.
///
/// Proves: B18.
#[test]
fn at_the_end_it_removes_only_its_own_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    let (mut first, _) = start(BEANSTALKD, &["-Vl", &address]);
    fs::remove_file(&path).expect("its socket file");
    let (_second, _) = start(BEANSTALKD, &["-Vl", &address]);
    assert_eq!(end(&mut first, libc::SIGTERM), 0);
    Peer::at(&address).check();
}

/// A path that the system cannot take would be cut short, or refused without a reason.
///
/// Proves: Q23.
#[test]
fn too_long_a_path_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    for length in [108, 300] {
        let path = folder.path().join("x".repeat(length));
        let address = format!("unix:{}", path.display());
        let Ended { code, stdout, stderr } = run_to_its_end(BEANSTALKD, &["-l", &address]);
        assert_eq!((code, &*stdout), (111, ""));
        let wanted = format!("beanstalkd: error: cannot listen on {address}: path must be shorter");
        assert!(stderr.starts_with(&wanted), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

// ---- Addresses and socket options ----

/// Workers on other machines could not connect to a daemon without `-l`, as they always could.
///
/// Proves: B31.
#[test]
fn without_an_address_it_listens_on_all_of_ipv4() {
    let (daemon, place) = start(BEANSTALKD, &["-Vp0"]);
    let port = place.strip_prefix("0.0.0.0:").expect("the place of all addresses");
    let port: u16 = port.parse().expect("a port");
    let row = format!(" 00000000:{port:04X} 00000000:0000 0A ");
    assert!(process_file(daemon.pid(), "net/tcp").contains(&row), "{place}");
    for host in ["127.0.0.1", "127.0.0.2"] {
        Peer::at(&format!("{host}:{port}")).check();
    }
}

/// An address of the newer kind could not be used, or the log would show another one.
///
/// Proves: B31.
#[test]
fn ipv6_works_and_is_logged_as_it_is_written() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("this machine has no IPv6");
    }
    for (host, shown) in [("::1", "[::1]:"), ("::", "[::]:")] {
        let (_daemon, place) = start(BEANSTALKD, &["-V", "-l", host, "-p0"]);
        let port = place.strip_prefix(shown).expect("the place that was asked for");
        Peer::at(&format!("[::1]:{port}")).check();
    }
}

/// A service file with a host's name would not start.
///
/// Proves: Q22.
#[test]
fn a_host_can_be_a_name() {
    let (_daemon, place) = start(BEANSTALKD, &["-Vl", "localhost", "-p", "0"]);
    assert!(place.starts_with("127.0.0.1:") || place.starts_with("[::1]:"), "{place}");
    Peer::at(&place).check();
}

/// Every second reply would come late by the 40 ms in which a client delays its acknowledgement.
///
/// Proves: Q27.
#[test]
fn a_small_reply_does_not_wait_for_the_one_before_to_be_acknowledged() {
    const ROUNDS: usize = 20;
    let daemon = daemon(&[]);
    let mut producer = peer(&daemon);
    let worker = TcpStream::connect(daemon.address()).expect("a connection");
    let mut worker = BufReader::new(worker);
    // A client delays acknowledgements once it has seen a conversation.
    for _ in 0..ROUNDS {
        send_all(worker.get_ref(), b"list-tube-used\r\n");
        assert_eq!(line(&mut worker), "USING default");
    }
    let mut at_once = 0;
    for round in 0..ROUNDS {
        send_all(worker.get_ref(), b"reserve\r\nreserve\r\n");
        wait_for_count(&mut producer, "stats", "current-waiting", 1);
        producer.put(b"x");
        assert_eq!(line(&mut worker), format!("RESERVED {} 1", 2 * round + 1));
        assert_eq!(line(&mut worker), "x");
        // Nothing has been sent since that could carry an acknowledgement along.
        producer.put(b"x");
        producer.turns(2);
        worker.get_ref().set_nonblocking(true).expect("a socket");
        at_once += usize::from(worker.get_ref().peek(&mut [0]).is_ok());
        worker.get_ref().set_nonblocking(false).expect("a socket");
        assert_eq!(line(&mut worker), format!("RESERVED {} 1", 2 * round + 2));
        assert_eq!(line(&mut worker), "x");
    }
    assert!(at_once > ROUNDS / 2, "{at_once} of {ROUNDS} second replies were there at once");
}

/// A worker whose machine lost its power would hold its connection and descriptor for ever.
///
/// Proves: Q27.
#[test]
fn dead_peers_are_looked_for() {
    let daemon = daemon(&[]);
    let client = TcpStream::connect(daemon.address()).expect("a connection");
    let port = |address: std::net::SocketAddr| format!("0100007F:{:04X}", address.port());
    let theirs = port(client.peer_addr().expect("it is connected"));
    let ours = port(client.local_addr().expect("it is connected"));
    let mut fields = Vec::new();
    eventually("a keepalive timer runs", || {
        let table = process_file(daemon.pid(), "net/tcp");
        let row = table.lines().find(|row| row.contains(&format!(" {theirs} {ours} ")));
        fields = row.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        // The fields are documented in proc_net_tcp.txt of the kernel; timer 2 is keepalive.
        fields.get(5).is_some_and(|timer| timer.starts_with("02:"))
    });
    let left = u32::from_str_radix(&fields[5][3..], 16).expect("hundredths of a second");
    assert!(left <= 600 * 100, "the original waits two hours; this is {left}");
}

// ---- Privileges ----

/// Asked to give up root's rights, it would keep some of them.
///
/// Proves: B17.
#[test]
fn it_becomes_another_user_wholly_and_after_it_listens() {
    let groups = ["--groups", "4,24"];
    let probe = Command::new("setpriv").args(groups).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return skip("-u needs root, and setpriv of util-linux");
    }
    let passwords = fs::read_to_string("/etc/passwd").expect("a user database");
    let nobody = passwords.lines().find_map(|line| line.strip_prefix("nobody:"));
    let nobody: Vec<&str> = nobody.expect("the user nobody").split(':').collect();
    // A port that only root may take.
    let mut outcome = Err(String::new());
    for port in (600..1024).rev() {
        let port = port.to_string();
        let rest = [BEANSTALKD, "-u", "nobody", "-Vl127.0.0.1", "-p", &port];
        outcome = try_start("setpriv", &[&groups[..], &rest].concat());
        if !matches!(&outcome, Err(stderr) if stderr.contains("in use")) {
            break;
        }
    }
    let (mut daemon, place) = outcome.expect("it starts");
    Peer::at(&place).check();
    let status = |key: &str| process_status(daemon.pid(), key);
    assert_eq!(status("Uid").split('\t').collect::<Vec<_>>(), [nobody[1]; 4]);
    assert_eq!(status("Gid").split('\t').collect::<Vec<_>>(), [nobody[2]; 4]);
    assert_eq!(status("Groups").trim(), "");
    assert_eq!(status("CapEff").trim_matches('0'), "");
    assert_eq!(status("CapPrm").trim_matches('0'), "");
    assert_eq!(end(&mut daemon, libc::SIGTERM), 0);
}

// ---- Descriptors ----

/// With all descriptors in use it would burn a processor and fill the disk with log lines, and
/// those who wait would not get in when others leave.
///
/// Proves: B5.
#[test]
fn out_of_descriptors_it_serves_whom_it_has_and_rests() {
    let Siege { daemon, place, mut inside, waiting, .. } = Siege::begin();
    assert_idle(&daemon);
    assert_eq!(shortages(&daemon), 1, "{}", daemon.stderr());
    for client in &mut inside {
        client.turns(3);
    }
    // Without a word from those who leave, each of the others would wait for a second, and that is
    // many more turns of a daemon that is asked all the time.
    let mut at_once = 0;
    for mut waiting in waiting {
        drop(inside.remove(0));
        inside[0].turns(10);
        waiting.0.set_timeout(Duration::from_millis(1)).expect("a connection");
        let first = waiting.0.line();
        at_once += usize::from(first.is_ok());
        waiting.0.set_timeout(LONG).expect("a connection");
        assert_eq!(first.unwrap_or_else(|_| waiting.line()), "USING default");
        inside.push(waiting);
    }
    assert!(at_once > KNOCKING / 2, "{at_once} of {KNOCKING} came in at once");
    for client in &mut inside {
        client.turns(3);
    }
    drop(inside);
    Peer::at(&place).check();
}

/// On a day of many short connections each one that leaves would add a line to the log, though
/// nothing has changed: others still wait.
///
/// Proves: B5.
#[test]
fn a_shortage_is_reported_once_as_long_as_it_lasts() {
    let Siege { daemon, place, mut inside, mut waiting, at_peace } = Siege::begin();
    let last = waiting.split_off(KNOCKING - 2);
    for mut waiting in waiting {
        drop(inside.remove(0));
        assert_eq!(waiting.line(), "USING default");
        inside.push(waiting);
    }
    inside[0].turns(2);
    assert_eq!(shortages(&daemon), 1, "{}", daemon.stderr());
    // When it is over and another one begins, that is news.
    drop((inside, last));
    eventually("all are closed", || descriptors(&daemon) == at_peace);
    Peer::at(&place).check();
    let _crowd: Vec<Peer> = (0..DESCRIPTORS).map(|_| Peer::at(&place)).collect();
    eventually("the next shortage is reported", || shortages(&daemon) == 2);
}

/// After some weeks of clients that come and go it would have no descriptors left.
///
/// Proves: B22, Q3.
#[test]
fn a_thousand_connections_leave_no_descriptor_behind() {
    let daemon = daemon(&[]);
    let mut other = peer(&daemon);
    other.check();
    let before = descriptors(&daemon);
    for round in 0..1000 {
        let mut client = peer(&daemon);
        client.send("list-tube-used\r\n");
        match round % 4 {
            0 => drop(client), // With its reply on the way.
            1 => client.send("put 0 0 60 9\r\nhalf"),
            2 => {
                client.send("reserve\r\n");
                client.0.half_close().expect("a connection");
                assert_eq!([client.line(), client.line()], ["USING default", "TIMED_OUT"]);
                assert!(client.is_ended());
            }
            _ => {
                client.send("quit\r\n");
                assert_eq!(client.line(), "USING default");
                assert!(client.is_ended());
            }
        }
    }
    eventually("all are closed", || descriptors(&daemon) == before);
    assert_eq!(other.count("stats", "current-connections"), 1);
    assert_eq!(other.count("stats", "total-connections"), 1001);
}

/// Workers whose machines crash would keep jobs, tubes and their places in line.
///
/// Proves: B22, Q4, Q13.
#[test]
fn a_thousand_connections_that_vanish_leave_nothing_behind() {
    const AT_A_TIME: usize = 200;
    let daemon = daemon(&[]);
    let mut other = peer(&daemon);
    for _ in 0..AT_A_TIME {
        other.put(b"x");
    }
    let before = descriptors(&daemon);
    for _ in 0..5 {
        let sockets: Vec<TcpStream> = (0..AT_A_TIME)
            .map(|number| {
                let socket = TcpStream::connect(daemon.address()).expect("a connection");
                let own = format!("use tube-{number}\r\nwatch tube-{number}\r\n");
                let rest = "reserve\r\nignore default\r\nput 0 9 9 999\r\nhalf";
                send_all(&socket, format!("{own}{rest}").as_bytes());
                socket
            })
            .collect();
        wait_for_count(&mut other, "stats", "current-jobs-reserved", AT_A_TIME);
        for socket in &sockets {
            socket.peek(&mut [0]).expect("a reply");
        }
        drop(sockets); // To close with replies unread is a reset.
        wait_for_count(&mut other, "stats", "current-connections", 1);
    }
    wait_for_count(&mut other, "stats", "current-jobs-ready", AT_A_TIME);
    assert_eq!(other.yaml("list-tubes"), "---\n- default\n");
    for key in ["current-jobs-reserved", "current-waiting", "current-workers"] {
        assert_eq!(other.count("stats", key), 0, "{key}");
    }
    eventually("all are closed", || descriptors(&daemon) == before);
}

// ---- What would make it spin ----

/// One byte of urgent data, which nobody sends on purpose, would cost a processor, or the rest of
/// what the client says.
///
/// Proves: B3.
#[test]
fn an_urgent_byte_neither_spins_nor_hides_what_follows() {
    const ASK: &str = "list-tube-used\r\n";
    // What is sent before the urgent byte, and behind it; how many commands that makes.
    let cases = [
        ("", "", 0),
        ("", ASK, 1),
        (ASK, "", 1),
        (ASK, ASK, 2),
        ("list-", "tube-used\r\n", 1),
        ("list-tube-used\r", "\n", 1),
        ("put 0 0 60 4\r\nbo", "dy\r\nlist-tube-used\r\ndelete 1\r\n", 3),
    ];
    let daemon = daemon(&[]);
    let mut other = peer(&daemon);
    let mut stage = SocketStage::new(daemon.address(), Some(daemon.pid()));
    let mut names = Vec::new();
    for (number, (before, behind, replies)) in cases.into_iter().enumerate() {
        // At once: all lies ready before the daemon looks. Otherwise it looks after each part.
        for at_once in [false, true] {
            let name = format!("{number} {at_once}");
            stage.connect(&name).expect("a connection");
            other.check();
            let id = other.put(b"x") + 1;
            other.ask(&format!("delete {}", id - 1));
            let behind = behind.replace("delete 1", &format!("delete {id}"));
            if at_once {
                freeze(&daemon);
            }
            stage.send(&name, before.as_bytes()).expect("a connection");
            if !at_once {
                other.turns(1);
            }
            stage.urgent(&name, b'!').expect("a connection");
            if !at_once {
                other.turns(1);
            }
            stage.send(&name, behind.as_bytes()).expect("a connection");
            thaw(&daemon);
            expect_lines(&mut stage, &name, replies);
            stage.send(&name, ASK.as_bytes()).expect("a connection");
            expect_lines(&mut stage, &name, 1);
            names.push(name);
        }
    }
    // One more for each: alone, in the middle of a wait, or in the middle of a job.
    for (number, name) in names.iter().enumerate() {
        let busy = ["", "reserve\r\n", "put 0 0 60 9\r\nhalf"][number % 3];
        stage.send(name, busy.as_bytes()).expect("a connection");
        stage.urgent(name, b'!').expect("a connection");
    }
    assert_idle(&daemon);
    other.check();
}

/// A client that says it is done before it reads a large reply would cost a processor until it
/// does, or get only a part.
///
/// Proves: B4.
#[test]
fn a_half_closed_client_that_does_not_read_costs_nothing_and_gets_all() {
    let daemon = daemon(&["-z", "30000000"]);
    let body = random_bytes(1, 20_000_000);
    let mut client = peer(&daemon);
    client.put(&body);
    client.send("peek 1\r\nlist-tube-used\r\npeek 1\r\n");
    client.0.half_close().expect("a connection");
    let mut other = peer(&daemon);
    other.turns(50);
    assert_idle(&daemon);
    other.check();
    for reply in ["FOUND 1 20000000", "USING default", "FOUND 1 20000000"] {
        assert_eq!(client.line(), reply);
        if reply != "USING default" {
            assert!(client.bytes(body.len()) == body, "not the body that was put");
            assert_eq!(client.line(), "");
        }
    }
    assert!(client.is_ended());
}

// ---- Bounds ----

/// One client that asks without reading would fill the memory with its replies.
#[test]
fn a_client_that_does_not_read_is_not_heard_until_it_does() {
    // Each asks for far more than all buffers of the system hold.
    for (command, times, reply) in [("peek 1", 1000, "FOUND 1 60000"), ("stats", 20_000, "OK ")] {
        let daemon = daemon(&[]);
        let mut other = peer(&daemon);
        let body = random_bytes(2, 60_000);
        other.put(&body);
        let before = memory(&daemon);

        let socket = TcpStream::connect(daemon.address()).expect("a connection");
        send_all(&socket, format!("{command}\r\n").repeat(times).as_bytes());
        let upload = [b"put 0 0 60 60000\r\n", &body[..], b"\r\n"].concat();
        let (mut puts, mut left) = (0, &upload[..0]);
        while left.is_empty() {
            assert!(puts < 1000, "it takes 60 MB from a client that does not read");
            left = send_what_fits(&socket, &upload, &mut other);
            puts += 1;
        }
        assert_eq!(other.count("stats", "cmd-put"), 1, "it reads on though nobody reads replies");
        let grown = memory(&daemon).saturating_sub(before);
        assert!(grown < 8_000_000, "{grown} bytes more than before");

        let mut replies = BufReader::new(socket.try_clone().expect("a socket"));
        for _ in 0..times {
            let first = line(&mut replies);
            assert!(first.starts_with(reply), "{first}");
            let length = first.rsplit(' ').next().expect("a word").parse().expect("a length");
            let mut got = vec![0; length];
            replies.read_exact(&mut got).expect("a body");
            assert!(command == "stats" || got == body, "not the body that was put");
            assert_eq!(line(&mut replies), "");
        }
        send_all(&socket, left);
        for id in 2..2 + puts {
            assert_eq!(line(&mut replies), format!("INSERTED {id}"));
        }
    }
}

/// Clients that announce large jobs and stop would take all memory with a few bytes.
///
/// Proves: B6.
#[test]
fn an_upload_that_stalls_costs_what_has_arrived_and_not_what_was_announced() {
    let daemon = daemon(&["-z", "1073741824"]);
    let mut other = peer(&daemon);
    other.check();
    let before = memory(&daemon);
    let mut stalled: Vec<Peer> = (0..10).map(|_| peer(&daemon)).collect();
    for client in &mut stalled {
        client.send("put 0 0 60 100000000\r\n");
        client.send(vec![b'x'; 500_000]);
    }
    // In each turn each of them gets its share of 64 KiB.
    other.turns(100);
    let grown = memory(&daemon).saturating_sub(before);
    assert!((1_000_000..20_000_000).contains(&grown), "{grown} bytes for 5,000,000 that came");
    drop(stalled);
    wait_for_count(&mut other, "stats", "current-connections", 1);
    eventually("the memory is given back", || memory(&daemon) < before + 3_000_000);
    for id in 1..=10 {
        assert_eq!(other.ask(&format!("delete {id}")), "NOT_FOUND");
    }
}

/// Without memory for one large job it would die, and every other job with it.
///
/// Proves: B22.
#[test]
fn without_memory_for_a_job_it_says_so_and_goes_on() {
    const SIZE: usize = 80_000_000;
    let script = format!("ulimit -v {}{THEN_BECOME}", SIZE / 1024);
    let arguments = ["-c", &script, BEANSTALKD, "-Vl127.0.0.1", "-p0", "-z", "1073741824"];
    let (daemon, place) = start("/bin/sh", &arguments);
    let (mut client, mut other) = (Peer::at(&place), Peer::at(&place));
    let (body, before) = (vec![b'x'; SIZE], memory(&daemon));
    for round in 1..=3 {
        assert_eq!(client.0.put(0, 0, 60, &body).expect("a reply"), "OUT_OF_MEMORY");
        client.check();
        other.check();
        assert_eq!(other.ask(&format!("peek {round}")), "NOT_FOUND");
    }
    let grown = memory(&daemon).saturating_sub(before);
    assert!(grown < 8_000_000, "{grown} bytes more than before");
    assert_eq!(client.put(b"x"), 4);
}

/// The smallest jobs would end it where large ones do not: what is missing then is not memory for
/// a job, but for the lists of all of them.
///
/// Proves: B22.
#[test]
fn without_memory_for_many_small_jobs_it_says_so_and_goes_on() {
    let (_daemon, place) = start_with_memory(100_000_000);
    let (mut client, mut other) = (Peer::at(&place), Peer::at(&place));
    let (mut inserted, mut refused) = (0_u64, 0);
    while refused == 0 {
        client.pipeline("put 0 0 60 1\r\nx\r\n", 2000, |client| match client.line().as_str() {
            "OUT_OF_MEMORY" => refused += 1,
            line => inserted += u64::from(line.starts_with("INSERTED ")),
        });
        assert!(inserted < 5_000_000, "is there no limit on memory here?");
    }
    // Whoever has jobs can work them off.
    other.check();
    for _ in 0..inserted / 2 {
        other.send("reserve\r\n");
        let line = other.line();
        assert_eq!(other.line(), "x");
        let id = line.split(' ').nth(1).expect("an id").to_owned();
        assert_eq!(other.ask(&format!("delete {id}")), "DELETED");
    }
    client.put(b"x");
}

/// Uploads that nobody ends would take its last memory, and then it would die of the next line.
///
/// Proves: B22.
#[test]
fn without_memory_for_many_uploads_it_lets_no_more_in_and_goes_on() {
    ct::soak::prepare().expect("more files");
    let (_daemon, place) = start_with_memory(60_000_000);
    let mut other = Peer::at(&place);
    let upload = [b"put 0 0 60 60000\r\n".as_slice(), &b"x".repeat(40_000)].concat();
    let address = place.parse().expect("an address");
    let mut uploads = Vec::new();
    while uploads.len() < 3000 {
        // Nobody waits at the door when there is no more room before it.
        let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
            break;
        };
        send_all(&socket, &upload);
        uploads.push(socket);
    }
    for _ in 0..100 {
        other.check();
    }
    drop(uploads);
    eventually("there is memory again", || {
        other.0.put(0, 0, 60, b"x").is_ok_and(|it| it != "OUT_OF_MEMORY")
    });
    Peer::at(&place).check();
}

/// Where address space is limited, the thread that syncs would take 64 MiB of it for blocks of
/// its own, of which it uses next to nothing.
#[test]
fn the_thread_that_syncs_takes_little_address_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain name");
    let (daemon, place) = start(BEANSTALKD, &["-l127.0.0.1", "-p0", "-f1", "-b", path]);
    let mut client = Peer::at(&place);
    client.check();
    let before = address_space(&daemon);
    client.put(b"x");
    eventually("the thread has waited for its work", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs");
        let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm"));
        let mut tasks = tasks.flatten();
        let thread = tasks.find(|task| name(task).is_ok_and(|name| name == "sync\n"));
        let status = thread.map(|task| fs::read_to_string(task.path().join("status")));
        let status = status.and_then(Result::ok).unwrap_or_default();
        status.contains("\nvoluntary_ctxt_switches:") && !status.contains("switches:\t0\nnon")
    });
    let taken = address_space(&daemon) - before;
    assert!(taken < 16 << 20, "{} MiB", taken >> 20);
}

/// A large job would come back with a byte changed, lost or doubled.
///
/// Proves: Q22.
#[test]
fn ten_megabytes_come_back_as_they_went() {
    let daemon = daemon(&["-z10000000"]);
    let body = random_bytes(3, 10_000_000);
    let mut client = peer(&daemon);
    client.put(&body);
    let (id, found) = client.reserve();
    assert!(id == 1 && found == body, "not the body that was put");
    let mut other = peer(&daemon);
    let (line, found) = other.0.with_body("peek 1").expect("a job");
    assert!(line == "FOUND 1 10000000" && found == body, "not the body that was put");
    assert_eq!(client.ask("delete 1"), "DELETED");
    client.send("put 0 0 60 10000001\r\n");
    client.send(body);
    client.send("x\r\n");
    assert_eq!(client.line(), "JOB_TOO_BIG");
    client.check();
}

/// One client that sends all it has at once would make all others wait until it is done.
#[test]
fn busy_connections_do_not_starve_the_others() {
    const BUSY: usize = 4;
    const ASKED: usize = 20_000;
    let daemon = daemon(&[]);
    let mut other = peer(&daemon);
    let mut busy: Vec<Peer> = (0..BUSY).map(|_| peer(&daemon)).collect();
    busy.iter_mut().for_each(Peer::check);
    freeze(&daemon);
    for client in &mut busy {
        client.send("peek 9\r\n".repeat(ASKED));
    }
    other.send("stats\r\n");
    thaw(&daemon);
    let asked = number_at(&other.document(), "cmd-peek");
    assert!(
        asked <= 2 * BUSY * COMMANDS_PER_CONNECTION as usize,
        "{asked} commands of others went first"
    );
    other.turns(20);
    for client in &mut busy {
        for _ in 0..ASKED {
            assert_eq!(client.line(), "NOT_FOUND");
        }
    }
}

/// Hundreds of clients that always have more to say would each go before one with a single word.
#[test]
fn a_crowd_of_busy_connections_does_not_stand_before_a_quiet_one() {
    const BUSY: usize = 300;
    const ASKED: usize = 4000;
    const ROUNDS: usize = 20;
    let mut least = usize::MAX;
    // The best of many, for nobody knows when this process is given a processor, and what the
    // daemon does until then goes first without any fault of its own.
    for _ in 0..ROUNDS {
        let daemon = daemon(&[]);
        let mut other = peer(&daemon);
        let mut busy: Vec<Peer> = (0..BUSY).map(|_| peer(&daemon)).collect();
        busy.iter_mut().for_each(Peer::check);
        freeze(&daemon);
        for client in &mut busy {
            client.send("peek 9\r\n".repeat(ASKED));
        }
        thaw(&daemon);
        for _ in 0..10 {
            let [before, after] = [0, 1].map(|_| other.count("stats", "cmd-peek"));
            if after < BUSY * ASKED {
                least = least.min(after - before);
            }
        }
        if least < 5000 {
            return;
        }
    }
    panic!("{least} commands of others go before one of a quiet client");
}

/// A producer that waits for a job, sends its own meanwhile and leaves would lose all but one.
#[test]
fn what_a_client_sent_behind_a_reserve_is_obeyed_though_it_has_gone() {
    let daemon = daemon(&[]);
    let mut other = peer(&daemon);
    let mut gone = peer(&daemon);
    gone.send("reserve\r\n".to_owned() + &"put 0 0 60 1\r\nx\r\n".repeat(3));
    wait_for_count(&mut other, "stats", "current-waiting", 1);
    drop(gone);
    wait_for_count(&mut other, "stats", "current-jobs-ready", 3);
    assert_eq!(other.count("stats", "cmd-put"), 3);
}

/// A job for a worker that has gone would be back only when that is noticed, and count as reserved.
#[test]
fn a_worker_that_has_gone_gets_no_job() {
    let daemon = daemon(&[]);
    let (mut worker, mut producer) = (peer(&daemon), peer(&daemon));
    worker.send("reserve\r\n");
    eventually("it waits", || producer.count("stats", "current-waiting") == 1);
    freeze(&daemon);
    drop(worker);
    producer.send("put 0 0 60 1\r\nx\r\nstats-job 1\r\n");
    thaw(&daemon);
    assert_eq!(producer.line(), "INSERTED 1");
    assert_eq!(number_at(&producer.document(), "reserves"), 0);
}

/// Thousands that leave at once would make those who stay wait until all are gone.
#[test]
fn a_crowd_that_leaves_does_not_stand_before_those_who_stay() {
    const LEAVING: usize = 2000;
    ct::soak::prepare().expect("more files");
    let daemon = daemon(&[]);
    let mut other = peer(&daemon);
    let mut crowd: Vec<Peer> = (0..LEAVING).map(|_| peer(&daemon)).collect();
    crowd.iter_mut().for_each(Peer::check);
    freeze(&daemon);
    drop(crowd);
    other.send("stats\r\n");
    thaw(&daemon);
    let left = number_at(&other.document(), "current-connections");
    assert!(left > LEAVING / 2, "all but {left} were closed before it was answered");
    eventually("all are gone", || other.count("stats", "current-connections") == 1);
}

/// A client behind a slow line, which brings commands in pieces, would be misunderstood.
///
/// Proves: Q1.
#[test]
fn commands_may_be_split_at_every_byte() {
    let daemon = daemon(&[]);
    let (mut client, mut other) = (peer(&daemon), peer(&daemon));
    let conversation = |id: u64| {
        let lines = [
            ("use t".into(), "USING t".into()),
            ("watch t".into(), "WATCHING 2".into()),
            ("put 0 0 60 4\r\n\r\nab".into(), format!("INSERTED {id}")),
            ("reserve".into(), format!("RESERVED {id} 4\r\n\r\nab")),
            (format!("bury {id} 5"), "BURIED".into()),
            ("nonsense".into(), "UNKNOWN_COMMAND".into()),
            ("kick 10".into(), "KICKED 1".into()),
            (format!("put 0 0 60 {}", "1".repeat(300)), "BAD_FORMAT".into()),
            (format!("delete {id}"), "DELETED".into()),
            ("reserve-with-timeout 0".into(), "TIMED_OUT".into()),
            ("ignore t".into(), "WATCHING 1".into()),
        ];
        let whole = |lines: Vec<String>| lines.join("\r\n") + "\r\n";
        let (asked, answered): (Vec<String>, Vec<String>) = lines.into_iter().unzip();
        (whole(asked), whole(answered))
    };
    let mut id = 0;
    for split in 1.. {
        id += 1;
        let (asked, answered) = conversation(id);
        let Some((first, second)) = asked.split_at_checked(split) else { break };
        client.send(first);
        other.turns(1); // So the daemon has read the first part before there is a second.
        client.send(second);
        let got = client.bytes(answered.len());
        assert_eq!(String::from_utf8_lossy(&got), answered, "split before byte {split}");
    }
    let (asked, answered) = conversation(id);
    for byte in asked.bytes() {
        client.send([byte]);
        other.turns(1);
    }
    let got = client.bytes(answered.len());
    assert_eq!(String::from_utf8_lossy(&got), answered, "byte by byte");
}

/// Somebody who kicks all jobs of a full tube would stop the daemon for everybody.
#[test]
fn a_kick_of_very_many_jobs_lets_others_in_between() {
    let daemon = daemon(&[]);
    let (mut kicker, mut other) = (peer(&daemon), peer(&daemon));
    kicker.put_many(50_000, 1000);
    freeze(&daemon);
    kicker.send("kick 4294967295\r\nlist-tube-used\r\n");
    other.send(looks_in_each_of_three_turns());
    thaw(&daemon);
    see_it_go_on(&mut other, "delayed");
    assert_eq!([kicker.line(), kicker.line()], ["KICKED 50000", "USING default"]);
}

/// A worker that leaves with very many jobs would stop the daemon for everybody.
///
/// Proves: Q4.
#[test]
fn a_worker_that_leaves_with_very_many_jobs_lets_others_in_between() {
    let daemon = daemon(&[]);
    let (mut worker, mut other) = (peer(&daemon), peer(&daemon));
    worker.put_many(50_000, 0);
    worker.reserve_many(50_000);
    freeze(&daemon);
    drop(worker);
    other.send(looks_in_each_of_three_turns());
    thaw(&daemon);
    see_it_go_on(&mut other, "reserved");
    assert_eq!(other.reserve(), (1, b"x".to_vec()));
}

/// Three times as many commands as a connection is granted in a turn; the last one of each turn
/// looks at the tube.
fn looks_in_each_of_three_turns() -> String {
    ("list-tube-used\r\n".repeat(COMMANDS_PER_CONNECTION as usize - 1) + "stats-tube default\r\n")
        .repeat(3)
}

/// Reads what [`looks_in_each_of_three_turns`] saw, and waits until 50,000 jobs have become
/// ready, each of them in its old state until it is its turn.
#[track_caller]
fn see_it_go_on(other: &mut Peer, old_state: &str) {
    let mut look = String::new();
    for _ in 0..3 {
        (1..COMMANDS_PER_CONNECTION).for_each(|_| assert_eq!(other.line(), "USING default"));
        look = other.document();
    }
    let slice = usize::try_from(JOBS_PER_SLICE).expect("a small number");
    let ready = number_at(&look, "current-jobs-ready");
    assert!((slice..=4 * slice).contains(&ready), "{ready} of 50,000 after three turns");
    while number_at(&look, &format!("current-jobs-{old_state}")) > 0 {
        look = other.yaml("stats-tube default");
        let [ready, old] =
            ["ready", old_state].map(|state| number_at(&look, &format!("current-jobs-{state}")));
        assert_eq!(ready + old, 50_000, "{look}");
    }
}

// ---- A client of these tests ----

/// A client whose every failure fails the test, at the line that called it.
#[derive(Debug)]
struct Peer(Client);

impl Peer {
    /// Connects to a place as the daemon's log writes it.
    #[track_caller]
    fn at(place: &str) -> Self {
        let mut client = Client::connect(place).expect("a connection");
        client.set_timeout(LONG).expect("a connection");
        Self(client)
    }

    #[track_caller]
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.send(bytes).expect("the daemon takes it");
    }

    #[track_caller]
    fn line(&mut self) -> String {
        self.0.line().expect("a reply")
    }

    #[track_caller]
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.0.bytes(count).expect("a reply")
    }

    /// Sends a command and returns its one line of reply.
    #[track_caller]
    fn ask(&mut self, command: &str) -> String {
        self.0.command(command).expect("a reply")
    }

    /// Sees that the daemon answers.
    #[track_caller]
    fn check(&mut self) {
        assert_eq!(self.ask("list-tube-used"), "USING default");
    }

    /// Lets so many turns of the daemon pass: whatever had reached it before has had its share
    /// in each of them.
    #[track_caller]
    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.check();
        }
    }

    /// Puts a job and returns its id.
    #[track_caller]
    fn put(&mut self, body: &[u8]) -> u64 {
        let reply = self.0.put(0, 0, 60, body).expect("a reply");
        let id = reply.strip_prefix("INSERTED ").expect("an inserted job");
        id.parse().expect("an id")
    }

    /// Puts jobs of one byte, their delay in seconds.
    #[track_caller]
    fn put_many(&mut self, count: usize, delay: u32) {
        self.pipeline(&format!("put 0 {delay} 600 1\r\nx\r\n"), count, |client| {
            assert!(client.line().starts_with("INSERTED "));
        });
    }

    #[track_caller]
    fn reserve(&mut self) -> (u64, Vec<u8>) {
        let (line, body) = self.0.with_body("reserve").expect("a job");
        let id = line.split(' ').nth(1).expect("an id");
        (id.parse().expect("a number"), body)
    }

    /// Reserves jobs of one byte.
    #[track_caller]
    fn reserve_many(&mut self, count: usize) {
        self.pipeline("reserve-with-timeout 0\r\n", count, |client| {
            assert!(client.line().starts_with("RESERVED "));
            assert_eq!(client.line(), "x");
        });
    }

    /// Sends a command many times, as many at once as fit into anybody's buffers.
    #[track_caller]
    fn pipeline(&mut self, command: &str, count: usize, mut reply: impl FnMut(&mut Self)) {
        const AT_ONCE: usize = 2000;
        for done in (0..count).step_by(AT_ONCE) {
            let now = AT_ONCE.min(count - done);
            self.send(command.repeat(now));
            (0..now).for_each(|_| reply(self));
        }
    }

    /// Reads the document of a command that has been sent.
    #[track_caller]
    fn document(&mut self) -> String {
        let line = self.line();
        let length = line.strip_prefix("OK ").expect("a document").parse().expect("a length");
        let document = self.bytes(length);
        assert_eq!(self.line(), "");
        String::from_utf8(document).expect("text")
    }

    #[track_caller]
    fn yaml(&mut self, command: &str) -> String {
        self.0.yaml(command).expect("a document")
    }

    /// Asks for one number of a document.
    #[track_caller]
    fn count(&mut self, command: &str, key: &str) -> usize {
        number_at(&self.yaml(command), key)
    }

    /// Waits for the end of the connection, and tells whether it comes without another byte.
    #[track_caller]
    fn is_ended(&mut self) -> bool {
        self.0.rest().expect("an orderly end").is_empty()
    }
}

#[track_caller]
fn number_at(document: &str, key: &str) -> usize {
    let mut lines = document.lines().filter_map(|line| line.split_once(": "));
    let (_, number) = lines.find(|&(found, _)| found == key).expect("a line with this key");
    number.parse().expect("a number")
}

#[track_caller]
fn wait_for_count(client: &mut Peer, command: &str, key: &str, count: usize) {
    eventually(&format!("{key} is {count}"), || client.count(command, key) == count);
}

/// What most clients do on most days, mistakes included.
fn ordinary_day(address: &str) {
    let (mut client, mut other) = (Peer::at(address), Peer::at(address));
    assert_eq!(client.put(b"secret"), 1);
    assert_eq!(client.reserve(), (1, b"secret".to_vec()));
    assert_eq!(client.ask("delete 1"), "DELETED");
    assert_eq!(client.ask("delete 1"), "NOT_FOUND");
    assert_eq!(client.ask("nonsense"), "UNKNOWN_COMMAND");
    client.send("put 0 0 60 6\r\nsec");
    drop(client);
    wait_for_count(&mut other, "stats", "current-connections", 1);
}

/// Has as many lines come to a stage's connection, all alike, as commands were sent.
#[track_caller]
fn expect_lines(stage: &mut SocketStage, name: &str, count: usize) {
    let (mut text, began) = (String::new(), Instant::now());
    while text.matches("\r\n").count() < count {
        match stage.receive(name, Patience::Reply) {
            Ok(Arrived::Bytes(bytes)) => text += &String::from_utf8_lossy(&bytes),
            Ok(Arrived::Nothing) if began.elapsed() < LONG => {}
            other => panic!("{name}: {other:?} after {text:?}, not {count} replies"),
        }
    }
    assert_eq!(text.matches("\r\n").count(), count, "{name}: {text:?}");
    assert!(!text.contains("UNKNOWN") && !text.contains("BAD"), "{name}: {text:?}");
}

// ---- Plain sockets ----

#[track_caller]
fn send_all(mut socket: &TcpStream, bytes: &[u8]) {
    socket.write_all(bytes).expect("the daemon takes it");
}

/// Reads a line without its CR LF.
#[track_caller]
fn line(socket: &mut impl BufRead) -> String {
    let mut line = String::new();
    socket.read_line(&mut line).expect("a reply");
    line.strip_suffix("\r\n").expect("a whole line").into()
}

/// Sends until nothing more is taken, also not after many more turns of the daemon, and returns
/// what is left then.
#[track_caller]
fn send_what_fits<'a>(mut socket: &TcpStream, bytes: &'a [u8], other: &mut Peer) -> &'a [u8] {
    let (mut left, mut patience) = (bytes, 50);
    socket.set_nonblocking(true).expect("a socket");
    while !left.is_empty() && patience > 0 {
        match socket.write(left) {
            Ok(sent) => {
                left = &left[sent..];
                patience = 50;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                other.turns(1);
                patience -= 1;
            }
        }
    }
    socket.set_nonblocking(false).expect("a socket");
    left
}

/// Fills a stream until it takes no byte more.
#[track_caller]
fn fill(mut stream: &UnixStream) {
    stream.set_nonblocking(true).expect("a socket");
    for length in [4096, 1] {
        while stream.write(&vec![b'\n'; length]).is_ok() {}
    }
    stream.set_nonblocking(false).expect("a socket");
}

/// Lets only one connection wait to be accepted.
#[expect(unsafe_code, reason = "std does not let the length of the line be chosen")]
fn shrink_backlog(listener: &UnixListener) {
    // SAFETY: takes no pointers, and the descriptor is open while it is borrowed.
    let result = unsafe { libc::listen(listener.as_raw_fd(), 0) };
    assert_eq!(result, 0);
}

fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    let mut bytes: Vec<u8> =
        (0..count.div_ceil(8)).flat_map(|_| prng.next_u64().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

// ---- Starting, watching and ending daemons ----

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Starts it on a free port of 127.0.0.1.
#[track_caller]
fn daemon(flags: &[&str]) -> Daemon {
    Daemon::start(Path::new(BEANSTALKD), flags).expect("it starts")
}

#[track_caller]
fn peer(daemon: &Daemon) -> Peer {
    Peer::at(daemon.address())
}

/// Starts it as another program's child or successor, or at another place, which its log tells.
#[track_caller]
fn start(program: &str, arguments: &[&str]) -> (Daemon, String) {
    try_start(program, arguments).expect("it starts")
}

fn try_start(program: &str, arguments: &[&str]) -> Result<(Daemon, String), String> {
    let daemon = Daemon::spawn_raw(Path::new(program), arguments);
    let mut daemon = daemon.map_err(|error| error.to_string())?;
    let mut place = None;
    eventually("it listens or ends", || {
        let ended = daemon.exit_status().is_some();
        let stderr = daemon.stderr();
        let told = stderr.split_once(" listens on ").and_then(|(_, rest)| rest.split_once('\n'));
        place = told.map(|(place, _)| place.to_owned());
        ended || place.is_some()
    });
    match place {
        Some(place) => Ok((daemon, place)),
        None => Err(daemon.stderr()),
    }
}

/// How a process ended, and what it said.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

#[track_caller]
/// Starts a daemon that may have so many bytes of address space.
fn start_with_memory(bytes: usize) -> (Daemon, String) {
    let script = format!("ulimit -v {}{THEN_BECOME}", bytes / 1024);
    start("/bin/sh", &["-c", &script, BEANSTALKD, "-Vl127.0.0.1", "-p0"])
}

fn run_to_its_end(program: &str, arguments: &[&str]) -> Ended {
    let mut process = Daemon::spawn_raw(Path::new(program), arguments).expect("it starts");
    let status = process.wait_exit(LONG);
    let status = status.unwrap_or_else(|| panic!("{arguments:?}: it runs on"));
    let code = status.code().unwrap_or_else(|| panic!("{arguments:?}: {status}"));
    Ended { code, stdout: process.stdout(), stderr: undated(&process.stderr()) }
}

/// Log lines without their dates, which no test can know.
fn undated(said: &str) -> String {
    let undate = |line: &str| match line.split_once("Z beanstalkd: ") {
        Some((_, rest)) => format!("beanstalkd: {rest}\n"),
        None => format!("{line}\n"),
    };
    said.lines().map(undate).collect()
}

/// Ends it by a signal and returns its exit code.
#[track_caller]
fn end(daemon: &mut Daemon, signal: i32) -> i32 {
    daemon.signal(signal).expect("it runs");
    let status = daemon.wait_exit(LONG).expect("it ends");
    status.code().unwrap_or_else(|| panic!("{status}"))
}

/// Stops it in the middle of whatever it does, until [`thaw`].
#[track_caller]
fn freeze(daemon: &Daemon) {
    daemon.signal(libc::SIGSTOP).expect("it runs");
    eventually("it stops", || process_status(daemon.pid(), "State").starts_with('T'));
}

#[track_caller]
fn thaw(daemon: &Daemon) {
    daemon.signal(libc::SIGCONT).expect("it is there");
}

/// A process that is killed in the end.
#[derive(Debug)]
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process that [`Daemon`] cannot reach.
#[track_caller]
fn signal_process(pid: u32, name: &str) {
    let kill = Command::new("/bin/sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(kill.expect("a shell").success());
}

// ---- What /proc tells ----

#[track_caller]
fn process_file(pid: u32, name: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{name}")).expect("the process is there")
}

#[track_caller]
fn process_status(pid: u32, key: &str) -> String {
    let status = process_file(pid, "status");
    let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
    let (_, value) = lines.find(|&(found, _)| found == key).expect("a line with this key");
    value.into()
}

/// The resident memory in bytes.
#[track_caller]
fn memory(daemon: &Daemon) -> usize {
    let size = process_status(daemon.pid(), "VmRSS");
    let kilobytes = size.trim().strip_suffix(" kB").expect("kilobytes");
    1024 * kilobytes.parse::<usize>().expect("a number")
}

/// The address space in bytes.
#[track_caller]
fn address_space(daemon: &Daemon) -> usize {
    let size = process_status(daemon.pid(), "VmSize");
    let kilobytes = size.trim().strip_suffix(" kB").expect("kilobytes");
    1024 * kilobytes.parse::<usize>().expect("a number")
}

/// How many descriptors are open.
#[track_caller]
fn descriptors(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("the process is there").count()
}

/// The fields of `/proc/PID/stat` behind the name, which may hold spaces.
fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or_else(Vec::new, |(_, rest)| rest.split_whitespace().collect())
}

/// The processor time used so far, in the kernel and outside.
#[track_caller]
fn processor_time(daemon: &Daemon) -> Duration {
    let stat = process_file(daemon.pid(), "stat");
    let fields = stat_fields(&stat);
    let hundredths = |field: usize| fields[field].parse::<u64>().expect("a number");
    Duration::from_millis(10 * (hundredths(11) + hundredths(12)))
}

/// Watches for a while that it hardly uses the processor. One that spins uses as much as it
/// gets; the bound is far from both.
#[track_caller]
fn assert_idle(daemon: &Daemon) {
    let (before, began) = (processor_time(daemon), Instant::now());
    thread::sleep(WATCHED);
    let (used, watched) = (processor_time(daemon).saturating_sub(before), began.elapsed());
    assert!(used < watched / 10, "{used:?} of processor time in {watched:?}");
}

/// The process whose parent this is.
#[track_caller]
fn child_of(pid: u32) -> u32 {
    let parent = pid.to_string();
    let processes = fs::read_dir("/proc").expect("a list of processes");
    let mut numbers =
        processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |&number: &u32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        stat_fields(&stat).get(1) == Some(&&*parent)
    };
    numbers.find(is_child).expect("a child")
}

/// Whether this process ignores a signal, so that its children do.
fn is_ignored(signal: i32) -> bool {
    let mask = process_status(std::process::id(), "SigIgn");
    let mask = u64::from_str_radix(&mask, 16).expect("a mask");
    mask & (1 << (signal - 1)) != 0
}

// ---- A daemon without descriptors ----

/// How many descriptors a besieged daemon may have.
const DESCRIPTORS: usize = 32;

/// How many clients more than that want to come in.
const KNOCKING: usize = 12;

/// A daemon all of whose descriptors are in use, and more clients than that.
#[derive(Debug)]
struct Siege {
    daemon: Daemon,
    place: String,
    /// Each has been served.
    inside: Vec<Peer>,
    /// Each has asked `list-tube-used`; the first of them has come first.
    waiting: Vec<Peer>,
    /// How many descriptors it has without any client.
    at_peace: usize,
}

impl Siege {
    #[track_caller]
    fn begin() -> Self {
        let script = format!("ulimit -n {DESCRIPTORS}{THEN_BECOME}");
        let arguments = ["-c", &script, BEANSTALKD, "-Vl127.0.0.1", "-p0"];
        let (daemon, place) = start("/bin/sh", &arguments);
        let mut inside = vec![Peer::at(&place)];
        inside[0].check();
        let at_peace = descriptors(&daemon) - 1;
        assert_eq!(shortages(&daemon), 0, "{}", daemon.stderr());
        for _ in at_peace + 1..DESCRIPTORS {
            let mut client = Peer::at(&place);
            client.check();
            inside.push(client);
        }
        let knock = |_| {
            let mut client = Peer::at(&place);
            client.send("list-tube-used\r\n");
            client
        };
        let waiting = (0..KNOCKING).map(knock).collect();
        eventually("the shortage is reported", || shortages(&daemon) > 0);
        Self { daemon, place, inside, waiting, at_peace }
    }
}

/// How many shortages have been reported.
fn shortages(daemon: &Daemon) -> usize {
    daemon.stderr().matches("no new connections until others close").count()
}
