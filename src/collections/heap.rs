//! A binary heap whose items know their positions, so that any item can be removed in O(log n).
//!
//! An entry has a sort key and the key of an item. So the heap compares only the entries of one
//! array, and looks up no item. The heap reports each move of an entry to a closure, which stores
//! the new position in the item. Invariant: no entry is smaller than its parent, and the position
//! last reported for an item is the position of its entry.
//!
//! Sort keys must be distinct: every caller ends a sort key with a unique id or key, so the order
//! of the entries is total.

use std::{cmp::Reverse, collections::BinaryHeap, mem::MaybeUninit};

use super::{
    Growth, Key,
    growth::{grow, next_capacity},
};

/// One shrink reduces the capacity by at most this many entries: 1.3 MB at 20 bytes each.
const SHRINK_STEP_ITEMS: usize = 1 << 16;

/// The C library adds at most this many bytes of its own to a small allocation.
const MALLOC_OVERHEAD_BYTES: usize = 16;

/// A heap of keys that name items `T` of an arena. Each item has a sort key `K`; the smallest sort
/// key is on top.
#[derive(Debug)]
pub struct Heap<K, T> {
    pub(super) entries: Vec<(K, Key<T>)>,
    /// The capacity never falls below this number of entries, even if there are fewer items.
    pub(super) min_capacity: usize,
}

impl<K, T> Default for Heap<K, T> {
    /// An empty heap.
    fn default() -> Self {
        Self { entries: Vec::new(), min_capacity: 0 }
    }
}

impl<K: Ord + Copy, T> Heap<K, T> {
    /// Returns the smallest sort key of the heap, and the key of its item.
    pub fn peek(&self) -> Option<(K, Key<T>)> {
        self.entries.first().copied()
    }

    /// The number of items of the heap.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the heap is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns how many bytes [`Heap::make_room`] would allocate.
    pub fn growth_bytes(&self) -> usize {
        let capacity = self.entries.capacity();
        let next = next_capacity::<(K, Key<T>)>(capacity, self.next_count());
        if next > capacity { next * size_of::<(K, Key<T>)>() + MALLOC_OVERHEAD_BYTES } else { 0 }
    }

    /// Returns the number of items for which [`Heap::make_room`] ensures memory.
    fn next_count(&self) -> usize {
        self.min_capacity.max(self.entries.len()) + 1
    }

    /// Makes the capacity exceed both the number of items and the minimum capacity: see
    /// [`Heap::set_min_capacity`]. Fails if there is no memory. O(1), unless the heap is
    /// reallocated.
    ///
    /// Memory becomes resident only when it is first written to. If `is_resident`, new memory is
    /// written to at once, because a later change that adds items cannot be refused.
    #[inline]
    pub fn make_room(&mut self, is_resident: bool) -> Growth {
        let count = self.next_count();
        let unused = self.entries.capacity() - self.entries.len();
        grow(&mut self.entries, count)?;
        if is_resident {
            self.entries.spare_capacity_mut()[unused..].fill_with(MaybeUninit::zeroed);
        }
        Ok(())
    }

    /// Keeps memory for `count` items from now on, because the changes that add items cannot be
    /// refused. Allocates nothing if [`Heap::make_room`] was called before.
    pub fn set_min_capacity(&mut self, count: usize) {
        self.min_capacity = count;
        if self.entries.capacity() < count {
            self.entries.reserve(count - self.entries.len());
        }
        self.shrink();
    }

    /// Adds an item to the heap. Calls `moved` for the new entry, and for each entry that moves.
    /// O(log n).
    pub fn push(&mut self, key: K, item: Key<T>, moved: impl FnMut(Key<T>, u32)) {
        self.entries.push((key, item));
        self.sift_up(self.entries.len() - 1, (key, item), moved);
    }

    /// Removes the item at `position`, and calls `moved` for each entry that moves. O(log n).
    pub fn remove(&mut self, position: u32, moved: impl FnMut(Key<T>, u32)) -> Key<T> {
        let position = position as usize;
        let (_, removed) = self.entries.swap_remove(position);
        if position < self.entries.len() {
            self.sift(position, moved);
        }
        self.shrink();
        removed
    }

    /// Changes the sort key of an item, and calls `moved` for each entry that moves. O(log n).
    pub fn update(&mut self, position: u32, key: K, moved: impl FnMut(Key<T>, u32)) {
        self.entries[position as usize].0 = key;
        self.sift(position as usize, moved);
    }

    /// Returns the sort key and the item of the entry at `position` of the array.
    pub fn at(&self, position: usize) -> Option<(K, Key<T>)> {
        self.entries.get(position).copied()
    }

    /// Returns the `count` items with the smallest sort keys, in order. O(count log count) for any
    /// size of the heap.
    pub fn first(&self, count: usize) -> Vec<Key<T>> {
        let count = count.min(self.entries.len());
        let mut found = Vec::with_capacity(count);
        // The next smallest item is the root, or a child of an entry already found.
        let mut candidates = BinaryHeap::with_capacity(count + 2);
        candidates.extend(self.entries.first().map(|&(key, _)| Reverse((key, 0))));
        while found.len() < count {
            let Some(Reverse((_, position))) = candidates.pop() else { break };
            found.push(self.entries[position].1);
            for child in [2 * position + 1, 2 * position + 2] {
                candidates.extend(self.entries.get(child).map(|&(key, _)| Reverse((key, child))));
            }
        }
        found
    }

