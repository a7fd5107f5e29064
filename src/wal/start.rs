//! Startup: opens the first segment of this run, before any record of the last run is changed.

use log::{error, warn};

use super::{
    Error, Report,
    disk::{Name, Writable},
    log::{Log, NUMBER_MAX, number_after},
    reserve::is_full,
    space::{Demand, SEGMENT_ALIGN_BYTES},
};
use crate::collections::grow;

impl Log {
    /// Opens the first segment of this run, and frees space that the last run reserved. If there is
    /// no space for even one delete, no segment is opened, and the caller tries again later.
    pub(super) fn begin(
        &mut self,
        files: &[(Name, u64)],
        report: &Report,
        demand: Demand,
        next_id: u64,
    ) -> Result<(), Error> {
        let number = number_after(self.end.number, NUMBER_MAX)?;
        let disk = self.lease.ask()?;
        if self.syncs.are_on() {
            let mut names = Vec::new();
            grow(&mut names, report.segments.len())?;
            names.extend(report.segments.iter().map(|segment| Name::Segment(segment.number)));
            disk.sync_all(&names)?;
            disk.sync_directory()?;
        }
        // On a full disk, the only space is in the files that the last run preallocated.
        let disk = self.lease.ask()?;
        let is_reserve = |name: &Name| matches!(name, Name::Preallocated(_));
        // If only a preallocated file has the key, that file stays until the new segment has the
        // key.
        let kept = report.key.map(|(_, name)| name).filter(is_reserve);
        for name in files.iter().map(|&(name, _)| name).filter(is_reserve) {
            if kept == Some(name) {
                // If the truncation fails, the file takes up its space a little longer.
                let _ = disk.truncate(name, SEGMENT_ALIGN_BYTES);
            } else {
                remove_of_last_run(disk, name);
            }
        }
        truncate(disk, report, false);
        match self.open_next(0, next_id) {
            Ok(()) => {}
            // Startup succeeds without a segment. Until there is space, changes are refused, and
            // clients get no jobs. Some file systems, such as btrfs, need more space for a write
            // than they reserved.
            Err(error) if is_full(&error) => {
                self.reserve.on_shortage(&error, SEGMENT_ALIGN_BYTES, self.now);
                if self.end.number < number {
                    // The number of the segment that could not be opened is not used again.
                    self.end.open(number);
                }
                error!("the disk has no space even for a delete: all changes are refused");
            }
            Err(error) => return Err(error.into()),
        }
        // Unfinished records were kept up to this point of startup, so that no new job gets their
        // ids. The header of the new segment has an id larger than theirs, so the unfinished
        // records can now be truncated.
        let disk = self.lease.ask()?;
        truncate(disk, report, true);
        if let Some(name) = kept.filter(|_| self.current.is_some()) {
            remove_of_last_run(disk, name);
        }
        // Reserves space for all deletes now, so that the first put need not wait.
        let _ = self.ensure_space(0, demand.slots());
        Ok(())
    }
}

/// Removes a preallocated file of the last run. If this fails, the file takes up space until the
/// next startup.
fn remove_of_last_run(disk: &mut Writable, name: Name) {
    if let Err(error) = disk.remove(name) {
        warn!("cannot remove a preallocated file of the last run: {error}");
    }
}

/// Truncates segments of earlier runs after their last complete record. With `is_torn`, these are
/// the segments that end in an unfinished record, otherwise the segments that end in zeros. If a
/// truncation fails, the next startup may report damage, because only the newest segment may end in
/// an unfinished record.
fn truncate(disk: &mut Writable, report: &Report, is_torn: bool) {
    for segment in &report.segments {
        let has_rest = segment.used < segment.size && segment.torn.is_some() == is_torn;
        if segment.is_damaged() || !has_rest {
            continue;
        }
        let name = Name::Segment(segment.number);
        let mut result = disk.truncate(name, segment.used);
        if is_torn && result.is_ok() {
            result = disk.sync(name).map(drop);
        }
        if let Err(error) = result {
            warn!("cannot truncate {name} after its last record: {error}");
        }
        disk.close(name);
    }
}

#[cfg(test)]
mod tests {
    use crate::wal::{
        SyncPolicy,
        disk::testing::{Fixture, START},
        recovery::RETRY_DELAY,
    };

    /// If a full disk stopped startup, an operator would have to free space and start the daemon.
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
