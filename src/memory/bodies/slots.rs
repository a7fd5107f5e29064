//! Slots for bodies, and the blocks they are in: how they are taken, freed, and left.

use std::mem;

use super::{
    BLOCK_BYTES, Bodies, Body, FREED_MIN_BYTES, FREED_PART, KEPT_BLOCKS_MAX, OPEN_BLOCKS_MAX,
    Place, ROOM_MIN_BYTES, Referenced, SLOT_BODY_MAX_BYTES, SPARSE_PART, VACANCIES_MAX, direct,
};
use crate::memory::{
    Need, OutOfMemory,
    block::{Block, Mark, SLOT_START_LIMIT, slot_bytes},
};

/// Slots and blocks.
impl Bodies {
    /// Takes a slot, or a block for a large body.
    pub(super) fn take_place(&mut self, capacity: usize) -> Result<Place, OutOfMemory> {
        if capacity <= SLOT_BODY_MAX_BYTES {
            return self.take_slot(slot_bytes(capacity), Need::Storage);
        }
        self.take(capacity, Need::Storage)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(capacity).map_err(|_| OutOfMemory)?;
        let block = Block { bytes, is_single: true, ..Block::default() };
        Ok(Place { block: self.add(block), start: 0 })
    }

    pub(super) fn take_slot(&mut self, size: usize, need: Need) -> Result<Place, OutOfMemory> {
        let has_room = |block: &&usize| self.blocks[**block].room() >= size;
        let block = match self.open.iter().find(has_room) {
            Some(&block) => block,
            None => match self.take_vacancy(size) {
                Some(place) => return Ok(place),
                None => self.add_open_block(need)?,
            },
        };
        let start = self.blocks[block].push(size);
        if let Some(populate) = self.populate {
            self.blocks[block].populate(populate);
        }
        Ok(Place { block, start })
    }

    /// Takes the slot of a body that was removed lately, if one is large enough.
    fn take_vacancy(&mut self, size: usize) -> Option<Place> {
        let at = self.vacancies.iter().rposition(|&(_, whole)| whole >= size)?;
        let (place, whole) = self.vacancies[at];
        let block = &mut self.blocks[place.block];
        block.take_free(place.start, whole, size);
        if !block.is_open {
            self.freed -= size;
        }
        let rest = Place { start: place.start + size, ..place };
        if whole > size && rest.start < SLOT_START_LIMIT {
            self.vacancies[at] = (rest, whole - size);
        } else {
            self.vacancies.remove(at);
        }
        Some(place)
    }

    /// Frees the slot of a body for which it had `capacity`.
    pub(super) fn free(&mut self, place: Place, capacity: usize) {
        let number = place.block;
        self.is_stuck = false;
        let block = &mut self.blocks[number];
        if block.is_single {
            self.budget.credit(block.bytes.capacity());
            *block = Block::default();
            return self.vacant.push(number);
        }
        let size = slot_bytes(capacity);
        let is_left = block.free(place.start, size);
        if is_left && !block.is_open {
            self.freed += size;
        }
        if block.live == 0 {
            self.empty(number);
        } else if is_left && self.moving.is_none_or(|moving| moving.block != number) {
            if self.vacancies.len() == VACANCIES_MAX {
                self.vacancies.remove(0);
            }
            self.vacancies.push((place, size));
        }
    }

    /// Clears a block without bodies, and makes its memory releasable if it is not filled next.
    fn empty(&mut self, number: usize) {
        let block = &mut self.blocks[number];
        if !block.is_open {
            self.freed -= block.freed;
        }
        block.clear();
        self.vacancies.retain(|(place, _)| place.block != number);
        self.moving.take_if(|moving| moving.block == number);
        if self.open.last() == Some(&number) {
            return;
        }
        self.open.retain(|&open| open != number);
        let Block { bytes, populated, .. } = mem::take(&mut self.blocks[number]);
        self.releasable.push_back((bytes, populated));
        self.vacant.push(number);
    }

