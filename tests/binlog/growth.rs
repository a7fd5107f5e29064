//! How much room a log takes.

use crate::stage::{Folder, OURS, Peer, from_environment};

const JOBS: u64 = 200;
const BODY: usize = 100;
const SEGMENT: u64 = 64 * 1024;

/// Changes without `make kills`.
const CYCLES: u64 = 20_000;

/// How many commands are sent at once.
const AT_ONCE: u64 = 100;

/// A short record: a name's length and eighty bytes.
const SHORT: u64 = 84;

/// A worker that gives its jobs back again and again would fill the disk with their past.
///
/// Proves: B7.
#[test]
fn jobs_released_for_ever_take_no_more_room() {
    grow(&[]);
}

/// The same where nothing is synced, so nothing waits for that.
///
/// Proves: B7.
#[test]
fn jobs_released_for_ever_take_no_more_room_without_syncs() {
    grow(&["-F"]);
}

fn grow(flags: &[&str]) {
    let cycles = from_environment("CYCLES").unwrap_or(CYCLES);
    let folder = Folder::new();
    let segment = SEGMENT.to_string();
    let daemon = folder.serve(OURS, &[&["-s", &segment], flags].concat());
    let mut client = Peer::of(&daemon);
    for id in 1..=JOBS {
        assert_eq!(client.put(0, 0, &[b'x'; BODY]), id);
    }
    // Each job's full record, in tube `default` with its CR LF, and a short one.
    let live = JOBS * (SHORT + 7 + BODY as u64 + 2 + SHORT);
    let bound = 2 * SEGMENT + 2 * live;
    let mut largest = 0;
    for first in (0..cycles).step_by(usize::try_from(AT_ONCE).expect("small")) {
        let ids = (first..cycles.min(first + AT_ONCE)).map(|cycle| cycle % JOBS + 1);
        let commands = ids.clone().map(|id| format!("reserve-job {id}\r\nrelease {id} 0 1000\r\n"));
        client.0.send(commands.collect::<String>()).expect("the daemon takes it");
        for id in ids {
            assert_eq!(client.0.line().expect("a reply"), format!("RESERVED {id} {BODY}"));
            client.0.bytes(BODY + 2).expect("its body");
            assert_eq!(client.0.line().expect("a reply"), "RELEASED");
        }
        let size = folder.files().values().sum();
        assert!(size <= bound, "{size} bytes after {first} cycles: {:?}", folder.files());
        largest = largest.max(size);
    }
    let segments: u64 = client.value("stats", "binlog-current-index");
    assert!(segments >= cycles * SHORT / SEGMENT, "all of it was written: {segments} segments");
    println!(
        "{flags:?}: {cycles} cycles, {segments} segments: at most {largest} bytes, {bound} allowed"
    );
}
