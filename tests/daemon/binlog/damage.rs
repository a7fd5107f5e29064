//! Damaged binlogs: whatever the bytes are, intact records are kept, and no others are invented.
//!
//! These tests share their oracle: most open a binlog in memory, others give a repaired directory
//! to the original, or to our binary. The oracle knows the position of each record in an undamaged
//! binlog. A record is intact if all its bytes are unchanged, and some file of the directory still
//! begins with an intact segment header, without which no record can be checked. A restart must
//! find exactly the intact records, applied in their order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    sync::{Arc, Mutex},
    time::Duration,
};

use beanstalkd::{
    clock::{Calendar, Time},
    queue::State,
    server::{COMMANDS_PER_CONNECTION, Identity, Server, Settings},
    wal::{self, Directory, Disk, Name, Options, Report, Restored, SyncPolicy, Wal},
};
use ct::{Prng, eventually};

use crate::harness::{Folder, OURS, Peer, end, fails_to_start, from_environment, original};

use super::format;

/// The number of binlogs damaged by each kind of harm, unless RUNS is set.
const RUNS: u64 = 400;

/// The number of damaged binlogs given to the original after their repair.
const LIVE: u64 = 24;

pub(crate) type Files = BTreeMap<Name, Vec<u8>>;

/// A disk in memory that never fails. Tests can read its files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(pub(crate) Arc<Mutex<Files>>);

impl Memory {
    pub(crate) fn files(&self) -> Files {
        self.0.lock().expect("no test panics with the lock").clone()
    }

    fn with<T>(&self, name: Name, act: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
        let mut files = self.0.lock().expect("no test panics with the lock");
        files.get_mut(&name).map(act).ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Disk for Memory {
    fn confirm_lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        Ok(self.files().into_iter().map(|(name, bytes)| (name, bytes.len() as u64)).collect())
    }
    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let at = usize::try_from(offset).expect("small");
        self.with(name, |bytes| {
            let bytes = bytes.get(at..).unwrap_or_default();
            let count = bytes.len().min(buffer.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            count
        })
    }
    fn next_data(&mut self, _: Name, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }
    fn create(&mut self, name: Name) -> io::Result<()> {
        self.0.lock().expect("no test panics with the lock").insert(name, Vec::new());
        Ok(())
    }
    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        let size = usize::try_from(size).expect("small");
        self.with(name, |bytes| bytes.resize(size, 0)).map(|()| true)
    }
    fn write(&mut self, name: Name, offset: u64, new: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).expect("small");
        self.with(name, |bytes| {
            bytes.resize(bytes.len().max(at + new.len()), 0);
            bytes[at..at + new.len()].copy_from_slice(new);
        })
    }
    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        self.with(name, |bytes| bytes.truncate(usize::try_from(size).expect("small")))
    }
    fn sync(&mut self, name: Name) -> io::Result<Duration> {
        self.with(name, |_| Duration::ZERO)
    }
    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        self.sync(name).map(drop)
    }
    fn sync_result(&mut self, _: bool) -> Option<io::Result<Duration>> {
        Some(Ok(Duration::ZERO))
    }
    fn close(&mut self, _: Name) {}
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        let mut files = self.0.lock().expect("no test panics with the lock");
        let bytes = files.remove(&from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to, bytes);
        Ok(())
    }
    fn remove(&mut self, name: Name) -> io::Result<()> {
        let removed = self.0.lock().expect("no test panics with the lock").remove(&name);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }
    fn sync_directory(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All bytes of a file.
pub(crate) fn contents(disk: &mut dyn Disk, name: Name) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let count = disk.read(name, 0, &mut bytes).expect("a file");
    assert!(count < bytes.len(), "a larger file than a test needs");
    bytes.truncate(count);
    bytes
}

/// The facts about a job after a restart, without times.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    tube: String,
    body: Vec<u8>,
    /// The number of the job's state in the binlog, and the date of a delayed or buried job.
    state: u8,
    since: i64,
    pri: u32,
    counts: [u32; 5],
}

