//! Startup with files that were written by the original, under hostile clients, or under a wrong
//! clock. Startup never truncates, renames or removes files that it does not understand. Most of
//! these tests open a binlog in memory, with the disk of `damage`.

use std::{
    fs, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use beanstalkd::{
    clock::Calendar,
    queue::{Queue, State},
    server::{COMMANDS_PER_CONNECTION, Server},
    wal::{self, Disk, Name, Options, Report, Restored, SyncPolicy, Wal},
};

use crate::harness::{Folder, OURS, Peer, end};

use super::{
    damage::{DATE, Files, Memory, NOW, open, serve, settle, try_open},
    format,
};

/// A record as the original writes it; a full record if the tube's name is not empty.
fn record(id: u64, tube: &str, body: &[u8], state: u8) -> Vec<u8> {
    let mut bytes = u32::try_from(tube.len()).expect("a short name").to_le_bytes().to_vec();
    bytes.extend_from_slice(tube.as_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]); // Priority.
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&0u64.to_le_bytes()); // Delay.
    bytes.extend_from_slice(&60_000_000_000u64.to_le_bytes());
    let size = u32::try_from(body.len()).expect("a small body");
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&DATE.to_le_bytes());
    bytes.extend_from_slice(&DATE.to_le_bytes());
    bytes.extend_from_slice(&[0; 20]);
    bytes.extend_from_slice(&[state, 0, 0, 0]);
    if !tube.is_empty() {
        bytes.extend_from_slice(body);
    }
    bytes
}

/// A segment as the original writes it.
fn segment(records: &[Vec<u8>]) -> Vec<u8> {
    [&[7, 0, 0, 0][..], &records.concat()].concat()
}

fn on_disk(files: impl IntoIterator<Item = (u32, Vec<u8>)>) -> Memory {
    let files: Files = files.into_iter().map(|(n, bytes)| (Name::Segment(n), bytes)).collect();
    Memory(Arc::new(Mutex::new(files)))
}

fn ids(queue: &Queue) -> Vec<u64> {
    (1..queue.next_id().min(100_000)).filter(|&id| queue.find(id).is_some()).collect()
}

/// A power cut can leave a page of zeros in one of the original's files. All records after that
/// page would be cut off, and the log would report no damage.
///
/// Proves: B33.
#[test]
fn what_lies_behind_a_hole_is_reported_and_kept() {
    let jobs = |ids: std::ops::Range<u64>| {
        ids.map(|id| record(id, "default", b"12345678\r\n", 1)).collect::<Vec<_>>()
    };
    let holed = [&segment(&jobs(1..50))[..], &[0; 4096], &jobs(50..90).concat()].concat();
    for newest in [false, true] {
        let mut files = vec![(3, holed.clone())];
        if !newest {
            files.push((4, segment(&jobs(200..203))));
        }
        let disk = on_disk(files);
        let (restored, wal, report) = open(Box::new(disk.clone()), 4096);
        assert!(report.segments[0].is_damaged(), "{report:?}");
        assert!(report.segments[0].problems[0].contains("bytes after the end"));
        assert_eq!(ids(&restored.queue)[..49], (1..50).collect::<Vec<_>>());
        assert_eq!(disk.files()[&Name::Segment(3)], holed, "it is as it was");
        settle(&mut serve(restored, wal));
        assert_eq!(disk.files()[&Name::Damaged(3)], holed, "and set aside as it was");
    }
}

/// Because of a tube's name, a file of the original would be taken for one of ours.
#[test]
fn a_tube_name_with_the_magic_makes_no_file_ours() {
    let name = "x".repeat(40) + "bnstlkRK" + &"x".repeat(60);
    let records: Vec<_> = (1..=20).map(|id| record(id, &name, b"body\r\n", 1)).collect();
    let (restored, _, report) = open(Box::new(on_disk([(1, segment(&records))])), 4096);
    assert!(!report.is_damaged(), "{report:?}");
    assert_eq!(ids(&restored.queue), (1..=20).collect::<Vec<_>>());
}

