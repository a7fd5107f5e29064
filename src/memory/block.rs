//! A block of memory for bodies of any size.
//!
//! Bodies follow each other in slots, and free slots stay between them. Each slot begins with a
//! [`Mark`], so that all slots of a block can be visited, in order.

/// Slots begin at multiples of this many bytes, and end there.
pub(super) const UNIT_BYTES: usize = 8;

/// Slots begin before this offset, so that their start fits into 16 bits of a handle.
pub(super) const SLOT_START_LIMIT: usize = u16::MAX as usize * UNIT_BYTES;

/// Bytes of a slot before its body.
const MARK_BYTES: usize = 4;

/// The owner of a slot's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// None: the slot is free, and has so many bytes.
    Free(usize),
    /// A command that is being executed. The slot has so many bytes.
    Unowned(usize),
    /// The job with this index.
    Job(usize),
    /// The entry with this index in the table of referenced bodies.
    Referenced(usize),
}

/// The index of a job with a body is below this.
pub const INDEX_LIMIT: usize = 1 << 30;

/// How far the kind of a mark is to the left of its number.
const KIND_SHIFT: u32 = 30;

impl Mark {
    fn encode(self) -> [u8; MARK_BYTES] {
        let (kind, number) = match self {
            Self::Free(size) => (0, size / UNIT_BYTES),
            Self::Unowned(size) => (1, size / UNIT_BYTES),
            Self::Job(index) => (2, index),
            Self::Referenced(index) => (3, index),
        };
        debug_assert!(number < INDEX_LIMIT);
        let number = u32::try_from(number).expect("indexes are below the limit");
        (kind << KIND_SHIFT | number).to_le_bytes()
    }

    fn decode(bytes: [u8; MARK_BYTES]) -> Self {
        let word = u32::from_le_bytes(bytes);
        let number = (word & (u32::MAX >> (u32::BITS - KIND_SHIFT))) as usize;
        match word >> KIND_SHIFT {
            0 => Self::Free(number * UNIT_BYTES),
            1 => Self::Unowned(number * UNIT_BYTES),
            2 => Self::Job(number),
            _ => Self::Referenced(number),
        }
    }
}

/// The size in bytes of a slot for a body of `len` bytes.
pub(super) fn slot_bytes(len: usize) -> usize {
    (len + MARK_BYTES).next_multiple_of(UNIT_BYTES)
}

/// A block of slots, or the memory of one large body.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// The memory of all slots, or none; of a block with one large body, its bytes.
    pub(super) bytes: Vec<u8>,
    /// Whether it has one large body, and no slots.
    pub(super) is_single: bool,
    /// Where the slots end, in bytes.
    pub(super) end: usize,
    /// Total bytes of slots that are in use.
    pub(super) live: usize,
    /// Total bytes of slots that became free.
    pub(super) freed: usize,
    /// Whether bodies may be added after `end`.
    pub(super) is_open: bool,
    /// How many bytes have been populated.
    pub(super) populated: usize,
}

impl Block {
    /// How many bytes are left for another slot.
    pub(super) fn room(&self) -> usize {
        if self.end < SLOT_START_LIMIT { self.bytes.len() - self.end } else { 0 }
    }

    pub(super) fn body(&self, start: usize, len: usize) -> &[u8] {
        let start = if self.is_single { 0 } else { start + MARK_BYTES };
        &self.bytes[start..start + len]
    }

    /// Writes bytes after the first `len` of a body, whose slot must be large enough.
    pub(super) fn write(&mut self, start: usize, len: usize, bytes: &[u8]) {
        if self.is_single {
            self.bytes.extend_from_slice(bytes);
        } else {
            let start = start + MARK_BYTES + len;
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Copies a body to another slot.
    pub(super) fn copy_within(&mut self, from: usize, to: usize, len: usize) {
        let from = from + MARK_BYTES;
        self.bytes.copy_within(from..from + len, to + MARK_BYTES);
    }

    pub(super) fn mark(&self, start: usize) -> Mark {
        let bytes = self.bytes[start..start + MARK_BYTES].try_into();
        Mark::decode(bytes.expect("a mark has four bytes"))
    }

    pub(super) fn set_mark(&mut self, start: usize, mark: Mark) {
        self.bytes[start..start + MARK_BYTES].copy_from_slice(&mark.encode());
    }

    /// Adds a slot at the end, for which there must be room. Returns its start.
    pub(super) fn push(&mut self, size: usize) -> usize {
        let start = self.end;
        self.end += size;
        self.live += size;
        self.set_mark(start, Mark::Unowned(size));
        start
    }

    /// Takes the first `size` bytes of a free slot of `whole` bytes. The rest stays free.
    pub(super) fn take_free(&mut self, start: usize, whole: usize, size: usize) {
        self.live += size;
        self.freed -= size;
        self.set_mark(start, Mark::Unowned(size));
        if size < whole {
            self.set_mark(start + size, Mark::Free(whole - size));
        }
    }

    /// Frees a slot. Returns whether it is free now, and not part of the room after all slots.
    pub(super) fn free(&mut self, start: usize, size: usize) -> bool {
        self.live -= size;
        if self.is_open && start + size == self.end {
            self.end = start;
            return false;
        }
        self.freed += size;
        self.set_mark(start, Mark::Free(size));
        true
    }

    /// Removes all slots, of which none is in use.
    pub(super) fn clear(&mut self) {
        (self.end, self.freed) = (0, 0);
    }

    /// Populates memory up to [`POPULATED_BYTES`] after the slots.
    pub(super) fn populate(&mut self, populate: Populate) {
        if self.populated < self.end {
            let end = (self.end + POPULATED_BYTES).min(self.bytes.len());
            // If it fails, the kernel populates each page when it is first used.
            let _ = populate(&mut self.bytes[self.populated..end]);
            self.populated = end;
        }
    }
}

/// Has the kernel populate memory in one call. Returns false if it cannot; then it populates each
/// page when it is first used.
pub(super) type Populate = fn(&mut [u8]) -> bool;

/// How many bytes are populated at once: few enough to be still in the processor's cache when
/// bodies are copied there, and to be negligible if unused.
const POPULATED_BYTES: usize = 32 * 1024;
