//! Servers for the tests, and `beanstalkctl` to run on them.

pub(crate) mod page;
pub(crate) mod played;
pub(crate) mod proxy;

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;

use ct::{Client, Daemon, Original, skip};
use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_beanstalkctl");

/// The daemon of this project: built beside the program, or named by `BEANSTALKD`.
pub(crate) fn ours() -> PathBuf {
    if let Some(path) = env::var_os("BEANSTALKD").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let path = Path::new(PROGRAM).with_file_name("beanstalkd");
    assert!(path.exists(), "build the daemon first: cargo build (--release), or name BEANSTALKD");
    path
}

/// The daemons to test with: this project's daemon, and the original beanstalkd if it is found.
pub(crate) fn programs() -> Vec<PathBuf> {
    let mut programs = vec![ours()];
    programs.extend(Original::find().map(|original| original.path));
    programs
}

/// A running daemon and its address.
pub(crate) struct Server {
    pub(crate) daemon: Daemon,
    pub(crate) address: String,
    program: PathBuf,
    folder: TempDir,
}

impl Server {
    /// Starts a daemon that listens on TCP.
    pub(crate) fn tcp(program: &Path, flags: &[&str]) -> Self {
        let daemon = Daemon::start(program, flags).unwrap();
        let address = daemon.address().to_owned();
        Self { daemon, address, program: program.to_owned(), folder: tempfile::tempdir().unwrap() }
    }

    /// Starts a daemon that listens on a UNIX socket.
    pub(crate) fn unix(program: &Path, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", folder.path().join("socket").display());
        let mut arguments = vec!["-l", &address];
        arguments.extend(flags);
        let mut daemon = Daemon::spawn_raw(program, &arguments).unwrap();
        daemon.wait_until_accepts(&address, ct::LONG).unwrap();
        Self { daemon, address, program: program.to_owned(), folder }
    }

    /// Stops the daemon, and starts it again with these flags, over TCP.
    pub(crate) fn restart(&mut self, flags: &[&str]) {
        self.daemon.restart(&self.program, flags).unwrap();
    }

    /// Connects to the daemon.
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.address).unwrap()
    }

    /// Returns the path of a file that nothing else uses.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Prepares a command for this server.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.env("BEANSTALKD_SERVER", &self.address).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    /// Runs a command with this standard input.
    pub(crate) fn run_with(&self, input: &[u8], arguments: &[&str]) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // A command that fails does not read all input, so a failed write is ignored.
            scope.spawn(move || drop(stdin.write_all(input)));
            Ran::of(child.wait_with_output().unwrap())
        })
    }

    /// Runs a command that must succeed, and returns what it prints.
    pub(crate) fn must(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert!(ran.status.success(), "{}: {arguments:?}: {ran:?}", self.program.display());
        ran.stdout
    }

    /// Runs a command that must succeed with `--json`, and returns its objects.
    pub(crate) fn objects(&self, arguments: &[&str]) -> Vec<Value> {
        let text = self.must(&[&["--json"], arguments].concat());
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        let Output { status, stdout, stderr } = output;
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        Self { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
    }

    /// Returns the exit status.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Runs `act` on each daemon, over TCP and over a UNIX socket. The runs are parallel, because most
/// tests wait longer than they compute.
pub(crate) fn each_server(flags: &[&str], act: impl Fn(&Server) + Sync) {
    let (act, programs) = (&act, programs());
    thread::scope(|scope| {
        for program in &programs {
            scope.spawn(move || act(&Server::tcp(program, flags)));
            scope.spawn(move || act(&Server::unix(program, flags)));
        }
    });
}

/// Puts a job into a tube and returns its id.
pub(crate) fn put(client: &mut Client, tube: &str, pri: u32, delay: u32, body: &[u8]) -> u64 {
    assert_eq!(client.command(&format!("use {tube}")).unwrap(), format!("USING {tube}"));
    let reply = client.put(pri, delay, 120, body).unwrap();
    reply.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{reply}")).parse().unwrap()
}

/// Reserves a job, which stays reserved until the client is dropped.
pub(crate) fn reserve(client: &mut Client, id: u64) {
    client.with_body(&format!("reserve-job {id}")).unwrap();
}

/// Buries this job.
pub(crate) fn bury(client: &mut Client, id: u64) {
    reserve(client, id);
    assert_eq!(client.command(&format!("bury {id} 7")).unwrap(), "BURIED");
}

/// Returns the state of a job; `None` if there is no such job.
pub(crate) fn state(client: &mut Client, id: u64) -> Option<String> {
    let reply = client.command(&format!("stats-job {id}")).unwrap();
    let length: usize = reply.strip_prefix("OK ")?.parse().unwrap();
    let text = String::from_utf8(client.bytes(length + 2).unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("state: "));
    line.map(str::to_owned)
}

/// Makes a tube with a job in each state: ready, delayed, buried and reserved.
pub(crate) fn four(client: &mut Client, tube: &str) -> [u64; 4] {
    let ready = put(client, tube, 5, 0, b"first ready");
    let delayed = put(client, tube, 5, 1000, b"second \xff\0\r\ndelayed");
    let buried = put(client, tube, 5, 0, b"third buried");
    bury(client, buried);
    let reserved = put(client, tube, 5, 0, b"fourth reserved");
    reserve(client, reserved);
    [ready, delayed, buried, reserved]
}

/// Sends SIGINT to a command, as Ctrl-C does.
pub(crate) fn interrupt(child: &Child) {
    send_signal(child, "INT");
}

/// Sends a signal to a command.
pub(crate) fn send_signal(child: &Child, name: &str) {
    let command = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
}

/// Deletes all jobs of a tube and returns their bodies, with commands of the protocol alone: first
/// ready, then delayed, then buried jobs.
pub(crate) fn drain(client: &mut Client, tube: &str) -> Vec<Vec<u8>> {
    client.command(&format!("use {tube}")).unwrap();
    let mut bodies = Vec::new();
    for peek in ["peek-ready", "peek-delayed", "peek-buried"] {
        loop {
            let line = client.command(peek).unwrap();
            let Some(rest) = line.strip_prefix("FOUND ") else { break };
            let (id, length) = rest.split_once(' ').unwrap();
            let mut body = client.bytes(length.parse::<usize>().unwrap() + 2).unwrap();
            body.truncate(body.len() - 2);
            bodies.push(body);
            assert_eq!(client.command(&format!("delete {id}")).unwrap(), "DELETED");
        }
    }
    bodies
}

/// Whether a tool is installed. If not, reports the test as skipped.
pub(crate) fn has_tool(name: &str, argument: &str) -> bool {
    let found = Command::new(name).arg(argument).output().is_ok();
    if !found {
        skip(&format!("there is no {name}"));
    }
    found
}