/// One flipped bit in one of the original's records would lose all jobs after it, although the next
/// record is where it should be.
///
/// Proves: B14.
#[test]
fn a_flaw_in_a_record_of_the_originals_costs_that_record() {
    let healthy: Vec<_> = (1..=20).map(|id| record(id, "default", b"12345678\r\n", 1)).collect();
    let length = healthy[0].len();
    let flaws: [(&str, usize, u8); 6] = [
        ("the CR", length - 2, 1),
        ("the LF", length - 1, 4),
        ("the tube's name", 6, 0x80),
        ("the id", 4 + 7 + 7, 0x40),
        ("the state", 4 + 7 + 76, 0x20),
        ("the date", 0, 0),
    ];
    for (what, at, flip) in flaws {
        let mut records = healthy.clone();
        if flip == 0 {
            records[4][4 + 7 + 40..][..8].fill(0);
        } else {
            records[4][at] ^= flip;
        }
        // A delete after the damaged record would be lost as well, and the job would come back.
        records.push(record(7, "", b"12345678\r\n", 0));
        let disk = on_disk([(1, segment(&records))]);
        let before = disk.files();
        let (restored, wal, report) = open(Box::new(disk.clone()), 4096);
        let wanted: Vec<u64> = (1..=20).filter(|&id| id != 5 && id != 7).collect();
        assert_eq!(ids(&restored.queue), wanted, "{what}: {report:?}");
        assert_eq!(report.segments[0].problem_count, 1, "{what}");
        settle(&mut serve(restored, wal));
        assert_eq!(disk.files()[&Name::Damaged(1)], before[&Name::Segment(1)], "{what}");
    }
}

/// After a power cut a new job would get an id that a client already holds.
#[test]
fn the_id_of_an_unfinished_record_is_not_used_again() {
    let mut records: Vec<_> = (1..=20).map(|id| record(id, "default", b"12345\r\n", 1)).collect();
    let last = records.pop().expect("the last");
    records.push(last[..last.len() - 4].to_vec());
    let (restored, ..) = open(Box::new(on_disk([(1, segment(&records))])), 4096);
    assert_eq!((ids(&restored.queue).len(), restored.queue.next_id()), (19, 21));

    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), 65_536);
    let mut server = serve(restored, wal);
    put_all(&mut server, (1..=20).map(|_| vec![b'x'; 50]));
    let mut files = disk.files();
    let bytes = files.get_mut(&Name::Segment(1)).expect("it was written");
    let end = format::end(bytes);
    bytes[end - 20..].fill(0);
    let disk = Memory(Arc::new(Mutex::new(files)));
    for _ in 0..2 {
        let (restored, _, report) = open(Box::new(disk.clone()), 65_536);
        assert!(!report.is_damaged(), "{report:?}");
        assert_eq!(ids(&restored.queue).len(), 19);
        assert!(restored.queue.next_id() > 20, "{}", restored.queue.next_id());
    }
}

fn put_all(server: &mut Server, bodies: impl IntoIterator<Item = Vec<u8>>) {
    let client = server.open();
    for body in bodies {
        let head = format!("put 0 0 60 {}\r\n", body.len());
        let bytes = [head.as_bytes(), &body, b"\r\n"].concat();
        assert_eq!(server.feed(client, &bytes, COMMANDS_PER_CONNECTION, NOW).0, bytes.len());
        server.commit(NOW);
        server.sent(client, server.conn(client).output.len());
    }
}

