//! The server's side of the binlog: a permit before each change, a record after it, and the effects
//! of a commit that succeeds or fails. Without a binlog, all of it does nothing.

use std::io;

use super::Server;
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    conn::Conn,
    memory::OutOfMemory,
    proto::{ErrorReply, Reply},
    queue::Job,
    server::{Identity, Settings},
    wal::{self, CommitOutcome, Jobs, Restored, Unavailable, Wal},
};

/// What the daemon can do for its clients. If several apply, the first one here counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// A write or sync of the binlog has failed: changes get an error reply.
    BinlogFailed,
    /// The disk has no space for more of the binlog.
    BinlogFull,
    /// The operator has told the daemon to drain: every `put` gets `DRAINING`.
    Draining,
    /// Everything works.
    Serving,
}

impl Health {
    /// The word of `capabilities`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BinlogFailed => "binlog-failed",
            Self::BinlogFull => "binlog-full",
            Self::Draining => "draining",
            Self::Serving => "serving",
        }
    }
}

/// Leave to change a job, consumed by recording the change. Without a binlog it is always granted.
#[must_use = "a change that the binlog is not told of does not outlast a restart"]
#[derive(Debug)]
pub(super) struct Permit(Option<wal::Permit>);

fn permit(result: Result<wal::Permit, Unavailable>) -> Result<Permit, Unavailable> {
    result.map(|permit| Permit(Some(permit)))
}

impl Server {
    /// Makes a server with the jobs of a binlog. It hands out none while the binlog is not sound.
    pub fn with_wal(
        identity: Identity,
        settings: Settings,
        mut restored: Restored,
        wal: Wal,
        now: Time,
    ) -> Self {
        if !wal.is_sound() {
            restored.queue.freeze();
        }
        // Restored jobs stay, even if they exceed the memory limit.
        Self::with(identity, settings, restored, Some(wal), now)
    }

    /// Writes the turn's records, and syncs them if the flags say so. Replies that confirm changes
    /// are held until their records are as safe as the flags promise: call it before replies are
    /// sent. If it fails, each connection with held replies loses its replies and is closed.
    pub fn commit(&mut self, now: Time) {
        let wait_until = self.gather_until(now);
        let Some(wal) = &mut self.wal else { return };
        let jobs = Jobs { queue: &self.queue, bodies: &self.bodies };
        match wal.commit(jobs, wait_until, now) {
            CommitOutcome::Done => self.release_all(),
            CommitOutcome::Syncing { has_ended, has_begun } => {
                if has_ended {
                    self.release_synced();
                }
                if has_begun {
                    self.gathering.end();
                    assert!(self.awaiting_sync.is_empty(), "one sync at a time");
                    std::mem::swap(&mut self.awaiting_commit, &mut self.awaiting_sync);
                    for &key in &self.awaiting_sync {
                        self.conns[key].output.begin_sync();
                    }
                }
            }
            CommitOutcome::Failed => {
                self.queue.freeze();
                while let Some(key) = self.next_awaiting() {
                    self.abort(key);
                }
            }
            CommitOutcome::LockLost => {
                // The process ends. What clients were not told may or may not have happened.
                self.queue.freeze();
                while let Some(key) = self.next_awaiting() {
                    self.abort(key);
                }
            }
            CommitOutcome::Recovered => {
                self.release_all();
                let now = self.instant(now);
                self.queue.thaw(now);
            }
        }
    }

    /// Why another daemon may have taken over the binlog, if it may: then the process must end.
    pub fn lost_lock(&self) -> Option<&io::Error> {
        self.wal.as_ref()?.lost_lock()
    }

    /// Returns until when [`Server::commit`] should wait for more changes before it syncs, if it
    /// should, because clients are about to send some.
    pub fn gather_until(&mut self, now: Time) -> Option<Time> {
        if self.awaiting_commit.is_empty() {
            return None;
        }
        let time = self.wal.as_ref()?.gathering_time()?;
        self.gathering.wait_until(time, now)
    }

