//! Typed arenas: a `Key<Job>` takes four bytes and cannot index an `Arena<Tube>`.
//!
//! A key names an item from `insert` to `remove`; later, the key may name another item. So remove
//! an item only when no copy of its key will be used again: for a connection, at the end of a turn.

use std::{
    cmp::Ordering,
    fmt,
    marker::PhantomData,
    mem,
    num::NonZeroU32,
    ops::{Index, IndexMut},
};

use slab::Slab;

use super::growth::{Growth, grow, probe};

/// Names one item of an `Arena<T>`. A `Key<T>` and an `Option<Key<T>>` take four bytes each.
pub struct Key<T> {
    /// The slot plus one, so that zero can represent `None`.
    slot: NonZeroU32,
    of: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// Returns the number of a key's slot, for event tokens and log lines, and to order items whose
    /// other sort keys are equal.
    pub fn index(self) -> usize {
        self.slot.get() as usize - 1
    }

    /// Returns the key with the same index in another arena. Items must be added to both arenas
    /// together, and removed from both together. Connections and clients are in such arenas, and so
    /// are jobs and their locations in the binlog.
    pub fn paired<U>(self) -> Key<U> {
        Key { slot: self.slot, of: PhantomData }
    }

    /// Makes a key from its index; the inverse of [`Key::index`].
    pub fn from_index(index: usize) -> Self {
        let slot = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self { slot: slot.expect("an arena holds fewer than 2^32 items"), of: PhantomData }
    }
}

// `derive` would implement a trait for `Key<T>` only if `T` has the same trait.
impl<T> Clone for Key<T> {
    /// A copy of the key.
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Key<T> {}
impl<T> PartialEq for Key<T> {
    /// Whether two keys have the same index.
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot
    }
}
impl<T> Eq for Key<T> {}
impl<T> PartialOrd for Key<T> {
    /// Compares the indexes of two keys.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Key<T> {
    /// Compares the indexes of two keys.
    fn cmp(&self, other: &Self) -> Ordering {
        self.slot.cmp(&other.slot)
    }
}
impl<T> fmt::Debug for Key<T> {
    /// Formats a key as `#` and its index.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}

/// The number of items in a chunk by default. A chunk of jobs takes 192 KiB, so the C library takes
/// each chunk from the system separately.
const CHUNK_LENGTH_DEFAULT: usize = 2048;

/// Owns items, each of which has a key.
///
/// Items are stored in chunks; each chunk is a slab that never grows. So adding an item never
/// copies other items, and the memory of an empty chunk can be released to the system: see
/// [`Arena::release_one`]. Invariant: each chunk with free slots is in the list `open` exactly
/// once. Of the empty chunks, only the last chunk of `open` may have memory, so that adding and
/// removing a single item again and again does not allocate each time.
///
/// If two arenas have the same `CHUNK_LENGTH`, and their items are added and removed together, the
/// items have the same indexes.
#[derive(Debug)]
pub struct Arena<T, const CHUNK_LENGTH: usize = CHUNK_LENGTH_DEFAULT> {
    chunks: Vec<Slab<T>>,
    open: Vec<usize>,
    /// The memory of chunks that became empty, which can be released to the system.
    releasable: Vec<Slab<T>>,
    len: usize,
    /// The number of lookups; see [`Arena::visits`].
    #[cfg(debug_assertions)]
    pub(super) visits: std::cell::Cell<u64>,
}

/// An arena with short chunks, for large items: tubes, clients and connections. A chunk takes 68 to
/// 132 KiB, so the C library takes each chunk from the system separately.
pub type SmallArena<T> = Arena<T, 512>;

impl<T, const CHUNK_LENGTH: usize> Default for Arena<T, CHUNK_LENGTH> {
    /// An empty arena.
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            open: Vec::new(),
            releasable: Vec::new(),
            len: 0,
            #[cfg(debug_assertions)]
            visits: std::cell::Cell::new(0),
        }
    }
}

impl<T, const CHUNK_LENGTH: usize> Arena<T, CHUNK_LENGTH> {
    /// Makes room for the next item of the arena, or fails if there is no memory. O(1).
    #[inline]
    pub fn make_room(&mut self) -> Growth {
        if self.ready_chunk().is_some() { Ok(()) } else { self.make_chunk() }
    }

    /// Returns the chunk for the next item, if that chunk's memory is allocated.
    #[inline]
    fn ready_chunk(&self) -> Option<usize> {
        let number = *self.open.last()?;
        (self.chunks[number].capacity() > 0).then_some(number)
    }

    /// Makes a chunk for the next items of the arena, or fails if there is no memory.
    #[cold]
    fn make_chunk(&mut self) -> Growth {
        // For each item, a slab takes at most two words more than the item itself.
        probe(CHUNK_LENGTH * (size_of::<T>() + 2 * size_of::<usize>()))?;
        if self.open.is_empty() {
            // Later steps, which cannot fail, may add every chunk to `open` or `releasable`.
            let chunks = self.chunks.len() + 1;
            grow(&mut self.chunks, chunks)?;
            grow(&mut self.open, chunks)?;
            grow(&mut self.releasable, chunks)?;
        }
        self.chunk_to_fill();
        Ok(())
    }

    /// Returns the chunk for the next item. Allocates the chunk's memory if the chunk has none.
    #[cold]
    fn chunk_to_fill(&mut self) -> usize {
        if self.open.is_empty() {
            self.open.push(self.chunks.len());
            self.chunks.push(Slab::new());
        }
        let number = self.open[self.open.len() - 1];
        let chunk = &mut self.chunks[number];
        if chunk.capacity() == 0 {
            chunk.reserve_exact(CHUNK_LENGTH);
        }
        number
    }

