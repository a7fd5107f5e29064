//! `beanstalkctl web` and plain HTTP to it, as a browser sends it, or as it never would.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::PROGRAM;

/// A running page.
pub(crate) struct Page {
    child: Child,
    /// Where it listens: an address and a port.
    pub(crate) address: String,
    /// What its acts need.
    pub(crate) token: String,
}

/// What it answered.
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

    /// Returns the body as JSON, of a request that went well.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Page {
    /// Serves these servers on a free port.
    pub(crate) fn start(servers: &str, flags: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["--server", servers, "web", "--listen", "127.0.0.1:0"])
            .args(flags)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("beanstalkctl: http://").unwrap();
        let address = address.trim_end_matches('/').to_owned();
        let mut page = Self { child, address, token: String::new() };
        let text = page.get("/").text();
        let rest = text.split_once("name=\"token\" content=\"").unwrap().1;
        rest.split_once('"').unwrap().0.clone_into(&mut page.token);
        page
    }

    /// Returns the id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, and tells whether it was a good one.
    pub(crate) fn ends_well(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Sends these bytes, and returns what comes until the connection closes.
    pub(crate) fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(ct::LONG)).unwrap();
        // A request that is refused early is not read to its end.
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let at = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a head came");
        let head = String::from_utf8_lossy(&all[..at]).to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: all[at + 4..].to_vec() }
    }

    /// Sends a request with these lines in its head, and `Host` unless it is among them.
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

    /// Gets something as the page does.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), &[("Sec-Fetch-Site", "same-origin")], b"")
    }

    /// Sends an order as the page does, with other or further lines in its head.
    pub(crate) fn post_with(&self, order: &Value, headers: &[(&str, &str)]) -> Answer {
        let origin = format!("http://{}", self.address);
        let mut all = vec![
            ("Content-Type", "application/json"),
            ("Origin", origin.as_str()),
            ("Sec-Fetch-Site", "same-origin"),
            ("X-Token", self.token.as_str()),
        ];
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other == name));
        // An empty value leaves the line out.
        all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
        self.request("POST /api/act", &all, order.to_string().as_bytes())
    }

    /// Asks what an act would do.
    pub(crate) fn dry(&self, what: &Value) -> Value {
        self.post_with(&json!({ "server": 0, "dry": true, "what": what }), &[]).json()
    }

    /// Does it.
    pub(crate) fn act(&self, what: &Value, agreed: u64) -> Value {
        let order = json!({ "server": 0, "dry": false, "agreed": agreed, "what": what });
        self.post_with(&order, &[]).json()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
