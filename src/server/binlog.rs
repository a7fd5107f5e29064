//! The server's side of the binlog: a permit before each change, a record after it, and the effects
//! of a commit that succeeds or fails. Without a binlog, nothing here has an effect.

use std::io;

use super::{Server, gathering::GatheringTime};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    conn::Conn,
    proto::Reply,
    queue::Job,
    wal::{self, Change, CommitOutcome, Jobs, Unavailable, Wal},
};

/// How far the daemon can serve its clients. If several states apply, the first is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// A write or sync of the binlog has failed: changes get an error reply. Or no further segment
    /// can be made, although there may be disk space: then `put` gets an error reply once the
    /// present segments are full.
    BinlogFailed,
    /// The disk has no space for more of the binlog.
    BinlogFull,
    /// The daemon drains at the operator's request: every `put` gets `DRAINING`.
    Draining,
    /// Everything works.
    Serving,
}

impl Health {
    /// The name of the state in `capabilities` and `metrics`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BinlogFailed => "binlog-failed",
            Self::BinlogFull => "binlog-full",
            Self::Draining => "draining",
            Self::Serving => "serving",
        }
    }
}

/// Permission to change a job, consumed by recording the change; `None` without a binlog.
pub(super) type Permit = Option<wal::Permit>;

impl Server {
    /// Writes the turn's records, and syncs them if the flags require it. Replies that confirm
    /// changes are held until their records are as safe as the flags promise. Call it before
    /// replies are sent, but see [`Server::write_changes`]. If the commit fails, each connection
    /// with held replies is closed without them, and so is each one with a reply that shows a job
    /// without any record. Such jobs are removed: no client knows their ids, and a restart may
    /// assign these ids again.
    pub fn commit(&mut self, now: Time) {
        self.commit_changes(now);
        let reason = self.wal.as_ref().and_then(Wal::trouble);
        let before = self.trouble.filter(|&(before, _)| Some(before) == reason);
        self.trouble = before.or(reason.map(|reason| (reason, now)));
    }

    fn commit_changes(&mut self, now: Time) {
        // A wait before a sync in the foreground is over already.
        let wait_until = if self.commit_blocks() { None } else { self.gather_until(now) };
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

    /// Removes the jobs whose puts could not be written, and closes the connections with unsent
    /// replies that may show one. O(connections + jobs put in this turn).
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

    /// Checks whether this daemon still has the binlog's directory to itself, unless it has checked
    /// shortly before `now`: see [`Wal::confirm_lock_if_due`]. `now` must have just been read.
    /// Returns whether this call checked. If the lock is lost, [`Server::lost_lock`] returns the
    /// reason.
    pub fn confirm_lock_if_due(&mut self, now: Time) -> bool {
        self.wal.as_mut().is_some_and(|wal| wal.confirm_lock_if_due(now))
    }

    /// If another daemon may have taken over the binlog, the reason. The process must then end.
    pub fn lost_lock(&self) -> Option<&io::Error> {
        self.wal.as_ref()?.lost_lock()
    }

    /// If clients will soon send more changes, returns the time until which [`Server::commit`]
    /// should wait for them before it syncs.
    pub fn gather_until(&mut self, now: Time) -> Option<Time> {
        let wal = self.wal.as_ref()?;
        let time = GatheringTime::new(wal.time_of_next_sync()?, wal.syncs_in_background());
        self.held.gather_until(time, now)
    }

    /// Whether [`Server::commit`] will sync in this thread. If so, send replies that are not held
    /// before that, and any wait for [`Server::gather_until`] must come first, too. Otherwise the
    /// binlog begins the sync later.
    pub fn commit_blocks(&self) -> bool {
        self.held.needs_commit() && self.wal.as_ref().is_some_and(Wal::syncs_in_foreground)
    }

    /// Writes the turn's records, as [`Server::commit`] would, so that replies that show these
    /// changes to other clients may be sent. Returns whether the replies may be sent now; if not,
    /// the commit of this turn reports the error.
    pub fn write_changes(&mut self, now: Time) -> bool {
        self.wal.as_mut().is_none_or(|wal| wal.write_pending(now))
    }

    /// Syncs the binlog, unless it is never synced, and releases held replies. Call it after the
    /// last commit. If the sync fails, the replies stay held.
    pub fn shut_down(&mut self) -> io::Result<()> {
        if let Some(wal) = &mut self.wal {
            wal.shut_down(&self.queue)?;
        }
        self.held.release_all(&mut self.conns, &mut self.dirty);
        Ok(())
    }

    /// Makes another thread call `wake` when a sync in the background has ended.
    pub fn on_sync_end(&mut self, wake: Box<dyn Fn() + Send>) {
        if let Some(wal) = &mut self.wal {
            wal.on_sync_end(wake);
        }
    }

    /// Sets the binlog's calendar, by the wall clock.
    pub fn set_calendar(&mut self, calendar: Calendar, now: Time) {
        if let Some(wal) = &mut self.wal {
            wal.set_calendar(calendar, now);
        }
    }

    /// The binlog, read-only.
    pub fn wal(&self) -> Option<&Wal> {
        self.wal.as_ref()
    }

    /// How far the daemon can serve its clients now.
    pub fn health(&self) -> Health {
        match self.wal.as_ref().and_then(Wal::trouble) {
            Some(Unavailable::Failed) => Health::BinlogFailed,
            Some(Unavailable::Full) => Health::BinlogFull,
            None if self.is_draining => Health::Draining,
            None => Health::Serving,
        }
    }

    /// The time since which changes have been refused because the binlog has failed, as of the last
    /// commit.
    pub fn binlog_failed_since(&self) -> Option<Time> {
        let (reason, since) = self.trouble?;
        (reason == Unavailable::Failed).then_some(since)
    }

    /// Permits a `put` of the connection, with a body of `size` bytes.
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

    /// Permits a change of a job that exists.
    pub(super) fn permit(&mut self, change: Change, now: Time) -> Result<Permit, Unavailable> {
        self.wal.as_mut().map(|wal| wal.permit(change, now)).transpose()
    }

    /// Records a `put`.
    pub(super) fn record_put(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit) {
            wal.put(permit, Jobs { queue: &self.queue, bodies: &self.bodies }, job);
        }
    }

