//! Takes and frees slots in blocks, and moves bodies out of blocks with many free bytes.

use std::mem;

use super::{Bodies, Body};
use crate::{
    collections::{Growth, Key, OutOfMemory, ensure, probe},
    memory::{
        block::{BLOCK_BYTES, Block, Mark, UNIT_BYTES, slot_bytes},
        level::{BINLOG_MARKS, Level, Marks, REPLAY_MARKS},
    },
};

/// At most this many free slots are remembered.
const HOLES_MAX: usize = 16;

/// An empty block is kept for later bodies if the slot freed last had at least this many bytes.
/// Over 11,000 smaller slots fit in a block, so smaller bodies rarely need another block.
const KEPT_SLOTS_MIN_BYTES: usize = 32;

/// Bodies move if freed slots take more bytes than one block plus 1/`FREED_PART` of all blocks.
pub(super) const FREED_PART: usize = 7;

/// A block is sparse if freed slots take at least 1/`SPARSE_PART` of its bytes.
const SPARSE_PART: usize = 64;

/// A daemon takes at most this many bytes of memory between the replay and its first connection. So
/// after the replay, this many bytes must be free in addition to the bytes for a connection.
const UNTIL_SERVING_BYTES: usize = 1 << 20;

/// The block of a slot, and where the slot starts in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: Key<Block>,
    /// Where the slot starts in its block, in units of [`UNIT_BYTES`].
    pub(super) unit: u16,
}

impl Place {
    /// Returns where the slot starts in its block, in bytes.
    pub(super) fn start(self) -> usize {
        usize::from(self.unit) * UNIT_BYTES
    }

    /// Returns the place right after this slot of `size` bytes.
    pub(super) fn after(self, size: usize) -> Self {
        let unit = usize::from(self.unit) + size / UNIT_BYTES;
        Self { unit: u16::try_from(unit).expect("a block has fewer units"), ..self }
    }
}

/// A free slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    pub(super) place: Place,
    pub(super) size: usize,
}

/// The conditions under which bodies move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// Bodies move if free slots take too much memory.
    #[default]
    Normal,
    /// Bodies move until no block is sparse, because memory is short.
    Short,
    /// No body can move until a body is removed: either no block is sparse, or there is no memory
    /// for a move.
    Stuck,
}

/// Gives access to the [`Body`] of each job, which must change when the body's bytes move.
pub trait BodyOwners {
    /// Returns the handle to the body of the job with this index.
    fn body_mut(&mut self, index: usize) -> &mut Body;
}

/// Slots and blocks.
impl Bodies {
    /// Takes a slot out of the smallest hole that is large enough, or out of a new block.
    pub(super) fn take_slot(&mut self, size: usize, level: Level) -> Growth<Place> {
        if self.holes.last().is_none_or(|hole| hole.size < size) {
            self.add_block(level)?;
        }
        let at = self.holes.partition_point(|hole| hole.size < size);
        let Hole { place, size: whole } = self.holes[at];
        let block = &mut self.blocks[place.block];
        block.live += size;
        if place.start() < block.end {
            self.freed -= size;
        } else {
            block.end += size;
            if self.memory.limits_resident {
                // Later uses of the slot do not check memory, so its bytes become resident now.
                block.bytes[place.start()..block.end].fill(0);
            }
        }
        block.set_mark(place.start(), Mark::Free(size));
        let rest = Hole { place: place.after(size), size: whole - size };
        if rest.size > 0 && self.holes[..at].last().is_none_or(|hole| hole.size < rest.size) {
            // Usually the rest of the hole takes the hole's place in the list, because all earlier
            // holes are smaller than the rest.
            block.set_mark(rest.place.start(), Mark::Free(rest.size));
            self.holes[at] = rest;
            return Ok(place);
        }
        self.holes.remove(at);
        if rest.size > 0 {
            self.add_hole(rest.place, rest.size);
        }
        Ok(place)
    }

