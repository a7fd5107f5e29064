//! The daemon as a service manager meets it: sockets that are passed on, words on how it is, its
//! log, its end, and the health check.
//!
//! The tests play the manager themselves: they open the sockets, set the variables and listen to
//! what the real binary says. What is passed on goes through a shell, which moves its standard
//! input and output to descriptors 3 and 4 and becomes the daemon, so that the process id is
//! known beforehand.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::{
    fs,
    io::ErrorKind,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt,
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ct::{Client, Daemon, LONG, eventually, skip};

const BEANSTALKD: &str = env!("CARGO_BIN_EXE_beanstalkd");

/// How long a daemon is watched that should do nothing.
const WATCHED: Duration = Duration::from_millis(1500);

// ---- Several addresses ----

/// Local workers would go through the network, or remote ones be left out: one address was all
/// there was.
///
/// Proves: Q23.
#[test]
fn it_listens_at_each_address_of_a_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let list = format!("127.0.0.1,unix:{},127.0.0.2,unix:{}", one.display(), two.display());
    let (mut daemon, places) =
        serve_at(4, Command::new(BEANSTALKD).args(["-p0", "--listen", &list]));
    let kinds: Vec<_> =
        places.iter().map(|place| place.split_once(':').expect("a place").0).collect();
    assert_eq!(kinds, ["127.0.0.1", "unix", "127.0.0.2", "unix"]);
    let mut clients: Vec<_> = places.iter().map(|place| connect(place)).collect();
    let (first, rest) = clients.split_first_mut().expect("clients");
    assert_eq!(first.put(0, 0, 60, b"x").expect("a reply"), "INSERTED 1");
    for client in rest {
        let (reserved, _) = client.with_body("reserve").expect("a job");
        assert_eq!(reserved, "RESERVED 1 1");
        assert_eq!(client.command("release 1 0 0").expect("a reply"), "RELEASED");
    }
    assert_eq!(end(&mut daemon), 0);
    assert!(!one.exists() && !two.exists(), "socket files stay");
}

/// The wildcards of both protocols together would be refused, for one of them takes both.
///
/// Proves: B31.
#[test]
fn both_wildcards_can_be_had_together() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("this machine has no IPv6");
    }
    // Another process may take the port between finding and using it.
    for _ in 0..10 {
        let port = ct::free_port().expect("a port").to_string();
        let mut command = Command::new(BEANSTALKD);
        command.args(["-l", "0.0.0.0,::", "-p", &port]);
        let mut daemon = Daemon::spawn_command(command.stdin(Stdio::null())).expect("it starts");
        if places(&mut daemon, 2).is_none() {
            assert!(daemon.stderr().contains("in use"), "{}", daemon.stderr());
            continue;
        }
        check(&format!("127.0.0.1:{port}"));
        check(&format!("[::1]:{port}"));
        return;
    }
    panic!("no port is free for both");
}

/// One address of several that cannot be had would go unnoticed, or leave the others' files.
///
/// Proves: Q22, B18.
#[test]
fn it_starts_at_all_addresses_or_at_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let list = format!("unix:{},127.0.0.1,unix:/no/such/folder/socket", path.display());
    let (status, stderr) = fails(Command::new(BEANSTALKD).args(["-l", &list, "-p", &port]));
    assert_eq!(status, 111, "{stderr}");
    assert!(stderr.contains(&format!("cannot listen on 127.0.0.1 port {port}: ")), "{stderr}");
    assert!(!path.exists(), "the first address leaves its file behind");
}

// ---- Sockets that are passed on ----