    /// Whether [`Server::commit`] will sync in this thread. Then replies that are not held should be
    /// sent before it, and a wait by [`Server::gather_until`] must come before it, too. Otherwise
    /// the binlog begins the sync later.
    pub fn commit_blocks(&self) -> bool {
        !self.awaiting_commit.is_empty() && self.wal.as_ref().is_some_and(Wal::syncs_in_foreground)
    }

    /// Takes a connection with held replies off its list. One that is on both is returned twice.
    fn next_awaiting(&mut self) -> Option<Key<Conn>> {
        self.awaiting_sync.pop().or_else(|| self.awaiting_commit.pop())
    }

    /// Releases all held replies.
    fn release_all(&mut self) {
        if self.awaiting_commit.is_empty() && self.awaiting_sync.is_empty() {
            return;
        }
        self.gathering.end();
        self.gathering.begin_round();
        while let Some(key) = self.next_awaiting() {
            self.release_replies(key);
            self.conns[key].output.release();
        }
    }

    /// Releases the replies that waited for the sync that has ended.
    fn release_synced(&mut self) {
        self.gathering.begin_round();
        while let Some(key) = self.awaiting_sync.pop() {
            self.release_replies(key);
            self.conns[key].output.end_sync();
        }
    }

    fn release_replies(&mut self, key: Key<Conn>) {
        self.gathering.join(&mut self.conns[key].answered_in);
        self.conns[key].answered_in = self.gathering.expect();
        self.mark_dirty(key);
    }

    /// Notes that a connection has no replies to hold any more. O(connections with held replies) if
    /// it had some.
    pub(super) fn stop_awaiting(&mut self, key: Key<Conn>) {
        self.gathering.join(&mut self.conns[key].answered_in);
        if self.conns[key].output.is_held() {
            self.awaiting_sync.retain(|&other| other != key);
            self.awaiting_commit.retain(|&other| other != key);
        }
    }

    /// Syncs the binlog, unless it is never synced, and releases held replies. Call it after the
    /// last commit.
    pub fn end(&mut self) -> io::Result<()> {
        self.wal.as_mut().map_or(Ok(()), Wal::end)?;
        self.release_all();
        Ok(())
    }

    /// Has `wake` called from another thread when a sync in the background has ended.
    pub fn on_sync_end(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        if let Some(wal) = &mut self.wal {
            wal.on_sync_end(wake);
        }
    }

    /// Whether [`Server::commit`] does anything.
    pub fn has_wal(&self) -> bool {
        self.wal.is_some()
    }