type Jobs = BTreeMap<u64, Known>;

pub(crate) const NOW: Time = Time::from_nanoseconds(3_000_000_000_000_000_000);
pub(crate) const DATE: i64 = 1_700_000_000_000_000_000;

fn calendar() -> Calendar {
    Calendar::new(NOW, DATE)
}

pub(crate) fn open(disk: Box<dyn Disk>, segment_size: u64) -> (Restored, Wal, Report) {
    try_open(disk, segment_size, 7).expect("damage is no error")
}

/// Opens a directory; `key` is used if the directory is empty.
pub(crate) fn try_open(
    disk: Box<dyn Disk>,
    segment_size: u64,
    key: u64,
) -> Result<(Restored, Wal, Report), wal::Error> {
    let mut restored = Restored::default();
    let options = Options { segment_size, sync: SyncPolicy::Within(Duration::ZERO), key };
    let (wal, report) = Wal::open(disk, options, &mut restored, calendar(), NOW, &mut wal::go_on)?;
    restored.queue.check();
    wal.check();
    Ok((restored, wal, report))
}

pub(crate) fn serve(restored: Restored, wal: Wal) -> Server {
    let identity = Identity {
        pid: 1,
        version: String::new(),
        id: String::new(),
        hostname: String::new(),
        os: String::new(),
        platform: String::new(),
        rusage: Default::default,
    };
    let settings = Settings { binlog_size: 4096, ..Settings::default() };
    Server::with_wal(identity, settings, restored, Some(wal), NOW)
}

/// Commits until the binlog has nothing left to do.
pub(crate) fn settle(server: &mut Server) {
    for round in 0.. {
        server.tick(NOW);
        server.commit(NOW);
        if server.next_deadline().is_none_or(|at| at > NOW) {
            return;
        }
        assert!(round < 10_000, "it never comes to rest");
    }
}

/// A binlog of several segments as a kill leaves it, with jobs in all states and some that were
/// deleted.
fn healthy(segment_size: u64) -> Files {
    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), segment_size);
    let mut server = serve(restored, wal);
    let client = server.open();
    let mut prng = Prng::new(5);
    for id in 1..=60u64 {
        let size = usize::try_from(prng.below(200)).expect("small");
        // Bodies that must not mislead a search for records: zeros, and likenesses of headers.
        let body = match id % 4 {
            0 => vec![0; size],
            1 => vec![0xFF; size],
            _ => vec![b'x'; size],
        };
        let delay = if id % 9 == 0 { 1000 } else { 0 };
        let head = format!("use t{}\r\nput {id} {delay} 60 {size}\r\n", id % 3);
        let mut bytes = [head.as_bytes(), &body, b"\r\n"].concat();
        let then = match id % 7 {
            0 => format!("delete {id}\r\n"),
            1 => format!("reserve-job {id}\r\nbury {id} {}\r\n", id + 100),
            2 => format!("reserve-job {id}\r\nrelease {id} {} 2000\r\n", id + 200),
            3 if id > 20 => format!("reserve-job {0}\r\ndelete {0}\r\n", id - 19),
            4 => format!("reserve-job {id}\r\nrelease {id} {} 0\r\n", id + 300),
            _ => String::new(),
        };
        bytes.extend_from_slice(then.as_bytes());
        let (consumed, _) = server.feed(client, &bytes, COMMANDS_PER_CONNECTION, NOW);
        assert_eq!(consumed, bytes.len());
        server.commit(NOW);
        server.sent(client, server.conn(client).output.len());
    }
    // The server is dropped without a clean shutdown, which simulates the kill.
    disk.files()
}