/// If bodies are made to look like records, each of which must be tried, one flipped bit would make
/// the rest of the newest file appear torn, and it would be cut off.
#[test]
fn nothing_in_a_body_hides_the_records_behind_it() {
    // A short record, or another salt's segment header, at every offset; and full records that
    // claim to end where their body does, or where a much later body does.
    let short = record(3, "", b"x\r\n", 1);
    let mut mark = record(u64::MAX, "", b"", 0);
    mark[4 + 40..][..8].copy_from_slice(b"bnstlkRK");
    let full = |left: usize| {
        let mut bytes = record(9, "t", b"\r\n", 1);
        let size = u32::try_from(left - 85 + 2).expect("small");
        bytes[5 + 32..][..4].copy_from_slice(&size.to_le_bytes());
        bytes.truncate(85);
        bytes
    };
    let size = 60_000;
    let stride = size + 2 + record(1, "default", b"", 1).len() + record(1, "", b"", 1).len();
    let bodies: [Vec<u8>; 4] = [
        short.iter().copied().cycle().take(size).collect(),
        mark.iter().copied().cycle().take(size).collect(),
        (0..size / 85).flat_map(|number| full(size - number * 85)).collect(),
        (0..size / 85).flat_map(|number| full(size - number * 85 + 100 * stride)).collect(),
    ];
    for (nth, body) in bodies.into_iter().enumerate() {
        let disk = Memory::default();
        let (restored, wal, _) = open(Box::new(disk.clone()), 10 << 20);
        let mut server = serve(restored, wal);
        put_all(&mut server, std::iter::repeat_n(body, 150));
        let mut files = disk.files();
        let bytes = files.get_mut(&Name::Segment(1)).expect("it was written");
        bytes[150] ^= 1;
        let damaged = files.clone();
        let disk = Memory(Arc::new(Mutex::new(files)));
        let (restored, wal, report) = open(Box::new(disk.clone()), 10 << 20);
        assert_eq!(ids(&restored.queue), (2..=150).collect::<Vec<_>>(), "body {nth}: {report:?}");
        settle(&mut serve(restored, wal));
        assert_eq!(disk.files()[&Name::Damaged(1)], damaged[&Name::Segment(1)], "body {nth}");
    }
}

/// If a segment's header is damaged, a body that contains a whole segment with its header would be
/// read as jobs.
#[test]
fn a_segment_within_a_body_is_not_believed() {
    let forged = {
        let disk = Memory::default();
        let (restored, wal, _) = open(Box::new(disk.clone()), 65_536);
        let mut server = serve(restored, wal);
        put_all(&mut server, (0..300).map(|_| b"forged".to_vec()));
        disk.files()[&Name::Segment(1)].clone()
    };
    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), 1 << 20);
    let mut server = serve(restored, wal);
    put_all(&mut server, (0..10).map(|_| forged[..40_000].to_vec()));
    let mut files = disk.files();
    let bytes = files.get_mut(&Name::Segment(1)).expect("it was written");
    // The salt, the id and the magic are damaged: nothing is left of the first header.
    bytes[8..60].fill(0xAA);
    let (restored, _, report) = open(Box::new(Memory(Arc::new(Mutex::new(files)))), 1 << 20);
    assert_eq!(ids(&restored.queue), (1..=10).collect::<Vec<_>>(), "{report:?}");
}

/// A lost page together with a torn end, as every crash leaves, would lose the whole segment,
/// although the records after that page have valid checksums.
#[test]
fn a_lost_page_and_a_torn_tail_cost_no_more_than_both() {
    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), 1 << 20);
    let mut server = serve(restored, wal);
    put_all(&mut server, (0..1000).map(|_| vec![b'x'; 100]));
    let mut files = disk.files();
    let bytes = files.get_mut(&Name::Segment(1)).expect("it was written");
    bytes[..4096].fill(0);
    let end = format::end(&disk.files()[&Name::Segment(1)]);
    bytes[end - 30..].fill(0);
    let (restored, _, report) = open(Box::new(Memory(Arc::new(Mutex::new(files)))), 1 << 20);
    assert!(ids(&restored.queue).len() > 970, "{}: {report:?}", ids(&restored.queue).len());
}

/// If the only header of a short segment is damaged, headers in a body would be trusted, and jobs
/// of other segments deleted. Any other file of the directory has the key; without such a file, no
/// record can be read, and everything is kept.
#[test]
fn a_damaged_mark_does_not_hand_the_segment_to_a_body() {
    let forged = {
        let disk = Memory::default();
        let (restored, wal, _) = open(Box::new(disk.clone()), 4096);
        let mut server = serve(restored, wal);
        put_all(&mut server, (0..5).map(|_| b"forged".to_vec()));
        let bytes = disk.files()[&Name::Segment(1)].clone();
        bytes[4..format::end(&bytes)].to_vec()
    };
    for (others, wanted) in [(true, &[1, 2][..]), (false, &[])] {
        let disk = Memory::default();
        let (restored, wal, _) = open(Box::new(disk.clone()), 65_536);
        let mut server = serve(restored, wal);
        put_all(&mut server, [b"mine".to_vec(), forged.clone()]);
        let mut files = disk.files();
        files.retain(|&name, _| others || name == Name::Segment(1));
        let bytes = files.get_mut(&Name::Segment(1)).expect("it was written");
        bytes[33] ^= 1;
        let (restored, _, report) = open(Box::new(Memory(Arc::new(Mutex::new(files)))), 65_536);
        assert_eq!(
            (ids(&restored.queue), report.is_damaged()),
            (wanted.to_vec(), true),
            "{report:?}"
        );
        let problem = &report.segments[0].problems[0];
        assert_eq!(problem.contains("no segment in the directory"), !others, "{problem}");
        assert!(restored.queue.next_id() > 2, "an id would be given out again");
    }
}

