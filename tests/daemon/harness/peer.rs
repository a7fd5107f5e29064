//! Clients of a daemon, and the facts about a job that they can see.

use std::{collections::BTreeMap, str::FromStr};

use ct::{Client, Daemon, LONG, eventually};

/// A client whose failures fail the test at the line that called the client.
#[derive(Debug)]
pub(crate) struct Peer(pub(crate) Client);

impl Peer {
    #[track_caller]
    pub(crate) fn of(daemon: &Daemon) -> Self {
        Self::at(daemon.address())
    }

    #[track_caller]
    pub(crate) fn at(address: &str) -> Self {
        Self(connect(address))
    }

    /// Sends a command and returns its one line of reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.0.command(command).expect("a reply")
    }

    /// Sends a command, which must get this reply.
    #[track_caller]
    pub(crate) fn tell(&mut self, command: &str, reply: &str) {
        assert_eq!(self.ask(command), reply, "{command}");
    }

    /// Puts a job and returns its id.
    #[track_caller]
    pub(crate) fn put(&mut self, pri: u32, delay: u32, body: &[u8]) -> u64 {
        let reply = self.0.put(pri, delay, 60, body).expect("a reply");
        let id = reply.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{reply}"));
        id.parse().expect("an id")
    }

    /// Reserves the job with this id and returns its body.
    #[track_caller]
    pub(crate) fn take(&mut self, id: u64) -> Vec<u8> {
        let (line, body) = self.0.with_body(&format!("reserve-job {id}")).expect("the job");
        assert_eq!(line, format!("RESERVED {id} {}", body.len()));
        body
    }

    /// Reserves a job without waiting, and returns its id; `None` if no job is ready.
    #[track_caller]
    pub(crate) fn reserve_now(&mut self) -> Option<u64> {
        let line = self.ask("reserve-with-timeout 0");
        if line == "TIMED_OUT" {
            return None;
        }
        let mut words = line.strip_prefix("RESERVED ").expect("a job").split(' ');
        let [id, size] = [words.next(), words.next()].map(|word| word.expect("a number"));
        let size: usize = size.parse().expect("a size");
        self.0.bytes(size + 2).expect("its body");
        Some(id.parse().expect("an id"))
    }

    /// Asks for one value of a document.
    #[track_caller]
    pub(crate) fn value<T: FromStr>(&mut self, command: &str, key: &str) -> T {
        let values = values(&self.0.yaml(command).expect("a document"));
        let value = values.get(key).unwrap_or_else(|| panic!("{command} has no {key}"));
        value.parse().ok().unwrap_or_else(|| panic!("{key}: {value}"))
    }

    /// The facts about a job that a client can see, if it exists.
    #[track_caller]
    pub(crate) fn look(&mut self, id: u64) -> Option<Seen> {
        self.look_through(id..id + 1).remove(&id)
    }

    /// The facts about all jobs with these ids that a client can see.
    #[track_caller]
    pub(crate) fn look_through(&mut self, ids: std::ops::Range<u64>) -> BTreeMap<u64, Seen> {
        const AT_ONCE: usize = 200;
        let mut jobs = BTreeMap::new();
        for first in ids.clone().step_by(AT_ONCE) {
            let here = first..ids.end.min(first + AT_ONCE as u64);
            let questions = here.clone().map(|id| format!("stats-job {id}\r\npeek {id}\r\n"));
            self.0.send(questions.collect::<Vec<_>>().concat()).expect("the daemon takes it");
            for id in here {
                let answers = [self.answer(), self.answer()];
                let [stats, body] = answers;
                assert_eq!(stats.is_some(), body.is_some(), "job {id} is half there");
                if let (Some(stats), Some(body)) = (stats, body) {
                    let stats = String::from_utf8(stats).expect("text");
                    jobs.insert(id, Seen::new(id, &stats, body));
                }
            }
        }
        jobs
    }

    /// The body of a reply, if it has one.
    #[track_caller]
    fn answer(&mut self) -> Option<Vec<u8>> {
        let line = self.0.line().expect("a reply");
        if line == "NOT_FOUND" {
            return None;
        }
        let length: usize = line.rsplit(' ').next().expect("a word").parse().expect("a length");
        let mut body = self.0.bytes(length + 2).expect("a body");
        body.truncate(length);
        Some(body)
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.send(bytes).expect("the daemon takes it");
    }

    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.0.line().expect("a reply")
    }

    #[track_caller]
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.0.bytes(count).expect("a reply")
    }

    /// Checks that the daemon answers.
    #[track_caller]
    pub(crate) fn check(&mut self) {
        assert_eq!(self.ask("list-tube-used"), "USING default");
    }

    /// Lets `count` turns of the daemon pass. In each of them it serves everything that reached it
    /// earlier.
    #[track_caller]
    pub(crate) fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.check();
        }
    }

    /// Puts `count` jobs of one byte with a delay in seconds.
    #[track_caller]
    pub(crate) fn put_many(&mut self, count: usize, delay: u32) {
        self.pipeline(&format!("put 0 {delay} 600 1\r\nx\r\n"), count, |client| {
            assert!(client.line().starts_with("INSERTED "));
        });
    }

    #[track_caller]
    pub(crate) fn reserve(&mut self) -> (u64, Vec<u8>) {
        let (line, body) = self.0.with_body("reserve").expect("a job");
        let id = line.split(' ').nth(1).expect("an id");
        (id.parse().expect("a number"), body)
    }

    /// Reserves `count` jobs of one byte.
    #[track_caller]
    pub(crate) fn reserve_many(&mut self, count: usize) {
        self.pipeline("reserve-with-timeout 0\r\n", count, |client| {
            assert!(client.line().starts_with("RESERVED "));
            assert_eq!(client.line(), "x");
        });
    }

    /// Sends a command `count` times, no more at once than fit into all buffers, and calls `reply`
    /// to read each reply.
    #[track_caller]
    pub(crate) fn pipeline(
        &mut self,
        command: &str,
        count: usize,
        mut reply: impl FnMut(&mut Self),
    ) {
        const AT_ONCE: usize = 2000;
        for done in (0..count).step_by(AT_ONCE) {
            let now = AT_ONCE.min(count - done);
            self.send(command.repeat(now));
            (0..now).for_each(|_| reply(self));
        }
    }

    /// Reads the document of a command that has been sent.
    #[track_caller]
    pub(crate) fn document(&mut self) -> String {
        let line = self.line();
        let length = line.strip_prefix("OK ").expect("a document").parse().expect("a length");
        let document = self.bytes(length);
        assert_eq!(self.line(), "");
        String::from_utf8(document).expect("text")
    }

    #[track_caller]
    pub(crate) fn yaml(&mut self, command: &str) -> String {
        self.0.yaml(command).expect("a document")
    }

    /// Asks for one number of a document.
    #[track_caller]
    pub(crate) fn count(&mut self, command: &str, key: &str) -> usize {
        number_at(&self.yaml(command), key)
    }

    /// Waits for the end of the connection, and returns whether it came without another byte.
    #[track_caller]
    pub(crate) fn is_ended(&mut self) -> bool {
        self.0.rest().expect("an orderly end").is_empty()
    }
}

