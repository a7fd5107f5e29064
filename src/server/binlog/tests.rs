use std::{num::NonZeroU32, time::Duration};

use super::super::testing::{START, connect, exchange, receive, send, server_with_wal};
use super::*;
use crate::wal::{
    SyncPolicy, full_length,
    memory_disk::{MemoryDisk, open},
};

fn serve() -> (MemoryDisk, Server) {
    let (disk, sync) = (MemoryDisk::default(), SyncPolicy::EACH_CHANGE);
    let (restored, wal, _) = open(&disk, sync, START);
    (disk, server_with_wal(restored, wal))
}

/// If a `put` without a record were confirmed, a restart would not find the job.
#[test]
fn a_reply_whose_record_failed_is_never_sent() {
    let (disk, mut server) = serve();
    let (producer, other) = (connect(&mut server), connect(&mut server));
    send(&mut server, producer, "put 0 0 60 1\r\na\r\n");
    send(&mut server, other, "list-tube-used\r\n");
    disk.state().failing = Some("write binlog");
    server.commit(START);
    assert_eq!(server.health(), Health::BinlogFailed);
    assert_eq!(receive(&mut server, producer), "");
    assert!(server.conn(producer).is_finished(), "it must find out the outcome of its command");
    assert_eq!(receive(&mut server, other), "USING default\r\n", "it has confirmed nothing");
}

/// If a worker saw a job without a record, another job could get the same id after a restart.
#[test]
fn nobody_is_shown_a_job_whose_record_is_nowhere() {
    for sync in [SyncPolicy::EACH_CHANGE, SyncPolicy::Within(Duration::from_millis(50))] {
        let disk = MemoryDisk::default();
        let (restored, wal, _) = open(&disk, sync, START);
        let mut server = server_with_wal(restored, wal);
        let clients: [_; 4] = std::array::from_fn(|_| connect(&mut server));
        let [producer, worker, reader, other] = clients;
        send(&mut server, worker, "reserve\r\n");
        disk.state().failing = Some("write binlog");
        send(&mut server, producer, "put 0 0 60 1\r\na\r\nput 9 0 60 1\r\nb\r\n");
        send(&mut server, reader, "peek 2\r\n");
        send(&mut server, other, "list-tube-used\r\n");
        assert!(!server.write_changes(START), "{sync:?}");
        server.commit(START);
        for client in [producer, worker, reader] {
            assert_eq!(receive(&mut server, client), "", "{sync:?}");
            assert!(server.conn(client).is_finished(), "{sync:?}");
            server.close(client, START);
        }
        assert_eq!(receive(&mut server, other), "USING default\r\n", "{sync:?}");
        assert_eq!(exchange(&mut server, other, "peek 1\r\n"), "NOT_FOUND\r\n", "{sync:?}");
        server.check();
    }
}

/// A job gets its id before its body has arrived. If the record of a job cannot be written, the
/// queue and the binlog must still keep jobs with larger ids.
#[test]
fn a_job_that_cannot_be_written_takes_no_later_ones_along() {
    let (disk, mut server) = serve();
    let clients: [_; 3] = std::array::from_fn(|_| connect(&mut server));
    let [slow, producer, worker] = clients;
    send(&mut server, slow, "put 5 0 60 3\r\na");
    assert_eq!(exchange(&mut server, producer, "put 0 0 60 1\r\nb\r\n"), "");
    server.commit(START);
    assert_eq!(receive(&mut server, producer), "INSERTED 2\r\n");
    assert_eq!(exchange(&mut server, worker, "reserve\r\n"), "RESERVED 2 1\r\nb\r\n");
    disk.state().failing = Some("write binlog");
    send(&mut server, slow, "aa\r\n");
    server.commit(START);
    assert!(server.conn(slow).is_finished() && !server.conn(worker).is_finished());
    assert_eq!(exchange(&mut server, worker, "peek 1\r\n"), "NOT_FOUND\r\n");
    assert_eq!(exchange(&mut server, worker, "peek 2\r\n"), "FOUND 2 1\r\nb\r\n");
    server.check();
}