    /// Every item of the heap with its sort key, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (K, Key<T>)> {
        self.entries.iter().copied()
    }

    /// If three quarters of the capacity are unused, reduces the capacity by at most
    /// [`SHRINK_STEP_ITEMS`]. So a heap that loses millions of items releases memory little by
    /// little. A small array keeps its capacity, so that a heap that is often empty does not
    /// reallocate again and again.
    fn shrink(&mut self) {
        let capacity = self.entries.capacity();
        if capacity > 16 && self.entries.len().max(self.min_capacity) < capacity / 4 {
            self.entries.shrink_to((capacity / 2).max(capacity.saturating_sub(SHRINK_STEP_ITEMS)));
        }
    }

    /// Moves the entry at `position` up or down to its place in the heap.
    fn sift(&mut self, position: usize, moved: impl FnMut(Key<T>, u32)) {
        if position > 0 && self.entries[position].0 < self.entries[(position - 1) / 2].0 {
            self.sift_up(position, self.entries[position], moved);
        } else {
            self.sift_down(position, moved);
        }
    }

    /// Moves the entry at `position` up. The caller passes the entry, because reading an entry that
    /// was just pushed would stall the processor.
    fn sift_up(
        &mut self,
        mut position: usize,
        entry @ (key, _): (K, Key<T>),
        mut moved: impl FnMut(Key<T>, u32),
    ) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.entries[parent].0 <= key {
                break;
            }
            self.set_entry(position, self.entries[parent], &mut moved);
            position = parent;
        }
        self.set_entry(position, entry, &mut moved);
    }

    /// Moves the entry at `position` down.
    fn sift_down(&mut self, mut position: usize, mut moved: impl FnMut(Key<T>, u32)) {
        let entry @ (key, _) = self.entries[position];
        loop {
            let left = 2 * position + 1;
            let Some(mut child) = self.entries.get(left).map(|_| left) else {
                break;
            };
            if self.entries.get(left + 1).is_some_and(|right| right.0 < self.entries[left].0) {
                child = left + 1;
            }
            if key <= self.entries[child].0 {
                break;
            }
            self.set_entry(position, self.entries[child], &mut moved);
            position = child;
        }
        self.set_entry(position, entry, &mut moved);
    }

    /// Stores an entry at `position` of the heap, and calls `moved`.
    fn set_entry(
        &mut self,
        position: usize,
        entry: (K, Key<T>),
        moved: &mut impl FnMut(Key<T>, u32),
    ) {
        self.entries[position] = entry;
        moved(entry.1, u32::try_from(position).expect("an arena holds fewer than 2^32 items"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Operation {
        Push(u8),
        Pop,
        Remove(prop::sample::Index),
        Update(prop::sample::Index, u8),
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = prop_oneof![
            3 => any::<u8>().prop_map(Operation::Push),
            1 => Just(Operation::Pop),
            1 => any::<prop::sample::Index>().prop_map(Operation::Remove),
            1 => any::<(prop::sample::Index, u8)>().prop_map(|(i, key)| Operation::Update(i, key)),
        ];
        prop::collection::vec(operation, 0..200)
    }

    proptest! {
        /// If the heap lost or misplaced an item, a job would be lost or handed out in the wrong
        /// order.
        #[test]
        fn agrees_with_an_ordered_set(operations in operations()) {
            let mut heap: Heap<(u8, usize), ()> = Heap::default();
            let mut positions: Vec<u32> = Vec::new();
            let mut model: BTreeSet<(u8, usize)> = BTreeSet::new();
            for operation in operations {
                match operation {
                    Operation::Push(key) => {
                        let item = positions.len();
                        positions.push(u32::MAX);
                        model.insert((key, item));
                        heap.push((key, item), Key::from_index(item), |i, p| {
                            positions[i.index()] = p;
                        });
                    }
                    Operation::Pop if !model.is_empty() => {
                        let smallest = model.pop_first().map(|(_, item)| item);
                        let item = heap.remove(0, |i, p| positions[i.index()] = p);
                        prop_assert_eq!(Some(item.index()), smallest);
                    }
                    Operation::Remove(index) if !model.is_empty() => {
                        let chosen = *index.get(&model.iter().copied().collect::<Vec<_>>());
                        model.remove(&chosen);
                        let position = positions[chosen.1];
                        let item = heap.remove(position, |i, p| positions[i.index()] = p);
                        prop_assert_eq!(item.index(), chosen.1);
                    }
                    Operation::Update(index, key) if !model.is_empty() => {
                        let chosen = *index.get(&model.iter().copied().collect::<Vec<_>>());
                        model.remove(&chosen);
                        model.insert((key, chosen.1));
                        let position = positions[chosen.1];
                        heap.update(position, (key, chosen.1), |i, p| positions[i.index()] = p);
                    }
                    _ => {}
                }
                heap.check(|item| positions[item.index()]);
                prop_assert_eq!(heap.peek().map(|(key, _)| key), model.first().copied());
                prop_assert_eq!(heap.len(), model.len());
                for count in [0, 1, 5, model.len() + 1] {
                    let first: Vec<_> = heap.first(count).into_iter().map(Key::index).collect();
                    let wanted: Vec<_> = model.iter().take(count).map(|&(_, it)| it).collect();
                    prop_assert_eq!(first, wanted);
                }
            }
        }
    }
}
