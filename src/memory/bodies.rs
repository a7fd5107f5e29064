//! The bytes of jobs' bodies, while they arrive, while they are stored and while they are sent.
//!
//! Bodies of different sizes share blocks; each slot has the size of its body, so little memory is
//! wasted. A few free slots are remembered, and new bodies fill these first. Other free slots stay
//! unused until their whole block is empty and can be released. If free slots take too much memory,
//! bodies move out of the block with the most free bytes: see [`Bodies::move_some`].
//!
//! A small body belongs to a job, whose [`Body`] stores the place of the bytes. A large body can be
//! shared with replies, and an unfinished body has no job. So each large or unfinished body has an
//! entry in a table of referenced bodies. A body larger than [`SLOT_BODY_MAX_BYTES`] has memory of
//! its own, which grows as its bytes arrive. The rest of an unfinished body may never arrive, so a
//! smaller body, too, has memory of its own until half of its bytes have arrived or memory is
//! short. The owner of a [`Body`] must pass it to [`Bodies::remove`], because dropping a [`Body`]
//! frees nothing.
//!
//! The total `counted` includes a body from its first byte until its last handle is removed. A
//! handle may belong to a job, an unfinished upload or an unsent reply. The total also includes the
//! copies of bodies in replies.
//!
//! Invariants: slots fill their block without gaps. After each command, every slot in use has an
//! owner. Each remembered slot is free, and is not in the block that is being emptied. No block is
//! empty, except the block that is filled next.

mod slots;
mod testing;

pub use slots::BodyOwners;

use std::{collections::VecDeque, mem};

use self::slots::{Hole, Pace, Place};
use super::{
    block::{Block, MARK_BYTES, Mark, slot_bytes},
    level::{Level, Memory},
};
use crate::{
    collections::{Arena, Growth, Key, OutOfMemory, ensure},
    sys::ballast,
};

/// A body of up to this many bytes is copied into replies; a larger body is shared. The limit is
/// eight bytes above 4,096, so that a body of 4,096 bytes plus CR LF is copied.
pub const COPIED_BODY_MAX_BYTES: usize = 4096 + 8;

/// The largest body, in bytes, that shares a block with other bodies: the default limit plus CR LF.
const SLOT_BODY_MAX_BYTES: usize = 64 * 1024 + 1;

/// Bytes that each body adds to [`Bodies::counted`] besides its length: about the size of a job's
/// other data.
pub const BODY_OVERHEAD_BYTES: u64 = 128;

/// A handle to a body's bytes, which are in [`Bodies`].
#[must_use = "its bytes are kept until it is removed"]
#[derive(Debug)]
pub struct Body {
    /// The body's slot. If `unit` is [`REFERENCED`], `block` is the key of the body's table entry.
    place: Place,
    len: u32,
}

const _: () = assert!(size_of::<Body>() == 12);

/// The `unit` of a [`Body`] whose place is in the table of referenced bodies.
const REFERENCED: u16 = u16::MAX;

impl Body {
    /// How many bytes the body has.
    #[expect(clippy::len_without_is_empty, reason = "a finished body is never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether replies share the body instead of copying it.
    pub fn is_large(&self) -> bool {
        self.len() > COPIED_BODY_MAX_BYTES
    }

    /// The key of the body's entry in the table of referenced bodies, if it has one.
    fn entry(&self) -> Option<Key<Referenced>> {
        (self.place.unit == REFERENCED).then(|| self.place.block.paired())
    }
}

/// The table entry of a body that can be shared, or that is not finished.
#[derive(Debug)]
pub(super) struct Referenced {
    /// The body's slot, if the body has one.
    place: Option<Place>,
    /// The body's bytes, if the body has no slot.
    own: Vec<u8>,
    /// How many bytes the finished body will have.
    size: usize,
    /// The number of handles.
    handles: u32,
}

/// Owns all bodies, and knows how much memory is still free.
#[derive(Debug, Default)]
pub struct Bodies {
    /// How much memory may still be taken, for bodies or anything else.
    pub memory: Memory,
    /// The bytes of all bodies and their copies, and [`BODY_OVERHEAD_BYTES`] for each body.
    pub counted: u64,
    /// The limit on `counted`, if there is one. No body is removed if `counted` exceeds this limit.
    pub limit: Option<u64>,
    blocks: Arena<Block, 256>,
    referenced: Arena<Referenced>,
    /// Remembered free slots, from the smallest to the largest. The largest slot is filled next.
    holes: Vec<Hole>,
    /// The memory of empty blocks, in the order in which they became empty.
    releasable: VecDeque<Vec<u8>>,
    /// Whether the memory of one empty block is kept for later bodies.
    keeps_block: bool,
    /// The total size in bytes of free slots that were once in use.
    freed: usize,
    /// The next slot to visit in the block that is being emptied.
    moving: Option<Place>,
    pace: Pace,
}

/// Operations on single bodies.
impl Bodies {
    /// Stores a body, or fails if there is no memory or the limit on bodies is reached. O(length).
    pub fn store(&mut self, bytes: &[u8]) -> Growth<Body> {
        if bytes.len() > COPIED_BODY_MAX_BYTES {
            let mut body = self.begin(bytes.len())?;
            if self.append(&mut body, bytes).is_ok() {
                return Ok(body);
            }
            self.remove(body);
            return Err(OutOfMemory);
        }
        let counted = BODY_OVERHEAD_BYTES + bytes.len() as u64;
        self.ensure_limit_permits(counted)?;
        let place = self.take_slot(slot_bytes(bytes.len()), Level::Plenty)?;
        self.blocks[place.block].write(place.start(), 0, bytes);
        self.counted += counted;
        Ok(Body { place, len: u32::try_from(bytes.len()).expect("it is small") })
    }

