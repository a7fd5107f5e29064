//! The original can continue with a directory of our daemon, and our daemon with the original's.
//!
//! The tests compare what a client sees after a restart: `stats-job` and the body of every job. Two
//! differences are known. The original does not write some changes, so its binlog is compared with
//! the state after its own restart. The original also counts one more bury for each buried job.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use ct::Daemon;

use crate::harness::{Folder, OURS, Peer, Seen, complaints, end, original};

use super::format;

type Jobs = BTreeMap<u64, Seen>;

/// Jobs in every state, with everything that happens to them; ids count from 1. The last word of a
/// `put` names its body. Delays end in more than a century, or before the tests look.
const STORY: &str = "
use first
put 5 0 60 plain
put 1 0 120 lines
put 4294967295 0 1 empty
put 0 0 4294967295 large
use second
put 7 4000000000 60 plain
put 7 1 60 lines
put 1000 0 60 buried
put 1001 0 60 buried
put 1002 0 60 buried
take 8
bury 8 3
take 7
bury 7 4
take 9
bury 9 4294967295
put 0 0 60 released
take 10
release 10 17 0
put 0 0 60 released
take 11
release 11 18 4000000000
put 0 4000000000 60 kicked
kick-job 12
put 0 0 60 kicked
take 13
bury 13 5
kick-job 13
put 0 0 60 deleted
delete 14
put 0 4000000000 60 deleted
delete 15
put 0 0 60 deleted
take 16
bury 16 0
delete 16
put 0 0 60 deleted
take 17
delete 17
put 1 0 60 held
take 18
touch 18
use a-tube+with/all;the.marks$that_a(name)may-have
put 2 4000000000 60 taken
take 19
release 19 2 0
put 2 0 60 taken
take 20
bury 20 6
take 20
release 20 9 0
";

/// More jobs, most of which are deleted, so that there are several segments with gaps.
const FILLERS: u64 = 60;

fn story() -> String {
    let mut story = STORY.trim().to_owned();
    for id in 21..21 + FILLERS {
        write!(story, "\nput {} 0 60 filler", id % 7).expect("a string grows");
    }
    for id in (21..21 + FILLERS).filter(|id| id % 3 > 0) {
        write!(story, "\ndelete {id}").expect("a string grows");
    }
    story
}

const NEXT_ID: u64 = 21 + FILLERS;

/// The body that a word of the story names.
fn body(word: &str) -> Vec<u8> {
    match word {
        "empty" => Vec::new(),
        "lines" => b"two\r\nlines\0and\r\n".to_vec(),
        "large" => (0..60_000u32).map(|at| (at % 251).to_le_bytes()[0]).collect(),
        word => word.repeat(20).into_bytes(),
    }
}

/// The bodies of the story's jobs, by id.
fn bodies() -> BTreeMap<u64, Vec<u8>> {
    let story = story();
    let puts = story.lines().filter(|line| line.starts_with("put "));
    let words = puts.map(|line| line.rsplit(' ').next().expect("a word"));
    (1..).zip(words.map(body)).collect()
}

/// Sends the story to a daemon. Jobs held at its end are held until the client is dropped.
#[track_caller]
fn tell(daemon: &Daemon) -> Peer {
    let mut client = Peer::of(daemon);
    for line in story().lines() {
        let mut words = line.split(' ');
        match words.next().expect("a word") {
            "put" => {
                let [pri, delay, ttr] =
                    [(); 3].map(|()| words.next().expect("a number").parse().expect("a number"));
                let body = body(words.next().expect("a word"));
                let reply = client.0.put(pri, delay, ttr, &body).expect("a reply");
                assert!(reply.starts_with("INSERTED "), "{line}: {reply}");
            }
            "take" => drop(client.take(words.next().expect("an id").parse().expect("an id"))),
            "use" => client.tell(line, &line.replace("use", "USING")),
            "bury" => client.tell(line, "BURIED"),
            "release" => client.tell(line, "RELEASED"),
            "kick-job" => client.tell(line, "KICKED"),
            "delete" => client.tell(line, "DELETED"),
            "touch" => client.tell(line, "TOUCHED"),
            word => panic!("{word}?"),
        }
    }
    client
}

