//! The acts of `web` by plain HTTP, on this daemon and on the original. Each act must first count
//! its jobs, and then change only the confirmed jobs, as announced.

use std::process::Command;
use std::thread;

use crate::harness;
use crate::harness::page::Page;
use crate::harness::proxy::Proxy;
use crate::harness::{Server, bury, each_server, four, put, reserve, state};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

/// The states whose jobs can be cleared.
const STATES: [&str; 3] = ["ready", "delayed", "buried"];

/// Returns an act on these jobs.
fn on(act: &str, ids: &[u64]) -> Value {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    json!({ "act": act, "jobs": { "ids": ids } })
}

/// Returns an act on the jobs of a tube in these states.
fn on_tube(act: &str, tube: &str, states: &[&str]) -> Value {
    json!({ "act": act, "jobs": { "tube": tube, "states": states } })
}

fn kick(tube: &str, state: &str, count: u64) -> Value {
    json!({ "act": "kick", "jobs": { "tube": tube, "states": [state], "count": count } })
}

#[test]
fn each_act_counts_first_and_then_does_what_it_said() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [ready, delayed, buried, reserved] = four(&mut client, "a");
        let page = Page::start(&server.address, &[]);

        let told = page.dry(&kick("a", "buried", 7));
        assert_eq!(
            (&told["count"], told["will"].as_str().unwrap()),
            (&json!(1), "Will kick 1 job: 1 buried, in the tube a.")
        );
        assert_eq!(state(&mut client, buried).as_deref(), Some("buried"), "nothing was done");
        assert_eq!(page.agree(&told)["done"], "kicked 1 of 1 job: 1 buried, in the tube a");
        assert_eq!(state(&mut client, buried).as_deref(), Some("ready"));

        let told = page.dry(&on("kick", &[delayed, ready]));
        assert_eq!(told["will"], "Will kick 1 job: 1 delayed, in the tube a.");
        assert_eq!(told["notes"][0], "Left unchanged: 1 ready.");
        assert_eq!(page.agree(&told)["count"], 1);
        assert_eq!(state(&mut client, delayed).as_deref(), Some("ready"));

        let told = page.dry(&json!({ "act": "pause", "tube": "a", "seconds": 500 }));
        let will = "Will pause the tube a for 500 s: 3 ready jobs, 0 workers waiting.";
        assert_eq!(told["will"], will);
        let paused = || server.objects(&["stats", "a"])[0]["pause"].as_u64();
        assert_eq!(paused(), Some(0));
        assert_eq!(page.agree(&told)["done"], "paused 1 tube for 500 s: a");
        assert_eq!(paused(), Some(500));
        let resume = json!({ "act": "pause", "tube": "a", "seconds": 0 });
        assert_eq!(page.act(&resume)["done"], "resumed 1 tube: a");
        assert_eq!((paused(), &page.dry(&resume)["count"]), (Some(0), &json!(0)));

        let told = page.dry(&on("delete", &[ready, reserved]));
        assert_eq!(told["will"], "Will delete 1 job: 1 ready, in the tube a.");
        assert_eq!(told["notes"][0], "Left unchanged: 1 reserved.");
        assert!(state(&mut client, ready).is_some());
        let done = "deleted 1 of 1 job: 1 ready, in the tube a";
        assert_eq!(page.agree(&told)["done"], done);
        assert_eq!(state(&mut client, ready), None);
        assert!(state(&mut client, reserved).is_some());

        bury(&mut client, buried);
        let other = put(&mut client, "ab", 5, 0, b"x");
        let told = page.dry(&on_tube("delete", "a", &["buried", "delayed"]));
        assert_eq!(told["will"], "Will delete 1 job: 1 buried, in the tube a.");
        assert!(state(&mut client, buried).is_some());
        assert_eq!(page.agree(&told)["count"], 1);
        assert_eq!(state(&mut client, buried), None);
        let clear = on_tube("delete", "a", &STATES);
        assert_eq!(page.dry(&clear)["count"], 1, "all states but reserved");
        assert_eq!(page.act(&clear)["count"], 1);
        assert_eq!(page.dry(&clear)["count"], 0);
        assert!(state(&mut client, other).is_some(), "no other tube is meant");

        let body = BASE64.encode("a\u{e9}\n");
        let put = json!({ "act": "put", "tube": "new", "base64": body, "pri": 7, "delay": 9,
            "ttr": 5 });
        let told = page.dry(&put);
        assert_eq!(told["will"], "Will put 1 job of 4 bytes into the tube new.");
        assert_eq!(told["notes"][0], "The tube does not exist yet and will be created.");
        assert_eq!(server.run(&["tubes", "new"]).code(), Some(1), "there is no such tube");
        assert_eq!(page.agree(&told)["count"], 1);
        let job = &server.objects(&["list", "new", "--bodies"])[0];
        assert_eq!(
            (&job["body"], &job["pri"], &job["state"]),
            (&json!("a\u{e9}\n"), &json!(7), &json!("delayed"))
        );
        page.act(&json!({ "act": "put", "tube": "bytes", "base64": "AP8NCg==", "pri": 0,
            "delay": 0, "ttr": 1 }));
        assert_eq!(harness::drain(&mut client, "bytes"), [b"\0\xff\r\n"]);
    });
}

