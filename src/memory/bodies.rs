//! Jobs' bodies: while they arrive, while they are kept and while they are sent.
//!
//! A body takes a slot in a block of slots of one size, without an allocator's header. When all
//! bodies of a block are removed, its memory can be released to the system. The C library's heap
//! does not promise that: a few bytes in use at its end keep all of it.
//!
//! Up to [`COPIED_BODY_MAX_BYTES`] bytes, sizes are eight bytes apart; above, at most an eighth. A
//! body beyond [`SHARED_BLOCK_BODY_MAX_BYTES`] has a block of its own, which may grow. A large body
//! can be shared by its job and the replies that send it; removing the last handle frees the slot.
//! The owner of a [`Body`] must pass it to [`Bodies::remove`], because dropping it frees nothing.
//!
//! Each body counts from its first byte until its last handle is removed. The handles may belong to
//! a job, an unfinished upload or an unsent reply. Copies in replies count likewise. There may be a
//! limit on what all of them count.
//!
//! Invariant: for each size, `open` names the blocks that have free slots, each once. None of them
//! is empty, except for the one filled next if few of its bytes were ever used. Otherwise a block
//! would be allocated and released with each single body.

use std::{collections::VecDeque, fmt, mem};

use super::block::{Block, Populate};
use super::budget::{MemoryBudget, Need, OutOfMemory};

/// Bodies start at multiples of this many bytes.
const ALIGN_BYTES: usize = 8;

/// A body of up to this many bytes is copied into replies; a larger one is shared. This bound and
/// the next have eight bytes more because many bodies are a round number of bytes, and CR LF.
pub const COPIED_BODY_MAX_BYTES: usize = 4096 + ALIGN_BYTES;

/// The largest body, in bytes, that shares a block with others.
const SHARED_BLOCK_BODY_MAX_BYTES: usize = 128 * 1024 + ALIGN_BYTES;

/// The size of a block in bytes, large enough for the allocator to map it on its own.
const BLOCK_BYTES: usize = 512 * 1024 + 128 * ALIGN_BYTES;

/// How many sizes of large slots lie between one power of two and the next.
const SIZES_PER_DOUBLING: usize = 8;

/// An empty block is kept for the next body of its size if at most this many bytes were used.
const KEEP_BELOW_BYTES: usize = 64 * 1024;

/// How many empty blocks are kept for bodies of any size.
const KEPT_BLOCKS_MAX: usize = 4;

/// Bytes that a body counts beside its length: about what its job takes, without the rounding up of
/// large bodies.
pub const BODY_OVERHEAD_BYTES: u64 = 128;

/// A handle to a body's bytes, which are in [`Bodies`].
#[must_use = "its bytes are kept until it is given back"]
pub struct Body {
    block: u32,
    len: u32,
    slot: u16,
}

const _: () = assert!(size_of::<Body>() == 12);

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

/// Owns all bodies, and the budget of all memory.
#[derive(Debug, Default)]
pub struct Bodies {
    budget: MemoryBudget,
    blocks: Vec<Block>,
    /// By class: the blocks of that size with free slots; the last is filled next.
    open: Vec<Vec<u32>>,
    /// The numbers of blocks that are not in use.
    vacant: Vec<u32>,
    /// The memory of blocks that became empty, the latest at the end, with the number of its bytes
    /// that were ever used.
    releasable: VecDeque<(Vec<u8>, usize)>,
    /// Populates the memory of blocks between [`Bodies::begin_bulk`] and [`Bodies::end_bulk`].
    populate: Option<Populate>,
    /// How many [`Body`] handles there are.
    handles: usize,
}

