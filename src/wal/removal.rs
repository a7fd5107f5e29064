//! The removal of segments that no job needs.

use std::io;

use log::{debug, warn};

use super::{
    Report,
    disk::{Name, Writable},
    index::{Segment, SegmentIndex},
    log::Log,
    record::VERSION_BYTES,
    recovery::{RETRY_DELAY, Recovery, State},
    syncs::Syncs,
};

/// Whether the oldest segment may be removed: no job needs it, and the records that relocated or
/// deleted its jobs are synced. Later records need not be synced, so constant writing does not
/// prevent the removal. After a failed write or sync, however, all records must be synced first.
pub(super) fn is_safe(index: &SegmentIndex, recovery: &Recovery, syncs: &Syncs) -> bool {
    let is_synced = match recovery.state {
        State::Sound => index.oldest().is_none_or(|it| it.last_removal_at <= syncs.synced),
        State::Failed { .. } | State::Recovering => syncs.is_clean(),
    };
    is_synced && index.is_oldest_unneeded()
}

/// Removes segments that no job needs, oldest first. Stops once the removed bytes reach a limit:
/// twice the `budget` of this turn, plus the unused parts of the limits of earlier turns. Fails if
/// the lock is lost, or if the directory cannot be synced.
///
/// The directory is synced after each removal. Otherwise, a power cut could undo the removal of an
/// older segment but not of a newer one. Jobs whose deletes were in the newer segment would return.
pub(super) fn remove_unneeded(
    log: &mut Log,
    index: &mut SegmentIndex,
    recovery: &mut Recovery,
    budget: u64,
) -> io::Result<()> {
    let is_retry = recovery.removal_retry_at.take_if(|at| *at <= log.now).is_some();
    // Half of the limit is for bytes that became garbage, and half for relocated bytes.
    recovery.removable = recovery.removable.saturating_add(2 * budget);
    while recovery.removal_retry_at.is_none()
        && recovery.removable > 0
        && is_safe(index, recovery, &log.syncs)
    {
        let Some(segment) = index.oldest() else { break };
        recovery.removable = recovery.removable.saturating_sub(segment.used);
        let disk = log.lease.ask()?;
        match remove(disk, segment) {
            // The binlog works even if the unneeded segment stays.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if !is_retry {
                    warn!("cannot remove an unneeded segment; it and all newer ones stay: {error}");
                }
                recovery.removal_retry_at = Some(log.now + RETRY_DELAY);
            }
            // The segment has been removed or renamed, perhaps by another process.
            _ => {
                disk.sync_directory()?;
                index.drop_closed(segment.number);
                log.reserve.on_freed();
            }
        }
    }
    if !index.is_oldest_unneeded() {
        recovery.removable = 0;
    }
    Ok(())
}

/// Removes a segment that no job needs, or renames it if it is damaged. A segment that cannot be
/// removed is truncated, so that a restart reads no old records in it.
fn remove(disk: &mut Writable, segment: &Segment) -> io::Result<()> {
    let (name, kept) = (Name::Segment(segment.number), Name::Damaged(segment.number));
    if segment.is_damaged {
        disk.rename(name, kept)?;
        warn!("renamed the damaged {name} to {kept}; newer files have its readable jobs");
        return Ok(());
    }
    if let Err(error) = disk.remove(name) {
        let truncated = disk.truncate(name, VERSION_BYTES as u64).and_then(|()| disk.sync(name));
        truncated.map_err(|_| error)?;
        disk.close(name);
    }
    debug!("removed {name}, which no job needs");
    Ok(())
}

/// On a full disk, removes segments that have no record, because each restart adds such a segment.
/// If no new segment could be opened, also removes segments that no job needs. But if none could be
/// opened and any segment is damaged, removes nothing: reading that segment may need the key in the
/// header of another. Ignores errors.
pub(super) fn free_at_start(
    log: &mut Log,
    index: &mut SegmentIndex,
    recovery: &mut Recovery,
    report: &Report,
) {
    let has_segment = log.current.is_some();
    if !has_segment {
        recovery.retry_later(log.now);
    }
    if log.reserve.shortage.is_none() || !has_segment && report.is_damaged() {
        return;
    }
    for segment in &report.segments {
        let is_empty = segment.records + segment.problem_count == 0 && segment.torn.is_none();
        let Ok(disk) = log.lease.ask() else { return };
        if is_empty && disk.remove(Name::Segment(segment.number)).is_ok() {
            index.drop_closed(segment.number);
        }
    }
    if !has_segment {
        // If this fails, the next attempt to open a segment reports the cause.
        let _ = remove_unneeded(log, index, recovery, u64::MAX / 2);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wal::{SyncPolicy, disk::testing::Fixture};

    /// If a segment were removed before its relocated jobs are synced, a power cut would lose jobs.
    #[test]
    fn a_segment_stays_until_what_replaces_it_is_synced() {
        let mut binlog = Fixture::new(SyncPolicy::Within(Duration::from_secs(3600)));
        let kept = binlog.put(100);
        let others: Vec<_> = (0..20).map(|_| binlog.put(500)).collect();
        binlog.settle();
        for job in others {
            binlog.delete(job);
        }
        for _ in 0..20 {
            binlog.turn();
        }
        assert!(binlog.wal.counts().migrated > 0);
        assert_ne!(binlog.wal.segment_of(kept), 1);
        assert_eq!(binlog.wal.counts().oldest, 1, "no sync covers the relocated job yet");
        binlog.disk.state().ends_syncs = true;
        binlog.settle();
        assert!(binlog.wal.counts().oldest > 1);
        assert_eq!(binlog.ids_after_restart(), [1]);
    }

    #[test]
    fn garbage_of_few_busy_jobs_does_not_pile_up() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        for _ in 0..500 {
            let job = binlog.put(300);
            binlog.bury(job);
            binlog.delete(job);
            binlog.settle();
        }
        let bytes: usize = binlog.disk.state().files.values().map(Vec::len).sum();
        assert!(bytes <= 5 * 4096, "{bytes} bytes for no job");
        assert_eq!(binlog.ids_after_restart(), [0; 0]);
    }

    /// If a segment that cannot be removed kept its records, a restart would restore deleted jobs.
    #[test]
    fn a_segment_that_cannot_be_removed_is_truncated() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        binlog.disk.state().failing = Some("remove binlog");
        for _ in 0..50 {
            let job = binlog.put(300);
            binlog.delete(job);
            binlog.settle();
        }
        let oldest = binlog.wal.counts().oldest;
        assert!(oldest > 1, "its records are gone, so it does no harm");
        assert_eq!(binlog.disk.state().files[&Name::Segment(1)].len(), VERSION_BYTES);
        binlog.disk.state().failing = None;
        assert_eq!(binlog.ids_after_restart(), [0; 0]);
    }
}