#[test]
fn while_the_binlog_has_failed_changes_are_refused_and_reading_is_not() {
    let (disk, mut server) = serve();
    let client = connect(&mut server);
    let text = exchange(&mut server, client, "put 0 0 60 1\r\na\r\n");
    assert_eq!(text, "", "not before the commit");
    server.commit(START);
    assert_eq!(receive(&mut server, client), "INSERTED 1\r\n");
    disk.state().failing = Some("write");
    let failing = connect(&mut server);
    send(&mut server, failing, "put 0 0 60 1\r\nb\r\n");
    server.commit(START);
    for command in ["put 0 0 60 1\r\nc\r\n", "delete 1\r\n", "reserve-job 1\r\n"] {
        let reply = exchange(&mut server, client, command);
        assert_eq!(reply, "INTERNAL_ERROR\r\n", "{command}");
    }
    assert_eq!(exchange(&mut server, client, "peek 1\r\n"), "FOUND 1 1\r\na\r\n");
    let timed_out = exchange(&mut server, client, "reserve-with-timeout 0\r\n");
    assert_eq!(timed_out, "TIMED_OUT\r\n", "nothing is handed out");
    disk.state().failing = None;
    let mut now = START;
    while server.health() == Health::BinlogFailed {
        now = server.next_deadline().expect("it is tried again").max(now);
        server.tick(now);
        server.commit(now);
    }
    send(&mut server, client, "delete 1\r\n");
    server.commit(now);
    assert_eq!(receive(&mut server, client), "DELETED\r\n");
    server.check();
}

/// A server whose disk takes five milliseconds for each sync, except for the first syncs.
fn serve_slowly() -> (MemoryDisk, Server) {
    let (disk, mut server) = serve();
    disk.state().sync_time = Duration::from_millis(5);
    let client = connect(&mut server);
    assert_eq!(exchange(&mut server, client, "put 0 0 60 1\r\na\r\n"), "");
    server.commit(START);
    assert_eq!(receive(&mut server, client), "INSERTED 1\r\n");
    server.close(client, START);
    while server.next_dirty().is_some() {}
    server.reclaim();
    (disk, server)
}

/// Commits until the next sync has begun and ended.
fn commit_later(server: &mut Server) {
    for milliseconds in [0, 2, 4] {
        server.commit(START + Duration::from_millis(milliseconds));
    }
}

#[test]
fn while_a_sync_is_under_way_others_are_answered() {
    let (disk, mut server) = serve_slowly();
    let (producer, worker) = (connect(&mut server), connect(&mut server));
    send(&mut server, producer, "put 0 0 60 1\r\nb\r\n");
    server.commit(START);
    assert_eq!(receive(&mut server, producer), "", "its job is not safe yet");
    let two = exchange(&mut server, worker, "reserve\r\nreserve\r\n");
    assert_eq!(two, "RESERVED 1 1\r\na\r\nRESERVED 2 1\r\nb\r\n");
    send(&mut server, worker, "delete 2\r\n");
    server.commit(START);
    disk.state().ends_syncs = true;
    server.commit(START);
    assert_eq!(receive(&mut server, producer), "INSERTED 2\r\n");
    assert_eq!(receive(&mut server, worker), "", "another sync covers the delete");
    commit_later(&mut server);
    assert_eq!(receive(&mut server, worker), "DELETED\r\n");
    server.check();
}

/// A client takes each reply for the reply to its oldest unanswered command.
#[test]
fn no_reply_overtakes_one_that_waits() {
    let (disk, mut server) = serve_slowly();
    let client = connect(&mut server);
    send(&mut server, client, "use a\r\nput 0 0 60 1\r\nb\r\nuse b\r\n");
    server.commit(START);
    assert_eq!(receive(&mut server, client), "USING a\r\n");
    send(&mut server, client, "put 0 0 60 1\r\nc\r\nlist-tube-used\r\n");
    disk.state().ends_syncs = true;
    server.commit(START);
    assert_eq!(receive(&mut server, client), "INSERTED 2\r\nUSING b\r\n");
    commit_later(&mut server);
    assert_eq!(receive(&mut server, client), "INSERTED 3\r\nUSING b\r\n");
}

/// The key of a closed connection is soon reused. If the key were still on a list of held replies,
/// the replies of the next client with that key would be released too early.
#[test]
fn a_client_that_leaves_while_its_reply_waits_leaves_nothing_behind() {
    let (disk, mut server) = serve_slowly();
    let client = connect(&mut server);
    send(&mut server, client, "put 0 0 60 1\r\nb\r\n");
    server.commit(START);
    server.close(client, START);
    while server.next_dirty().is_some() {}
    server.reclaim();
    let next = connect(&mut server);
    assert_eq!(next, client, "its key is reused");
    send(&mut server, next, "put 0 0 60 1\r\nc\r\n");
    disk.state().ends_syncs = true;
    server.commit(START);
    assert_eq!(receive(&mut server, next), "", "that sync does not cover its job");
    commit_later(&mut server);
    assert_eq!(receive(&mut server, next), "INSERTED 3\r\n");
}

