//! The server and its log: asking before a change, telling after it, and what follows when the
//! turn's records are written, or are not. Without a log, all of it is nothing.

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

/// Leave to change a job, spent by telling the binlog of the change; without a binlog, just leave.
#[must_use = "a change that the binlog is not told of does not outlast a restart"]
#[derive(Debug)]
pub(super) struct Permit(Option<wal::Permit>);

fn permit(result: Result<wal::Permit, Unavailable>) -> Result<Permit, Unavailable> {
    result.map(|permit| Permit(Some(permit)))
}

impl Server {
    /// Makes a server that goes on with the jobs of a log.
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
        // What the log has brought stays, whatever the ceiling is now.
        Self::with(identity, settings, restored, Some(wal), now)
    }

    /// Ends the doings of a turn: call it before replies leave. They may leave after it, except
    /// those that it has taken back because what they say could not be made sure of.
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

    /// The daemon ends in order: call it after the last commit.
    pub fn end(&mut self) -> io::Result<()> {
        self.wal.as_mut().map_or(Ok(()), Wal::end)
    }

    /// Whether [`Server::commit`] does anything.
    pub fn has_wal(&self) -> bool {
        self.wal.is_some()
    }

    /// Tells the log how the calendar is set.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        if let Some(wal) = &mut self.wal {
            wal.set_calendar(calendar);
        }
    }

    /// Goes on with what a wall clock that has been set has brought, for so many jobs.
    pub(super) fn shift_dates(&mut self, jobs: u32, now: Time) {
        if let Some(wal) = &mut self.wal {
            wal.shift_dates(&mut self.queue, jobs as usize, now);
        }
    }

    /// The binlog, to look at.
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

    /// Permits a new job of the client, with a body of `size` bytes.
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

    /// Permits a change of a job that must not be refused because the disk is full.
    pub(super) fn permit_deferrable_update(&self) -> Result<Permit, Unavailable> {
        self.wal.as_ref().map_or(Ok(Permit(None)), |wal| permit(wal.permit_deferrable_update()))
    }

    /// Permits the delete of a job.
    pub(super) fn permit_delete(&mut self, now: Time) -> Result<Permit, Unavailable> {
        self.wal.as_mut().map_or(Ok(Permit(None)), |wal| permit(wal.permit_delete(now)))
    }

    /// A job has been put.
    pub(super) fn record_put(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit.0) {
            wal.put(permit, Jobs { queue: &self.queue, bodies: &self.bodies }, job);
        }
    }

    /// A job has changed in a way that a restart must know of.
    pub(super) fn record_change(&mut self, permit: Permit, job: Key<Job>, now: Time) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit.0) {
            wal.update(permit, &self.queue, job, now);
        }
    }

    /// A job is about to be deleted.
    pub(super) fn record_delete(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit.0) {
            wal.delete(permit, &self.queue, job);
        }
    }

    /// A reply that says that a change is made: it must not leave unless that is in the log.
    pub(super) fn acknowledge(&mut self, key: Key<Conn>, reply: Reply<'_>) {
        self.reply(key, reply);
        if self.wal.is_some() && self.awaiting_commit.last() != Some(&key) {
            self.awaiting_commit.push(key);
        }
    }

    /// What `stats` tells of the log.
    pub(super) fn binlog_counts(&self) -> wal::Counts {
        self.wal.as_ref().map(Wal::counts).unwrap_or_default()
    }

    /// Ends a connection without its replies: it must find out for itself what has become of its
    /// commands.
    fn abort(&mut self, key: Key<Conn>) {
        self.detach_kicks(key);
        self.queue.stop_waiting(key.paired());
        self.conns[key].forget(&mut self.bodies);
        self.mark_dirty(key);
    }
}

/// What the client is told where a change is refused.
pub(super) fn error_reply(error: Unavailable) -> ErrorReply {
    match error {
        Unavailable::Full => ErrorReply::OutOfMemory,
        Unavailable::Failed => ErrorReply::InternalError,
    }
}
