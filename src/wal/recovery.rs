//! A failure of the disk, and the recovery: all jobs are written to new segments.

use std::io;

use super::{Health, Name, RETRY_DELAY, RETRY_DELAY_MAX, Wal};
use crate::{clock::Time, queue::Queue};

impl Wal {
    /// Stops writing after an error. Records of this turn may be missing on the disk although the
    /// index counts on them, so the segment becomes suspect.
    pub(super) fn fail(&mut self, now: Time) {
        self.abandon_segment();
        let last = self.segment_index.current().map_or(0, |segment| segment.number);
        self.suspect_from = self.suspect_from.min(last);
        self.retry_later(now);
    }

    pub(super) fn abandon_segment(&mut self) {
        if let Some(current) = self.current.take() {
            let name = Name::Segment(current.number);
            let used = self.segment_index.current().map_or(0, |segment| segment.used);
            // Its zeros may take the space that is needed. An error here changes nothing.
            let _ = self.disk.truncate(name, used.saturating_sub(self.pending.len() as u64));
            self.disk.close(name);
            self.suspect_from = self.suspect_from.min(current.number);
        }
        self.pending.clear();
        self.is_written = false;
        self.is_zeroing = false;
        self.failure = None;
        self.sync_state.forget_writes();
    }

    pub(super) fn retry_later(&mut self, now: Time) {
        self.retry_delay = match self.health {
            Health::Recovering => (2 * self.retry_delay).min(RETRY_DELAY_MAX),
            _ => RETRY_DELAY,
        };
        self.health = Health::Failed { retry_at: now + self.retry_delay };
    }

    /// Opens a new segment. Every job is then to be written to it or its successors.
    pub(super) fn try_recover(&mut self, queue: &Queue, now: Time) -> io::Result<()> {
        if self.preallocated.is_empty() {
            let made = self.try_preallocate_first();
            if !self.on_preallocated(made, now) {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let last = self.segment_index.current().map_or(0, |current| current.number);
        self.open_next(0, queue)?;
        if self.suspect_from <= last {
            self.rewrite_through = last;
        }
        self.health = Health::Recovering;
        Ok(())
    }
}