/// All jobs that a program finds in a directory, and the directory afterwards. The program must log
/// no warning.
#[track_caller]
fn reopened(program: &Path, folder: &Folder) -> Jobs {
    let daemon = folder.serve(program, &["-s", "4096"]);
    let jobs = Peer::of(&daemon).look_through(1..NEXT_ID + 100);
    assert_eq!(complaints(&daemon), "", "{}", program.display());
    end(daemon, libc::SIGTERM);
    jobs
}

fn add(job: &mut Seen, key: &str, change: i64) {
    let count = i64::from(job.number(key)) + change;
    job.set(key, &count.to_string());
}

/// Converts these jobs to those that the original has after its startup.
fn as_the_original_counts(mut jobs: Jobs) -> Jobs {
    for job in jobs.values_mut().filter(|job| job.text("state") == "buried") {
        add(job, "buries", 1);
    }
    jobs
}

/// Converts jobs to those that our daemon has after a restart.
fn after_our_restart(mut jobs: Jobs) -> Jobs {
    for job in jobs.values_mut().filter(|job| job.text("state") == "reserved") {
        job.set("state", "ready");
        // The count may be lower: the job's last record was written before the last reserve.
        add(job, "reserves", -1);
    }
    jobs
}

/// Fails unless `later` has the same jobs as `earlier`, after some time.
#[track_caller]
fn assert_same(earlier: &Jobs, later: &Jobs) {
    let ids = |jobs: &Jobs| jobs.keys().copied().collect::<Vec<_>>();
    assert_eq!(ids(earlier), ids(later));
    for (id, job) in earlier {
        let other = &later[id];
        assert_eq!(job.stats, other.stats, "job {id}");
        assert!(job.body == other.body, "job {id} has another body");
        assert!(job.age <= other.age, "job {id}: {job:?} {other:?}");
        if job.text("state") == "delayed" {
            assert!(job.time_left >= other.time_left, "job {id}: {job:?} {other:?}");
            // However much time passes between the two readings, the age gains as much as the time
            // left loses.
            let due = |job: &Seen| job.age + job.time_left;
            assert!(due(job).abs_diff(due(other)) <= 2, "job {id}: {job:?} {other:?}");
        }
    }
}

/// Returns all jobs that our daemon finds in a directory. Then the original must find the same jobs
/// in a copy. The original comes second, so no job is younger there.
#[track_caller]
fn read_by_both(original: &Path, folder: &Folder) -> Jobs {
    let copy = Folder::copy_of(folder.path());
    let ours = reopened(OURS.as_ref(), folder);
    assert_same(&as_the_original_counts(ours.clone()), &reopened(original, &copy));
    ours
}

/// Waits until a delay of a second has ended, so that two readings find the same state, however far
/// apart they are.
fn wait_for_the_short_delay() {
    thread::sleep(Duration::from_millis(1100));
}

/// Takes out all jobs of a tube in the order in which they come: ready jobs by a worker, then
/// buried jobs by a kick each.
#[track_caller]
fn drain(client: &mut Peer, tube: &str) -> Vec<u64> {
    client.tell(&format!("use {tube}"), &format!("USING {tube}"));
    client.tell(&format!("watch {tube}"), "WATCHING 2");
    let mut order = Vec::new();
    loop {
        match client.reserve_now() {
            Some(id) => {
                client.tell(&format!("delete {id}"), "DELETED");
                order.push(id);
            }
            None if client.ask("peek-buried") == "NOT_FOUND" => break,
            None => {
                client.0.line().expect("the body of the job");
                client.tell("kick 1", "KICKED 1");
            }
        }
    }
    client.tell(&format!("ignore {tube}"), "WATCHING 1");
    order
}