    /// Stores an item in the arena. O(1), unless the list of chunks, which is small, is
    /// reallocated.
    pub fn insert(&mut self, item: T) -> Key<T> {
        let number = self.ready_chunk().unwrap_or_else(|| self.chunk_to_fill());
        let chunk = &mut self.chunks[number];
        let slot = chunk.insert(item);
        if chunk.len() == CHUNK_LENGTH {
            self.open.pop();
        }
        self.len += 1;
        Key::from_index(number * CHUNK_LENGTH + slot)
    }

    /// Removes an item of the arena. From now on, the item's key may name another item.
    pub fn remove(&mut self, key: Key<T>) -> T {
        let (number, slot) = locate::<T, CHUNK_LENGTH>(key);
        let chunk = &mut self.chunks[number];
        let was_full = chunk.len() == CHUNK_LENGTH;
        let item = chunk.remove(slot);
        if was_full {
            // If the present last chunk of `open` is empty, its memory can be released.
            let last = self.open.last().map(|&last| &mut self.chunks[last]);
            self.releasable.extend(last.filter(|last| last.is_empty()).map(mem::take));
            self.open.push(number);
        } else if chunk.is_empty() && self.open[self.open.len() - 1] != number {
            self.releasable.push(mem::take(chunk));
        }
        self.len -= 1;
        item
    }

    /// Releases the memory of one empty chunk to the system, and returns whether there was such a
    /// chunk. A release takes a slow system call, so avoid many releases in one turn.
    pub fn release_one(&mut self) -> bool {
        self.releasable.pop().is_some()
    }

    /// Returns the item of a key, or `None` if the item has been removed.
    pub fn get(&self, key: Key<T>) -> Option<&T> {
        self.count_visit();
        let (number, slot) = locate::<T, CHUNK_LENGTH>(key);
        self.chunks.get(number)?.get(slot)
    }

    /// The number of items of the arena.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The number of slots, used and free. The index of every key is below the number of slots.
    pub fn slots(&self) -> usize {
        self.chunks.len() * CHUNK_LENGTH
    }

    /// Counts a lookup in the arena, in debug builds only.
    fn count_visit(&self) {
        #[cfg(debug_assertions)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Every item of the arena with its key, in the order of slots. O(slots).
    pub fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            chunk
                .iter()
                .map(move |(slot, item)| (Key::from_index(number * CHUNK_LENGTH + slot), item))
        })
    }
}

/// Returns the number of a key's chunk, and the slot in that chunk.
fn locate<T, const CHUNK_LENGTH: usize>(key: Key<T>) -> (usize, usize) {
    (key.index() / CHUNK_LENGTH, key.index() % CHUNK_LENGTH)
}

impl<T, const CHUNK_LENGTH: usize> Index<Key<T>> for Arena<T, CHUNK_LENGTH> {
    type Output = T;
    /// The item of a key.
    fn index(&self, key: Key<T>) -> &T {
        self.count_visit();
        let (number, slot) = locate::<T, CHUNK_LENGTH>(key);
        &self.chunks[number][slot]
    }
}

impl<T, const CHUNK_LENGTH: usize> IndexMut<Key<T>> for Arena<T, CHUNK_LENGTH> {
    /// The item of a key.
    fn index_mut(&mut self, key: Key<T>) -> &mut T {
        self.count_visit();
        let (number, slot) = locate::<T, CHUNK_LENGTH>(key);
        &mut self.chunks[number][slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optional_key_costs_no_more_than_a_key() {
        assert_eq!(size_of::<Option<Key<String>>>(), 4);
    }

    #[test]
    fn a_key_finds_its_item_until_it_is_removed() {
        let mut arena: Arena<_> = Arena::default();
        let (one, two) = (arena.insert("one"), arena.insert("two"));
        assert_eq!((arena[one], arena[two], arena.len()), ("one", "two", 2));
        assert_eq!(arena.remove(one), "one");
        assert_eq!(arena.get(one), None);
        assert_eq!(arena.insert("three"), one, "slots are reused");
    }

    #[test]
    fn the_memory_of_empty_chunks_can_be_released() {
        for oldest_first in [true, false] {
            let mut arena: Arena<_> = Arena::default();
            let mut keys: Vec<_> = (0..5 * CHUNK_LENGTH_DEFAULT).map(|n| arena.insert(n)).collect();
            assert!(!arena.release_one());
            if oldest_first {
                keys.reverse();
            }
            for key in keys {
                arena.remove(key);
            }
            while arena.release_one() {}
            let held = arena.chunks.iter().filter(|chunk| chunk.capacity() > 0).count();
            assert_eq!((held, arena.len()), (1, 0), "oldest first: {oldest_first}");
            let key = arena.insert(7);
            assert_eq!(arena[key], 7);
            arena.remove(key);
            assert!(!arena.release_one(), "the last one stays");
        }
    }

    #[test]
    fn arenas_filled_in_step_share_their_indexes() {
        let (mut left, mut right): (Arena<_>, Arena<_>) = (Arena::default(), Arena::default());
        for n in 0..5 {
            let key = left.insert(n);
            assert_eq!(key.paired(), right.insert(n.to_string()));
        }
        let removed = Key::from_index(3);
        left.remove(removed);
        right.remove(removed.paired());
        assert_eq!(left.insert(9).paired(), right.insert("9".into()));
    }
}
