//! TCP addresses, lists of addresses, and the options of sockets.

use std::{
    io::{BufRead, BufReader},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};

use ct::{Daemon, eventually, skip};

use crate::harness::{
    OURS, Peer, check, connect, daemon, fails, places, process_file, send_all, serve_at, start,
    terminate, wait_for_count,
};

/// Workers on other machines could not connect to a daemon without `-l`; the original lets them.
///
/// Proves: B31.
#[test]
fn without_an_address_it_listens_on_all_of_ipv4() {
    let (daemon, place) = start(OURS, &["-Vp0"]);
    let port = place.strip_prefix("0.0.0.0:").expect("the place of all addresses");
    let port: u16 = port.parse().expect("a port");
    let row = format!(" 00000000:{port:04X} 00000000:0000 0A ");
    assert!(process_file(daemon.pid(), "net/tcp").contains(&row), "{place}");
    for host in ["127.0.0.1", "127.0.0.2"] {
        Peer::at(&format!("{host}:{port}")).check();
    }
}

/// The daemon could not listen on an IPv6 address, or would log a different address.
///
/// Proves: B31.
#[test]
fn ipv6_works_and_is_logged_as_it_is_written() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("this machine has no IPv6");
    }
    for (host, shown) in [("::1", "[::1]:"), ("::", "[::]:")] {
        let (_daemon, place) = start(OURS, &["-V", "-l", host, "-p0"]);
        let port = place.strip_prefix(shown).expect("the place that was asked for");
        Peer::at(&format!("[::1]:{port}")).check();
    }
}

/// A daemon with a host's name as its address would not start.
///
/// Proves: Q22.
#[test]
fn a_host_can_be_a_name() {
    if !ct::knows_localhost() {
        return;
    }
    let (_daemon, place) = start(OURS, &["-Vl", "localhost", "-p", "0"]);
    assert!(place.starts_with("127.0.0.1:") || place.starts_with("[::1]:"), "{place}");
    Peer::at(&place).check();
}

/// Every second reply would be 40 ms late, because clients delay their acknowledgements for that
/// long.
///
/// Proves: Q27.
#[test]
fn a_small_reply_does_not_wait_for_the_one_before_to_be_acknowledged() {
    const ROUNDS: usize = 20;
    let daemon = daemon(&[]);
    let mut producer = Peer::of(&daemon);
    let worker = TcpStream::connect(daemon.address()).expect("a connection");
    let mut worker = BufReader::new(worker);
    // A client's system delays acknowledgements only after some round trips.
    for _ in 0..ROUNDS {
        send_all(worker.get_ref(), b"list-tube-used\r\n");
        assert_eq!(line(&mut worker), "USING default");
    }
    let mut at_once = 0;
    for round in 0..ROUNDS {
        send_all(worker.get_ref(), b"reserve\r\nreserve\r\n");
        wait_for_count(&mut producer, "stats", "current-waiting", 1);
        producer.put(0, 0, b"x");
        assert_eq!(line(&mut worker), format!("RESERVED {} 1", 2 * round + 1));
        assert_eq!(line(&mut worker), "x");
        // Since then, the worker has sent nothing that could carry an acknowledgement.
        producer.put(0, 0, b"x");
        producer.turns(2);
        worker.get_ref().set_nonblocking(true).expect("a socket");
        at_once += usize::from(worker.get_ref().peek(&mut [0]).is_ok());
        worker.get_ref().set_nonblocking(false).expect("a socket");
        assert_eq!(line(&mut worker), format!("RESERVED {} 1", 2 * round + 2));
        assert_eq!(line(&mut worker), "x");
    }
    assert!(at_once > ROUNDS / 2, "{at_once} of {ROUNDS} second replies were there at once");
}

/// The connection of a worker whose machine lost power would keep its descriptor for ever, and a
/// connection through a balancer would hang after a period of silence.
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
    assert!(left <= 200 * 100, "balancers forget it after 240 s; this is {left} / 100 s");
}

/// Local and remote workers could not use the same daemon at different addresses, if it had only
/// one address.
///
/// Proves: Q23.
#[test]
fn it_listens_at_each_address_of_a_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let list = format!("127.0.0.1,unix:{},127.0.0.2,unix:{}", one.display(), two.display());
    let (mut daemon, places) = serve_at(4, Command::new(OURS).args(["-p0", "--listen", &list]));
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
    assert_eq!(terminate(&mut daemon), 0);
    assert!(!one.exists() && !two.exists(), "socket files stay");
}

/// The wildcard addresses of IPv4 and IPv6 would conflict, because the second includes the first.
///
/// Proves: B31.
#[test]
fn both_wildcards_can_be_had_together() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("this machine has no IPv6");
    }
    // Another process may take the port after it was found and before it is used.
    for _ in 0..10 {
        let port = ct::free_port().expect("a port").to_string();
        let mut command = Command::new(OURS);
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

/// If one address of several cannot be used, the daemon would start without it, or leave the socket
/// files of the other addresses behind.
///
/// Proves: Q22, B18.
#[test]
fn it_starts_at_all_addresses_or_at_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let list = format!("unix:{},127.0.0.1,unix:/no/such/folder/socket", path.display());
    let (status, stderr) = fails(Command::new(OURS).args(["-l", &list, "-p", &port]));
    assert_eq!(status, 111, "{stderr}");
    assert!(stderr.contains(&format!("cannot listen on 127.0.0.1 port {port}: ")), "{stderr}");
    assert!(!path.exists(), "the first address leaves its file behind");
}

/// Reads a line without its CR LF.
#[track_caller]
fn line(socket: &mut impl BufRead) -> String {
    let mut line = String::new();
    socket.read_line(&mut line).expect("a reply");
    line.strip_suffix("\r\n").expect("a whole line").into()
}
