//! Daemons on a directory, their clients, and what these can see of a job.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

use ct::{Client, Daemon, Original};
pub(crate) use ct::{LONG, eventually};

pub(crate) const OURS: &str = env!("CARGO_BIN_EXE_beanstalkd");

/// Where the original is; `None`, and a word on it, where it is not.
pub(crate) fn original() -> Option<PathBuf> {
    Original::find().map(|original| original.path)
}

/// A number that a longer run sets.
pub(crate) fn from_environment<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// A directory that is removed in the end, and its path as a flag takes it.
#[derive(Debug)]
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// A copy of the files in a directory.
    pub(crate) fn copy_of(source: &Path) -> Self {
        let folder = Self::new();
        for entry in fs::read_dir(source).expect("a directory") {
            let entry = entry.expect("it can be read");
            fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
        }
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Starts a daemon on it, with further flags.
    #[track_caller]
    pub(crate) fn serve(&self, program: impl AsRef<Path>, flags: &[&str]) -> Daemon {
        let mut all = vec!["-b", self.text()];
        all.extend(flags);
        Daemon::start(program.as_ref(), &all).expect("it starts")
    }

    pub(crate) fn text(&self) -> &str {
        self.path().to_str().expect("a plain name")
    }

    /// Names and sizes of what a log is made of, in the order of their names.
    pub(crate) fn files(&self) -> BTreeMap<String, u64> {
        let entries = fs::read_dir(self.path()).expect("a directory").flatten();
        let files = entries.filter_map(|entry| {
            // A spare may have got another name in this moment.
            let size = entry.metadata().ok()?.len();
            Some((entry.file_name().into_string().expect("a plain name"), size))
        });
        files.filter(|(name, _)| name != "lock").collect()
    }
}

/// A client whose every failure fails the test, at the line that called it.
#[derive(Debug)]
pub(crate) struct Peer(pub(crate) Client);

impl Peer {
    #[track_caller]
    pub(crate) fn of(daemon: &Daemon) -> Self {
        Self::at(daemon.address())
    }

    #[track_caller]
    pub(crate) fn at(address: &str) -> Self {
        let mut client = Client::connect(address).expect("a connection");
        client.set_timeout(LONG).expect("a connection");
        Self(client)
    }

    /// Sends a command and returns its one line of reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.0.command(command).expect("a reply")
    }

    /// Sends a command that is answered so.
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

    /// Reserves this very job.
    #[track_caller]
    pub(crate) fn take(&mut self, id: u64) -> Vec<u8> {
        let (line, body) = self.0.with_body(&format!("reserve-job {id}")).expect("the job");
        assert_eq!(line, format!("RESERVED {id} {}", body.len()));
        body
    }

    /// Reserves whatever comes first, if anything does.
    #[track_caller]
    pub(crate) fn reserve(&mut self) -> Option<u64> {
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

    /// One value of a document.
    #[track_caller]
    pub(crate) fn value<T: FromStr>(&mut self, command: &str, key: &str) -> T {
        let values = values(&self.0.yaml(command).expect("a document"));
        let value = values.get(key).unwrap_or_else(|| panic!("{command} has no {key}"));
        value.parse().ok().unwrap_or_else(|| panic!("{key}: {value}"))
    }

    /// What can be seen of a job, if it is there.
    #[track_caller]
    pub(crate) fn look(&mut self, id: u64) -> Option<Seen> {
        self.look_through(id..id + 1).remove(&id)
    }

    /// What can be seen of all jobs with these ids.
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
}

/// A document's values by their keys, without the quotes that some releases have.
fn values(document: &str) -> BTreeMap<String, String> {
    let lines = document.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(key, value)| (key.into(), value.trim_matches('"').into())).collect()
}

/// What a client can see of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// All that `stats-job` says but the times and the file.
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

/// Ends a daemon by a signal and waits until it has ended.
#[track_caller]
pub(crate) fn end(mut daemon: Daemon, signal: i32) {
    daemon.signal(signal).expect("it runs");
    daemon.wait_exit(LONG).expect("it ends");
}

/// A daemon that must not start: its exit code, and what it complained of.
#[track_caller]
pub(crate) fn fails_to_start(program: impl AsRef<Path>, flags: &[&str]) -> (i32, String) {
    let mut all = vec!["-l", "127.0.0.1", "-p", "0"];
    all.extend(flags);
    let mut daemon = Daemon::spawn_raw(program.as_ref(), &all).expect("it starts");
    let status = daemon.wait_exit(LONG).expect("it ends by itself");
    (status.code().expect("it ends by itself"), complaints(&daemon))
}

/// Starts a program that becomes a daemon with `-V`, which tells where it listens.
#[track_caller]
pub(crate) fn spawn(program: &str, arguments: &[&str]) -> (Daemon, String) {
    let mut daemon = Daemon::spawn_raw(Path::new(program), arguments).expect("it starts");
    let mut place = None;
    eventually("it listens", || {
        let stderr = daemon.stderr();
        assert_eq!(daemon.exit_status(), None, "{stderr}");
        let told = stderr.split_once(" listens on ").and_then(|(_, rest)| rest.split_once('\n'));
        place = told.map(|(place, _)| place.to_owned());
        place.is_some()
    });
    (daemon, place.expect("it listens"))
}

/// What it has said that is not of an ordinary day.
pub(crate) fn complaints(daemon: &Daemon) -> String {
    let said = daemon.stderr();
    let is_ordinary = |line: &&str| {
        let told = line.split_once("Z beanstalkd: ").map(|(_, rest)| rest);
        told.is_some_and(|it| !it.starts_with("warning: ") && !it.starts_with("error: "))
    };
    said.lines().filter(|line| !is_ordinary(line)).collect::<Vec<_>>().join("\n")
}

/// Whether a program can be run so, and well.
pub(crate) fn can_run(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
