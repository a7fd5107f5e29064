//! A map from job id to key, in pages of 32 ids.
//!
//! Ids are taken one after the other, so a page serves 32 neighbours, four bytes each, and a
//! directory 1,024 neighbouring pages. Above these is a tree with an entry for each 32,768 ids.
//! Larger pages would take more for an id whose neighbours are gone.
//! Unlike a hash map, it never moves everything at once when it grows or shrinks. A page is removed
//! with its last id, and a directory with its last page. But the directory of the latest insertion
//! stays: otherwise a queue that is mostly empty would allocate one for each job. Invariant: `used`
//! counts the entries of a page or directory. No page is empty, nor any other directory.

use std::{collections::BTreeMap, mem};

use super::{Arena, Key};
use crate::memory::{MemoryBudget, Need, OutOfMemory};

const PAGE_IDS: usize = 32;
const DIRECTORY_PAGES: usize = 1024;

/// Bytes that a directory takes, with its part of the tree at worst.
const DIRECTORY_BYTES: usize = size_of::<Directory<()>>() + 512;

#[derive(Debug)]
struct Page<T> {
    used: u16,
    keys: [Option<Key<T>>; PAGE_IDS],
}

#[derive(Debug)]
struct Directory<T> {
    used: u16,
    pages: [Option<Key<Page<T>>>; DIRECTORY_PAGES],
}

/// A map from `u64` ids, most of them close together, to keys.
#[derive(Debug)]
pub struct IdMap<T> {
    directories: BTreeMap<u64, Box<Directory<T>>>,
    /// The number of the directory of the latest insertion.
    latest: u64,
    /// The pages; a chunk of them takes a quarter of a MiB.
    pages: Arena<Page<T>, 2048>,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        Self { directories: BTreeMap::new(), latest: 0, pages: Arena::default() }
    }
}

/// The directory of an id, its page there and its slot there.
fn locate(id: u64) -> (u64, usize, usize) {
    let within = |id: u64, size: usize| {
        usize::try_from(id % size as u64).expect("a remainder is below an usize")
    };
    let page = id / PAGE_IDS as u64;
    (page / DIRECTORY_PAGES as u64, within(page, DIRECTORY_PAGES), within(id, PAGE_IDS))
}

impl<T> IdMap<T> {
    /// The key under `id`.
    pub fn get(&self, id: u64) -> Option<Key<T>> {
        let (directory, page, slot) = locate(id);
        let page = self.directories.get(&directory)?.pages[page]?;
        self.pages[page].keys[slot]
    }

    /// Ensures memory for a key under `id`. Fails if there is none. O(1), or O(log n) if `id` is
    /// far from the latest insertion.
    pub fn ensure_memory(&mut self, id: u64, budget: &mut MemoryBudget) -> Result<(), OutOfMemory> {
        let (number, ..) = locate(id);
        let is_there = (number == self.latest && !self.directories.is_empty())
            || self.directories.contains_key(&number);
        if !is_there {
            budget.take(Need::Storage, DIRECTORY_BYTES)?;
        }
        self.pages.ensure_memory(Need::Storage, budget)
    }

    /// Adds a key under an id that has none.
    pub fn insert(&mut self, id: u64, key: Key<T>) {
        let (number, page, slot) = locate(id);
        if self.latest != number {
            let before = mem::replace(&mut self.latest, number);
            if self.directories.get(&before).is_some_and(|directory| directory.used == 0) {
                self.directories.remove(&before);
            }
        }
        let new = || Box::new(Directory { used: 0, pages: [None; DIRECTORY_PAGES] });
        let directory = self.directories.entry(number).or_insert_with(new);
        let page = directory.pages[page].get_or_insert_with(|| {
            directory.used += 1;
            self.pages.insert(Page { used: 0, keys: [None; PAGE_IDS] })
        });
        let page = &mut self.pages[*page];
        let old = page.keys[slot].replace(key);
        assert!(old.is_none(), "an id is given out once");
        page.used += 1;
    }

    /// Removes an id and returns its key. A page or directory that becomes empty is removed, too.
    pub fn remove(&mut self, id: u64) -> Option<Key<T>> {
        let (number, at, slot) = locate(id);
        let directory = self.directories.get_mut(&number)?;
        let of_page = directory.pages[at]?;
        let page = &mut self.pages[of_page];
        let key = page.keys[slot].take()?;
        page.used -= 1;
        if page.used == 0 {
            self.pages.remove(of_page);
            directory.pages[at] = None;
            directory.used -= 1;
            if directory.used == 0 && number != self.latest {
                self.directories.remove(&number);
            }
        }
        Some(key)
    }

    /// See [`Arena::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.pages.release_one()
    }

    /// See [`Arena::has_releasable`].
    pub fn has_releasable(&self) -> bool {
        self.pages.has_releasable()
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn ids() -> impl Strategy<Value = u64> {
        prop_oneof![0..1000u64, 32_600..32_900u64, u64::MAX - 300..=u64::MAX, any::<u64>()]
    }

    proptest! {
        /// If an id were lost, no client could delete its job.
        #[test]
        fn agrees_with_a_map(operations in prop::collection::vec((any::<bool>(), ids()), 0..300)) {
            let mut map: IdMap<()> = IdMap::default();
            let mut model = HashMap::new();
            for (number, (insert, id)) in operations.into_iter().enumerate() {
                if insert && !model.contains_key(&id) {
                    model.insert(id, Key::from_index(number));
                    map.insert(id, Key::from_index(number));
                } else {
                    prop_assert_eq!(map.remove(id), model.remove(&id));
                }
                prop_assert_eq!(map.get(id), model.get(&id).copied());
            }
            for (id, key) in &model {
                prop_assert_eq!(map.get(*id), Some(*key));
            }
            for id in model.into_keys() {
                map.remove(id);
            }
            prop_assert_eq!(map.pages(), 0, "an empty map holds no pages");
            prop_assert!(map.directories.keys().all(|&number| number == map.latest));
        }
    }
}
