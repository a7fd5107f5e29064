//! Signals: clean shutdown, draining, and a log that nobody reads.

use std::{
    fs,
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
};

use ct::{Client, LONG, eventually, skip};

use crate::harness::{
    OURS, Peer, THEN_BECOME, daemon, freeze, process_status, start, stat_fields, terminate, thaw,
    wait_for_count,
};

/// A daemon stopped by a signal would not send the replies to commands it has accepted, or would
/// exit with the status of a crash.
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
            let (mut daemon, place) = start(OURS, &["-V", "-l", address, "-p0"]);
            let mut clients: [Peer; 4] = std::array::from_fn(|_| Peer::at(&place));
            let [producer, worker, reader, idle] = &mut clients;
            reader.ask("use other");
            // The kernel takes this much at once, even when it has little memory for sockets.
            reader.put(0, 0, &vec![b'x'; 16_000]);
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
            assert_eq!(reader.line(), "FOUND 1 16000");
            assert_eq!(reader.line(), "x".repeat(16_000));
            for client in &mut clients {
                assert!(client.is_ended(), "signal {signal}");
            }
            let status = daemon.wait_exit(LONG).expect("it ends");
            assert_eq!(status.code(), Some(0), "signal {signal}: {status}");
            assert!(!path.exists(), "the socket file stays after signal {signal}");
        }
    }
}

/// A client that does not read, or sends only a part of a job, would hold up the shutdown.
///
/// Proves: Q19.
#[test]
fn nobody_can_hold_up_the_end() {
    let mut daemon = daemon(&[]);
    let (mut silent, mut stalled, mut other) =
        (Peer::of(&daemon), Peer::of(&daemon), Peer::of(&daemon));
    other.put(0, 0, &vec![b'x'; 65_535]);
    silent.send("peek 1\r\n".repeat(1000));
    stalled.send("put 0 0 60 1000\r\nonly this");
    other.turns(100);
    assert_eq!(terminate(&mut daemon), 0);
}

/// If the log is not read, the service would stop, or the shutdown would hang.
///
/// Proves: Q19.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    let (mut reader, log) = UnixStream::pair().expect("a pair");
    fill(&log);
    let mut daemon = Command::new(OURS)
        .args(["-VV", "-l", &address])
        .stdin(Stdio::null())
        .stderr(OwnedFd::from(log))
        .spawn()
        .map(Killed)
        .expect("it starts");
    eventually("it listens", || Client::connect(&address).is_ok());
    Peer::at(&address).turns(100);
    reader.set_nonblocking(true).expect("a socket");
    // The count of dropped lines may come as soon as there is space for it.
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = reader.read(&mut piece) {
        said.extend_from_slice(&piece[..length]);
    }
    reader.set_nonblocking(false).expect("a socket");
    signal_process(daemon.0.id(), "TERM");
    reader.read_to_end(&mut said).expect("a log");
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.contains(" log lines dropped, because the reader of the log was too slow: "),
        "{said}"
    );
    assert!(said.contains(" shutting down on SIGTERM"), "{said}");
    let mut status = None;
    eventually("it ends", || {
        status = daemon.0.try_wait().expect("a child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{status:?}");
    assert!(!path.exists(), "the socket file stays");
}

/// A daemon that is process 1 of a container could not be stopped, because the system ignores
/// signals to process 1 that have no handler.
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
        let arguments = [&apart[..], &[OURS, "-V", "-l127.0.0.1", "-p0"]].concat();
        let (mut unshare, place) = start("unshare", &arguments);
        let mut client = Peer::at(&place);
        assert_eq!(client.count("stats", "pid"), 1);
        client.put(0, 0, b"x");
        signal_process(child_of(unshare.pid()), name);
        assert!(client.is_ended());
        let status = unshare.wait_exit(LONG).expect("it ends with its child");
        assert_eq!(status.code(), Some(0), "SIG{name}: {status}");
    }
}

