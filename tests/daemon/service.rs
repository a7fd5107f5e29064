//! Notices to a service manager, and its watchdog. The tests play the manager themselves.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

use std::{
    fs,
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    os::{linux::net::SocketAddrExt, unix::net::UnixDatagram},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ct::{Daemon, LONG, eventually, skip};

use crate::harness::{
    OURS, WATCHED, await_state, check, connect, freeze, process_status, serve, terminate, thaw,
};

/// Units that wait for the daemon's unit would start before the daemon serves, or the manager would
/// kill a daemon whose startup takes long.
///
/// Proves: Q20.
#[test]
fn it_tells_how_far_its_start_is_and_when_it_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(lock) = binlog_behind_a_gate(folder.path()) else { return };
    let manager = Manager::at(&folder.path().join("notify"));
    let path = folder.path().to_str().expect("a plain name");
    let mut command = Command::new(OURS);
    command.args(["-l127.0.0.1", "-p0", "-b", path]).env("NOTIFY_SOCKET", &manager.name);
    let (mut daemon, places) = serve(&mut command);
    let mut client = connect(&places[0]);
    client.send("peek 1\r\n").expect("it is taken");
    // The daemon notes the time at which it begins to read, before it waits for the pipe.
    await_state(&daemon, 'S');
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(manager.heard_by_now(), None, "it has not served yet");
    let gate = fs::OpenOptions::new().read(true).open(&lock).expect("the daemon writes");
    let progress = manager.hears();
    assert!(progress.starts_with("STATUS=reading the binlog: "), "{progress}");
    assert!(progress.ends_with(" MiB\nEXTEND_TIMEOUT_USEC=60000000"), "{progress}");
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    assert_eq!(client.line().expect("a reply"), "FOUND 1 1");
    assert!(daemon.stderr().contains("read 1 job from 1 binlog file in "));
    assert_eq!(terminate(&mut daemon), 0);
    drop(gate);
    assert_eq!(manager.hears(), "STOPPING=1\nSTATUS=ending");
    assert_eq!(manager.heard_by_now(), None);
}

/// The manager would kill a standby daemon because its startup takes long, or show it as serving.
#[test]
fn a_standby_tells_that_it_waits_and_is_ready_only_with_the_lock() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain name");
    let (active, places) = serve(on_loopback().args(["-b", path]));
    // The daemon listens before it has the lock, and answers afterwards.
    connect(&places[0]).put(0, 0, 60, b"x").expect("a reply");
    let manager = Manager::abstracted();
    let mut standby = on_loopback()
        .args(["-b", path, "--wait-for-lock"])
        .env("NOTIFY_SOCKET", &manager.name)
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let waits = manager.hears();
    let holder = format!("process {} on ", active.pid());
    assert!(waits.starts_with("STATUS=standby: waits for the lock: "), "{waits}");
    assert!(waits.contains(&holder), "{waits}");
    assert!(waits.ends_with("\nEXTEND_TIMEOUT_USEC=60000000"), "{waits}");
    assert_eq!(manager.heard_by_now(), None, "it does not serve yet");
    drop(active);
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    standby.kill().expect("it runs");
    standby.wait().expect("it was started here");
}

/// `systemctl status` would not show that the daemon is draining, which is why producers are
/// refused.
///
/// Proves: Q18.
#[test]
fn it_tells_when_it_drains() {
    let manager = Manager::abstracted();
    let (daemon, _) = serve(on_loopback().env("NOTIFY_SOCKET", &manager.name));
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    daemon.signal(libc::SIGUSR1).expect("it runs");
    assert_eq!(manager.hears(), "STATUS=draining: new jobs are refused");
    daemon.signal(libc::SIGUSR2).expect("it runs");
    assert_eq!(manager.hears(), "STATUS=serving");
}

