//! From job id to key, in pages of 256 ids.
//!
//! Ids are given out one after the other, so a page serves 256 neighbours, four bytes each, and a
//! directory 1,024 neighbouring pages. What is left to search is a tree with an entry for each
//! 262,144 ids. Nothing here is ever moved at once when it grows or shrinks, as a hash map would
//! be. A page goes when its last id does, and a directory with its last page; but the directory
//! that was entered last stays, or a queue that is mostly empty would have a new one for each job.
//! Invariant: `used` counts what is in one, and no page is empty, nor any other directory.

use std::{collections::BTreeMap, mem};

use super::{Arena, Key};
use crate::memory::{MemoryBudget, Need, OutOfMemory};

const PAGE: usize = 256;
const DIRECTORY: usize = 1024;

/// What a directory takes in bytes, with its part of the tree at worst.
const DIRECTORY_BYTES: usize = size_of::<Directory<()>>() + 512;

#[derive(Debug)]
struct Page<T> {
    used: u16,
    keys: [Option<Key<T>>; PAGE],
}

#[derive(Debug)]
struct Directory<T> {
    used: u16,
    pages: [Option<Key<Page<T>>>; DIRECTORY],
}

/// A map from `u64` ids, most of them close together, to keys.
#[derive(Debug)]
pub struct IdMap<T> {
    directories: BTreeMap<u64, Box<Directory<T>>>,
    /// The number of the directory that was entered last.
    entered: u64,
    /// A quarter of a MiB in each chunk.
    held: Arena<Page<T>, 256>,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        Self { directories: BTreeMap::new(), entered: 0, held: Arena::default() }
    }
}

/// Of an id: its directory, its page there, its slot there.
fn place(id: u64) -> (u64, usize, usize) {
    let within = |id: u64, size: usize| {
        usize::try_from(id % size as u64).expect("a remainder is below an usize")
    };
    let page = id / PAGE as u64;
    (page / DIRECTORY as u64, within(page, DIRECTORY), within(id, PAGE))
}

impl<T> IdMap<T> {
    /// The key under `id`.
    pub fn get(&self, id: u64) -> Option<Key<T>> {
        let (directory, page, slot) = place(id);
        let page = self.directories.get(&directory)?.pages[page]?;
        self.held[page].keys[slot]
    }

    /// Makes sure that a key under `id` finds memory. Fails if there is none. O(1), or O(log n) for
    /// an id that is far from the one before.
    pub fn ensure_memory(&mut self, id: u64, budget: &mut MemoryBudget) -> Result<(), OutOfMemory> {
        let (number, ..) = place(id);
        let is_there = (number == self.entered && !self.directories.is_empty())
            || self.directories.contains_key(&number);
        if !is_there {
            budget.take(Need::Storage, DIRECTORY_BYTES)?;
        }
        self.held.ensure_memory(Need::Storage, budget)
    }

    /// Notes a key under an id that has none.
    pub fn insert(&mut self, id: u64, key: Key<T>) {
        let (number, page, slot) = place(id);
        if self.entered != number {
            let before = mem::replace(&mut self.entered, number);
            if self.directories.get(&before).is_some_and(|directory| directory.used == 0) {
                self.directories.remove(&before);
            }
        }
        let new = || Box::new(Directory { used: 0, pages: [None; DIRECTORY] });
        let directory = self.directories.entry(number).or_insert_with(new);
        let page = directory.pages[page].get_or_insert_with(|| {
            directory.used += 1;
            self.held.insert(Page { used: 0, keys: [None; PAGE] })
        });
        let page = &mut self.held[*page];
        let old = page.keys[slot].replace(key);
        assert!(old.is_none(), "an id is given out once");
        page.used += 1;
    }

    /// Forgets an id, its page with the last one, and its directory with the last page.
    pub fn remove(&mut self, id: u64) -> Option<Key<T>> {
        let (number, at, slot) = place(id);
        let directory = self.directories.get_mut(&number)?;
        let of_page = directory.pages[at]?;
        let page = &mut self.held[of_page];
        let key = page.keys[slot].take()?;
        page.used -= 1;
        if page.used == 0 {
            self.held.remove(of_page);
            directory.pages[at] = None;
            directory.used -= 1;
            if directory.used == 0 && number != self.entered {
                self.directories.remove(&number);
            }
        }
        Some(key)
    }

    /// See [`Arena::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.held.release_one()
    }

    /// See [`Arena::has_releasable`].
    pub fn has_releasable(&self) -> bool {
        self.held.has_releasable()
    }

    /// How many pages are held.
    pub fn pages(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn ids() -> impl Strategy<Value = u64> {
        prop_oneof![0..1000u64, 261_900..262_400u64, u64::MAX - 300..=u64::MAX, any::<u64>()]
    }

    proptest! {
        /// A lost id would be a job that nobody can delete.
        #[test]
        fn agrees_with_a_map(acts in prop::collection::vec((any::<bool>(), ids()), 0..300)) {
            let mut pages: IdMap<()> = IdMap::default();
            let mut model = HashMap::new();
            for (number, (insert, id)) in acts.into_iter().enumerate() {
                if insert && !model.contains_key(&id) {
                    model.insert(id, Key::from_index(number));
                    pages.insert(id, Key::from_index(number));
                } else {
                    prop_assert_eq!(pages.remove(id), model.remove(&id));
                }
                prop_assert_eq!(pages.get(id), model.get(&id).copied());
            }
            for (id, key) in &model {
                prop_assert_eq!(pages.get(*id), Some(*key));
            }
            for id in model.into_keys() {
                pages.remove(id);
            }
            prop_assert_eq!(pages.pages(), 0, "an empty map holds no pages");
            prop_assert!(pages.directories.keys().all(|&number| number == pages.entered));
        }
    }
}