/// The jobs of a segment that an operator brings back from another directory would be taken for
/// damage. A segment that is copied to another number must not be read as later changes.
#[test]
fn a_segment_of_another_directory_is_read_by_its_own_key() {
    let written = |key: u64, count: usize| {
        let disk = Memory::default();
        let (restored, wal, _) =
            try_open(Box::new(disk.clone()), 65_536, key).expect("it is empty");
        put_all(&mut serve(restored, wal), (0..count).map(|_| b"body".to_vec()));
        disk.files()[&Name::Segment(1)].clone()
    };
    let disk = Memory::default();
    for _ in 0..2 {
        let (restored, wal, _) = try_open(Box::new(disk.clone()), 65_536, 1).expect("sound");
        drop(serve(restored, wal));
    }
    let mut files = disk.files();
    let other = written(2, 3);
    files.insert(Name::Segment(1), other.clone());
    files.insert(Name::Segment(3), other);
    let (restored, _, report) = open(Box::new(Memory(Arc::new(Mutex::new(files)))), 65_536);
    assert_eq!(ids(&restored.queue), [1, 2, 3], "{report:?}");
    let seen = report.segments.iter().map(|it| (it.number, it.has_other_key, it.is_damaged()));
    let wanted = [(1, true, false), (2, false, false), (3, false, true)];
    assert_eq!(seen.collect::<Vec<_>>(), wanted, "{report:?}");
}

/// The files of a directory from a build before 2.0.0 would be treated as damaged.
#[test]
fn a_segment_of_an_earlier_build_ends_the_start() {
    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), 65_536);
    put_all(&mut serve(restored, wal), (0..3).map(|_| b"body".to_vec()));
    let mut files = disk.files();
    let bytes = files.get_mut(&Name::Segment(1)).expect("it was written");
    bytes[8 + 40..][..8].copy_from_slice(b"bnstlkRS");
    let before = files.clone();
    let disk = Memory(Arc::new(Mutex::new(files)));
    let opened = try_open(Box::new(disk.clone()), 65_536, 7);
    let error = opened.map(drop).expect_err("only the earlier build can read it").to_string();
    assert!(error.contains("binlog.1: a build of this daemon before 2.0.0 wrote it"), "{error}");
    assert_eq!(disk.files(), before);
}

/// One flipped bit in the size of a body leads the reader into the next body. A record that a
/// hostile client has put there would delete a job of another file.
#[test]
fn a_wrong_length_leads_into_no_body() {
    let old = segment(&[record(1, "default", b"12345678\r\n", 1)]);
    let first = record(2, "default", b"12345678\r\n", 1);
    let second = record(3, "default", b"", 1);
    // How far the first body would reach into the second if it were 128 bytes longer.
    let reach = 128 - second.len();
    let delete = record(1, "", b"12345678\r\n", 0);
    for end in [*b"\r\n", *b"\x0c\x0b", *b"xx"] {
        let mut body = vec![b'x'; reach];
        body[reach - 2..].copy_from_slice(&end);
        body.extend_from_slice(&delete);
        body.extend_from_slice(b"\r\n");
        let second = record(3, "default", &body, 1);
        let mut damaged = first.clone();
        damaged[4 + 7 + 32] ^= 128;
        let new = segment(&[damaged, second]);
        let (restored, ..) = open(Box::new(on_disk([(1, old.clone()), (2, new)])), 4096);
        let is_whole = end == *b"\r\n";
        // If the bytes at the wrong end are CR LF, the error is not detectable.
        assert!(
            is_whole || restored.queue.find(1).is_some(),
            "{end:?}: {:?}",
            ids(&restored.queue)
        );
    }
}

