//! The times of syncs, as seen in the daemon's system calls.
//!
//! Nothing here is judged by the clock. The order and the arguments of the calls show that a reply
//! was sent after a sync, and that a wait was not too long.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use ct::{Daemon, LONG, eventually, skip};

use crate::harness::{Folder, OURS, Peer, can_run, start};

/// The calls that are traced. Replies leave by `send` on 32-bit x86.
const CALLS: &str = "trace=write,writev,pwrite64,sendto,sendmsg,?send,fdatasync,fsync,\
                     rename,renameat,renameat2,unlink,unlinkat,openat,epoll_wait,epoll_pwait";

/// One system call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    /// Bytes were sent to a client.
    Send {
        confirms_change: bool,
    },
    /// A file of the binlog was written.
    Write(String),
    /// A sync of a file of the binlog began; the sync covers what was written before.
    BeginSync(String),
    /// The sync that began runs in a thread of its own, as with `-f0` if syncs take long.
    BeginLongSync,
    /// The sync has ended.
    Sync(String),
    /// The directory was synced.
    SyncNames,
    Rename {
        from: String,
        to: String,
    },
    Remove(String),
    /// A wait for events, with its limit in milliseconds.
    Wait {
        milliseconds: i64,
        has_events: bool,
    },
}

/// A daemon whose calls are traced.
struct Traced {
    daemon: Daemon,
    place: String,
    trace: PathBuf,
    folder: PathBuf,
}

impl Traced {
    /// Starts the daemon. Returns `None`, and reports a skip, if calls cannot be traced here.
    fn start(folder: &Folder, flags: &[&str]) -> Option<Self> {
        // With -D the daemon is our child, and strace runs as a grandchild.
        if !can_run("strace", &["-D", "-o", "/dev/null", "true"]) {
            skip("strace is not installed, or may not trace (Debian's package strace)");
            return None;
        }
        let trace = folder.path().join("trace");
        let trace_text = trace.to_str().expect("a plain name").to_owned();
        let mut all =
            vec!["-D", "-f", "-y", "-s", "12", "-o", &trace_text, "-e", CALLS, OURS, "-V"];
        all.extend(["-l", "127.0.0.1", "-p", "0", "-b", folder.text()]);
        all.extend(flags);
        let (daemon, place) = start("strace", &all);
        Some(Self { daemon, place, trace, folder: folder.path().into() })
    }

    /// Returns the calls so far. Calls between a reply and the next wait may be missing.
    fn calls(&self) -> Vec<Call> {
        let trace = fs::read_to_string(&self.trace).expect("a trace");
        // The last line may be incomplete.
        let whole = trace.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut calls = Vec::new();
        let (mut unfinished, mut first_thread) = (BTreeMap::new(), None);
        for line in whole.lines() {
            let Some((thread, line)) = line.trim_start().split_once(' ') else { continue };
            let line = line.trim_start();
            let is_first = *first_thread.get_or_insert(thread) == thread;
            if !is_first && line.contains("sync(") && line.contains("/binlog.") {
                calls.push(Call::BeginLongSync);
            }
            // Another thread's call may come between the beginning and the end of a call.
            let line = if let Some((begin, _)) = line.split_once(" <unfinished ...>") {
                calls.extend(beginning(begin, &self.folder));
                unfinished.insert(thread, begin);
                continue;
            } else if let Some((_, end)) = line.split_once(" resumed>") {
                unfinished.remove(thread).expect("its beginning").to_owned() + end
            } else {
                calls.extend(beginning(line, &self.folder));
                line.to_owned()
            };
            calls.extend(call(&line, &self.folder));
        }
        calls
    }

    /// Ends the daemon and returns all its calls.
    #[track_caller]
    fn end(mut self) -> Vec<Call> {
        self.daemon.signal(libc::SIGTERM).expect("it runs");
        self.daemon.wait_exit(LONG).expect("it ends");
        eventually("the trace is complete", || {
            fs::read_to_string(&self.trace).is_ok_and(|trace| trace.contains("+++ exited with 0"))
        });
        self.calls()
    }
}

/// A path's name within the folder; empty for the folder itself.
fn file(path: &str, folder: &Path) -> Option<String> {
    let name = Path::new(path).strip_prefix(folder).ok()?.to_str()?.to_owned();
    Some(name).filter(|name| name != "trace")
}