#[test]
fn chosen_jobs_are_released_buried_and_moved() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [ready, delayed, buried, reserved] = four(&mut client, "a");
        let page = Page::start(&server.address, &[]);
        let told = page.dry(&on("bury", &[ready, buried, reserved]));
        assert_eq!(told["will"], "Will bury 1 job: 1 ready, in the tube a.");
        assert_eq!(page.agree(&told)["done"], "buried 1 of 1 job: 1 ready, in the tube a");
        assert_eq!(state(&mut client, ready).as_deref(), Some("buried"));
        let mut release = on("release", &[ready, delayed, reserved]);
        (release["pri"], release["delay"]) = (json!(3), json!(0));
        let told = page.dry(&release);
        assert_eq!(told["will"], "Will release 2 jobs: 1 delayed, 1 buried, in the tube a.");
        assert_eq!(page.agree(&told)["count"], 2);
        for id in [ready, delayed] {
            let job = &server.objects(&["job", &id.to_string()])[0];
            assert_eq!((&job["state"], &job["pri"]), (&json!("ready"), &json!(3)));
        }
        let mut act = on("move", &[ready, buried]);
        act["into"] = "b".into();
        let told = page.dry(&act);
        let will = "Will move 2 jobs: 1 ready, 1 buried, in the tube a to the tube b.";
        assert_eq!(told["will"], will);
        assert_eq!(server.run(&["tubes", "b"]).code(), Some(1), "nothing was moved");
        assert_eq!(page.agree(&told)["count"], 2);
        let moved = server.objects(&["list", "b"]);
        let states: Vec<_> = moved.iter().map(|job| job["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["ready", "buried"]);
        let mut act = on_tube("move", "a", &STATES);
        act["into"] = "b".into();
        assert_eq!(page.act(&act)["count"], 1, "the reserved one stays");
        assert_eq!(server.objects(&["list", "b"]).len(), 3);
        assert_eq!(state(&mut client, reserved).as_deref(), Some("reserved"));
    });
}

