//! An act changes only the confirmed jobs, however long the answer takes and whatever other clients
//! do meanwhile; and copies are served in the order of their originals.

use std::process::Stdio;

use crate::harness;
use crate::harness::page::Page;
use crate::harness::proxy::Proxy;
use crate::harness::{Ran, Server, bury, drain, each_server, four, ours, programs, put, state};
use serde_json::json;

/// Begins a command behind a proxy, which holds its lines when `word` begins a line the n-th time.
fn held(server: &Server, word: &'static str, count: usize, arguments: &[&str]) -> Held {
    let proxy = Proxy::new(&server.address, word, count);
    let arguments = [&["--server", &proxy.address], arguments].concat();
    let child = server.command(&arguments).spawn().unwrap();
    proxy.wait();
    Held { proxy, child }
}

struct Held {
    proxy: Proxy,
    child: std::process::Child,
}

impl Held {
    /// Lets the command continue, and waits for its end.
    fn finish(self) -> Ran {
        self.proxy.go_on();
        Ran::of(self.child.wait_with_output().unwrap())
    }
}

/// Jobs put while the question is open must not be deleted with the others.
#[test]
fn a_job_that_comes_after_the_plan_stays() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let old = [1, 2].map(|pri| put(&mut client, "a", pri, 0, b"x"));
        let held = held(&server, "delete", 1, &["clear", "a", "--yes"]);
        let new = [1, 2, 3].map(|pri| put(&mut client, "a", pri, 0, b"y"));
        let ran = held.finish();
        assert!(ran.status.success() && ran.stderr.contains("2 jobs deleted"), "{ran:?}");
        assert!(old.iter().all(|id| state(&mut client, *id).is_none()));
        assert!(new.iter().all(|id| state(&mut client, *id).is_some()), "{ran:?}");
    }
}

/// As many planned jobs are deleted by others as new jobs become ready: the deleted jobs must be
/// reported, and the new ready jobs must stay.
#[test]
fn swapped_jobs_of_a_large_tube_are_reported() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let late: Vec<_> = (0..100).map(|_| put(&mut client, "a", 9, 0, b"late")).collect();
        for id in &late {
            bury(&mut client, *id);
        }
        let lines = "x\n".repeat(10_200);
        assert!(server.run_with(lines.as_bytes(), &["put", "a", "--lines"]).status.success());
        let held = held(&server, "delete", 2, &["clear", "a", "--yes", "--state", "ready"]);
        for (at, id) in late.iter().enumerate() {
            assert_eq!(client.command(&format!("kick-job {id}")).unwrap(), "KICKED");
            assert_eq!(client.command(&format!("delete {}", 10_201 + at)).unwrap(), "DELETED");
        }
        let ran = held.finish();
        assert!(
            late.iter().all(|id| state(&mut client, *id).as_deref() == Some("ready")),
            "{ran:?}"
        );
        assert!(ran.stderr.contains("10100 jobs deleted (plan: delete 10200 jobs"), "{ran:?}");
        assert!(ran.stderr.contains("changed or deleted them: 100 jobs."), "{ran:?}");
    }
}

/// If other clients kick the buried jobs first, `kick` must not kick delayed jobs instead.
#[test]
fn only_jobs_of_the_state_that_was_meant_are_kicked() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let [_, delayed, buried, _] = four(&mut client, "a");
        let held = held(&server, "kick", 1, &["kick", "a", "--all"]);
        assert_eq!(client.command(&format!("kick-job {buried}")).unwrap(), "KICKED");
        let ran = held.finish();
        assert!(ran.stderr.contains("0 buried jobs kicked"), "{ran:?}");
        assert_eq!(state(&mut client, delayed).as_deref(), Some("delayed"), "{ran:?}");
        let ran = server.run(&["kick", "a", "--all"]);
        assert!(ran.stderr.contains("1 delayed job kicked"), "{ran:?}");
    }
}

/// A job that another client buries before its batch starts must not be deleted or moved.
#[test]
fn a_job_that_others_bury_before_its_batch_stays() {
    for program in programs() {
        for act in [&["clear", "a", "--yes"][..], &["move", "a", "b", "--yes"]] {
            let server = Server::tcp(&program, &[]);
            let mut client = server.client();
            let [ready, ..] = four(&mut client, "a");
            // On the original, the plan requests all four ids first.
            let count = if program == ours() { 1 } else { 5 };
            let held = held(&server, "stats-job ", count, act);
            bury(&mut client, ready);
            let ran = held.finish();
            assert!(ran.code() == Some(1) && ran.stderr.contains(": 1 job."), "{ran:?}");
            assert_eq!(state(&mut client, ready).as_deref(), Some("buried"), "{ran:?}");
        }
    }
}