#[test]
fn the_end_of_the_daemon_releases_what_waits() {
    let (disk, mut server) = serve_slowly();
    let client = connect(&mut server);
    send(&mut server, client, "put 0 0 60 1\r\nb\r\n");
    server.commit(START);
    disk.state().ends_syncs = true;
    server.shut_down().expect("the disk works");
    assert_eq!(receive(&mut server, client), "INSERTED 2\r\n");
}

/// If replies were released after a failed sync, they would confirm changes that are not saved.
#[test]
fn if_the_last_sync_fails_nothing_is_released() {
    let (disk, mut server) = serve_slowly();
    let client = connect(&mut server);
    send(&mut server, client, "put 0 0 60 1\r\nb\r\n");
    server.commit(START);
    let mut state = disk.state();
    (state.failing, state.ends_syncs) = (Some("end-sync"), true);
    drop(state);
    assert!(server.shut_down().is_err());
    assert_eq!(receive(&mut server, client), "");
}

/// If a closed connection stayed on the list of held replies, the daemon would panic after a sync.
#[test]
fn a_client_may_leave_while_its_reply_is_being_synced() {
    let (disk, mut server) = serve_slowly();
    let (leaving, staying) = (connect(&mut server), connect(&mut server));
    send(&mut server, leaving, "put 0 0 60 1\r\nb\r\n");
    send(&mut server, staying, "put 0 0 60 1\r\nc\r\n");
    server.commit(START);
    send(&mut server, leaving, "put 0 0 60 1\r\nd\r\n");
    server.close(leaving, START);
    while server.next_dirty().is_some() {}
    server.reclaim();
    disk.state().ends_syncs = true;
    server.commit(START);
    assert_eq!(receive(&mut server, staying), "INSERTED 3\r\n");
    server.commit(START);
    server.check();
}

/// If, after a power cut, a new job could get an id that a worker has seen before, the worker might
/// delete the new job by mistake.
#[test]
fn an_id_that_a_client_has_seen_does_not_come_back() {
    let (disk, mut server) = serve_slowly();
    let synced = disk.state().files.clone();
    let (producer, worker) = (connect(&mut server), connect(&mut server));
    send(&mut server, worker, "reserve\r\nreserve\r\n");
    receive(&mut server, worker);
    send(&mut server, producer, "put 0 0 60 1\r\nb\r\n");
    server.commit(START);
    assert_eq!(receive(&mut server, producer), "", "it is not synced");
    assert_eq!(receive(&mut server, worker), "RESERVED 2 1\r\nb\r\n");
    let after_power_cut = MemoryDisk::default();
    after_power_cut.state().files = synced;
    let (restored, ..) = open(&after_power_cut, SyncPolicy::EACH_CHANGE, START);
    assert!(restored.queue.next_id() > 2, "{}", restored.queue.next_id());
}

/// The header of a segment reserves ids, which the next start skips. If a shutdown did not free
/// these ids, each restart would skip thousands of ids.
#[test]
fn an_orderly_end_skips_no_ids() {
    let (disk, mut server) = serve_slowly();
    let client = connect(&mut server);
    send(&mut server, client, "put 0 0 60 1\r\nb\r\n");
    disk.state().ends_syncs = true;
    server.commit(START);
    server.shut_down().expect("the disk works");
    let (restored, ..) = open(&disk, SyncPolicy::EACH_CHANGE, START);
    assert_eq!((restored.queue.jobs(), restored.queue.next_id()), (2, 3));
}

/// The value of a key of `metrics`, `seconds` seconds after the start of the test.
fn metric(server: &mut Server, client: Key<Conn>, key: &str, seconds: u64) -> String {
    let now = START + Duration::from_secs(seconds);
    server.tick(now);
    server.feed(client, b"metrics\r\n", 1, now);
    server.commit(now);
    let text = receive(server, client);
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
}

/// Without these two keys of `metrics`, operators could not see since when jobs are refused.
#[test]
fn metrics_tell_of_the_trouble_of_the_binlog_and_since_when() {
    let (disk, mut server) = serve();
    let client = connect(&mut server);
    assert_eq!(metric(&mut server, client, "binlog-state", 0), "sound");
    assert_eq!(metric(&mut server, client, "binlog-trouble-age", 1), "0");
    send(&mut server, client, "put 0 0 60 1\r\na\r\n");
    disk.state().failing = Some("write");
    server.commit(START + Duration::from_secs(2));
    let client = connect(&mut server);
    assert_eq!(metric(&mut server, client, "binlog-state", 2), "failed");
    assert_eq!(metric(&mut server, client, "state", 2), "binlog-failed");
    assert_eq!(metric(&mut server, client, "binlog-trouble-age", 9), "7");
    disk.state().failing = None;
    for second in 9..200 {
        server.tick(START + Duration::from_secs(second));
        server.commit(START + Duration::from_secs(second));
    }
    assert_eq!(metric(&mut server, client, "binlog-state", 200), "sound");
    assert_eq!(metric(&mut server, client, "binlog-trouble-age", 201), "0");
}

