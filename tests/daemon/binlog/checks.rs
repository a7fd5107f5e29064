//! `--check-binlog`: whatever keeps a daemon from starting is reported, and nothing is changed.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, Stdio},
};

use ct::{Daemon, eventually, skip};

use crate::harness::{Folder, OURS, Peer, can_run, end, ends, fails_to_start};

/// What a shell does to a directory with a job, and the exit status of a check afterwards. A daemon
/// starts there unless the status is 10.
const CASES: &[(&str, i32)] = &[
    (":", 0),
    ("rm lock", 0),
    ("rm lock && mkdir lock", 10),
    ("rm lock && ln -s nowhere lock", 10),
    ("mv lock other && ln -s other lock", 10),
    ("chmod 0 lock", 10),
    ("chmod 200 lock", 10),
    ("chmod 400 lock", 10),
    ("chmod 555 .", 10),
    ("chmod 666 .", 10),
    ("chmod 333 .", 10),
    ("rm * && chmod 555 .", 10),
    ("chmod 0 binlog.1", 10),
    ("cp binlog.1 binlog.2146435070", 1),
    ("cp binlog.1 binlog.2146435071", 10),
    ("cp binlog.1 binlog.2147483647", 10),
    ("cp binlog.1 binlog.4294967295", 10),
    (": > binlog.2147483647.damaged", 10),
    ("mkdir binlog.2147483647", 0),
    ("mkdir binlog.2", 0),
    ("mkdir spare.1", 0),
    (": > spare.4294967295", 0),
    ("ln -s nowhere binlog.3", 0),
    ("ln -s binlog.3 binlog.3", 10),
    ("mkfifo binlog.3", 0),
    ("head -c 4 binlog.1 > binlog.3 && echo damage >> binlog.3", 1),
    (r"printf '\010\000\000\000' > binlog.3 && echo version 8 >> binlog.3", 10),
];

/// Makes a directory with a job.
fn filled() -> Folder {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &[]);
    Peer::of(&daemon).put(0, 0, b"x");
    end(daemon, libc::SIGKILL);
    folder
}

/// The entries of a directory that root can read, with modes, sizes and times of changes.
fn entries(folder: &Path) -> BTreeMap<String, (u32, u64, [i64; 2])> {
    let entries = fs::read_dir(folder).expect("a directory").flatten().map(|entry| {
        let of = entry.metadata().expect("it is there");
        let facts = (of.mode(), of.size(), [of.mtime_nsec(), of.ctime_nsec()]);
        (entry.file_name().into_string().expect("a plain name"), facts)
    });
    entries.collect()
}

/// A check would find no fault in a directory that the daemon refuses at its next start.
#[test]
fn a_check_reports_whatever_prevents_a_start() {
    // Root may read every file, so the check runs as another user.
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", OURS];
    if !can_run("setpriv", &[&nobody[..], &["-v"]].concat()) {
        return skip("the test cannot become another user");
    }
    let run = |flags: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(nobody).args(flags).stdout(Stdio::null());
        command
    };
    for &(script, wanted) in CASES {
        let folder = filled();
        let prepare = format!("cd \"$0\" && chown -R 65534:65534 . && {script}; chown -hR 65534 .");
        assert!(can_run("sh", &["-c", &prepare, folder.text()]), "{script}");
        let before = entries(folder.path());
        let (status, stderr) = ends(&mut run(&["--check-binlog", folder.text()]));
        assert_eq!(status, wanted, "{script}: {stderr}");
        assert_eq!(stderr.lines().count(), usize::from(wanted == 10), "{script}: {stderr}");
        assert_eq!(entries(folder.path()), before, "{script}");
        let flags = ["-l", "127.0.0.1", "-p", "0", "-b", folder.text()];
        let mut daemon = Daemon::spawn_command(&mut run(&flags)).expect("it starts");
        let mut ended = None;
        eventually("it has read the binlog, or ends", || {
            ended = daemon.exit_status().and_then(|status| status.code());
            ended.is_some() || daemon.stderr().contains("beanstalkd: read ")
        });
        assert_eq!(ended, (wanted == 10).then_some(10), "{script}: {}", daemon.stderr());
    }
}

/// A check would wait for ever, or release the lock of the daemon that is running.
#[test]
fn a_check_neither_waits_for_the_lock_nor_disturbs_its_holder() {
    let folder = filled();
    let check = || {
        let mut command = Command::new(OURS);
        ends(command.args(["--check-binlog", folder.text()]).stdout(Stdio::null())).0
    };
    let daemon = folder.serve(OURS, &[]);
    // The daemon listens before it has the lock.
    Peer::of(&daemon).check();
    assert_eq!(check(), 0);
    let (status, stderr) = fails_to_start(OURS, &["-b", folder.text()]);
    assert!(status == 10 && stderr.contains("another process holds the lock"), "{stderr}");
    Peer::of(&daemon).put(0, 0, b"y");
    end(daemon, libc::SIGTERM);
    let lock = folder.path().join("lock");
    fs::remove_file(&lock).expect("ours");
    assert!(can_run("mkfifo", &[lock.to_str().expect("a plain name")]));
    assert_eq!(check(), 10, "a start would wait for a reader");
}