/// The file or socket of a call's descriptor: `7</path/binlog.1>`.
fn descriptor(arguments: &str) -> Option<&str> {
    arguments.split_once('<')?.1.split_once('>').map(|(text, _)| text)
}

/// Returns the event at the beginning of a call: a write may already be visible, and a sync covers
/// earlier writes.
fn beginning(line: &str, folder: &Path) -> Option<Call> {
    let (name, arguments) = line.split_once('(')?;
    let target = descriptor(arguments);
    let confirms_change =
        ["INSERTED", "BURIED", "RELEASED", "DELETED"].iter().any(|it| arguments.contains(it));
    match name {
        "send" | "sendto" | "sendmsg" => Some(Call::Send { confirms_change }),
        // A reply in several pieces is sent by writev.
        "writev" if target?.starts_with("socket:") => Some(Call::Send { confirms_change }),
        // Zeros ahead of the records need no sync.
        "pwrite64" if arguments.contains(&"\\0".repeat(12)) => None,
        "write" | "writev" | "pwrite64" => file(target?, folder).map(Call::Write),
        "fsync" | "fdatasync" => {
            file(target?, folder).filter(|name| !name.is_empty()).map(Call::BeginSync)
        }
        _ => None,
    }
}

/// Returns the event at the end of a call: `fdatasync(7</path/binlog.1>) = 0`.
fn call(line: &str, folder: &Path) -> Option<Call> {
    let (name, arguments) = line.split_once('(')?;
    let (arguments, result) = arguments.rsplit_once(" = ")?;
    let has_failed = result.starts_with('-');
    let quoted = |number: usize| {
        arguments.split('"').nth(2 * number + 1).and_then(|path| file(path, folder))
    };
    match name {
        "fsync" | "fdatasync" if !has_failed => {
            let name = file(descriptor(arguments)?, folder)?;
            Some(if name.is_empty() { Call::SyncNames } else { Call::Sync(name) })
        }
        "rename" | "renameat" | "renameat2" if !has_failed => {
            Some(Call::Rename { from: quoted(0)?, to: quoted(1)? })
        }
        "unlink" | "unlinkat" if !has_failed => quoted(0).map(Call::Remove),
        "epoll_wait" | "epoll_pwait" => {
            let arguments = arguments.trim_end_matches([' ', ')']).trim_end_matches(", NULL, 8");
            let milliseconds = arguments.rsplit(", ").next()?.parse().ok()?;
            Some(Call::Wait { milliseconds, has_events: !result.starts_with('0') })
        }
        _ => None,
    }
}

fn is_segment(name: &str) -> bool {
    name.starts_with("binlog.")
}

/// Puts, changes and deletes jobs of two clients, in batches, so that files fill and are removed.
#[track_caller]
fn work(place: &str) {
    let (mut one, mut two) = (Peer::at(place), Peer::at(place));
    for round in 0..30 {
        let batch = "put 0 0 60 300\r\n".to_owned() + &"x".repeat(300) + "\r\n";
        one.0.send(batch.repeat(3)).expect("the daemon takes it");
        let ids = [(); 3].map(|()| {
            let line = one.0.line().expect("a reply");
            line.strip_prefix("INSERTED ").expect("an id").parse::<u64>().expect("an id")
        });
        for id in ids {
            two.take(id);
        }
        let [first, second, third] = ids;
        two.tell(&format!("bury {first} 5"), "BURIED");
        two.tell(&format!("release {second} 5 1000"), "RELEASED");
        one.tell(&format!("delete {first}"), "DELETED");
        one.tell(&format!("delete {second}"), "DELETED");
        if round % 4 > 0 {
            two.tell(&format!("delete {third}"), "DELETED");
        }
    }
    // Waits until the remaining work is done, however long that takes.
    one.tell("list-tube-used", "USING default");
}

/// The files with writes that no sync covers.
#[derive(Debug, Default)]
struct Unsynced {
    /// The value is true if a sync under way covers all writes to the file so far.
    files: BTreeMap<String, bool>,
}

impl Unsynced {
    fn note(&mut self, call: &Call) {
        match call {
            Call::Write(name) => {
                self.files.insert(name.clone(), false);
            }
            Call::BeginSync(name) => {
                self.files.get_mut(name).into_iter().for_each(|is_covered| *is_covered = true);
            }
            Call::Sync(name) if self.files.get(name) == Some(&true) => {
                self.files.remove(name);
            }
            Call::Rename { from, to } => {
                if let Some(is_covered) = self.files.remove(from) {
                    self.files.insert(to.clone(), is_covered);
                }
            }
            _ => {}
        }
    }