/// After a clean shutdown, the last records, which come after a few zeros, would be taken for
/// unfinished and cut off.
#[test]
fn what_lies_behind_zeros_in_the_newest_segment_is_kept() {
    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), 1 << 20);
    let mut server = serve(restored, wal);
    put_all(&mut server, [b"small".to_vec(), vec![b'x'; 50_000]]);
    let mut files = disk.files();
    let bytes = files.get_mut(&Name::Segment(1)).expect("it was written");
    let large = format::records(bytes).into_iter().find(|record| record.id == 2).expect("it").at;
    bytes[large..large + 91].fill(0);
    let damaged = bytes.clone();
    let disk = Memory(Arc::new(Mutex::new(files)));
    let (restored, wal, report) = open(Box::new(disk.clone()), 1 << 20);
    assert!(report.is_damaged(), "{report:?}");
    assert_eq!(ids(&restored.queue), [1]);
    assert_eq!(disk.files()[&Name::Segment(1)], damaged);
    settle(&mut serve(restored, wal));
    assert_eq!(disk.files()[&Name::Damaged(1)], damaged);
}

/// If a file cannot be removed, the binlog would be treated as failed, and all jobs would be
/// written again and again.
#[derive(Debug)]
struct Sticky(Memory, Arc<AtomicBool>);

impl Disk for Sticky {
    fn confirm_lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        self.0.list()
    }
    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(name, offset, buffer)
    }
    fn next_data(&mut self, name: Name, offset: u64) -> io::Result<Option<u64>> {
        self.0.next_data(name, offset)
    }
    fn create(&mut self, name: Name) -> io::Result<()> {
        self.0.create(name)
    }
    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        self.0.reserve(name, size)
    }
    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(name, offset, bytes)
    }
    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        if name == Name::Segment(1) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.0.truncate(name, size)
    }
    fn sync(&mut self, name: Name) -> io::Result<Duration> {
        if self.1.swap(false, Ordering::Relaxed) {
            return Err(io::Error::other("it fails once"));
        }
        self.0.sync(name)
    }
    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        self.0.begin_sync(name)
    }
    fn sync_result(&mut self, waits: bool) -> Option<io::Result<Duration>> {
        self.0.sync_result(waits)
    }
    fn close(&mut self, name: Name) {
        self.0.close(name);
    }
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        if from == Name::Segment(1) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.0.rename(from, to)
    }
    fn remove(&mut self, name: Name) -> io::Result<()> {
        if name == Name::Segment(1) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.0.remove(name)
    }
    fn sync_directory(&mut self) -> io::Result<()> {
        self.0.sync_directory()
    }
}

#[test]
fn a_file_that_cannot_be_removed_does_not_stop_the_service() {
    for is_damaged in [false, true] {
        let healthy: Vec<_> =
            (1..=20).map(|id| record(id, "default", b"12345678\r\n", 1)).collect();
        let mut bytes = segment(&healthy);
        if is_damaged {
            bytes.extend_from_slice(&[0xFF; 9]);
        }
        let disk = on_disk([(1, bytes.clone())]);
        let (restored, wal, _) = open(Box::new(Sticky(disk.clone(), Arc::default())), 4096);
        let mut server = serve(restored, wal);
        let client = server.open();
        let mut migrated = None;
        for round in 0..100u64 {
            let now = NOW + Duration::from_millis(500 * round);
            let put = b"put 0 0 60 1\r\nx\r\n";
            assert_eq!(server.feed(client, put, COMMANDS_PER_CONNECTION, now).0, put.len());
            // One delete for each put, so that there is always garbage.
            let delete = format!("delete {}\r\n", round + 1);
            server.feed(client, delete.as_bytes(), COMMANDS_PER_CONNECTION, now);
            server.tick(now);
            server.commit(now);
            let (slices, count) = server.output(client);
            let reply: Vec<u8> = slices[..count].iter().flat_map(|it| it.to_vec()).collect();
            let reply = String::from_utf8(reply).expect("text");
            assert!(reply.contains("INSERTED") && reply.contains("DELETED"), "{round}: {reply}");
            server.sent(client, server.conn(client).output.len());
            if round == 50 {
                migrated = server.wal().map(|log| log.counts().migrated);
            }
        }
        let log = server.wal().expect("there is one");
        assert!(log.is_sound());
        // All jobs are written once, and a few again for the garbage: not all of them again and
        // again.
        let since = log.counts().migrated - migrated.expect("it was read");
        assert!(since < 200, "{since} jobs were written again");
        assert_eq!(disk.files()[&Name::Segment(1)], bytes);
    }
}

