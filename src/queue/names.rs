//! The names of tubes.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    rc::Rc,
};

use crate::{
    collections::Key,
    memory::{self, MemoryBudget, Need, OutOfMemory},
    queue::Tube,
};

/// How many tables there are. A single table of a million names would stop the daemon for hundreds
/// of milliseconds when it grows; each of these stops it for less than one.
const TABLES: u64 = 1024;

/// Bytes of an entry, with its share of unused ones.
const ENTRY_BYTES: usize = 32;

/// Bytes of a name beside its text: two counts, and the overhead of the allocator.
const NAME_OVERHEAD_BYTES: usize = 40;

type Table = HashMap<Rc<str>, Key<Tube>>;

/// A map from name to tube: many small hash tables, one of which a hash of the name selects.
/// Clients choose the names, so the hashes are keyed with random bytes.
#[derive(Debug)]
pub(super) struct Names {
    tables: Box<[Table]>,
    hasher: RandomState,
}

impl Default for Names {
    fn default() -> Self {
        let tables = (0..TABLES).map(|_| Table::default()).collect();
        Self { tables, hasher: RandomState::new() }
    }
}

impl Names {
    fn table_of(&self, name: &str) -> usize {
        let table = self.hasher.hash_one(name) % TABLES;
        usize::try_from(table).expect("there are few tables")
    }

    /// The tube of this name. O(1).
    pub(super) fn find(&self, name: &str) -> Option<Key<Tube>> {
        self.tables[self.table_of(name)].get(name).copied()
    }

    /// Ensures memory for one more name. O(1), unless its table grows.
    pub(super) fn ensure_memory(
        &mut self,
        name: &str,
        budget: &mut MemoryBudget,
    ) -> memory::Result {
        budget.take(Need::Storage, name.len() + NAME_OVERHEAD_BYTES)?;
        let table = &mut self.tables[self.table_of(name)];
        if table.len() == table.capacity() {
            budget.take(Need::Storage, (2 * table.len()).max(4) * ENTRY_BYTES)?;
            table.try_reserve(1).map_err(|_| OutOfMemory)?;
        }
        Ok(())
    }

    /// Adds a name that is not there.
    pub(super) fn insert(&mut self, name: Rc<str>, tube: Key<Tube>) {
        let table = self.table_of(&name);
        self.tables[table].insert(name, tube);
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, name: &str) {
        let table = &mut self.tables[self.table_of(name)];
        table.remove(name);
        if table.is_empty() {
            table.shrink_to_fit();
        }
    }

    /// The number of names. For checks.
    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(HashMap::len).sum()
    }
}