    /// Returns a segment with unsynced writes. The bytes of a preallocated file are not needed
    /// before the file is a segment.
    fn segment(&self) -> Option<&String> {
        self.files.keys().find(|name| is_segment(name))
    }
}

/// Checks that each change was written and then synced before the reply that confirms it, and that
/// every write was synced before the next reply.
///
/// If syncs take long, the daemon continues meanwhile: other replies leave, a segment is removed
/// once the records that replace it are synced, and compaction writes records without replies.
fn assert_nothing_leaves_unsynced(calls: &[Call]) {
    let mut unsynced = Unsynced::default();
    let mut names_changed = false;
    let goes_on = calls.contains(&Call::BeginLongSync);
    // The steps since the last confirmation: a write, then the beginning of a sync, then its end.
    let mut steps = 0;
    for (at, call) in calls.iter().enumerate() {
        unsynced.note(call);
        steps = match (steps, call) {
            (0, Call::Write(name)) if is_segment(name) => 1,
            (1, Call::BeginSync(name)) if is_segment(name) => 2,
            (2, Call::Sync(name)) if is_segment(name) => 3,
            (steps, Call::Send { confirms_change: true }) => {
                assert_eq!(steps, 3, "call {at}: a change is confirmed before its sync");
                0
            }
            (steps, _) => steps,
        };
        match call {
            Call::SyncNames => names_changed = false,
            Call::Rename { to, .. } => {
                assert_eq!(unsynced.segment(), None, "call {at}: a new name before its sync");
                assert!(!names_changed, "call {at}: the name {to} before the last one is sure");
                names_changed = true;
            }
            Call::Remove(name) if is_segment(name) => {
                assert!(!names_changed, "call {at}: {name} goes before the last name is sure");
                assert!(goes_on || unsynced.segment().is_none(), "call {at}: {name} goes before");
                names_changed = true;
            }
            Call::Send { .. } => {
                assert!(goes_on || unsynced.segment().is_none(), "call {at}: a reply before");
                assert!(!names_changed, "call {at}: a reply before the directory's sync");
            }
            _ => {}
        }
    }
}

#[track_caller]
fn count(calls: &[Call], is_it: impl Fn(&Call) -> bool) -> usize {
    calls.iter().filter(|call| is_it(call)).count()
}

/// With `-f0` a power cut would lose changes that were acknowledged.
///
/// Proves: B8.
#[test]
fn with_f0_no_reply_leaves_before_what_it_says_is_synced() {
    let folder = Folder::new();
    let mut segments = 0;
    // The daemon is traced twice, because startup also changes the names of files.
    for _ in 0..2 {
        let Some(traced) = Traced::start(&folder, &["-f0", "-s", "4096"]) else { return };
        work(&traced.place);
        let calls = traced.end();
        assert_nothing_leaves_unsynced(&calls);
        assert!(count(&calls, |call| matches!(call, Call::Send { .. })) > 200);
        let is_removed = |call: &Call| matches!(call, Call::Remove(name) if is_segment(name));
        assert!(count(&calls, is_removed) > 5, "files went");
        segments += count(&calls, |call| matches!(call, Call::Rename { .. }));
    }
    assert!(segments > 20, "files ended: {segments}");
}

/// With `-f0` each of many commands that arrive together would wait for a sync of its own.
///
/// Proves: B8.
#[test]
fn with_f0_commands_that_arrive_together_share_a_sync() {
    let folder = Folder::new();
    let Some(traced) = Traced::start(&folder, &["-f0"]) else { return };
    let mut client = Peer::at(&traced.place);
    client.0.send("put 0 0 60 1\r\nx\r\n".repeat(100)).expect("the daemon takes it");
    for id in 1..=100 {
        assert_eq!(client.0.line().expect("a reply"), format!("INSERTED {id}"));
    }
    let calls = traced.end();
    let syncs = count(&calls, |call| matches!(call, Call::Sync(name) if name == "binlog.1"));
    let writes = count(&calls, |call| matches!(call, Call::Write(name) if name == "binlog.1"));
    // The commands may arrive in a few pieces.
    assert!((1..10).contains(&syncs), "{syncs} syncs, {writes} writes");
    assert!(syncs <= writes, "{syncs} syncs, {writes} writes");
}

