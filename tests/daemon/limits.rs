//! Limits: unread replies, unfinished uploads, and a shortage of memory.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use ct::{Daemon, LONG, eventually};

use crate::harness::{
    OURS, Peer, THEN_BECOME, daemon, process_status, random_bytes, resident, send_all, start,
    wait_for_count,
};

/// A client that sends commands and reads no replies would fill the memory with them.
#[test]
fn a_client_that_does_not_read_is_not_heard_until_it_does() {
    // Each command requests far more than all buffers of the system can hold.
    for (command, times, reply) in [("peek 1", 1000, "FOUND 1 60000"), ("stats", 20_000, "OK ")] {
        let daemon = daemon(&[]);
        let mut other = Peer::of(&daemon);
        let body = random_bytes(2, 60_000);
        other.put(0, 0, &body);
        let before = resident(&daemon);

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
        let grown = resident(&daemon).saturating_sub(before);
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

/// Clients that announce large jobs and send only a few bytes would take all memory.
///
/// Proves: B6.
#[test]
fn an_upload_that_stalls_costs_what_has_arrived_and_not_what_was_announced() {
    let daemon = daemon(&["-z", "1073741824"]);
    let mut other = Peer::of(&daemon);
    other.check();
    let before = resident(&daemon);
    let mut stalled: Vec<Peer> = (0..10).map(|_| Peer::of(&daemon)).collect();
    for client in &mut stalled {
        client.send("put 0 0 60 100000000\r\n");
        client.send(vec![b'x'; 500_000]);
    }
    // In each turn, each of these clients gets its share of 64 KiB.
    other.turns(100);
    let grown = resident(&daemon).saturating_sub(before);
    assert!((1_000_000..20_000_000).contains(&grown), "{grown} bytes for 5,000,000 that came");
    drop(stalled);
    wait_for_count(&mut other, "stats", "current-connections", 1);
    eventually("the memory is given back", || resident(&daemon) < before + 3_000_000);
    for id in 1..=10 {
        assert_eq!(other.ask(&format!("delete {id}")), "NOT_FOUND");
    }
}

/// If there is no memory for one large job, the daemon would end, and all other jobs would be lost.
///
/// Proves: B22.
#[test]
fn without_memory_for_a_job_it_says_so_and_goes_on() {
    const SIZE: usize = 80_000_000;
    let script = format!("ulimit -v {}{THEN_BECOME}", SIZE / 1024);
    let arguments = ["-c", &script, OURS, "-Vl127.0.0.1", "-p0", "-z", "1073741824"];
    let (daemon, place) = start("/bin/sh", &arguments);
    let (mut client, mut other) = (Peer::at(&place), Peer::at(&place));
    let (body, before) = (vec![b'x'; SIZE], resident(&daemon));
    for round in 1..=3 {
        assert_eq!(client.0.put(0, 0, 60, &body).expect("a reply"), "OUT_OF_MEMORY");
        client.check();
        other.check();
        assert_eq!(other.ask(&format!("peek {round}")), "NOT_FOUND");
    }
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 8_000_000, "{grown} bytes more than before");
    assert_eq!(client.put(0, 0, b"x"), 4);
}

/// Very many small jobs would end the daemon, because there is no memory for the lists of all jobs.
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
    // A worker can still reserve and delete jobs.
    other.check();
    for _ in 0..inserted / 2 {
        other.send("reserve\r\n");
        let line = other.line();
        assert_eq!(other.line(), "x");
        let id = line.split(' ').nth(1).expect("an id").to_owned();
        assert_eq!(other.ask(&format!("delete {id}")), "DELETED");
    }
    client.put(0, 0, b"x");
}

/// Unfinished uploads would take the last memory, and the next command would end the daemon.
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
        // If the backlog is full, a client does not wait to be accepted.
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
    // The kernel drops attempts to connect while clients that have gone fill the backlog.
    eventually("a new client connects", || {
        TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
    });
    Peer::at(&place).check();
}

