//! `web` by plain HTTP: only the page itself may act, and its use of resources must be bounded. One
//! daemon is enough, because these tests do not depend on the server.

use std::fs::{self, Permissions};
use std::io::ErrorKind::{TimedOut, WouldBlock};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::page::Page;
use crate::harness::{PROGRAM, Server, ours, put, state};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

/// Requests by other pages in the operator's browser must neither read data nor change jobs.
#[test]
fn other_pages_are_refused() {
    let server = Server::tcp(&ours(), &[]);
    let mut client = server.client();
    let id = put(&mut client, "a", 5, 0, b"x");
    let page = Page::start(&server.address, &["--allow-host", "queue.example"]);
    let what = json!({ "act": "delete", "jobs": { "ids": [id.to_string()] } });
    let question = page.dry(&what)["question"].clone();
    let order = json!({ "server": 0, "dry": false, "question": question });
    let wrong = "0".repeat(64);
    let port = page.address.rsplit(':').next().unwrap().to_owned();
    let rebound = format!("evil.test:{port}");
    for (headers, status) in [
        (vec![("X-Token", "")], 403),
        (vec![("X-Token", wrong.as_str())], 403),
        (vec![("X-Token", &page.token[..63])], 403),
        (vec![("Origin", "http://evil.test")], 403),
        (vec![("Origin", "null")], 403),
        (vec![("Origin", "http://localhost:1")], 403),
        (vec![("Sec-Fetch-Site", "cross-site")], 403),
        (vec![("Sec-Fetch-Site", "same-site")], 403),
        (vec![("Host", rebound.as_str())], 421),
        (vec![("Content-Type", "text/plain")], 415),
        (vec![("Content-Type", "application/x-www-form-urlencoded")], 415),
    ] {
        let answer = page.post_with(&order, &headers);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
        assert_eq!(state(&mut client, id).as_deref(), Some("ready"), "{headers:?}");
    }
    let nameless = format!("GET / HTTP/1.0\r\nX-Token: {}\r\n\r\n", page.token);
    assert_eq!(page.send(nameless.as_bytes()).status, 421);
    // Requests for data, and for the page with its token, must be refused as well.
    for path in ["/", "/api/look", "/api/jobs?tube=a&limit=1", "/main.js"] {
        let answer = page.request(&format!("GET {path}"), &[("Host", &rebound)], b"");
        assert_eq!(answer.status, 421, "{path}");
        assert!(!answer.text().contains(&page.token));
        let absolute = format!("GET http://{rebound}{path}");
        assert_eq!(page.request(&absolute, &[], b"").status, 421, "{path}");
    }
    let foreign = [("Sec-Fetch-Site", "cross-site")];
    assert_eq!(page.request("GET /api/jobs?tube=a&limit=1", &foreign, b"").status, 403);
    assert_eq!(page.request("GET /", &foreign, b"").status, 200, "a link may lead here");
    let twice = format!(
        "GET / HTTP/1.1\r\nHost: {0}\r\nHost: {0}\r\nConnection: close\r\n\r\n",
        page.address
    );
    assert_eq!(page.send(twice.as_bytes()).status, 400);
    for host in ["localhost", "127.0.0.1", "[::1]", "queue.example", "QUEUE.example"] {
        let host = format!("{host}:{port}");
        assert_eq!(page.request("GET /", &[("Host", &host)], b"").status, 200, "{host}");
    }
    assert_eq!(page.request("GET /", &[("Host", "queue.example")], b"").status, 200);
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH", "GET"] {
        let token = [("X-Token", page.token.as_str()), ("Content-Length", "0")];
        let answer = page.request(&format!("{method} /api/act"), &token, b"");
        assert_eq!(answer.status, 405, "{method}");
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
    }
    // A request of the page itself must succeed, or the refusals above would prove nothing.
    let behind = [("Host", "queue.example"), ("Origin", "https://queue.example")];
    assert_eq!(page.post_with(&order, &behind).json()["count"], 1);
}

#[test]
fn what_is_too_large_or_too_slow_is_bounded() {
    let server = Server::tcp(&ours(), &["-z", "6000000"]);
    let page = Page::start(&server.address, &[]);
    let put_of = |size: usize| {
        let what = json!({ "act": "put", "tube": "a", "base64": "A".repeat(size), "pri": 1,
            "delay": 0, "ttr": 1 });
        json!({ "server": 0, "dry": true, "what": what })
    };
    let told = page.post_with(&put_of(1_333_332), &[]).json();
    assert_eq!(page.agree(&told)["count"], 1);
    assert_eq!(page.post_with(&put_of(5_000_000), &[]).status, 413);
    let path = format!("GET /{}", "x".repeat(1 << 20));
    assert!([414, 431].contains(&page.request(&path, &[], b"").status));
    let job = page.get("/api/jobs?tube=a&limit=5").json()["jobs"][0].clone();
    assert_eq!(job["size"], 999_999);
    let id = job["id"].as_str().unwrap();
    let shown = page.get(&format!("/api/job?id={id}")).json();
    assert_eq!((&shown["size"], &shown["shown"]), (&json!(999_999), &json!(262_144)));
    let whole = page.get(&format!("/api/job?id={id}&whole=true")).json();
    assert_eq!(whole["base64"].as_str().unwrap().len(), 1_333_332);
    assert_eq!(page.get(&format!("/api/body?id={id}")).body.len(), 999_999);
    // Connections that send nothing must not prevent another request.
    let held: Vec<_> = (0..64).map(|_| TcpStream::connect(&page.address).unwrap()).collect();
    assert_eq!(page.get("/style.css").status, 200);
    drop(held);
}

