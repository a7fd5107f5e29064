//! Jobs' bodies: while they arrive, while they are kept and while they are sent.
//!
//! Bodies of all sizes follow each other in blocks, as records in a log. So their memory fits them,
//! whatever sizes come and go. The slot of a removed body is used again if it was freed lately.
//! Other free slots remain until all bodies of their block are removed, and its memory can be
//! released to the system. If free slots take too much, the rest of the sparsest block moves to
//! another one: see [`Bodies::next_to_move`]. The C library's heap does not promise that: a few
//! bytes in use at its end keep all of it.
//!
//! A small body belongs to a job, whose [`Body`] says where it is. A large one can be shared by its
//! job and the replies that send it, and an unfinished one grows. So these have an entry in a table
//! of referenced bodies. A body beyond [`SLOT_BODY_MAX_BYTES`] has a block of its own. The owner of
//! a [`Body`] must pass it to [`Bodies::remove`], because dropping it frees nothing.
//!
//! Each body counts from its first byte until its last handle is removed. The handles may belong to
//! a job, an unfinished upload or an unsent reply. Copies in replies count likewise. There may be a
//! limit on what all of them count.
//!
//! Invariants: the slots of a block fill it without gaps up to its end. Every slot in use has an
//! owner when a command has been executed. Each vacancy is a free slot. No block is empty, except
//! the one filled next.

mod slots;

use std::{collections::VecDeque, fmt, mem};

use super::block::{Block, Mark, Populate, UNIT_BYTES, slot_bytes};
use super::budget::{MemoryBudget, Need, OutOfMemory};

/// A body of up to this many bytes is copied into replies; a larger one is shared. The bound has
/// eight bytes more because many bodies are a round number of bytes, and CR LF.
pub const COPIED_BODY_MAX_BYTES: usize = 4096 + 8;

/// The largest body, in bytes, that shares a block with others.
const SLOT_BODY_MAX_BYTES: usize = 128 * 1024 + 8;

/// The size of a block in bytes: eight bodies of the default limit on jobs fit, and the allocator
/// maps it on its own.
const BLOCK_BYTES: usize = 512 * 1024 + 1024;

/// The most blocks to which bodies are added at a time: large ones leave room for small ones.
const OPEN_BLOCKS_MAX: usize = 8;

/// A block with less room than this takes no more bodies, if one did not fit.
const ROOM_MIN_BYTES: usize = 1024;

/// How many free slots are remembered to be used again.
const VACANCIES_MAX: usize = 16;

/// How many empty blocks are kept for the next bodies.
const KEPT_BLOCKS_MAX: usize = 2;

/// Bodies move if free slots take this many bytes, and in addition one in so many of the bytes that
/// bodies count.
const FREED_MIN_BYTES: u64 = 2 * BLOCK_BYTES as u64;
const FREED_PART: u64 = 6;

/// If memory is short, bodies leave each block in which at least one in so many bytes is free.
const SPARSE_PART: usize = 64;

/// For how many referenced bodies memory is kept.
const REFERENCED_KEPT: usize = 1024;

/// Bytes that a body counts beside its length: about what its job takes.
pub const BODY_OVERHEAD_BYTES: u64 = 128;

/// A handle to a body's bytes, which are in [`Bodies`].
#[must_use = "its bytes are kept until it is given back"]
pub struct Body {
    /// The number of its block, or its index in the table of referenced bodies.
    at: u32,
    len: u32,
    /// Where its slot starts, in units, or [`REFERENCED`].
    unit: u16,
}

const _: () = assert!(size_of::<Body>() == 12);

/// The unit of a body with an entry in the table.
const REFERENCED: u16 = u16::MAX;

