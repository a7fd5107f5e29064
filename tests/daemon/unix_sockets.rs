//! UNIX sockets: the file's mode, leftover files, and several daemons that start on one path.

use std::{
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use beanstalkd::sys;
use ct::{Client, Daemon, LONG, eventually};

use crate::harness::{Ended, OURS, Peer, THEN_BECOME, run_to_its_end, start, terminate};

/// Clients on the same machine could not connect, or every user could.
///
/// Proves: Q23.
#[test]
fn a_unix_socket_has_the_mode_of_the_umask() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    for (scheme, umask, mode) in [("unix:", "077", 0o700), ("unix://", "027", 0o750)] {
        let script = format!("umask {umask}{THEN_BECOME}");
        let address = format!("{scheme}{}", path.display());
        let (daemon, place) = start("/bin/sh", &["-c", &script, OURS, "-Vl", &address]);
        assert_eq!(place, address);
        let found = fs::metadata(&path).expect("a socket file");
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o777, mode);
        let mut client = Peer::at(&format!("unix:{}", path.display()));
        client.put(0, 0, b"a\r\nb");
        assert_eq!(client.reserve(), (1, b"a\r\nb".to_vec()));
        drop(daemon); // It is killed, so the next daemon finds its file.
    }
}

/// After a crash, the daemon would not start again until its socket file is removed by hand.
///
/// Proves: Q23.
#[test]
fn a_socket_file_that_was_left_over_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    leave_socket(&path);
    let address = format!("unix:{}", path.display());
    for _ in 0..2 {
        let (daemon, _) = start(OURS, &["-Vl", &address]);
        Peer::at(&address).check();
        drop(daemon);
        assert!(path.exists(), "a process that is killed removes nothing");
    }
    let (mut daemon, _) = start(OURS, &["-Vl", &address]);
    assert_eq!(terminate(&mut daemon), 0);
    assert!(!path.exists(), "the socket file stays");
}

/// A daemon that is started a second time by mistake would cut the first daemon off from its
/// clients for ever.
///
/// Proves: B18, Q23.
#[test]
fn a_second_start_leaves_the_first_one_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    let (mut first, _) = start(OURS, &["-Vl", &address]);
    let mut client = Peer::at(&address);
    client.put(0, 0, b"x");
    for _ in 0..2 {
        let Ended { code, stdout, stderr } = run_to_its_end(OURS, &["-l", &address]);
        assert_eq!((code, &*stdout), (111, ""));
        let place = path.display();
        let wanted = format!(
            "beanstalkd: error: cannot listen on {place}: another process is listening there\n"
        );
        assert_eq!(stderr, wanted);
        client.check();
        assert_eq!(Peer::at(&address).ask("delete 2"), "NOT_FOUND");
    }
    assert_eq!(client.reserve(), (1, b"x".to_vec()));
    assert_eq!(terminate(&mut first), 0);
    assert!(!path.exists(), "the socket file stays");
}

/// Two daemons that start on a socket file left by a power cut would remove each other's new file:
/// both would run, and no client could reach the first.
///
/// Proves: B18.
#[test]
fn of_several_starts_at_once_one_serves_and_the_others_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    // Each shell waits for the end of its input before it becomes the daemon, so all daemons start
    // at the same time.
    let script = r#"echo waits >&2; read -r _; exec "$0" -l "$1""#;
    let mut judged = 0;
    for round in 0..40 {
        leave_socket(&path);
        let (waits, gate) = UnixStream::pair().expect("a pair");
        let start = |_| {
            let mut command = Command::new("/bin/sh");
            let input = OwnedFd::from(waits.try_clone().expect("a copy"));
            command.args(["-c", script, OURS, &address]).stdin(input);
            Daemon::spawn_command(&mut command)
        };
        let started: Result<Vec<_>, _> = (0..4).map(start).collect();
        let started = started.expect("they start");
        for daemon in &started {
            eventually("it waits", || daemon.stderr().contains("waits"));
        }
        drop(gate);
        let (mut serving, mut is_late) = (Vec::new(), false);
        for mut daemon in started {
            let says = |daemon: &Daemon, word| daemon.stderr().contains(word);
            let mut status = None;
            eventually("it listens or ends", || {
                status = daemon.exit_status();
                status.is_some() || says(&daemon, "listens on")
            });
            is_late |= says(&daemon, "starting without this lock");
            match status {
                None => serving.push(daemon),
                Some(status) => assert_eq!(status.code(), Some(111), "{}", daemon.stderr()),
            }
        }
        if is_late {
            // A daemon waits only two seconds for another one to set up its socket.
            drop(serving);
            fs::remove_file(&path).expect("it is there");
            continue;
        }
        judged += 1;
        assert_eq!(serving.len(), 1, "round {round}");
        Peer::at(&address).check();
        let names = fs::read_dir(folder.path()).expect("a folder").flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["socket"], "nothing else is left beside it");
        assert_eq!(terminate(&mut serving[0]), 0);
    }
    assert!(judged > 0, "the daemons were late in every round");
}