/// Clients that request large bodies and read nothing must not prevent requests of other clients.
#[test]
fn slow_readers_leave_room_for_others() {
    let server = Server::tcp(&ours(), &["-z", "17000000"]);
    let id = put(&mut server.client(), "a", 5, 0, &vec![b'x'; 16_000_000]);
    let page = Page::start(&server.address, &[]);
    let request = format!("GET /api/body?id={id} HTTP/1.1\r\nHost: {}\r\n\r\n", page.address);
    let slow = (0..40).map(|_| {
        let mut client = TcpStream::connect(&page.address).unwrap();
        socket2::SockRef::from(&client).set_recv_buffer_size(1 << 12).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        client
    });
    let slow: Vec<_> = slow.collect();
    for _ in 0..20 {
        assert_eq!(page.get("/api/jobs?tube=a&limit=1").status, 200);
        assert_eq!(page.get("/api/look?rows=1").status, 200);
    }
    drop(slow);
    assert_eq!(page.get(&format!("/api/body?id={id}")).body.len(), 16_000_000);
}

/// A client that sends only a byte now and then must not hold a connection for ever.
#[test]
fn the_head_of_a_request_has_a_time_limit() {
    let server = Server::tcp(&ours(), &[]);
    let page = Page::start(&server.address, &[]);
    let began = Instant::now();
    let mut slow = TcpStream::connect(&page.address).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut bytes = format!("\r\n\r\nGET / HTTP/1.1\r\nHost: {}\r\nX: ", page.address).into_bytes();
    loop {
        // The page may have closed the connection, so the write may fail.
        let _ = slow.write_all(&bytes);
        bytes = b"x".to_vec();
        let mut answer = [0; 64];
        match slow.read(&mut answer) {
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut) => {}
            _ => break,
        }
        assert!(began.elapsed() < ct::LONG, "it is still read");
    }
    assert!(began.elapsed() > Duration::from_secs(5), "closed after {:?}", began.elapsed());
    assert_eq!(page.get("/style.css").status, 200);
}

/// Every response must forbid foreign scripts, frames and caching by its headers.
#[test]
fn browsers_are_told_to_be_strict() {
    let server = Server::tcp(&ours(), &[]);
    let page = Page::start(&server.address, &[]);
    for path in ["/", "/main.js", "/style.css", "/icon.svg", "/api/look", "/none", "/api/job?id=x"]
    {
        let head = page.get(path).head;
        for line in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "frame-ancestors 'none'",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(line), "{path}: {line}: {head}");
        }
        assert!(!head.contains("unsafe") && !head.contains("access-control"), "{head}");
    }
    let text = page.get("/").text();
    assert!(
        !text.contains("<script>") && !text.contains(" onclick=") && !text.contains("style=\"")
    );
    assert!(!text.contains("http"), "the page names another place");
    // Every file that the page requests must exist.
    let is_file = |name: &&str| [".js", ".css", ".svg"].iter().any(|end| name.ends_with(end));
    let names: Vec<_> = text.split('"').filter(is_file).collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        assert_eq!(page.get(&format!("/{name}")).status, 200, "{name}");
    }
}

#[test]
fn it_ends_in_order() {
    let mut page = Page::start("127.0.0.1:1", &[]);
    let command = format!("kill -TERM {}", page.pid());
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    assert!(page.ends_well());
}