/// A daemon started with nohup, or in the background of a script, would end with the terminal or at
/// Ctrl-C. In the original, a signal that is ignored at startup stays ignored.
///
/// Proves: Q19.
#[test]
fn a_signal_that_is_ignored_from_the_start_stays_so() {
    let script = format!(r#"trap "" HUP INT{THEN_BECOME}"#);
    let arguments = ["-c", &script, OURS, "-V", "-l127.0.0.1", "-p0"];
    let (daemon, place) = start("/bin/sh", &arguments);
    let mut client = Peer::at(&place);
    client.check();
    for signal in [libc::SIGHUP, libc::SIGINT] {
        daemon.signal(signal).expect("it runs");
        // A daemon that ends on a signal may still serve one turn, but not two.
        assert!(client.0.command("list-tube-used").is_ok(), "it ended on signal {signal}");
        assert!(client.0.command("list-tube-used").is_ok(), "it ended on signal {signal}");
    }
}

/// A draining daemon would continue to accept jobs, or would not let workers finish the old ones,
/// or would never accept jobs again after draining.
///
/// Proves: Q18.
#[test]
fn a_signal_makes_it_drain_and_another_one_ends_that() {
    let daemon = daemon(&[]);
    let (mut client, mut uploading) = (Peer::of(&daemon), Peer::of(&daemon));
    client.put(0, 0, b"old");
    uploading.send("put 0 0 60 11\r\nlist-");
    assert!(client.yaml("stats").contains("\ndraining: false\n"));
    for _ in 0..2 {
        daemon.signal(libc::SIGUSR1).expect("it runs");
        eventually("it drains", || client.yaml("stats").contains("\ndraining: true\n"));
        // The body of a refused put is not read as commands, whether or not it has arrived.
        client.send("put 0 0 60 14\r\nlist-tube-used\r\n");
        assert_eq!(client.line(), "DRAINING");
    }
    uploading.send("tubes\r\r\n");
    assert_eq!(uploading.line(), "DRAINING");
    for _ in 0..2 {
        daemon.signal(libc::SIGUSR2).expect("it runs");
        eventually("it takes jobs", || client.yaml("stats").contains("\ndraining: false\n"));
    }
    assert_eq!(client.put(0, 0, b"new"), 5);
    assert_eq!(client.ask("delete 5"), "DELETED");
    daemon.signal(libc::SIGUSR1).expect("it runs");
    eventually("it drains again", || client.yaml("stats").contains("\ndraining: true\n"));
    assert_eq!(client.reserve(), (1, b"old".to_vec()));
    assert_eq!(client.ask("release 1 0 0"), "RELEASED");
    assert_eq!(client.reserve(), (1, b"old".to_vec()));
    assert_eq!(client.ask("delete 1"), "DELETED");
    Peer::of(&daemon).check();
}

/// A client that disconnects while a reply is sent to it, or a log reader that ends, would crash
/// the daemon.
///
/// Proves: Q19.
#[test]
fn a_broken_pipe_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}", folder.path().join("socket").display());
    let mut daemon = Command::new(OURS)
        .args(["-VVV", "-l", &address])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map(Killed)
        .expect("it starts");
    drop(daemon.0.stderr.take());
    eventually("it listens", || Client::connect(&address).is_ok());
    let mut client = Peer::at(&address);
    client.put(0, 0, &vec![b'x'; 65_535]);
    for _ in 0..10 {
        Peer::at(&address).send("peek 1\r\n".repeat(100));
        client.check();
    }
    signal_process(daemon.0.id(), "PIPE");
    client.turns(2);
    assert!(matches!(daemon.0.try_wait(), Ok(None)));
}

/// Fills a stream until it takes no more bytes.
#[track_caller]
fn fill(mut stream: &UnixStream) {
    stream.set_nonblocking(true).expect("a socket");
    for length in [4096, 1] {
        while stream.write(&vec![b'\n'; length]).is_ok() {}
    }
    stream.set_nonblocking(false).expect("a socket");
}

/// A process that is killed when the [`Killed`] is dropped.
#[derive(Debug)]
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended by itself.
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

/// Returns the child of this process.
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

/// Returns whether this process ignores a signal; its children then ignore the signal, too.
fn is_ignored(signal: i32) -> bool {
    let mask = process_status(std::process::id(), "SigIgn");
    let mask = u64::from_str_radix(&mask, 16).expect("a mask");
    mask & (1 << (signal - 1)) != 0
}