/// All jobs of a queue.
fn jobs_of(restored: &Restored) -> Jobs {
    let queue = &restored.queue;
    let mut jobs = Jobs::new();
    for id in 1..queue.next_id().min(10_000) {
        let Some(job) = queue.find(id) else { continue };
        let body = restored.jobs().body(job);
        let job = queue.job(job);
        let record = &job.record;
        let since = calendar().date(record.state_at);
        let (state, since) = match record.state {
            State::Ready => (1, 0),
            State::Buried => (3, since),
            State::Delayed => (4, since),
            State::Reserved(_) => panic!("job {id} is reserved by nobody"),
        };
        let known = Known {
            tube: queue.tube_name(job.tube).to_string(),
            body: body.to_vec(),
            state,
            since,
            pri: record.pri,
            counts: [
                record.history.reserves,
                record.history.timeouts,
                record.history.releases,
                record.history.buries,
                record.history.kicks,
            ],
        };
        jobs.insert(id, known);
    }
    assert_eq!(queue.jobs(), jobs.len(), "there are others");
    jobs
}

/// The jobs of all intact records.
fn expected(healthy: &Files, damaged: &Files) -> Jobs {
    let mut jobs = Jobs::new();
    let begins_intact = |(name, bytes): (&Name, &Vec<u8>)| {
        damaged.get(name).is_some_and(|found| found.get(4..88) == bytes.get(4..88))
    };
    if !healthy.iter().any(begins_intact) {
        return jobs;
    }
    for (name, bytes) in healthy {
        let (Name::Segment(_), Some(found)) = (name, damaged.get(name)) else { continue };
        let is_intact =
            |it: &format::Record<'_>| found.get(it.at..it.at + it.bytes.len()) == Some(it.bytes);
        let intact: Vec<_> = format::records(bytes).into_iter().filter(is_intact).collect();
        for record in intact {
            apply(&record, &mut jobs);
        }
    }
    jobs
}

fn apply(record: &format::Record<'_>, jobs: &mut Jobs) {
    let number = |at: usize| u32::from_le_bytes(part(record.facts, at));
    let pri = number(8);
    let counts = [56, 60, 64, 68, 72].map(number);
    let since = match record.state {
        3 | 4 => i64::from_le_bytes(part(record.facts, 48)),
        _ => 0,
    };
    let state = record.state;
    match (record.full, state) {
        (_, 0) => drop(jobs.remove(&record.id)),
        (Some((tube, body)), _) => {
            let known = Known { tube: tube.into(), body: body.into(), state, since, pri, counts };
            jobs.insert(record.id, known);
        }
        (None, _) => {
            if let Some(known) = jobs.get_mut(&record.id) {
                (known.state, known.since, known.pri, known.counts) = (state, since, pri, counts);
            }
        }
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many")
}

/// A kind of damage to a binlog.
type Harm = fn(&mut Prng, &mut Files);

fn below(prng: &mut Prng, bound: usize) -> usize {
    usize::try_from(prng.below(bound as u64)).expect("below a usize")
}

/// A file of the binlog, usually one that is not empty.
fn any_file<'a>(prng: &mut Prng, files: &'a mut Files) -> &'a mut Vec<u8> {
    let is_segment = |name: &Name| matches!(name, Name::Segment(_));
    let count = files.keys().filter(|name| is_segment(name)).count();
    let chosen = below(prng, count);
    let mut segments = files.iter_mut().filter(|(name, _)| is_segment(name));
    segments.nth(chosen).expect("one of them").1
}

