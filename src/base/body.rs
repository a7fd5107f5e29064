//! Jobs' bodies: small ones side by side in blocks of their size, large ones by themselves.
//!
//! A small body takes its length rounded up to eight bytes, and nothing else: no header of an
//! allocator, no counter. A block holds bodies of one rounded size; when all of them have gone its
//! memory goes back to the system, which the C library's heap would not promise. A large body is
//! shared between its job and the replies that are on their way with it.
//!
//! Invariant: of each size, `open` names the blocks with room, each once; a block without bodies has
//! no memory, but for the one that is filled next if few of its bytes were ever used, lest it come
//! and go with each body.

use std::{borrow::Cow, collections::TryReserveError, fmt, mem, rc::Rc};

/// Up to this many bytes a body is kept in a block, and copied into replies; above, it is shared.
pub const SMALL: usize = 4096;

/// The size of a block in bytes: large enough for the system to be asked for it alone.
const BLOCK: usize = 512 * 1024;

/// Bodies start at multiples of this.
const GRAIN: usize = 8;

/// Up to this many used bytes an empty block is kept for the next body.
const KEPT: usize = 64 * 1024;

/// What a job has of its body; its bytes are in [`Bodies`].
pub struct Body(Place);

enum Place {
    Small { block: u32, slot: u16, len: u16 },
    Large(Rc<Vec<u8>>),
}

const _: () = assert!(size_of::<Body>() == 16);

