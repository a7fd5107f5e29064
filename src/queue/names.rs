//! The names of tubes: a hash table that grows without a pause. Each new name adds one bucket, and
//! moves only the names that belong there (linear hashing, Litwin 1980).
//!
//! At a hundred thousand names, doubling a table would stop the daemon for tens of milliseconds.
//! Many small tables would avoid that, but would lie among other memory of the C library, and keep
//! that memory from being released. Here, names and chains are stored in the tubes; a bucket takes
//! four bytes. Clients choose the names, so the hash is keyed with random bytes.
//!
//! Invariant: there is one bucket more than there are names, and a tube is in the chain of the
//! bucket that its hash selects.

use std::hash::{BuildHasher, RandomState};

use crate::{
    collections::{Growth, Key, SmallArena, grow},
    queue::Tube,
};

/// The table's part of a tube.
#[derive(Debug, Default)]
pub(super) struct Link {
    hash: u64,
    /// The next tube in the chain.
    next: Option<Key<Tube>>,
}

/// A map from name to tube.
#[derive(Debug)]
pub(super) struct Names {
    hasher: RandomState,
    /// The first tube of each chain.
    pub(super) buckets: Vec<Option<Key<Tube>>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { hasher: RandomState::new(), buckets: vec![None] }
    }
}

impl Names {
    /// The tube of this name. O(1) on average.
    pub(super) fn find(&self, tubes: &SmallArena<Tube>, name: &str) -> Option<Key<Tube>> {
        let hash = self.hasher.hash_one(name);
        let mut at = self.buckets[self.bucket_of(hash)];
        while let Some(key) = at {
            let tube = &tubes[key];
            if tube.link.hash == hash && tube.name() == name {
                break;
            }
            at = tube.link.next;
        }
        at
    }

    /// Makes room for one more tube. O(1), unless the buckets are reallocated.
    pub(super) fn make_room(&mut self) -> Growth {
        let count = self.buckets.len() + 1;
        grow(&mut self.buckets, count)
    }

    /// Adds a tube with a name that no other tube has. O(1) on average.
    pub(super) fn insert(&mut self, tubes: &mut SmallArena<Tube>, key: Key<Tube>) {
        tubes[key].link.hash = self.hasher.hash_one(tubes[key].name());
        let added = self.buckets.len();
        self.buckets.push(None);
        let chain = self.buckets[added - (1 << added.ilog2())].take();
        self.add_chain(tubes, chain, None);
        self.add(tubes, key);
    }

    /// Removes a tube that is in the table. O(1) on average.
    pub(super) fn remove(&mut self, tubes: &mut SmallArena<Tube>, key: Key<Tube>) {
        let bucket = self.bucket_of(tubes[key].link.hash);
        let chain = self.buckets[bucket].take();
        self.add_chain(tubes, chain, Some(key));
        let chain = self.buckets.pop().expect("there is a bucket for each name");
        self.add_chain(tubes, chain, None);
    }

    /// The bucket of a hash. With 2^n buckets, the last n bits of the hash select it. Between 2^n
    /// and 2^(n+1), the last n+1 bits select it if that bucket exists, otherwise the last n.
    fn bucket_of(&self, hash: u64) -> usize {
        let mask = self.buckets.len().next_power_of_two() - 1;
        let hash = usize::try_from(hash & mask as u64).expect("no more than the mask");
        if hash < self.buckets.len() { hash } else { hash & (mask >> 1) }
    }

    /// Adds the tubes of a chain again, except for one.
    fn add_chain(
        &mut self,
        tubes: &mut SmallArena<Tube>,
        mut chain: Option<Key<Tube>>,
        except: Option<Key<Tube>>,
    ) {
        while let Some(key) = chain {
            chain = tubes[key].link.next;
            if Some(key) != except {
                self.add(tubes, key);
            }
        }
    }

    fn add(&mut self, tubes: &mut SmallArena<Tube>, key: Key<Tube>) {
        let bucket = self.bucket_of(tubes[key].link.hash);
        tubes[key].link.next = self.buckets[bucket].replace(key);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn add(names: &mut Names, tubes: &mut SmallArena<Tube>, name: &str) -> Key<Tube> {
        let key = tubes.insert(Tube::default());
        tubes[key].name = name.into();
        names.insert(tubes, key);
        key
    }

    proptest! {
        /// If a name were lost, no client could reach its tube, or the tube would exist twice.
        #[test]
        fn they_agree_with_a_map(
            operations in prop::collection::vec((any::<bool>(), 0..200u8), 0..600),
        ) {
            let (mut names, mut tubes) = (Names::default(), SmallArena::default());
            let mut model: HashMap<String, Key<Tube>> = HashMap::new();
            for (inserts, name) in operations {
                let name = name.to_string();
                prop_assert_eq!(names.find(&tubes, &name), model.get(&name).copied());
                if inserts && !model.contains_key(&name) {
                    let key = add(&mut names, &mut tubes, &name);
                    model.insert(name, key);
                } else if let Some(key) = model.remove(&name) {
                    names.remove(&mut tubes, key);
                    let tube = tubes.remove(key);
                    prop_assert_eq!(tube.name(), name);
                }
                prop_assert_eq!(names.buckets.len(), model.len() + 1);
            }
            for (name, key) in &model {
                prop_assert_eq!(names.find(&tubes, name), Some(*key));
            }
        }
    }

    /// The reason for linear hashing: no insertion takes long.
    #[test]
    fn no_name_moves_many_others() {
        let (mut names, mut tubes) = (Names::default(), SmallArena::default());
        for number in 0..20_000 {
            let before = tubes.visits();
            add(&mut names, &mut tubes, &number.to_string());
            assert!(tubes.visits() - before < 50, "at name {number}");
        }
    }
}