#[test]
fn metrics_tell_what_a_power_cut_would_take_and_what_could_be_removed() {
    let disk = MemoryDisk::default();
    let (restored, wal, _) = open(&disk, SyncPolicy::Within(Duration::from_secs(5)), START);
    let mut server = server_with_wal(restored, wal);
    let client = connect(&mut server);
    let number = |server: &mut Server, key: &str, seconds| -> u64 {
        metric(server, client, key, seconds).parse().expect("a number")
    };
    // In an empty binlog, only the header of the segment counts as dead bytes.
    let (unsynced, dead) = (
        number(&mut server, "binlog-unsynced-bytes", 0),
        number(&mut server, "binlog-dead-bytes", 0),
    );
    assert_eq!(number(&mut server, "binlog-live-bytes", 0), 0);
    send(&mut server, client, "put 0 0 60 1\r\na\r\n");
    server.commit(START);
    assert_eq!(receive(&mut server, client), "INSERTED 1\r\n");
    let live = number(&mut server, "binlog-live-bytes", 1);
    assert_eq!(live, full_length("default", 3));
    assert_eq!(number(&mut server, "binlog-unsynced-bytes", 1), unsynced + live);
    send(&mut server, client, "delete 1\r\n");
    server.commit(START);
    assert_eq!(receive(&mut server, client), "DELETED\r\n");
    assert_eq!(number(&mut server, "binlog-live-bytes", 1), 0);
    assert!(number(&mut server, "binlog-dead-bytes", 1) > dead + live, "and the delete's");
    disk.state().ends_syncs = true;
    for seconds in [6, 7, 8] {
        number(&mut server, "binlog-sync-seconds-le-inf", seconds);
    }
    assert_eq!(number(&mut server, "binlog-unsynced-bytes", 9), 0);
    assert!(number(&mut server, "binlog-sync-seconds-le-inf", 9) > 0);
}

/// If a burial were not written at once, a kill of the daemon before the next command would undo
/// the burial. If the binlog has failed, a lost job becomes ready: no burial can be written.
#[test]
fn a_job_that_a_closed_connection_has_lost_is_buried_for_good_or_ready() {
    let (disk, mut server) = serve();
    server.settings.bury_after = std::num::NonZeroU32::new(1);
    let [first, second] = [(); 2].map(|()| {
        let worker = connect(&mut server);
        send(&mut server, worker, "put 0 0 60 1\r\na\r\nreserve\r\n");
        worker
    });
    for _ in 0..100 {
        server.commit(START);
        receive(&mut server, first);
    }
    assert!(server.next_deadline().is_none_or(|at| at > START), "all is done");
    server.close(first, START);
    assert_eq!(server.next_deadline(), Some(Time::AT_ONCE));
    receive(&mut server, second);
    server.reclaim();
    server.commit(START);
    let (restored, ..) = open(&disk, SyncPolicy::EACH_CHANGE, START);
    assert_eq!(restored.queue.counts().buried, 1);
    disk.state().failing = Some("write");
    let other = connect(&mut server);
    send(&mut server, other, "put 0 0 60 1\r\nb\r\n");
    server.commit(START);
    assert_eq!(server.health(), Health::BinlogFailed);
    server.close(second, START);
    let counts = server.queue().counts();
    assert_eq!((counts.buried, counts.ready), (1, 1));
}

/// If losses were not counted across restarts, a job that kills its workers and then the daemon
/// would never be buried.
#[test]
fn a_restart_counts_each_loss_and_no_open_reservation() {
    let (disk, mut server) = serve();
    let producer = connect(&mut server);
    assert_eq!(exchange(&mut server, producer, "put 0 0 60 1\r\na\r\n"), "");
    server.commit(START);
    for losses in 1..=3 {
        server.settings.bury_after = NonZeroU32::new(4);
        let (worker, other) = (connect(&mut server), connect(&mut server));
        assert_eq!(exchange(&mut server, worker, "reserve\r\n"), "RESERVED 1 1\r\na\r\n");
        server.close(worker, START);
        assert_eq!(exchange(&mut server, other, "reserve\r\n"), "RESERVED 1 1\r\na\r\n");
        server.commit(START);
        let (restored, wal, _) = open(&disk, SyncPolicy::EACH_CHANGE, START);
        server = server_with_wal(restored, wal);
        let job = server.queue().find(1).expect("it is there");
        assert_eq!(server.queue().job(job).record.history.reserves, losses);
    }
}