/// Each act, but no question, must log a line: time, client, action and number of jobs.
#[test]
fn each_act_leaves_a_line_and_no_question_does() {
    let server = Server::tcp(&harness::ours(), &[]);
    let mut client = server.client();
    let page = Page::start(&server.address, &[]);
    let id = put(&mut client, "a", 5, 0, b"x");
    page.act(&on("bury", &[id]));
    page.act(&kick("a", "buried", 1));
    page.act(&json!({ "act": "pause", "tube": "a", "seconds": 9 }));
    page.act(&on("delete", &[id]));
    let lines = [
        "buried 1 of 1 job: 1 ready, in the tube a",
        "kicked 1 of 1 job: 1 buried, in the tube a",
        "paused 1 tube for 9 s: a",
        "deleted 1 of 1 job: 1 ready, in the tube a",
    ];
    ct::eventually("four lines", || page.log().len() == lines.len());
    for (line, expected) in page.log().iter().zip(lines) {
        let (begin, done) =
            line.split_once(&format!(" {} from 127.0.0.1:", server.address)).unwrap();
        assert!(begin.len() == 24 && begin.starts_with("20") && begin.ends_with('Z'), "{line}");
        assert!(done.ends_with(&format!(": {expected}")), "{line}");
    }
}

/// A job that is put after the question was not confirmed, so it must stay.
#[test]
fn no_more_is_done_than_was_agreed_to() {
    each_server(&[], |server| {
        let mut client = server.client();
        let page = Page::start(&server.address, &[]);
        for _ in 0..3 {
            let id = put(&mut client, "a", 5, 0, b"x");
            bury(&mut client, id);
        }
        assert_eq!(page.act(&kick("a", "buried", 2))["count"], 2);
        let told = page.dry(&kick("a", "buried", 9));
        assert_eq!(told["count"], 1);
        let lone = json!({ "server": 0, "dry": false, "what": kick("a", "buried", 9) });
        let answer = page.post_with(&lone, &[]);
        assert!(answer.status == 400 && answer.text().contains("no preview"), "{}", answer.text());
        let told = page.dry(&on_tube("delete", "a", &["ready"]));
        let came = put(&mut client, "a", 1, 0, b"later");
        assert_eq!(page.agree(&told)["count"], 2);
        assert_eq!(state(&mut client, came).as_deref(), Some("ready"), "it came later");
    });
}