/// The class of a body of `len` bytes, at most [`SHARED_BLOCK_BODY_MAX_BYTES`], and the size of its
/// slot in bytes.
fn class(len: usize) -> (usize, usize) {
    if len <= COPIED_BODY_MAX_BYTES {
        let units = len.div_ceil(ALIGN_BYTES).max(1);
        return (units, units * ALIGN_BYTES);
    }
    let round = len - ALIGN_BYTES;
    let power = (round - 1).ilog2();
    let step = (1 << power) / SIZES_PER_DOUBLING;
    let steps = round.div_ceil(step);
    let octave = (power - COPIED_BODY_MAX_BYTES.ilog2()) as usize;
    (
        COPIED_BODY_MAX_BYTES / ALIGN_BYTES + octave * SIZES_PER_DOUBLING + steps
            - SIZES_PER_DOUBLING,
        steps * step + ALIGN_BYTES,
    )
}

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
        if !self.admits(bytes.len() as u64) {
            return Err(OutOfMemory);
        }
        let mut body = self.take_slot(bytes.len())?;
        self.blocks[body.block as usize].write(body.slot, 0, bytes);
        body.len = u32::try_from(bytes.len()).expect("a body is at most a gibibyte");
        self.budget.add_body_bytes(BODY_OVERHEAD_BYTES + bytes.len() as u64);
        Ok(body)
    }

    /// Begins a body with memory for `capacity` bytes, to which at most `limit` are appended. Fails
    /// if there is no memory, or the limit on bodies does not permit another. Its bytes count when
    /// they are appended.
    pub fn begin(&mut self, capacity: usize, limit: usize) -> Result<Body, OutOfMemory> {
        if !self.admits(0) {
            return Err(OutOfMemory);
        }
        let body = self.take_slot(self.prefer_whole_slot(capacity, limit))?;
        self.budget.add_body_bytes(BODY_OVERHEAD_BYTES);
        Ok(body)
    }

    /// Returns `limit` if a slot of that size is free and so costs nothing. The body then need not
    /// move through the sizes between, for which memory may be missing. Otherwise returns
    /// `capacity`.
    fn prefer_whole_slot(&self, capacity: usize, limit: usize) -> usize {
        let is_open = || self.open.get(class(limit).0).is_some_and(|blocks| !blocks.is_empty());
        if limit <= SHARED_BLOCK_BODY_MAX_BYTES && is_open() { limit } else { capacity }
    }

    fn take_slot(&mut self, capacity: usize) -> Result<Body, OutOfMemory> {
        let (block, slot) = if capacity > SHARED_BLOCK_BODY_MAX_BYTES {
            (self.single_block(capacity)?, 0)
        } else {
            let (class, size) = class(capacity);
            let number = self.open_block(class, size)?;
            let block = &mut self.blocks[number as usize];
            let slot = block.take_slot();
            if let Some(populate) = self.populate {
                block.populate(populate);
            }
            if block.is_full() {
                self.open[class].pop();
            }
            (number, slot)
        };
        self.handles += 1;
        Ok(Body { block, len: 0, slot })
    }

    /// Takes memory from the budget. If it is missing, releases empty blocks and tries again.
    fn take(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let taken = self.budget.take(Need::Storage, bytes);
        if taken.is_ok() || !self.release_all() {
            return taken;
        }
        self.budget.forget_refusals();
        self.budget.take(Need::Storage, bytes)
    }

    /// Releases the memory of all empty blocks to the system. Returns whether there was any. Only
    /// for a shortage: it takes some 20 microseconds a block.
    pub fn release_all(&mut self) -> bool {
        let has_releasable = !self.releasable.is_empty();
        self.releasable.clear();
        has_releasable
    }

    /// Adds a block for one large body.
    fn single_block(&mut self, capacity: usize) -> Result<u32, OutOfMemory> {
        self.take(capacity)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(capacity).map_err(|_| OutOfMemory)?;
        let block = Block { bytes, extra_handles: vec![0], ..Block::default() };
        Ok(self.add(block))
    }

    fn add(&mut self, block: Block) -> u32 {
        if let Some(number) = self.vacant.pop() {
            self.blocks[number as usize] = block;
            return number;
        }
        self.blocks.push(block);
        u32::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks")
    }

    /// The block that the next body of this class goes to. Adds one if there is none.
    fn open_block(&mut self, class: usize, size: usize) -> Result<u32, OutOfMemory> {
        if self.open.len() <= class {
            self.open.resize_with(class + 1, Vec::new);
        }
        if let Some(&number) = self.open[class].last() {
            return Ok(number);
        }
        let (bytes, used_before) = if let Some(releasable) = self.releasable.pop_back() {
            releasable
        } else {
            self.take(BLOCK_BYTES)?;
            (vec![0; BLOCK_BYTES], 0)
        };
        let slots = u16::try_from(BLOCK_BYTES / size).unwrap_or(u16::MAX);
        let extra_handles =
            if size > COPIED_BODY_MAX_BYTES { vec![0; slots.into()] } else { Vec::new() };
        let number =
            self.add(Block { bytes, size, slots, used_before, extra_handles, ..Block::default() });
        self.open[class].push(number);
        Ok(number)
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
            let capacity = needed.max(2 * capacity).min(limit);
            self.grow(body, self.prefer_whole_slot(capacity, limit))?;
        }
        self.blocks[body.block as usize].write(body.slot, len, bytes);
        body.len = u32::try_from(needed).expect("a body is at most a gibibyte");
        self.budget.add_body_bytes(bytes.len() as u64);
        Ok(())
    }

    /// How many bytes a body may have before it must move or grow.
    pub fn capacity(&self, body: &Body) -> usize {
        self.blocks[body.block as usize].capacity()
    }

    /// Grows the capacity of a body, and may move it.
    fn grow(&mut self, body: &mut Body, capacity: usize) -> Result<(), OutOfMemory> {
        let len = body.len();
        if self.blocks[body.block as usize].size == 0 {
            let more = capacity - len;
            self.take(more)?;
            let bytes = &mut self.blocks[body.block as usize].bytes;
            return bytes.try_reserve_exact(more).map_err(|_| OutOfMemory);
        }
        let mut new = self.take_slot(capacity)?;
        // Both blocks are in one list, so the memory of one is taken out of it for the copy.
        let block = &mut self.blocks[body.block as usize];
        let (start, bytes) = (block.start(body.slot), mem::take(&mut block.bytes));
        self.blocks[new.block as usize].write(new.slot, 0, &bytes[start..start + len]);
        self.blocks[body.block as usize].bytes = bytes;
        new.len = body.len;
        self.drop_handle(mem::replace(body, new));
        Ok(())
    }

    /// The bytes of a body.
    pub fn bytes(&self, body: &Body) -> &[u8] {
        let block = &self.blocks[body.block as usize];
        let start = block.start(body.slot);
        &block.bytes[start..start + body.len()]
    }

    /// The bytes of a body, and the budget for a copy of them.
    pub fn bytes_and_budget(&mut self, body: &Body) -> (&[u8], &mut MemoryBudget) {
        let block = &self.blocks[body.block as usize];
        let start = block.start(body.slot);
        (&block.bytes[start..start + body.len()], &mut self.budget)
    }

    /// Returns another handle to a large body.
    pub fn add_ref(&mut self, body: &Body) -> Body {
        debug_assert!(body.is_large());
        self.blocks[body.block as usize].extra_handles[usize::from(body.slot)] += 1;
        self.handles += 1;
        Body { ..*body }
    }

    /// Removes a handle to a body. The last one frees its slot. O(1).
    pub fn remove(&mut self, body: Body) {
        let length = body.len() as u64;
        if self.drop_handle(body) {
            self.budget.remove_body_bytes(BODY_OVERHEAD_BYTES + length);
        }
    }

    /// Removes a handle. Returns whether it was the last one.
    #[expect(clippy::needless_pass_by_value, reason = "the handle must not be used after this")]
    fn drop_handle(&mut self, body: Body) -> bool {
        self.handles -= 1;
        let block = &mut self.blocks[body.block as usize];
        match block.extra_handles.get_mut(usize::from(body.slot)) {
            Some(extra_handles) if *extra_handles > 0 => {
                *extra_handles -= 1;
                return false;
            }
            _ => {}
        }
        if block.size == 0 {
            self.budget.credit(block.bytes.capacity());
            *block = Block::default();
            self.vacant.push(body.block);
            return true;
        }
        let was_full = block.is_full();
        block.free_slot(body.slot);
        let is_small = block.used_bytes() <= KEEP_BELOW_BYTES;
        let open = &mut self.open[class(block.size).0];
        let last = open.last().copied();
        if was_full {
            block.open_index = open.len();
            open.push(body.block);
            if let Some(last) = last {
                self.release_if_empty(last);
            }
        } else if last != Some(body.block) || !is_small {
            self.release_if_empty(body.block);
        }
        true
    }

    /// Removes an open block if it is empty, and makes its memory releasable.
    fn release_if_empty(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.used > 0 {
            return;
        }
        let used_before = block.used_bytes();
        let Block { bytes, open_index, size, .. } = mem::take(block);
        self.releasable.push_back((bytes, used_before));
        self.vacant.push(number);
        let open = &mut self.open[class(size).0];
        open.swap_remove(open_index);
        if let Some(&moved) = open.get(open_index) {
            self.blocks[moved as usize].open_index = open_index;
            // Only the last open block may be empty.
            self.release_if_empty(moved);
        }
    }

    /// Releases the memory of one empty block to the system. Returns whether there was one. Each
    /// call is a slow system call, so do not repeat it many times in a row.
    pub fn release_one(&mut self) -> bool {
        // The block that became empty first.
        self.has_releasable() && self.releasable.pop_front().is_some()
    }

    /// Whether [`Bodies::release_one`] has memory to release, beyond the blocks it keeps.
    pub fn has_releasable(&self) -> bool {
        self.releasable.len() > KEPT_BLOCKS_MAX
    }

    /// How many [`Body`] handles there are: for checks.
    pub fn handles(&self) -> usize {
        self.handles
    }
}

#[cfg(test)]
mod tests;
