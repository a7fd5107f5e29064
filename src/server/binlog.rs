//! The server's side of the binlog: a permit before each change, a record after it, and the effects
//! of a commit that succeeds or fails. Without a binlog, all of it does nothing.

use std::io;

use super::{Health, Server};
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

    /// Writes the turn's records; call it before any reply is sent. If that fails, drops the unsent
    /// replies of each connection in `awaiting_commit` and closes it.
    pub fn commit(&mut self, now: Time) {
        let Some(wal) = &mut self.wal else { return };
        match wal.commit(Jobs { queue: &self.queue, bodies: &self.bodies }, now) {
            CommitOutcome::Done => self.awaiting_commit.clear(),
            CommitOutcome::Failed => {
                self.queue.freeze();
                while let Some(key) = self.awaiting_commit.pop() {
                    self.abort(key);
                }
            }
            CommitOutcome::Recovered => {
                self.awaiting_commit.clear();
                let now = self.instant(now);
                self.queue.thaw(now);
            }
        }
    }

    /// Syncs the binlog, unless it is never synced. Call it after the last commit.
    pub fn end(&mut self) -> io::Result<()> {
        self.wal.as_mut().map_or(Ok(()), Wal::end)
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
        self.reply(key, reply);
        if self.wal.is_some() && self.awaiting_commit.last() != Some(&key) {
            self.awaiting_commit.push(key);
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
        assert_eq!(text, "INSERTED 1\r\n");
        server.commit(START);
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
        assert_eq!(exchange(&mut server, client, "delete 1\r\n"), "DELETED\r\n");
        server.check();
    }
}
