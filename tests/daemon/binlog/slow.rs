//! A disk whose syncs take seconds: the clients that wait for them, and those that do not.

#![expect(clippy::disallowed_methods, reason = "a real disk is slow in real time")]

use std::{fs, path::PathBuf, thread, time::Duration};

use ct::{Daemon, LONG, bench::slow_sync, eventually, skip};

use crate::harness::{Folder, OURS, Peer, end};

/// How long each sync takes: much longer than everything else here.
const SYNC_TIME: Duration = Duration::from_millis(1500);

/// Makes a program that runs our daemon with slow syncs. Returns `None`, and reports the test as
/// skipped, if there is no compiler for the library that delays syncs, or the daemon cannot load
/// that library.
fn slow_daemon(tools: &Folder) -> Option<PathBuf> {
    if cfg!(target_feature = "crt-static") {
        skip("syncs are delayed by a library, and the daemon is linked statically");
        return None;
    }
    let wrapper = slow_sync::compile(tools.path())
        .and_then(|library| slow_sync::wrapper(tools.path(), &library, OURS.as_ref(), SYNC_TIME));
    match wrapper {
        Ok((path, _)) => Some(path),
        Err(error) => {
            skip(&format!("no library can be compiled that delays syncs: {error}"));
            None
        }
    }
}

/// Returns the number of jobs ever put.
fn total_jobs(client: &mut Peer) -> u64 {
    client.value("stats", "total-jobs")
}

/// Starts the daemon, and puts job 1, so that the daemon learns that its disk is slow.
fn serve(folder: &Folder, program: PathBuf) -> (Daemon, Peer, Peer) {
    let daemon = folder.serve(program, &["-f0"]);
    let (mut writer, reader) = (Peer::of(&daemon), Peer::of(&daemon));
    assert_eq!(writer.put(0, 0, b"x"), 1);
    (daemon, writer, reader)
}

/// While a write or a sync hangs, the file system may give the lock to another daemon, which reads
/// the jobs. Changes that this daemon then acknowledges would be lost.
#[test]
fn after_a_long_sync_nothing_is_acknowledged_unless_the_lock_is_still_held() {
    let (tools, folder) = (Folder::new(), Folder::new());
    let Some(program) = slow_daemon(&tools) else { return };
    let mut daemon = folder.serve(program, &["-f0"]);
    let mut client = Peer::of(&daemon);
    // The daemon listens before it has the lock.
    client.check();
    client.0.send("put 0 0 60 1\r\ny\r\n").expect("it is taken");
    // The sync takes longer than this sleep, unless this machine is too busy. Even then the lock
    // changes in time.
    thread::sleep(SYNC_TIME / 2);
    fs::write(folder.path().join("lock"), "0123 process 1 on elsewhere\n").expect("written");
    client.0.set_timeout(SYNC_TIME * 20).expect("a socket");
    assert!(client.0.line().is_err(), "nothing is acknowledged");
    assert_eq!(daemon.wait_exit(LONG).expect("it ends").code(), Some(10), "{}", daemon.stderr());
}

/// Every client would wait for others' syncs, or a reply would overtake a reply that waits.
#[test]
fn while_a_sync_is_under_way_others_are_answered_and_replies_keep_their_order() {
    let (tools, folder) = (Folder::new(), Folder::new());
    let Some(program) = slow_daemon(&tools) else { return };
    let (daemon, mut writer, mut reader) = serve(&folder, program);
    let mut was_quick = false;
    for id in 2..6 {
        writer.0.send("put 0 0 60 1\r\ny\r\nlist-tube-used\r\n").expect("it is taken");
        eventually("the job is in the queue", || total_jobs(&mut reader) == id);
        // Both replies wait for the sync, unless this machine is too busy to check in time.
        writer.0.set_timeout(Duration::from_millis(1)).expect("a socket");
        was_quick |= writer.0.line().is_err();
        writer.0.set_timeout(SYNC_TIME * 20).expect("a socket");
        if was_quick {
            assert_eq!(writer.0.line().expect("a reply"), format!("INSERTED {id}"));
        }
        assert_eq!(writer.0.line().expect("a reply"), "USING default");
        if was_quick {
            return end(daemon, libc::SIGTERM);
        }
    }
    panic!("each reply came before another client was answered");
}

/// A shutdown would not wait for a sync, and would lose the changes that wait for that sync.
#[test]
fn what_waits_for_a_sync_is_confirmed_before_the_end_and_kept() {
    let (tools, folder) = (Folder::new(), Folder::new());
    let Some(program) = slow_daemon(&tools) else { return };
    let (daemon, mut writer, mut reader) = serve(&folder, program);
    writer.0.send("put 0 0 60 1\r\ny\r\n").expect("it is taken");
    eventually("the job is in the queue", || total_jobs(&mut reader) == 2);
    end(daemon, libc::SIGTERM);
    assert_eq!(writer.0.line().expect("a reply"), "INSERTED 2");
    let daemon = folder.serve(OURS, &["-f0"]);
    let mut client = Peer::of(&daemon);
    assert_eq!(client.look(2).expect("the job").body, b"y");
    assert_eq!(client.put(0, 0, b"z"), 3, "an orderly end skips no ids");
}

/// A client that disconnects while its reply waits would crash the daemon.
#[test]
fn a_client_may_go_while_its_reply_waits() {
    let (tools, folder) = (Folder::new(), Folder::new());
    let Some(program) = slow_daemon(&tools) else { return };
    let (_daemon, writer, mut reader) = serve(&folder, program);
    let mut leaving = writer;
    leaving.0.send("put 0 0 60 1\r\ny\r\n").expect("it is taken");
    eventually("the job is in the queue", || total_jobs(&mut reader) == 2);
    drop(leaving);
    assert_eq!(reader.put(0, 0, b"z"), 3);
    assert_eq!(reader.look(2).expect("the job").body, b"y");
}