/// The jobs in an original's directory would be lost or changed, and operators would have to empty
/// their queues before they switch.
///
/// Proves: Q24, B12, B13.
#[test]
fn what_the_original_wrote_opens_here_and_goes_back() {
    let Some(original) = original() else { return };
    let folder = Folder::new();
    let daemon = folder.serve(&original, &["-s", "4096"]);
    let client = tell(&daemon);
    end(daemon, libc::SIGKILL);
    drop(client);
    wait_for_the_short_delay();
    let segments = folder.files().len();
    assert!(segments >= 3, "{:?}", folder.files());

    assert_bodies(&read_by_both(&original, &folder));

    // Our daemon puts and deletes jobs; then the directory goes back to the original.
    let daemon = folder.serve(OURS, &["-s", "4096"]);
    let mut client = Peer::of(&daemon);
    assert_eq!(client.put(3, 0, b"new"), NEXT_ID, "ids go on");
    client.tell("delete 7", "DELETED");
    client.tell("delete 4", "DELETED");
    client.take(1);
    client.tell("release 1 77 4000000000", "RELEASED");
    client.take(8);
    client.tell("release 8 78 0", "RELEASED");
    client.take(2);
    client.tell("bury 2 79", "BURIED");
    client.tell("kick-job 9", "KICKED");
    let before = client.look_through(1..NEXT_ID + 1);
    end(daemon, libc::SIGTERM);
    assert_same(&before, &reopened(OURS.as_ref(), &folder));
    let back = reopened(&original, &folder);
    assert_same(&as_the_original_counts(before), &back);

    // The original puts and deletes jobs; then the directory comes back to our daemon.
    let daemon = folder.serve(&original, &["-s", "4096"]);
    let mut client = Peer::of(&daemon);
    client.put(3, 0, b"newer");
    client.tell("delete 1", "DELETED");
    client.take(9);
    client.tell("bury 9 80", "BURIED");
    end(daemon, libc::SIGKILL);
    read_by_both(&original, &folder);
}

/// The original would lose or change jobs that this daemon has written, and operators could not go
/// back.
///
/// Proves: Q24, B12.
#[test]
fn what_we_wrote_opens_in_the_original_and_comes_back() {
    let Some(original) = original() else { return };
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-s", "4096"]);
    let mut client = tell(&daemon);
    let before = after_our_restart(client.look_through(1..NEXT_ID));
    end(daemon, libc::SIGKILL);
    assert_bodies(&before);
    wait_for_the_short_delay();
    let ours = read_by_both(&original, &folder);
    // This delay had not ended when the jobs were read before.
    let mut before = before;
    before.insert(6, ours[&6].clone());
    assert_same(&before, &ours);

    // The original continues with the directory, and then our daemon continues with it again.
    let daemon = folder.serve(&original, &["-s", "4096"]);
    let mut client = Peer::of(&daemon);
    let id = client.put(0, 0, b"there");
    client.tell("delete 2", "DELETED");
    client.tell("delete 9", "DELETED");
    assert_eq!(complaints(&daemon), "");
    end(daemon, libc::SIGKILL);
    let ours = read_by_both(&original, &folder);
    assert!(ours.contains_key(&id) && !ours.contains_key(&2) && !ours.contains_key(&9));
}

/// An ordinary restart would lose acknowledged jobs, as a restart of the original does, which
/// counts the CR LF of a body towards `-z`, and drops the rest of a file.
///
/// Proves: B35.
#[test]
fn the_largest_bodies_survive_a_restart() {
    const JOBS: usize = 101;
    let left = |writer: &Path, reader: &Path, size: usize| {
        let folder = Folder::new();
        let daemon = folder.serve(writer, &[]);
        let mut client = Peer::of(&daemon);
        client.put(0, 0, &vec![b'x'; size]);
        client.put_many(JOBS - 1, 0);
        end(daemon, libc::SIGTERM);
        let daemon = folder.serve(reader, &[]);
        let left = Peer::of(&daemon).count("stats", "current-jobs-ready");
        end(daemon, libc::SIGTERM);
        left
    };
    let ours = Path::new(OURS);
    for (size, lost) in [(65_533, 0), (65_534, JOBS), (65_535, JOBS)] {
        assert_eq!(left(ours, ours, size), JOBS, "{size}");
        let Some(original) = original() else { continue };
        assert_eq!(left(&original, ours, size), JOBS, "{size}");
        assert_eq!(left(&original, &original, size), JOBS - lost, "{size}");
    }
}

