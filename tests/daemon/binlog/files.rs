//! The directory: names, modes and sizes, the lock, and everything else that a restart must keep.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use beanstalkd::wal::LOCK_CONFIRM_INTERVAL;
use ct::{Daemon, LONG, eventually, skip};

use crate::harness::{
    Folder, OURS, Peer, can_run, complaints, end, fails_to_start, original, places, terminate,
};

/// A delay that does not end during a test.
const FAR: u32 = 100_000;

fn is_root() -> bool {
    can_run("sh", &["-c", r#"test "$(id -u)" = 0"#])
}

/// Tools would not find the binlog's files, or other users could read them.
///
/// Proves: Q24, E29.
#[test]
fn files_have_the_names_modes_and_sizes_of_the_originals() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-s", "5000"]);
    let mut client = Peer::of(&daemon);
    assert_eq!(client.value::<u64>("stats", "binlog-max-size"), 5000, "as it was given");
    // The size is rounded up. The second file is preallocated for the time when the first is full.
    eventually("both are there", || folder.files().into_values().eq([8192, 8192]));
    let names: Vec<_> = folder.files().into_keys().collect();
    assert!(names[0] == "binlog.1" && names[1].starts_with("spare."), "{names:?}");
    let first = client.put(0, 0, b"x");
    assert_eq!(client.look(first).expect("a job").file, 1);
    // A job larger than a file gets a larger file, which is also preallocated.
    let id = client.put(0, 0, &vec![b'x'; 50_000]);
    let file = client.look(id).expect("a job").file;
    let size = folder.files()[&format!("binlog.{file}")];
    assert!(size > 50_000 && size % 4096 == 0, "{size}");
    for name in folder.files().into_keys() {
        let metadata = fs::metadata(folder.path().join(&name)).expect("a file");
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o400, "{name}");
    }
    assert!(folder.path().join("lock").exists());
    end(daemon, libc::SIGTERM);

    // At startup, existing segments are never appended to; unused preallocated bytes are truncated.
    let before = folder.files();
    let daemon = folder.serve(OURS, &["-s", "5000"]);
    let mut client = Peer::of(&daemon);
    assert_eq!(client.value::<u64>("stats", "binlog-current-index"), file + 1);
    assert_eq!(client.look(id).expect("a job").body.len(), 50_000);
    for (name, size) in folder.files().iter().filter(|(name, _)| before.contains_key(*name)) {
        let is_cut = name.starts_with("spare.") || *size <= before[name];
        assert!(is_cut, "{name} has grown from {} to {size}", before[name]);
    }
}

/// Two daemons on one directory would overwrite each other's jobs.
///
/// Proves: Q24, Q22.
#[test]
fn one_directory_has_one_daemon() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-s", "8192"]);
    let id = Peer::of(&daemon).put(0, 0, b"x");
    eventually("all is prepared", || folder.files().into_values().eq([8192, 8192]));
    let before = folder.files();
    let (code, stderr) = fails_to_start(OURS, &["-b", folder.text()]);
    assert_eq!((code, stderr.lines().count()), (10, 1), "{stderr}");
    let holder = format!("process {} on ", daemon.pid());
    assert!(stderr.contains(folder.text()) && stderr.contains(&holder), "{stderr}");
    if let Some(original) = original() {
        let (code, stderr) = fails_to_start(&original, &["-b", folder.text()]);
        assert_eq!(code, 10, "the original must stay out: {stderr}");
    }
    assert_eq!(folder.files(), before);
    assert_eq!(Peer::of(&daemon).look(id).expect("its job").body, b"x");
    // The lock ends with its process, even if the process is killed.
    end(daemon, libc::SIGKILL);
    end(folder.serve(OURS, &[]), libc::SIGTERM);
    if let Some(original) = original() {
        let original = folder.serve(original, &[]);
        Peer::of(&original).check();
        let (code, stderr) = fails_to_start(OURS, &["-b", folder.text()]);
        assert_eq!((code, stderr.lines().count()), (10, 1), "{stderr}");
    }
}