/// A question names a buried job. If another client kicks the job first, it must not be deleted.
#[test]
fn a_job_that_is_no_longer_meant_stays() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [_, _, buried, _] = four(&mut client, "a");
        let page = Page::start(&server.address, &[]);
        let told = page.dry(&on_tube("delete", "a", &["buried"]));
        assert_eq!(client.command(&format!("kick-job {buried}")).unwrap(), "KICKED");
        let told = page.agree(&told);
        let note = told["notes"][0].as_str().unwrap();
        assert!(note.contains("others reserved, changed or deleted them: 1 job."), "{told}");
        assert_eq!(state(&mut client, buried).as_deref(), Some("ready"));
    });
    // The other client may also kick the job after the answer, before the act reads the job again.
    let server = Server::tcp(&harness::ours(), &[]);
    let mut client = server.client();
    let [_, _, buried, _] = four(&mut client, "a");
    // Hold the act at the `stats-job` just before the delete.
    let proxy = Proxy::new(&server.address, "stats-job ", 1);
    let page = Page::start(&proxy.address, &[]);
    let told = page.dry(&on_tube("delete", "a", &["buried"]));
    let told = thread::scope(|scope| {
        let told = scope.spawn(|| page.agree(&told));
        proxy.wait();
        assert_eq!(client.command(&format!("kick-job {buried}")).unwrap(), "KICKED");
        proxy.go_on();
        told.join().unwrap()
    });
    assert_eq!(told["count"], 0, "{told}");
    let note = told["notes"][0].as_str().unwrap();
    assert!(note.contains("others reserved, changed or deleted them: 1 job."), "{told}");
    assert_eq!(state(&mut client, buried).as_deref(), Some("ready"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    each_server(&["-z", "10"], |server| {
        let page = Page::start(&server.address, &[]);
        let mut client = server.client();
        let id = put(&mut client, "a", 5, 0, b"x");
        let send = |what: &Value| {
            let told = page.post_with(&json!({ "server": 0, "dry": true, "what": what }), &[]);
            if told.status == 200 { page.answer(&told.json()) } else { told }
        };
        let injected = format!("a\r\ndelete {id}");
        let put_into = |tube: &str, body: &str| {
            json!({ "act": "put", "tube": tube, "base64": BASE64.encode(body), "pri": 1, "delay": 0,
                "ttr": 1 })
        };
        let mut into = on("move", &[id]);
        into["into"] = injected.as_str().into();
        let mut itself = on_tube("move", "a", &STATES);
        itself["into"] = "a".into();
        for what in [
            on("delete", &[]),
            json!({ "act": "delete", "jobs": { "tube": "a", "ids": [id.to_string()] } }),
            json!({ "act": "delete", "jobs": {} }),
            json!({ "act": "delete", "jobs": { "ids": [format!("{id}\r\ndelete {id}")] } }),
            json!({ "act": "delete", "jobs": { "ids": ["-1"] } }),
            on("move", &[id]),
            itself,
        ] {
            let answer = send(&what);
            assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        }
        // With a number outside the protocol's range, the server would read the body as commands.
        let too_large = |key: &str| {
            let mut what = put_into("a", &format!("delete {id}"));
            what[key] = 4_294_967_296_u64.into();
            what
        };
        for what in [
            put_into(&injected, "x"),
            put_into("a b", "x"),
            put_into("", "x"),
            kick(&injected, "buried", 1),
            json!({ "act": "pause", "tube": injected, "seconds": 5 }),
            on_tube("delete", "*", &STATES),
            on_tube("delete", &injected, &STATES),
            into,
            json!({ "act": "pause", "tube": "a", "seconds": 4_294_967_296_u64 }),
            on_tube("delete", "a", &["lost"]),
            json!({ "act": "put", "tube": "a", "pri": 1, "delay": 0, "ttr": 1 }),
            too_large("pri"),
            too_large("delay"),
            too_large("ttr"),
        ] {
            let answer = send(&what);
            assert_eq!(answer.status, 422, "{what}: {}", answer.text());
        }
        let answer = send(&on_tube("delete", "a", &["reserved"]));
        assert!(answer.text().contains("to these states"), "{}", answer.text());
        assert_eq!(page.post_with(&json!({ "dry": true }), &[]).status, 422);
        let gone = json!({ "server": 0, "dry": true, "what": kick("nosuch", "buried", 1) });
        assert_eq!(page.post_with(&gone, &[]).status, 409, "there may have been such a tube");
        let mut wrong = put_into("a", "x");
        wrong["base64"] = "?".into();
        assert_eq!(send(&wrong).status, 400);
        let answer = send(&put_into("a", "eleven byte"));
        assert_eq!(answer.status, 409);
        assert!(answer.text().contains("JOB_TOO_BIG"), "{}", answer.text());
        assert_eq!(state(&mut client, id).as_deref(), Some("ready"));
        assert_eq!(server.objects(&["list", "*"]).len(), 1, "nothing was put");
    });
}

#[test]
fn a_read_only_page_acts_for_nobody() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [_, delayed, buried, _] = four(&mut client, "a");
        let page = Page::start(&server.address, &["--read-only"]);
        for what in [
            kick("a", "buried", 1),
            on("kick", &[buried]),
            json!({ "act": "pause", "tube": "a", "seconds": 5 }),
            on("delete", &[delayed]),
            on_tube("delete", "a", &STATES),
            json!({ "act": "put", "tube": "a", "base64": "", "pri": 1, "delay": 0, "ttr": 1 }),
        ] {
            for dry in [true, false] {
                let order = json!({ "server": 0, "dry": dry, "what": what });
                let answer = page.post_with(&order, &[]);
                assert_eq!(answer.status, 403, "{what}");
                assert!(answer.text().contains("read-only"), "{}", answer.text());
            }
        }
        assert_eq!(state(&mut client, buried).as_deref(), Some("buried"));
        assert_eq!(server.objects(&["list", "a"]).len(), 4);
        let found = page.get("/api/jobs?tube=a&limit=9").json();
        assert_eq!(found["jobs"].as_array().unwrap().len(), 4, "looking goes on");
    });
}

