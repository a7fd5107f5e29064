//! A block of memory for bodies of one size.

/// A block of slots of one size, or of one large body.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// The memory of all slots, or none; in a block of one large body, its bytes.
    pub(super) bytes: Vec<u8>,
    /// Bytes of a slot; 0 in a block of one large body.
    pub(super) size: usize,
    pub(super) slots: u16,
    /// How many slots, from the first, have been used since the block got its memory.
    pub(super) touched: u16,
    /// How many bytes of this memory were used before that.
    pub(super) used_before: usize,
    /// How many bytes have been populated.
    pub(super) populated: usize,
    /// The slot freed last. Its first two bytes name the slot freed before it, plus one.
    pub(super) free: Option<u16>,
    pub(super) used: u16,
    /// Index among the open blocks of its size, if it is open.
    pub(super) open_index: usize,
    /// By slot, if bodies can be shared: how many handles there are beside the first.
    pub(super) extra_handles: Vec<u32>,
}

impl Block {
    pub(super) fn start(&self, slot: u16) -> usize {
        usize::from(slot) * self.size
    }

    pub(super) fn capacity(&self) -> usize {
        if self.size == 0 { self.bytes.capacity() } else { self.size }
    }

    /// How many bytes of its memory were ever used, and so are resident.
    pub(super) fn used_bytes(&self) -> usize {
        self.used_before.max(usize::from(self.touched) * self.size)
    }

    pub(super) fn is_full(&self) -> bool {
        self.used == self.slots
    }

    /// Writes bytes behind the first `len` of a slot, which must be large enough.
    pub(super) fn write(&mut self, slot: u16, len: usize, bytes: &[u8]) {
        if self.size == 0 {
            self.bytes.extend_from_slice(bytes);
        } else {
            let start = self.start(slot) + len;
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    pub(super) fn take_slot(&mut self) -> u16 {
        self.used += 1;
        if let Some(slot) = self.free {
            let start = self.start(slot);
            let next = u16::from_le_bytes([self.bytes[start], self.bytes[start + 1]]);
            self.free = next.checked_sub(1);
            slot
        } else {
            self.touched += 1;
            self.touched - 1
        }
    }

    /// Populates memory up to [`POPULATED_BYTES`] beyond the slots that have been used.
    pub(super) fn populate(&mut self, populate: Populate) {
        let used = self.used_bytes();
        if self.populated < used {
            let end = (used + POPULATED_BYTES).min(self.bytes.len());
            // If it fails, the kernel populates each page when it is first used.
            let _ = populate(&mut self.bytes[self.populated..end]);
            self.populated = end;
        }
    }

    pub(super) fn free_slot(&mut self, slot: u16) {
        self.used -= 1;
        let start = self.start(slot);
        let next = self.free.map_or(0, |free| free + 1);
        self.bytes[start..start + 2].copy_from_slice(&next.to_le_bytes());
        self.free = Some(slot);
    }
}

/// Has the kernel populate memory in one call. Returns false if it cannot; then it populates each
/// page when it is first used.
pub(super) type Populate = fn(&mut [u8]) -> bool;

/// How many bytes are populated at once: few enough to be still in the processor's cache when
/// bodies are copied there, and to be negligible if unused.
const POPULATED_BYTES: usize = 32 * 1024;