/// A daemon that waits on a second machine would appear to serve, or would not take over.
#[test]
fn a_daemon_that_waits_for_the_lock_listens_only_when_it_has_it() {
    let folder = Folder::new();
    let active = folder.serve(OURS, &["-f0"]);
    let id = Peer::of(&active).put(0, 0, b"x");
    let flags = ["-l", "127.0.0.1", "-p", "0", "-b", folder.text(), "-f0", "--wait-for-lock"];
    let mut standby = Daemon::spawn_raw(Path::new(OURS), &flags).expect("it starts");
    let holder = format!("process {} on ", active.pid());
    eventually("it waits", || standby.stderr().contains(&holder));
    assert!(!standby.stderr().contains("listens on"), "{}", standby.stderr());
    end(active, libc::SIGKILL);
    let place = places(&mut standby, 1).expect("it takes over").remove(0);
    assert_eq!(Peer::at(&place).look(id).expect("its job").body, b"x");
    assert!(standby.stderr().contains("takes over"), "{}", standby.stderr());
    // A daemon that is still waiting can be stopped.
    let mut other = Daemon::spawn_raw(Path::new(OURS), &flags).expect("it starts");
    eventually("it waits", || other.stderr().contains("waits for the lock"));
    assert_eq!(terminate(&mut other), 0);
}

/// Any user who can write to the directory could make root overwrite any file.
#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let folder = Folder::new();
    let target = folder.path().join("target");
    fs::write(&target, "precious").expect("written");
    std::os::unix::fs::symlink(&target, folder.path().join("lock")).expect("a link");
    let (code, stderr) = fails_to_start(OURS, &["-b", folder.text()]);
    assert_eq!((code, stderr.lines().count()), (10, 1), "{stderr}");
    assert!(stderr.contains("/lock: a symbolic link"), "{stderr}");
    assert_eq!(fs::read(&target).expect("it is there"), b"precious");
}

/// Another machine's daemon might not know yet that its lock is gone, and acknowledge jobs that
/// this daemon does not read. But startup must not wait without a reason.
#[test]
fn a_start_waits_if_a_daemon_of_another_machine_may_still_run() {
    let folder = Folder::new();
    let lock = folder.path().join("lock");
    let waits = || {
        let daemon = folder.serve(OURS, &[]);
        Peer::of(&daemon).put(0, 0, b"x");
        let stderr = daemon.stderr();
        end(daemon, libc::SIGKILL);
        stderr.contains("takes over")
    };
    assert!(!waits(), "nobody has had it");
    assert!(!waits(), "a daemon of this machine is dead");
    let elsewhere = "0123 process 1 on elsewhere, boot 4567\n";
    // If a daemon is killed while it waits, the next daemon must wait, too.
    let flags = ["-l", "127.0.0.1", "-p", "0", "-b", folder.text()];
    eventually("it is killed before it has waited half a second", || {
        fs::write(&lock, elsewhere).expect("written");
        let killed = Daemon::spawn_raw(Path::new(OURS), &flags).expect("it starts");
        eventually("it waits", || killed.stderr().contains("takes over"));
        end(killed, libc::SIGKILL);
        fs::read_to_string(&lock).expect("it is there") == elsewhere
    });
    assert!(waits(), "the other machine may run");
    let daemon = folder.serve(OURS, &[]);
    // The daemon listens before it has the lock, and answers afterwards.
    Peer::of(&daemon).put(0, 0, b"x");
    end(daemon, libc::SIGTERM);
    let line = fs::read_to_string(&lock).expect("it is there");
    assert!(line.starts_with("no daemon"), "an end in order is noted: {line}");
    assert!(!waits(), "the last daemon ended in order");
    fs::remove_file(&lock).expect("removed");
    assert!(waits(), "there are jobs, and nobody knows who has them");
}