/// While copies are put, other clients may change the originals, which must then not be moved.
#[test]
fn a_job_that_others_change_during_its_move_stays() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        client.command("use a").unwrap();
        let mut ids = [5, 6].map(|pri| {
            let reply = client.put(pri, 0, 1, b"x").unwrap();
            reply.strip_prefix("INSERTED ").unwrap().parse::<u64>().unwrap()
        });
        bury(&mut client, ids[0]);
        ids.reverse();
        let held = held(&server, "put ", 1, &["move", "a", "b", "--yes"]);
        assert_eq!(client.command(&format!("kick-job {}", ids[1])).unwrap(), "KICKED");
        // The original beanstalkd notices no timeout while the connection is idle.
        let changed = if program == ours() { &ids[..] } else { &ids[1..] };
        ct::eventually("the reservation times out", || {
            changed.iter().all(|id| state(&mut client, *id).as_deref() == Some("ready"))
        });
        for id in changed {
            bury(&mut client, *id);
        }
        let ran = held.finish();
        let left = format!("or they timed out: {} job", changed.len());
        assert!(ran.code() == Some(1) && ran.stderr.contains(&left), "{ran:?}");
        let states: Vec<_> = changed.iter().map(|id| state(&mut client, *id)).collect();
        assert!(states.iter().all(|state| state.as_deref() == Some("buried")), "{ran:?}");
        assert_eq!(drain(&mut client, "b").len(), 2 - changed.len(), "{ran:?}");
    }
}

/// A job that is kicked and delayed again is peeked first again, and must not hide later jobs.
#[test]
fn a_kick_continues_after_a_job_that_others_delay_anew() {
    let Some(original) = ct::Original::find() else { return };
    let server = Server::tcp(&original.path, &[]);
    let mut client = server.client();
    let ids = [1000, 2000, 3000].map(|delay| put(&mut client, "a", 5, delay, b"x"));
    let held = held(&server, "peek-delayed", 2, &["kick", "a", "--all"]);
    harness::reserve(&mut client, ids[0]);
    assert_eq!(client.command(&format!("release {} 5 9", ids[0])).unwrap(), "RELEASED");
    let ran = held.finish();
    assert!(ran.status.success() && ran.stderr.contains("3 delayed jobs kicked"), "{ran:?}");
    let states = ids.map(|id| state(&mut client, id).unwrap());
    assert_eq!(states, ["delayed", "ready", "ready"]);
}

/// If another client kicks and delays a buried job during the search, `kick` must not change it.
#[test]
fn a_kick_by_bodies_takes_only_jobs_that_are_still_buried() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let ids = [5, 6].map(|pri| {
            let id = put(&mut client, "a", pri, 0, b"x");
            bury(&mut client, id);
            id
        });
        let held = held(&server, "peek ", 1, &["kick", "a", "--all", "--grep", "x"]);
        harness::reserve(&mut client, ids[0]);
        assert_eq!(client.command(&format!("release {} 5 1000", ids[0])).unwrap(), "RELEASED");
        let ran = held.finish();
        let states = ids.map(|id| state(&mut client, id).unwrap());
        assert_eq!(states, ["delayed", "ready"], "{ran:?}");
        assert!(ran.code() == Some(1) && ran.stderr.contains("deleted them: 1 job."), "{ran:?}");
    }
}

#[test]
fn many_buried_jobs_are_kicked_in_their_order() {
    each_server(&[], |server| {
        let mut client = server.client();
        let ids: Vec<_> = (0..50).map(|pri| put(&mut client, "a", pri, 0, b"x")).collect();
        for id in &ids {
            bury(&mut client, *id);
        }
        server.must(&["kick", "a", "20"]);
        let states = |part: &[u64], client: &mut _| -> Vec<_> {
            part.iter().map(|id| state(client, *id).unwrap()).collect()
        };
        assert!(states(&ids[..20], &mut client).iter().all(|state| state == "ready"));
        assert!(states(&ids[20..], &mut client).iter().all(|state| state == "buried"));
        let ran = server.run(&["kick", "a", "--all"]);
        assert!(ran.stderr.contains("30 buried jobs kicked"), "{ran:?}");
    });
}

