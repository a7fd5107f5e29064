//! From job id to key, in pages of 256 ids.
//!
//! Ids are given out one after the other, so a page serves 256 neighbours: one map entry for all
//! of them, four bytes each. The map of pages is 256 times smaller than a map of jobs, which
//! makes its growth too short to be felt, and its hasher can be trivial, since nobody outside
//! chooses ids. A page goes when its last id does. Invariant: `used` counts the keys in a page,
//! and no page is empty.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::{Arena, Key};

const PAGE: usize = 256;

#[derive(Debug)]
struct Page<T> {
    used: u16,
    keys: [Option<Key<T>>; PAGE],
}

/// Spreads page numbers over a hash map: one multiplication by 2^64 divided by the golden ratio,
/// and the well-mixed high half brought down to where the map looks.
#[derive(Debug, Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("page numbers are hashed as u64");
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

/// A map from `u64` ids, most of them close together, to keys.
#[derive(Debug)]
pub struct Pages<T> {
    numbers: HashMap<u64, Key<Page<T>>, BuildHasherDefault<PageHasher>>,
    pages: Arena<Page<T>>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { numbers: HashMap::default(), pages: Arena::default() }
    }
}

fn place(id: u64) -> (u64, usize) {
    (id / PAGE as u64, usize::try_from(id % PAGE as u64).expect("a remainder below 256"))
}

impl<T> Pages<T> {
    /// The key under `id`.
    pub fn get(&self, id: u64) -> Option<Key<T>> {
        let (number, slot) = place(id);
        self.pages[*self.numbers.get(&number)?].keys[slot]
    }

    /// Notes a key under an id that has none.
    pub fn insert(&mut self, id: u64, key: Key<T>) {
        let (number, slot) = place(id);
        let page = self
            .numbers
            .entry(number)
            .or_insert_with(|| self.pages.insert(Page { used: 0, keys: [None; PAGE] }));
        let page = &mut self.pages[*page];
        let old = page.keys[slot].replace(key);
        assert!(old.is_none(), "an id is given out once");
        page.used += 1;
    }

    /// Forgets an id, and its page with the last one.
    pub fn remove(&mut self, id: u64) -> Option<Key<T>> {
        let (number, slot) = place(id);
        let of_page = *self.numbers.get(&number)?;
        let page = &mut self.pages[of_page];
        let key = page.keys[slot].take()?;
        page.used -= 1;
        if page.used == 0 {
            self.pages.remove(of_page);
            self.numbers.remove(&number);
        }
        Some(key)
    }

    /// See [`Arena::free_spent`].
    pub fn free_spent(&mut self) -> bool {
        self.pages.free_spent()
    }

    /// See [`Arena::has_spent`].
    pub fn has_spent(&self) -> bool {
        self.pages.has_spent()
    }

    /// How many pages are held.
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
        prop_oneof![0..1000u64, u64::MAX - 300..=u64::MAX, any::<u64>()]
    }

    proptest! {
        /// A lost id would be a job that nobody can delete.
        #[test]
        fn agrees_with_a_map(acts in prop::collection::vec((any::<bool>(), ids()), 0..300)) {
            let mut pages: Pages<()> = Pages::default();
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
        }
    }
}
