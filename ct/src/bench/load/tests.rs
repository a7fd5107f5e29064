use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::super::op::{Op, Priority};
use super::super::reader::Body;
use super::super::tally::LATENCY_MAX_NS;
use super::*;

const PUT: Op = Op::Put { priority: Priority::Fixed(0), delay: 0 };

/// The jobs of a minimal daemon for these tests.
#[derive(Default)]
struct Jobs {
    state: Mutex<ReadyJobs>,
    filled: Condvar,
}

/// The number of jobs that were put, and the id and the body with CR LF of each ready job.
type ReadyJobs = (u64, VecDeque<(u64, Vec<u8>)>);

/// Starts a minimal daemon; `change` may corrupt or delay a reply.
fn daemon(change: fn(u64, &mut Vec<u8>)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let jobs = Arc::new(Jobs::default());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let jobs = Arc::clone(&jobs);
            thread::spawn(move || serve(stream.unwrap(), &jobs, change));
        }
    });
    address
}

fn serve(stream: TcpStream, jobs: &Jobs, change: fn(u64, &mut Vec<u8>)) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut input = BufReader::new(stream);
    for count in 0.. {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|&length| length > 0)?;
        let mut words = line.split_whitespace();
        let mut reply = match words.next()? {
            "put" => {
                let mut body = String::new();
                input.read_line(&mut body).ok()?;
                let mut state = jobs.state.lock().unwrap();
                state.0 += 1;
                let id = state.0;
                state.1.push_back((id, body.into_bytes()));
                jobs.filled.notify_one();
                format!("INSERTED {id}\r\n").into_bytes()
            }
            "reserve" => {
                let mut state = jobs.state.lock().unwrap();
                while state.1.is_empty() {
                    state = jobs.filled.wait(state).unwrap();
                }
                let (id, body) = state.1.pop_front()?;
                let head = format!("RESERVED {id} {}\r\n", body.len() - 2);
                [head.as_bytes(), &body].concat()
            }
            "touch" => b"TOUCHED\r\n".to_vec(),
            _ => b"DELETED\r\n".to_vec(),
        };
        change(count, &mut reply);
        input.get_mut().write_all(&reply).ok()?;
    }
    None
}

fn load(address: &str, groups: &[Group]) -> Load {
    Load::connect(address, groups, false, 1).unwrap()
}

#[test]
fn every_reply_is_counted_and_nothing_is_left_behind() {
    let address = daemon(|_, _| ());
    for depth in [1, 7, 64] {
        let cycle = Group::new(3, depth, &[PUT, Op::Reserve, Op::Delete], Body::plain(100));
        let mut load = load(&address, &[cycle]);
        for _ in 0..2 {
            let tally = load.run(Until::cycles(500)).unwrap();
            assert!(tally.cycles >= 500, "{tally:?}");
            assert_eq!(tally.commands, 3 * tally.cycles);
            assert_eq!(tally.latency.len(), tally.commands);
        }
    }
}

#[test]
fn as_many_jobs_are_in_flight_as_there_are_producers() {
    // The daemon delays the reply with the last job of each run; the run must wait for that reply.
    let address = daemon(|_, reply| {
        if [&b"RESERVED 300 "[..], b"RESERVED 600 "].iter().any(|last| reply.starts_with(last)) {
            thread::sleep(Duration::from_millis(100));
        }
    });
    let put = Group::new(4, 1, &[PUT], Body::stamped(0));
    let producers = Group { pacing: Pacing::Paired, ..put };
    let mut load = load(&address, &[Group::workers(6, Body::stamped(0)), producers]);
    for _ in 0..2 {
        let tally = load.run(Until::cycles(300)).unwrap();
        assert_eq!(tally.commands, 3 * 300, "each job is put, reserved and deleted");
        assert_eq!(tally.sojourn.len(), 300);
    }
}

#[test]
fn a_stall_counts_for_all_that_should_have_been_sent_meanwhile() {
    // The daemon sleeps 100 ms once. At 1,000 cycles a second on a single connection, this sleep
    // makes a hundred cycles late. A closed loop would record only one late cycle.
    let address = daemon(|count, _| {
        if count == 50 {
            thread::sleep(Duration::from_millis(100));
        }
    });
    let group = Group::new(1, 1, &[PUT], Body::plain(0));
    let group = Group { pacing: Pacing::Open(1_000.0), ..group };
    let tally = load(&address, &[group]).run(Until::cycles(500)).unwrap();
    let late = tally.latency.count_between(20_000_000, LATENCY_MAX_NS);
    assert!(late >= 60, "only {late} were late");
    // A slow machine may run below the offered rate, so only a higher rate is an error.
    assert!(tally.wall > Duration::from_millis(400), "above the offered rate: {tally:?}");
}

#[test]
fn held_jobs_stay_with_their_connection() {
    let address = daemon(|_, _| ());
    let mut put = load(&address, &[Group::new(1, 10, &[PUT], Body::plain(8))]);
    put.run(Until::cycles(30)).unwrap();
    let ops = [Op::Touch, Op::Delete, PUT, Op::Reserve];
    let group = Group { hold: 30, ..Group::new(1, 10, &ops, Body::plain(8)) };
    let mut load = load(&address, &[group]);
    load.run(Until::cycles(200)).unwrap();
    assert_eq!(load.connections[0].held_ids(), (201..=230).collect::<Vec<u64>>());
}

#[test]
fn a_wrong_reply_ends_the_run() {
    let spoil: [fn(u64, &mut Vec<u8>); 3] = [
        |count, reply| {
            if count == 5 {
                *reply = b"NOT_FOUND\r\n".to_vec();
            }
        },
        |_, reply| reply.extend_from_slice(b"DELETED\r\n"),
        |_, reply| reply.extend_from_slice(b"D"),
    ];
    for change in spoil {
        let address = daemon(change);
        let group = Group::new(1, 1, &[PUT, Op::Reserve, Op::Delete], Body::plain(8));
        let result = Load::connect(&address, &[group], false, 1)
            .and_then(|mut load| load.run(Until::cycles(50)));
        assert!(result.is_err(), "{result:?}");
    }
}
