//! A start after the log has been read: what may fail for want of something goes first, while
//! nothing has been changed.

use std::io;

use log::{error, warn};

use super::{
    Health, Name, RETRY_DELAY, Report, SyncPolicy, Wal,
    preallocate::is_full,
    space::{SHORT_BYTES, file_size},
};
use crate::{clock::Time, queue::Queue};

impl Wal {
    /// Opens the first segment of this run. What may fail for want of something goes first, while
    /// nothing has been changed.
    pub(super) fn open_first_segment(
        &mut self,
        number: u32,
        files: &[(Name, u64)],
        report: &Report,
        queue: &Queue,
        now: Time,
    ) -> io::Result<()> {
        let mut made = self.try_preallocate(self.demand().file_size_for_deletes());
        let mut has_freed_space = false;
        if made.as_ref().is_err_and(is_full) {
            // What the last run had set aside is room as well.
            self.free_unused_space(files, report);
            has_freed_space = true;
            made = self.try_preallocate_first();
        }
        match made {
            Err(error) if is_full(&error) => self.on_disk_full(&error, now),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let has_spare = !self.preallocated.is_empty();
        let opened = self.sync_old_segments(report).and_then(|()| {
            if has_spare { self.open_segment(number, queue).map(|()| true) } else { Ok(false) }
        });
        match opened {
            Ok(true) => {}
            Ok(false) => {
                error!(
                    "the disk has no space for a single delete: changes are refused until it has"
                );
                // Serve what is there, and try again: somebody may make room.
                self.segment_index.open(number);
                self.health = Health::Failed { retry_at: now + RETRY_DELAY };
            }
            Err(error) => {
                self.remove_created();
                return Err(error);
            }
        }
        // From now on the ids of unfinished records are known without them.
        self.truncate_unfinished(report);
        if !has_freed_space {
            self.free_unused_space(files, report);
        }
        // The room of all deletes at once: the first put must not wait for it.
        while !self.space().admits(0, self.demand().slots()) {
            if !self.preallocate(file_size(SHORT_BYTES), now) {
                break;
            }
        }
        Ok(())
    }

    /// Makes sure of what the last run wrote.
    fn sync_old_segments(&mut self, report: &Report) -> io::Result<()> {
        if self.sync != SyncPolicy::Never {
            for segment in &report.segments {
                let name = Name::Segment(segment.number);
                self.disk.sync(name)?;
                self.disk.close(name);
            }
            self.disk.sync_directory()?;
        }
        self.synced = self.segment_index.length();
        Ok(())
    }

    /// Takes off what the last run did not write to its end: behind other records it would count
    /// as damage, and does at the next start if this fails.
    fn truncate_unfinished(&mut self, report: &Report) {
        for segment in &report.segments {
            if segment.torn.is_none() || segment.is_damaged() {
                continue;
            }
            let name = Name::Segment(segment.number);
            let cut = self.disk.truncate(name, segment.used);
            let is_synced = self.sync != SyncPolicy::Never;
            let result = cut.and_then(|()| if is_synced { self.disk.sync(name) } else { Ok(()) });
            if let Err(error) = result {
                warn!("cannot truncate an unfinished record, which will count as damage: {error}");
            }
            self.disk.close(name);
        }
    }

    /// Removes what a start that fails has made, but for a segment without records: that may be
    /// what tells the next id.
    fn remove_created(&mut self) {
        while let Some(file) = self.take_preallocated(0) {
            let _ = self.disk.remove(Name::Preallocated(file.number));
        }
    }

    /// Gives back what the last run had set aside: its spares, and the zeros behind its records. If
    /// that fails they stay, and take room until the next start.
    fn free_unused_space(&mut self, files: &[(Name, u64)], report: &Report) {
        for &(name, _) in files {
            if let Name::Preallocated(_) = name {
                if let Err(error) = self.disk.remove(name) {
                    warn!("cannot remove a preallocated file of the last run: {error}");
                }
            }
        }
        for segment in &report.segments {
            let name = Name::Segment(segment.number);
            if segment.is_damaged() || segment.torn.is_some() || segment.used >= segment.size {
                continue;
            }
            if let Err(error) = self.disk.truncate(name, segment.used) {
                warn!("cannot truncate a segment of the last run: {error}");
            }
            self.disk.close(name);
        }
    }
}