/// A file system may revoke the lock. Then another daemon has the jobs, and this daemon would
/// acknowledge changes that are lost, hand out a job a second time, or be taken for the daemon that
/// serves.
#[test]
fn a_daemon_that_has_lost_its_lock_answers_nothing_and_ends() {
    let replaces =
        |lock: &Path| fs::write(lock, "another process 1 on another\n").expect("written");
    let removes = |lock: &Path| fs::remove_file(lock).expect("removed");
    for (loses, command) in [
        (replaces as fn(&Path), "put 0 0 60 1\r\ny\r\n"),
        (removes, "put 0 0 60 1\r\ny\r\n"),
        (replaces, "reserve\r\n"),
        (removes, "capabilities\r\n"),
    ] {
        let folder = Folder::new();
        let mut daemon = folder.serve(OURS, &["-f0"]);
        let mut client = Peer::of(&daemon);
        client.put(0, 0, b"x");
        let before = folder.files();
        loses(&folder.path().join("lock"));
        thread::sleep(LOCK_CONFIRM_INTERVAL * 2);
        client.0.send(command).expect("the connection takes it");
        assert!(client.0.line().is_err(), "nothing is answered");
        let status = daemon.wait_exit(LONG).expect("it ends");
        assert_eq!(status.code(), Some(10), "{}", daemon.stderr());
        assert!(daemon.stderr().contains("the lock is lost"), "{}", daemon.stderr());
        assert_eq!(folder.files(), before);
    }
}

/// A daemon whose directory cannot be used would start without a binlog, and lose all jobs when it
/// ends.
///
/// Proves: Q22, Q24.
#[test]
fn a_directory_that_cannot_be_had_ends_it_with_status_10() {
    let folder = Folder::new();
    let nowhere = folder.path().join("nowhere");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let mut cases = vec![(nowhere, vec![]), (file, vec![])];
    let closed = Folder::new();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o555)).expect("ours");
    // Root may write anywhere, so the daemon becomes another user.
    match (is_root(), can_run("id", &["nobody"])) {
        (false, _) => cases.push((closed.path().into(), vec![])),
        (true, true) => cases.push((closed.path().into(), vec!["-u", "nobody"])),
        (true, false) => skip("there is no user nobody"),
    }
    for (path, more) in cases {
        let path = path.to_str().expect("a plain name");
        let (code, stderr) = fails_to_start(OURS, &[&["-b", path], &more[..]].concat());
        assert_eq!((code, stderr.lines().count()), (10, 1), "{path}: {stderr}");
        assert!(stderr.contains(path), "{stderr}");
    }
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o755)).expect("ours");
}

/// After startup with a smaller job limit, all larger jobs, and those after them in the file, would
/// be lost without a line in the log.
///
/// Proves: B14.
#[test]
fn a_smaller_job_limit_keeps_larger_jobs() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &[]);
    let mut client = Peer::of(&daemon);
    let sizes = [1000, 5, 60_000, 7];
    let ids = sizes.map(|size| client.put(0, 0, &vec![b'x'; size]));
    end(daemon, libc::SIGKILL);
    for _ in 0..2 {
        let daemon = folder.serve(OURS, &["-z", "10"]);
        let mut client = Peer::of(&daemon);
        for (id, size) in ids.into_iter().zip(sizes) {
            assert_eq!(client.look(id).expect("the job").body.len(), size);
        }
        assert_eq!(client.0.put(0, 0, 60, b"12345678901").expect("a reply"), "JOB_TOO_BIG");
        assert_eq!(client.take(ids[2]).len(), 60_000, "it can be worked off");
        assert_eq!(complaints(&daemon), "");
        end(daemon, libc::SIGKILL);
    }
}

/// After a restart a new job would get an id that a client still holds for a deleted job.
///
/// Proves: B16.
#[test]
fn ids_never_come_back() {
    let folder = Folder::new();
    let mut next = 1;
    for round in 0..4 {
        let daemon = folder.serve(OURS, &["-s", "4096"]);
        let mut client = Peer::of(&daemon);
        for number in 0..100 {
            let id = client.put(0, 0, &[b'x'; 300]);
            // After a kill, as many ids are skipped as a segment can have jobs.
            let skipped_max = if round > 0 && number == 0 { 4096 / 87 } else { 0 };
            assert!((next..=next + skipped_max).contains(&id), "{id}, and not {next}");
            client.tell(&format!("delete {id}"), "DELETED");
            next = id + 1;
        }
        end(daemon, libc::SIGKILL);
        // The next run executes no command.
        end(folder.serve(OURS, &["-s", "4096"]), libc::SIGTERM);
    }
}

