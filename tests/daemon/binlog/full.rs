//! A full disk, and a disk on which every write fails; both work again later.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread, {fs, io},
};

use ct::{Daemon, LONG, Prng, eventually, skip};

use super::growth::{CLIENTS, put_and_delete};
use crate::harness::{Folder, OURS, Peer, Seen, can_run, end, run_to_its_end, start};

/// A small file system in memory that only its daemons see, so that it vanishes with these. Root is
/// not needed if the system allows users to create namespaces.
#[derive(Debug)]
struct SmallDisk {
    /// The process that keeps the file system until the process's standard input ends.
    keeper: Child,
    folder: Folder,
}

const UNSHARE: [&str; 2] = ["--map-root-user", "--mount"];

impl SmallDisk {
    /// Makes a file system of `size` bytes. Returns `None`, and reports the test as skipped, if the
    /// system does not allow that.
    fn new(size: u64) -> Option<Self> {
        let folder = Folder::new();
        let mount = format!("mount -t tmpfs -o size={size} tmpfs {}", folder.text());
        if !can_run("unshare", &[&UNSHARE[..], &["sh", "-c", &mount]].concat()) {
            skip("no file system can be mounted here, not even in a name space of its own");
            return None;
        }
        let script = format!("{mount} && echo mounted && exec cat");
        let keeper = Command::new("unshare")
            .args(UNSHARE)
            .args(["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut keeper = keeper.expect("it has just been done");
        let mut word = [0; 8];
        let output = keeper.stdout.as_mut().expect("piped");
        io::Read::read_exact(output, &mut word).expect("it has just been done");
        assert_eq!(word, *b"mounted\n");
        Some(Self { keeper, folder })
    }

    fn serve(&self, flags: &[&str]) -> (Daemon, String) {
        let keeper = self.keeper.id().to_string();
        let mut all = vec!["--target", &*keeper, "--user", "--mount", "--preserve-credentials"];
        all.extend([OURS, "-V", "-l", "127.0.0.1", "-p", "0", "-b", self.folder.text()]);
        all.extend(flags);
        start("nsenter", &all)
    }

    /// A file that is not part of the binlog.
    fn ballast(&self) -> PathBuf {
        let root = format!("/proc/{}/root", self.keeper.id());
        let inside = self.folder.path().strip_prefix("/").expect("an absolute path");
        Path::new(&root).join(inside).join("ballast")
    }

    /// Writes a file that fills the disk.
    fn fill(&self) {
        let open = fs::OpenOptions::new().append(true).create(true).open(self.ballast());
        let mut ballast = open.expect("a file");
        let full = (0..100_000).find_map(|_| ballast.write_all(&[1; 4096]).err());
        assert_eq!(full.map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
    }

    /// Removes the file that fills the disk.
    fn empty(&self) {
        fs::remove_file(self.ballast()).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // The keeper ends when its input ends.
        let _ = self.keeper.wait();
    }
}

/// A delay that does not end during a test.
const FAR: u32 = 100_000;

/// Puts jobs of a size until there is no space for another, and returns how many.
#[track_caller]
fn put_until_full(client: &mut Peer, size: usize) -> u64 {
    for count in 0..10_000 {
        match &*client.0.put(9, 0, 60, &vec![b'x'; size]).expect("a reply") {
            "OUT_OF_MEMORY" => return count,
            reply => assert!(reply.starts_with("INSERTED "), "{reply}"),
        }
    }
    panic!("the disk is not full");
}

/// Jobs 1 to 20 in all states, more jobs, and then a disk so full that no change fits.
struct FullDisk {
    disk: SmallDisk,
    daemon: Daemon,
    place: String,
    client: Peer,
    /// Holds the jobs 13 to 20.
    worker: Peer,
    last: u64,
}

const FLAGS: [&str; 3] = ["-f0", "-s", "8192"];

impl FullDisk {
    #[track_caller]
    fn new() -> Option<Self> {
        let disk = SmallDisk::new(512 * 1024)?;
        let (daemon, place) = disk.serve(&FLAGS);
        let (mut client, mut worker) = (Peer::at(&place), Peer::at(&place));
        for id in 1..=20 {
            let delay = if (5..=8).contains(&id) { FAR } else { 0 };
            assert_eq!(client.put(5, delay, &[b'x'; 200]), id);
        }
        (9..=20).for_each(|id| drop(worker.take(id)));
        (9..=12).for_each(|id| worker.tell(&format!("bury {id} 5"), "BURIED"));
        disk.fill();
        let mut last = 20;
        for size in [1000, 100, 10, 0] {
            last += put_until_full(&mut client, size) + 1;
        }
        // There may be space for one more change of another job.
        let mut is_full = false;
        for id in 21..last {
            if client.ask(&format!("reserve-job {id}")) == "NOT_FOUND" {
                continue; // The id of a put that was refused.
            }
            client.0.line().expect("a body");
            match &*client.ask(&format!("release {id} 6 {FAR}")) {
                "RELEASED" => {}
                "OUT_OF_MEMORY" => {
                    is_full = true;
                    break;
                }
                reply => panic!("{reply}"),
            }
        }
        assert!(is_full, "the disk has room for every change");
        Some(Self { disk, daemon, place, client, worker, last })
    }
}

#[track_caller]
fn state(client: &mut Peer, id: u64) -> Option<String> {
    client.look(id).map(|seen| seen.text("state").to_owned())
}

/// On a full disk, a job could never be returned, or a change that is not written would be
/// acknowledged.
///
/// Proves: B9, B11, E26.
#[test]
fn on_a_full_disk_what_is_refused_changes_nothing() {
    let Some(FullDisk { disk, daemon, mut client, mut worker, last, .. }) = FullDisk::new() else {
        return;
    };
    let warning =
        "no disk space for another binlog file; jobs are refused once the present files are full";
    assert_eq!(daemon.stderr().matches(warning).count(), 1, "{}", daemon.stderr());

    assert_eq!(client.0.put(0, 0, 60, b"x").expect("a reply"), "OUT_OF_MEMORY");
    assert_eq!(client.look(last + 1), None, "a put that is refused leaves nothing");
    worker.tell(&format!("release 13 1 {FAR}"), "OUT_OF_MEMORY");
    worker.tell("touch 13", "TOUCHED");
    worker.tell("bury 14 1", "INTERNAL_ERROR");
    worker.tell("touch 14", "TOUCHED");
    client.tell("kick-job 9", "INTERNAL_ERROR");
    assert_eq!(state(&mut client, 9).as_deref(), Some("buried"));
    client.tell("kick-job 5", "INTERNAL_ERROR");
    assert_eq!(state(&mut client, 5).as_deref(), Some("delayed"));
    let buried =
        |client: &mut Peer| client.value::<u32>("stats-tube default", "current-jobs-buried");
    assert_eq!(buried(&mut client), 4);
    let moved = client.ask("kick 4294967295");
    let moved: u32 = moved.strip_prefix("KICKED ").expect("kicked").parse().expect("a number");
    assert_eq!(moved, 4 - buried(&mut client), "those that were counted have moved");
    // A worker must be able to return a job unchanged.
    worker.tell("release 15 3 0", "RELEASED");
    let seen = client.look(15).expect("the job");
    assert_eq!((seen.text("state"), seen.number("pri")), ("ready", 3));
    for id in [1, 5, 12] {
        client.tell(&format!("delete {id}"), "DELETED");
    }
    worker.tell("delete 16", "DELETED");
    // Every job can be deleted: reserved jobs by their worker, others by any client.
    for id in [13, 14, 17, 18] {
        worker.tell(&format!("delete {id}"), "DELETED");
    }
    for id in [2, 3, 4, 6, 7, 8, 9, 10, 11, 15] {
        client.tell(&format!("delete {id}"), "DELETED");
    }
    // When there is space again, everything works again without a restart.
    disk.empty();
    eventually("puts are taken again", || {
        client.0.put(0, 0, 60, b"x").expect("a reply").starts_with("INSERTED ")
    });
    worker.tell("bury 19 0", "BURIED");
    worker.tell(&format!("release 20 0 {FAR}"), "RELEASED");
    client.tell("kick 1", "KICKED 1");
    eventually("it says so", || {
        daemon.stderr().contains("the disk has space for the binlog again")
    });
}

/// The daemon would not start on a full disk, and without a daemon no space could be freed.
///
/// Proves: E26, B9, B10.
#[test]
fn a_restart_on_a_full_disk_finds_every_job_and_lets_them_go() {
    let Some(mut full) = FullDisk::new() else { return };
    let before = full.client.look_through(1..full.last + 1);
    full.worker.tell("release 15 3 0", "RELEASED");
    end(full.daemon, libc::SIGKILL);

    // The space that is freed at startup is soon used again, but not before the daemon serves.
    let (daemon, place) = full.disk.serve(&FLAGS);
    let mut client = Peer::at(&place);
    client.tell("use default", "USING default");
    full.disk.fill();
    put_until_full(&mut client, 0);
    let after = client.look_through(1..full.last + 1);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    let state = |seen: &Seen| seen.text("state").to_owned();
    for (id, job) in &before {
        let expected = if state(job) == "reserved" { "ready".into() } else { state(job) };
        assert_eq!(state(&after[id]), expected, "job {id}");
        assert!(job.body == after[id].body, "job {id}");
    }
    for id in before.keys() {
        client.tell(&format!("delete {id}"), "DELETED");
    }
    end(daemon, libc::SIGKILL);
    let (_daemon, place) = full.disk.serve(&FLAGS);
    let mut client = Peer::at(&place);
    let left = client.look_through(1..full.last + 1);
    assert!(left.is_empty(), "deleted jobs are back: {:?}", left.keys());
    client.put(0, 0, b"x");
    assert_ne!(place, full.place);
}

/// If no segment of the usual size fits on the disk, changes would be refused, although a smaller
/// segment would fit.
///
/// Proves: B9, E26.
#[test]
fn where_no_whole_segment_fits_a_small_one_serves() {
    let Some(disk) = SmallDisk::new(1024 * 1024) else { return };
    let (daemon, place) = disk.serve(&["-f0", "-s", "65536"]);
    let count = put_until_full(&mut Peer::at(&place), 20_000);
    end(daemon, libc::SIGTERM);
    // Now segments are larger than the free space of the disk.
    let (daemon, place) = disk.serve(&["-f0", "-s", "524288"]);
    let mut client = Peer::at(&place);
    for id in 1..=count {
        client.tell(&format!("delete {id}"), "DELETED");
    }
    let put = |client: &mut Peer| client.0.put(0, 0, 60, b"x").expect("a reply");
    eventually("there is room", || put(&mut client).starts_with("INSERTED"));
    drop(daemon);
}

/// If the disk is full of records of deleted jobs, new jobs would be refused, although the queue is
/// empty.
///
/// Proves: B9.
#[test]
fn garbage_makes_room_where_no_whole_segment_fits() {
    let Some(disk) = SmallDisk::new(768 * 1024) else { return };
    let (_daemon, place) = disk.serve(&["-F", "-s", "524288"]);
    let mut client = Peer::at(&place);
    let mut put = |body: &[u8]| {
        let reply = client.0.put(0, 0, 60, body).expect("a reply");
        let id = reply.strip_prefix("INSERTED ");
        if let Some(id) = id {
            client.tell(&format!("delete {id}"), "DELETED");
        }
        id.is_some()
    };
    let body = vec![b'x'; 30_000];
    // Ten times the capacity of the disk is written, even if some puts are refused.
    for _ in 0..10 * 768 / 30 {
        eventually("there is room", || put(&body));
    }
}

/// After an operator has emptied a full queue, jobs would still be refused, for up to a second.
///
/// Proves: B9, E26.
#[test]
fn space_that_deletes_free_is_used_at_once() {
    let Some(disk) = SmallDisk::new(1024 * 1024) else { return };
    let (_daemon, place) = disk.serve(&["-F", "-s", "65536"]);
    let mut client = Peer::at(&place);
    let count = put_until_full(&mut client, 4000);
    for id in 1..=count - 20 {
        client.tell(&format!("delete {id}"), "DELETED");
    }
    for nth in 0..200 {
        let reply = client.0.put(0, 0, 60, &[b'x'; 100]).expect("a reply");
        assert!(reply.starts_with("INSERTED "), "{nth}: {reply}");
    }
}

/// Clients that put jobs and delete them would be refused on a disk on which the original serves
/// them: at most some 10 MB of jobs exist at a time, and fifty times as much is written.
///
/// Proves: B7, B9.
#[test]
fn a_disk_of_200_mb_takes_jobs_for_ever() {
    let Some(disk) = SmallDisk::new(200_000_000) else { return };
    for flags in [&["-F", "-s", "1048576"][..], &["-s", "65536"]] {
        let (_daemon, place) = disk.serve(flags);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| put_and_delete(&place, 60_000, 50));
            }
        });
    }
}

