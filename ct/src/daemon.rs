//! Starts a daemon for a test, and stops it.
//!
//! The daemon can be any beanstalkd. It listens on a free port of 127.0.0.1, and writes its output
//! to files without names, which can be read at any time. Dropping the [`Daemon`] kills exactly the
//! started process. This module starts no threads.
//!
//! `/proc` shows whether the daemon listens: a test connection would change the counters in
//! `stats`. On a system without `/proc`, a test connection is made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::os;
use crate::socket::Stream;

/// The number of ports that are tried for one daemon.
const PORT_ATTEMPTS: u32 = 10;
/// How long a daemon may take to listen or to end; long enough for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// A running daemon; dropping this value kills the daemon.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    address: String,
    status: Option<ExitStatus>,
    stdout: File,
    stderr: File,
}

impl Daemon {
    /// Starts `program -l 127.0.0.1 -p PORT` with further flags, on a free port, and returns once
    /// the daemon listens.
    ///
    /// If another process takes the port first, another port is tried.
    pub fn start(program: &Path, flags: &[&str]) -> io::Result<Self> {
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port()?;
            let port_text = port.to_string();
            let mut arguments = vec!["-l", "127.0.0.1", "-p", &port_text];
            arguments.extend(flags);
            let mut daemon = Self::spawn_raw(program, &arguments)?;
            daemon.address = format!("127.0.0.1:{port}");
            match daemon.wait_until_listening(port) {
                Ok(()) => return Ok(daemon),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }

    /// Starts a daemon's program with exactly these arguments, and returns at once.
    ///
    /// [`Daemon::address`] of a daemon started in this way is empty. [`Daemon::wait_until_accepts`]
    /// waits until the daemon has started.
    pub fn spawn_raw(program: &Path, arguments: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        for variable in ["LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET"] {
            command.env_remove(variable);
        }
        let stdout = anonymous_file()?;
        command.stdout(stdout.try_clone()?);
        Self::launch(&mut command, stdout)
    }

    /// Starts a daemon with a command, and returns at once. Only the command's standard error is
    /// redirected, so [`Daemon::stdout`] is empty.
    pub fn spawn_command(command: &mut Command) -> io::Result<Self> {
        Self::launch(command, anonymous_file()?)
    }

    /// Starts the daemon's process, whose standard error goes to a file.
    fn launch(command: &mut Command, stdout: File) -> io::Result<Self> {
        let stderr = anonymous_file()?;
        command.stderr(stderr.try_clone()?);
        let began = Instant::now();
        let mut spawned = command.spawn();
        // A process that another thread has just forked may still have the program open.
        while matches!(&spawned, Err(it) if it.kind() == io::ErrorKind::ExecutableFileBusy)
            && began.elapsed() < START_TIMEOUT
        {
            thread::sleep(POLL_INTERVAL);
            spawned = command.spawn();
        }
        let child = spawned.map_err(|error| {
            let program = Path::new(command.get_program());
            io::Error::new(error.kind(), format!("{}: {error}", program.display()))
        })?;
        Ok(Self { child, address: String::new(), status: None, stdout, stderr })
    }

    /// Stops the daemon by SIGTERM and starts it again with the same flags at the same address.
    ///
    /// If another process has taken the port in between, waits until the port is free. Fails if the
    /// daemon does not end within a minute, or does not start again.
    pub fn restart(&mut self, program: &Path, flags: &[&str]) -> io::Result<()> {
        self.signal(libc::SIGTERM)?;
        if self.wait_exit(START_TIMEOUT).is_none() {
            return Err(io::Error::other("the daemon does not end"));
        }
        let port = self.address.rsplit(':').next().unwrap_or_default().to_owned();
        let number = port.parse().map_err(io::Error::other)?;
        let mut arguments = vec!["-l", "127.0.0.1", "-p", &port];
        arguments.extend(flags);
        let began = Instant::now();
        loop {
            let mut again = Self::spawn_raw(program, &arguments)?;
            again.address.clone_from(&self.address);
            let started = again.wait_until_listening(number);
            let is_taken = matches!(&started, Err(it) if it.kind() == io::ErrorKind::AddrInUse);
            if !is_taken || began.elapsed() >= START_TIMEOUT {
                *self = again;
                return started;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the daemon's address, `127.0.0.1:PORT`; empty unless [`Daemon::start`] was used.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the daemon's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the daemon's output to standard error so far.
    pub fn stderr(&self) -> String {
        contents(&self.stderr)
    }

    /// Returns what the daemon has written to its standard output.
    pub fn stdout(&self) -> String {
        contents(&self.stdout)
    }

    /// Sends a signal to the daemon. Fails if the process is known to have ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match self.status {
            Some(_) => Err(io::Error::other("the daemon has ended")),
            None => os::send_signal(self.pid(), signal), // A pid is not reused until reaped.
        }
    }

    /// Returns the daemon's exit status, if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits until the daemon ends; returns `None` if it still runs after `timeout`.
    pub fn wait_exit(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let status = self.exit_status();
            if status.is_some() || start.elapsed() >= timeout {
                return status;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Tries to connect to the daemon at `host:port` or `unix:/path` until a connection succeeds.
    ///
    /// Fails if the daemon ends, or after `timeout`. The daemon's counters include this connection.
    pub fn wait_until_accepts(&mut self, address: &str, timeout: Duration) -> io::Result<()> {
        let accepted = |_: u32| Stream::connect(address).is_ok();
        self.wait_until(timeout, accepted)
    }

    /// Waits until the daemon listens on its port.
    fn wait_until_listening(&mut self, port: u16) -> io::Result<()> {
        let address = self.address.clone();
        self.wait_until(START_TIMEOUT, |pid| match is_listening(pid, port) {
            Some(answer) => answer,
            None => Stream::connect(&address).is_ok(),
        })
    }

    /// Waits until `ready` is true of the daemon; fails if the daemon ends, or after `timeout`.
    fn wait_until(&mut self, timeout: Duration, ready: impl Fn(u32) -> bool) -> io::Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.exit_status() {
                let stderr = self.stderr();
                let taken = status.code() == Some(111) || stderr.contains("in use");
                let kind = if taken { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
                return Err(io::Error::new(kind, format!("it ended with {status}: {stderr}")));
            }
            // Checks that the daemon still runs: another process may have answered at its address.
            if ready(self.pid()) && self.exit_status().is_none() {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                let message = format!("it does not listen: {}", self.stderr());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Daemon {
    /// Kills the daemon's process if it still runs.
    fn drop(&mut self) {
        if self.exit_status().is_none() {
            // `kill` and `wait` fail only if the daemon has just ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns a port of 127.0.0.1 that is free now, so that a daemon can listen on it.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Returns whether the daemon's process listens on the port; `None` on a system without `/proc`.
fn is_listening(pid: u32, port: u16) -> Option<bool> {
    let table = BufReader::new(File::open("/proc/net/tcp").ok()?);
    let suffix = format!(":{port:04X}");
    let mut inode = None;
    for line in table.lines().skip(1) {
        // The columns are sl, local address, remote address, state (0A is listening), …, inode.
        let line = line.ok()?;
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Listening sockets come first; thousands of lines about closed connections can follow.
        if *fields.get(3)? != "0A" {
            break;
        }
        if fields.get(1)?.ends_with(&suffix) {
            inode = Some((*fields.get(9)?).to_owned());
            break;
        }
    }
    let Some(inode) = inode else {
        return Some(false);
    };
    let wanted = format!("socket:[{inode}]");
    // The descriptors of a process that has ended are visible only to root.
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Some(false) };
    let mut targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    Some(targets.any(|target| target.as_os_str() == wanted.as_str()))
}

/// Opens a file for a daemon's output and deletes the file's name, so that the file vanishes once
/// it is closed.
fn anonymous_file() -> io::Result<File> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ct-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).append(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Reads all output of a daemon from its file without moving the file position, which the daemon's
/// process shares.
fn contents(file: &File) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match file.read_at(&mut buffer, bytes.len() as u64) {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&bytes).into_owned(),
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn shell(script: &str) -> Daemon {
        Daemon::spawn_raw(Path::new("/bin/sh"), &["-c", script]).unwrap()
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn what_a_daemon_prints_and_how_it_ends_can_be_read() {
        let mut daemon = shell("echo out; echo error >&2; exit 5");
        assert_eq!(daemon.wait_exit(LONG).unwrap().code(), Some(5));
        assert_eq!((daemon.stdout(), daemon.stderr()), ("out\n".to_owned(), "error\n".to_owned()));
        assert!(daemon.signal(0).is_err(), "its pid may belong to another by now");
        assert_eq!(daemon.address(), "");
    }

    #[test]
    fn a_signal_ends_it_and_waiting_has_a_limit() {
        let mut daemon = shell("exec sleep 60");
        assert_eq!(daemon.wait_exit(Duration::from_millis(20)), None);
        daemon.signal(libc::SIGTERM).unwrap();
        assert_eq!(daemon.wait_exit(LONG).unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn nothing_is_left_behind_when_a_test_is_over() {
        let daemon = shell("exec sleep 60");
        let pid = daemon.pid();
        drop(daemon);
        assert!(os::send_signal(pid, 0).is_err());
    }

    #[test]
    fn a_daemon_that_cannot_start_says_why() {
        let error = Daemon::start(Path::new("/nonexistent/daemon"), &[]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/daemon"), "{error}");
        let error = Daemon::start(Path::new("/bin/false"), &[]).unwrap_err();
        assert!(error.to_string().contains("it ended with"), "{error}");
        let mut daemon = shell("exec sleep 60");
        let error = daemon.wait_until_accepts("127.0.0.1:1", Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn listening_is_seen_without_connecting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Some(answer) = is_listening(std::process::id(), port) else {
            return;
        };
        assert!(answer);
        assert_ne!(is_listening(1, port), Some(true), "it is ours, not init's");
        let ended = shell("exit 111");
        let stat = format!("/proc/{}/stat", ended.pid());
        crate::eventually("it ends", || fs::read_to_string(&stat).unwrap().contains(") Z "));
        assert_eq!(is_listening(ended.pid(), port), Some(false), "the port is another's");
        drop(listener);
        assert_eq!(is_listening(std::process::id(), port), Some(false));
    }
}
