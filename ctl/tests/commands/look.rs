//! Commands that change nothing, on this daemon and on the original, over TCP and a UNIX socket.

use std::time::{Duration, Instant};

use crate::harness::{Server, bury, each_server, four, ours, programs, put, reserve, state};
use serde_json::{Value, json};

fn ids(objects: &[Value]) -> Vec<u64> {
    let mut ids: Vec<_> = objects.iter().map(|object| object["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids
}

/// `tubes` must show the counts of each tube in a row, and select, sort and filter as asked.
#[test]
fn tubes_are_one_table() {
    each_server(&[], |server| {
        let mut client = server.client();
        four(&mut client, "mail-a");
        put(&mut client, "other", 5, 0, b"x");
        client.command("pause-tube other 1000").unwrap();
        let text = server.must(&["tubes"]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let heading =
            ["tube", "ready", "reserved", "delayed", "buried", "watching", "waiting", "paused-for"];
        assert_eq!(lines[0], heading);
        assert_eq!(lines[2], ["mail-a", "1", "1", "1", "1", "0", "0", "-"]);
        assert_eq!(lines[3][..7], ["other", "1", "0", "0", "0", "0", "0"]);
        assert!(lines[3][7].parse::<u32>().unwrap() > 900);

        let chosen = server.must(&["tubes", "mail-*", "--columns", "buried,tube"]);
        let words: Vec<_> = chosen.split_whitespace().collect();
        assert_eq!(words, ["buried", "tube", "1", "mail-a"]);
        let sorted = server.must(&["tubes", "--sort", "buried", "--columns", "tube"]);
        assert_eq!(sorted.split_whitespace().nth(1), Some("mail-a"));
        let objects = server.objects(&["tubes", "oth*"]);
        assert_eq!(objects.len(), 1);
        assert_eq!((&objects[0]["name"], &objects[0]["pause"]), (&json!("other"), &json!(1000)));
        let ran = server.run(&["tubes", "--sort", "lost"]);
        assert_eq!(ran.code(), Some(2));
        assert!(ran.stderr.contains("no column"), "{ran:?}");
    });
}

/// If one of several servers is down, the other servers must still be shown.
#[test]
fn several_servers_stand_side_by_side() {
    for program in programs() {
        let (one, two) = (Server::tcp(&program, &[]), Server::unix(&ours(), &[]));
        put(&mut two.client(), "here", 5, 0, b"x");
        let both = format!("{},{},127.0.0.1:1", one.address, two.address);
        let ran = one.run(&["--server", &both, "tubes"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("127.0.0.1:1"), "{ran:?}");
        assert!(ran.stdout.starts_with("server"), "{ran:?}");
        assert_eq!(ran.stdout.lines().count(), 4, "{ran:?}");
        let both = format!("{},{}", one.address, two.address);
        let objects = one.objects(&["--server", &both, "list", "*"]);
        assert_eq!(objects.len(), 1);
        assert_eq!(objects[0]["server"], json!(two.address));
        let stats = one.must(&["--server", &both, "stats"]);
        let uptime = stats.lines().find(|line| line.starts_with("uptime")).unwrap();
        assert_eq!(uptime.split_whitespace().count(), 3);
    }
}

#[test]
fn statistics_are_shown_as_they_are() {
    each_server(&[], |server| {
        put(&mut server.client(), "a.b", 5, 0, b"x");
        let text = server.must(&["stats"]);
        assert!(text.lines().any(|line| line.split_whitespace().eq(["total-jobs", "1"])), "{text}");
        assert_eq!(server.objects(&["stats"])[0]["total-jobs"], json!(1));
        let tube = &server.objects(&["stats", "a.b"])[0];
        assert_eq!((&tube["name"], &tube["current-jobs-ready"]), (&json!("a.b"), &json!(1)));
        let ran = server.run(&["stats", "nosuch"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("no tube nosuch"), "{ran:?}");
    });
}

#[test]
fn a_job_is_shown_with_its_body() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [ready, delayed, ..] = four(&mut client, "a");
        let object = &server.objects(&["job", &delayed.to_string()])[0];
        assert_eq!((&object["state"], &object["tube"]), (&json!("delayed"), &json!("a")));
        assert_eq!(object["body_base64"], json!("c2Vjb25kIP8ADQpkZWxheWVk"));
        assert_eq!((&object["size"], &object["ttr"]), (&json!(18), &json!(120)));
        let text = server.must(&["job", &delayed.to_string()]);
        assert!(text.contains("second \\xff\\u{0}\\r\\ndelayed"), "{text}");
        assert_eq!(server.must(&["job", "--raw", &ready.to_string()]), "first ready");
        let ran = server.run(&["job", &ready.to_string(), "999"]);
        assert_eq!(ran.code(), Some(1));
        assert!(ran.stderr.contains("no job 999") && ran.stdout.contains("first ready"), "{ran:?}");
    });
}

/// The original has no command that lists all jobs. Still, `list` must find reserved jobs, too.
#[test]
fn all_jobs_of_a_tube_are_listed() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = four(&mut client, "a");
        put(&mut client, "b", 5, 0, b"another");
        assert_eq!(ids(&server.objects(&["list", "a"])), jobs);
        assert_eq!(server.objects(&["list", "*"]).len(), 5);
        let objects = server.objects(&["list", "a", "--state", "buried,reserved"]);
        assert_eq!(ids(&objects), jobs[2..]);
        for object in &objects {
            for key in ["id", "tube", "state", "pri", "age", "size"] {
                assert!(!object[key].is_null(), "{key}: {object}");
            }
        }
        let text = server.must(&["list", "a", "--bodies"]);
        assert!(text.starts_with("id  tube  state") && text.contains("third buried"), "{text}");
        assert_eq!(server.objects(&["list", "a", "--limit", "2"]).len(), 2);
        assert_eq!(server.objects(&["list", "a", "--older-than", "1h"]).len(), 0);
        assert_eq!(ids(&server.objects(&["list", "a", "--rate", "50"])), jobs);
        // The rate also limits servers with `list-jobs`, where each body needs a command.
        for number in 0..40 {
            put(&mut client, "slow", 5, 0, format!("{number}").as_bytes());
        }
        let began = Instant::now();
        let found = server.objects(&["list", "slow", "--bodies", "--rate", "20"]);
        assert_eq!(found.len(), 40);
        assert!(began.elapsed() >= Duration::from_secs(1), "after {:?}", began.elapsed());
        // The lists have changed no job.
        let states = jobs.map(|id| state(&mut client, id).unwrap());
        assert_eq!(states, ["ready", "delayed", "buried", "reserved"]);
    });
}