    fn add_open_block(&mut self, need: Need) -> Result<usize, OutOfMemory> {
        // A block that others left must not become one of those that are kept free for them.
        let kept = if self.budget.admits(need, 1) { self.releasable.pop_back() } else { None };
        let (bytes, populated) = if let Some(kept) = kept {
            kept
        } else {
            let taken = self.take(BLOCK_BYTES, need);
            if taken.is_err() {
                self.expect_shortage();
            }
            taken?;
            (vec![0; BLOCK_BYTES], 0)
        };
        self.close_fullest();
        let number = self.add(Block { bytes, populated, is_open: true, ..Block::default() });
        self.open.push(number);
        Ok(number)
    }

    /// Adds no more bodies to blocks that have hardly any room, nor to that with the least room if
    /// too many are open.
    fn close_fullest(&mut self) {
        let Self { blocks, open, .. } = self;
        let fullest = open.iter().map(|&number| blocks[number].room()).min().unwrap_or_default();
        let is_crowded = open.len() == OPEN_BLOCKS_MAX;
        let room = if is_crowded { fullest.max(ROOM_MIN_BYTES) } else { ROOM_MIN_BYTES };
        self.freed += close(blocks, open, |_, block| block.room() <= room);
    }

    fn add(&mut self, block: Block) -> usize {
        if let Some(number) = self.vacant.pop() {
            self.blocks[number] = block;
            return number;
        }
        self.blocks.push(block);
        self.blocks.len() - 1
    }

    /// Takes memory from the budget. If it is missing, releases empty blocks and tries again.
    pub(super) fn take(&mut self, bytes: usize, need: Need) -> Result<(), OutOfMemory> {
        let taken = self.budget.take(need, bytes);
        if taken.is_ok() || !self.release_all() {
            return taken;
        }
        self.budget.forget_refusals();
        self.budget.take(need, bytes)
    }
}

/// Closes the open blocks for which `is_closed` returns true. Returns how many bytes of their slots
/// are free.
fn close(
    blocks: &mut [Block],
    open: &mut Vec<usize>,
    is_closed: impl Fn(usize, &Block) -> bool,
) -> usize {
    let mut freed = 0;
    open.retain(|&number| {
        let block = &mut blocks[number];
        block.is_open = !is_closed(number, block);
        if !block.is_open {
            freed += block.freed;
        }
        block.is_open
    });
    freed
}