    /// Marks a slot as free, and remembers it unless the slot's block is being emptied.
    fn add_hole(&mut self, place: Place, size: usize) {
        self.blocks[place.block].set_mark(place.start(), Mark::Free(size));
        if self.moving.is_some_and(|moving| moving.block == place.block) {
            return;
        }
        if self.holes.len() == HOLES_MAX {
            self.holes.remove(0);
        }
        let at = self.holes.partition_point(|hole| hole.size < size);
        self.holes.insert(at, Hole { place, size });
    }

    /// Frees the slot of a body. If the slot's block is then empty, and is the block with the
    /// largest free slot, all of the block becomes one free slot. Any other empty block is removed,
    /// to release its memory.
    pub(super) fn free(&mut self, place: Place, size: usize) {
        if self.pace == Pace::Stuck {
            self.pace = Pace::Normal;
        }
        let block = &mut self.blocks[place.block];
        block.live -= size;
        self.freed += size;
        if block.live > 0 {
            return self.add_hole(place, size);
        }
        self.freed -= mem::take(&mut block.end);
        let is_filled_next = self.filled_next() == Some(place.block);
        self.holes.retain(|hole| hole.place.block != place.block);
        if is_filled_next {
            return self.add_hole(Place { unit: 0, ..place }, BLOCK_BYTES);
        }
        self.moving.take_if(|moving| moving.block == place.block);
        self.releasable.push_back(self.blocks.remove(place.block).bytes);
        self.keeps_block = size >= KEPT_SLOTS_MIN_BYTES;
    }

    /// Returns the block that is filled next.
    pub(super) fn filled_next(&self) -> Option<Key<Block>> {
        self.holes.last().map(|hole| hole.place.block)
    }

    /// Adds an empty block to the blocks and to the holes, or fails if there is no memory.
    fn add_block(&mut self, level: Level) -> Growth {
        self.blocks.make_room()?;
        // Other allocations can use the memory of an empty block only after its release.
        self.ensure_left(level)?;
        let bytes = if let Some(bytes) = self.releasable.pop_back() {
            bytes
        } else {
            probe(BLOCK_BYTES).inspect_err(|_| self.expect_shortage())?;
            vec![0; BLOCK_BYTES]
        };
        let block = self.blocks.insert(Block { bytes, live: 0, end: 0 });
        self.add_hole(Place { block, unit: 0 }, BLOCK_BYTES);
        Ok(())
    }

    /// Fails if too little memory is free for `level`, even after all empty blocks are released.
    pub(super) fn ensure_left(&mut self, level: Level) -> Growth {
        if self.memory.admits(level) {
            return Ok(());
        }
        if self.release_all() {
            self.memory.begin_turn();
            if self.memory.admits(level) {
                return Ok(());
            }
        }
        self.expect_shortage();
        Err(OutOfMemory)
    }
}

/// Returning memory.
impl Bodies {
    /// Releases the memory of all empty blocks to the system. Returns whether any block was empty.
    /// The release of a block takes about ten microseconds, so call this only in a shortage.
    pub fn release_all(&mut self) -> bool {
        self.releasable.drain(..).count() > 0
    }

    /// Begins the replay of a binlog. During a replay, bodies may use more of the memory than
    /// later.
    pub fn begin_replay(&mut self) {
        self.memory.set_marks(REPLAY_MARKS);
    }

    /// Ends a replay that has stored all bodies. Fails if the bodies leave too little memory to
    /// serve a client.
    pub fn end_replay(&mut self, owners: &mut impl BodyOwners) -> Growth {
        self.release_all();
        self.memory.set_marks(BINLOG_MARKS);
        if !self.memory.admits(Level::Plenty) {
            self.compact(owners);
        }
        ensure(self.memory.leaves(UNTIL_SERVING_BYTES, Level::Scarce))
    }

    /// Moves bodies until no block is sparse, even if that takes all memory. Then releases the
    /// memory of all empty blocks, and returns whether any block was empty. O(all bodies).
    pub fn compact(&mut self, owners: &mut impl BodyOwners) -> bool {
        // A move can need one more block, so moves are allowed to take even the last memory.
        let marks = self.memory.set_marks(Marks::default());
        self.expect_shortage();
        self.move_some(owners, u32::MAX, usize::MAX);
        let is_freed = self.release_all();
        self.memory.set_marks(marks);
        is_freed
    }

