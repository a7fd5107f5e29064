//! A map from job id to key, in pages of 32 ids.
//!
//! A page has the keys of 32 neighbouring ids, four bytes each, and a directory has 1,024
//! neighbouring pages, that is, 32,768 ids. A tree has an entry for each directory. Unlike a hash
//! map, this map never moves all entries at once when it grows or shrinks.
//!
//! A page for a single id would waste memory. So if a page has one id left, this id moves to a
//! second tree, and the page is removed. A directory is removed with its last page. The page of the
//! latest insertion stays even with fewer ids, because otherwise a mostly empty queue would
//! allocate a page for each job. Invariant: the field `used` is the number of entries of a page or
//! directory. Only the page of the latest insertion may have fewer than two ids. Only the directory
//! for this latest insertion may have no page.

use std::{collections::BTreeMap, mem};

use super::{Arena, Growth, Key};

const PAGE_IDS: usize = 32;
const DIRECTORY_PAGES: usize = 1024;

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
    /// The number of the page of the latest insertion.
    latest: u64,
    /// The keys of the ids for which there is no page.
    single: BTreeMap<u64, Key<T>>,
    /// The pages, in chunks of about a quarter of a MiB.
    pages: Arena<Page<T>, 2048>,
}

impl<T> Default for IdMap<T> {
    /// An empty map.
    fn default() -> Self {
        Self {
            directories: BTreeMap::new(),
            latest: 0,
            single: BTreeMap::new(),
            pages: Arena::default(),
        }
    }
}

/// Returns the number of an id's page, and the id's slot in that page.
fn locate(id: u64) -> (u64, usize) {
    (id / PAGE_IDS as u64, remainder(id, PAGE_IDS))
}

/// Returns the number of a page's directory, and the page's slot in that directory.
fn locate_page(page: u64) -> (u64, usize) {
    (page / DIRECTORY_PAGES as u64, remainder(page, DIRECTORY_PAGES))
}

/// The slot of an id in its page, or of a page in its directory.
fn remainder(number: u64, size: usize) -> usize {
    usize::try_from(number % size as u64).expect("a remainder is below an usize")
}

impl<T> IdMap<T> {
    /// Returns the key of `id` in the map.
    pub fn get(&self, id: u64) -> Option<Key<T>> {
        let (number, slot) = locate(id);
        let (directory, at) = locate_page(number);
        let page = self.directories.get(&directory).and_then(|directory| directory.pages[at]);
        page.and_then(|page| self.pages[page].keys[slot]).or_else(|| self.single.get(&id).copied())
    }

    /// Makes room for another key in the map, or fails if there is no memory. O(1).
    pub fn make_room(&mut self) -> Growth {
        self.pages.make_room()
    }

    /// Adds to the map a key for an id that has no key yet.
    pub fn insert(&mut self, id: u64, key: Key<T>) {
        let (number, slot) = locate(id);
        if self.latest != number {
            let before = mem::replace(&mut self.latest, number);
            self.thin(before);
        }
        let (directory, at) = locate_page(number);
        let new = || Box::new(Directory { used: 0, pages: [None; DIRECTORY_PAGES] });
        let directory = self.directories.entry(directory).or_insert_with(new);
        let page = directory.pages[at].get_or_insert_with(|| {
            directory.used += 1;
            self.pages.insert(Page { used: 0, keys: [None; PAGE_IDS] })
        });
        let page = &mut self.pages[*page];
        let old = page.keys[slot].replace(key);
        assert!(old.is_none(), "an id is given out once");
        page.used += 1;
    }

    /// Removes an id from the map and returns its key.
    pub fn remove(&mut self, id: u64) -> Option<Key<T>> {
        let (number, slot) = locate(id);
        let (directory, at) = locate_page(number);
        let page = self.directories.get(&directory).and_then(|directory| directory.pages[at]);
        let Some(key) = page.and_then(|page| self.pages[page].keys[slot]) else {
            return self.single.remove(&id);
        };
        let page = &mut self.pages[page?];
        page.keys[slot] = None;
        page.used -= 1;
        if page.used < 2 && number != self.latest {
            self.thin(number);
        }
        Some(key)
    }

    /// Removes a page if it has fewer than two ids, and then its directory if that is empty.
    fn thin(&mut self, number: u64) {
        let (directory_number, at) = locate_page(number);
        let Some(directory) = self.directories.get_mut(&directory_number) else { return };
        let Some(page) = directory.pages[at].filter(|&page| self.pages[page].used < 2) else {
            return;
        };
        let page = self.pages.remove(page);
        if let Some(slot) = page.keys.iter().position(Option::is_some) {
            let key = page.keys[slot].expect("it is used");
            self.single.insert(number * PAGE_IDS as u64 + slot as u64, key);
        }
        directory.pages[at] = None;
        directory.used -= 1;
        if directory.used == 0 && directory_number != locate_page(self.latest).0 {
            self.directories.remove(&directory_number);
        }
    }

    /// Releases memory of removed pages to the system: see [`Arena::release_one`].
    pub fn release_one(&mut self) -> bool {
        self.pages.release_one()
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

    /// If an id without neighbours kept its page, this id would take the memory of 32 ids.
    #[test]
    fn an_id_without_neighbours_takes_no_page() {
        let mut map: IdMap<()> = IdMap::default();
        for id in 0..100_000_u64 {
            map.insert(id, Key::from_index(7));
            if id % 32 > 0 {
                map.remove(id);
            }
        }
        assert_eq!((map.pages.len(), map.directories.len(), map.single.len()), (1, 1, 3124));
        assert!((0..100_000).step_by(32).all(|id| map.get(id).is_some()));
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
            prop_assert!(map.single.is_empty() && map.pages.len() <= 1, "an empty map has a page");
            let latest = locate_page(map.latest).0;
            prop_assert!(map.directories.keys().all(|&number| number == latest));
        }
    }
}
