//! Asking before a change: whether its record has space, now and when the jobs must be deleted.

use super::{
    Health, Unavailable, Wal,
    record::SHORT_RECORD_BYTES,
    space::{SHORT_BYTES, file_size},
};
use crate::{
    clock::Time,
    memory::{MemoryBudget, OutOfMemory},
};

/// Permission to append the record of one change, used up by the append. There is space for the
/// record, unless the change may be deferred.
#[must_use = "a change that is not appended does not outlast a restart"]
#[derive(Debug)]
pub struct Permit(pub(super) Change);

/// The change that a permit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// A new job, whose full record has this many bytes.
    Put(u64),
    /// A new state, priority or delay.
    Update,
    /// A new state, priority or delay, appended as soon as there is space.
    DeferrableUpdate,
    /// The delete of a job.
    Delete,
}

/// Permits, which the server asks for before it changes anything.
impl Wal {
    /// Permits a new job whose full record has `length` bytes: see [`Wal::full_length`].
    pub fn permit_put(&mut self, length: u64, now: Time) -> Result<Permit, Unavailable> {
        self.make_space(length, 1, now).map(|()| Permit(Change::Put(length)))
    }

    /// Ensures the memory that [`Wal::put`] takes.
    pub fn ensure_memory_to_put(&mut self, budget: &mut MemoryBudget) -> Result<(), OutOfMemory> {
        self.segment_index.ensure_memory(budget)
    }

    /// Permits a new state, priority or delay of a job.
    pub fn permit_update(&mut self, now: Time) -> Result<Permit, Unavailable> {
        self.make_space(SHORT_BYTES, 0, now).map(|()| Permit(Change::Update))
    }

    /// Permits a change that must not fail because the disk is full. Its record is appended when
    /// there is space; a crash before that undoes the change.
    pub fn permit_deferrable_update(&self) -> Result<Permit, Unavailable> {
        if self.is_sound() {
            Ok(Permit(Change::DeferrableUpdate))
        } else {
            Err(Unavailable::Failed)
        }
    }

    /// Permits the delete of a job: also on a full disk, where its space has been kept, and also
    /// during recovery, which may need the space that deletes free.
    pub fn permit_delete(&mut self, now: Time) -> Result<Permit, Unavailable> {
        if matches!(self.health, Health::Failed { .. }) || self.failure.is_some() {
            return Err(Unavailable::Failed);
        }
        let has_space =
            self.space().admits(SHORT_BYTES, 0) || self.preallocate(file_size(SHORT_BYTES), now);
        if has_space { Ok(Permit(Change::Delete)) } else { Err(Unavailable::Full) }
    }

    /// Whether the disk had no space when it was last asked for some.
    pub fn is_full(&self) -> bool {
        self.full_until.is_some() && !self.is_growth_failed
    }

    /// Whether no file could be made when one was last needed, though there may be space.
    pub fn has_growth_failed(&self) -> bool {
        self.full_until.is_some() && self.is_growth_failed
    }

    /// Whether the binlog works and holds every job. If not, no jobs may be handed out.
    pub fn is_sound(&self) -> bool {
        self.health == Health::Sound && self.failure.is_none()
    }

    /// Returns the bytes of a job's full record. `size` is that of the body with its CR LF.
    pub fn full_length(name: &str, size: usize) -> u64 {
        (SHORT_RECORD_BYTES + name.len() + size) as u64
    }

    /// Ensures the disk space for a record of `length` bytes, for the deletes of `new_jobs` more
    /// jobs, and for writing the jobs of the oldest segment again.
    fn make_space(&mut self, length: u64, new_jobs: u64, now: Time) -> Result<(), Unavailable> {
        if !self.is_sound() {
            return Err(Unavailable::Failed);
        }
        while !self.space().admits(length, self.demand().slots() + new_jobs) {
            if !self.preallocate(file_size(length), now) {
                return Err(Unavailable::Full);
            }
        }
        Ok(())
    }
}