/// The user confirms certain jobs, so no other jobs may be changed in place of them.
#[test]
fn no_other_jobs_than_those_agreed_to() {
    each_server(&[], |server| {
        let mut client = server.client();
        let page = Page::start(&server.address, &[]);
        let buried = put(&mut client, "a", 5, 0, b"x");
        bury(&mut client, buried);
        let delayed = put(&mut client, "a", 5, 1000, b"x");
        let told = page.dry(&kick("a", "buried", 1));
        assert_eq!(client.command(&format!("delete {buried}")).unwrap(), "DELETED");
        let done = page.agree(&told);
        assert_eq!(done["done"], "kicked 0 of 1 job: 1 buried, in the tube a");
        assert_eq!(state(&mut client, delayed).unwrap(), "delayed");

        let [first, second, third] = [1, 2, 3].map(|pri| put(&mut client, "b", pri, 0, b"x"));
        reserve(&mut client, first);
        let told = page.dry(&on("delete", &[first, third, second, third]));
        assert_eq!(told["count"], 2);
        assert_eq!(client.command(&format!("release {first} 1 0")).unwrap(), "RELEASED");
        assert_eq!(page.agree(&told)["count"], 2);
        assert_eq!(state(&mut client, first).unwrap(), "ready", "it was said to stay");

        let [one, two] = [1, 2].map(|pri| put(&mut client, "c", pri, 0, b"x"));
        bury(&mut client, two);
        let told = page.dry(&on("kick", &[one, two]));
        assert_eq!(told["count"], 1);
        bury(&mut client, one);
        assert_eq!(page.agree(&told)["count"], 1);
        assert_eq!(state(&mut client, one).unwrap(), "buried", "it was not meant");
    });
}

/// Even for a question with 100,500 jobs, jobs that become ready before the answer must stay, and
/// named jobs that others have deleted must be reported.
#[test]
fn a_question_on_very_many_jobs_names_each_of_them() {
    for (program, act) in harness::programs().iter().flat_map(|it| [(it, "delete"), (it, "move")]) {
        let server = Server::tcp(program, &[]);
        let mut client = server.client();
        let late: Vec<_> = (0..100).map(|_| put(&mut client, "a", 0, 0, b"late")).collect();
        for id in &late {
            bury(&mut client, *id);
        }
        let lines = "x\n".repeat(100_500);
        assert!(server.run_with(lines.as_bytes(), &["put", "a", "--lines"]).status.success());
        let mut page = Page::start(&server.address, &[]);
        let mut what = on_tube(act, "a", &["ready"]);
        if act == "move" {
            what["into"] = "b".into();
        }
        let told = page.dry(&what);
        assert_eq!(told["count"], 100_500, "{told}");
        for id in &late {
            assert_eq!(client.command(&format!("kick-job {id}")).unwrap(), "KICKED");
        }
        for id in 201..=300 {
            assert_eq!(client.command(&format!("delete {id}")).unwrap(), "DELETED");
        }
        let done = page.agree(&told);
        assert_eq!(done["count"], 100_400, "{done}");
        assert!(done["notes"][0].as_str().unwrap().ends_with(": 100 jobs."), "{done}");
        assert!(late.iter().all(|id| state(&mut client, *id).as_deref() == Some("ready")));
        // A page that is started again has no questions, so an answer must be refused.
        let told = page.dry(&what);
        page = Page::start(&server.address, &[]);
        for _ in 0..2 {
            let answer = page.answer(&told);
            assert!(answer.status == 409 && answer.text().contains("ask again"), "{answer:?}");
        }
        assert_eq!(server.objects(&["list", "a"]).len(), 100);
    }
}