/// After a restart jobs would be reserved and kicked in another order than before.
///
/// Proves: B13.
#[test]
fn order_outlasts_a_restart() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-s", "4096"]);
    let _client = tell(&daemon);
    // The jobs of the second tube: one whose delay has ended and those released and kicked, by
    // priority; then the buried ones in the order in which they were buried.
    let worker = &mut Peer::of(&daemon);
    worker.take(20);
    worker.tell("bury 20 0", "BURIED");
    end(daemon, libc::SIGKILL);
    wait_for_the_short_delay();
    let daemon = folder.serve(OURS, &["-s", "4096"]);
    let mut client = Peer::of(&daemon);
    assert_eq!(drain(&mut client, "first"), [4, 2, 1, 3]);
    assert_eq!(drain(&mut client, "second"), [12, 18, 13, 6, 10, 8, 7, 9]);
    let third = drain(&mut client, "a-tube+with/all;the.marks$that_a(name)may-have");
    assert_eq!(third.first(), Some(&21), "{third:?}");
    assert_eq!(third.last(), Some(&20), "{third:?}");
    end(daemon, libc::SIGTERM);
}

#[track_caller]
fn assert_bodies(jobs: &Jobs) {
    let bodies = bodies();
    for (id, job) in jobs {
        assert!(job.body == bodies[id], "job {id} has another body");
    }
}

// ---- Directories that earlier releases or other programs wrote ----

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/binlog/fixtures").join(name)
}

/// One line per job: its id and its `stats-job`.
fn listing(jobs: &Jobs) -> String {
    let mut text = String::new();
    for (id, job) in jobs {
        let stats: Vec<_> = job.stats.iter().map(|(key, value)| format!("{key}={value}")).collect();
        writeln!(text, "{id}: {}", stats.join(" ")).expect("a string grows");
    }
    text
}

/// Reads the jobs of a fixture, and compares them with its listing.
#[track_caller]
fn read_fixture(name: &str) -> Jobs {
    let folder = Folder::copy_of(&fixture(name));
    fs::remove_file(folder.path().join("jobs.txt")).expect("its listing");
    let jobs = reopened(OURS.as_ref(), &folder);
    let expected = fs::read_to_string(fixture(name).join("jobs.txt")).expect("its listing");
    assert_eq!(listing(&jobs), expected);
    // The records that our daemon has written since are read as well.
    assert_same(&jobs, &reopened(OURS.as_ref(), &folder));
    if let Some(original) = original() {
        let theirs = reopened(&original, &Folder::copy_of(&fixture(name)));
        assert_same(&as_the_original_counts(jobs.clone()), &theirs);
        assert_same(&as_the_original_counts(jobs.clone()), &reopened(&original, &folder));
    }
    jobs
}

/// A directory of the original's release 1.12 would be read as empty, or as other jobs.
///
/// Proves: Q24, Q25, B13.
#[test]
fn a_directory_of_release_1_12_is_read() {
    assert_bodies(&read_fixture("1.12"));
}

/// A directory from before release 1.5 would be refused, or its times would be misread.
///
/// Proves: Q24, Q25.
#[test]
fn a_directory_of_version_5_is_read() {
    let jobs = read_fixture("version-5");
    let bodies: Vec<_> = jobs.values().map(|job| &*job.body).collect();
    assert_eq!(bodies, [&b"ready"[..], b"", b"two\r\nlines\0", b"buried", b"delayed"]);
}

/// A directory could not be read on a machine with another kind of processor.
#[test]
fn a_directory_of_another_processor_is_read() {
    for processor in ["s390x", "x86_64"] {
        assert_bodies(&read_fixture(&format!("2.0-{processor}")));
    }
}

/// Rewrites the fixture of this processor.
#[test]
#[ignore = "it changes the source tree"]
fn write_the_fixture_of_this_processor() {
    write_fixture(&format!("2.0-{}", std::env::consts::ARCH), OURS.as_ref());
}

