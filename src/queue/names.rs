//! A hash table of the names of tubes, which grows little by little. Each new name adds one bucket,
//! and moves only the names that belong in this bucket (linear hashing, Litwin 1980).
//!
//! At a hundred thousand names, doubling a table would stop the daemon for tens of milliseconds.
//! Many small tables would be scattered over the C library's memory, so that this memory could not
//! be released to the system. Instead, one list, indexed by tube, has all names and chains;
//! `list-tubes` reads no buckets. A bucket takes four bytes. The hash is keyed with random bytes,
//! so that no client can choose names with equal hashes.
//!
//! Invariant: there is one bucket more than there are names, and a tube is in the chain of the
//! bucket that the hash of its name selects.

use std::{
    hash::{BuildHasher, RandomState},
    mem,
};

use crate::{
    collections::{Growth, Key, grow},
    queue::Tube,
};

/// The name of a tube, and its place in the table. The name is empty if no tube has this index.
#[derive(Debug, Default)]
struct Entry {
    /// 1 to 200 bytes.
    name: Box<str>,
    hash: u64,
    /// The next tube in the chain.
    next: Option<Key<Tube>>,
}

/// A map from names to tubes, and back.
#[derive(Debug)]
pub(super) struct Names {
    hasher: RandomState,
    /// The first tube of each chain.
    pub(super) buckets: Vec<Option<Key<Tube>>>,
    /// The names and their places in the table, by tube index.
    entries: Vec<Entry>,
    /// The length of all names in bytes.
    bytes: usize,
}

impl Default for Names {
    /// An empty table of the names of tubes.
    fn default() -> Self {
        let (hasher, entries) = (RandomState::new(), Vec::new());
        Self { hasher, buckets: vec![None], entries, bytes: 0 }
    }
}

impl Names {
    /// Finds the tube of this name in the table. O(1) on average.
    pub(super) fn find(&self, name: &str) -> Option<Key<Tube>> {
        let hash = self.hasher.hash_one(name);
        let mut at = self.buckets[self.bucket_of(hash)];
        while let Some(key) = at {
            let entry = &self.entries[key.index()];
            if entry.hash == hash && *entry.name == *name {
                break;
            }
            at = entry.next;
        }
        at
    }

    /// The name of a tube in the table; empty if the tube does not exist any more.
    pub(super) fn name(&self, tube: Key<Tube>) -> &str {
        &self.entries[tube.index()].name
    }

    /// Makes room for one more name in the table. O(1), unless a list must be reallocated.
    pub(super) fn make_room(&mut self) -> Growth {
        let (buckets, entries) = (self.buckets.len() + 1, self.entries.len() + 1);
        grow(&mut self.buckets, buckets)?;
        grow(&mut self.entries, entries)
    }

    /// Adds to the table the name of a tube, which must not be in the table yet. O(1) on average.
    pub(super) fn insert(&mut self, tube: Key<Tube>, name: &str) {
        if self.entries.len() <= tube.index() {
            self.entries.resize_with(tube.index() + 1, Entry::default);
        }
        let hash = self.hasher.hash_one(name);
        self.entries[tube.index()] = Entry { name: name.into(), hash, next: None };
        self.bytes += name.len();
        let added = self.buckets.len();
        self.buckets.push(None);
        let chain = self.buckets[added - (1 << added.ilog2())].take();
        self.add_chain(chain, None);
        self.add(tube);
    }

    /// Removes the name of a tube from the table. O(1) on average.
    pub(super) fn remove(&mut self, tube: Key<Tube>) {
        let bucket = self.bucket_of(self.entries[tube.index()].hash);
        let chain = self.buckets[bucket].take();
        self.add_chain(chain, Some(tube));
        let chain = self.buckets.pop().expect("there is a bucket for each name");
        self.add_chain(chain, None);
        self.bytes -= mem::take(&mut self.entries[tube.index()]).name.len();
    }

    /// The length of all names in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bucket of a hash. If there are 2^n buckets, the last n bits of the hash are the index.
    /// If there are more buckets, up to 2^(n+1), the last n+1 bits are the index, or the last n
    /// bits if no bucket has that index.
    fn bucket_of(&self, hash: u64) -> usize {
        let mask = self.buckets.len().next_power_of_two() - 1;
        let hash = usize::try_from(hash & mask as u64).expect("no more than the mask");
        if hash < self.buckets.len() { hash } else { hash & (mask >> 1) }
    }

    /// Adds the tubes of a chain, except `except`, to the buckets that their hashes now select.
    fn add_chain(&mut self, mut chain: Option<Key<Tube>>, except: Option<Key<Tube>>) {
        while let Some(tube) = chain {
            chain = self.entries[tube.index()].next;
            if Some(tube) != except {
                self.add(tube);
            }
        }
    }

    /// Adds a tube to the chain of its bucket.
    fn add(&mut self, tube: Key<Tube>) {
        let bucket = self.bucket_of(self.entries[tube.index()].hash);
        self.entries[tube.index()].next = self.buckets[bucket].replace(tube);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// If a name were lost, no client could reach its tube, or two tubes could have this name.
        #[test]
        fn they_agree_with_a_map(
            operations in prop::collection::vec((any::<bool>(), 0..200u8), 0..600),
        ) {
            let mut names = Names::default();
            let mut model: HashMap<String, Key<Tube>> = HashMap::new();
            for (inserts, number) in operations {
                let (name, key) = (number.to_string(), Key::from_index(number.into()));
                prop_assert_eq!(names.find(&name), model.get(&name).copied());
                if model.remove(&name).is_some() {
                    prop_assert_eq!(names.name(key), name);
                    names.remove(key);
                } else if inserts {
                    names.insert(key, &name);
                    model.insert(name, key);
                }
                prop_assert_eq!(names.buckets.len(), model.len() + 1);
                prop_assert_eq!(names.bytes(), model.keys().map(String::len).sum::<usize>());
            }
            for (name, key) in &model {
                prop_assert_eq!(names.find(name), Some(*key));
            }
        }
    }

    /// Linear hashing is used so that an insertion moves only one chain, and all chains are short.
    #[test]
    fn no_name_moves_many_others() {
        let mut names = Names::default();
        for number in 0..20_000 {
            let split = names.buckets.len() - (1 << names.buckets.len().ilog2());
            let chain = std::iter::successors(names.buckets[split], |tube| {
                names.entries[tube.index()].next
            });
            assert!(chain.count() < 25, "at name {number}");
            names.insert(Key::from_index(number), &number.to_string());
        }
    }
}