/// Jobs that other clients bury or kick before the answer must not be changed.
#[test]
fn jobs_that_change_while_a_question_is_open_stay() {
    each_server(&[], |server| {
        let mut client = server.client();
        let page = Page::start(&server.address, &[]);
        let line = |_| "{\"tube\":\"many\",\"body\":\"x\",\"state\":\"buried\"}\n";
        let lines: String = (0..10_001).map(line).collect();
        assert!(server.run_with(lines.as_bytes(), &["import"]).status.success());
        let late: Vec<_> = (0..5).map(|_| put(&mut client, "many", 5, 0, b"x")).collect();
        let told = page.dry(&on_tube("delete", "many", &["buried"]));
        for id in late {
            bury(&mut client, id);
        }
        assert_eq!(page.agree(&told)["count"], 10_001);
        assert_eq!(server.objects(&["stats", "many"])[0]["current-jobs-buried"], 5);

        let id = put(&mut client, "a", 5, 0, b"x");
        bury(&mut client, id);
        let told = page.dry(&on("kick", &[id]));
        assert_eq!(client.command(&format!("kick-job {id}")).unwrap(), "KICKED");
        reserve(&mut client, id);
        assert_eq!(client.command(&format!("release {id} 5 1000")).unwrap(), "RELEASED");
        assert_eq!(page.agree(&told)["count"], 0);
        assert_eq!(state(&mut client, id).unwrap(), "delayed", "a buried one was agreed to");

        let mut itself = on("move", &[id]);
        itself["into"] = "a".into();
        let order = json!({ "server": 0, "dry": true, "what": itself });
        let answer = page.post_with(&order, &[]);
        assert!(
            answer.status == 400 && answer.text().contains("already in that tube"),
            "{answer:?}"
        );
    });
}

/// A page that gets SIGTERM in the middle of a move must finish the batch and log the moved jobs.
#[test]
fn an_act_ends_in_order_when_the_page_is_stopped() {
    let server = Server::tcp(&harness::ours(), &[]);
    let mut client = server.client();
    for _ in 0..500 {
        put(&mut client, "a", 5, 0, b"x");
    }
    let proxy = Proxy::new(&server.address, "reserve-job ", 1);
    let page = Page::start(&proxy.address, &[]);
    let mut act = on_tube("move", "a", &["ready"]);
    act["into"] = "b".into();
    let told = page.dry(&act);
    let done = thread::scope(|scope| {
        let done = scope.spawn(|| page.agree(&told));
        proxy.wait();
        let kill = format!("kill -TERM {}", page.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        ct::eventually("the signal is seen", || {
            page.log().iter().any(|line| line.contains("interrupted"))
        });
        proxy.go_on();
        done.join().unwrap()
    });
    assert_eq!(done["count"], 200, "{done}");
    assert!(done["notes"][0].as_str().unwrap().starts_with("Stopped by the time limit"), "{done}");
    ct::eventually("the act is logged", || {
        page.log().iter().any(|line| line.contains("moved 200 of 500 jobs"))
    });
    assert_eq!(server.objects(&["stats", "a"])[0]["current-jobs-ready"], 300);
    assert_eq!(server.objects(&["stats", "b"])[0]["current-jobs-ready"], 200);
}

/// If a page ends before the server has replied, the act may be carried out, so it must be logged.
#[test]
fn an_act_without_an_answer_is_named_when_the_page_ends() {
    let server = Server::tcp(&harness::ours(), &[]);
    let id = put(&mut server.client(), "a", 5, 0, b"x");
    let proxy = Proxy::new(&server.address, "delete ", 1);
    let mut page = Page::start(&proxy.address, &[]);
    let told = page.dry(&on("delete", &[id]));
    thread::scope(|scope| {
        let act = scope.spawn(|| page.agree(&told));
        proxy.wait();
        let kill = format!("kill -TERM {}", page.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert!(act.join().is_err(), "the connection is closed without an answer");
    });
    assert!(page.ends_well());
    let (named, ids) = ("may be partly done: {\"act\":\"delete\"", format!("\"ids\":[\"{id}\"]"));
    ct::eventually("the act is named", || {
        page.log().iter().any(|line| line.contains(named) && line.contains(&ids))
    });
}
