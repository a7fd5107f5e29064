//! The data that `web` shows, requested by plain HTTP, on this daemon and on the original.

use std::net::TcpStream;

use crate::harness;
use crate::harness::page::Page;
use crate::harness::played::{self, Played};
use crate::harness::{Server, bury, each_server, four, put, reserve};
use serde_json::{Value, json};

/// Requests the overview until it satisfies a condition.
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
        // Rates are known from the second request on; figures that no server reports are omitted.
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
        // A search must include jobs after the first `limit` jobs of the tube.
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

/// While no browser shows the page, `web` must have no connection to the server.
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
        // Nobody can listen on the port of a client.
        let client = TcpStream::connect(&server.address).unwrap();
        let nobody = client.local_addr().unwrap().to_string();
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
fn a_binlog_in_trouble_is_shown() {
    let full = played::everything();
    let page = Page::start(&full.address, &[]);
    let told = sees(&page, "rows=5", "a look", |told| told["tubes"]["all"] == 2);
    let (server, stats) = (&told["server"], &told["server"]["stats"]);
    assert_eq!((&server["binlog"], &stats["binlog-trouble-age"]), (&json!("full"), &json!(7)));
    assert_eq!(told["servers"][0]["binlog"], "full");
    each_server(&[], |server| {
        let page = Page::start(&server.address, &[]);
        let told = sees(&page, "rows=5", "a look", |told| told["tubes"]["all"] == 1);
        assert!(
            told["server"].get("binlog").is_none() && told["servers"][0].get("binlog").is_none()
        );
    });
}

/// If a job crashes its workers, the page and the metrics must show that the server buried it.
#[test]
fn jobs_buried_for_losses_are_shown_and_exported() {
    let server = Server::tcp(&harness::ours(), &["--bury-after", "1"]);
    let id = put(&mut server.client(), "a", 5, 0, b"x");
    let mut worker = server.client();
    reserve(&mut worker, id);
    drop(worker);
    let page = Page::start(&server.address, &[]);
    let told = sees(&page, "tube=a", "a burial", |told| told["tube"]["losses"] == 1);
    assert_eq!(told["server"]["stats"]["jobs-buried-for-losses"], 1, "{told}");
    let text = server.must(&["metrics"]);
    let name = "jobs_buried_for_losses_total{";
    let lines = text.lines().filter(|line| line.contains(name) && line.ends_with("} 1"));
    assert_eq!(lines.count(), 2, "of the server and of the tube: {text}");
}

/// The tubes that need attention must be in the first 100 rows, and later rows must have the rest.
#[test]
fn trouble_comes_first_and_every_tube_can_be_reached() {
    each_server(&[], |server| {
        let mut client = server.client();
        let _worker = (0..121)
            .map(|number| {
                put(&mut client, &format!("t{number:03}"), 5, 0, b"x");
                let mut worker = server.client();
                worker.command(&format!("watch t{number:03}")).unwrap();
                worker
            })
            .collect::<Vec<_>>();
        client.command("pause-tube t088 1000").unwrap();
        put(&mut client, "alone", 5, 0, b"x");
        let buried = put(&mut client, "zebra", 5, 0, b"x");
        bury(&mut client, buried);
        let page = Page::start(&server.address, &[]);
        let query = "rows=100&sort=trouble";
        let told = sees(&page, query, "the tubes", |told| told["tubes"]["all"] == 124);
        let tubes = &told["tubes"];
        let name = |at: usize| tubes["rows"][at]["name"].as_str().unwrap();
        assert_eq!([name(0), name(1), name(2)], ["zebra", "t088", "alone"]);
        assert_eq!(tubes["rows"][2]["trouble"], json!(["unattended"]));
        let kinds = json!({ "buried": 1, "paused": 1, "late": 0, "unattended": 1 });
        assert_eq!((&tubes["need"], &tubes["troubles"]), (&json!(3), &kinds));
        let mut names: Vec<_> = (0..100).map(|at| name(at).to_owned()).collect();
        let rest = page.get(&format!("/api/look?{query}&from=100")).json();
        let rest = rest["tubes"]["rows"].as_array().unwrap();
        names.extend(rest.iter().map(|row| row["name"].as_str().unwrap().to_owned()));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 124);
    });
}

/// Names from a server and bodies may contain HTML, which a browser must not interpret.
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

/// The relative luminance of a color `#rrggbb`, as defined by WCAG.
fn luminance(color: [f64; 3]) -> f64 {
    let linear = |part: f64| match part / 255.0 {
        part if part <= 0.04045 => part / 12.92,
        part => ((part + 0.055) / 1.055).powf(2.4),
    };
    0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2])
}

/// Text with too little contrast would be hard to read on bad screens and in sunlight.
#[test]
fn every_text_has_enough_contrast() {
    let style = include_str!("../../src/web/page/style.css");
    for (scheme, colors) in ["light", "dark"].iter().zip(style.split("@media (prefers-color")) {
        let color = |name: &str| {
            let at = colors.find(&format!("--{name}: #")).unwrap() + name.len() + 5;
            [0, 2, 4].map(|part| {
                let digits = &colors[at + part..at + part + 2];
                f64::from(u8::from_str_radix(digits, 16).unwrap())
            })
        };
        let contrast = |text: [f64; 3], ground: [f64; 3]| {
            let (text, ground) = (luminance(text), luminance(ground));
            (text.max(ground) + 0.05) / (text.min(ground) + 0.05)
        };
        for ground in ["page", "card", "sunk", "look-wash"] {
            for text in ["ink", "soft", "faint", "accent", "ready", "reserved", "delayed", "buried"]
            {
                let (text_color, below) = (color(text), color(ground));
                let plain = contrast(text_color, below);
                assert!(plain >= 4.5, "{scheme}: {text} on {ground}: {plain:.2}");
                // The background of a chip has 14 % of the color of the chip's text.
                let wash = [0, 1, 2].map(|at| 0.14 * text_color[at] + 0.86 * below[at]);
                let chip = contrast(text_color, wash);
                assert!(
                    text == "faint" || chip >= 4.5,
                    "{scheme}: chip {text} on {ground}: {chip:.2}"
                );
            }
        }
    }
}

/// A screen reader lists tables by their names, so each table must have a name.
#[test]
fn every_table_has_a_name() {
    let page = include_str!("../../src/web/page/index.html");
    for table in page.split("<table").skip(1) {
        assert!(table.split('>').next().unwrap().contains("aria-labelledby"), "{table}");
    }
}