/// If an old file cannot be removed, the binlog would not recover from a failed sync as long as
/// that file exists.
#[test]
fn a_log_recovers_beside_a_file_that_cannot_be_removed() {
    let healthy: Vec<_> = (1..=20).map(|id| record(id, "default", b"12345678\r\n", 1)).collect();
    let disk = on_disk([(1, segment(&healthy))]);
    let fails = Arc::new(AtomicBool::new(false));
    let (restored, wal, _) = open(Box::new(Sticky(disk.clone(), Arc::clone(&fails))), 4096);
    let mut server = serve(restored, wal);
    let client = server.open();
    fails.store(true, Ordering::Relaxed);
    server.feed(client, b"put 0 0 60 1\r\nx\r\n", COMMANDS_PER_CONNECTION, NOW);
    server.commit(NOW);
    assert!(!server.wal().expect("there is one").is_sound());
    for round in 1..100u64 {
        let now = NOW + Duration::from_millis(100 * round);
        server.tick(now);
        server.commit(now);
    }
    assert!(server.wal().expect("there is one").is_sound(), "it works again within seconds");
}

/// After the last file number, the daemon could not write, or would write files that the original
/// cannot read.
#[test]
fn a_start_needs_more_numbers_than_a_daemon_uses() {
    for (number, opens) in [(u32::MAX / 2 - (1 << 20) - 1, true), (u32::MAX / 2 - (1 << 20), false)]
    {
        let disk = on_disk([(number, segment(&[record(1, "default", b"12345678\r\n", 1)]))]);
        let before = disk.files();
        let mut restored = Restored::default();
        let options = Options { segment_size: 4096, sync: SyncPolicy::Never, key: 7 };
        let (calendar, own) = (Calendar::new(NOW, DATE), Box::new(disk.clone()));
        match Wal::open(own, options, &mut restored, calendar, NOW, &mut wal::go_on) {
            Ok(_) => assert!(opens),
            Err(error) => {
                let text =
                    format!("no segment can follow binlog.{number}: its number is too large");
                assert_eq!(error.to_string(), text);
                assert!(!opens && disk.files() == before);
            }
        }
    }
}

fn open_at(disk: &Memory, calendar: Calendar) -> (Restored, Wal, Report) {
    let mut restored = Restored::default();
    let options = Options { segment_size: 4096, sync: SyncPolicy::Within(Duration::ZERO), key: 7 };
    let (disk, progress) = (Box::new(disk.clone()), &mut wal::go_on);
    let opened = Wal::open(disk, options, &mut restored, calendar, NOW, progress);
    let (wal, report) = opened.expect("it opens");
    (restored, wal, report)
}