/// Starts a daemon whose writes can be made to fail by a limit on the size of its files.
fn start_limitable(folder: &Folder, flags: &[&str]) -> Option<(Daemon, String)> {
    if !can_run("prlimit", &["--fsize=1000000", "true"]) {
        skip("prlimit is not installed (Debian's package util-linux)");
        return None;
    }
    let script = r#"trap "" XFSZ; exec "$0" "$@""#;
    let arguments = ["-c", script, OURS, "-V", "-l", "127.0.0.1", "-p", "0", "-b", folder.text()];
    Some(start("/bin/sh", &[&arguments[..], flags].concat()))
}

fn limit(daemon: &Daemon, size: &str) {
    let pid = daemon.pid().to_string();
    assert!(can_run("prlimit", &["--pid", &pid, &format!("--fsize={size}:unlimited")]));
}

/// After a failed write, a job would be in two states at once, or would be acknowledged although it
/// is not written.
///
/// Proves: B2, E27.
#[test]
fn after_a_failed_write_nothing_is_acknowledged_until_it_works_again() {
    let folder = Folder::new();
    let Some((daemon, place)) = start_limitable(&folder, &[]) else { return };
    let (mut client, mut worker) = (Peer::at(&place), Peer::at(&place));
    for id in 1..=4 {
        assert_eq!(client.put(0, 0, b"x"), id);
    }
    worker.take(1);
    worker.take(2);
    limit(&daemon, "0");
    // It is unknown how much was written, so there is no reply.
    client.0.send("put 0 0 60 1\r\nx\r\n").expect("it is taken");
    assert_eq!(client.0.rest().expect("an end"), b"");
    let mut client = Peer::at(&place);
    assert_eq!(client.0.put(0, 0, 60, b"x").expect("a reply"), "INTERNAL_ERROR");
    for refused in ["bury 1 0", "release 1 0 0", "release 1 0 10", "delete 1"] {
        worker.tell(refused, "INTERNAL_ERROR");
    }
    worker.tell("touch 1", "TOUCHED");
    client.tell("delete 3", "INTERNAL_ERROR");
    client.tell("reserve-with-timeout 0", "TIMED_OUT");
    assert_eq!(state(&mut client, 3).as_deref(), Some("ready"), "reads go on");
    limit(&daemon, "unlimited");
    eventually("it works again", || worker.ask("bury 1 7") == "BURIED");
    client.tell("delete 3", "DELETED");
    worker.tell("delete 2", "DELETED");
    let id = client.put(0, 0, b"later");
    end(daemon, libc::SIGKILL);
    let daemon = folder.serve(OURS, &[]);
    let mut client = Peer::of(&daemon);
    let jobs = client.look_through(1..id + 1);
    // The job whose put got no reply may exist.
    let states: Vec<_> = jobs.iter().filter(|&(&id, _)| id != 5).collect();
    let states: Vec<_> = states.iter().map(|&(&id, seen)| (id, seen.text("state"))).collect();
    assert_eq!(states, [(1, "buried"), (4, "ready"), (id, "ready")]);
}