/// A unit with a socket file would start a daemon that nobody can reach, or which removes the
/// manager's socket when it ends.
///
/// Proves: Q21, Q23.
#[test]
fn it_serves_every_socket_that_is_passed_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let (tcp, unix) = (loopback(), UnixListener::bind(&path).expect("a socket"));
    let tcp_place = place_of(&tcp);
    let unix_place = format!("unix:{}", path.display());
    for flags in [&[][..], &["-l", "192.0.2.1", "-p", "1"]] {
        let (mut daemon, places) = serve_at(2, &mut activated(flags, &tcp, Some(&unix)));
        assert_eq!(places, [tcp_place.clone(), unix_place.clone()]);
        for place in [&tcp_place, &unix_place] {
            check(place);
        }
        let warnings = daemon.stderr().matches("-l and -p are ignored").count();
        assert_eq!(warnings, usize::from(!flags.is_empty()), "{}", daemon.stderr());
        for number in [3, 4] {
            let info = fs::read_to_string(format!("/proc/{}/fdinfo/{number}", daemon.pid()));
            let info = info.expect("the process is there");
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:\t"));
            let flags = u32::from_str_radix(flags.expect("flags"), 8).expect("an octal number");
            assert_eq!(flags & 0o2_000_000, 0o2_000_000, "{number} would pass through exec");
            assert_eq!(flags & 0o4000, 0o4000, "{number} blocks");
        }
        assert_eq!(end(&mut daemon), 0);
        assert!(path.exists(), "the manager's socket is removed");
    }
}

/// A slip in a unit would start a daemon that is deaf, or one at another address.
///
/// Proves: Q21.
#[test]
fn what_is_no_listening_stream_socket_is_refused() {
    let tcp = loopback();
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let connected = TcpStream::connect(place_of(&tcp)).expect("a connection");
    let (pair, _other) = UnixStream::pair().expect("a pair");
    let file = fs::OpenOptions::new().read(true).open("/dev/null").expect("a file");
    let wrong: [OwnedFd; 4] = [datagrams.into(), connected.into(), pair.into(), file.into()];
    for fd in wrong {
        let (status, stderr) = fails(&mut shell("LISTEN_PID=$$ LISTEN_FDS=1", &[], fd, None));
        assert_eq!(status, 111, "{stderr}");
        let wanted = "cannot listen on descriptor 3: it is not a stream socket that listens\n";
        assert!(stderr.ends_with(wanted), "{stderr}");
    }
    let cases = [
        ("LISTEN_PID=$$ LISTEN_FDS=9", "cannot listen on descriptor 4: nothing is passed on there"),
        ("LISTEN_PID=$$ LISTEN_FDS=4294967295", "cannot listen on descriptor 4: nothing"),
        ("LISTEN_PID=$$ LISTEN_FDS=0", "LISTEN_FDS is 0: no socket is passed on"),
        ("LISTEN_PID=$$ LISTEN_FDS=all", "LISTEN_FDS is no number: all"),
        ("LISTEN_PID=mine LISTEN_FDS=1", "LISTEN_PID is no number: mine"),
    ];
    for (variables, wanted) in cases {
        let (status, stderr) = fails(&mut shell(variables, &[], copy(&tcp), None));
        assert_eq!(status, 111, "{stderr}");
        assert!(stderr.contains(wanted) && stderr.lines().count() == 1, "{stderr}");
    }
}

/// A daemon started by a service with sockets of its own would take those for its own.
///
/// Proves: Q21.
#[test]
fn sockets_for_another_process_are_left_alone() {
    let tcp = loopback();
    for variables in ["LISTEN_PID=1 LISTEN_FDS=1", "LISTEN_FDS=1", "LISTEN_PID=$$"] {
        let flags = ["-l127.0.0.1", "-p0"];
        let (_daemon, places) = serve(&mut shell(variables, &flags, copy(&tcp), None));
        assert_ne!(places, [place_of(&tcp)]);
        check(&places[0]);
    }
}

