//! A map from name to key: a hash table that grows without a pause. Each new name adds one bucket
//! and moves only the names that belong there (linear hashing, Litwin 1980).
//!
//! At a hundred thousand names, doubling the table would stop the daemon for tens of milliseconds.
//! Clients choose the names, so the hash is keyed with random bytes. Names and chains are stored in
//! the items; a bucket takes four bytes.
//!
//! Invariant: there is one bucket more than there are names, and an item is in the chain of the
//! bucket that its hash selects.

use std::hash::{BuildHasher, RandomState};

use super::{Arena, Key};
use crate::memory::{self, MemoryBudget, Need};

/// The table's part of an item.
#[derive(Debug)]
pub struct Entry<T> {
    name: Box<str>,
    hash: u64,
    next: Option<Key<T>>,
}

impl<T> Entry<T> {
    /// The item's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// An item that can be found by its name.
pub trait Named: Sized {
    /// The item's entry.
    fn entry(&self) -> &Entry<Self>;
    /// The item's entry. Only the table may change it.
    fn entry_mut(&mut self) -> &mut Entry<Self>;
}

/// A map from name to key.
#[derive(Debug)]
pub struct NameTable<T> {
    hasher: RandomState,
    /// The first item of each chain.
    buckets: Vec<Option<Key<T>>>,
}

impl<T> Default for NameTable<T> {
    fn default() -> Self {
        Self { hasher: RandomState::new(), buckets: vec![None] }
    }
}

impl<T: Named> NameTable<T> {
    /// The item with this name. O(1) on average.
    pub fn find(&self, items: &Arena<T>, name: &str) -> Option<Key<T>> {
        let hash = self.hash(name);
        let mut at = self.buckets[self.bucket_of(hash)];
        while let Some(key) = at {
            let entry = items[key].entry();
            if entry.hash == hash && *entry.name == *name {
                break;
            }
            at = entry.next;
        }
        at
    }

    /// Ensures memory for one more item with this name. Fails if there is none. O(1), unless the
    /// buckets are reallocated.
    pub fn ensure_memory(&mut self, name: &str, budget: &mut MemoryBudget) -> memory::Result {
        let count = self.buckets.len() + 1;
        budget.grow_vec(Need::Storage, &mut self.buckets, count)?;
        // The name, with the overhead of the allocator.
        budget.take(Need::Storage, name.len() + 4 * size_of::<usize>())
    }

    /// Makes the entry for an item to be inserted.
    pub fn entry(&self, name: &str) -> Entry<T> {
        Entry { name: name.into(), hash: self.hash(name), next: None }
    }

    /// Adds an item. No other item may have its name. O(1) on average.
    pub fn insert(&mut self, items: &mut Arena<T>, key: Key<T>) {
        let added = self.buckets.len();
        self.buckets.push(None);
        let split = added - (1 << added.ilog2());
        let mut chain = self.buckets[split].take();
        while let Some(key) = chain {
            chain = items[key].entry().next;
            self.link(items, key);
        }
        self.link(items, key);
    }

    /// Removes an item that is in the table. O(1) on average.
    pub fn remove(&mut self, items: &mut Arena<T>, key: Key<T>) {
        self.unlink(items, key);
        let mut chain = self.buckets.pop().expect("there is a bucket for each name");
        while let Some(key) = chain {
            chain = items[key].entry().next;
            self.link(items, key);
        }
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.buckets.len() - 1
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(name)
    }

    /// The bucket of a hash. With 2^n buckets, the last n bits of the hash select it. Between 2^n
    /// and 2^(n+1), the last n+1 bits do if that bucket exists, otherwise the last n.
    fn bucket_of(&self, hash: u64) -> usize {
        let mask = self.buckets.len().next_power_of_two() - 1;
        let hash = usize::try_from(hash & mask as u64).expect("no more than the mask");
        if hash < self.buckets.len() { hash } else { hash & (mask >> 1) }
    }

    fn link(&mut self, items: &mut Arena<T>, key: Key<T>) {
        let entry = items[key].entry_mut();
        let bucket = self.bucket_of(entry.hash);
        entry.next = self.buckets[bucket].replace(key);
    }

    fn unlink(&mut self, items: &mut Arena<T>, key: Key<T>) {
        let Entry { hash, next, .. } = *items[key].entry();
        let bucket = self.bucket_of(hash);
        let mut at = self.buckets[bucket];
        if at == Some(key) {
            self.buckets[bucket] = next;
            return;
        }
        loop {
            let before = &mut items[at.expect("the item is in its chain")].entry_mut().next;
            at = *before;
            if at == Some(key) {
                *before = next;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug)]
    struct Item(Entry<Item>);

    impl Named for Item {
        fn entry(&self) -> &Entry<Self> {
            &self.0
        }
        fn entry_mut(&mut self) -> &mut Entry<Self> {
            &mut self.0
        }
    }

    proptest! {
        /// If a name were lost, no client could reach its tube, or the tube would exist twice.
        #[test]
        fn agrees_with_a_map(
            operations in prop::collection::vec((any::<bool>(), 0..200u8), 0..600),
        ) {
            let (mut names, mut items): (_, Arena<_>) = (NameTable::default(), Arena::default());
            let mut model: HashMap<String, Key<Item>> = HashMap::new();
            for (insert, name) in operations {
                let name = name.to_string();
                prop_assert_eq!(names.find(&items, &name), model.get(&name).copied());
                if insert && !model.contains_key(&name) {
                    let key = items.insert(Item(names.entry(&name)));
                    names.insert(&mut items, key);
                    model.insert(name, key);
                } else if let Some(key) = model.remove(&name) {
                    names.remove(&mut items, key);
                    let item = items.remove(key);
                    prop_assert_eq!(item.0.name(), name);
                }
                prop_assert_eq!(names.len(), model.len());
            }
            for (name, key) in &model {
                prop_assert_eq!(names.find(&items, name), Some(*key));
            }
        }
    }

    /// The reason for linear hashing: no insertion takes long.
    #[test]
    fn no_name_moves_many_others() {
        let (mut names, mut items): (_, Arena<_>) = (NameTable::default(), Arena::default());
        for number in 0..20_000 {
            let key = items.insert(Item(names.entry(&number.to_string())));
            let before = items.visits();
            names.insert(&mut items, key);
            assert!(items.visits() - before < 50, "at name {number}");
        }
    }
}
