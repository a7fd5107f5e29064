//! A binary heap whose items know where they are, so that any of them can leave in O(log n).
//!
//! The sort key stands beside the item's key in one entry: a sift compares neighbours in one
//! array and visits no item. Each move is reported to a closure, which notes the new position in
//! the item. Invariant: no entry is smaller than its parent, and the last position reported for
//! an item is where its entry stands.
//!
//! Keys must be distinct for a total order; every caller ends its key in something unique.

use super::Key;
use crate::memory::{MemoryBudget, Need, OutOfMemory};

#[derive(Debug)]
struct Entry<K, T> {
    key: K,
    item: Key<T>,
}

// Derived impls would demand the same of `T`.
impl<K: Copy, T> Clone for Entry<K, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Copy, T> Copy for Entry<K, T> {}

/// How many entries of memory are given back at once, at most: with 20 bytes each, a megabyte.
const SHRINK_STEP_ITEMS: usize = 1 << 16;

/// A min-heap of `T`s by `K`.
#[derive(Debug)]
pub struct Heap<K, T> {
    entries: Vec<Entry<K, T>>,
    /// Memory is kept for so many items, be they in or not.
    min_capacity: usize,
}

impl<K, T> Default for Heap<K, T> {
    fn default() -> Self {
        Self { entries: Vec::new(), min_capacity: 0 }
    }
}