/// Only jobs whose bodies match `--grep` may be cleared, kicked or exported.
#[test]
fn jobs_are_chosen_by_their_bodies() {
    each_server(&[], |server| {
        let mut client = server.client();
        let ids = ["order 1", "mail 2", "order 3"].map(|body| {
            let id = put(&mut client, "a", 5, 0, body.as_bytes());
            bury(&mut client, id);
            id
        });
        let exported = server.must(&["export", "--grep", "^order"]);
        assert_eq!(exported.lines().count(), 3, "two jobs and their count: {exported}");
        let ran = server.run(&["kick", "a", "--all", "--grep", "^mail"]);
        assert!(ran.stderr.contains("1 buried job kicked"), "{ran:?}");
        let ran = server.run(&["clear", "a", "--yes", "--grep", "^order"]);
        assert!(ran.stderr.contains("2 jobs deleted"), "{ran:?}");
        assert_eq!(ids.map(|id| state(&mut client, id)), [None, Some("ready".into()), None]);
    });
}

/// Puts four jobs that are served as C, A, B, D, but that a sweep finds as A, B, C, D.
fn shuffled(server: &Server) -> [&'static [u8]; 4] {
    let mut client = server.client();
    for (pri, body) in [(5, "A"), (5, "B"), (1, "C"), (5, "D")] {
        put(&mut client, "a", pri, 0, body.as_bytes());
    }
    [b"C", b"A", b"B", b"D"]
}

/// Workers must get copies in the order in which they would get the originals.
#[test]
fn copies_are_served_in_the_order_of_their_originals() {
    for program in programs() {
        let server = Server::tcp(&program, &[]);
        let order = shuffled(&server);
        server.must(&["move", "a", "b", "--yes"]);
        assert_eq!(drain(&mut server.client(), "b"), order, "moved");
        shuffled(&server);
        let file = server.file("jobs");
        server.must(&["clear", "a", "--yes", "--save", &file]);
        server.must(&["import", &file]);
        assert_eq!(drain(&mut server.client(), "a"), order, "cleared and imported");
        shuffled(&server);
        let other = Server::tcp(&program, &[]);
        let mut export = server.command(&["export"]).spawn().unwrap();
        let mut import = other.command(&["import"]);
        let import = import.stdin(export.stdout.take().unwrap()).stderr(Stdio::null());
        assert!(import.status().unwrap().success() && export.wait().unwrap().success());
        assert_eq!(drain(&mut other.client(), "a"), order, "exported and imported");
    }
}

/// A kick takes the job that was buried first. So copies must be buried in the same order.
#[test]
fn copies_are_buried_in_the_order_of_their_originals() {
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    let fill = |client: &mut _| {
        let ids = [5, 9, 1, 7, 3].map(|pri| put(client, "a", pri, 0, format!("{pri}").as_bytes()));
        for at in [2, 0, 4, 1, 3] {
            bury(client, ids[at]);
        }
    };
    let order: [&[u8]; 5] = [b"1", b"5", b"3", b"9", b"7"];
    fill(&mut client);
    server.must(&["move", "a", "b", "--yes"]);
    assert_eq!(drain(&mut client, "b"), order, "moved");
    fill(&mut client);
    let [exported, saved] = ["exported", "saved"].map(|name| server.file(name));
    server.must(&["export", &exported]);
    server.must(&["clear", "a", "--yes", "--save", &saved]);
    for file in [exported, saved] {
        server.must(&["import", &file]);
        assert_eq!(drain(&mut client, "a"), order, "imported");
    }
    let page = Page::start(&server.address, &[]);
    fill(&mut client);
    let kick = json!({ "act": "kick", "jobs": { "tube": "a", "states": ["buried"], "count": 2 } });
    assert_eq!(page.act(&kick)["count"], 2);
    let mut ready = server.objects(&["list", "a", "--state", "ready", "--bodies"]);
    ready.retain(|job| job["body"] == "1" || job["body"] == "5");
    assert_eq!(ready.len(), 2, "the first two are kicked");
}

/// If there are more jobs than a server lists, a sweep finds the jobs in order of their ids.
#[test]
fn the_order_holds_for_more_jobs_than_a_server_lists() {
    let server = Server::tcp(&ours(), &[]);
    let lines = (0..10_010).map(|number| format!("{number}\n")).collect::<Vec<_>>().concat();
    // The first job is not the most urgent one, so a sweep does not begin with it.
    server.run_with(b"first\n", &["put", "a", "--lines", "--pri", "9"]);
    server.run_with(lines.as_bytes(), &["put", "a", "--lines", "--pri", "5"]);
    server.run_with(b"last\n", &["put", "a", "--lines", "--pri", "9"]);
    server.must(&["move", "a", "b", "--yes"]);
    let bodies = drain(&mut server.client(), "b");
    let numbers = (0..10_010).map(|number| number.to_string().into_bytes());
    let all = numbers.chain([b"first".to_vec(), b"last".to_vec()]);
    assert!(all.eq(bodies));
}