#[track_caller]
pub(crate) fn connect(place: &str) -> Client {
    let mut client = Client::connect(place).expect("a connection");
    client.set_timeout(LONG).expect("a connection");
    client
}

/// Checks that a daemon answers.
#[track_caller]
pub(crate) fn check(place: &str) {
    Peer::at(place).check();
}

#[track_caller]
pub(crate) fn number_at(document: &str, key: &str) -> usize {
    let mut lines = document.lines().filter_map(|line| line.split_once(": "));
    let (_, number) = lines.find(|&(found, _)| found == key).expect("a line with this key");
    number.parse().expect("a number")
}

#[track_caller]
pub(crate) fn wait_for_count(client: &mut Peer, command: &str, key: &str, count: usize) {
    eventually(&format!("{key} is {count}"), || client.count(command, key) == count);
}

/// A document's values by their keys, without the quotes that some releases have.
fn values(document: &str) -> BTreeMap<String, String> {
    let lines = document.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(key, value)| (key.into(), value.trim_matches('"').into())).collect()
}

/// The facts about a job that a client can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// All values of `stats-job` except the times and the file.
    pub(crate) stats: BTreeMap<String, String>,
    pub(crate) age: u64,
    pub(crate) time_left: u64,
    pub(crate) file: u64,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    #[track_caller]
    fn new(id: u64, document: &str, body: Vec<u8>) -> Self {
        let mut stats = values(document);
        let mut take = |key: &str| {
            let value = stats.remove(key).unwrap_or_else(|| panic!("no {key}: {document}"));
            value.parse::<u64>().expect("a number")
        };
        assert_eq!(take("id"), id);
        let [age, time_left, file] = ["age", "time-left", "file"].map(take);
        Self { stats, age, time_left, file, body }
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        &self.stats[key]
    }

    pub(crate) fn number(&self, key: &str) -> u32 {
        self.stats[key].parse().expect("a number")
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.stats.insert(key.into(), value.into());
    }
}
