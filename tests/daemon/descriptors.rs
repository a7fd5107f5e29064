//! Descriptors: a shortage of them, and connections that leave none behind.

use std::{fs, net::TcpStream, time::Duration};

use ct::{Daemon, LONG, eventually};

use crate::harness::{
    OURS, Peer, THEN_BECOME, assert_idle, daemon, send_all, start, wait_for_count,
};

/// With all descriptors in use, the daemon would use a whole processor and fill the disk with log
/// lines, and would not accept waiting clients when others disconnect.
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
    // If a close did not wake the daemon, each waiting client would wait for a second, which is
    // many more turns of a daemon that is kept busy.
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

/// During a shortage, each connection that closes would add a line to the log, although other
/// clients still wait and nothing has changed.
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
    // A shortage that begins after the end of another is reported again.
    drop((inside, last));
    eventually("all are closed", || descriptors(&daemon) == at_peace);
    Peer::at(&place).check();
    let _crowd: Vec<Peer> = (0..DESCRIPTORS).map(|_| Peer::at(&place)).collect();
    eventually("the next shortage is reported", || shortages(&daemon) == 2);
}

/// After some weeks of clients that connect and disconnect, the daemon would have no descriptors
/// left.
///
/// Proves: B22, Q3.
#[test]
fn a_thousand_connections_leave_no_descriptor_behind() {
    let daemon = daemon(&[]);
    let mut other = Peer::of(&daemon);
    other.check();
    let before = descriptors(&daemon);
    for round in 0..1000 {
        let mut client = Peer::of(&daemon);
        client.send("list-tube-used\r\n");
        match round % 4 {
            0 => drop(client), // The connection closes with its reply in transit.
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

/// Workers whose machines crash would keep jobs, tubes and their places in line at a reserve.
///
/// Proves: B22, Q4, Q13.
#[test]
fn a_thousand_connections_that_vanish_leave_nothing_behind() {
    const AT_A_TIME: usize = 200;
    let daemon = daemon(&[]);
    let mut other = Peer::of(&daemon);
    for _ in 0..AT_A_TIME {
        other.put(0, 0, b"x");
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
        drop(sockets); // Closing with unread replies causes a reset.
        wait_for_count(&mut other, "stats", "current-connections", 1);
    }
    wait_for_count(&mut other, "stats", "current-jobs-ready", AT_A_TIME);
    assert_eq!(other.yaml("list-tubes"), "---\n- default\n");
    for key in ["current-jobs-reserved", "current-waiting", "current-workers"] {
        assert_eq!(other.count("stats", key), 0, "{key}");
    }
    eventually("all are closed", || descriptors(&daemon) == before);
}

/// How many descriptors are open.
#[track_caller]
fn descriptors(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("the process is there").count()
}

/// The limit on descriptors of a daemon that is short of them.
const DESCRIPTORS: usize = 32;

/// How many clients connect beyond that limit.
const KNOCKING: usize = 12;

/// A daemon that uses all its descriptors, and clients that wait to be accepted.
#[derive(Debug)]
struct Siege {
    daemon: Daemon,
    place: String,
    /// The clients that have been accepted and served.
    inside: Vec<Peer>,
    /// The clients that have each sent `list-tube-used`, in the order in which they connected.
    waiting: Vec<Peer>,
    /// The number of the daemon's descriptors without any client.
    at_peace: usize,
}

impl Siege {
    #[track_caller]
    fn begin() -> Self {
        let script = format!("ulimit -n {DESCRIPTORS}{THEN_BECOME}");
        let arguments = ["-c", &script, OURS, "-Vl127.0.0.1", "-p0"];
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
    daemon.stderr().matches("cannot accept connections on ").count()
}
