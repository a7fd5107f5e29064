//! The lease of a directory: the right to write to the directory.

use std::{
    io,
    ops::{Deref, DerefMut},
    time::Duration,
};

use super::{Disk, Name};
use crate::clock::Time;

/// How long the daemon relies on its last check of the lock. A daemon that takes over waits longer
/// than this, because for this time the old daemon may still write and acknowledge changes.
pub const LOCK_CONFIRM_INTERVAL: Duration = Duration::from_millis(250);

/// A disk to which this daemon may write while no other daemon can have the lock. Before each call
/// that writes, the lock is checked if a check is due. After a failed check, such calls fail.
#[derive(Debug)]
pub(in crate::wal) struct Lease {
    disk: Writable,
    confirmed_at: Time,
    /// Why the lock is lost, if it is lost.
    pub(in crate::wal) lost: Option<io::Error>,
}

/// Access to the files of a directory, which a [`Lease`] gives only while this daemon has the lock.
#[derive(Debug)]
pub(in crate::wal) struct Writable {
    disk: Box<dyn Disk>,
    /// Whether files are synced: false with `-F`.
    is_synced: bool,
}

impl Lease {
    /// The lease of a disk whose lock was checked at `now`. If `is_synced` is false, no file is
    /// synced.
    pub(in crate::wal) fn new(disk: Box<dyn Disk>, is_synced: bool, now: Time) -> Self {
        Self { disk: Writable { disk, is_synced }, confirmed_at: now, lost: None }
    }

    /// Checks that this daemon still has the lock, and returns the files. If the lock is lost, this
    /// call and all later calls fail. Call this before a segment is made, truncated or removed: the
    /// last check may be long ago, because calls on the disk can take long.
    pub(in crate::wal) fn ask(&mut self) -> io::Result<&mut Writable> {
        if self.lost.is_none() {
            self.lost = self.disk.confirm_lock().err();
        }
        match self.lost {
            Some(_) => Err(io::Error::other("the lock of the directory is lost")),
            None => Ok(&mut self.disk),
        }
    }

    /// As [`Lease::ask`], but checks the lock at most once in [`LOCK_CONFIRM_INTERVAL`].
    pub(in crate::wal) fn ask_if_due(&mut self, now: Time) -> io::Result<&mut Writable> {
        if self.is_due(now) {
            self.confirmed_at = now;
            return self.ask();
        }
        Ok(&mut self.disk)
    }

    /// Whether a check of the lock is due at `now`.
    pub(in crate::wal) fn is_due(&self, now: Time) -> bool {
        self.lost.is_some() || now >= self.confirmed_at + LOCK_CONFIRM_INTERVAL
    }

    /// As [`Disk::sync_result`].
    pub(in crate::wal) fn sync_result(&mut self, waits: bool) -> Option<io::Result<Duration>> {
        self.disk.sync_result(waits)
    }
}

impl Writable {
    /// As [`Disk::sync`], but does nothing with `-F`.
    pub(in crate::wal) fn sync(&mut self, name: Name) -> io::Result<Duration> {
        if self.is_synced { self.disk.sync(name) } else { Ok(Duration::ZERO) }
    }

    /// As [`Disk::sync_directory`], but does nothing with `-F`.
    pub(in crate::wal) fn sync_directory(&mut self) -> io::Result<()> {
        if self.is_synced { self.disk.sync_directory() } else { Ok(()) }
    }
}

impl Deref for Writable {
    type Target = dyn Disk;
    /// The disk; the caller knows that the lease has not expired.
    fn deref(&self) -> &Self::Target {
        &*self.disk
    }
}

impl DerefMut for Writable {
    /// The disk; the caller knows that the lease has not expired.
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::disk::testing::{MemoryDisk, START};

    /// If the lock were checked before each write, perhaps over a network, writes would be slow.
    #[test]
    fn a_lease_is_confirmed_from_time_to_time_and_never_comes_back() {
        let disk = MemoryDisk::default();
        let mut lease = Lease::new(Box::new(disk.clone()), true, START);
        let later = START + LOCK_CONFIRM_INTERVAL;
        disk.state().is_lock_lost = true;
        assert!(lease.ask_if_due(START).is_ok(), "not due");
        assert!(lease.ask_if_due(later).is_err());
        disk.state().is_lock_lost = false;
        assert!(lease.ask_if_due(later).is_err());
        assert!(lease.ask().is_err());
        assert!(lease.lost.is_some());
    }
}
