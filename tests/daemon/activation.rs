//! Sockets that a service manager passes on.
//!
//! A shell passes the sockets on, so that the process id is known beforehand. The shell moves its
//! standard input and output to descriptors 3 and 4 and becomes the daemon.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::{
    fs,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    process::Command,
    thread,
    time::Instant,
};

use ct::{Daemon, LONG, eventually};

use crate::harness::{
    OURS, WATCHED, check, connect, fails, freeze, loopback, processor_time, serve, serve_at,
    terminate, thaw,
};

/// A daemon started by a socket unit would not serve on its sockets, or would remove the manager's
/// socket file when it ends.
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
        assert_eq!(terminate(&mut daemon), 0);
        assert!(path.exists(), "the manager's socket is removed");
    }
}

/// A mistake in a unit would start a daemon that serves nowhere, or at another address.
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
        let wanted = "cannot listen on descriptor 3: not a listening stream socket\n";
        assert!(stderr.ends_with(wanted), "{stderr}");
    }
    let cases = [
        ("LISTEN_PID=$$ LISTEN_FDS=9", "cannot listen on descriptor 4: no socket was passed on"),
        ("LISTEN_PID=$$ LISTEN_FDS=4294967295", "cannot listen on descriptor 4: no socket"),
        ("LISTEN_PID=$$ LISTEN_FDS=0", "LISTEN_FDS is 0: the service manager passed no socket"),
        ("LISTEN_PID=$$ LISTEN_FDS=all", "LISTEN_FDS is not a number: all"),
        ("LISTEN_PID=mine LISTEN_FDS=1", "LISTEN_PID is not a number: mine"),
    ];
    for (variables, wanted) in cases {
        let (status, stderr) = fails(&mut shell(variables, &[], copy(&tcp), None));
        assert_eq!(status, 111, "{stderr}");
        assert!(stderr.contains(wanted) && stderr.lines().count() == 1, "{stderr}");
    }
}

/// A daemon that is started by another activated service would take that service's sockets for its
/// own.
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

/// If a manager shuts down a socket, the daemon would use a whole processor, fill the log or stop
/// serving on its other sockets. (If a UNIX socket is shut down, the system does not notify the
/// processes that wait for it.)
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
    // `shutdown` is the same call for all sockets, and affects all processes that share a socket.
    TcpStream::from(copy(&tcp)).shutdown(Shutdown::Both).expect("a listener");
    let told = |daemon: &Daemon| daemon.stderr().matches(" cannot accept connections on ").count();
    eventually("it is told", || told(&daemon) > 0);
    let (used, began) = (processor_time(&daemon), Instant::now());
    thread::sleep(WATCHED);
    let (used, watched) = (processor_time(&daemon).saturating_sub(used), began.elapsed());
    assert!(used < watched / 10, "{used:?} of processor time in {watched:?}");
    assert_eq!(told(&daemon), 1, "{}", daemon.stderr());
    assert!(daemon.stderr().lines().count() < 100, "{}", daemon.stderr());
    check(&format!("unix:{}", path.display()));
    assert_eq!(before.command("list-tube-used").expect("a reply"), "USING default");
    assert_eq!(terminate(&mut daemon), 0);
}

/// During an upgrade, clients that connect would be refused.
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
        // A client that connects in the daemon's last turn, or while there is no daemon, waits for
        // the next daemon.
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

/// Returns a command that becomes a daemon, to which one or two sockets are passed on.
fn activated(flags: &[&str], first: &TcpListener, second: Option<&UnixListener>) -> Command {
    let count = 1 + usize::from(second.is_some());
    let second = second.map(|it| it.try_clone().expect("a copy").into());
    let variables = format!("LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES=a:b");
    shell(&variables, flags, copy(first), second)
}

/// Returns a shell that moves its input and output to 3 and 4, and becomes the daemon.
fn shell(variables: &str, flags: &[&str], third: OwnedFd, fourth: Option<OwnedFd>) -> Command {
    let moves = if fourth.is_some() { "4<&1 >/dev/null" } else { "" };
    let script = format!("exec 3<&0 </dev/null {moves}; export {variables}; exec \"$0\" \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, OURS]).args(flags).stdin(third);
    if let Some(fourth) = fourth {
        command.stdout(fourth);
    }
    command
}

fn copy(listener: &TcpListener) -> OwnedFd {
    listener.try_clone().expect("a copy").into()
}

fn place_of(listener: &TcpListener) -> String {
    let address: SocketAddr = listener.local_addr().expect("it is bound");
    address.to_string()
}