impl Body {
    /// How many bytes it has.
    #[expect(clippy::len_without_is_empty, reason = "a body has at least its CR LF")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Small { len, .. } => usize::from(*len),
            Place::Large(bytes) => bytes.len(),
        }
    }

    /// The body itself to keep beside its job, if it is large.
    pub fn share(&self) -> Option<Rc<Vec<u8>>> {
        match &self.0 {
            Place::Small { .. } => None,
            Place::Large(bytes) => Some(Rc::clone(bytes)),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Bodies of one rounded size.
#[derive(Debug, Default)]
struct Block {
    /// The slots that have ever been used.
    bytes: Vec<u8>,
    /// The slot that was freed last; its first two bytes name the one freed before, plus one.
    free: Option<u16>,
    used: u16,
}

/// Owns all small bodies.
#[derive(Debug, Default)]
pub struct Bodies {
    blocks: Vec<Block>,
    /// By length in grains: the blocks of that size with room.
    open: Vec<Vec<u32>>,
    /// The memory of blocks that have become empty.
    spent: Vec<Vec<u8>>,
}

/// The size of a slot for a body of `len` bytes, in grains.
fn grains(len: usize) -> usize {
    len.div_ceil(GRAIN).max(1)
}

/// How many slots of so many grains a block has.
fn slots(grains: usize) -> usize {
    (BLOCK / (grains * GRAIN)).min(usize::from(u16::MAX))
}

impl Bodies {
    /// Takes a body in. Fails where there is no memory for it. O(length).
    pub fn insert(&mut self, bytes: Cow<'_, [u8]>) -> Result<Body, TryReserveError> {
        if bytes.len() > SMALL {
            let mut owned = match bytes {
                Cow::Owned(owned) => owned,
                Cow::Borrowed(bytes) => {
                    let mut owned = Vec::new();
                    owned.try_reserve_exact(bytes.len())?;
                    owned.extend_from_slice(bytes);
                    owned
                }
            };
            owned.shrink_to_fit();
            return Ok(Body(Place::Large(Rc::new(owned))));
        }
        let grains = grains(bytes.len());
        let number = self.open_block(grains)?;
        let block = &mut self.blocks[number as usize];
        let size = grains * GRAIN;
        let slot = if let Some(slot) = block.free {
            let start = usize::from(slot) * size;
            let next = u16::from_le_bytes([block.bytes[start], block.bytes[start + 1]]);
            block.free = next.checked_sub(1);
            block.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
            slot
        } else {
            let start = block.bytes.len();
            block.bytes.extend_from_slice(&bytes);
            block.bytes.resize(start + size, 0);
            u16::try_from(start / size).expect("a block has fewer slots")
        };
        block.used += 1;
        if usize::from(block.used) == slots(grains) {
            self.open[grains].pop();
        }
        let len = u16::try_from(bytes.len()).expect("a small body");
        Ok(Body(Place::Small { block: number, slot, len }))
    }

    /// The block that the next body of this size goes to.
    fn open_block(&mut self, grains: usize) -> Result<u32, TryReserveError> {
        if self.open.len() <= grains {
            self.open.resize_with(grains + 1, Vec::new);
        }
        if self.open[grains].is_empty() {
            let number = u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks");
            self.blocks.push(Block::default());
            self.open[grains].push(number);
        }
        let number = self.open[grains][self.open[grains].len() - 1];
        let block = &mut self.blocks[number as usize];
        if block.bytes.capacity() == 0 {
            block.bytes.try_reserve_exact(slots(grains) * grains * GRAIN)?;
        }
        Ok(number)
    }

    /// The bytes of a body.
    pub fn bytes<'a>(&'a self, body: &'a Body) -> &'a [u8] {
        match &body.0 {
            Place::Large(bytes) => bytes,
            Place::Small { block, slot, len } => {
                let len = usize::from(*len);
                let start = usize::from(*slot) * grains(len) * GRAIN;
                &self.blocks[*block as usize].bytes[start..start + len]
            }
        }
    }

    /// Frees a body's room. O(1).
    #[expect(clippy::needless_pass_by_value, reason = "nobody may read it after this")]
    pub fn remove(&mut self, body: Body) {
        let Place::Small { block: number, slot, len } = body.0 else { return };
        let grains = grains(usize::from(len));
        let block = &mut self.blocks[number as usize];
        let start = usize::from(slot) * grains * GRAIN;
        let next = block.free.map_or(0, |free| free + 1);
        block.bytes[start..start + 2].copy_from_slice(&next.to_le_bytes());
        block.free = Some(slot);
        let was_full = usize::from(block.used) == slots(grains);
        block.used -= 1;
        let open = &mut self.open[grains];
        if was_full {
            let before = open.last().copied();
            open.push(number);
            if let Some(before) = before {
                self.spend(before);
            }
        } else if open.last() != Some(&number) || block.bytes.len() > KEPT {
            self.spend(number);
        }
    }

    /// Sets the memory of a block aside if no body is in it.
    fn spend(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.used == 0 && block.bytes.capacity() > 0 {
            self.spent.push(mem::take(block).bytes);
        }
    }

    /// Gives the memory of one empty block back to the system; whether there was one. It is a
    /// system call and takes its time, so nobody should do many of them in a row.
    pub fn free_spent(&mut self) -> bool {
        self.spent.pop().is_some()
    }

    /// Whether there is something to give back.
    pub fn has_spent(&self) -> bool {
        !self.spent.is_empty()
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
    fn small_and_large_bodies_read_the_same() {
        let mut bodies = Bodies::default();
        for len in [1, 2, 8, 9, SMALL - 1, SMALL, SMALL + 1, 100_000] {
            let wanted: Vec<u8> = (0..=255).cycle().take(len).collect();
            for bytes in [Cow::Borrowed(&wanted[..]), Cow::Owned(wanted.clone())] {
                let body = bodies.insert(bytes).expect("there is memory");
                assert_eq!((bodies.bytes(&body), body.len()), (&wanted[..], len));
                assert_eq!(body.share().is_some(), len > SMALL);
            }
        }
    }

    #[test]
    fn an_empty_store_has_no_large_blocks() {
        let mut bodies = Bodies::default();
        let all: Vec<Body> = (0..30_000)
            .map(|n| bodies.insert(filled(2 + n % 700, 1).into()).expect("there is memory"))
            .collect();
        let capacity = |bodies: &Bodies| -> usize {
            bodies.blocks.iter().map(|block| block.bytes.capacity()).sum()
        };
        assert!(capacity(&bodies) > 30_000 * 350);
        for body in all {
            bodies.remove(body);
        }
        while bodies.free_spent() {}
        assert!(bodies.blocks.iter().all(|block| block.bytes.len() <= KEPT));
        let sizes = bodies.open.iter().filter(|open| !open.is_empty()).count();
        assert!(capacity(&bodies) <= sizes * BLOCK, "at most one block of each size is left");
    }

    proptest! {
        /// A body that another one overwrites is somebody's job with somebody else's work.
        #[test]
        fn bodies_keep_to_themselves(
            acts in prop::collection::vec((1..64usize, any::<u8>(), any::<Option<prop::sample::Index>>()), 1..2000),
        ) {
            let (mut bodies, mut held) = (Bodies::default(), Vec::new());
            for (len, byte, remove) in acts {
                match remove {
                    Some(index) if !held.is_empty() => {
                        let (body, _, _) = held.swap_remove(index.index(held.len()));
                        bodies.remove(body);
                    }
                    _ => {
                        let body = bodies.insert(filled(len * 37, byte).into()).expect("memory");
                        held.push((body, len * 37, byte));
                    }
                }
            }
            for (body, len, byte) in &held {
                prop_assert_eq!(bodies.bytes(body), filled(*len, *byte));
            }
        }
    }
}
