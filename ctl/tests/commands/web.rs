//! `web` by plain HTTP, on this daemon and on the original: what it shows, and that each act
//! counts first and then does what it said.

use std::net::TcpListener;
use std::thread;

use crate::harness;
use crate::harness::page::Page;
use crate::harness::played::{self, Played};
use crate::harness::proxy::Proxy;
use crate::harness::{Server, bury, each_server, four, put, reserve, state};
use serde_json::{Value, json};

/// The states whose jobs can be cleared.
const STATES: [&str; 3] = ["ready", "delayed", "buried"];

/// Looks until a condition holds of what is shown.
fn sees(page: &Page, query: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let mut told = Value::Null;
    ct::eventually(what, || {
        told = page.get(&format!("/api/look?{query}")).json();
        condition(&told)
    });
    told
}

/// Returns the ids of a list, sorted.
fn ids(found: &Value) -> Vec<u64> {
    let jobs = found["jobs"].as_array().unwrap().iter();
    let mut ids: Vec<u64> = jobs.map(|job| job["id"].as_str().unwrap().parse().unwrap()).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn servers_tubes_and_jobs_are_shown() {
    each_server(&[], |server| {
        let mut client = server.client();
        let all = four(&mut client, "a");
        put(&mut client, "b", 5, 0, b"x");
        let page = Page::start(&server.address, &[]);
        let told = sees(&page, "rows=10&sort=ready", "the tubes", |told| told["tubes"]["all"] == 3);
        assert_eq!(told["servers"][0]["name"], server.address.as_str());
        let counts = ["ready", "reserved", "delayed", "buried"].map(|key| &told["server"][key]);
        assert_eq!(counts, [2, 1, 1, 1]);
        let rows = told["tubes"]["rows"].as_array().unwrap();
        let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b", "default"], "the most ready jobs first, then by name");
        let told = page.get("/api/look?rows=1&filter=B&sort=name").json();
        let tubes = &told["tubes"];
        assert_eq!((&tubes["matched"], &tubes["rows"][0]["name"]), (&json!(1), &json!("b")));
        // Rates are known from the second look on; what no server tells is left out.
        let told = sees(&page, "tube=a", "a rate", |told| told["tube"]["puts"].is_number());
        assert!(told["tube"].get("paused").is_none() && told["tubes"].is_null(), "{told}");
        assert!(told["tube"]["past"]["at"].as_array().unwrap().len() > 1);
        assert_eq!(page.get("/api/look?tube=none").json()["tube"], Value::Null);

        let found = page.get("/api/jobs?tube=a&limit=10").json();
        assert_eq!((ids(&found), &found["coverage"]), (all.to_vec(), &json!("all")));
        let found = page.get("/api/jobs?tube=a&limit=10&state=buried").json();
        assert_eq!(ids(&found), [all[2]]);
        assert_eq!(found["jobs"][0]["preview"], "third buried");
        let found = page.get("/api/jobs?tube=a&limit=2").json();
        assert_eq!((ids(&found).len(), &found["more"]), (2, &json!(true)));
        let found = page.get("/api/jobs?limit=10&pattern=DELAYED&plain=true&ignore_case=true");
        assert_eq!(ids(&found.json()), [all[1]]);
        let found = page.get("/api/jobs?limit=10&pattern=DELAYED&plain=true");
        assert!(ids(&found.json()).is_empty());
        assert_eq!(ids(&page.get("/api/jobs?limit=10&pattern=%5Ef.*y%24").json()), [all[0]]);
        // A search looks beyond the jobs that come first.
        let found = page.get("/api/jobs?limit=1&tube=a&pattern=reserved%7Cnone");
        assert_eq!(ids(&found.json()), [all[3]]);
        for number in 0..20 {
            put(&mut client, "long", 5, 0, format!("number {number}").as_bytes());
        }
        let found = page.get("/api/jobs?limit=1&tube=long&pattern=19").json();
        assert_eq!(ids(&found).len(), 1);
        assert_eq!(page.get("/api/jobs?limit=10&pattern=%28").status, 400);
        assert_eq!(page.get("/api/jobs?limit=10&state=lost").status, 400);
        assert_eq!(page.get("/api/look?server=7").status, 404);

        let job = page.get(&format!("/api/job?id={}", all[0])).json();
        assert_eq!((&job["text"], &job["reserves"]), (&json!("first ready"), &json!(0)));
        let job = page.get(&format!("/api/job?id={}", all[1])).json();
        assert_eq!(job["base64"], "c2Vjb25kIP8ADQpkZWxheWVk");
        let body = page.get(&format!("/api/body?id={}", all[1]));
        assert_eq!(body.body, b"second \xff\0\r\ndelayed");
        assert_eq!(page.get("/api/job?id=999999").status, 404);
    });
}

/// An unattended page costs the server nothing.
#[test]
fn no_server_is_asked_while_nobody_looks() {
    each_server(&[], |server| {
        let connections = || server.objects(&["stats"])[0]["current-connections"].as_u64();
        let page = Page::start(&server.address, &[]);
        assert_eq!(connections(), Some(1), "only the one that asks");
        sees(&page, "rows=1", "a look", |told| told["server"]["ready"].is_number());
        ct::eventually("the connection ends some seconds later", || connections() == Some(1));
        let again = page.get("/api/look?rows=1").json();
        assert!(again["server"]["ready"].is_number(), "the first answer waits for a look: {again}");
    });
}

#[test]
fn a_server_that_is_down_is_told_and_comes_back() {
    for program in harness::programs() {
        let mut server = Server::tcp(&program, &[]);
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = free.local_addr().unwrap().to_string();
        drop(free);
        let page = Page::start(&format!("{},{nobody}", server.address), &[]);
        let told = sees(&page, "rows=1", "both", |told| {
            told["servers"][0]["ready"] == 0 && told["servers"][1]["error"].is_string()
        });
        assert!(told["servers"][1].get("ready").is_none(), "nothing is zero: {told}");
        let told = page.get("/api/look?server=1&rows=1").json();
        assert!(told["server"]["error"].as_str().unwrap().contains(&nobody), "{told}");
        assert_eq!(page.get("/api/jobs?server=1&tube=a&limit=1").status, 502);
        put(&mut server.client(), "a", 5, 0, b"x");
        server.restart(&[]);
        put(&mut server.client(), "again", 5, 0, b"x");
        sees(&page, "rows=9&filter=again", "it is back", |told| told["tubes"]["matched"] == 1);
    }
}

#[test]
fn each_act_counts_first_and_then_does_what_it_said() {
    each_server(&[], |server| {
        let mut client = server.client();
        let [ready, delayed, buried, reserved] = four(&mut client, "a");
        let page = Page::start(&server.address, &[]);

        let kick = json!({ "act": "kick", "tube": "a" });
        let told = page.dry(&kick);
        assert_eq!(
            (&told["count"], told["will"].as_str().unwrap()),
            (&json!(1), "Will kick 1 buried job of the tube a: ready again.")
        );
        assert_eq!(state(&mut client, buried).as_deref(), Some("buried"), "nothing was done");
        assert_eq!(page.act(&kick, 1)["done"], "1 buried job kicked.");
        assert_eq!(state(&mut client, buried).as_deref(), Some("ready"));

        let kick = json!({ "act": "kick-jobs", "ids": [delayed.to_string(), ready.to_string()] });
        let told = page.dry(&kick);
        assert_eq!(told["will"], "Will kick 1 job: 1 delayed.");
        assert_eq!(told["notes"][0], "1 job: neither buried nor delayed.");
        assert_eq!(page.act(&kick, 1)["count"], 1);
        assert_eq!(state(&mut client, delayed).as_deref(), Some("ready"));

        let pause = json!({ "act": "pause", "tube": "a", "seconds": 500 });
        let told = page.dry(&pause);
        assert_eq!(
            told["will"],
            "Will pause 1 tube, a, for 500 s: 3 ready jobs, 0 workers waiting."
        );
        let paused = || server.objects(&["stats", "a"])[0]["pause"].as_u64();
        assert_eq!(paused(), Some(0));
        assert_eq!(page.act(&pause, 1)["done"], "1 tube paused.");
        assert_eq!(paused(), Some(500));
        let resume = json!({ "act": "resume", "tube": "a" });
        assert_eq!(page.dry(&resume)["count"], 1);
        assert_eq!(page.act(&resume, 1)["done"], "1 tube resumed.");
        assert_eq!((paused(), &page.dry(&resume)["count"]), (Some(0), &json!(0)));

        let delete = json!({ "act": "delete", "ids": [ready.to_string(), reserved.to_string()] });
        let told = page.dry(&delete);
        assert_eq!(told["will"], "Will delete 1 job: 1 ready, in the tube a.");
        assert_eq!(told["notes"][0], "1 reserved job stay: workers have them.");
        assert!(state(&mut client, ready).is_some());
        assert_eq!(page.act(&delete, 1)["done"], "1 job deleted.");
        assert_eq!(state(&mut client, ready), None);
        assert!(state(&mut client, reserved).is_some());

        bury(&mut client, buried);
        let other = put(&mut client, "ab", 5, 0, b"x");
        let clear = json!({ "act": "clear", "tube": "a", "states": ["buried", "delayed"] });
        let told = page.dry(&clear);
        let will = told["will"].as_str().unwrap();
        assert!(will.starts_with("Will delete 1 job: 1 buried"), "{told}");
        assert!(state(&mut client, buried).is_some());
        assert_eq!(page.act(&clear, 1)["done"], "1 job deleted.");
        assert_eq!(state(&mut client, buried), None);
        let clear = json!({ "act": "clear", "tube": "a", "states": STATES });
        assert_eq!(page.dry(&clear)["count"], 1, "all states but reserved");
        assert_eq!(page.act(&clear, 1)["count"], 1);
        assert_eq!(page.dry(&clear)["count"], 0);
        assert!(state(&mut client, other).is_some(), "no other tube is meant");

        let put = json!({ "act": "put", "tube": "new", "body": "a\u{e9}\n", "pri": 7, "delay": 9,
            "ttr": 5 });
        let told = page.dry(&put);
        assert_eq!(told["will"], "Will put 1 job of 4 bytes into the tube new.");
        assert_eq!(told["notes"][0], "There is no such tube yet: this makes it.");
        assert_eq!(server.run(&["tubes", "new"]).code(), Some(1), "there is no such tube");
        assert_eq!(page.act(&put, 1)["count"], 1);
        let job = &server.objects(&["list", "new", "--bodies"])[0];
        assert_eq!(
            (&job["body"], &job["pri"], &job["state"]),
            (&json!("a\u{e9}\n"), &json!(7), &json!("delayed"))
        );
        let put = json!({ "act": "put", "tube": "bytes", "base64": "AP8NCg==", "pri": 0, "delay": 0,
            "ttr": 1 });
        page.act(&put, 1);
        let found = harness::drain(&mut client, "bytes");
        assert_eq!(found, [b"\0\xff\r\n"]);
    });
}

/// A job that came after the question was not agreed to.
#[test]
fn no_more_is_done_than_was_agreed_to() {
    each_server(&[], |server| {
        let mut client = server.client();
        let page = Page::start(&server.address, &[]);
        for _ in 0..3 {
            let id = put(&mut client, "a", 5, 0, b"x");
            bury(&mut client, id);
        }
        assert_eq!(page.act(&json!({ "act": "kick", "tube": "a" }), 2)["count"], 2);
        let lone = json!({ "server": 0, "dry": false, "what": { "act": "kick", "tube": "a" } });
        assert_eq!(page.post_with(&lone, &[]).status, 400);
        assert_eq!(page.dry(&json!({ "act": "kick", "tube": "a" }))["count"], 1);
        // Jobs that were named, and could not be kicked or deleted when the operator was asked.
        let ids: Vec<_> =
            (0..3).map(|_| put(&mut client, "b", 5, 1000, b"x").to_string()).collect();
        let kicked = page.act(&json!({ "act": "kick-jobs", "ids": ids }), 1);
        assert_eq!(kicked["count"], 1, "{kicked}");
        let deleted = page.act(&json!({ "act": "delete", "ids": ids }), 2);
        assert_eq!(deleted["count"], 2, "{deleted}");
        assert_eq!(page.dry(&json!({ "act": "delete", "ids": ids }))["count"], 1);
    });
}

/// Only buried jobs are meant; one that is kicked before its turn is not buried any more. This
/// daemon knows that itself, because it deletes by tube and state.
#[test]
fn a_job_that_is_no_longer_meant_stays() {
    for program in harness::programs().into_iter().skip(1) {
        let server = Server::tcp(&program, &[]);
        let mut client = server.client();
        let [_, _, buried, _] = four(&mut client, "a");
        // All four ids are asked for first, and then the buried one again.
        let proxy = Proxy::new(&server.address, "stats-job ", 5);
        let page = Page::start(&proxy.address, &[]);
        let clear = json!({ "act": "clear", "tube": "a", "states": ["buried"] });
        let told = thread::scope(|scope| {
            let told = scope.spawn(|| page.act(&clear, 1));
            proxy.wait();
            assert_eq!(client.command(&format!("kick-job {buried}")).unwrap(), "KICKED");
            proxy.go_on();
            told.join().unwrap()
        });
        assert_eq!(told["done"], "0 jobs deleted.");
        let note = told["notes"][0].as_str().unwrap();
        assert!(note.starts_with("1 job had been reserved, changed or deleted"), "{told}");
        assert_eq!(state(&mut client, buried).as_deref(), Some("ready"));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    each_server(&["-z", "10"], |server| {
        let page = Page::start(&server.address, &[]);
        let mut client = server.client();
        let id = put(&mut client, "a", 5, 0, b"x");
        let injected = format!("a\r\ndelete {id}");
        let put_into = |tube: &str, body: &str| {
            json!({ "act": "put", "tube": tube, "body": body,
            "pri": 1, "delay": 0, "ttr": 1 })
        };
        for what in [
            put_into(&injected, "x"),
            put_into("a b", "x"),
            put_into("", "x"),
            json!({ "act": "kick", "tube": injected }),
            json!({ "act": "pause", "tube": injected, "seconds": 5 }),
            json!({ "act": "pause", "tube": "a", "seconds": 0 }),
            json!({ "act": "pause", "tube": "a", "seconds": 4_294_967_296_u64 }),
            json!({ "act": "delete", "ids": [format!("{id}\r\ndelete {id}")] }),
            json!({ "act": "delete", "ids": [] }),
            json!({ "act": "clear", "tube": "*", "states": STATES }),
            json!({ "act": "clear", "tube": "a", "states": [] }),
            json!({ "act": "clear", "tube": "a", "states": ["lost"] }),
            json!({ "act": "put", "tube": "a", "pri": 1, "delay": 0, "ttr": 1 }),
        ] {
            let order = json!({ "server": 0, "dry": false, "agreed": 9, "what": what });
            let answer = page.post_with(&order, &[]);
            assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        }
        let clear = json!({ "act": "clear", "tube": "a", "states": ["reserved"] });
        let order = json!({ "server": 0, "dry": true, "what": clear });
        let answer = page.post_with(&order, &[]);
        assert!(answer.text().contains("their workers have them"), "{}", answer.text());
        assert_eq!(page.post_with(&json!({ "dry": true }), &[]).status, 422);
        // A number that the protocol cannot carry would make the server take the body for commands.
        for key in ["pri", "delay", "ttr"] {
            let mut what = put_into("a", &format!("delete {id}"));
            what[key] = 4_294_967_296_u64.into();
            let order = json!({ "server": 0, "dry": false, "agreed": 1, "what": what });
            let answer = page.post_with(&order, &[]);
            assert_eq!(answer.status, 422, "{key}: {}", answer.text());
        }
        let order = json!({ "server": 0, "dry": false, "agreed": 1,
            "what": put_into("a", "eleven byte") });
        let answer = page.post_with(&order, &[]);
        assert_eq!(answer.status, 502);
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
            json!({ "act": "kick", "tube": "a" }),
            json!({ "act": "kick-jobs", "ids": [buried.to_string()] }),
            json!({ "act": "pause", "tube": "a", "seconds": 5 }),
            json!({ "act": "resume", "tube": "a" }),
            json!({ "act": "delete", "ids": [delayed.to_string()] }),
            json!({ "act": "clear", "tube": "a", "states": STATES }),
            json!({ "act": "put", "tube": "a", "body": "x", "pri": 1, "delay": 0, "ttr": 1 }),
        ] {
            let order = json!({ "server": 0, "dry": false, "agreed": 9, "what": what });
            let answer = page.post_with(&order, &[]);
            assert_eq!(answer.status, 403, "{what}");
            assert!(answer.text().contains("read-only"), "{}", answer.text());
        }
        assert_eq!(state(&mut client, buried).as_deref(), Some("buried"));
        assert_eq!(server.objects(&["list", "a"]).len(), 4);
        assert_eq!(ids(&page.get("/api/jobs?tube=a&limit=9").json()).len(), 4, "looking goes on");
    });
}

#[test]
fn a_binlog_in_trouble_is_shown() {
    let full = played::everything();
    let page = Page::start(&full.address, &[]);
    let told = sees(&page, "rows=5", "a look", |told| told["tubes"]["all"] == 2);
    assert_eq!(
        (&told["server"]["binlog"], &told["server"]["trouble-age"]),
        (&json!("full"), &json!(7))
    );
    assert_eq!(told["servers"][0]["binlog"], "full");
    each_server(&[], |server| {
        let page = Page::start(&server.address, &[]);
        let told = sees(&page, "rows=5", "a look", |told| told["tubes"]["all"] == 1);
        assert!(
            told["server"].get("binlog").is_none() && told["servers"][0].get("binlog").is_none()
        );
    });
}

/// What is agreed to is which jobs, and not only how many.
#[test]
fn no_other_jobs_than_those_agreed_to() {
    each_server(&[], |server| {
        let mut client = server.client();
        let page = Page::start(&server.address, &[]);
        let buried = put(&mut client, "a", 5, 0, b"x");
        bury(&mut client, buried);
        let delayed = put(&mut client, "a", 5, 1000, b"x");
        let told = page.dry(&json!({ "act": "kick", "tube": "a" }));
        assert_eq!(told["will"], "Will kick 1 buried job of the tube a: ready again.");
        assert_eq!(client.command(&format!("delete {buried}")).unwrap(), "DELETED");
        let done = page.act(&told["what"], 1);
        assert_eq!(done["done"], "No job of the tube a is buried any more: nothing was kicked.");
        assert_eq!(state(&mut client, delayed).unwrap(), "delayed");

        let [first, second, third] = [1, 2, 3].map(|pri| put(&mut client, "b", pri, 0, b"x"));
        reserve(&mut client, first);
        let ids = [first, second, third].map(|id| id.to_string());
        let told = page.dry(&json!({ "act": "delete", "ids": ids }));
        assert_eq!((&told["count"], &told["what"]["ids"]), (&json!(2), &json!(ids[1..])));
        assert_eq!(client.command(&format!("release {first} 1 0")).unwrap(), "RELEASED");
        assert_eq!(page.act(&told["what"], 2)["done"], "2 jobs deleted.");
        assert_eq!(state(&mut client, first).unwrap(), "ready", "it was said to stay");

        let [one, two] = [1, 2].map(|pri| put(&mut client, "c", pri, 0, b"x"));
        bury(&mut client, two);
        let ids = [one, two].map(|id| id.to_string());
        let told = page.dry(&json!({ "act": "kick-jobs", "ids": ids }));
        assert_eq!((&told["count"], &told["what"]["ids"]), (&json!(1), &json!(ids[1..])));
        bury(&mut client, one);
        assert_eq!(page.act(&told["what"], 1)["done"], "1 job kicked.");
        assert_eq!(state(&mut client, one).unwrap(), "buried", "it was not meant");
    });
}

/// A server may answer anything, and bodies are anything; neither may become markup.
#[test]
fn hostile_names_and_bodies_come_out_inert() {
    let hostile = b"<script>window.x=1</script><img src=x onerror=window.x=1>";
    each_server(&[], |server| {
        let mut client = server.client();
        let id = put(&mut client, "a", 5, 0, hostile);
        let page = Page::start(&server.address, &[]);
        for path in [format!("/api/job?id={id}"), "/api/jobs?tube=a&limit=1".to_owned()] {
            let answer = page.get(&path);
            assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
            assert!(answer.text().contains("<script>"), "it is there, as text of JSON");
        }
        let body = page.get(&format!("/api/body?id={id}"));
        assert!(body.head.contains("content-type: application/octet-stream"), "{}", body.head);
        assert!(body.head.contains("content-disposition: attachment;"), "{}", body.head);
    });
    let odd = Played::new(|line| match line {
        "stats" => "---\nversion: <img src=x onerror=window.x=1>\npid: 1\n".into(),
        "list-tubes" => "---\n- <b onclick=window.x=1>\n".into(),
        _ => "---\nname: <b>\ncurrent-jobs-ready: <script>\n".into(),
    });
    let page = Page::start(&odd.address, &[]);
    let told = sees(&page, "rows=5", "the odd tube", |told| told["tubes"]["all"] == 1);
    assert_eq!(told["tubes"]["rows"][0]["name"], "<b onclick=window.x=1>");
    let answer = page.get("/api/look?rows=5");
    assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
}