const HARMS: [(&str, Harm); 7] = [
    ("a flipped bit", |prng, files| {
        let file = any_file(prng, files);
        let at = below(prng, file.len());
        file[at] ^= 1 << prng.below(8);
    }),
    ("several flipped bits", |prng, files| {
        for _ in 0..=prng.below(20) {
            let file = any_file(prng, files);
            let at = below(prng, file.len());
            file[at] ^= 1 << prng.below(8);
        }
    }),
    ("a cut tail", |prng, files| {
        let file = any_file(prng, files);
        let length = below(prng, file.len());
        file.truncate(length);
    }),
    ("a page of zeros", |prng, files| {
        let file = any_file(prng, files);
        let page = below(prng, file.len().div_ceil(4096)) * 4096;
        let end = file.len().min(page + 4096);
        file[page..end].fill(0);
    }),
    ("foreign bytes", |prng, files| {
        let file = any_file(prng, files);
        let at = below(prng, file.len());
        let end = file.len().min(at + 1 + below(prng, 600));
        for byte in &mut file[at..end] {
            *byte = prng.next_u64().to_le_bytes()[0];
        }
    }),
    ("bytes of another place", |prng, files| {
        let other = any_file(prng, files).clone();
        let file = any_file(prng, files);
        let from = below(prng, other.len());
        let length = (1 + below(prng, 1000)).min(other.len() - from);
        let at = below(prng, file.len());
        let length = length.min(file.len() - at);
        file[at..at + length].copy_from_slice(&other[from..from + length]);
    }),
    ("a file gone", |prng, files| {
        let names: Vec<_> = files.keys().copied().collect();
        files.remove(&names[below(prng, names.len())]);
    }),
];

/// Opens a damaged binlog, judges the jobs found, serves until everything is repaired, opens it
/// again and returns its files.
fn judge(healthy: &Files, damaged: &Files, segment_size: u64, what: &str) -> Files {
    let disk = Memory(Arc::new(Mutex::new(damaged.clone())));
    let (restored, wal, report) = open(Box::new(disk.clone()), segment_size);
    let wanted = expected(healthy, damaged);
    let found = jobs_of(&restored);
    for id in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
        assert_eq!(found.get(id), wanted.get(id), "{what}: job {id}; {report:?}");
    }
    let mut server = serve(restored, wal);
    settle(&mut server);
    drop(server);
    let (restored, _, report) = open(Box::new(disk.clone()), segment_size);
    assert_eq!(jobs_of(&restored), wanted, "{what}: after the repair");
    assert!(!report.is_damaged(), "{what}: it is repaired: {report:?}");
    disk.files()
}

fn write_out(files: &Files) -> Folder {
    let folder = Folder::new();
    for (name, bytes) in files {
        fs::write(folder.path().join(name.to_string()), bytes).expect("a file");
    }
    folder
}

/// A damaged record would cost intact jobs, or become a job that was never put, or keep the daemon
/// from starting.
///
/// Proves: B14, B15.
#[test]
fn of_a_damaged_log_what_is_intact_is_kept_and_nothing_is_invented() {
    let runs = from_environment("RUNS").map_or(RUNS, |runs: u64| runs * 20);
    // Small segments have one segment header each; large ones repeat it.
    for segment_size in [4096, 65_536] {
        let healthy = healthy(segment_size);
        let all = expected(&healthy, &healthy);
        assert!(all.len() > 30 && all.values().any(|job| job.state == 3), "{}", all.len());
        judge(&healthy, &healthy, segment_size, "no damage");
        for (what, harm) in HARMS {
            let mut lost = 0;
            for seed in 0..runs {
                let mut damaged = healthy.clone();
                harm(&mut Prng::new(seed), &mut damaged);
                let wanted = expected(&healthy, &damaged);
                lost += usize::from(wanted != all);
                judge(&healthy, &damaged, segment_size, &format!("{what}, seed {seed}"));
            }
            println!("{what}: {lost} of {runs} lost something");
        }
    }
}