/// A manager that shuts a socket down would have the daemon use a whole processor, fill the log
/// or stop serving at its other sockets. (Of a UNIX socket that is shut down, the system tells
/// nothing to those who wait at it.)
///
/// Proves: B5.
#[test]
fn a_listener_that_is_shut_down_from_outside_costs_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let (tcp, unix) = (loopback(), UnixListener::bind(&path).expect("a socket"));
    let (mut daemon, _) = serve_at(2, &mut activated(&["-V"], &tcp, Some(&unix)));
    let mut before = connect(&place_of(&tcp));
    assert_eq!(before.command("list-tube-used").expect("a reply"), "USING default");
    // The call is the same for every kind of socket, and holds for all who share it.
    TcpStream::from(copy(&tcp)).shutdown(Shutdown::Both).expect("a listener");
    let told = |daemon: &Daemon| daemon.stderr().matches(" accepts no connections: ").count();
    eventually("it is told", || told(&daemon) > 0);
    let (used, began) = (processor_time(&daemon), Instant::now());
    thread::sleep(WATCHED);
    let (used, watched) = (processor_time(&daemon).saturating_sub(used), began.elapsed());
    assert!(used < watched / 10, "{used:?} of processor time in {watched:?}");
    assert_eq!(told(&daemon), 1, "{}", daemon.stderr());
    assert!(daemon.stderr().lines().count() < 100, "{}", daemon.stderr());
    check(&format!("unix:{}", path.display()));
    assert_eq!(before.command("list-tube-used").expect("a reply"), "USING default");
    assert_eq!(end(&mut daemon), 0);
}

/// An upgrade would refuse the clients that come meanwhile.
///
/// Proves: Q21, Q20.
#[test]
fn an_upgrade_refuses_nobody() {
    let (tcp, folder) = (loopback(), tempfile::tempdir().expect("a folder"));
    let (place, path) = (place_of(&tcp), folder.path().to_str().expect("a plain name"));
    let flags = ["-b", path, "-f0"];
    let (mut daemon, _) = serve(&mut activated(&flags, &tcp, None));
    for round in 1..=3 {
        let mut old = connect(&place);
        assert_eq!(old.put(0, 0, 60, b"x").expect("a reply"), format!("INSERTED {round}"));
        // Whoever comes in the daemon's last turn, or while there is none, waits for the next.
        freeze(&daemon);
        let mut last = connect(&place);
        last.send("stats-job 1\r\n").expect("it is taken");
        daemon.signal(libc::SIGTERM).expect("it runs");
        thaw(&daemon);
        let status = daemon.wait_exit(LONG).expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", daemon.stderr());
        let mut between = connect(&place);
        between.send("list-tube-used\r\n").expect("it is taken");
        (daemon, _) = serve(&mut activated(&flags, &tcp, None));
        assert!(last.line().expect("a reply").starts_with("OK "));
        assert_eq!(between.line().expect("a reply"), "USING default");
        assert!(old.line().is_err(), "its daemon has ended");
    }
}

// ---- Words to the manager ----

/// Units that wait for this one would start before it serves; or it would be ended for a start
/// that takes long.
///
/// Proves: Q20.
#[test]
fn it_tells_how_far_its_start_is_and_when_it_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(lock) = binlog_behind_a_gate(folder.path()) else { return };
    let manager = Manager::at(&folder.path().join("notify"));
    let path = folder.path().to_str().expect("a plain name");
    let mut command = Command::new(BEANSTALKD);
    command.args(["-l127.0.0.1", "-p0", "-b", path]).env("NOTIFY_SOCKET", &manager.name);
    let (mut daemon, places) = serve(&mut command);
    let mut client = connect(&places[0]);
    client.send("peek 1\r\n").expect("it is taken");
    // It has noted when it began to read before it sleeps at the gate.
    await_state(&daemon, 'S');
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(manager.heard_by_now(), None, "it has not served yet");
    let gate = fs::OpenOptions::new().read(true).open(&lock).expect("the daemon writes");
    let progress = manager.hears();
    assert!(progress.starts_with("STATUS=the binlog is read: "), "{progress}");
    assert!(progress.ends_with(" MiB\nEXTEND_TIMEOUT_USEC=60000000"), "{progress}");
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    assert_eq!(client.line().expect("a reply"), "FOUND 1 1");
    assert!(daemon.stderr().contains("the binlog had 1 jobs in 1 files, 0 damaged"));
    assert_eq!(end(&mut daemon), 0);
    drop(gate);
    assert_eq!(manager.hears(), "STOPPING=1\nSTATUS=ending");
    assert_eq!(manager.heard_by_now(), None);
}

