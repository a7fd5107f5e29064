//! Jobs' bodies: on their way in, kept, and on their way out.
//!
//! A body takes a slot in a block of slots of one size, without an allocator's header. When all
//! bodies of a block have gone, its memory goes back to the system, which the C library's heap does
//! not promise: a few bytes in use at its end keep all of it.
//!
//! Up to [`SMALL`] bytes, sizes are eight bytes apart; above, at most an eighth. A body beyond
//! [`LARGEST`] has a block for itself, which may grow. Large bodies can be shared, between their
//! job and the replies that are on their way with them; the last to let go frees the slot. Whoever
//! has a [`Body`] must give it back with [`Bodies::remove`]: nothing else would.
//!
//! Invariant: of each size, `open` names the blocks with room, each once; a block without bodies
//! has no memory, but for the one that is filled next if few bytes of that were ever used, lest it
//! come and go with each body.

use std::{collections::VecDeque, fmt, mem};

use super::room::{NoRoom, is_there};

/// Bodies start at multiples of this.
const GRAIN: usize = 8;

/// Up to this many bytes a body is copied into replies; above, it is shared. Here and below, a body
/// may be a round number of bytes with its CR LF, as many are: hence the grain.
pub const SMALL: usize = 4096 + GRAIN;

/// The largest body, in bytes, that shares a block with others.
const LARGEST: usize = 128 * 1024 + GRAIN;

/// The size of a block in bytes: large enough for the system to be asked for it alone.
const BLOCK: usize = 512 * 1024 + 128 * GRAIN;

/// How many sizes of large bodies lie between one power of two and the next.
const STEPS: usize = 8;

/// Up to this many used bytes an empty block is kept for the next body.
const KEPT: usize = 64 * 1024;

/// So many empty blocks are kept for whatever size comes next.
const SPARES: usize = 4;

