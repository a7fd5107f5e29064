//! The list of dirty connections, and the lists of connections with held replies.

use std::collections::VecDeque;

use super::gathering::{BeforeSync, Gathering, GatheringTime};
use crate::{
    clock::Time,
    collections::{Growth, Key, SmallArena, grow, grow_deque},
    conn::Conn,
};

/// Connections whose output or readiness for input has changed; each connection is listed once.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// Connections of workers that have waited for a job and now get a job. Workers get their jobs
    /// before producers get their confirmations, because idle workers waste time.
    first: VecDeque<Key<Conn>>,
    others: VecDeque<Key<Conn>>,
}

impl Dirty {
    /// Makes room for `count` connections, which may all be dirty at once.
    pub(super) fn make_room(&mut self, count: usize) -> Growth {
        grow_deque(&mut self.first, count)?;
        grow_deque(&mut self.others, count)
    }

    /// Marks a connection as dirty, unless it is already dirty.
    pub(super) fn mark(&mut self, key: Key<Conn>, conn: &mut Conn) {
        if !std::mem::replace(&mut conn.is_dirty, true) {
            self.others.push_back(key);
        }
    }

    /// Marks as dirty the connection of a worker whose wait has ended, unless it is already dirty.
    /// [`Dirty::next`] returns this connection before those that [`Dirty::mark`] has added.
    pub(super) fn mark_first(&mut self, key: Key<Conn>, conn: &mut Conn) {
        if !std::mem::replace(&mut conn.is_dirty, true) {
            self.first.push_back(key);
        }
    }

    /// Removes and returns the next dirty connection.
    pub(super) fn next(&mut self, conns: &mut SmallArena<Conn>) -> Option<Key<Conn>> {
        let key = self.first.pop_front().or_else(|| self.others.pop_front())?;
        conns[key].is_dirty = false;
        Some(key)
    }

    /// Whether no connection is dirty.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.is_empty()
    }
}

/// Two lists of connections with held replies; a connection can be on both lists.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Connections with replies held until the next commit.
    until_commit: Vec<Key<Conn>>,
    /// Connections with replies held until the present sync ends.
    until_sync: Vec<Key<Conn>>,
    gathering: Gathering,
}

impl Held {
    /// Makes room for `count` connections on each list of connections with held replies.
    pub(super) fn make_room(&mut self, count: usize) -> Growth {
        grow(&mut self.until_commit, count)?;
        grow(&mut self.until_sync, count)
    }

    /// Whether any replies are held until the next commit.
    pub(super) fn needs_commit(&self) -> bool {
        !self.until_commit.is_empty()
    }

    /// Holds the further replies on a connection until the next commit.
    pub(super) fn hold(&mut self, key: Key<Conn>, conn: &mut Conn) {
        self.gathering.join(&mut conn.answered_in);
        if conn.output.hold() {
            self.until_commit.push(key);
        }
    }

    /// Removes a connection from both lists, because its held replies will not be sent. O(length of
    /// the lists) if this connection has held replies.
    pub(super) fn forget(&mut self, key: Key<Conn>, conn: &mut Conn) {
        self.gathering.join(&mut conn.answered_in);
        if conn.output.is_held() {
            self.until_sync.retain(|&other| other != key);
            self.until_commit.retain(|&other| other != key);
        }
    }

    /// Returns the result of [`Gathering::before_sync`] if any replies wait for a commit.
    pub(super) fn before_sync(&mut self, time: GatheringTime, now: Time) -> BeforeSync {
        if self.needs_commit() {
            self.gathering.before_sync(time, self.until_commit.len(), now)
        } else {
            BeforeSync::Sync
        }
    }

    /// On all connections, the replies that were held until the commit now wait for the end of the
    /// sync that has just begun.
    pub(super) fn begin_sync(&mut self, conns: &mut SmallArena<Conn>) {
        self.gathering.end();
        assert!(self.until_sync.is_empty(), "one sync at a time");
        std::mem::swap(&mut self.until_commit, &mut self.until_sync);
        for &key in &self.until_sync {
            conns[key].output.begin_sync();
        }
    }

    /// After a failed commit, ends the wait for more changes; the replies stay held. The caller
    /// must then empty both lists by [`Held::pop`].
    pub(super) fn fail(&mut self) {
        self.gathering.end();
    }

    /// Removes a connection from one of the two lists, and returns its key. If the connection is on
    /// both lists, it stays on the second one until a later call removes it there.
    pub(super) fn pop(&mut self) -> Option<Key<Conn>> {
        self.until_sync.pop().or_else(|| self.until_commit.pop())
    }

    /// Releases all held replies, because they need not wait for a sync any more.
    pub(super) fn release_all(&mut self, conns: &mut SmallArena<Conn>, dirty: &mut Dirty) {
        if !self.until_sync.is_empty() {
            self.end_sync(conns, dirty);
        }
        if !self.until_commit.is_empty() {
            self.begin_sync(conns);
            self.end_sync(conns, dirty);
        }
    }

    /// Releases all replies that were held until the end of the sync that has just ended.
    pub(super) fn end_sync(&mut self, conns: &mut SmallArena<Conn>, dirty: &mut Dirty) {
        self.gathering.begin_round();
        // The connections are answered in the order in which their replies were held.
        for key in self.until_sync.drain(..) {
            let conn = &mut conns[key];
            self.gathering.join(&mut conn.answered_in);
            conn.answered_in = self.gathering.expect();
            conn.output.end_sync();
            dirty.mark(key, conn);
        }
    }
}