/// Gives a directory to the daemon by a flag. The daemon must exit, and report this reason.
fn assert_refused(folder: &Folder, flag: &str, reason: &str) {
    let path = folder.path().to_str().expect("a path");
    let output = Command::new(OURS).args(["-l", "127.0.0.1", "-p", "0", flag, path]).output();
    let output = output.expect("the daemon");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(said.contains(&format!("{reason}, and")), "{said}");
}

/// A directory of the original from a machine with another layout would be taken for damaged, and
/// the daemon would start without its jobs.
#[test]
fn a_directory_of_another_layout_is_refused_by_its_name() {
    for (name, machine) in [("1.13-s390x", "a big-endian machine"), ("1.13-i386", "32-bit x86")] {
        let folder = Folder::copy_of(&fixture(name));
        let before = fs::read(folder.path().join("binlog.1")).expect("a segment");
        for flag in ["--check-binlog", "-b"] {
            assert_refused(&folder, flag, &format!("binlog.1: the original wrote it on {machine}"));
        }
        assert_eq!(fs::read(folder.path().join("binlog.1")).expect("a segment"), before);
    }
}

/// If a fork's segment were read, its jobs would disappear, and deleted jobs would come back later.
#[test]
fn a_segment_of_a_later_version_is_refused_by_its_number() {
    let folder = Folder::copy_of(&fixture("1.12"));
    let mut segment = fs::read(folder.path().join("binlog.1")).expect("a segment");
    segment[0] = 8;
    fs::remove_file(folder.path().join("binlog.1")).expect("removed");
    fs::write(folder.path().join("binlog.1"), &segment).expect("written");
    for flag in ["--check-binlog", "-b"] {
        assert_refused(&folder, flag, "binlog.1: its version is 8");
    }
    assert_eq!(fs::read(folder.path().join("binlog.1")).expect("a segment"), segment);
}

/// A segment that begins with short records, after jobs were deleted, would not be recognised.
#[test]
fn a_segment_of_x86_that_begins_with_short_records_is_refused() {
    let whole = fs::read(fixture("1.13-i386").join("binlog.1")).expect("a segment");
    let (version, records) = whole.split_at(4);
    let [update, delete] = [354, 430].map(|at| &records[at..at + 76]);
    let full = &records[..89];
    let beginnings: [&[&[u8]]; 5] =
        [&[delete], &[update], &[delete, update, full], &[delete, delete], &[delete, full]];
    for beginning in beginnings {
        let folder = Folder::new();
        let segment = [version, &beginning.concat(), &[0; 4096]].concat();
        fs::write(folder.path().join("binlog.2"), &segment).expect("a segment");
        assert_refused(&folder, "-b", "binlog.2: the original wrote it on 32-bit x86");
        assert_eq!(fs::read(folder.path().join("binlog.2")).expect("a segment"), segment);
    }
}

/// Rewrites the fixtures of release 1.12.
#[test]
#[ignore = "it needs exactly that release, and changes the source tree"]
fn write_the_fixture_of_release_1_12() {
    let mut counted = write_fixture("1.12", &original().expect("the original"));
    for job in counted.values_mut().filter(|job| job.text("state") == "buried") {
        add(job, "buries", -1);
    }
    fs::write(fixture("1.12").join("jobs.txt"), listing(&counted)).expect("a listing");
}

/// Has a daemon write a directory and its listing, and returns the jobs that it finds after a
/// restart.
fn write_fixture(name: &str, program: &Path) -> Jobs {
    let folder = Folder::new();
    let daemon = folder.serve(program, &["-s", "4096"]);
    let client = tell(&daemon);
    end(daemon, libc::SIGKILL);
    drop(client);
    let target = fixture(name);
    fs::create_dir_all(&target).expect("a directory");
    let names = folder.files().into_keys();
    for name in names.filter(|name| name.starts_with("binlog.") || name == "lock") {
        let segment = fs::read(folder.path().join(&name)).expect("a segment");
        let used = &segment[..format::end(&segment)];
        fs::write(target.join(name), used).expect("a fixture");
    }
    thread::sleep(Duration::from_secs(2));
    let jobs = reopened(program, &folder);
    fs::write(target.join("jobs.txt"), listing(&jobs)).expect("a listing");
    jobs
}