/// If an operator ends draining and begins it again while the daemon is busy, the daemon would
/// continue to accept jobs.
///
/// Proves: Q18.
#[test]
fn of_two_signals_in_one_turn_the_later_one_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain name");
    for (signals, wanted) in
        [([libc::SIGUSR2, libc::SIGUSR1], "DRAINING"), ([libc::SIGUSR1, libc::SIGUSR2], "INSERTED")]
    {
        fs::remove_dir_all(path).expect("a folder");
        fs::create_dir(path).expect("a folder");
        let Some(lock) = binlog_behind_a_gate(folder.path()) else { return };
        let (daemon, places) = serve(on_loopback().args(["-b", path]));
        for signal in signals {
            daemon.signal(signal).expect("it runs");
            eventually("it takes it", || {
                process_status(daemon.pid(), "ShdPnd") == "0000000000000000"
            });
            // Taken is not yet handled: before it sleeps again, the next signal would come first.
            await_state(&daemon, 'S');
        }
        let gate = fs::OpenOptions::new().read(true).open(&lock).expect("the daemon writes");
        let mut client = connect(&places[0]);
        let reply = client.put(0, 0, 60, b"x").expect("a reply");
        assert!(reply.starts_with(wanted), "{signals:?}: {reply}");
        drop(gate);
    }
}

/// The system does not report the order of two signals that come before the daemon can run. If the
/// daemon accepted jobs by mistake, and was then stopped, these jobs would be lost.
///
/// Proves: Q18.
#[test]
fn of_two_signals_at_once_the_one_that_drains_holds() {
    for signals in [[libc::SIGUSR2, libc::SIGUSR1], [libc::SIGUSR1, libc::SIGUSR2]] {
        let (daemon, places) = serve(&mut on_loopback());
        let mut client = connect(&places[0]);
        freeze(&daemon);
        for signal in signals {
            daemon.signal(signal).expect("it runs");
        }
        thaw(&daemon);
        assert_eq!(client.put(0, 0, 60, b"x").expect("a reply"), "DRAINING");
    }
}

/// `systemctl status` would not show that the disk has failed, which is why changes are refused.
///
/// Proves: E27.
#[test]
fn it_tells_when_its_disk_fails_and_when_it_works_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let limit = |pid: u32, limit: &str| {
        let arguments = ["--pid", &pid.to_string(), &format!("--fsize={limit}:unlimited")];
        Command::new("prlimit").args(arguments).status()
    };
    if !limit(std::process::id(), "unlimited").is_ok_and(|status| status.success()) {
        return skip("prlimit is not installed (Debian's package util-linux)");
    }
    let manager = Manager::abstracted();
    let script = r#"trap "" XFSZ; exec "$0" -l127.0.0.1 -p0 -f0 -b "$@""#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, OURS]).arg(folder.path()).stdin(Stdio::null());
    let (daemon, places) = serve(command.env("NOTIFY_SOCKET", &manager.name));
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    let mut client = connect(&places[0]);
    assert_eq!(client.put(0, 0, 60, b"x").expect("a reply"), "INSERTED 1");
    limit(daemon.pid(), "0").expect("it was there");
    assert!(client.put(0, 0, 60, b"x").is_err(), "nobody knows what becomes of this job");
    // The preallocation fails first; then a write fails.
    let failed = "STATUS=the binlog has failed: changes are refused until it works again";
    manager.hears_until(failed);
    limit(daemon.pid(), "unlimited").expect("it was there");
    manager.hears_until("STATUS=serving");
}

/// A manager would not restart a daemon that hangs, or would restart one that is merely idle.
#[test]
fn a_watchdog_is_fed_while_nothing_else_happens() {
    let manager = Manager::abstracted();
    let mut command = on_loopback();
    command.env("NOTIFY_SOCKET", &manager.name).env("WATCHDOG_USEC", "300000");
    // The time is measured from before the daemon starts, because notices that come while this
    // process waits for a processor are read all at once.
    let began = Instant::now();
    let (daemon, _) = serve(&mut command);
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    let rounds = 10;
    for _ in 0..rounds {
        assert_eq!(manager.hears(), "WATCHDOG=1");
    }
    // The first notice comes at once; many more notices than necessary would be a waste.
    assert!(began.elapsed() >= Duration::from_millis(100) * (rounds - 2), "{:?}", began.elapsed());
    freeze(&daemon);
    while manager.heard_by_now().is_some() {}
    thread::sleep(Duration::from_millis(400));
    assert_eq!(manager.heard_by_now(), None, "it is fed by a process that does nothing");
}

