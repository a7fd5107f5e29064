//! The space that a binlog takes.

use std::{
    collections::VecDeque,
    fmt::Write,
    thread::{self, ScopedJoinHandle},
};

use ct::Daemon;

use crate::harness::{Folder, OURS, Peer, from_environment};

const JOBS: u64 = 200;
const BODY: usize = 100;
const SEGMENT: u64 = 64 * 1024;

/// How many changes, unless CYCLES is set.
const CYCLES: usize = 20_000;

/// How many commands are sent at once.
const AT_ONCE: usize = 100;

/// How often a binlog that is too large is measured again.
const LOOKS: u32 = 10;

/// A short record: a name's length and eighty bytes.
const SHORT: u64 = 84;

/// A worker that releases its jobs again and again would fill the disk with old records.
///
/// Proves: B7.
#[test]
fn jobs_released_for_ever_take_no_more_room() {
    let mut load = Load::start(&["-F"]);
    for _ in (0..load.cycles).step_by(AT_ONCE) {
        load.batch();
        let size = load.size();
        assert!(size <= BOUND, "{size} bytes: {:?}", load.folder.files());
    }
    load.finish();
}

/// Under a load that never pauses, files would never be removed, and would fill the disk. A file is
/// removed when the records that replace its own are synced; until then there are one or more extra
/// files.
///
/// Proves: B7.
#[test]
fn files_go_under_a_load_that_never_rests() {
    let mut load = Load::start(&[]);
    for _ in (0..load.cycles).step_by(AT_ONCE) {
        load.batch();
    }
    let patience = load.cycles.max(20 * CYCLES);
    let enough = (0..patience).step_by(AT_ONCE).find(|_| {
        load.batch();
        load.size() <= BOUND
    });
    assert!(enough.is_some(), "{} bytes: {:?}", load.size(), load.folder.files());
    load.finish();
}

/// The bytes of the jobs' records: for each a full one, in tube `default` and with CR LF, and a
/// short one.
const LIVE: u64 = JOBS * (SHORT + 7 + BODY as u64 + 2 + SHORT);

const BOUND: u64 = 2 * SEGMENT + 2 * LIVE;

/// A daemon, and a client that keeps the daemon busy: the client sends a batch before it reads the
/// replies to the previous batch.
struct Load {
    folder: Folder,
    client: Peer,
    /// A client whose commands only take turns of the daemon.
    other: Peer,
    _daemon: Daemon,
    cycles: usize,
    done: usize,
    sent: VecDeque<u64>,
    largest: u64,
}

impl Load {
    fn start(flags: &[&str]) -> Self {
        let folder = Folder::new();
        let segment = SEGMENT.to_string();
        let daemon = folder.serve(OURS, &[&["-s", &segment], flags].concat());
        let (mut client, other) = (Peer::of(&daemon), Peer::of(&daemon));
        for id in 1..=JOBS {
            assert_eq!(client.put(0, 0, &[b'x'; BODY]), id);
        }
        let cycles = from_environment("CYCLES").unwrap_or(CYCLES);
        let sent = VecDeque::new();
        let mut load =
            Self { folder, client, other, _daemon: daemon, cycles, done: 0, sent, largest: 0 };
        load.send();
        load
    }

    fn send(&mut self) {
        let mut commands = String::new();
        for _ in 0..AT_ONCE {
            let id = self.sent.back().map_or(1, |last| last % JOBS + 1);
            write!(commands, "reserve-job {id}\r\nrelease {id} 0 1000\r\n")
                .expect("a string grows");
            self.sent.push_back(id);
        }
        self.client.0.send(commands).expect("the daemon takes it");
    }

    fn batch(&mut self) {
        self.send();
        self.receive();
    }

    fn receive(&mut self) {
        for _ in 0..AT_ONCE {
            let id = self.sent.pop_front().expect("it was sent");
            let line = self.client.0.line().expect("a reply");
            assert_eq!(line, format!("RESERVED {id} {BODY}"));
            self.client.0.bytes(BODY + 2).expect("its body");
            assert_eq!(self.client.0.line().expect("a reply"), "RELEASED");
        }
        self.done += AT_ONCE;
    }

    /// Returns the total size of all files of the binlog. A listing is not a snapshot: one file may
    /// be removed after it was listed, and another may appear before the listing ends. The system
    /// may also suspend the daemon between these two events. So the least of several sizes is used
    /// if the first one exceeds the bound.
    fn size(&mut self) -> u64 {
        let mut size = u64::MAX;
        for _ in 0..LOOKS {
            size = size.min(self.folder.files().values().sum());
            if size <= BOUND {
                break;
            }
            // The second command is answered in a later turn than the first.
            for _ in 0..2 {
                self.other.tell("list-tube-used", "USING default");
            }
        }
        self.largest = self.largest.max(size);
        size
    }

    fn finish(mut self) {
        self.receive();
        let segments: u64 = self.client.value("stats", "binlog-current-index");
        let written = self.done as u64 * SHORT;
        assert!(segments >= written / SEGMENT, "only {segments} segments for {written} bytes");
        let Self { done, largest, .. } = self;
        println!(
            "{done} cycles, {segments} segments, at most {largest} bytes seen; {BOUND} allowed"
        );
    }
}

/// Clients that put jobs and delete them, several batches at once, would fill the disk: a turn can
/// make garbage of many segments.
///
/// Proves: B7.
#[test]
fn garbage_goes_as_fast_as_many_clients_make_it() {
    for (segment, body, flags) in [
        (4096, 5000, ["-F", "-V"]),
        (65_536, 5000, ["-f", "50"]),
        (65_536, 100, ["-f", "0"]),
        (1 << 20, 60_000, ["-F", "-V"]),
    ] {
        churn(segment, body, &flags);
    }
}

/// The clients of [`churn`], and how many jobs each puts before it deletes them.
pub(super) const CLIENTS: u64 = 8;
const BATCH: usize = 20;

/// A client that puts and deletes jobs. No put may be refused.
pub(super) fn put_and_delete(place: &str, body: usize, batches: u64) {
    let mut client = Peer::at(place);
    let put = format!("put 0 0 60 {body}\r\n{}\r\n", "x".repeat(body));
    for _ in 0..batches {
        client.send(put.repeat(BATCH));
        let mut deletes = String::new();
        for _ in 0..BATCH {
            let reply = client.line();
            let id = reply.strip_prefix("INSERTED ").expect("there is space");
            write!(deletes, "delete {id}\r\n").expect("a string grows");
        }
        client.send(deletes);
        (0..BATCH).for_each(|_| assert_eq!(client.line(), "DELETED"));
    }
}

/// Puts and deletes jobs, and watches the size of the binlog.
fn churn(segment: u64, body: usize, flags: &[&str]) {
    let folder = Folder::new();
    let size = segment.to_string();
    let daemon = folder.serve(OURS, &[&["-s", &size], flags].concat());
    let record = SHORT + 7 + body as u64 + 2;
    let live = CLIENTS * BATCH as u64 * record;
    // All live bytes may become garbage in one turn, or while one sync is under way.
    let bound = 4 * live + 2 * (body as u64 + segment);
    let batches = 5 * bound / live;
    let largest = thread::scope(|scope| {
        let client = || put_and_delete(daemon.address(), body, batches);
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let mut largest = 0;
        while !clients.iter().all(ScopedJoinHandle::is_finished) {
            largest = largest.max(folder.files().values().sum());
        }
        largest
    });
    println!("-s {segment}, bodies of {body}: {largest} bytes seen; {bound} allowed");
    assert!(largest <= bound, "{largest} bytes, {bound} allowed: {:?}", folder.files());
}
