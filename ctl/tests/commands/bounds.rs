//! Time limits, and output for other programs: `check`, several servers, `drain wait`, JSON.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::page::Page;
use crate::harness::played::{Heard, Played};
use crate::harness::proxy::Proxy;
use crate::harness::{PROGRAM, Ran, Server, bury, each_server, four, ours, put, state};

/// A server that never replies.
fn silent() -> Played {
    Played::new(|_| Heard::Nothing)
}

/// A server that sends a byte now and then, and never a whole reply.
fn trickling() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                while stream.write_all(b"O").is_ok() {
                    thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    address
}

/// Runs a command on several servers.
fn run_on(servers: &[&str], arguments: &[&str]) -> (Ran, Duration) {
    let began = Instant::now();
    let mut command = Command::new(PROGRAM);
    command.args(["--server", &servers.join(",")]).args(arguments).stdin(Stdio::null());
    (Ran::of(command.output().unwrap()), began.elapsed())
}

/// A monitoring system kills a plugin that takes too long, and then shows none of its output.
#[test]
fn a_check_ends_in_time_and_reports_the_servers_that_answered() {
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    let id = put(&mut client, "a", 5, 0, b"x");
    bury(&mut client, id);
    let (silent, trickling) = (silent(), trickling());
    let servers = [&silent.address[..], &trickling, &server.address];
    let (ran, time) = run_on(&servers, &["check", "--timeout", "5"]);
    assert!(ran.code() == Some(3) && time < Duration::from_secs(25), "{time:?} {ran:?}");
    assert!(ran.stdout.contains(&format!("{} a: 1 buried", server.address)), "{ran:?}");
    let (ran, _) = run_on(&servers, &["check", "--timeout", "5", "--json"]);
    let line: Value = serde_json::from_str(ran.stdout.trim()).unwrap();
    assert_eq!(
        (&line["status"], line["problems"].as_array().unwrap().len()),
        (&json!("UNKNOWN"), 3)
    );
    assert_eq!(line["problems"][2]["server"], json!(server.address));
    assert_eq!(line["problems"][2]["status"], json!("WARNING"));
}

/// Without `--timeout`, the limit is 30 seconds, also for a reply that never ends. For several
/// servers that hang, the limits must run at the same time.
#[test]
fn hanging_servers_are_waited_for_together() {
    let server = Server::tcp(&ours(), &[]);
    put(&mut server.client(), "mail", 5, 0, b"x");
    let later = Played::new(|line| match line {
        "list-tube-used" => "USING default".into(),
        _ => Heard::Nothing,
    });
    let (silent, trickling) = (silent(), trickling());
    let servers = [&later.address[..], &silent.address, &trickling, &server.address];
    let commands = [&["tubes"][..], &["stats"], &["grep", "x"], &["list", "*"]];
    thread::scope(|scope| {
        for command in commands {
            scope.spawn(move || {
                let (ran, time) = run_on(&servers, command);
                assert!(time < Duration::from_secs(50), "{command:?}: {time:?}");
                assert!(ran.code() == Some(1) && !ran.stdout.is_empty(), "{command:?}: {ran:?}");
                for address in &servers[..3] {
                    let why = format!("{address}: no complete reply within 30 seconds");
                    assert!(ran.stderr.contains(&why), "{command:?}: {ran:?}");
                }
            });
        }
    });
}