/// No peek finds a reserved job, so its id may be lower than the id at which the sweep begins.
#[test]
fn an_old_reserved_job_is_listed() {
    each_server(&[], |server| {
        let mut client = server.client();
        let old = put(&mut client, "a", 5, 0, b"old");
        reserve(&mut client, old);
        let new = put(&mut client, "a", 5, 0, b"new");
        assert_eq!(ids(&server.objects(&["list", "a"])), [old, new]);
    });
}

/// After a restart with a binlog, no counter bounds the ids. Each job must be found, or the command
/// must report that jobs may be missing.
#[test]
fn jobs_from_before_a_restart_are_listed() {
    for program in programs() {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["-b", folder.path().to_str().unwrap()];
        let mut server = Server::tcp(&program, &flags);
        let mut client = server.client();
        let first = put(&mut client, "a", 5, 0, b"first");
        for _ in 0..500 {
            let id = put(&mut client, "passing", 5, 0, b"x");
            assert_eq!(client.command(&format!("delete {id}")).unwrap(), "DELETED");
        }
        let last = put(&mut client, "a", 5, 0, b"last");
        bury(&mut client, last);
        drop(client);
        server.restart(&flags);
        assert_eq!(ids(&server.objects(&["list", "a"])), [first, last]);
        let new = put(&mut server.client(), "a", 5, 0, b"new");
        assert!(new > last);
        assert_eq!(ids(&server.objects(&["list", "a"])), [first, last, new]);
        assert_eq!(ids(&server.objects(&["list", "*"])), [first, last, new]);
        assert_eq!(ids(&server.objects(&["list", "a", "--probe"])), [first, last, new]);
        // If the bound is too low, the new job is found only on a server with `list-jobs`.
        let ran = server.run(&["--json", "list", "a", "--last-id", &last.to_string()]);
        let bounded = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
        let bounded = ids(&bounded.collect::<Vec<_>>());
        assert!(bounded.starts_with(&[first, last]));
        assert_eq!(ran.code(), Some(i32::from(bounded.len() == 2)), "{ran:?}");
        assert!(!server.must(&["tubes"]).contains("probe"));
    }
}