/// On a machine whose clock starts in 1970, restored delays would last fifty years, even after the
/// clock has been set, and compaction would make that permanent. On a machine whose clock is
/// decades ahead, all delays would end at once.
#[test]
fn restored_delays_end_at_their_dates_once_the_clock_is_right() {
    let truth = Calendar::new(NOW, DATE);
    let decades = 30 * 365 * 24 * 3600 * 1_000_000_000i64;
    for wrong_by in [-decades, decades] {
        let wrong = Calendar::new(NOW, DATE + wrong_by);
        let disk = Memory::default();
        let (restored, wal, _) = open_at(&disk, truth);
        let mut server = serve(restored, wal);
        let client = server.open();
        for id in 1..=30 {
            let delay = if id % 3 == 0 { 0 } else { 1000 };
            let put = format!("put 0 {delay} 60 1\r\nx\r\n");
            server.feed(client, put.as_bytes(), COMMANDS_PER_CONNECTION, NOW);
        }
        server.commit(NOW);
        let ends = |queue: &Queue, calendar: Calendar| {
            let all = (1..=30).filter_map(|id| queue.find(id));
            let all = all.map(|job| (queue.job(job).record.clone(), queue.job(job).dated));
            let all = all.map(|(record, dated)| {
                let is_delayed = record.state == State::Delayed || dated.is_state_at;
                (record.id, is_delayed.then(|| calendar.date(record.state_at) / 1_000_000_000))
            });
            all.collect::<Vec<_>>()
        };
        let wanted = ends(server.queue(), truth);
        drop(server);

        let (restored, wal, _) = open_at(&disk, wrong);
        let mut server = serve(restored, wal);
        server.set_calendar(wrong, NOW);
        server.tick(NOW);
        server.commit(NOW);
        assert_eq!(ends(server.queue(), wrong), wanted, "the dates are what they were");
        let later = NOW + Duration::from_secs(1);
        let right = Calendar::new(later, DATE + 1_000_000_000);
        for _ in 0..3 {
            server.set_calendar(right, later);
            server.tick(later);
            server.commit(later);
            server.check();
        }
        assert_eq!(ends(server.queue(), right), wanted);
        let delayed = server.queue().find_tube("default").expect("it is always there");
        assert_eq!(server.queue().tube(delayed).delayed(), 20, "all of them wait again");
        // These jobs make garbage, so that all jobs are written again.
        let client = server.open();
        for _ in 0..60 {
            let put = [b"put 9 0 60 400\r\n", &[b'y'; 400][..], b"\r\n"].concat();
            server.feed(client, &put, COMMANDS_PER_CONNECTION, later);
            let id = server.queue().next_id() - 1;
            server.feed(
                client,
                format!("delete {id}\r\n").as_bytes(),
                COMMANDS_PER_CONNECTION,
                later,
            );
            server.commit(later);
            server.sent(client, server.conn(client).output.len());
        }
        settle(&mut server);
        assert!(server.wal().expect("there is one").counts().migrated >= 30);
        drop(server);
        let (restored, ..) = open_at(&disk, truth);
        assert_eq!(ends(&restored.queue, truth), wanted, "and so are those on the disk");
    }
}

/// A job put while the clock is wrong would be delayed by decades after a restart.
#[test]
fn dates_written_under_a_wrong_clock_are_written_anew() {
    let decades = 30 * 365 * 24 * 3600 * 1_000_000_000i64;
    for wrong_by in [-decades, decades] {
        let disk = Memory::default();
        let (restored, wal, _) = open_at(&disk, Calendar::new(NOW, DATE + wrong_by));
        let mut server = serve(restored, wal);
        let client = server.open();
        server.feed(
            client,
            b"put 0 1000 60 1\r\nx\r\nput 0 1 60 1\r\nx\r\n",
            COMMANDS_PER_CONNECTION,
            NOW,
        );
        server.commit(NOW);
        let later = NOW + Duration::from_secs(2);
        let right = Calendar::new(later, DATE + 2_000_000_000);
        server.tick(later);
        server.set_calendar(right, later);
        server.tick(later);
        server.commit(later);
        drop(server);
        let (restored, ..) = open_at(&disk, Calendar::new(NOW, DATE + 2_000_000_000));
        let state =
            |id| restored.queue.job(restored.queue.find(id).expect("it is there")).record.state;
        assert_eq!((state(1), state(2)), (State::Delayed, State::Ready));
    }
}

/// A file that the original was making when it was killed would be reported as damage. An older
/// file of zeros is damage, because its records are lost.
#[test]
fn a_newest_file_of_zeros_has_only_been_begun() {
    let old = segment(&[record(1, "default", b"12345678\r\n", 1)]);
    for zeros in [1, 4, 4096, 1 << 20] {
        for (number, is_damaged) in [(3, false), (1, true)] {
            let disk = on_disk([(number, vec![0; zeros]), (2, old.clone())]);
            let (restored, wal, report) = open(Box::new(disk.clone()), 4096);
            assert_eq!((ids(&restored.queue), report.is_damaged()), (vec![1], is_damaged));
            settle(&mut serve(restored, wal));
            let names: Vec<_> = disk.files().into_keys().collect();
            assert_eq!(names.contains(&Name::Damaged(number)), is_damaged, "{names:?}");
        }
    }
}