/// `systemctl status` would not show why producers are refused.
///
/// Proves: Q18.
#[test]
fn it_tells_when_it_drains() {
    let manager = Manager::abstracted();
    let (daemon, _) = serve(on_loopback().env("NOTIFY_SOCKET", &manager.name));
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    daemon.signal(libc::SIGUSR1).expect("it runs");
    assert_eq!(manager.hears(), "STATUS=draining: new jobs are refused");
    daemon.signal(libc::SIGUSR2).expect("it runs");
    assert_eq!(manager.hears(), "STATUS=serving");
}

/// An operator who calls an exchange off and then on again would find the daemon taking jobs, if
/// it was busy meanwhile.
///
/// Proves: Q18.
#[test]
fn of_two_signals_in_one_turn_the_later_one_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain name");
    for (signals, wanted) in
        [([libc::SIGUSR2, libc::SIGUSR1], "DRAINING"), ([libc::SIGUSR1, libc::SIGUSR2], "INSERTED")]
    {
        fs::remove_dir_all(path).expect("a folder");
        fs::create_dir(path).expect("a folder");
        let Some(lock) = binlog_behind_a_gate(folder.path()) else { return };
        let (daemon, places) = serve(on_loopback().args(["-b", path]));
        for signal in signals {
            daemon.signal(signal).expect("it runs");
            eventually("it has it", || status(&daemon, "ShdPnd") == "0000000000000000");
        }
        let gate = fs::OpenOptions::new().read(true).open(&lock).expect("the daemon writes");
        let mut client = connect(&places[0]);
        let reply = client.put(0, 0, 60, b"x").expect("a reply");
        assert!(reply.starts_with(wanted), "{signals:?}: {reply}");
        drop(gate);
    }
}

/// Of two signals that come before the daemon can run, the system does not tell the order: a
/// daemon that takes jobs by mistake, and is ended then, would lose them.
///
/// Proves: Q18.
#[test]
fn of_two_signals_at_once_the_one_that_drains_holds() {
    for signals in [[libc::SIGUSR2, libc::SIGUSR1], [libc::SIGUSR1, libc::SIGUSR2]] {
        let (daemon, places) = serve(&mut on_loopback());
        let mut client = connect(&places[0]);
        freeze(&daemon);
        for signal in signals {
            daemon.signal(signal).expect("it runs");
        }
        thaw(&daemon);
        assert_eq!(client.put(0, 0, 60, b"x").expect("a reply"), "DRAINING");
    }
}

/// Nor why nothing can be changed.
///
/// Proves: E27.
#[test]
fn it_tells_when_its_disk_fails_and_when_it_works_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let limit = |pid: u32, limit: &str| {
        let arguments = ["--pid", &pid.to_string(), &format!("--fsize={limit}:unlimited")];
        Command::new("prlimit").args(arguments).status()
    };
    if !limit(std::process::id(), "unlimited").is_ok_and(|status| status.success()) {
        return skip("prlimit is not installed (Debian's package util-linux)");
    }
    let manager = Manager::abstracted();
    let script = r#"trap "" XFSZ; exec "$0" -l127.0.0.1 -p0 -f0 -b "$@""#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, BEANSTALKD]).arg(folder.path()).stdin(Stdio::null());
    let (daemon, places) = serve(command.env("NOTIFY_SOCKET", &manager.name));
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    let mut client = connect(&places[0]);
    assert_eq!(client.put(0, 0, 60, b"x").expect("a reply"), "INSERTED 1");
    limit(daemon.pid(), "0").expect("it was there");
    assert!(client.put(0, 0, 60, b"x").is_err(), "nobody knows what becomes of this job");
    // The room that is made ahead is missed first; then a write fails.
    let failed = "STATUS=the binlog has failed: changes are refused until it works again";
    manager.hears_until(failed);
    limit(daemon.pid(), "unlimited").expect("it was there");
    manager.hears_until("STATUS=serving");
}