    /// Tells the binlog what time the wall clock shows.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        if let Some(wal) = &mut self.wal {
            wal.set_calendar(calendar);
        }
    }

    /// Adjusts up to `jobs` restored jobs if the wall clock has been set: see [`Wal::shift_dates`].
    pub(super) fn shift_dates(&mut self, jobs: u32, now: Time) {
        if let Some(wal) = &mut self.wal {
            wal.shift_dates(&mut self.queue, jobs as usize, now);
        }
    }

    /// The binlog, read-only.
    pub fn wal(&self) -> Option<&Wal> {
        self.wal.as_ref()
    }

    /// What the daemon can do for its clients now.
    pub fn health(&self) -> Health {
        match &self.wal {
            Some(wal) if !wal.is_sound() => Health::BinlogFailed,
            Some(wal) if wal.is_full() => Health::BinlogFull,
            _ if self.is_draining => Health::Draining,
            _ => Health::Serving,
        }
    }

    /// Permits a `put` of the connection, with a body of `size` bytes.
    pub(super) fn permit_put(
        &mut self,
        key: Key<Conn>,
        size: usize,
        now: Time,
    ) -> Result<Permit, ErrorReply> {
        let Some(wal) = &mut self.wal else { return Ok(Permit(None)) };
        let tube = self.queue.client(key.paired()).using;
        let length = Wal::full_length(self.queue.tube(tube).name(), size);
        wal.ensure_memory_to_put(self.bodies.budget_mut())
            .map_err(|OutOfMemory| ErrorReply::OutOfMemory)?;
        permit(wal.permit_put(length, now)).map_err(error_reply)
    }

    /// Permits a change of a job.
    pub(super) fn permit_update(&mut self, now: Time) -> Result<Permit, Unavailable> {
        self.wal.as_mut().map_or(Ok(Permit(None)), |wal| permit(wal.permit_update(now)))
    }

    /// Permits a change that must succeed even if the disk is full.
    pub(super) fn permit_deferrable_update(&self) -> Result<Permit, Unavailable> {
        self.wal.as_ref().map_or(Ok(Permit(None)), |wal| permit(wal.permit_deferrable_update()))
    }

    /// Permits the delete of a job.
    pub(super) fn permit_delete(&mut self, now: Time) -> Result<Permit, Unavailable> {
        self.wal.as_mut().map_or(Ok(Permit(None)), |wal| permit(wal.permit_delete(now)))
    }

    /// Records a `put`.
    pub(super) fn record_put(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit.0) {
            wal.put(permit, Jobs { queue: &self.queue, bodies: &self.bodies }, job);
        }
    }

    /// Records a change that a restart must preserve.
    pub(super) fn record_change(&mut self, permit: Permit, job: Key<Job>, now: Time) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit.0) {
            wal.update(permit, &self.queue, job, now);
        }
    }

    /// Records a delete. Call it before the job is removed.
    pub(super) fn record_delete(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit.0) {
            wal.delete(permit, &self.queue, job);
        }
    }

    /// Sends a reply that confirms a change. It is not sent before the change is in the binlog.
    pub(super) fn acknowledge(&mut self, key: Key<Conn>, reply: Reply<'_>) {
        self.hold(key);
        self.reply(key, reply);
    }

    /// Holds the replies that follow on a connection until what has changed so far is in the
    /// binlog.
    pub(super) fn hold(&mut self, key: Key<Conn>) {
        if self.wal.is_some() {
            self.gathering.join(&mut self.conns[key].answered_in);
            if self.conns[key].output.hold() {
                self.awaiting_commit.push(key);
            }
        }
    }

    /// What `stats` reports of the binlog.
    pub(super) fn binlog_counts(&self) -> wal::Counts {
        self.wal.as_ref().map(Wal::counts).unwrap_or_default()
    }

    /// Closes a connection without its replies: whether its changes took effect is unknown.
    fn abort(&mut self, key: Key<Conn>) {
        self.detach_kicks(key);
        self.queue.stop_waiting(key.paired());
        self.conns[key].forget(&mut self.bodies);
        self.mark_dirty(key);
    }
}

/// The error reply if the binlog cannot take a change.
pub(super) fn error_reply(error: Unavailable) -> ErrorReply {
    match error {
        Unavailable::Full => ErrorReply::OutOfMemory,
        Unavailable::Failed => ErrorReply::InternalError,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{START, connect, exchange, receive, send, server_with_wal};
    use super::*;
    use crate::wal::{
        SyncPolicy,
        testing::{MemoryDisk, open},
    };

    fn serve() -> (MemoryDisk, Server) {
        let (disk, sync) = (MemoryDisk::default(), SyncPolicy::Within(Duration::ZERO));
        let (restored, wal, _) = open(&disk, sync, START);
        (disk, server_with_wal(restored, wal))
    }

    /// The client would believe in a job that a restart does not find.
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
        assert!(server.is_finished(producer), "it must find out what has become of its command");
        assert_eq!(receive(&mut server, other), "USING default\r\n", "it promised nothing");
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

    /// A server whose disk takes five milliseconds for a sync, after the first ones.
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

    /// A client takes replies in the order of its commands.
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

    /// The key of a closed connection is another client's soon, which would get its replies early.
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
        server.end().expect("the disk works");
        assert_eq!(receive(&mut server, client), "INSERTED 2\r\n");
    }
}
