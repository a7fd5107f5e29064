//! How the server calls the binlog: for permits before changes, records after changes, commits, the
//! check of the lock, and the shutdown; also [`Health`]. Without a binlog, these calls do nothing.

use std::io;

use super::{
    Server,
    gathering::{BeforeSync, GatheringTime},
};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    conn::Conn,
    proto::Reply,
    queue::Job,
    wal::{self, Change, CommitOutcome, Jobs, Unavailable, Wal},
};

/// Whether all commands can be executed. If several states apply, the first in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// A write or sync of the binlog has failed: commands that change something get an error reply.
    /// Or the daemon cannot make another segment, although there may be disk space: a `put` gets an
    /// error reply as soon as the present segments are full.
    BinlogFailed,
    /// The disk has no space for another segment of the binlog.
    BinlogFull,
    /// The daemon is draining: every `put` gets the reply `DRAINING`.
    Draining,
    /// Everything works.
    Serving,
}

impl Health {
    /// The name of this [`Health`] in `capabilities` and `metrics`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BinlogFailed => "binlog-failed",
            Self::BinlogFull => "binlog-full",
            Self::Draining => "draining",
            Self::Serving => "serving",
        }
    }
}

/// Permission to change a job, and to append one record of the change; `None` without a binlog.
pub(super) type Permit = Option<wal::Permit>;

impl Server {
    /// Makes the binlog write the records of the turn, and sync them if the flags require it.
    /// Releases held replies when the changes that they confirm are written, or synced if the flags
    /// require it. Call this method before you send replies; [`Server::write_changes`] permits some
    /// replies earlier. If the commit fails, closes each connection that has held replies, or
    /// unsent replies about a job that is not in the binlog, and sends none of these replies. A
    /// failed commit also removes the jobs that have no record, because no client knows their ids,
    /// and a restart may assign these ids again.
    pub fn commit(&mut self, now: Time) {
        self.commit_changes(now);
        let reason = self.wal.as_ref().and_then(Wal::trouble);
        let before = self.trouble.filter(|&(before, _)| Some(before) == reason);
        self.trouble = before.or(reason.map(|reason| (reason, now)));
    }

    /// Calls [`Wal::commit`], and releases, keeps or drops held replies, as the outcome requires.
    fn commit_changes(&mut self, now: Time) {
        // Before a sync in this thread, the event loop has already waited for more changes.
        let before = if self.commit_blocks() { BeforeSync::Sync } else { self.before_sync(now) };
        let wait_until = if let BeforeSync::WaitUntil(until) = before { Some(until) } else { None };
        let Some(wal) = &mut self.wal else { return };
        let jobs = Jobs { queue: &self.queue, bodies: &self.bodies };
        match wal.commit(jobs, wait_until, now) {
            CommitOutcome::Done => self.held.release_all(&mut self.conns, &mut self.dirty),
            CommitOutcome::Syncing(events) => {
                if events.has_ended {
                    self.held.end_sync(&mut self.conns, &mut self.dirty);
                }
                if events.has_begun {
                    self.held.begin_sync(&mut self.conns);
                }
            }
            CommitOutcome::Failed => {
                self.held.fail();
                self.queue.freeze();
                while let Some(key) = self.held.pop() {
                    self.abort(key);
                }
                self.remove_unrecorded(now);
            }
            CommitOutcome::Recovered => {
                self.held.release_all(&mut self.conns, &mut self.dirty);
                let now = self.instant(now);
                self.queue.thaw(now);
            }
        }
    }

    /// Removes the jobs whose records could not be written, and closes each connection with unsent
    /// replies that may show one of these jobs. O(connections + jobs put in this turn).
    fn remove_unrecorded(&mut self, now: Time) {
        let unrecorded = self.wal.as_mut().map(Wal::take_unrecorded).unwrap_or_default();
        let Some(&first) = unrecorded.iter().min() else { return };
        let may_show = |conn: &Conn| conn.shown_id >= first && !conn.output.is_empty();
        let conns = self.conns.iter();
        let shown: Vec<_> = conns.filter(|(_, conn)| may_show(conn)).map(|(key, _)| key).collect();
        for key in shown {
            self.abort(key);
        }
        for id in unrecorded {
            if let (Some(wal), Some(job)) = (&mut self.wal, self.queue.find(id)) {
                wal.forget(job);
                self.bodies.remove(self.queue.delete(job, now));
            }
        }
    }

    /// Checks whether this daemon still has the lock of the binlog's directory, unless the last
    /// check was shortly before `now`: see [`Wal::confirm_lock_if_due`]. `now` must have just been
    /// read from the clock. Returns whether this call made a check. If the lock is lost,
    /// [`Server::lost_lock`] returns the reason.
    pub fn confirm_lock_if_due(&mut self, now: Time) -> bool {
        self.wal.as_mut().is_some_and(|wal| wal.confirm_lock_if_due(now))
    }

    /// If another daemon may have taken over the binlog, returns why; then the process must end.
    pub fn lost_lock(&self) -> Option<&io::Error> {
        self.wal.as_ref()?.lost_lock()
    }

    /// Returns what the event loop should do before it calls [`Server::commit`]. The loop may first
    /// serve further clients, so that one sync covers the changes of many.
    pub fn before_sync(&mut self, now: Time) -> BeforeSync {
        let Some(wal) = &self.wal else { return BeforeSync::Sync };
        let Some(average) = wal.time_of_next_sync() else { return BeforeSync::Sync };
        self.held.before_sync(GatheringTime::new(average, wal.syncs_in_background()), now)
    }

