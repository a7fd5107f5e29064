//! Startup: opens the first segment. Steps that can fail come first, before any change.

use std::io;

use log::{error, warn};

use super::{Error, Report, disk::Name, log::Log, reserve::is_full, space::Demand};
use crate::clock::Time;

impl Log {
    /// Opens the first segment of this run, and frees space that the last run reserved. If there is
    /// no space for even one delete, no segment is opened, and the caller tries again later.
    pub(super) fn begin(
        &mut self,
        files: &[(Name, u64)],
        report: &Report,
        demand: Demand,
        next_id: u64,
        now: Time,
    ) -> Result<(), Error> {
        let number = self.next_number()?;
        self.sync_old_segments(report)?;
        let least = demand.file_size_for_deletes();
        let mut made = self.reserve.try_preallocate(&mut self.disk, least);
        let mut has_freed_space = false;
        if made.as_ref().is_err_and(is_full) {
            // The space that the last run had reserved may suffice.
            self.free_unused_space(files, report);
            has_freed_space = true;
            made = self.reserve.try_preallocate_first(&mut self.disk, demand);
        }
        match made {
            Err(error) if is_full(&error) => self.reserve.on_shortage(&error, now),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        if self.reserve.first().is_some() {
            if let Err(error) = self.open_segment(number, next_id) {
                self.remove_created();
                // Some file systems, such as btrfs, need more space than they have reserved.
                if !is_full(&error) {
                    return Err(error.into());
                }
                self.reserve.on_shortage(&error, now);
            }
        }
        if !self.is_open() {
            // The jobs are served meanwhile. The operator may free space.
            if self.end().number < number {
                self.skip_number();
            }
            error!("the disk has no space for a single delete: changes are refused until it has");
        }
        // The new segment holds the next id, so unfinished records are no longer needed for their
        // ids.
        self.truncate_unfinished(report);
        if !has_freed_space {
            self.free_unused_space(files, report);
        }
        // The space for all deletes is taken at once, so that the first put does not wait for it.
        let _ = self.ensure_space(0, demand.slots(), now);
        Ok(())
    }

    /// Syncs the segments of the last run, unless the policy is never to sync.
    fn sync_old_segments(&mut self, report: &Report) -> io::Result<()> {
        if self.syncs.are_on() {
            let names: Vec<_> =
                report.segments.iter().map(|segment| Name::Segment(segment.number)).collect();
            self.disk.sync_all(&names)?;
            self.disk.sync_directory()?;
        }
        self.syncs.on_all_synced(self.end());
        Ok(())
    }

    /// Truncates the unfinished record of the last run. In a segment that is not the newest, it
    /// would be taken for damage, and will be at the next startup if this fails.
    fn truncate_unfinished(&mut self, report: &Report) {
        for segment in &report.segments {
            if segment.torn.is_none() || segment.is_damaged() {
                continue;
            }
            let name = Name::Segment(segment.number);
            let truncated = self.disk.truncate(name, segment.used);
            let is_synced = self.syncs.are_on();
            let result = truncated
                .and_then(|()| if is_synced { self.disk.sync(name).map(drop) } else { Ok(()) });
            if let Err(error) = result {
                warn!("cannot truncate an unfinished record, which will count as damage: {error}");
            }
            self.disk.close(name);
        }
    }

    /// Removes the preallocated files after startup has failed. A segment without records stays,
    /// because it may be the only one that holds the next id.
    fn remove_created(&mut self) {
        while let Some(file) = self.reserve.take_first() {
            let _ = self.disk.remove(file.name());
        }
    }

    /// Removes the preallocated files of the last run, and truncates the zeros after its records. A
    /// file for which that fails takes up space until the next startup.
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

#[cfg(test)]
mod tests {
    use crate::wal::{
        SyncPolicy,
        recovery::RETRY_DELAY,
        testing::{Fixture, START},
    };

    /// Otherwise an operator who frees space would also have to start the daemon again.
    #[test]
    fn a_start_goes_on_if_the_disk_lacks_the_space_that_it_has_reserved() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.put(100);
        binlog.turn();
        let disk = binlog.disk.clone();
        drop(binlog);
        disk.state().failing = Some("sync spare");
        disk.state().errno = Some(libc::ENOSPC);
        let (mut again, _) = Fixture::open(disk, SyncPolicy::EACH_CHANGE, START);
        assert_eq!(again.restored.queue.jobs(), 1);
        assert!(again.try_put(1).is_err());
        again.disk.state().failing = None;
        again.wait(RETRY_DELAY);
        again.settle();
        again.put(1);
        again.turn();
        assert_eq!(again.ids_after_restart().len(), 2);
    }
}