/// A slow server must delay only the output of the other servers, and not their commands.
#[test]
fn servers_are_worked_on_at_the_same_time_and_shown_in_their_order() {
    for (command, held, key) in [
        (&["tubes", "a"][..], "list-tubes", "cmd-list-tubes"),
        (&["list", "a"], "list-tubes", "cmd-list-tubes"),
        (&["grep", "x", "a"], "list-tubes", "cmd-list-tubes"),
        (&["stats", "a"], "stats-tube", "cmd-stats-tube"),
    ] {
        let (slow, fast) = (Server::tcp(&ours(), &[]), Server::tcp(&ours(), &[]));
        for server in [&slow, &fast] {
            put(&mut server.client(), "a", 5, 0, b"x");
        }
        let proxy = Proxy::new(&slow.address, held, 1);
        let both = format!("{},{}", proxy.address, fast.address);
        let arguments = [&["--json", "--server", &both], command].concat();
        let child = fast.command(&arguments).spawn().unwrap();
        proxy.wait();
        ct::eventually("the other server has its commands", || {
            fast.objects(&["stats"])[0][key].as_u64() > Some(0)
        });
        proxy.go_on();
        let ran = Ran::of(child.wait_with_output().unwrap());
        let lines = ran.stdout.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
        let servers: Vec<_> = lines.map(|line| line["server"].clone()).collect();
        assert_eq!(servers, [json!(proxy.address), json!(fast.address)], "{command:?}: {ran:?}");
    }
}

/// If the next job of a tube is old, its workers are stuck, so `check --age` must report that.
#[test]
fn check_knows_the_age_of_the_next_job() {
    each_server(&[], |server| {
        put(&mut server.client(), "a", 5, 0, b"x");
        thread::sleep(Duration::from_millis(2_100));
        put(&mut server.client(), "a", 9, 0, b"x");
        let ran = server.run(&["check", "--age", "2s,1h"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stdout.contains("a: next job "), "{ran:?}");
        assert_eq!(server.run(&["check", "--age", "1,2"]).code(), Some(2));
        assert_eq!(server.run(&["check", "--age", "1m,1h"]).code(), Some(0));
        assert_eq!(server.run(&["check", "--age", "1h,1m"]).code(), Some(3));
    });
}

/// With exit status 0, a truncated export would look like a whole backup.
#[test]
fn an_export_into_a_closed_pipe_fails() {
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    for _ in 0..2_000 {
        put(&mut client, "a", 5, 0, &[b'x'; 1_000]);
    }
    let mut child = server.command(&["export"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 100]).unwrap();
    drop(stdout);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert!(ran.code() == Some(1) && ran.stderr.contains("not all"), "{ran:?}");
}

/// `drain wait` must end when no job is ready, delayed or reserved, so that maintenance can begin.
#[test]
fn drain_wait_ends_when_only_buried_jobs_are_left() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = four(&mut client, "a");
        let counts = |text: &str| format!("{}: {text}", server.address);
        let mut child = server.command(&["drain", "wait"]).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains(&counts("1 ready, 1 delayed, 1 buried, 1 reserved")), "{first}");
        for id in [jobs[0], jobs[1], jobs[3]] {
            assert_eq!(client.command(&format!("delete {id}")).unwrap(), "DELETED");
        }
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(ran.stdout, counts("0 ready, 0 delayed, 1 buried, 0 reserved\n"));
        assert_eq!(server.objects(&["drain", "wait"])[0]["empty"], json!(true));
    });
}

/// A program that asks for JSON must not get text.
#[test]
fn json_is_json_or_refused() {
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    put(&mut client, "a", 5, 0, b"x");
    assert_eq!(server.objects(&["drain", "status"])[0]["draining"], json!(false));
    assert_eq!(
        server.objects(&["clear", "a", "-n"])[0]["would"],
        json!("delete 1 job: 1 ready, in the tube a")
    );
    assert_eq!(server.objects(&["kick", "a", "-n"])[0]["would"], json!("kick 0 delayed jobs"));
    for command in [&["report"][..], &["work", "a", "--", "true"], &["metrics"]] {
        let ran = server.run(&[&["--json"], command].concat());
        assert!(ran.code() == Some(2) && ran.stderr.contains("JSON"), "{command:?}: {ran:?}");
    }
    let page = Page::start(&server.address, &[]);
    for path in ["/api/look?server=x", "/api/jobs?state=nosuch", "/api/job", "/api/body?id=x"] {
        let answer = page.get(path);
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert!(answer.status == 400 && body["error"].is_string(), "{path}: {}", answer.text());
    }
}