    /// Releases to the system the memory of the block that became empty first. One empty block may
    /// be kept for later bodies, unless memory is short. Returns whether a block was released. A
    /// release takes a slow system call, so avoid many releases in one turn.
    pub fn release_one(&mut self) -> bool {
        let kept = usize::from(self.keeps_block && self.pace == Pace::Normal);
        self.releasable.len() > kept && self.releasable.pop_front().is_some()
    }

    /// Begins a turn. If memory was refused in the last turn, bodies move, which frees memory.
    pub fn begin_turn(&mut self) {
        if self.memory.has_refused(Level::Plenty) {
            self.expect_shortage();
        }
        self.memory.begin_turn();
    }

    /// Makes bodies move until no block is sparse, even if free slots take little memory.
    pub fn expect_shortage(&mut self) {
        self.pace = Pace::Short;
    }

    /// Whether bodies should move, because free slots take too much memory or memory is short.
    pub fn should_move(&self) -> bool {
        let tolerated = BLOCK_BYTES + self.blocks.len() * BLOCK_BYTES / FREED_PART;
        let is_sparse = self.moving.is_some() || self.freed > tolerated;
        self.pace == Pace::Short || (self.pace == Pace::Normal && is_sparse)
    }

    /// Moves bodies out of sparse blocks: visits at most `count` slots, and ends once `bytes` bytes
    /// have moved. The choice of the next block takes O(blocks).
    pub fn move_some(&mut self, owners: &mut impl BodyOwners, count: u32, bytes: usize) {
        let mut moved = 0;
        for _ in 0..count {
            if moved >= bytes || !self.should_move() {
                return;
            }
            match self.move_next(owners) {
                Some(size) => moved += size,
                None => self.pace = Pace::Stuck,
            }
        }
    }

    /// Moves the body in the next slot of the block being emptied, or skips a free slot. Returns
    /// how many bytes moved; `None` if no block is sparse, or there is no memory for the move.
    fn move_next(&mut self, owners: &mut impl BodyOwners) -> Option<usize> {
        let from = self.moving.or_else(|| self.begin_to_move())?;
        let mark = self.blocks[from.block].mark(from.start());
        let size = match mark {
            Mark::Free(size) => {
                self.moving = Some(from.after(size));
                return Some(0);
            }
            Mark::Job(index) => slot_bytes(owners.body_mut(index).len()),
            Mark::Referenced(key) => slot_bytes(self.referenced[key].size),
        };
        let to = self.take_slot(size, Level::Low).ok()?;
        // Two blocks of one arena cannot be borrowed at once, so the memory of one block is taken
        // out of the arena during the copy.
        let bytes = mem::take(&mut self.blocks[from.block].bytes);
        let slot = &bytes[from.start()..][..size];
        self.blocks[to.block].bytes[to.start()..][..size].copy_from_slice(slot);
        self.blocks[from.block].bytes = bytes;
        match mark {
            Mark::Free(_) => {}
            Mark::Job(index) => owners.body_mut(index).place = to,
            Mark::Referenced(key) => self.referenced[key].place = Some(to),
        }
        self.moving = Some(from.after(size));
        self.free(from, size);
        Some(size)
    }

    /// Chooses the block to be emptied: the sparsest one except the block that is filled next.
    fn begin_to_move(&mut self) -> Option<Place> {
        let filled_next = self.filled_next();
        let others = self.blocks.iter().filter(|&(key, _)| Some(key) != filled_next);
        let (block, sparsest) = others.max_by_key(|(_, block)| block.freed())?;
        if sparsest.freed() < BLOCK_BYTES / SPARSE_PART {
            return None;
        }
        self.holes.retain(|hole| hole.place.block != block);
        self.moving = Some(Place { block, unit: 0 });
        self.moving
    }
}
