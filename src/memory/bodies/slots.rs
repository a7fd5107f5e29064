//! Slots for bodies, and their blocks: taking and freeing slots, and emptying blocks.

use std::mem;

use super::{Bodies, Body, Referenced, Storage};
use crate::{
    collections::Key,
    memory::{
        Need, Result,
        block::{BLOCK_BYTES, Block, Mark, UNIT_BYTES, slot_bytes},
    },
};

/// How many free slots are remembered.
const HOLES_MAX: usize = 16;

/// The number of empty blocks kept for later bodies, besides the one filled next.
pub(super) const KEPT_BLOCKS_MAX: usize = 1;

/// Bodies move if freed slots take at least this many bytes plus one in [`FREED_PART`] bytes of all
/// blocks.
pub(super) const FREED_MIN_BYTES: usize = BLOCK_BYTES;
pub(super) const FREED_PART: usize = 7;

/// If memory is short, each block is emptied in which at least one in this many bytes is free.
const SPARSE_PART: usize = 64;

/// The place of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: Key<Block>,
    /// Where it starts, in units.
    pub(super) unit: u16,
}

impl Place {
    /// Where it starts, in bytes.
    pub(super) fn start(self) -> usize {
        usize::from(self.unit) * UNIT_BYTES
    }

    fn after(self, size: usize) -> Self {
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

/// When bodies move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// If free slots take too much memory.
    #[default]
    Normal,
    /// Until no block is sparse, because memory is short.
    Short,
    /// Not until another body is removed: there is no memory to move them, or no sparse block.
    Stuck,
}

/// Finds the bodies of jobs, which may move.
pub trait BodyOwners {
    /// The body of the job with this index.
    fn body_mut(&mut self, index: usize) -> &mut Body;
}

/// Slots and blocks.
impl Bodies {
    /// Takes a slot, from the smallest hole that is large enough.
    pub(super) fn take_slot(&mut self, size: usize, need: Need) -> Result<Place> {
        let at = self.holes.partition_point(|hole| hole.size < size);
        if at == self.holes.len() {
            self.add_block(need)?;
            return self.take_slot(size, need);
        }
        let Hole { place, size: whole } = self.holes.remove(at);
        let block = &mut self.blocks[place.block];
        block.live += size;
        if place.start() < block.end {
            self.freed -= size;
        } else {
            block.end += size;
        }
        block.set_mark(place.start(), Mark::Free(size));
        if whole > size {
            self.add_hole(place.after(size), whole - size);
        }
        Ok(place)
    }

    /// Marks a slot as free, and remembers it; if too many are remembered, it forgets the smallest.
    fn add_hole(&mut self, place: Place, size: usize) {
        self.blocks[place.block].set_mark(place.start(), Mark::Free(size));
        if self.is_left(place.block) {
            return;
        }
        if self.holes.len() == HOLES_MAX {
            self.holes.remove(0);
        }
        let at = self.holes.partition_point(|hole| hole.size < size);
        self.holes.insert(at, Hole { place, size });
    }

    /// Frees a slot of a body.
    pub(super) fn free(&mut self, place: Place, size: usize) {
        if self.pace == Pace::Stuck {
            self.pace = Pace::Normal;
        }
        let block = &mut self.blocks[place.block];
        block.live -= size;
        self.freed += size;
        if block.live == 0 {
            self.empty(place.block);
        } else {
            self.add_hole(place, size);
        }
    }

    /// Whether this block is being emptied.
    fn is_left(&self, block: Key<Block>) -> bool {
        self.moving.is_some_and(|moving| moving.block == block)
    }

    /// The block filled next.
    fn filled_next(&self) -> Option<Key<Block>> {
        self.holes.last().map(|hole| hole.place.block)
    }