/// The right to a body's bytes, which are in [`Bodies`].
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

    /// Whether replies share it rather than copy it.
    pub fn is_large(&self) -> bool {
        self.len() > SMALL
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Bodies of one size.
#[derive(Debug, Default)]
struct Block {
    /// All of a block, or nothing; of a block with a single body, that body.
    bytes: Vec<u8>,
    /// Of a slot, in bytes; zero where the block is one body's.
    size: usize,
    slots: u16,
    /// How many slots have been used since the block got its memory: the first ones.
    touched: u16,
    /// How many bytes of this memory were in use before that.
    worn: usize,
    /// The slot that was freed last; its first two bytes name the one freed before, plus one.
    free: Option<u16>,
    used: u16,
    /// By slot, where bodies can be shared: how many have a right to it beside the first.
    shares: Vec<u32>,
}

impl Block {
    fn start(&self, slot: u16) -> usize {
        usize::from(slot) * self.size
    }

    fn capacity(&self) -> usize {
        if self.size == 0 { self.bytes.capacity() } else { self.size }
    }

    /// How many bytes of its memory were ever in use, and so are the system's to give back.
    fn used_bytes(&self) -> usize {
        self.worn.max(usize::from(self.touched) * self.size)
    }

    fn is_full(&self) -> bool {
        self.used == self.slots
    }

    /// Puts bytes behind the first `len` of a slot, which has room for them.
    fn write(&mut self, slot: u16, len: usize, bytes: &[u8]) {
        if self.size == 0 {
            self.bytes.extend_from_slice(bytes);
        } else {
            let start = self.start(slot) + len;
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn take_slot(&mut self) -> u16 {
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

    fn free_slot(&mut self, slot: u16) {
        self.used -= 1;
        let start = self.start(slot);
        let next = self.free.map_or(0, |free| free + 1);
        self.bytes[start..start + 2].copy_from_slice(&next.to_le_bytes());
        self.free = Some(slot);
    }
}

/// Owns all bodies.
#[derive(Debug, Default)]
pub struct Bodies {
    blocks: Vec<Block>,
    /// By class: the blocks of that size with room.
    open: Vec<Vec<u32>>,
    /// The numbers of blocks that had a single body, which has gone.
    vacant: Vec<u32>,
    /// The memory of blocks that have become empty, the latest at the end; and how many bytes of it
    /// were ever in use.
    spent: VecDeque<(Vec<u8>, usize)>,
    /// How many [`Body`]s there are, shares among them.
    rights: usize,
}

/// The class of a body of `len` bytes, at most [`LARGEST`], and the size of its slot in bytes.
fn class(len: usize) -> (usize, usize) {
    if len <= SMALL {
        let grains = len.div_ceil(GRAIN).max(1);
        return (grains, grains * GRAIN);
    }
    let round = len - GRAIN;
    let power = (round - 1).ilog2();
    let step = (1 << power) / STEPS;
    let steps = round.div_ceil(step);
    let octave = (power - SMALL.ilog2()) as usize;
    (SMALL / GRAIN + octave * STEPS + steps - STEPS, steps * step + GRAIN)
}

impl Bodies {
    /// Takes a body in. Fails where there is no memory for it. O(length).
    pub fn store(&mut self, bytes: &[u8]) -> Result<Body, NoRoom> {
        let mut body = self.begin(bytes.len())?;
        self.blocks[body.block as usize].write(body.slot, 0, bytes);
        body.len = u32::try_from(bytes.len()).expect("a body is at most a gibibyte");
        Ok(body)
    }

    /// Begins a body of which so many bytes are expected for now. Fails where there is no memory
    /// for them.
    pub fn begin(&mut self, capacity: usize) -> Result<Body, NoRoom> {
        let (block, slot) = if capacity > LARGEST {
            (self.single_block(capacity)?, 0)
        } else {
            let (class, size) = class(capacity);
            let number = self.open_block(class, size)?;
            let block = &mut self.blocks[number as usize];
            let slot = block.take_slot();
            if block.is_full() {
                self.open[class].pop();
            }
            (number, slot)
        };
        self.rights += 1;
        Ok(Body { block, len: 0, slot })
    }

    /// A block for one large body.
    fn single_block(&mut self, capacity: usize) -> Result<u32, NoRoom> {
        if !is_there(capacity) {
            return Err(NoRoom);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(capacity).map_err(|_| NoRoom)?;
        let block = Block { bytes, shares: vec![0], ..Block::default() };
        Ok(if let Some(number) = self.vacant.pop() {
            self.blocks[number as usize] = block;
            number
        } else {
            self.push(block)
        })
    }

    fn push(&mut self, block: Block) -> u32 {
        self.blocks.push(block);
        u32::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks")
    }

    /// The block that the next body of this class goes to.
    fn open_block(&mut self, class: usize, size: usize) -> Result<u32, NoRoom> {
        if self.open.len() <= class {
            self.open.resize_with(class + 1, Vec::new);
        }
        let number = if let Some(&number) = self.open[class].last() {
            number
        } else {
            let slots = u16::try_from(BLOCK / size).unwrap_or(u16::MAX);
            let shares = if size > SMALL { vec![0; slots.into()] } else { Vec::new() };
            let number = self.push(Block { size, slots, shares, ..Block::default() });
            self.open[class].push(number);
            number
        };
        let block = &mut self.blocks[number as usize];
        if block.bytes.is_empty() {
            (block.bytes, block.worn) = match self.spent.pop_back() {
                Some(spent) => spent,
                None if is_there(BLOCK) => (vec![0; BLOCK], 0),
                None => return Err(NoRoom),
            };
        }
        Ok(number)
    }

    /// Appends to a body, which nobody shares yet. Where it outgrows its room it gets twice as
    /// much, but at most `limit` bytes, which it will not exceed. Fails, and changes nothing, where
    /// there is no memory.
    pub fn append(&mut self, body: &mut Body, bytes: &[u8], limit: usize) -> Result<(), NoRoom> {
        let (len, needed) = (body.len(), body.len() + bytes.len());
        let capacity = self.capacity(body);
        if needed > capacity {
            self.grow(body, needed.max(2 * capacity).min(limit))?;
        }
        self.blocks[body.block as usize].write(body.slot, len, bytes);
        body.len = u32::try_from(needed).expect("a body is at most a gibibyte");
        Ok(())
    }

    /// How many bytes a body may have before it must move or grow.
    pub fn capacity(&self, body: &Body) -> usize {
        self.blocks[body.block as usize].capacity()
    }

    /// Gives a body more room, perhaps elsewhere.
    fn grow(&mut self, body: &mut Body, capacity: usize) -> Result<(), NoRoom> {
        let len = body.len();
        let block = &mut self.blocks[body.block as usize];
        if block.size == 0 {
            let more = capacity - len;
            if !is_there(more) {
                return Err(NoRoom);
            }
            return block.bytes.try_reserve_exact(more).map_err(|_| NoRoom);
        }
        let mut new = self.begin(capacity)?;
        // Both blocks are in one list, so one lends its memory for the copy.
        let block = &mut self.blocks[body.block as usize];
        let (start, bytes) = (block.start(body.slot), mem::take(&mut block.bytes));
        self.blocks[new.block as usize].write(new.slot, 0, &bytes[start..start + len]);
        self.blocks[body.block as usize].bytes = bytes;
        new.len = body.len;
        self.remove(mem::replace(body, new));
        Ok(())
    }

    /// The bytes of a body.
    pub fn bytes(&self, body: &Body) -> &[u8] {
        let block = &self.blocks[body.block as usize];
        let start = block.start(body.slot);
        &block.bytes[start..start + body.len()]
    }

    /// Another right to a large body.
    pub fn share(&mut self, body: &Body) -> Body {
        debug_assert!(body.is_large());
        self.blocks[body.block as usize].shares[usize::from(body.slot)] += 1;
        self.rights += 1;
        Body { ..*body }
    }

    /// Gives back the right to a body; with the last one, its room is free. O(1).
    #[expect(clippy::needless_pass_by_value, reason = "nobody may read it after this")]
    pub fn remove(&mut self, body: Body) {
        self.rights -= 1;
        let block = &mut self.blocks[body.block as usize];
        match block.shares.get_mut(usize::from(body.slot)) {
            Some(shares) if *shares > 0 => {
                *shares -= 1;
                return;
            }
            _ => {}
        }
        if block.size == 0 {
            *block = Block::default();
            self.vacant.push(body.block);
            return;
        }
        let was_full = block.is_full();
        block.free_slot(body.slot);
        let is_small = block.used_bytes() <= KEPT;
        let open = &mut self.open[class(block.size).0];
        if was_full {
            let before = open.last().copied();
            open.push(body.block);
            if let Some(before) = before {
                self.spend(before);
            }
        } else if open.last() != Some(&body.block) || !is_small {
            self.spend(body.block);
        }
    }

    /// Sets the memory of a block aside if no body is in it.
    fn spend(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.used == 0 && !block.bytes.is_empty() {
            let worn = block.used_bytes();
            self.spent.push_back((mem::take(&mut block.bytes), worn));
            (block.touched, block.free) = (0, None);
        }
    }

    /// Gives the memory of one empty block back to the system; whether there was one. It is a
    /// system call and takes its time, so nobody should do many of them in a row.
    pub fn free_spent(&mut self) -> bool {
        // The one that was left longest ago.
        self.has_spent() && self.spent.pop_front().is_some()
    }

    /// Whether there is something to give back.
    pub fn has_spent(&self) -> bool {
        self.spent.len() > SPARES
    }

    /// How many [`Body`]s there are, shares among them: for checks.
    pub fn rights(&self) -> usize {
        self.rights
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(len: usize, byte: u8) -> Vec<u8> {
        vec![byte; len]
    }

    #[test]
    fn sizes_lie_close_together() {
        let mut before = (0, 0);
        for len in 1..=LARGEST {
            let (class, size) = class(len);
            assert!(size >= len && size - len < GRAIN.max(len / STEPS), "{len} in {size}");
            assert!(BLOCK / size >= 4);
            assert_eq!(super::class(size), (class, size));
            assert_eq!(class == before.0, size == before.1, "a class has one size");
            assert!(class == before.0 || class == before.0 + 1);
            before = (class, size);
        }
    }

    #[test]
    fn small_and_large_bodies_read_the_same() {
        let mut bodies = Bodies::default();
        for len in [1, 2, 8, 9, SMALL - 1, SMALL, SMALL + 1, LARGEST, LARGEST + 1, 1_000_000] {
            let wanted: Vec<u8> = (0..=250).cycle().take(len).collect();
            let whole = bodies.store(&wanted).expect("there is memory");
            assert_eq!((bodies.bytes(&whole), whole.len()), (&wanted[..], len));
            let mut grown = bodies.begin(1).expect("there is memory");
            for piece in wanted.chunks(777) {
                bodies.append(&mut grown, piece, len).expect("there is memory");
            }
            assert_eq!((bodies.bytes(&grown), grown.len()), (&wanted[..], len));
            bodies.remove(whole);
            assert_eq!(bodies.bytes(&grown), wanted);
            bodies.remove(grown);
            assert_eq!(bodies.rights(), 0);
        }
    }

    #[test]
    fn a_shared_body_stays_until_the_last_has_let_go() {
        for len in [SMALL + 1, LARGEST + 1] {
            let mut bodies = Bodies::default();
            let one = bodies.store(&filled(len, 1)).expect("there is memory");
            let two = bodies.share(&one);
            let three = bodies.share(&two);
            bodies.remove(one);
            bodies.remove(three);
            let other = bodies.store(&filled(len, 2)).expect("there is memory");
            assert_eq!(bodies.bytes(&two), filled(len, 1));
            bodies.remove(two);
            let next = bodies.store(&filled(len, 3)).expect("there is memory");
            assert_eq!(bodies.bytes(&other), filled(len, 2));
            assert_eq!(bodies.blocks.len(), if len > LARGEST { 2 } else { 1 }, "room is reused");
            bodies.remove(other);
            bodies.remove(next);
            assert_eq!(bodies.rights(), 0);
        }
    }

    #[test]
    fn an_empty_store_has_no_large_blocks() {
        let mut bodies = Bodies::default();
        let all: Vec<Body> = (0..30_000)
            .map(|n| {
                let len = if n % 10 == 0 { 2 + n } else { 2 + n % 700 };
                bodies.store(&filled(len, 1)).expect("there is memory")
            })
            .collect();
        let held = |bodies: &Bodies| -> usize {
            let spent = bodies.spent.iter().map(|(bytes, _)| bytes);
            let memory = bodies.blocks.iter().map(|block| &block.bytes).chain(spent);
            memory.map(Vec::capacity).sum()
        };
        assert!(held(&bodies) > 30_000 * 1800);
        for body in all {
            bodies.remove(body);
        }
        while bodies.free_spent() {}
        let is_worn = |block: &Block| !block.bytes.is_empty() && block.used_bytes() > KEPT;
        assert!(!bodies.blocks.iter().any(is_worn));
        let sizes = bodies.open.iter().filter(|open| !open.is_empty()).count();
        assert!(
            held(&bodies) <= (sizes + SPARES) * BLOCK,
            "at most one block of each size is left"
        );
    }

    /// Memory that was all in use stays so, whatever it is used for next.
    #[test]
    fn a_worn_block_is_not_kept_for_small_bodies() {
        let mut bodies = Bodies::default();
        let large: Vec<Body> =
            (0..40).map(|_| bodies.store(&filled(60_000, 1)).expect("there is memory")).collect();
        for body in large {
            bodies.remove(body);
        }
        while bodies.free_spent() {}
        for len in 1..500 {
            let body = bodies.store(&filled(len * GRAIN, 1)).expect("there is memory");
            bodies.remove(body);
        }
        while bodies.free_spent() {}
        let kept = bodies.blocks.iter().filter(|block| !block.bytes.is_empty());
        assert_eq!(kept.map(Block::used_bytes).filter(|&used| used > KEPT).count(), 0);
        assert_eq!(bodies.spent.len(), SPARES);
    }

    #[test]
    fn a_lone_large_body_finds_the_room_of_the_one_before() {
        let mut bodies = Bodies::default();
        for _ in 0..10 {
            let body = bodies.store(&filled(LARGEST, 1)).expect("there is memory");
            bodies.remove(body);
            assert!(!bodies.has_spent());
        }
        assert_eq!(bodies.spent.len(), 1);
    }

    proptest! {
        /// A body that another one overwrites is somebody's job with somebody else's work.
        #[test]
        fn bodies_keep_to_themselves(
            acts in prop::collection::vec(
                (1..140usize, any::<u8>(), 0..4u8, any::<prop::sample::Index>()),
                1..1000,
            ),
        ) {
            let (mut bodies, mut held) = (Bodies::default(), Vec::<(Body, Vec<u8>)>::new());
            for (len, byte, act, index) in acts {
                // From a few bytes to a little more than the largest, small ones more often.
                let len = len * len * 7;
                let chosen = if held.is_empty() { 0 } else { index.index(held.len()) };
                match act {
                    1 if !held.is_empty() => {
                        let (body, _) = held.swap_remove(chosen);
                        bodies.remove(body);
                    }
                    2 if held.get(chosen).is_some_and(|(body, _)| body.is_large()) => {
                        let share = (bodies.share(&held[chosen].0), held[chosen].1.clone());
                        held.push(share);
                    }
                    3 => {
                        let mut body = bodies.begin(len / 5).expect("there is memory");
                        for piece in filled(len, byte).chunks(len / 3 + 1) {
                            bodies.append(&mut body, piece, len).expect("there is memory");
                        }
                        held.push((body, filled(len, byte)));
                    }
                    _ => {
                        let bytes = filled(len, byte);
                        held.push((bodies.store(&bytes).expect("there is memory"), bytes));
                    }
                }
                prop_assert_eq!(bodies.rights(), held.len());
            }
            for (body, wanted) in &held {
                prop_assert_eq!(bodies.bytes(body), wanted);
            }
        }
    }
}