/// The last changes before a quiet period would never be synced, and a power cut hours later would
/// lose them.
///
/// Proves: B8.
#[test]
fn what_is_written_is_synced_soon_also_when_nothing_follows() {
    let folder = Folder::new();
    let Some(traced) = Traced::start(&folder, &["-f", "50"]) else { return };
    let mut client = Peer::at(&traced.place);
    for puts in 1..=3 {
        client.put(0, 0, b"x");
        eventually("it is synced, though nothing happens", || {
            let mut unsynced = Unsynced::default();
            let calls = traced.calls();
            for call in &calls {
                unsynced.note(call);
            }
            let is_write = |call: &&Call| matches!(call, Call::Write(name) if is_segment(name));
            calls.iter().filter(is_write).count() >= puts && unsynced.segment().is_none()
        });
    }
    // Between a write and the beginning of its sync, all waits that timed out must together be no
    // longer than the limit.
    let calls = traced.end();
    let (mut is_dirty, mut waited, mut syncs) = (false, 0, 0);
    for (at, call) in calls.iter().enumerate() {
        match call {
            Call::Write(name) if is_segment(name) => is_dirty = true,
            Call::BeginSync(name) if is_segment(name) => {
                syncs += usize::from(is_dirty);
                (is_dirty, waited) = (false, 0);
            }
            Call::Wait { milliseconds, has_events } if is_dirty => {
                assert!(*milliseconds >= 0, "call {at}: waits without end");
                // Limits are rounded up. After a shorter wait, the daemon only checks whether a
                // sync has ended, and another thread may not even have begun it.
                let is_for_sync = !has_events && *milliseconds > 3;
                waited += if is_for_sync { milliseconds - 1 } else { 0 };
                assert!(waited <= 50, "call {at}: has waited {waited} ms");
            }
            _ => {}
        }
    }
    assert!(!is_dirty, "all was synced before the end");
    assert!(syncs >= 3, "{syncs} syncs came by themselves");
}

/// Even with a long time between syncs, each change would wait for the disk.
///
/// Proves: B8.
#[test]
fn a_late_sync_is_not_made_early() {
    let folder = Folder::new();
    let Some(traced) = Traced::start(&folder, &["-f", "3600000"]) else { return };
    let mut client = Peer::at(&traced.place);
    for _ in 0..20 {
        client.put(0, 0, b"x");
    }
    let syncs = |calls: &[Call]| {
        count(calls, |call| matches!(call, Call::Sync(name) if name == "binlog.1"))
    };
    let calls = traced.calls();
    assert_eq!(syncs(&calls), 0, "an hour has not passed");
    assert!(count(&calls, |call| matches!(call, Call::Write(name) if name == "binlog.1")) >= 20);
    assert_eq!(syncs(&traced.end()), 1, "but its end has come");
}

/// A full file would never be synced, because later syncs apply to the file being written.
///
/// Proves: B8.
#[test]
fn a_full_file_is_synced_before_the_next_begins() {
    let folder = Folder::new();
    let Some(traced) = Traced::start(&folder, &["-f", "3600000", "-s", "4096"]) else { return };
    work(&traced.place);
    let calls = traced.end();
    let mut unsynced = Unsynced::default();
    let (mut ended, mut gone) = (0, 0);
    for (at, call) in calls.iter().enumerate() {
        unsynced.note(call);
        match call {
            Call::Rename { to, .. } if is_segment(to) => {
                assert_eq!(unsynced.segment(), None, "call {at}: {to} begins");
                ended += 1;
            }
            Call::Remove(name) if is_segment(name) => gone += 1,
            _ => {}
        }
    }
    assert!(ended > 10 && gone > 5, "{ended} files ended, {gone} went");
}

/// Even with `-F`, changes would wait for syncs.
///
/// Proves: B8.
#[test]
fn with_capital_f_nothing_is_ever_synced() {
    let folder = Folder::new();
    for _ in 0..2 {
        let Some(traced) = Traced::start(&folder, &["-F", "-s", "4096"]) else { return };
        work(&traced.place);
        let calls = traced.end();
        assert_eq!(count(&calls, |it| matches!(it, Call::Sync(_) | Call::SyncNames)), 0);
        assert!(count(&calls, |it| matches!(it, Call::Rename { .. })) > 10, "files ended");
        assert!(count(&calls, |it| matches!(it, Call::Remove(_))) > 5, "files went");
    }
}