/// A probe would report a daemon that refuses every change as healthy, and a proxy would keep using
/// it.
#[test]
fn a_binlog_that_has_failed_is_seen_from_outside() {
    let folder = Folder::new();
    let Some((daemon, place)) = start_limitable(&folder, &[]) else { return };
    let state = || Peer::at(&place).value::<String>("capabilities", "state");
    let (host, port) = place.split_once(':').expect("an address");
    let ping = || run_to_its_end(OURS, &["-l", host, "-p", port, "--ping"]);
    assert_eq!((state(), ping().code), ("serving".into(), 0));
    limit(&daemon, "0");
    Peer::at(&place).0.send("put 0 0 60 1\r\nx\r\n").expect("it is taken");
    eventually("it has failed", || state() == "binlog-failed");
    let ended = ping();
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("its binlog has failed"), "{}", ended.stderr);
    limit(&daemon, "unlimited");
    eventually("it works again", || state() == "serving" && ping().code == 0);
}

/// No other daemon would take over from a daemon whose disk is gone.
#[test]
fn a_daemon_ends_when_its_binlog_has_failed_for_as_long_as_it_may() {
    for (seconds, recovers) in [("0", false), ("1", false), ("3600", true)] {
        let folder = Folder::new();
        let flags = ["--exit-on-binlog-failure", seconds];
        let Some((mut daemon, place)) = start_limitable(&folder, &flags) else { return };
        let id = Peer::at(&place).put(0, 0, b"x");
        limit(&daemon, "0");
        let mut client = Peer::at(&place);
        client.0.send("put 0 0 60 1\r\nx\r\n").expect("it is taken");
        assert_eq!(client.0.rest().expect("an end"), b"", "it is not acknowledged");
        if recovers {
            limit(&daemon, "unlimited");
            let mut client = Peer::at(&place);
            eventually("it works again", || client.ask(&format!("delete {id}")) == "DELETED");
            continue;
        }
        let status = daemon.wait_exit(LONG).expect("it ends");
        assert_eq!(status.code(), Some(11), "{}", daemon.stderr());
        assert!(daemon.stderr().contains("--exit-on-binlog-failure"), "{}", daemon.stderr());
        let daemon = folder.serve(OURS, &[]);
        assert_eq!(Peer::of(&daemon).look(id).expect("the job").body, b"x");
    }
}

