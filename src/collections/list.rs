//! A doubly linked list by key: first in, first out, and anybody may leave from the middle in
//! O(1). The links live in the items, so a list allocates nothing.
//!
//! Invariant: walking from head to tail and back meets the same `len` items. An item is in at
//! most one list at a time; whoever calls `unlink` knows which.

use super::{Arena, Key};

/// The neighbours of an item in the list it is in; both `None` outside one.
#[derive(Debug)]
pub struct Links<T> {
    before: Option<Key<T>>,
    after: Option<Key<T>>,
}

impl<T> Default for Links<T> {
    fn default() -> Self {
        Self { before: None, after: None }
    }
}

/// An item that can stand in a [`List`].
pub trait Linked: Sized {
    /// The item's links.
    fn links(&self) -> &Links<Self>;
    /// The item's links, to change them; only lists do.
    fn links_mut(&mut self) -> &mut Links<Self>;
}

/// The two ends of a list, and its length.
#[derive(Debug)]
pub struct List<T> {
    head: Option<Key<T>>,
    tail: Option<Key<T>>,
    len: u32,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { head: None, tail: None, len: 0 }
    }
}

impl<T: Linked> List<T> {
    /// The oldest item.
    pub fn front(&self) -> Option<Key<T>> {
        self.head
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Appends an item that is in no list.
    pub fn push_back(&mut self, items: &mut Arena<T>, key: Key<T>) {
        debug_assert!(items[key].links().before.is_none() && items[key].links().after.is_none());
        items[key].links_mut().before = self.tail;
        match self.tail.replace(key) {
            Some(tail) => items[tail].links_mut().after = Some(key),
            None => self.head = Some(key),
        }
        self.len += 1;
    }

    /// Takes an item of this list out of it.
    pub fn unlink(&mut self, items: &mut Arena<T>, key: Key<T>) {
        let Links { before, after } = std::mem::take(items[key].links_mut());
        match before {
            Some(before) => items[before].links_mut().after = after,
            None => self.head = after,
        }
        match after {
            Some(after) => items[after].links_mut().before = before,
            None => self.tail = before,
        }
        self.len -= 1;
    }

    /// Brings the items into the order of their keys; equal ones stay as they are. It merges the
    /// runs that are in order already, two and two, and takes no memory. O(length · log runs).
    pub fn sort_by_key<K: Ord>(&mut self, items: &mut Arena<T>, key: impl Fn(&T) -> K) {
        loop {
            let mut rest = std::mem::take(self);
            let mut runs = 0;
            while !rest.is_empty() {
                let mut one = rest.pop_run(items, &key);
                let mut other = rest.pop_run(items, &key);
                while let (Some(first), Some(second)) = (one.head, other.head) {
                    let from = if key(&items[second]) < key(&items[first]) {
                        &mut other
                    } else {
                        &mut one
                    };
                    self.take_front(items, from);
                }
                for left in [&mut one, &mut other] {
                    while !left.is_empty() {
                        self.take_front(items, left);
                    }
                }
                runs += 1;
            }
            if runs <= 1 {
                return;
            }
        }
    }

    /// Takes the longest run off the front whose keys do not fall.
    fn pop_run<K: Ord>(&mut self, items: &mut Arena<T>, key: &impl Fn(&T) -> K) -> Self {
        let mut run = Self::default();
        while let Some(next) = self.head {
            if run.tail.is_some_and(|last| key(&items[next]) < key(&items[last])) {
                break;
            }
            run.take_front(items, self);
        }
        run
    }

    /// Appends the first item of another list, which has one.
    fn take_front(&mut self, items: &mut Arena<T>, from: &mut Self) {
        if let Some(key) = from.head {
            from.unlink(items, key);
            self.push_back(items, key);
        }
    }

    /// Walks from the oldest to the newest. O(length): for checks.
    pub fn iter<'a>(&self, items: &'a Arena<T>) -> impl Iterator<Item = Key<T>> + use<'a, T> {
        std::iter::successors(self.head, |&key| items[key].links().after)
    }

    /// Panics where links and length disagree.
    pub fn check(&self, items: &Arena<T>) {
        let mut before = None;
        let mut len = 0;
        for key in self.iter(items) {
            assert_eq!(items[key].links().before, before);
            before = Some(key);
            len += 1;
        }
        assert_eq!((before, len), (self.tail, self.len()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Default)]
    struct Item {
        links: Links<Item>,
        rank: u8,
    }

    impl Linked for Item {
        fn links(&self) -> &Links<Self> {
            &self.links
        }
        fn links_mut(&mut self) -> &mut Links<Self> {
            &mut self.links
        }
    }

    proptest! {
        #[test]
        fn is_sorted_as_a_vector_is(ranks in prop::collection::vec(0..20u8, 0..300)) {
            let (mut items, mut list): (Arena<_>, _) = (Arena::default(), List::default());
            let mut wanted = Vec::new();
            for rank in ranks {
                let key = items.insert(Item { rank, ..Item::default() });
                list.push_back(&mut items, key);
                wanted.push((rank, key));
            }
            wanted.sort_by_key(|&(rank, _)| rank);
            list.sort_by_key(&mut items, |item| item.rank);
            list.check(&items);
            let found: Vec<_> = list.iter(&items).map(|key| (items[key].rank, key)).collect();
            prop_assert_eq!(found, wanted);
        }

        /// A list that skipped an item would let somebody wait for ever.
        #[test]
        fn agrees_with_a_queue(
            acts in prop::collection::vec(any::<Option<prop::sample::Index>>(), 0..200),
        ) {
            let (mut items, mut list): (Arena<_>, _) = (Arena::default(), List::default());
            let mut model = VecDeque::new();
            for act in acts {
                match act {
                    Some(index) if !model.is_empty() => {
                        let key = model.remove(index.index(model.len())).expect("in range");
                        list.unlink(&mut items, key);
                    }
                    _ => {
                        let key = items.insert(Item::default());
                        list.push_back(&mut items, key);
                        model.push_back(key);
                    }
                }
                list.check(&items);
                prop_assert_eq!(list.front(), model.front().copied());
                prop_assert!(list.iter(&items).eq(model.iter().copied()));
            }
        }
    }
}
