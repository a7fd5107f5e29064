//! A block of memory for bodies of any size.
//!
//! A block consists of consecutive slots, each of which is free or has a body. Each slot begins
//! with a [`Mark`], so that all slots of a block can be visited in order.

use super::bodies::Referenced;
use crate::collections::Key;

/// Slots begin and end at multiples of this many bytes.
pub(super) const UNIT_BYTES: usize = 8;

/// The size of a block in bytes: four bodies of the default largest size fit into a block. The C
/// library maps each block separately. With a header and eight bytes added, a block takes 65 pages.
pub(super) const BLOCK_BYTES: usize = 65 * 4096 - 32;

/// The length in bytes of the mark, which precedes a body in its slot. The mark names the slot's
/// owner.
pub(super) const MARK_BYTES: usize = 4;

/// The owner of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// A slot of this many bytes that is free, or that the present command has just taken.
    Free(usize),
    /// The job with this index.
    Job(usize),
    /// The entry with this key in the table of referenced bodies.
    Referenced(Key<Referenced>),
}

/// The index of every job and of every referenced body is below this number.
pub const INDEX_LIMIT: usize = 1 << 30;

/// The size in bytes of a slot for a body of `len` bytes.
pub(super) fn slot_bytes(len: usize) -> usize {
    (len + MARK_BYTES).next_multiple_of(UNIT_BYTES)
}

/// A block of slots.
#[derive(Debug)]
pub(super) struct Block {
    /// The memory of all slots.
    pub(super) bytes: Vec<u8>,
    /// The total size in bytes of the slots that are in use.
    pub(super) live: usize,
    /// All slots that were ever in use are before this offset.
    pub(super) end: usize,
}

impl Block {
    /// Returns the total size in bytes of the block's free slots that were once in use.
    pub(super) fn freed(&self) -> usize {
        self.end - self.live
    }

    /// Writes `bytes` to the slot at `start`, after the `len` bytes that its body already has. The
    /// bytes must fit into the slot.
    pub(super) fn write(&mut self, start: usize, len: usize, bytes: &[u8]) {
        self.bytes[start + MARK_BYTES + len..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Reads the mark of the slot at `start`.
    pub(super) fn mark(&self, start: usize) -> Mark {
        let bytes = self.bytes[start..start + MARK_BYTES].try_into();
        let word = u32::from_le_bytes(bytes.expect("a mark has four bytes")) as usize;
        match (word / INDEX_LIMIT, word % INDEX_LIMIT) {
            (0, units) => Mark::Free(units * UNIT_BYTES),
            (1, index) => Mark::Job(index),
            (_, index) => Mark::Referenced(Key::from_index(index)),
        }
    }

    /// Writes the mark of the slot at `start`.
    pub(super) fn set_mark(&mut self, start: usize, mark: Mark) {
        let (kind, number) = match mark {
            Mark::Free(size) => (0, size / UNIT_BYTES),
            Mark::Job(index) => (1, index),
            Mark::Referenced(key) => (2, key.index()),
        };
        debug_assert!(number < INDEX_LIMIT);
        let word = u32::try_from(kind * INDEX_LIMIT + number).expect("two bits for the kind");
        self.bytes[start..start + MARK_BYTES].copy_from_slice(&word.to_le_bytes());
    }
}