/// Clients would be refused while the binlog is read, instead of waiting.
///
/// Proves: Q20.
#[test]
fn clients_wait_while_the_log_is_read() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &[]);
    let id = Peer::of(&daemon).put(0, 0, b"x");
    end(daemon, libc::SIGTERM);
    // A pipe in place of the lock file holds up the daemon before it reads the binlog, because
    // opening a pipe for writing needs a reader.
    let lock = folder.path().join("lock");
    fs::remove_file(&lock).expect("the old one");
    let path = lock.to_str().expect("a plain name");
    if !can_run("mkfifo", &[path]) {
        return skip("there is no mkfifo");
    }
    let daemon = folder.serve(OURS, &["-V"]);
    let mut client = Peer::of(&daemon);
    client.0.send(format!("peek {id}\r\n")).expect("the connection takes it");
    assert!(!daemon.stderr().contains("job from"), "{}", daemon.stderr());
    let reader = fs::OpenOptions::new().read(true).open(&lock).expect("the daemon writes");
    assert_eq!(client.0.line().expect("a reply"), format!("FOUND {id} 1"));
    assert!(daemon.stderr().contains("read 1 job from 1 binlog file"), "{}", daemon.stderr());
    drop(reader);
}

/// After a restart, a delay would begin anew, or would not include the time for which the daemon
/// was down.
///
/// Proves: Q25.
#[test]
fn time_goes_on_while_the_daemon_is_down() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &[]);
    let mut client = Peer::of(&daemon);
    let soon = client.put(0, 1, b"soon");
    let far = client.put(0, FAR, b"far");
    let released = client.put(0, 0, b"released");
    client.take(released);
    client.tell(&format!("release {released} 0 1"), "RELEASED");
    let began = Instant::now();
    let before = client.look(far).expect("a job");
    end(daemon, libc::SIGKILL);
    thread::sleep(Duration::from_millis(1100));
    let daemon = folder.serve(OURS, &[]);
    let mut client = Peer::of(&daemon);
    for id in [soon, released] {
        assert_eq!(client.look(id).expect("a job").text("state"), "ready", "its time has passed");
    }
    let after = client.look(far).expect("a job");
    assert_eq!(after.text("state"), "delayed");
    let passed = before.time_left - after.time_left;
    assert!((1..=began.elapsed().as_secs() + 2).contains(&passed), "{before:?} {after:?}");
    assert!(after.age > before.age);
}

/// If an operator removes a file by hand, the jobs of other files would be lost as well.
///
/// Proves: Q24.
#[test]
fn a_file_removed_by_hand_takes_only_its_own_jobs() {
    let folder = Folder::new();
    let start = || folder.serve(OURS, &["-s", "4096"]);
    let daemon = start();
    let mut client = Peer::of(&daemon);
    let ids: Vec<_> = (0..20).map(|_| client.put(0, 0, &[b'x'; 1000])).collect();
    let files: Vec<_> = ids.iter().map(|&id| client.look(id).expect("a job").file).collect();
    let remove = |number: u64| {
        fs::remove_file(folder.path().join(format!("binlog.{number}"))).expect("a file");
    };
    // While the daemon is running, the jobs are in memory, and nothing changes.
    remove(files[0]);
    for &id in &ids[..10] {
        client.tell(&format!("delete {id}"), "DELETED");
    }
    assert_eq!(complaints(&daemon), "");
    end(daemon, libc::SIGKILL);
    // Then a file is removed while the daemon is not running.
    let removed = files[12];
    remove(removed);
    let daemon = start();
    let mut client = Peer::of(&daemon);
    for (&id, &file) in ids.iter().zip(&files).skip(10) {
        assert_eq!(client.look(id).is_some(), file != removed, "job {id} in {file}");
    }
    assert!(ids[..10].iter().all(|&id| client.look(id).is_none()));
}