/// A daemon that was stopped during compaction on a full disk would lack one page when it starts
/// again, for a segment with space for every delete. The daemon would refuse every change, and no
/// client could delete a job to free space.
#[test]
fn a_restart_on_a_disk_that_the_log_has_filled_leaves_room_for_deletes() {
    let mut prng = Prng::new(5);
    for size in (200..1000).step_by(60) {
        let Some(disk) = SmallDisk::new(size * 1024) else { return };
        let (mut daemon, mut place) = disk.serve(&["-F"]);
        let mut client = Peer::at(&place);
        let (mut jobs, mut refused) = (Vec::new(), 0);
        while refused < 20 {
            let reply = client.0.put(0, 0, 60, b"0123456789").expect("a reply");
            match reply.strip_prefix("INSERTED ") {
                Some(id) => jobs.push(id.to_owned()),
                None => refused += 1,
            }
            if !jobs.is_empty() && prng.chance(9, 20) {
                let nth = usize::try_from(prng.below(jobs.len() as u64)).expect("small");
                client.tell(&format!("delete {}", jobs.swap_remove(nth)), "DELETED");
            }
        }
        for restart in 1..=3 {
            end(daemon, libc::SIGKILL);
            (daemon, place) = disk.serve(&["-F"]);
            client = Peer::at(&place);
            let Some(id) = jobs.pop() else { break };
            let reply = client.0.command(&format!("delete {id}")).expect("a reply");
            assert_eq!(reply, "DELETED", "{size} KiB, restart {restart}: {}", daemon.stderr());
        }
        end(daemon, libc::SIGKILL);
    }
}