    /// Records a change that a restart must preserve.
    pub(super) fn record_change(&mut self, permit: Permit, job: Key<Job>, now: Time) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit) {
            wal.update(permit, &self.queue, job, now);
        }
    }

    /// Records a delete. Call it before the job is removed.
    pub(super) fn record_delete(&mut self, permit: Permit, job: Key<Job>) {
        if let (Some(wal), Some(permit)) = (&mut self.wal, permit) {
            wal.delete(permit, &self.queue, job);
        }
    }

    /// Appends a reply that confirms a change, and holds it until the change is in the binlog.
    pub(super) fn acknowledge(&mut self, key: Key<Conn>, reply: Reply<'_>) {
        self.hold(key);
        self.reply(key, reply);
    }

    /// Holds later replies on a connection until the changes so far are in the binlog.
    pub(super) fn hold(&mut self, key: Key<Conn>) {
        if self.wal.is_some() {
            self.held.hold(key, &mut self.conns[key]);
        }
    }

    /// Holds the next reply on a connection if it shows a job whose id could be given to another
    /// job after a power cut.
    pub(super) fn show(&mut self, key: Key<Conn>, id: u64) {
        let conn = &mut self.conns[key];
        // Jobs in replies that have been sent have a record.
        let before = if conn.output.is_empty() { 0 } else { conn.shown_id };
        conn.shown_id = id.max(before);
        if self.wal.as_ref().is_some_and(|wal| !wal.may_show(id)) {
            self.hold(key);
        }
    }

    /// Closes a connection without sending its replies, because it is unknown whether the
    /// connection's changes took effect.
    fn abort(&mut self, key: Key<Conn>) {
        self.detach_long_commands(key);
        self.queue.stop_waiting(key.paired());
        self.conns[key].forget(&mut self.bodies);
        self.mark_dirty(key);
    }
}

/// The error reply for a change that the binlog cannot take.
pub(super) fn error_reply(error: Unavailable) -> Reply<'static> {
    match error {
        Unavailable::Full => Reply::OUT_OF_MEMORY,
        Unavailable::Failed => Reply::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests;