impl Body {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing has been appended yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether replies share it instead of copying it.
    pub fn is_large(&self) -> bool {
        self.len() > COPIED_BODY_MAX_BYTES
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// The place of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    block: usize,
    start: usize,
}

/// A body that can be shared, or is not finished.
#[derive(Debug, Clone, Copy)]
struct Referenced {
    place: Place,
    /// Bytes that fit at its place.
    capacity: usize,
    /// How many handles there are. 0 if the entry is not in use.
    handles: u32,
    /// The next entry that is not in use, if this is one.
    next_unused: Option<u32>,
}

/// Owns all bodies, and the budget of all memory.
#[derive(Debug, Default)]
pub struct Bodies {
    budget: MemoryBudget,
    blocks: Vec<Block>,
    /// The blocks to which bodies are added. The last is the one filled next.
    open: Vec<usize>,
    /// The numbers of blocks that are not in use.
    vacant: Vec<usize>,
    /// Slots that became free lately, and their sizes. The last is the latest.
    vacancies: Vec<(Place, usize)>,
    /// The memory of blocks that became empty, the latest at the end, with the number of its bytes
    /// that were populated.
    releasable: VecDeque<(Vec<u8>, usize)>,
    referenced: Vec<Referenced>,
    unused: Option<u32>,
    /// Total bytes of free slots in blocks that are not open.
    freed: usize,
    /// The block that bodies leave, and the start of the slot that is next.
    moving: Option<Place>,
    /// Whether the latest block was refused.
    is_short: bool,
    /// Whether there was no memory for a body that should move, since one was removed.
    is_stuck: bool,
    /// Populates the memory of blocks between [`Bodies::begin_bulk`] and [`Bodies::end_bulk`].
    populate: Option<Populate>,
    /// How many [`Body`] handles there are.
    handles: usize,
}

/// Bodies as a whole.
impl Bodies {
    /// Whether the limit permits another body of `bytes` bytes.
    pub fn admits(&self, bytes: u64) -> bool {
        self.budget.admits_body_bytes(bytes.saturating_add(BODY_OVERHEAD_BYTES))
    }

    /// The budget of the memory for bodies and everything else.
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The budget, to take memory from.
    pub fn budget_mut(&mut self) -> &mut MemoryBudget {
        &mut self.budget
    }

    /// Populates the memory of bodies in advance from now on. If many bodies are stored, as in a
    /// start, that costs less than page by page.
    pub fn begin_bulk(&mut self, populate: Populate) {
        self.populate = Some(populate);
    }

    /// Ends [`Bodies::begin_bulk`].
    pub fn end_bulk(&mut self) {
        self.populate = None;
    }

    /// Stores a body. Fails if there is no memory, or the limit does not permit it. O(length).
    pub fn store(&mut self, bytes: &[u8]) -> Result<Body, OutOfMemory> {
        if bytes.len() > COPIED_BODY_MAX_BYTES {
            let mut body = self.begin(bytes.len(), bytes.len())?;
            return match self.append(&mut body, bytes, bytes.len()) {
                Ok(()) => Ok(body),
                Err(error) => {
                    self.remove(body);
                    Err(error)
                }
            };
        }
        if !self.admits(bytes.len() as u64) {
            return Err(OutOfMemory);
        }
        let Place { block, start } = self.take_slot(slot_bytes(bytes.len()), Need::Storage)?;
        self.blocks[block].write(start, 0, bytes);
        self.budget.add_body_bytes(BODY_OVERHEAD_BYTES + bytes.len() as u64);
        self.handles += 1;
        Ok(direct(Place { block, start }, bytes.len()))
    }

    /// Makes the job with this index the owner of a complete body, which must be the job's. Its
    /// bytes may move from now on. O(1).
    pub fn own(&mut self, body: &mut Body, index: usize) {
        if body.unit == REFERENCED {
            let entry = self.referenced[body.at as usize];
            if body.is_large() || slot_bytes(entry.capacity) != slot_bytes(body.len()) {
                return;
            }
            self.forget_entry(body.at);
            *body = direct(entry.place, body.len());
        }
        let Place { block, start } = self.place(body);
        self.blocks[block].set_mark(start, Mark::Job(index));
    }