/// A daemon that hangs would not be restarted, or one that has nothing to do taken for hung.
#[test]
fn a_watchdog_is_fed_while_nothing_else_happens() {
    let manager = Manager::abstracted();
    let mut command = on_loopback();
    command.env("NOTIFY_SOCKET", &manager.name).env("WATCHDOG_USEC", "300000");
    // Before the daemon's beginning: what it says while this process waits for a processor is heard
    // all at once.
    let began = Instant::now();
    let (daemon, _) = serve(&mut command);
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    let rounds = 10;
    for _ in 0..rounds {
        assert_eq!(manager.hears(), "WATCHDOG=1");
    }
    // The first comes at once; many more than wanted would be wasted.
    assert!(began.elapsed() >= Duration::from_millis(100) * (rounds - 2), "{:?}", began.elapsed());
    freeze(&daemon);
    while manager.heard_by_now().is_some() {}
    thread::sleep(Duration::from_millis(400));
    assert_eq!(manager.heard_by_now(), None, "it is fed by a process that does nothing");
}

/// On a machine with many of them, each would wake the processor all day long for nothing.
#[test]
fn without_a_watchdog_it_sleeps_until_something_happens() {
    let manager = Manager::abstracted();
    let mut other = on_loopback();
    let watchdog = [("WATCHDOG_USEC", "300000"), ("WATCHDOG_PID", "1")];
    other.env("NOTIFY_SOCKET", &manager.name).envs(watchdog);
    for command in [&mut on_loopback(), &mut other, on_loopback().env("WATCHDOG_USEC", "300000")] {
        let (daemon, places) = serve(command);
        check(&places[0]);
        // First it sees the last connection off, whenever it is given a processor for that; whoever
        // has a timer wakes in every watch.
        let sleeps = (0..10).any(|_| {
            let before = wake_ups(&daemon);
            thread::sleep(WATCHED);
            wake_ups(&daemon) == before
        });
        assert!(sleeps, "{command:?}");
    }
}

/// A manager that does not listen, or is gone, would take the daemon along.
#[test]
fn a_manager_that_does_not_listen_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let gone = folder.path().join("gone");
    let deaf = Manager::abstracted();
    let names = [gone.to_str().expect("a plain name"), "@nobody-is-here", "vsock:2:3", &deaf.name];
    for name in names {
        let mut command = on_loopback();
        command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "3000");
        let (mut daemon, places) = serve(&mut command);
        // The deaf one's queue is full after some tens of words.
        thread::sleep(Duration::from_millis(300));
        check(&places[0]);
        assert_eq!(end(&mut daemon), 0, "{name}");
    }
}

// ---- The end ----

/// A start that takes long could only be broken off by force.
///
/// Proves: Q19.
#[test]
fn a_signal_ends_a_long_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(lock) = binlog_behind_a_gate(folder.path()) else { return };
    let (path, socket) = (folder.path().to_str().expect("a name"), folder.path().join("socket"));
    let address = format!("unix:{}", socket.display());
    let (mut daemon, _) = serve(Command::new(BEANSTALKD).args(["-l", &address, "-b", path]));
    daemon.signal(libc::SIGTERM).expect("it runs");
    let gate = fs::OpenOptions::new().read(true).open(&lock).expect("the daemon writes");
    let status = daemon.wait_exit(LONG).expect("it ends");
    drop(gate);
    assert_eq!(status.code(), Some(0), "{}", daemon.stderr());
    assert!(daemon.stderr().contains("ending on a signal before the binlog is read"));
    assert!(!socket.exists(), "the socket file stays");
}

// ---- The log ----