/// Clients that do not read would take the memory that new connections need, for as long as they
/// stay.
#[test]
fn clients_that_do_not_read_keep_out_no_others() {
    ct::soak::prepare().expect("more files");
    let folder = tempfile::tempdir().expect("a folder");
    // A UNIX socket's buffers are small, so replies soon stay in the daemon.
    let address = format!("unix:{}", folder.path().join("socket").display());
    let (_daemon, _) = start(OURS, &["-Vl", &address, "--max-memory", "20000000"]);
    let mut other = Peer::at(&address);
    other.put(0, 0, &random_bytes(4, 3900));
    let crowd: Vec<Peer> = (0..400)
        .map(|_| {
            let mut client = Peer::at(&address);
            client.send("peek 1\r\n".repeat(200));
            other.turns(2);
            client
        })
        .collect();
    for _ in 0..3 {
        // The new client may be accepted after the crowd, while connections are closed.
        let mut new = Peer::at(&address);
        new.0.set_timeout(LONG).expect("a connection");
        new.check();
        other.check();
    }
    drop(crowd);
}

/// If very many jobs became ready, the memory kept for them would exceed the limit, and no client
/// would be served until the daemon is restarted.
#[test]
fn jobs_that_become_ready_take_no_more_resident_memory() {
    let daemon = daemon(&["--max-memory", "100000000"]);
    let mut client = Peer::of(&daemon);
    for _ in 0..100 {
        client.pipeline("put 0 3600 60 1\r\nx\r\n", 2000, |client| {
            assert!(client.line().starts_with("INSERTED "));
        });
    }
    let before = status_bytes(&daemon, "VmHWM");
    assert_eq!(client.ask("kick 200000"), "KICKED 200000");
    let grown = status_bytes(&daemon, "VmHWM").saturating_sub(before);
    assert!(grown < 1_000_000, "{grown} bytes more than before");
}

/// If address space is limited, the thread that syncs would reserve 64 MiB of it and use almost
/// nothing of that.
#[test]
fn the_thread_that_syncs_takes_little_address_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain name");
    let (daemon, place) = start(OURS, &["-l127.0.0.1", "-p0", "-f1", "-b", path]);
    let mut client = Peer::at(&place);
    client.check();
    let before = status_bytes(&daemon, "VmSize");
    client.put(0, 0, b"x");
    eventually("the thread has waited for its work", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs");
        let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm"));
        let mut tasks = tasks.flatten();
        let thread = tasks.find(|task| name(task).is_ok_and(|name| name == "sync\n"));
        let status = thread.map(|task| fs::read_to_string(task.path().join("status")));
        let status = status.and_then(Result::ok).unwrap_or_default();
        status.contains("\nvoluntary_ctxt_switches:") && !status.contains("switches:\t0\nnon")
    });
    let taken = status_bytes(&daemon, "VmSize") - before;
    assert!(taken < 16 << 20, "{} MiB", taken >> 20);
}

/// A large job would come back with a byte changed, missing or doubled.
///
/// Proves: Q22.
#[test]
fn ten_megabytes_come_back_as_they_went() {
    let daemon = daemon(&["-z10000000"]);
    let body = random_bytes(3, 10_000_000);
    let mut client = Peer::of(&daemon);
    client.put(0, 0, &body);
    let (id, found) = client.reserve();
    assert!(id == 1 && found == body, "not the body that was put");
    let mut other = Peer::of(&daemon);
    let (line, found) = other.0.with_body("peek 1").expect("a job");
    assert!(line == "FOUND 1 10000000" && found == body, "not the body that was put");
    assert_eq!(client.ask("delete 1"), "DELETED");
    client.send("put 0 0 60 10000001\r\n");
    client.send(body);
    client.send("x\r\n");
    assert_eq!(client.line(), "JOB_TOO_BIG");
    client.check();
}

/// Reads a line without its CR LF.
#[track_caller]
fn line(socket: &mut impl BufRead) -> String {
    let mut line = String::new();
    socket.read_line(&mut line).expect("a reply");
    line.strip_suffix("\r\n").expect("a whole line").into()
}

/// Sends until the daemon takes nothing more, even after many more turns, and returns the unsent
/// bytes.
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

/// Starts a daemon whose address space is limited to `bytes`.
#[track_caller]
fn start_with_memory(bytes: usize) -> (Daemon, String) {
    let script = format!("ulimit -v {}{THEN_BECOME}", bytes / 1024);
    start("/bin/sh", &["-c", &script, OURS, "-Vl127.0.0.1", "-p0"])
}

/// A size that the kernel reports, in bytes.
#[track_caller]
fn status_bytes(daemon: &Daemon, name: &str) -> usize {
    let size = process_status(daemon.pid(), name);
    let kilobytes = size.trim().strip_suffix(" kB").expect("kilobytes");
    1024 * kilobytes.parse::<usize>().expect("a number")
}