    /// The bytes of a body.
    pub fn bytes(&self, body: &Body) -> &[u8] {
        let Place { block, start } = self.place(body);
        self.blocks[block].body(start, body.len())
    }

    /// The bytes of a body, and the budget for a copy of them.
    pub fn bytes_and_budget(&mut self, body: &Body) -> (&[u8], &mut MemoryBudget) {
        let Place { block, start } = self.place(body);
        (self.blocks[block].body(start, body.len()), &mut self.budget)
    }

    /// Returns another handle to a large body.
    pub fn add_ref(&mut self, body: &Body) -> Body {
        debug_assert!(body.is_large());
        self.referenced[body.at as usize].handles += 1;
        self.handles += 1;
        Body { ..*body }
    }

    /// Removes a handle to a body. The last one frees its slot. O(1).
    #[expect(clippy::needless_pass_by_value, reason = "the handle must not be used after this")]
    pub fn remove(&mut self, body: Body) {
        self.handles -= 1;
        let (place, capacity) = if body.unit == REFERENCED {
            let entry = &mut self.referenced[body.at as usize];
            entry.handles -= 1;
            if entry.handles > 0 {
                return;
            }
            let Referenced { place, capacity, .. } = *entry;
            self.forget_entry(body.at);
            (place, capacity)
        } else {
            (self.place(&body), body.len())
        };
        self.free(place, capacity);
        self.budget.remove_body_bytes(BODY_OVERHEAD_BYTES + body.len() as u64);
        if self.handles == 0 && !self.referenced.is_empty() {
            self.referenced.clear();
            self.referenced.shrink_to(REFERENCED_KEPT);
            self.unused = None;
        }
    }

    /// How many [`Body`] handles there are: for checks.
    pub fn handles(&self) -> usize {
        self.handles
    }

    fn place(&self, body: &Body) -> Place {
        if body.unit == REFERENCED {
            return self.referenced[body.at as usize].place;
        }
        Place { block: body.at as usize, start: usize::from(body.unit) * UNIT_BYTES }
    }
}

/// The handle of a body without an entry in the table.
fn direct(place: Place, len: usize) -> Body {
    Body {
        at: u32::try_from(place.block).expect("fewer than 2^32 blocks"),
        len: u32::try_from(len).expect("a body is at most a gibibyte"),
        unit: u16::try_from(place.start / UNIT_BYTES).expect("it starts in the block"),
    }
}

/// Bodies that arrive in pieces.
impl Bodies {
    /// Begins a body with memory for `capacity` bytes, to which at most `limit` are appended. Fails
    /// if there is no memory, or the limit on bodies does not permit another. Its bytes count when
    /// they are appended.
    pub fn begin(&mut self, capacity: usize, limit: usize) -> Result<Body, OutOfMemory> {
        if !self.admits(0) {
            return Err(OutOfMemory);
        }
        let capacity = if limit > COPIED_BODY_MAX_BYTES { capacity } else { limit };
        if self.unused.is_none() {
            let count = self.referenced.len() + 1;
            self.budget.grow_vec(Need::Storage, &mut self.referenced, count)?;
        }
        let place = self.take_place(capacity)?;
        let new = Referenced { place, capacity, handles: 1, next_unused: None };
        let at = if let Some(at) = self.unused {
            let entry = mem::replace(&mut self.referenced[at as usize], new);
            self.unused = entry.next_unused;
            at
        } else {
            self.referenced.push(new);
            u32::try_from(self.referenced.len() - 1).expect("fewer than 2^32 bodies")
        };
        self.set_referenced(at);
        self.handles += 1;
        self.budget.add_body_bytes(BODY_OVERHEAD_BYTES);
        Ok(Body { at, len: 0, unit: REFERENCED })
    }