/// A line with `time-left` but no state must be refused, because it would make a ready job.
#[test]
fn a_time_left_needs_a_state() {
    let server = Server::tcp(&ours(), &[]);
    let ran = server.run_with(b"{\"body\": \"x\", \"time-left\": 5}\n", &["import"]);
    assert!(!ran.status.success() && ran.stderr.contains("needs a \"state\""), "{ran:?}");
    assert_eq!(server.objects(&["stats"])[0]["total-jobs"], json!(0));
}

#[test]
fn a_dry_run_of_kick_and_export_changes_nothing() {
    each_server(&[], |server| {
        let mut client = server.client();
        let ids = [1, 2, 3].map(|_| put(&mut client, "a", 5, 0, b"x"));
        ids[..2].iter().for_each(|id| bury(&mut client, *id));
        let file = server.file("jobs");
        for (command, expected) in [
            (vec!["kick", "a", "-n", "--all"], "Would kick 2 buried jobs."),
            (vec!["kick", "a", "-n"], "Would kick 1 buried job."),
            (vec!["kick", "a", "-n", "--grep", "x", "--count", "9"], "Would kick 2 buried jobs."),
            (vec!["export", "-n", &file], "Would export 3 jobs."),
        ] {
            let ran = server.run(&command);
            assert!(ran.status.success() && ran.stderr.contains(expected), "{command:?} {ran:?}");
            assert_eq!(ran.stdout, "");
        }
        assert_eq!(state(&mut client, ids[0]).as_deref(), Some("buried"));
        assert!(!std::path::Path::new(&file).exists());
        server.must(&["kick", "a", "--count", "2"]);
        assert_eq!(state(&mut client, ids[1]).as_deref(), Some("ready"));
        assert!(server.must(&["job", &ids[0].to_string()]).contains("size       1 byte\n"));
    });
}

#[test]
fn jobs_are_listed_by_age_and_size() {
    each_server(&[], |server| {
        let mut client = server.client();
        let old = put(&mut client, "a", 9, 0, b"x");
        thread::sleep(Duration::from_millis(1_100));
        let new = put(&mut client, "a", 5, 0, b"longer");
        let ids = |arguments: &[&str]| {
            let objects = server.objects(&[&["list", "a"], arguments].concat());
            objects.iter().map(|job| job["id"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&["--oldest"]), [old, new]);
        assert_eq!(ids(&["--sort", "size"]), [new, old]);
        assert_eq!(ids(&["--sort", "age", "--limit", "1"]), [old]);
        assert_eq!(ids(&["--sort", "pri"]), [old, new]);
    });
}

/// `127.0.0.1` and `localhost` name the same server, so a move to the same tube must be refused.
#[test]
fn a_move_to_the_same_tube_by_another_name_is_refused() {
    let server = Server::tcp(&ours(), &[]);
    let id = put(&mut server.client(), "a", 5, 0, b"x");
    let other = server.address.replace("127.0.0.1", "localhost");
    let ran = server.run(&["move", "a", "a", "--to", &other, "--yes"]);
    assert!(ran.code() == Some(2) && ran.stderr.contains("is this server"), "{ran:?}");
    assert_eq!(state(&mut server.client(), id).as_deref(), Some("ready"));
}

/// The error about an invalid address must show how to write the address.
#[test]
fn addresses_are_explained() {
    for (arguments, expected) in [
        (&["-s", "/run/b.sock", "tubes"][..], "unix:/run/b.sock"),
        (&["-s", "::1:22962", "tubes"], "[::1]:11300"),
        (&["web", "--listen", "22994"], ":22994"),
        (&["metrics", "--listen", "22994"], ":22994"),
    ] {
        let ran = Ran::of(Command::new(PROGRAM).args(arguments).output().unwrap());
        assert!(!ran.status.success() && ran.stderr.contains(expected), "{arguments:?} {ran:?}");
    }
}