impl<K: Ord + Copy, T> Heap<K, T> {
    /// The smallest key and its item.
    pub fn peek(&self) -> Option<(K, Key<T>)> {
        self.entries.first().map(|entry| (entry.key, entry.item))
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes sure that one more item than are in, or are kept room for, finds memory. Fails where
    /// there is none. O(1), unless the heap must move.
    #[inline]
    pub fn ensure_memory(
        &mut self,
        need: Need,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        let count = self.min_capacity.max(self.entries.len()) + 1;
        budget.grow_vec(need, &mut self.entries, count)
    }

    /// Keeps room for so many items from now on: whoever may come in when nobody can refuse it any
    /// more. Costs nothing where [`Heap::ensure_memory`] was asked before.
    pub fn set_min_capacity(&mut self, count: usize) {
        self.min_capacity = count;
        if self.entries.capacity() < count {
            self.entries.reserve(count - self.entries.len());
        }
        self.shrink();
    }

    /// Adds an item. `moved` learns the position of each entry that moved, the new one included.
    /// O(log n).
    pub fn push(&mut self, key: K, item: Key<T>, moved: impl FnMut(Key<T>, u32)) {
        self.entries.push(Entry { key, item });
        self.sift_up(self.entries.len() - 1, moved);
    }

    /// Takes out the item at `position`; the others that move are reported. O(log n).
    pub fn remove(&mut self, position: u32, moved: impl FnMut(Key<T>, u32)) -> Key<T> {
        let position = position as usize;
        let removed = self.entries.swap_remove(position);
        if position < self.entries.len() {
            self.sift(position, moved);
        }
        self.shrink();
        removed.item
    }

    /// Gives the item at `position` another key; all moves are reported. O(log n).
    pub fn update(&mut self, position: u32, key: K, moved: impl FnMut(Key<T>, u32)) {
        self.entries[position as usize].key = key;
        self.sift(position as usize, moved);
    }

    /// Every item with its key, in no order worth relying on: for checks.
    pub fn iter(&self) -> impl Iterator<Item = (K, Key<T>)> {
        self.entries.iter().map(|entry| (entry.key, entry.item))
    }

    /// Panics where an entry is smaller than its parent, or where `position_of` disagrees.
    pub fn check(&self, position_of: impl Fn(Key<T>) -> u32) {
        for (position, entry) in self.entries.iter().enumerate() {
            assert!(position == 0 || self.entries[(position - 1) / 2].key <= entry.key);
            assert_eq!(position_of(entry.item) as usize, position);
        }
        assert!(self.entries.capacity() >= self.min_capacity, "room is kept");
    }

    /// Makes an array of which three quarters are unused a little shorter, at its end; so a heap
    /// that loses millions of items gives memory back in steps that nobody feels. A small one is
    /// kept, so that a heap which is now empty, now not, does not pay for it each time.
    fn shrink(&mut self) {
        let capacity = self.entries.capacity();
        if capacity > 16 && self.entries.len().max(self.min_capacity) < capacity / 4 {
            self.entries.shrink_to((capacity / 2).max(capacity.saturating_sub(SHRINK_STEP_ITEMS)));
        }
    }

    fn sift(&mut self, position: usize, moved: impl FnMut(Key<T>, u32)) {
        if position > 0 && self.entries[position].key < self.entries[(position - 1) / 2].key {
            self.sift_up(position, moved);
        } else {
            self.sift_down(position, moved);
        }
    }

    fn sift_up(&mut self, mut position: usize, mut moved: impl FnMut(Key<T>, u32)) {
        let entry = self.entries[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.entries[parent].key <= entry.key {
                break;
            }
            self.set_entry(position, self.entries[parent], &mut moved);
            position = parent;
        }
        self.set_entry(position, entry, &mut moved);
    }

    fn sift_down(&mut self, mut position: usize, mut moved: impl FnMut(Key<T>, u32)) {
        let entry = self.entries[position];
        loop {
            let left = 2 * position + 1;
            let Some(mut child) = self.entries.get(left).map(|_| left) else {
                break;
            };
            if self.entries.get(left + 1).is_some_and(|right| right.key < self.entries[left].key) {
                child = left + 1;
            }
            if entry.key <= self.entries[child].key {
                break;
            }
            self.set_entry(position, self.entries[child], &mut moved);
            position = child;
        }
        self.set_entry(position, entry, &mut moved);
    }

    fn set_entry(
        &mut self,
        position: usize,
        entry: Entry<K, T>,
        moved: &mut impl FnMut(Key<T>, u32),
    ) {
        self.entries[position] = entry;
        moved(entry.item, u32::try_from(position).expect("an arena holds fewer than 2^32 items"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Act {
        Push(u8),
        Pop,
        Remove(prop::sample::Index),
        Update(prop::sample::Index, u8),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            3 => any::<u8>().prop_map(Act::Push),
            1 => Just(Act::Pop),
            1 => any::<prop::sample::Index>().prop_map(Act::Remove),
            1 => any::<(prop::sample::Index, u8)>().prop_map(|(i, key)| Act::Update(i, key)),
        ];
        prop::collection::vec(act, 0..200)
    }

    proptest! {
        /// A heap that lost or misplaced an item would lose or reorder somebody's job.
        #[test]
        fn agrees_with_an_ordered_set(acts in acts()) {
            let mut heap: Heap<(u8, usize), ()> = Heap::default();
            let mut positions: Vec<u32> = Vec::new();
            let mut model: BTreeSet<(u8, usize)> = BTreeSet::new();
            for act in acts {
                match act {
                    Act::Push(key) => {
                        let item = positions.len();
                        positions.push(u32::MAX);
                        model.insert((key, item));
                        heap.push((key, item), Key::from_index(item), |i, p| {
                            positions[i.index()] = p;
                        });
                    }
                    Act::Pop if !model.is_empty() => {
                        let smallest = model.pop_first().map(|(_, item)| item);
                        let item = heap.remove(0, |i, p| positions[i.index()] = p);
                        prop_assert_eq!(Some(item.index()), smallest);
                    }
                    Act::Remove(index) if !model.is_empty() => {
                        let chosen = *index.get(&model.iter().copied().collect::<Vec<_>>());
                        model.remove(&chosen);
                        let position = positions[chosen.1];
                        let item = heap.remove(position, |i, p| positions[i.index()] = p);
                        prop_assert_eq!(item.index(), chosen.1);
                    }
                    Act::Update(index, key) if !model.is_empty() => {
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
            }
        }
    }
}