/// A daemon that has nothing to do would wake the processor all the time.
#[test]
fn without_a_watchdog_it_sleeps_until_something_happens() {
    let manager = Manager::abstracted();
    let mut other = on_loopback();
    let watchdog = [("WATCHDOG_USEC", "300000"), ("WATCHDOG_PID", "1")];
    other.env("NOTIFY_SOCKET", &manager.name).envs(watchdog);
    for command in [&mut on_loopback(), &mut other, on_loopback().env("WATCHDOG_USEC", "300000")] {
        let (daemon, places) = serve(command);
        check(&places[0]);
        // First the daemon closes the last connection, when it gets a processor for that. A daemon
        // with a timer would wake up in every interval.
        let sleeps = (0..10).any(|_| {
            let before = wake_ups(&daemon);
            thread::sleep(WATCHED);
            wake_ups(&daemon) == before
        });
        assert!(sleeps, "{command:?}");
    }
}

/// At boot, a disk may be mounted later than the daemon starts. The manager would start the daemon
/// each second, and `systemctl status` would not show the reason.
#[test]
fn it_tries_again_until_its_directory_and_its_address_are_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("later");
    let (manager, taken) = (Manager::abstracted(), TcpListener::bind("127.0.0.1:0"));
    let taken = taken.expect("a free port");
    let place = taken.local_addr().expect("it is bound");
    let mut command = Command::new(OURS);
    command.args(["-l127.0.0.1", "-p", &place.port().to_string(), "-b"]).arg(&path);
    let mut daemon = Daemon::spawn_command(command.env("NOTIFY_SOCKET", &manager.name));
    let missing = format!("STATUS=-b: {}: No such file or directory", path.display());
    let heard = manager.hears();
    assert!(heard.starts_with(&missing) && heard.ends_with("\nEXTEND_TIMEOUT_USEC=60000000"));
    fs::create_dir(&path).expect("a folder");
    manager.hears_until_it(|word| word.contains("in use"));
    drop(taken);
    manager.hears_until("READY=1\nSTATUS=serving");
    let daemon = daemon.as_mut().expect("it starts");
    check(&place.to_string());
    assert_eq!(daemon.stderr().matches("trying again").count(), 2, "{}", daemon.stderr());
    // Another daemon on this directory ends with 0 if it is stopped while it waits.
    let other = Manager::abstracted();
    let mut second = on_loopback();
    second.arg("-b").arg(&path).env("NOTIFY_SOCKET", &other.name);
    let (mut second, places) = serve(&mut second);
    other.hears_until_it(|word| word.contains("process "));
    assert!(TcpStream::connect(&places[0]).is_err(), "clients would wait for it");
    assert_eq!(terminate(&mut second), 0);
}

/// `systemctl status` would show no reason why the daemon has ended.
#[test]
fn the_last_status_is_the_error() {
    let manager = Manager::abstracted();
    let mut command = on_loopback();
    command.args(["-u", "no-such-user"]).env("NOTIFY_SOCKET", &manager.name);
    let ended = command.output().expect("it starts");
    assert_eq!(ended.status.code(), Some(33));
    assert_eq!(manager.hears(), "STATUS=-u: there is no user no-such-user");
}

/// A manager that does not read the daemon's notices, or is gone, would hold up or crash it.
#[test]
fn a_manager_that_does_not_listen_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let gone = folder.path().join("gone");
    let deaf = Manager::abstracted();
    let names = [gone.to_str().expect("a plain name"), "@nobody-is-here", "vsock:2:3", &deaf.name];
    for name in names {
        let mut command = on_loopback();
        command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "3000");
        let (mut daemon, places) = serve(&mut command);
        // The queue of a manager that does not read is full after some tens of notices.
        thread::sleep(Duration::from_millis(300));
        check(&places[0]);
        assert_eq!(terminate(&mut daemon), 0, "{name}");
    }
}