/// Memory that is given back.
impl Bodies {
    /// Releases the memory of all empty blocks to the system. Returns whether there was any. Only
    /// for a shortage: it takes some 20 microseconds a block.
    pub fn release_all(&mut self) -> bool {
        let has_releasable = !self.releasable.is_empty();
        self.releasable.clear();
        has_releasable
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

    /// Has bodies move even if free slots take little, until none of their blocks is sparse.
    pub fn expect_shortage(&mut self) {
        self.is_short = true;
        let Self { blocks, open, .. } = self;
        let last = open.last().copied();
        self.freed += close(blocks, open, |number, block| {
            Some(number) != last && block.freed >= BLOCK_BYTES / SPARSE_PART
        });
    }

    /// Whether bodies should move, because free slots take too much memory.
    pub fn should_move(&self) -> bool {
        let tolerated = FREED_MIN_BYTES + self.budget.body_bytes() / FREED_PART;
        let is_sparse = self.is_short || self.freed as u64 > tolerated;
        !self.is_stuck && (self.moving.is_some() || is_sparse)
    }

    /// Returns the index of a job whose body should move: the caller passes it to
    /// [`Bodies::relocate`]. Moves referenced bodies itself, and adds their bytes to `moved_bytes`
    /// until they exceed `most`. Returns `None` then, and if no body should move or there is no
    /// memory for it. O(n) for n blocks if it begins with one, or else O(slots).
    pub fn next_to_move(&mut self, moved_bytes: &mut usize, most: usize) -> Option<usize> {
        while self.should_move() && *moved_bytes <= most {
            let Place { block: number, start } = match self.moving {
                Some(moving) => moving,
                None => self.begin_to_move()?,
            };
            debug_assert!(start < self.blocks[number].end, "an empty block is not left");
            let size = match self.blocks[number].mark(start) {
                Mark::Job(index) => return Some(index),
                Mark::Free(size) => size,
                Mark::Referenced(at) => {
                    let Referenced { place, capacity, .. } = self.referenced[at];
                    let new = self.move_slot(place, capacity).ok()?;
                    self.referenced[at].place = new;
                    *moved_bytes += capacity;
                    continue;
                }
                Mark::Unowned(_) => unreachable!("it has an owner when its command has ended"),
            };
            self.moving = Some(Place { block: number, start: start + size });
        }
        None
    }

    /// Moves a body of a job out of a sparse block. Fails, and moves nothing, without memory.
    pub fn relocate(&mut self, body: &mut Body) -> Result<(), OutOfMemory> {
        *body = direct(self.move_slot(self.place(body), body.len())?, body.len());
        Ok(())
    }

    /// Chooses the sparsest block as the one that bodies leave.
    fn begin_to_move(&mut self) -> Option<Place> {
        let candidates = self.blocks.iter().enumerate().filter(|(_, block)| !block.is_open);
        let sparsest = candidates.max_by_key(|(_, block)| block.freed);
        let Some((number, _)) = sparsest.filter(|it| it.1.freed >= BLOCK_BYTES / SPARSE_PART)
        else {
            (self.is_short, self.is_stuck) = (false, true);
            return None;
        };
        self.vacancies.retain(|(place, _)| place.block != number);
        self.moving = Some(Place { block: number, start: 0 });
        self.moving
    }

    /// Copies a slot into another block, with its mark, and frees it.
    fn move_slot(&mut self, place: Place, capacity: usize) -> Result<Place, OutOfMemory> {
        let Place { block, start } = place;
        let size = slot_bytes(capacity);
        let mark = self.blocks[block].mark(start);
        let taken = self.take_slot(size, Need::Connection);
        self.is_stuck = taken.is_err();
        let new = taken?;
        self.copy(place, new, capacity);
        self.blocks[new.block].set_mark(new.start, mark);
        self.moving = Some(Place { block, start: start + size });
        self.free(place, capacity);
        Ok(new)
    }
}

impl Bodies {
    /// Checks the invariants, and panics if one does not hold. `job_body` returns the body of the
    /// job with an index. O(all): for tests.
    pub fn check<'a>(&self, job_body: impl Fn(usize) -> &'a Body) {
        for (number, block) in self.blocks.iter().enumerate() {
            let (mut start, mut live, mut freed) = (0, 0, 0);
            while start < block.end {
                let place = Place { block: number, start };
                let (size, is_used) = match block.mark(start) {
                    Mark::Free(size) => (size, false),
                    Mark::Unowned(_) => panic!("a body without an owner"),
                    Mark::Job(index) => {
                        assert_eq!(self.place(job_body(index)), place, "its owner knows it");
                        (slot_bytes(job_body(index).len()), true)
                    }
                    Mark::Referenced(at) => {
                        assert_eq!(self.referenced[at].place, place, "its entry knows it");
                        (slot_bytes(self.referenced[at].capacity), true)
                    }
                };
                *(if is_used { &mut live } else { &mut freed }) += size;
                start += size;
            }
            assert_eq!((start, live, freed), (block.end, block.live, block.freed));
            assert!(live > 0 || block.is_single || block.bytes.is_empty() || block.is_open);
        }
        let closed = self.blocks.iter().filter(|block| !block.is_open);
        assert_eq!(self.freed, closed.map(|block| block.freed).sum::<usize>());
        for &(Place { block, start }, size) in &self.vacancies {
            assert_eq!(self.blocks[block].mark(start), Mark::Free(size), "a vacancy is free");
        }
    }
}