/// The original would not open a binlog that this daemon has repaired.
///
/// Proves: Q24, B14.
#[test]
fn the_original_opens_what_was_repaired() {
    let Some(original) = original() else { return };
    let healthy = healthy(4096);
    for run in 0..LIVE {
        let mut prng = Prng::new(run);
        let (what, harm) = HARMS[usize::try_from(run).expect("small") % HARMS.len()];
        let mut damaged = healthy.clone();
        harm(&mut prng, &mut damaged);
        let wanted = expected(&healthy, &damaged);
        let folder = write_out(&judge(&healthy, &damaged, 4096, what));
        let daemon = folder.serve(&original, &["-s", "4096"]);
        let jobs = Peer::of(&daemon).look_through(1..200);
        // The original warns of each file that is missing between others, and continues.
        let said = daemon.stderr();
        let is_new = |line: &&str| !line.ends_with("No such file or directory");
        assert_eq!(said.lines().find(is_new), None, "{what}, run {run}");
        assert!(jobs.keys().eq(wanted.keys()), "{what}, run {run}: {:?}", jobs.keys());
        for (id, job) in jobs {
            assert!([&job.body[..], b"\r\n"].concat() == wanted[&id].body, "job {id}");
            assert_eq!(job.text("tube"), wanted[&id].tube, "job {id}");
        }
    }
}

/// Damage to one of the original's files would end the daemon, or keep it busy for ever. Its
/// records have no checksums, so not all damage is detected.
///
/// Proves: B15.
#[test]
fn no_damage_to_the_originals_log_is_fatal() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon/binlog/fixtures/");
    for (name, runs) in [("1.12", 20), ("version-5", 200)] {
        let mut healthy = Files::new();
        let mut disk =
            Directory::read_only((source.to_owned() + name).as_ref()).expect("a fixture");
        for (name, _) in disk.list().expect("a list") {
            healthy.insert(name, contents(&mut disk, name));
        }
        for (_, harm) in HARMS {
            for seed in 0..runs {
                let mut damaged = healthy.clone();
                harm(&mut Prng::new(seed), &mut damaged);
                let disk = Memory(Arc::new(Mutex::new(damaged)));
                let (restored, wal, _) = open(Box::new(disk.clone()), 4096);
                let found = restored.queue.jobs();
                settle(&mut serve(restored, wal));
                let (restored, _, report) = open(Box::new(disk), 4096);
                assert!(!report.is_damaged(), "{report:?}");
                assert_eq!(restored.queue.jobs(), found, "{name}, seed {seed}");
            }
        }
    }
}

/// One damaged id in a file without checksums would use up all ids: the next job would get an id
/// that the next start refuses, and would be lost.
///
/// Proves: B15.
#[test]
fn a_damaged_id_leaves_enough_for_later_jobs() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon/binlog/fixtures/1.12");
    let mut source = Directory::read_only(source.as_ref()).expect("a fixture");
    let mut bytes = contents(&mut source, Name::Segment(1));
    // The damaged id comes after the version, the length of the tube's name, and the name.
    let at = 8 + usize::from(bytes[4]);
    bytes[at..at + 8].copy_from_slice(&(u64::MAX / 2 - 1).to_le_bytes());
    let disk = Memory(Arc::new(Mutex::new([(Name::Segment(1), bytes)].into())));
    let (restored, wal, _) = open(Box::new(disk.clone()), 4096);
    let mut server = serve(restored, wal);
    let client = server.open();
    server.feed(client, b"put 0 0 60 1\r\nx\r\n", COMMANDS_PER_CONNECTION, NOW);
    settle(&mut server);
    let (restored, _, report) = open(Box::new(disk), 4096);
    assert!(!report.is_damaged(), "{report:?}");
    assert_eq!(restored.queue.jobs(), server.queue().jobs());
}