    /// Handles a block without bodies: it becomes one hole, or its memory becomes releasable.
    fn empty(&mut self, block: Key<Block>) {
        let is_filled_next = self.filled_next() == Some(block);
        self.holes.retain(|hole| hole.place.block != block);
        self.freed -= mem::take(&mut self.blocks[block].end);
        if is_filled_next {
            return self.add_hole(Place { block, unit: 0 }, BLOCK_BYTES);
        }
        self.moving.take_if(|moving| moving.block == block);
        self.releasable.push_back(self.blocks.remove(block).bytes);
    }

    fn add_block(&mut self, need: Need) -> Result {
        self.blocks.ensure_memory(need, &mut self.budget)?;
        // The headroom for later needs may be in emptied blocks: these are not free for other use.
        let kept = if self.budget.admits(need, 1) { self.releasable.pop_back() } else { None };
        let bytes = if let Some(kept) = kept {
            kept
        } else {
            self.take(BLOCK_BYTES, need)?;
            vec![0; BLOCK_BYTES]
        };
        let block = self.blocks.insert(Block { bytes, live: 0, end: 0 });
        self.add_hole(Place { block, unit: 0 }, BLOCK_BYTES);
        Ok(())
    }

    /// Takes memory from the budget. If there is none, releases empty blocks and tries again.
    pub(super) fn take(&mut self, bytes: usize, need: Need) -> Result {
        let mut taken = self.budget.take(need, bytes);
        if taken.is_err() && self.release_all() {
            self.budget.forget_refusals();
            taken = self.budget.take(need, bytes);
        }
        if taken.is_err() {
            self.expect_shortage();
        }
        taken
    }
}

/// Returning memory.
impl Bodies {
    /// Releases the memory of all empty blocks to the system. Returns whether there was any. Only
    /// for a shortage, because it takes some ten microseconds per block.
    pub fn release_all(&mut self) -> bool {
        let has_releasable = !self.releasable.is_empty();
        self.releasable.clear();
        has_releasable
    }

    /// Releases the memory of the block that became empty first to the system, beyond the blocks
    /// that are kept: none if memory is short. Returns whether there was one. Each call is a slow
    /// system call, so do not repeat it many times in a row.
    pub fn release_one(&mut self) -> bool {
        let kept = if self.pace == Pace::Normal { KEPT_BLOCKS_MAX } else { 0 };
        self.releasable.len() > kept && self.releasable.pop_front().is_some()
    }

    /// Begins a turn: allows refused needs to be probed again, and if a need other than storage was
    /// refused, frees memory.
    pub fn begin_turn(&mut self) {
        if [Need::Connection, Need::Essential].iter().any(|&need| self.budget.was_refused(need)) {
            self.expect_shortage();
        }
        self.budget.forget_refusals();
    }

    /// Makes bodies move even if free slots take little, until no block is sparse.
    pub fn expect_shortage(&mut self) {
        self.pace = Pace::Short;
    }

    /// Whether bodies should move, because free slots take too much memory.
    pub fn should_move(&self) -> bool {
        let tolerated = FREED_MIN_BYTES + self.blocks.len() * BLOCK_BYTES / FREED_PART;
        let is_sparse = self.moving.is_some() || self.freed > tolerated;
        self.pace == Pace::Short || (self.pace == Pace::Normal && is_sparse)
    }

    /// Moves bodies out of sparse blocks: visits at most `count` slots, and no more after `bytes`
    /// bytes have moved. O(n) for n blocks if it begins with one.
    pub fn move_some(&mut self, owners: &mut impl BodyOwners, count: u32, bytes: usize) {
        let mut moved = 0;
        for _ in 0..count {
            let Some(size) = self.move_next(owners) else { break };
            moved += size;
            if moved >= bytes {
                break;
            }
        }
    }