/// In the journal every line would have the same weight, and its time twice.
///
/// Proves: Q22.
#[test]
fn the_journal_gets_priorities_instead_of_dates() {
    let run = |stream: &str| {
        let script = format!("export JOURNAL_STREAM={stream}; exec \"$0\" \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, BEANSTALKD, "-V", "-c", "-l127.0.0.1", "-p0"]);
        let (mut daemon, places) = serve(command.stdin(Stdio::null()));
        check(&places[0]);
        assert_eq!(end(&mut daemon), 0);
        daemon.stderr()
    };
    let told = run("$(stat -L -c %d:%i /proc/self/fd/2)");
    let places = ["<4>-c does nothing", "<6>version ", "<6>listens on ", "<6>ending on SIGTERM"];
    for wanted in places {
        assert!(told.lines().any(|line| line.starts_with(wanted)), "{wanted}: {told}");
    }
    assert!(told.lines().any(|line| line.starts_with("<7>") && line.contains(" connected")));
    assert!(told.lines().all(|line| line.starts_with('<')), "{told}");
    // The journal's, but standard error has been sent elsewhere since.
    let told = run("8:12345");
    assert!(told.lines().all(|line| line.contains("Z beanstalkd: ")), "{told}");
}

// ---- The health check ----

/// A container would be taken for healthy when it is not, or the other way round.
#[test]
fn a_ping_tells_whether_it_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}", folder.path().join("socket").display());
    let list = format!("{address},127.0.0.1");
    let (daemon, places) = serve_at(2, Command::new(BEANSTALKD).args(["-p0", "-l", &list]));
    let port = places[1].rsplit(':').next().expect("a port");
    let ping = |list: &str, port: &str| {
        let mut command = Command::new(BEANSTALKD);
        command.args(["-l", list, "-p", port, "--ping"]);
        let began = Instant::now();
        let (status, stderr) = ends(&mut command);
        assert!(began.elapsed() < LONG / 2, "{list} port {port}");
        (status, stderr)
    };
    for list in [&*list, "127.0.0.1", "localhost", "0.0.0.0", &address] {
        assert_eq!(ping(list, port), (0, String::new()), "{list}");
    }
    let (silent, free) = (loopback(), ct::free_port().expect("a port").to_string());
    let silent = silent.local_addr().expect("it is bound").port().to_string();
    let other = loopback();
    let chatty = other.local_addr().expect("it is bound").port().to_string();
    let chatter = thread::spawn(move || {
        let (mut client, _) = other.accept().expect("a client");
        std::io::Write::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n").expect("a client");
        client
    });
    let cases = [
        ("127.0.0.1", &*free, "Connection refused"),
        ("127.0.0.1", &*silent, "no answer within 5 seconds"),
        ("127.0.0.1", &*chatty, "what answers is no beanstalkd: HTTP/1.1 400 Ba"),
        ("unix:/no/such/socket", "1", "unix:/no/such/socket: No such file"),
    ];
    for (list, port, wanted) in cases {
        let (status, stderr) = ping(list, port);
        assert_eq!(status, 1, "{stderr}");
        assert!(stderr.starts_with("beanstalkd: ") && stderr.contains(wanted), "{stderr}");
    }
    chatter.join().expect("a thread");
    freeze(&daemon);
    assert_eq!(ping(&address, "1").0, 1, "it hangs");
    thaw(&daemon);
}

// ---- Completions ----

/// A shell would print an error at each key.
#[test]
fn shells_take_their_completions() {
    let folder = tempfile::tempdir().expect("a folder");
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(BEANSTALKD).args(["--completions", shell]).output();
        let output = output.expect("it starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}");
        let path = folder.path().join(shell);
        fs::write(&path, output.stdout).expect("a file");
        match Command::new(shell).arg("-n").arg(&path).output() {
            Err(_) => skip(&format!("there is no {shell}")),
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && stderr.is_empty(), "{shell}: {stderr}");
            }
        }
    }
    let complete = |before: &str, word: &str| {
        let script = r#"source "$0"; _beanstalkd beanstalkd "$2" "$1"; echo "${COMPREPLY[@]}""#;
        let output = Command::new("bash")
            .args(["-c", script])
            .args([folder.path().join("bash").to_str().expect("a plain name"), before, word])
            .output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Ok(found) = complete("beanstalkd", "--bin") else { return };
    assert_eq!(found, "--binlog --binlog-size");
    assert_eq!(complete("--completions", "f").expect("bash"), "fish");
    assert_eq!(complete("-p", "").expect("bash"), "");
    assert!(complete("-u", "roo").expect("bash").contains("root"));
    assert!(complete("-V", "-").expect("bash").contains("--max-job-size"));
}