/// Each action is reported in one line, which a log can keep.
#[test]
fn each_act_is_reported_in_one_line() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [ready, ..] = four(&mut client, "a").map(|id| id.to_string());
        put(&mut client, "b", 5, 0, b"x");
        let line = b"{\"tube\":\"c\",\"body\":\"x\"}\n";
        for (arguments, done) in [
            (&["delete", &ready, "--yes"][..], "1 job deleted"),
            (&["kick", "a"], "1 buried job kicked in the tube a"),
            (&["move", "a", "b", "--yes"], "2 jobs moved"),
            (&["pause", "b", "--for", "1h"], "1 tube paused: b"),
            (&["resume", "b"], "1 tube resumed: b"),
            (&["import"], "1 job imported"),
            (&["clear", "b", "--yes"], "3 jobs deleted"),
        ] {
            let ran = server.run_with(line, &[&["--json"], arguments].concat());
            assert!(ran.status.success(), "{ran:?}");
            let place = format!("Z {}: {done}", server.address);
            let found: Vec<_> = ran.stderr.lines().filter(|line| line.contains(&place)).collect();
            assert!(found.len() == 1 && found[0].starts_with("20"), "{done}: {ran:?}");
            let object: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
            assert_eq!(object["server"], json!(server.address));
            assert!(object["report"].as_str().unwrap().starts_with(done), "{object}");
        }
    });
}

/// After a restart, an id may belong to a job in another tube. So the question names the tube.
#[test]
fn a_question_names_the_tubes() {
    each_server(&[], |server| {
        let mut client = server.client();
        let ids = ["a", "b"].map(|tube| put(&mut client, tube, 5, 0, b"x").to_string());
        let ran = server.run(&["delete", &ids[0], "--dry-run"]);
        assert!(ran.stderr.contains("1 job: 1 ready, in the tube a"), "{ran:?}");
        let ran = server.run(&["delete", &ids[0], &ids[1], "--dry-run"]);
        assert!(ran.stderr.contains("2 jobs: 2 ready, in 2 tubes: a, b"), "{ran:?}");
    });
}

/// An act on several servers may affect more than intended, so it must ask first.
#[test]
fn an_act_on_several_servers_asks() {
    let (one, two) = (Server::tcp(&ours(), &[]), Server::tcp(&ours(), &[]));
    put(&mut one.client(), "a", 5, 0, b"x");
    put(&mut two.client(), "a", 5, 0, b"x");
    let both = format!("{},{}", one.address, two.address);
    for act in [&["pause", "a", "--for", "1h"][..], &["resume", "a"], &["drain", "on"]] {
        let ran = one.run(&[&["--server", &both], act].concat());
        assert!(ran.code() == Some(1) && ran.stderr.contains("on 2 servers"), "{ran:?}");
        assert!(one.run(&[&["--server", &both], act, &["--yes"]].concat()).status.success());
    }
    assert_eq!(two.must(&["drain", "status"]), "draining\n");
    assert!(one.run(&["resume", "a"]).status.success());
}

/// After a restart, an id on a page that was left open may belong to another job.
#[test]
fn an_act_on_another_instance_of_the_server_is_refused() {
    for program in programs() {
        let mut server = Server::tcp(&program, &[]);
        let page = Page::start(&server.address, &[]);
        let id = put(&mut server.client(), "a", 5, 0, b"x");
        let instance = page.get("/api/jobs?tube=a&limit=9").json()["instance"].clone();
        server.restart(&[]);
        let mut client = server.client();
        assert_eq!(put(&mut client, "b", 5, 0, b"another"), id, "ids begin anew");
        let delete = |instance: &serde_json::Value| {
            let what = json!({ "act": "delete", "jobs": { "ids": [id.to_string()] } });
            let order = json!({ "server": 0, "dry": true, "what": what, "instance": instance });
            let told = page.post_with(&order, &[]);
            if told.status == 200 { page.answer(&told.json()) } else { told }
        };
        let answer = delete(&instance);
        assert!(answer.status == 409 && answer.text().contains("restarted"), "{}", answer.text());
        assert_eq!(state(&mut client, id).as_deref(), Some("ready"));
        let instance = page.get("/api/jobs?tube=b&limit=9").json()["instance"].clone();
        assert_eq!(delete(&instance).json()["count"], 1);
    }
}
