//! Runs `beanstalkctl web`, and sends plain HTTP requests to it, as a browser or otherwise.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::PROGRAM;

/// A running page.
pub(crate) struct Page {
    child: Child,
    /// The lines on the page's standard error after the first line.
    log: Arc<Mutex<Vec<String>>>,
    /// The address and the port on which the page listens.
    pub(crate) address: String,
    /// The token that requests for acts must have.
    pub(crate) token: String,
}

/// A response of the page.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines of the head, in lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns the body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body of a successful answer as JSON.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Page {
    /// Serves these servers on a free port.
    pub(crate) fn start(servers: &str, flags: &[&str]) -> Self {
        let mut page = Self::start_at(servers, "127.0.0.1:0", flags);
        let text = page.get("/").text();
        let rest = text.split_once("name=\"token\" content=\"").unwrap().1;
        rest.split_once('"').unwrap().0.clone_into(&mut page.token);
        page
    }

    /// Serves these servers at an address, without a first request for the token.
    pub(crate) fn start_at(servers: &str, listen: &str, flags: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["--server", servers, "web", "--listen", listen])
            .args(flags)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let address = line.trim().strip_prefix("beanstalkctl: http://").unwrap();
        let address = address.trim_end_matches('/').to_owned();
        Self { child, log, address, token: String::new() }
    }

    /// Returns the id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process exits, and returns whether its status was 0.
    pub(crate) fn ends_well(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Sends these bytes, and returns everything received until the connection closes.
    pub(crate) fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(ct::LONG)).unwrap();
        // A page that refuses a request early does not read the rest, so the write may fail.
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let at = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a head came");
        let head = String::from_utf8_lossy(&all[..at]).to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: all[at + 4..].to_vec() }
    }

    /// Sends a request with these header lines, and with `Host` unless that is among them.
    pub(crate) fn request(&self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            write!(text, "Host: {}\r\n", self.address).unwrap();
        }
        for (name, value) in headers {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        if line.starts_with("POST") {
            write!(text, "Content-Length: {}\r\n", body.len()).unwrap();
        }
        text += "\r\n";
        self.send(&[text.as_bytes(), body].concat())
    }

    /// Sends a GET request as the page does.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), &[("Sec-Fetch-Site", "same-origin")], b"")
    }

    /// Sends a request for an act as the page does, with changed or additional header lines.
    pub(crate) fn post_with(&self, order: &Value, headers: &[(&str, &str)]) -> Answer {
        let origin = format!("http://{}", self.address);
        let mut all = vec![
            ("Content-Type", "application/json"),
            ("Origin", origin.as_str()),
            ("Sec-Fetch-Site", "same-origin"),
            ("X-Token", self.token.as_str()),
        ];
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other == name));
        // An empty value means that the request has no such line.
        all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
        self.request("POST /api/act", &all, order.to_string().as_bytes())
    }

    /// Returns the page's log lines so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Plans an act, with a dry run.
    pub(crate) fn dry(&self, what: &Value) -> Value {
        self.post_with(&json!({ "server": 0, "dry": true, "what": what }), &[]).json()
    }

    /// Confirms an act: answers the question of [`Page::dry`].
    pub(crate) fn agree(&self, told: &Value) -> Value {
        self.answer(told).json()
    }

    /// Answers the question of [`Page::dry`], which may be refused.
    pub(crate) fn answer(&self, told: &Value) -> Answer {
        let order = json!({ "server": 0, "dry": false, "question": told["question"] });
        self.post_with(&order, &[])
    }

    /// Plans an act, and confirms it at once.
    pub(crate) fn act(&self, what: &Value) -> Value {
        self.agree(&self.dry(what))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // The page may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