    /// Begins a body that arrives in pieces, `size` bytes in total, or fails if there is no memory
    /// or the limit on bodies does not permit another body. The body's bytes take memory, and are
    /// counted, only when they arrive.
    pub fn begin(&mut self, size: usize) -> Growth<Body> {
        self.ensure_limit_permits(BODY_OVERHEAD_BYTES)?;
        self.referenced.make_room()?;
        let entry = Referenced { place: None, own: Vec::new(), size, handles: 1 };
        let key = self.referenced.insert(entry);
        self.counted += BODY_OVERHEAD_BYTES;
        Ok(Body { place: Place { block: key.paired(), unit: REFERENCED }, len: 0 })
    }

    /// Appends bytes to an unfinished body, which must not exceed its announced size. If there is
    /// no memory, or the limit on bodies is reached, fails and changes nothing.
    pub fn append(&mut self, body: &mut Body, bytes: &[u8]) -> Growth {
        self.ensure_limit_permits(bytes.len() as u64)?;
        let key = body.entry().expect("it is not finished");
        let Referenced { place, ref own, size, .. } = self.referenced[key];
        let (len, before) = (body.len() + bytes.len(), own.capacity());
        let capacity = (2 * len).min(size);
        if place.is_none() && size <= SLOT_BODY_MAX_BYTES {
            // A slot can be free even if no more memory can be taken.
            if capacity == size || len > before && !self.memory.admits(Level::Plenty) {
                self.move_to_slot(key)?;
            }
        }
        if let Some(at) = self.referenced[key].place {
            self.blocks[at.block].write(at.start(), body.len(), bytes);
        } else {
            // Memory that was allocated earlier becomes resident only now, when it is written to.
            if len > before || self.memory.limits_resident {
                self.ensure_storage()?;
                let own = &mut self.referenced[key].own;
                own.try_reserve_exact(capacity.max(before) - own.len())?;
            }
            self.referenced[key].own.extend_from_slice(bytes);
            ballast::count_written(bytes.len());
        }
        body.len = u32::try_from(len).expect("a body is at most a gibibyte");
        self.counted += bytes.len() as u64;
        Ok(())
    }

    /// Moves an unfinished body to a slot of its final size.
    fn move_to_slot(&mut self, key: Key<Referenced>) -> Growth {
        let place = self.take_slot(slot_bytes(self.referenced[key].size), Level::Plenty)?;
        let entry = &mut self.referenced[key];
        entry.place = Some(place);
        let block = &mut self.blocks[place.block];
        block.set_mark(place.start(), Mark::Referenced(key));
        block.write(place.start(), 0, &mem::take(&mut entry.own));
        Ok(())
    }

    /// Makes the job with this index the owner of its body. From now on, the body can move. O(1).
    pub fn own(&mut self, owners: &mut impl BodyOwners, index: usize) {
        let body = owners.body_mut(index);
        if body.is_large() {
            return;
        }
        if let Some(key) = body.entry() {
            body.place = self.referenced.remove(key).place.expect("a small body has a slot");
        }
        self.blocks[body.place.block].set_mark(body.place.start(), Mark::Job(index));
    }

    /// The bytes of a body.
    pub fn bytes(&self, body: &Body) -> &[u8] {
        let place = match body.entry().map(|key| &self.referenced[key]) {
            Some(Referenced { place: None, own, .. }) => return own,
            Some(Referenced { place: Some(place), .. }) => *place,
            None => body.place,
        };
        &self.blocks[place.block].bytes[place.start() + MARK_BYTES..][..body.len()]
    }

    /// Returns another handle to a large body.
    pub fn add_ref(&mut self, body: &Body) -> Body {
        self.referenced[body.entry().expect("it is large")].handles += 1;
        Body { ..*body }
    }

    /// Removes a handle to a body. Removing the last handle frees the body's memory. O(1).
    #[expect(clippy::needless_pass_by_value, reason = "the handle must not be used after this")]
    pub fn remove(&mut self, body: Body) {
        if let Some(key) = body.entry() {
            let entry = &mut self.referenced[key];
            entry.handles -= 1;
            if entry.handles > 0 {
                return;
            }
            let Referenced { place, size, .. } = self.referenced.remove(key);
            if let Some(place) = place {
                self.free(place, slot_bytes(size));
            }
        } else {
            self.free(body.place, slot_bytes(body.len()));
        }
        self.counted -= BODY_OVERHEAD_BYTES + body.len() as u64;
    }

    /// Fails if, even after the release of all empty blocks, too little memory for a job is free.
    pub fn ensure_storage(&mut self) -> Growth {
        self.ensure_left(Level::Plenty)
    }

    /// Fails if the limit does not permit `bytes` more bytes of bodies.
    pub fn ensure_limit_permits(&self, bytes: u64) -> Growth {
        let all = self.counted.saturating_add(bytes);
        ensure(self.limit.is_none_or(|limit| all <= limit))
    }
}

#[cfg(test)]
mod tests;
