//! What is written is synced, as soon as the user has asked for.

use std::{io, time::Duration};

use super::{Name, Sync, Wal, no_segment};
use crate::clock::Time;

/// How often to look whether a sync that is under way has ended.
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(2);

impl Wal {
    /// The daemon ends: syncs what has been written, unless that is never done.
    pub fn end(&mut self) -> io::Result<()> {
        self.end_sync()?;
        match self.current {
            Some(current) if self.unsynced_since.take().is_some() => {
                self.disk.sync(Name::Segment(current.number))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the sync that is under way, if one is.
    pub(super) fn end_sync(&mut self) -> io::Result<()> {
        if self.syncing_until.take().is_some() {
            self.disk.end_sync()?;
            self.synced = self.synced.max(self.syncing);
        }
        Ok(())
    }

    pub(super) fn write_and_sync(&mut self, now: Time) -> io::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.write()?;
        if std::mem::take(&mut self.is_written) {
            self.unsynced_since.get_or_insert(now);
        }
        if self.syncing_until.is_some() {
            let result = self.disk.sync_result();
            self.syncing_until = result.is_none().then_some(now + SYNC_POLL_INTERVAL);
            if let Some(result) = result {
                result?;
                self.synced = self.synced.max(self.syncing);
            }
        }
        let Some(since) = self.unsynced_since else { return Ok(()) };
        let name = Name::Segment(self.current.ok_or_else(no_segment)?.number);
        match self.sync {
            Sync::Within(Duration::ZERO) => self.disk.sync(name)?,
            Sync::Within(delay) => {
                let is_time = since + delay <= now || (self.is_unneeded() && !self.can_drop());
                if !is_time || self.syncing_until.is_some() {
                    return Ok(());
                }
                self.disk.begin_sync(name)?;
                self.syncing_until = Some(now + SYNC_POLL_INTERVAL);
                self.syncing = self.segment_index.length();
                self.unsynced_since = None;
                return Ok(());
            }
            Sync::Never => {}
        }
        self.unsynced_since = None;
        self.synced = self.segment_index.length();
        Ok(())
    }
}