/// A startup that takes long could be stopped only by SIGKILL.
///
/// Proves: Q19.
#[test]
fn a_signal_ends_a_long_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(lock) = binlog_behind_a_gate(folder.path()) else { return };
    let (path, socket) = (folder.path().to_str().expect("a name"), folder.path().join("socket"));
    let address = format!("unix:{}", socket.display());
    let (mut daemon, _) = serve(Command::new(OURS).args(["-l", &address, "-b", path]));
    daemon.signal(libc::SIGTERM).expect("it runs");
    let gate = fs::OpenOptions::new().read(true).open(&lock).expect("the daemon writes");
    let status = daemon.wait_exit(LONG).expect("it ends");
    drop(gate);
    assert_eq!(status.code(), Some(0), "{}", daemon.stderr());
    assert!(daemon.stderr().contains("shutting down on a signal, before the binlog is read"));
    assert!(!socket.exists(), "the socket file stays");
}

/// The manager's end of a socket for notices.
#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        Self::with(socket, path.to_str().expect("a plain name").into())
    }

    /// Listens on an abstract name, which is in no folder.
    fn abstracted() -> Self {
        let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
        let name = format!("beanstalkd-test-{}-{clock}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name);
        let socket = UnixDatagram::bind_addr(&address.expect("a name")).expect("a socket");
        Self::with(socket, format!("@{name}"))
    }

    fn with(socket: UnixDatagram, name: String) -> Self {
        socket.set_read_timeout(Some(LONG)).expect("a socket");
        Self { socket, name }
    }

    /// Waits for the next notice.
    #[track_caller]
    fn hears(&self) -> String {
        let mut buffer = [0; 4096];
        loop {
            match self.socket.recv(&mut buffer) {
                // The system does not resume a wait with a time limit after another test's signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                length => {
                    let length = length.expect("a word");
                    return String::from_utf8_lossy(&buffer[..length]).into_owned();
                }
            }
        }
    }

    /// Waits for the notice `last`; all notices before it must be states.
    #[track_caller]
    fn hears_until(&self, last: &str) {
        self.hears_until_it(|word| word == last);
    }

    #[track_caller]
    fn hears_until_it(&self, is_last: impl Fn(&str) -> bool) {
        loop {
            let word = self.hears();
            if is_last(&word) {
                return;
            }
            assert!(word.starts_with("STATUS="), "{word}");
        }
    }

    /// The next notice, if it has already arrived.
    #[track_caller]
    fn heard_by_now(&self) -> Option<String> {
        self.socket.set_nonblocking(true).expect("a socket");
        let mut buffer = [0; 4096];
        let outcome = self.socket.recv(&mut buffer);
        self.socket.set_nonblocking(false).expect("a socket");
        match outcome {
            Ok(length) => Some(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        }
    }
}

fn on_loopback() -> Command {
    let mut command = Command::new(OURS);
    command.args(["-l127.0.0.1", "-p0"]).stdin(Stdio::null());
    command
}

/// Puts a job into a binlog, and a pipe in place of its lock. The next daemon is held up after it
/// listens and before it reads, until the returned pipe is opened.
fn binlog_behind_a_gate(folder: &Path) -> Option<std::path::PathBuf> {
    let path = folder.to_str().expect("a plain name");
    let (mut daemon, places) = serve(on_loopback().args(["-b", path]));
    assert_eq!(connect(&places[0]).put(0, 0, 60, b"x").expect("a reply"), "INSERTED 1");
    assert_eq!(terminate(&mut daemon), 0);
    let lock = folder.join("lock");
    fs::remove_file(&lock).expect("the old one");
    let made = Command::new("mkfifo").arg(&lock).status();
    if made.is_ok_and(|status| status.success()) {
        return Some(lock);
    }
    skip("there is no mkfifo");
    None
}

/// How often the daemon has gone to sleep.
#[track_caller]
fn wake_ups(daemon: &Daemon) -> String {
    process_status(daemon.pid(), "voluntary_ctxt_switches")
}