    /// Moves the next slot of the block being emptied, or passes it if it is free. Returns how many
    /// bytes it moved; `None` if no body should move, or there is no memory for moving it.
    fn move_next(&mut self, owners: &mut impl BodyOwners) -> Option<usize> {
        if !self.should_move() {
            return None;
        }
        let place = self.moving.or_else(|| self.begin_to_move())?;
        match self.blocks[place.block].mark(place.start()) {
            Mark::Free(size) => {
                self.moving = Some(place.after(size));
                Some(0)
            }
            Mark::Job(index) => {
                let body = owners.body_mut(index);
                let size = slot_bytes(body.len());
                body.place = self.move_slot(place, size)?;
                Some(size)
            }
            Mark::Referenced(index) => {
                let key = Key::<Referenced>::from_index(index);
                let size = slot_bytes(self.referenced[key].size);
                self.referenced[key].storage = Storage::Slot(self.move_slot(place, size)?);
                Some(size)
            }
        }
    }

    /// Chooses the sparsest block as the one to be emptied, but never the one filled next.
    fn begin_to_move(&mut self) -> Option<Place> {
        let filled_next = self.filled_next();
        let others = self.blocks.iter().filter(|&(key, _)| Some(key) != filled_next);
        let sparsest = others.max_by_key(|(_, block)| block.freed());
        let is_sparse = |block: &Block| block.freed() >= BLOCK_BYTES / SPARSE_PART;
        let Some((block, _)) = sparsest.filter(|(_, block)| is_sparse(block)) else {
            self.pace = Pace::Stuck;
            return None;
        };
        self.holes.retain(|hole| hole.place.block != block);
        self.moving = Some(Place { block, unit: 0 });
        self.moving
    }

    /// Copies a slot into another block, with its mark, and frees it.
    fn move_slot(&mut self, from: Place, size: usize) -> Option<Place> {
        let taken = self.take_slot(size, Need::Connection);
        if taken.is_err() {
            self.pace = Pace::Stuck;
        }
        let to = taken.ok()?;
        // Both blocks are in one arena, so the memory of one is taken out of the arena during the
        // copy.
        let bytes = mem::take(&mut self.blocks[from.block].bytes);
        self.blocks[to.block].bytes[to.start()..][..size]
            .copy_from_slice(&bytes[from.start()..][..size]);
        self.blocks[from.block].bytes = bytes;
        self.moving = Some(from.after(size));
        self.free(from, size);
        Some(to)
    }
}

impl Bodies {
    /// Checks the invariants, and panics if one does not hold. `job_body` returns the body of the
    /// job with an index. Returns how many handles there are. O(all): for tests.
    pub fn check<'a>(&self, job_body: impl Fn(usize) -> &'a Body) -> usize {
        let mut handles = self.referenced.iter().map(|(_, entry)| entry.handles as usize).sum();
        let mut freed = 0;
        for (key, block) in self.blocks.iter() {
            let (mut place, mut live) = (Place { block: key, unit: 0 }, 0);
            while place.start() < BLOCK_BYTES {
                let size = match block.mark(place.start()) {
                    Mark::Free(size) => {
                        place = place.after(size);
                        continue;
                    }
                    Mark::Job(index) => {
                        let body = job_body(index);
                        assert_eq!((body.entry(), body.place), (None, place), "its owner's");
                        handles += 1;
                        slot_bytes(body.len())
                    }
                    Mark::Referenced(index) => {
                        let entry = &self.referenced[Key::<Referenced>::from_index(index)];
                        let Storage::Slot(known) = entry.storage else { panic!("it has no slot") };
                        assert_eq!(known, place, "its entry knows it");
                        slot_bytes(entry.size)
                    }
                };
                live += size;
                place = place.after(size);
            }
            assert_eq!((place.start(), live), (BLOCK_BYTES, block.live));
            assert!(live > 0 || self.filled_next() == Some(key), "an empty block");
            freed += block.freed();
        }
        assert_eq!(freed, self.freed);
        for hole in &self.holes {
            assert_eq!(
                self.blocks[hole.place.block].mark(hole.place.start()),
                Mark::Free(hole.size)
            );
            assert!(!self.is_left(hole.place.block), "a hole in a block being emptied");
        }
        handles
    }
}
