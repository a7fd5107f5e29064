//! `metrics` over HTTP: responses, limits, shutdown, and sockets passed by a service manager.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness;
use crate::harness::played::Played;
use crate::harness::{PROGRAM, Server, put};

/// A metrics server and its address.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap_or_else(|| panic!("{line}"));
        let address = address.trim().trim_end_matches('/').to_owned();
        // Read all later output, so that a full pipe does not block the program.
        thread::spawn(move || stderr.read_to_string(&mut String::new()));
        Self { child, address }
    }

    fn new(server: &str) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["--server", server, "metrics", "--listen", "127.0.0.1:0", "--timeout", "5"]);
        Self::of(command.stdin(Stdio::null()))
    }

    /// Returns the status, the head and the body of the response to a request.
    fn ask(&self, method: &str, path: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), body.to_owned())
    }

    /// Sends a signal and returns the exit status.
    fn end(mut self, signal: &str) -> Option<i32> {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    /// Kills the program, which may have ended already.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_answers_what_prometheus_asks_and_ends_in_order() {
    harness::each_server(&[], |server| {
        put(&mut server.client(), "mail", 1, 0, b"x");
        for signal in ["TERM", "INT"] {
            let serving = Serving::new(&server.address);
            let (status, head, body) = serving.ask("GET", "/metrics");
            assert_eq!(status, 200, "{head}");
            assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
            assert!(body.contains("tube=\"mail\",state=\"ready\"} 1\n"), "{body}");
            let (status, head, body) = serving.ask("HEAD", "/metrics");
            assert!(status == 200 && body.is_empty(), "{head}{body}");
            let (status, _, body) = serving.ask("GET", "/");
            assert!(status == 200 && body.contains("href=\"metrics\""), "{body}");
            assert_eq!(serving.ask("POST", "/metrics").0, 405);
            assert_eq!(serving.ask("GET", "/etc/passwd").0, 404);
            // A connection that is kept open must not hold up the shutdown.
            let _kept = TcpStream::connect(&serving.address).unwrap();
            assert_eq!(serving.end(signal), Some(0));
        }
    });
}

/// Scrapes share one connection. After a restart of the server, the next scrape must connect anew.
#[test]
fn a_server_that_was_started_anew_is_up_at_once() {
    for program in harness::programs() {
        let mut server = Server::tcp(&program, &[]);
        let serving = Serving::new(&server.address);
        let is_up = |up: &str| {
            let line = format!("beanstalkd_up{{server=\"{}\"}} {up}\n", server.address);
            serving.ask("GET", "/metrics").2.contains(&line)
        };
        assert!(is_up("1") && is_up("1"));
        let (_, _, body) = serving.ask("GET", "/metrics");
        let accepted =
            body.lines().find(|line| line.starts_with("beanstalkd_connections_accepted"));
        let accepted: u64 = accepted.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        server.restart(&[]);
        let address = server.address.clone();
        let up = format!("beanstalkd_up{{server=\"{address}\"}} 1\n");
        assert!(serving.ask("GET", "/metrics").2.contains(&up));
        // Three scrapes used one connection, and `Daemon::start` used another.
        assert!(accepted <= 2, "{accepted} connections");
    }
}

/// Ten Prometheus servers that request metrics at once must not cause ten scrapes.
#[test]
fn one_scrape_is_shared() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let played = Played::new(move |line| match line {
        "stats" => {
            count.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_secs(1));
            "---\nuptime: 5\n".into()
        }
        "list-tubes" => "---\n".into(),
        _ => "UNKNOWN_COMMAND".into(),
    });
    let serving = Serving::new(&played.address);
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| assert_eq!(serving.ask("GET", "/metrics").0, 200));
        }
    });
    let asked = asked.load(Ordering::SeqCst);
    // On a busy machine, late requests may share further scrapes.
    assert!((1..10).contains(&asked), "{asked} scrapes for 10 requests");
}

/// At the limit, a new connection must close the oldest connection without a request.
#[test]
fn the_number_of_connections_has_a_bound() {
    let server = Server::tcp(&harness::ours(), &[]);
    let serving = Serving::new(&server.address);
    let descriptors = || {
        let folder = format!("/proc/{}/fd", serving.child.id());
        std::fs::read_dir(folder).unwrap().count()
    };
    // The program keeps its connection to the queue, and closes that of the first request.
    let held = descriptors() + 1 + 64;
    assert_eq!(serving.ask("GET", "/metrics").0, 200);
    let mut idle: Vec<_> = (0..64).map(|_| TcpStream::connect(&serving.address).unwrap()).collect();
    ct::eventually("64 are accepted", || descriptors() >= held);
    let mut late = TcpStream::connect(&serving.address).unwrap();
    late.write_all(b"GET / HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n").unwrap();
    late.set_read_timeout(Some(ct::LONG)).unwrap();
    let mut text = String::new();
    late.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(descriptors() <= held, "{} beside {held}", descriptors());
    assert!(matches!(idle[0].read(&mut [0; 10]), Ok(0) | Err(_)), "the oldest one is closed");
    let (last, short) = (&mut idle[63], Some(Duration::from_millis(300)));
    last.set_read_timeout(short).unwrap();
    assert!(last.read(&mut [0; 10]).is_err(), "the youngest one stays open");
}

/// Clients that keep 64 idle connections must not prevent requests of other clients.
#[test]
fn idle_connections_shut_nobody_out() {
    let server = Server::tcp(&harness::ours(), &[]);
    let serving = Serving::new(&server.address);
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: m\r\n\r\n").unwrap();
        assert!(stream.read(&mut [0; 1000]).unwrap() > 0);
        idle.push(stream);
    }
    assert_eq!(serving.ask("GET", "/").0, 200);
    drop(idle);
}

/// Passes a socket as a socket unit of systemd does. The shell sets `LISTEN_PID` to its own process
/// id, which the program keeps after `exec`.
#[test]
fn it_serves_a_socket_that_is_passed_on() {
    let server = Server::tcp(&harness::ours(), &[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for arguments in ["metrics", "metrics --listen 192.0.2.1:1"] {
        let mut command = Command::new("sh");
        let script =
            format!("exec 3<&0; export LISTEN_PID=$$ LISTEN_FDS=1; exec {PROGRAM} {arguments}");
        command.args(["-c", &script]).env("BEANSTALKD_SERVER", &server.address);
        command.stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())));
        let serving = Serving::of(&mut command);
        assert_eq!(serving.address, address);
        let (status, _, body) = serving.ask("GET", "/metrics");
        assert!(status == 200 && body.contains("beanstalkd_up{"), "{body}");
        assert_eq!(serving.end("TERM"), Some(0));
    }
    // Sockets that are meant for another process must not be used.
    let mut command = Command::new(PROGRAM);
    command.arg("metrics").env("BEANSTALKD_SERVER", &server.address);
    let output = command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1").output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"# HELP"), "{output:?}");
    // A descriptor that is not a listening socket must be refused.
    let mut command = Command::new("sh");
    let script = format!("exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {PROGRAM} metrics");
    let output = command.args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn an_address_that_cannot_be_had_is_named() {
    let server = Server::tcp(&harness::ours(), &[]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = server.run(&["metrics", "--listen", &address]);
    assert!(ran.code() == Some(1) && ran.stderr.contains(&address), "{ran:?}");
    let ran = server.run(&["metrics", "--listen", &address, "--textfile", "x"]);
    assert_eq!(ran.code(), Some(2), "{ran:?}");
}