/// Any client that reaches the page can delete every job, so a page beyond loopback needs a flag.
#[test]
fn other_addresses_need_a_password_or_a_word() {
    let refused = |flags: &[&str]| {
        // If the page is not refused, `timeout` ends it.
        let begin = ["60", PROGRAM, "web", "--listen", "0.0.0.0:0"];
        let run = Command::new("timeout").args(begin).args(flags).output().unwrap();
        (run.status.code(), String::from_utf8(run.stderr).unwrap())
    };
    let (status, text) = refused(&[]);
    assert!(status == Some(2) && text.contains("--auth-file, or --no-auth"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("passwords");
    let file = path.to_str().unwrap();
    for (text, mode, why) in [
        ("ops:secret\n", 0o644, "every user can read or write the file"),
        ("ops:secret\n", 0o602, "every user can read or write the file"),
        ("\u{feff}ops:secret\n", 0o600, "line 1: remove"),
        ("# web\nops:se\0cret\n", 0o600, "line 2: remove"),
        ("ops:secret \r\n", 0o600, "line 1: remove"),
        ("ops:$2y$05$abcdefghijklmnopqrstuv\n", 0o600, "line 1: write the password itself"),
        ("ops:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n", 0o600, "line 1: write the password itself"),
        ("ops\n", 0o600, "line 1"),
        ("ops:\n", 0o600, "line 1"),
        ("\n", 0o600, "no line"),
        ("# NAME:PASSWORD\n", 0o600, "no line"),
    ] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let (status, error) = refused(&["--auth-file", file]);
        assert!(status == Some(1) && error.contains(why), "{text:?}: {error}");
    }
    fs::write(&path, "ops:se:cret \u{e9}\nother:word\n").unwrap();
    let server = Server::tcp(&ours(), &[]);
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let page = Page::start_at(&server.address, listen, &["--auth-file", file]);
        let get = |path: &str, password: &str| {
            let basic = format!("Basic {}", BASE64.encode(password));
            page.request(&format!("GET {path}"), &[("Authorization", &basic)], b"")
        };
        for path in ["/", "/main.js", "/api/look", "/api/body?id=1"] {
            let answer = page.request(&format!("GET {path}"), &[], b"");
            assert_eq!(answer.status, 401, "{path}");
            assert!(answer.head.contains("www-authenticate: basic realm="), "{}", answer.head);
            for wrong in ["ops:secret", "ops:", "OPS:se:cret \u{e9}", "ops:se:cret \u{e9}x"] {
                assert_eq!(get(path, wrong).status, 401, "{path} {wrong}");
            }
        }
        assert_eq!(get("/", "ops:se:cret \u{e9}").status, 200);
        assert_eq!(get("/api/look", "other:word").status, 200);
        let order = json!({ "server": 0, "dry": true, "what": { "act": "pause", "tube": "a",
            "seconds": 1 } });
        let token = get("/", "other:word").text();
        let token = token.split_once("name=\"token\" content=\"").unwrap().1[..64].to_owned();
        let answer = page.post_with(&order, &[("X-Token", &token)]);
        assert_eq!(answer.status, 401, "the token is no password");
    }
}

/// Passes a listening socket to `web`, as a service manager does.
#[test]
fn a_socket_that_was_passed_on_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let script = format!("LISTEN_PID=$$ LISTEN_FDS=1 exec {PROGRAM} web 3<&0");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let request = format!("GET / HTTP/1.0\r\nHost: localhost:{}\r\n\r\n", address.port());
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(ct::LONG)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
}

/// Each file in the folder of the page must be served, with the same content.
#[test]
fn the_files_of_the_page_are_all_served() {
    let server = Server::tcp(&ours(), &[]);
    let page = Page::start(&server.address, &[]);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/web/page");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 500, "{name} has {lines} lines");
        if name != "index.html" {
            let answer = page.get(&format!("/{name}"));
            assert_eq!(answer.body, fs::read(&path).unwrap(), "{name}");
        }
    }
}

/// Wrong passwords must be delayed and logged, or a client could try thousands a second unnoticed.
#[test]
fn wrong_passwords_are_slow_and_logged() {
    let server = Server::tcp(&ours(), &[]);
    let file = server.file("users");
    fs::write(&file, "me:secret\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let page = Page::start_at(&server.address, "127.0.0.1:0", &["--auth-file", &file]);
    let log_in = |scheme: &str, user: &str| {
        let value = format!("{scheme} {}", BASE64.encode(user));
        page.request("GET /", &[("Authorization", &value)], b"").status
    };
    let began = Instant::now();
    let tried = std::sync::atomic::AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while began.elapsed() < Duration::from_secs(3) {
                    let status = log_in("Basic", "me:guess");
                    assert!(status == 401 || status == 429, "{status}");
                    tried.fetch_add(u64::from(status == 401), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let tried = tried.into_inner();
    // A second must pass after each wrong password.
    let most = began.elapsed().as_secs() + 3;
    assert!((1..=most).contains(&tried), "{tried} in {:?}", began.elapsed());
    ct::eventually("a line is in the log", || !page.log().is_empty());
    let log = page.log();
    assert!(log[0].ends_with(" wrong password from 127.0.0.1"), "{log:?}");
    assert!(log.len() as u64 <= most, "{log:?}");
    ct::eventually("the pause ends", || log_in("basic", "me:secret") == 200);
    fs::write(&file, ":secret\n").unwrap();
    let arguments = ["web", "--listen", "127.0.0.1:0", "--auth-file", &file];
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("line 1 is not NAME:PASSWORD"), "{text}");
}

/// Many incomplete requests must not prevent a request of the operator.
#[test]
fn half_open_requests_give_way() {
    let server = Server::tcp(&ours(), &[]);
    let page = Page::start(&server.address, &[]);
    let half: Vec<_> = (0..190)
        .map(|_| {
            let mut stream = TcpStream::connect(&page.address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    assert_eq!(page.get("/").status, 200);
    // After ten seconds, the page would close them anyway.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    drop(half);
}
