//! Situations in which a daemon without work might spin, and use a whole processor.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::time::Instant;

use ct::{Arrived, LONG, Patience, SocketStage, Stage};

use crate::harness::{Peer, assert_idle, await_state, daemon, freeze, random_bytes, thaw};

/// A daemon that polls for a fast client would continue after the client is gone.
#[test]
fn it_sleeps_again_after_a_client_that_answered_fast() {
    let daemon = daemon(&[]);
    let mut client = Peer::of(&daemon);
    for _ in 0..20_000 {
        client.tell("list-tube-used", "USING default");
    }
    await_state(&daemon, 'S');
    assert_idle(&daemon);
    client.check();
    drop(client);
    await_state(&daemon, 'S');
}

/// After one byte of urgent data, the daemon would use a whole processor, or would not read the
/// bytes after it.
///
/// Proves: B3.
#[test]
fn an_urgent_byte_neither_spins_nor_hides_what_follows() {
    const ASK: &str = "list-tube-used\r\n";
    // The bytes sent before and after the urgent byte, and the number of commands in these bytes.
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
    let mut other = Peer::of(&daemon);
    let mut stage = SocketStage::new(daemon.address(), Some(daemon.pid()));
    let mut names = Vec::new();
    for (number, (before, behind, replies)) in cases.into_iter().enumerate() {
        // With `at_once`, everything arrives before the daemon reads; without, the daemon reads
        // after each part.
        for at_once in [false, true] {
            let name = format!("{number} {at_once}");
            stage.connect(&name).expect("a connection");
            other.check();
            let id = other.put(0, 0, b"x") + 1;
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
    // Each connection sends one more urgent byte: alone, during a wait, or within a job.
    for (number, name) in names.iter().enumerate() {
        let busy = ["", "reserve\r\n", "put 0 0 60 9\r\nhalf"][number % 3];
        stage.send(name, busy.as_bytes()).expect("a connection");
        stage.urgent(name, b'!').expect("a connection");
    }
    assert_idle(&daemon);
    other.check();
}

/// If a client shuts down its sending side before it reads a large reply, the daemon would use a
/// whole processor until then, or send only a part.
///
/// Proves: B4.
#[test]
fn a_half_closed_client_that_does_not_read_costs_nothing_and_gets_all() {
    let daemon = daemon(&["-z", "30000000"]);
    let body = random_bytes(1, 20_000_000);
    let mut client = Peer::of(&daemon);
    client.put(0, 0, &body);
    client.send("peek 1\r\nlist-tube-used\r\npeek 1\r\n");
    client.0.half_close().expect("a connection");
    let mut other = Peer::of(&daemon);
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

/// Reads exactly `count` lines of reply from a stage's connection; none may be an error.
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