// ---- A service manager ----

/// What a daemon says to whoever started it.
#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        Self::with(socket, path.to_str().expect("a plain name").into())
    }

    /// At a name that is in no folder.
    fn abstracted() -> Self {
        let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
        let name = format!("beanstalkd-test-{}-{clock}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name);
        let socket = UnixDatagram::bind_addr(&address.expect("a name")).expect("a socket");
        Self::with(socket, format!("@{name}"))
    }

    fn with(socket: UnixDatagram, name: String) -> Self {
        socket.set_read_timeout(Some(LONG)).expect("a socket");
        Self { socket, name }
    }

    /// The next word.
    #[track_caller]
    fn hears(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).expect("a word");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Listens until this is said, and to nothing else than how things are.
    #[track_caller]
    fn hears_until(&self, last: &str) {
        loop {
            let word = self.hears();
            if word == last {
                return;
            }
            assert!(word.starts_with("STATUS="), "{word}");
        }
    }

    /// The next word, if it is there already.
    #[track_caller]
    fn heard_by_now(&self) -> Option<String> {
        self.socket.set_nonblocking(true).expect("a socket");
        let mut buffer = [0; 4096];
        let outcome = self.socket.recv(&mut buffer);
        self.socket.set_nonblocking(false).expect("a socket");
        match outcome {
            Ok(length) => Some(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        }
    }
}

/// Starts a daemon with one or two sockets passed on to it.
fn activated(flags: &[&str], first: &TcpListener, second: Option<&UnixListener>) -> Command {
    let count = 1 + usize::from(second.is_some());
    let second = second.map(|it| it.try_clone().expect("a copy").into());
    let variables = format!("LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES=a:b");
    shell(&variables, flags, copy(first), second)
}

/// A shell that moves its input and output to 3 and 4, sets variables and becomes the daemon.
fn shell(variables: &str, flags: &[&str], third: OwnedFd, fourth: Option<OwnedFd>) -> Command {
    let moves = if fourth.is_some() { "4<&1 >/dev/null" } else { "" };
    let script = format!("exec 3<&0 </dev/null {moves}; export {variables}; exec \"$0\" \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, BEANSTALKD]).args(flags).stdin(third);
    if let Some(fourth) = fourth {
        command.stdout(fourth);
    }
    command
}

fn copy(listener: &TcpListener) -> OwnedFd {
    listener.try_clone().expect("a copy").into()
}

fn loopback() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

fn place_of(listener: &TcpListener) -> String {
    let address: SocketAddr = listener.local_addr().expect("it is bound");
    address.to_string()
}

fn on_loopback() -> Command {
    let mut command = Command::new(BEANSTALKD);
    command.args(["-l127.0.0.1", "-p0"]).stdin(Stdio::null());
    command
}

/// Puts a job into a binlog and a pipe in place of its lock: the next daemon is held up, when it
/// listens and before it reads, until somebody opens the pipe that is returned.
fn binlog_behind_a_gate(folder: &Path) -> Option<std::path::PathBuf> {
    let path = folder.to_str().expect("a plain name");
    let (mut daemon, places) = serve(on_loopback().args(["-b", path]));
    assert_eq!(connect(&places[0]).put(0, 0, 60, b"x").expect("a reply"), "INSERTED 1");
    assert_eq!(end(&mut daemon), 0);
    let lock = folder.join("lock");
    fs::remove_file(&lock).expect("the old one");
    let made = Command::new("mkfifo").arg(&lock).status();
    if made.is_ok_and(|status| status.success()) {
        return Some(lock);
    }
    skip("there is no mkfifo");
    None
}

// ---- Starting, watching and ending daemons ----

/// Starts it and returns where it listens, by its log.
#[track_caller]
fn serve(command: &mut Command) -> (Daemon, Vec<String>) {
    serve_at(1, command)
}

/// Starts it and waits until it listens at so many places.
#[track_caller]
fn serve_at(count: usize, command: &mut Command) -> (Daemon, Vec<String>) {
    let mut daemon = Daemon::spawn_command(command).expect("it starts");
    let Some(places) = places(&mut daemon, count) else { panic!("it ends: {}", daemon.stderr()) };
    (daemon, places)
}

/// Where it listens; none if it ends.
#[track_caller]
fn places(daemon: &mut Daemon, count: usize) -> Option<Vec<String>> {
    let began = Instant::now();
    loop {
        let ended = daemon.exit_status().is_some();
        let stderr = daemon.stderr();
        let lines = stderr.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let told = lines.filter_map(|line| line.split_once("listens on "));
        let places: Vec<_> = told.map(|(_, place)| place.to_owned()).collect();
        if places.len() == count {
            return Some(places);
        }
        if ended {
            return None;
        }
        assert!(began.elapsed() < LONG, "it does not listen: {stderr}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sees a program end and returns its status and what it said.
#[track_caller]
fn ends(command: &mut Command) -> (i32, String) {
    let mut daemon = Daemon::spawn_command(command).expect("it starts");
    let status = daemon.wait_exit(LONG).expect("it ends by itself");
    (status.code().expect("it ends by itself"), daemon.stderr())
}

#[track_caller]
fn fails(command: &mut Command) -> (i32, String) {
    let (status, stderr) = ends(command);
    assert!(stderr.contains(" beanstalkd: error: "), "{stderr}");
    (status, stderr)
}

#[track_caller]
fn connect(place: &str) -> Client {
    let mut client = Client::connect(place).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    client
}

/// Sees that a daemon answers.
#[track_caller]
fn check(place: &str) {
    assert_eq!(connect(place).command("list-tube-used").expect("a reply"), "USING default");
}

#[track_caller]
fn end(daemon: &mut Daemon) -> i32 {
    daemon.signal(libc::SIGTERM).expect("it runs");
    let status = daemon.wait_exit(LONG).expect("it ends");
    status.code().unwrap_or_else(|| panic!("{status}"))
}

/// Stops it in the middle of whatever it does, until [`thaw`].
#[track_caller]
fn freeze(daemon: &Daemon) {
    daemon.signal(libc::SIGSTOP).expect("it runs");
    await_state(daemon, 'T');
}

/// Waits until it sleeps (`S`) or is stopped (`T`).
#[track_caller]
fn await_state(daemon: &Daemon, state: char) {
    let began = Instant::now();
    while !status(daemon, "State").starts_with(state) {
        assert!(began.elapsed() < LONG, "it does not come to {state}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn thaw(daemon: &Daemon) {
    daemon.signal(libc::SIGCONT).expect("it is there");
}

/// How often it has gone to sleep.
#[track_caller]
fn wake_ups(daemon: &Daemon) -> String {
    status(daemon, "voluntary_ctxt_switches")
}

#[track_caller]
fn status(daemon: &Daemon, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid()));
    let status = status.expect("the process is there");
    let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
    lines.find(|&(found, _)| found == key).expect("a line with this key").1.into()
}

/// The processor time used so far, in the kernel and outside.
#[track_caller]
fn processor_time(daemon: &Daemon) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid()));
    let stat = stat.expect("the process is there");
    // The name may hold spaces.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<_> = fields.split_whitespace().collect();
    let hundredths = |field: usize| fields[field].parse::<u64>().expect("a number");
    Duration::from_millis(10 * (hundredths(11) + hundredths(12)))
}