    /// Whether [`Server::commit`] will sync in this thread. If so, the caller first sends the
    /// replies that need not wait for the sync, calls [`Server::before_sync`], and acts on the
    /// result.
    pub fn commit_blocks(&self) -> bool {
        self.held.needs_commit() && self.wal.as_ref().is_some_and(Wal::syncs_in_foreground)
    }

    /// Writes the records of this turn early, so that the commit need not. Replies that need not
    /// wait for the commit may then be sent even if they show changes of this turn. Returns whether
    /// the records are written; if not, the commit reports the error.
    pub fn write_changes(&mut self, now: Time) -> bool {
        self.wal.as_mut().is_none_or(|wal| wal.write_pending(now))
    }

    /// Syncs the binlog (but not with `-F`), and releases all held replies. Call this method after
    /// the last commit. If the sync fails, the replies stay held.
    pub fn shut_down(&mut self) -> io::Result<()> {
        if let Some(wal) = &mut self.wal {
            wal.shut_down(&self.queue)?;
        }
        self.held.release_all(&mut self.conns, &mut self.dirty);
        Ok(())
    }

    /// Makes the binlog call `wake` whenever a sync in the second thread has ended.
    pub fn on_sync_end(&mut self, wake: Box<dyn Fn() + Send>) {
        if let Some(wal) = &mut self.wal {
            wal.on_sync_end(wake);
        }
    }

    /// Passes to the binlog the [`Calendar`] by the present wall clock, which may have been set.
    pub fn set_calendar(&mut self, calendar: Calendar, now: Time) {
        if let Some(wal) = &mut self.wal {
            wal.set_calendar(calendar, now);
        }
    }

    /// The binlog of the server, read-only.
    pub fn wal(&self) -> Option<&Wal> {
        self.wal.as_ref()
    }

    /// Whether the daemon can execute all commands now.
    pub fn health(&self) -> Health {
        match self.wal.as_ref().and_then(Wal::trouble) {
            Some(Unavailable::Failed) => Health::BinlogFailed,
            Some(Unavailable::Full) => Health::BinlogFull,
            None if self.is_draining => Health::Draining,
            None => Health::Serving,
        }
    }

    /// Since when the binlog has failed; `None` if, at the last commit, the binlog worked or was
    /// only full.
    pub fn binlog_failed_since(&self) -> Option<Time> {
        let (reason, since) = self.trouble?;
        (reason == Unavailable::Failed).then_some(since)
    }

    /// Gets a permit for a `put` with a body of `size` bytes, or the error reply.
    pub(super) fn permit_put(
        &mut self,
        key: Key<Conn>,
        size: usize,
        now: Time,
    ) -> Result<Permit, Reply<'static>> {
        let Some(wal) = &mut self.wal else { return Ok(None) };
        let tube = self.queue.client(key.paired()).using;
        let length = wal::full_length(self.queue.tube_name(tube), size);
        wal.make_room_to_put()?;
        wal.permit(Change::Put(length), now).map(Some).map_err(error_reply)
    }

    /// Gets a permit for a change of a job that exists.
    pub(super) fn permit(&mut self, change: Change, now: Time) -> Result<Permit, Unavailable> {
        self.wal.as_mut().map(|wal| wal.permit(change, now)).transpose()
    }

    /// Appends the record of a new job to the binlog.
    pub(super) fn record_put(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit) {
            wal.put(permit, Jobs { queue: &self.queue, bodies: &self.bodies }, job);
        }
    }

    /// Appends a record of a change to the binlog, so that a restart preserves the change.
    pub(super) fn record_change(&mut self, permit: Permit, job: Key<Job>, now: Time) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit) {
            wal.update(permit, &self.queue, job, now);
        }
    }

    /// Appends the record of a delete to the binlog. Call this method before the job is removed.
    pub(super) fn record_delete(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit) {
            wal.delete(permit, &self.queue, job);
        }
    }

    /// Appends a reply that confirms a change, and holds the reply until the binlog has the change.
    pub(super) fn acknowledge(&mut self, key: Key<Conn>, reply: Reply<'_>) {
        self.hold(key);
        self.reply(key, reply);
    }

    /// Holds the next replies on a connection until the binlog has all changes made so far.
    pub(super) fn hold(&mut self, key: Key<Conn>) {
        if self.wal.is_some() {
            self.held.hold(key, &mut self.conns[key]);
        }
    }

    /// Prepares a connection for a reply that shows a job: holds the reply if another job could get
    /// the id of the shown job after a power cut.
    pub(super) fn show(&mut self, key: Key<Conn>, id: u64) {
        let conn = &mut self.conns[key];
        // A reply that has been sent shows only jobs that have a record.
        let before = if conn.output.is_empty() { 0 } else { conn.shown_id };
        conn.shown_id = id.max(before);
        if self.wal.as_ref().is_some_and(|wal| !wal.may_show(id)) {
            self.hold(key);
        }
    }

    /// Closes a connection without sending its replies, because the binlog may lack the changes
    /// that these replies confirm or show.
    fn abort(&mut self, key: Key<Conn>) {
        self.detach_long_commands(key);
        self.queue.stop_waiting(key.paired());
        self.conns[key].forget(&mut self.bodies);
        self.mark_dirty(key);
    }
}

/// The error reply for a change that the binlog does not permit.
pub(super) fn error_reply(error: Unavailable) -> Reply<'static> {
    match error {
        Unavailable::Full => Reply::OUT_OF_MEMORY,
        Unavailable::Failed => Reply::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests;