/// A daemon that starts while another is setting up its socket would take the new socket for a
/// leftover file, and remove it.
///
/// Proves: B18.
#[test]
#[expect(clippy::disallowed_methods, reason = "nothing happens, for a while")]
fn a_start_does_not_touch_a_socket_that_another_is_setting_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    // The socket is bound, and does not listen yet.
    leave_socket(&path);
    let before = fs::metadata(&path).expect("a socket file").ino();
    let directory = fs::OpenOptions::new().read(true).open(folder.path()).expect("a folder");
    sys::lock_until_closed(&directory).expect("the lock is free");
    let mut daemon = Daemon::spawn_raw(Path::new(OURS), &["-l", &address]).expect("a start");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(daemon.exit_status(), None, "{}", daemon.stderr());
    // After two seconds, it does not wait for the lock any more.
    let is_same = fs::metadata(&path).is_ok_and(|socket| socket.ino() == before);
    assert!(is_same || daemon.stderr().contains("starting without this lock"));
    // The other process was killed: its lock is released, and its socket is stale.
    drop(directory);
    eventually("it listens", || daemon.stderr().contains("listens on"));
    Peer::at(&address).check();
    assert_eq!(terminate(&mut daemon), 0);
}

/// If the first daemon is too busy to accept, a second one would hang for ever at startup, without
/// a line in the log.
///
/// Proves: B18.
#[test]
fn a_second_start_does_not_wait_for_a_busy_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let busy = UnixListener::bind(&path).expect("a socket");
    shrink_backlog(&busy);
    let address = format!("unix:{}", path.display());
    let _first_in_line = Client::connect(&address).expect("room for one");
    let mut second = Daemon::spawn_raw(Path::new(OURS), &["-l", &address]).expect("a start");
    let status = second.wait_exit(LONG).expect("it ends");
    assert_eq!(status.code(), Some(111));
    assert!(second.stderr().contains("another process is listening there"), "{}", second.stderr());
    assert!(path.exists());
}

/// If a pipe is where the directory should be, startup would hang, and no signal would end it.
///
/// Proves: B18.
#[test]
fn a_pipe_in_place_of_the_directory_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo starts");
    assert!(made.success());
    let address = format!("unix:{}", pipe.join("socket").display());
    let Ended { code, stderr, .. } = run_to_its_end(OURS, &["-l", &address]);
    assert_eq!(code, 111, "{stderr}");
    assert!(stderr.contains("Not a directory"), "{stderr}");
}

/// A mistake in the path would delete a file that is not a socket.
///
/// Proves: B18, Q23.
#[test]
fn what_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "precious").expect("a file");
    fs::create_dir(at("folder")).expect("a folder");
    std::os::unix::fs::symlink(at("file"), at("link")).expect("a link");
    for name in ["file", "folder", "link"] {
        let address = format!("unix:{}", at(name).display());
        let Ended { code, stdout, stderr } = run_to_its_end(OURS, &["-l", &address]);
        assert_eq!((code, &*stdout), (111, ""), "{name}");
        let place = at(name).display().to_string();
        let wanted = format!(
            "beanstalkd: error: cannot listen on {place}: the file there is not a socket\n"
        );
        assert_eq!(stderr, wanted);
    }
    assert_eq!(fs::read_to_string(at("link")).expect("a link to a file"), "precious");
    assert!(at("folder").is_dir());
}

/// When a daemon ends, it would remove the socket file of its successor.
///
/// Proves: B18.
#[test]
fn at_the_end_it_removes_only_its_own_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = format!("unix:{}", path.display());
    let (mut first, _) = start(OURS, &["-Vl", &address]);
    fs::remove_file(&path).expect("its socket file");
    let (_second, _) = start(OURS, &["-Vl", &address]);
    assert_eq!(terminate(&mut first), 0);
    Peer::at(&address).check();
}

/// A path that is too long for the system would be truncated, or refused without a reason.
///
/// Proves: Q23.
#[test]
fn too_long_a_path_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    for length in [108, 300] {
        let path = folder.path().join("x".repeat(length));
        let address = format!("unix:{}", path.display());
        let Ended { code, stdout, stderr } = run_to_its_end(OURS, &["-l", &address]);
        assert_eq!((code, &*stdout), (111, ""));
        let wanted = format!("beanstalkd: error: cannot listen on {address}: path must be shorter");
        assert!(stderr.starts_with(&wanted), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

/// Makes a socket file on which no process listens.
fn leave_socket(path: &Path) {
    drop(UnixListener::bind(path).expect("a socket"));
    // A process that another thread has just forked may still have the listener.
    eventually("nobody listens", || UnixStream::connect(path).is_err());
}

/// Lets the listener's queue hold only one connection.
#[expect(unsafe_code, reason = "std does not let the length of the line be chosen")]
fn shrink_backlog(listener: &UnixListener) {
    // SAFETY: takes no pointers, and the descriptor is open while it is borrowed.
    let result = unsafe { libc::listen(listener.as_raw_fd(), 0) };
    assert_eq!(result, 0);
}