#[test]
fn jobs_are_found_by_their_bodies() {
    each_server(&[], |server| {
        let mut client = server.client();
        let jobs = four(&mut client, "a");
        let other = put(&mut client, "b", 5, 0, b"first of another tube");
        assert_eq!(ids(&server.objects(&["grep", "^first"])), [jobs[0], other]);
        assert_eq!(ids(&server.objects(&["grep", "^first", "a"])), [jobs[0]]);
        assert_eq!(ids(&server.objects(&["grep", r"(?-u)\xff\x00", "a"])), [jobs[1]]);
        assert_eq!(server.must(&["grep", "-i", "THIRD", "--ids"]), format!("{}\n", jobs[2]));
        assert!(server.must(&["grep", "fourth"]).contains(" a reserved: fourth reserved\n"));
        for arguments in [&["grep", "nothing"][..], &["grep", "-F", "^first"]] {
            let ran = server.run(arguments);
            assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr.as_str()), (Some(1), "", ""));
        }
        let ran = server.run(&["grep", "("]);
        assert_eq!(ran.code(), Some(2));
        assert!(ran.stderr.contains("unclosed group"), "{ran:?}");
    });
}

/// A sweep ends when it has found enough jobs. Jobs deleted meanwhile must not hide other jobs.
#[test]
fn jobs_that_come_and_go_hide_no_others() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let kept: Vec<u64> = (0..50)
            .map(|_| {
                for _ in 0..200 {
                    let id = put(&mut client, "busy", 5, 0, b"x");
                    client.command(&format!("delete {id}")).unwrap();
                }
                put(&mut client, "kept", 5, 0, b"y")
            })
            .collect();
        reserve(&mut client, kept[7]);
        std::thread::scope(|scope| {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            let mut busy = server.client();
            scope.spawn(move || {
                while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    let id = put(&mut busy, "busy", 5, 0, b"x");
                    busy.command(&format!("delete {id}")).unwrap();
                }
            });
            for _ in 0..5 {
                assert_eq!(ids(&server.objects(&["list", "kept"])), kept);
            }
            drop(stop);
        });
    }
}

/// Without a message, a misspelt name would look like an empty tube.
#[test]
fn a_name_without_a_tube_is_told() {
    each_server(&[], |server| {
        for arguments in [&["list", "nosuch"][..], &["clear", "nosuch", "--yes"]] {
            let ran = server.run(arguments);
            assert_eq!(ran.code(), Some(1), "{ran:?}");
            assert!(ran.stderr.contains("no matching tube"), "{ran:?}");
        }
        assert!(server.run(&["list", "default"]).stderr.is_empty());
    });
}

/// A `list-jobs` command with the longest name is too long, so `list` must use a sweep.
#[test]
fn tubes_with_the_longest_names_are_listed() {
    each_server(&[], |server| {
        let mut client = server.client();
        let name = "x".repeat(200);
        four(&mut client, &name);
        assert_eq!(server.objects(&["list", &name]).len(), 4);
        assert!(server.run(&["clear", &name, "--yes"]).status.success());
        assert_eq!(server.objects(&["list", "*"]).len(), 1);
    });
}

/// If `--last-id` is too low, the command must report that jobs may be missing.
#[test]
fn jobs_above_a_told_last_id_are_not_forgotten() {
    // Ids are requested only from a server that cannot list its jobs.
    for program in programs().into_iter().filter(|program| *program != ours()) {
        let server = Server::tcp(&program, &[]);
        four(&mut server.client(), "a");
        let ran = server.run(&["list", "a", "--last-id", "2"]);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("--last-id is too low"), "{ran:?}");
    }
}