    /// Appends to a body that is not shared. If its slot is too small, its capacity doubles, but to
    /// at most `limit` bytes, which the body must not exceed. Fails, and changes nothing, if there
    /// is no memory or the limit on bodies does not permit it.
    pub fn append(
        &mut self,
        body: &mut Body,
        bytes: &[u8],
        limit: usize,
    ) -> Result<(), OutOfMemory> {
        if !self.budget.admits_body_bytes(bytes.len() as u64) {
            return Err(OutOfMemory);
        }
        let (len, needed) = (body.len(), body.len() + bytes.len());
        let capacity = self.capacity(body);
        if needed > capacity {
            self.grow(body, needed.max(2 * capacity).min(limit))?;
        }
        let Place { block, start } = self.place(body);
        self.blocks[block].write(start, len, bytes);
        body.len = u32::try_from(needed).expect("a body is at most a gibibyte");
        self.budget.add_body_bytes(bytes.len() as u64);
        Ok(())
    }

    /// How many bytes an unfinished body may have before it must move or grow.
    pub fn capacity(&self, body: &Body) -> usize {
        self.referenced[body.at as usize].capacity
    }

    /// Grows the capacity of an unfinished body, and may move it.
    fn grow(&mut self, body: &Body, capacity: usize) -> Result<(), OutOfMemory> {
        let Referenced { place, capacity: before, .. } = self.referenced[body.at as usize];
        if self.blocks[place.block].is_single {
            self.take(capacity - before, Need::Storage)?;
            let bytes = &mut self.blocks[place.block].bytes;
            bytes.try_reserve_exact(capacity - bytes.len()).map_err(|_| OutOfMemory)?;
        } else if !self.extend(place, slot_bytes(before), capacity) {
            let new = self.take_place(capacity)?;
            self.copy(place, new, body.len());
            self.referenced[body.at as usize].place = new;
            self.free(place, before);
        }
        self.referenced[body.at as usize].capacity = capacity;
        self.set_referenced(body.at);
        Ok(())
    }

    /// Extends a slot by the free one after it, or by the room of its block. Returns whether it now
    /// has `capacity`.
    fn extend(&mut self, place: Place, before: usize, capacity: usize) -> bool {
        if capacity > SLOT_BODY_MAX_BYTES {
            return false;
        }
        let more = slot_bytes(capacity) - before;
        let next = Place { start: place.start + before, ..place };
        let block = &mut self.blocks[next.block];
        if next.start == block.end {
            let is_roomy = block.is_open && block.room() >= more;
            if is_roomy && more > 0 {
                block.push(more);
            }
            return is_roomy || more == 0;
        }
        let Mark::Free(whole) = block.mark(next.start) else { return more == 0 };
        if whole < more || self.moving.is_some_and(|moving| moving.block == next.block) {
            return false;
        }
        if more > 0 {
            block.take_free(next.start, whole, more);
            if !block.is_open {
                self.freed -= more;
            }
            self.vacancies.retain(|(vacancy, _)| *vacancy != next);
        }
        true
    }

    /// Writes the owner of a referenced body into its mark.
    fn set_referenced(&mut self, at: u32) {
        let Place { block, start } = self.referenced[at as usize].place;
        if !self.blocks[block].is_single {
            self.blocks[block].set_mark(start, Mark::Referenced(at as usize));
        }
    }

    fn forget_entry(&mut self, at: u32) {
        let entry = &mut self.referenced[at as usize];
        (entry.handles, entry.next_unused) = (0, self.unused);
        self.unused = Some(at);
    }

    fn copy(&mut self, from: Place, to: Place, len: usize) {
        if from.block == to.block {
            return self.blocks[from.block].copy_within(from.start, to.start, len);
        }
        // Both blocks are in one list, so one is taken out of it for the copy.
        let block = mem::take(&mut self.blocks[from.block]);
        self.blocks[to.block].write(to.start, 0, block.body(from.start, len));
        self.blocks[from.block] = block;
    }
}

#[cfg(test)]
mod tests;