/// Other files in the directory would be read as jobs, or keep the daemon from starting.
///
/// Proves: Q24, B14.
#[test]
fn foreign_files_are_left_alone() {
    let folder = write_out(&healthy(4096));
    let inside = |name: &str| folder.path().join(name);
    let count = folder.files().keys().filter(|name| name.starts_with("binlog.")).count();
    let wanted = jobs_of(&open(Box::new(Directory::lock(folder.path()).expect("ours")), 4096).0);
    let some_segment = fs::read(inside("binlog.1")).expect("a segment");
    let foreign =
        ["binlog.x", "binlog.1.bak", "binlog.01", "binlog.", "binlog", "notes", ".hidden"];
    for name in foreign {
        fs::write(inside(name), &some_segment).expect("a file");
    }
    // Files with names of segments: one is empty, one has bytes that are no binlog.
    fs::write(inside("binlog.1000"), "").expect("a file");
    let noise: Vec<u8> = (0..10_000u32).map(|at| (at * at % 255).to_le_bytes()[0]).collect();
    fs::write(inside("binlog.1001"), &noise).expect("a file");
    // Entries that are not files, with the names that the daemon would give to its next files.
    std::os::unix::fs::symlink("nowhere", inside("binlog.1002")).expect("a link");
    for name in ["binlog.1003", "spare.1", "spare.2"] {
        fs::create_dir(inside(name)).expect("a directory");
        fs::write(inside(name).join("notes"), "").expect("a file");
    }
    assert!(count > 1);
    let daemon = folder.serve(OURS, &["-s", "4096"]);
    let mut client = Peer::of(&daemon);
    let jobs = client.look_through(1..200);
    assert!(jobs.keys().eq(wanted.keys()), "{:?}", jobs.keys());
    assert!(daemon.stderr().contains("binlog.1001"), "{}", daemon.stderr());
    for _ in 0..30 {
        client.put(0, 0, &[b'x'; 1000]);
    }
    eventually("what is no log is set aside", || inside("binlog.1001.damaged").exists());
    end(daemon, libc::SIGTERM);
    for name in foreign {
        assert_eq!(fs::read(inside(name)).expect("it is left alone"), some_segment, "{name}");
    }
    for name in ["binlog.1003", "spare.1", "spare.2"] {
        assert!(inside(name).join("notes").exists(), "{name}");
    }
    assert!(inside("binlog.1002").is_symlink());
    assert_eq!(fs::read(inside("binlog.1001.damaged")).expect("it is kept"), noise);
}

/// If a file has the highest number, there is no number for the next file, and the daemon would
/// panic instead of reporting that.
///
/// Proves: Q24.
#[test]
fn where_no_number_is_left_it_says_so() {
    let folder = Folder::new();
    fs::write(folder.path().join("binlog.4294967295"), "").expect("a file");
    let (code, stderr) = fails_to_start(OURS, &["-b", folder.text()]);
    assert_eq!((code, stderr.lines().count()), (10, 1), "{stderr}");
    assert!(stderr.contains("no segment can follow binlog.4294967295"), "{stderr}");
}

/// After a restart jobs would be kicked in another order than they were buried in, because the time
/// between the readings of two clocks varies.
///
/// Proves: B13.
#[test]
fn dates_written_in_different_turns_keep_their_order() {
    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), 4096);
    let mut server = serve(restored, wal);
    let client = server.open();
    let puts = "put 0 0 60 1\r\nx\r\n".repeat(2) + "reserve-job 1\r\nreserve-job 2\r\n";
    server.feed(client, puts.as_bytes(), COMMANDS_PER_CONNECTION, NOW);
    for (turn, id, late) in [(1, 2, 5_000_000), (2, 1, 0)] {
        let now = NOW + Duration::from_micros(turn);
        let passed = i64::try_from(NOW.until(now).as_nanos()).expect("small");
        server.set_calendar(Calendar::new(now, DATE + passed + late), now);
        server.feed(client, format!("bury {id} 0\r\n").as_bytes(), COMMANDS_PER_CONNECTION, now);
        server.commit(now);
    }
    let (restored, ..) = open(Box::new(disk), 4096);
    let tube = restored.queue.find_tube("default").expect("it is always there");
    let first = restored.queue.first_buried(tube).expect("a buried job");
    assert_eq!(restored.queue.job(first).record.id, 2, "it was buried first");
}