/// A file of zeros would hide that an older file ends in damage, and that file would be removed.
#[test]
fn an_unfinished_end_is_damage_if_any_newer_file_has_records() {
    let disk = Memory::default();
    let (restored, wal, _) = open(Box::new(disk.clone()), 65_536);
    let mut server = serve(restored, wal);
    put_all(&mut server, (0..5).map(|_| b"x".to_vec()));
    let mut torn = disk.files()[&Name::Segment(1)].clone();
    let end = format::end(&torn);
    torn[end - 3] ^= 1;
    let newer = segment(&[record(9, "default", b"12345678\r\n", 1)]);
    for (between, last, is_damaged) in [
        (vec![], vec![], false),
        (vec![0; 8192], vec![], false),
        (vec![], newer.clone(), true),
        (vec![0; 8192], newer.clone(), true),
    ] {
        let disk = on_disk([(1, torn.clone()), (2, between), (3, last)]);
        let (_, _, report) = open(Box::new(disk), 65_536);
        assert_eq!(report.segments[0].is_damaged(), is_damaged, "{report:?}");
        assert_eq!(report.segments[0].torn.is_none(), is_damaged);
    }
}

/// One wrong bit in a file of the original would keep the daemon from starting: the file would be
/// taken for a file of another kind of machine.
#[test]
fn no_wrong_bit_looks_like_another_machine() {
    let records: Vec<_> = (1..=20).map(|id| record(id, "default", b"12345678\r\n", 1)).collect();
    let healthy = segment(&records);
    for bit in 32..110 * 8 {
        let mut bytes = healthy.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        open(Box::new(on_disk([(1, bytes)])), 4096);
    }
}

/// A directory or a link with the name of the next preallocated file would keep the daemon from
/// starting.
#[test]
fn a_taken_name_is_passed_over() {
    let folder = Folder::new();
    std::os::unix::fs::symlink("nowhere", folder.path().join("spare.1")).expect("a link");
    fs::create_dir(folder.path().join("spare.2")).expect("a directory");
    let daemon = folder.serve(OURS, &[]);
    Peer::of(&daemon).put(0, 0, b"x");
    end(daemon, libc::SIGTERM);
}

/// If the newer copy of a job is torn, the older one would be forgotten, as by the original.
///
/// Proves: B32.
#[test]
fn a_torn_newer_copy_leaves_the_older_one() {
    let old = segment(&[record(1, "default", b"12345678\r\n", 1)]);
    let torn = record(1, "default", b"12345678\r\n", 1);
    let new = segment(&[torn[..torn.len() - 3].to_vec()]);
    let (restored, ..) = open(Box::new(on_disk([(1, old), (2, new)])), 4096);
    assert_eq!(ids(&restored.queue), [1]);
}

/// Impossible values in a record would be served to clients, or written for the original to read.
#[test]
fn values_that_make_no_sense_are_corrected() {
    let mut bytes = record(1, "default", b"12345678\r\n", 2);
    bytes[4 + 7 + 16..][..8].copy_from_slice(&(-5i64).to_le_bytes());
    bytes[4 + 7 + 24..][..8].copy_from_slice(&0i64.to_le_bytes());
    let (restored, ..) = open(Box::new(on_disk([(1, segment(&[bytes]))])), 4096);
    let record = &restored.queue.job(restored.queue.find(1).expect("it is there")).record;
    assert_eq!((record.state, record.delay, record.ttr), (State::Ready, 0, 1));
}

/// A segment of the last run would keep the preallocated space after its records.
#[test]
fn found_segments_are_cut_to_what_they_hold() {
    let folder = Folder::new();
    let daemon = folder.serve(OURS, &["-s", "1048576"]);
    // The job is so large that its segment is not rewritten because of the header's share.
    Peer::of(&daemon).put(0, 0, &[b'x'; 1000]);
    assert_eq!(folder.files()["binlog.1"], 1 << 20);
    end(daemon, libc::SIGKILL);
    let daemon = folder.serve(OURS, &["-s", "1048576"]);
    assert_eq!(Peer::of(&daemon).value::<u64>("stats", "current-jobs-ready"), 1);
    assert!(folder.files()["binlog.1"] < 1300);
}
