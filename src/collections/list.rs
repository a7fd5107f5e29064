//! A doubly linked list of keys: first in, first out, with O(1) removal from the middle. Each item
//! stores its own links, so a list allocates nothing.
//!
//! Invariant: the links from head to tail and those from tail to head visit the same `len` items.
//! An item is in at most one list at a time; call `unlink` only on the list that has the item.

use super::{Arena, Key};

/// The neighbours of an item in its list; both neighbours are `None` if the item is in no list.
#[derive(Debug)]
pub struct Links<T> {
    pub(super) before: Option<Key<T>>,
    after: Option<Key<T>>,
}

impl<T> Default for Links<T> {
    /// The links of an item that is in no list.
    fn default() -> Self {
        Self { before: None, after: None }
    }
}

/// An item that can be in a [`List`].
pub trait Linked: Sized {
    /// The item's links in a list.
    fn links(&self) -> &Links<Self>;
    /// The item's links, which only lists may change.
    fn links_mut(&mut self) -> &mut Links<Self>;
}

/// The two ends of a list, and its length.
#[derive(Debug)]
pub struct List<T> {
    head: Option<Key<T>>,
    pub(super) tail: Option<Key<T>>,
    len: u32,
}

impl<T> Default for List<T> {
    /// An empty list.
    fn default() -> Self {
        Self { head: None, tail: None, len: 0 }
    }
}

impl<T: Linked> List<T> {
    /// The first item of the list.
    pub fn front(&self) -> Option<Key<T>> {
        self.head
    }

    /// The number of items of the list.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Appends an item that is in no list to this list.
    pub fn push_back(&mut self, items: &mut Arena<T>, key: Key<T>) {
        debug_assert!(items[key].links().before.is_none() && items[key].links().after.is_none());
        items[key].links_mut().before = self.tail;
        match self.tail.replace(key) {
            Some(tail) => items[tail].links_mut().after = Some(key),
            None => self.head = Some(key),
        }
        self.len += 1;
    }

    /// Removes an item, which must be in this list.
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

    /// Sorts the items of the list by `key`, and allocates nothing; items with equal keys keep
    /// their order. This merge sort does not split a sorted list, so it takes O(length · log r) if
    /// the list consists of r sorted parts.
    pub fn sort_by_key<K: Ord>(&mut self, items: &mut Arena<T>, key: &impl Fn(&T) -> K) {
        if self.iter(items).is_sorted_by_key(|item| key(&items[item])) {
            return;
        }
        let mut one = Self::default();
        while one.len < self.len {
            one.take_front(items, self);
        }
        let mut other = std::mem::take(self);
        one.sort_by_key(items, key);
        other.sort_by_key(items, key);
        while let Some(first) = one.head {
            let is_after =
                other.head.is_some_and(|second| key(&items[second]) < key(&items[first]));
            self.take_front(items, if is_after { &mut other } else { &mut one });
        }
        while !other.is_empty() {
            self.take_front(items, &mut other);
        }
    }

    /// Moves the first item of `from`, if any, to the end of this list.
    fn take_front(&mut self, items: &mut Arena<T>, from: &mut Self) {
        if let Some(key) = from.head {
            from.unlink(items, key);
            self.push_back(items, key);
        }
    }

    /// Iterates from the first to the last item of the list. O(length).
    pub fn iter<'a>(&self, items: &'a Arena<T>) -> impl Iterator<Item = Key<T>> + use<'a, T> {
        std::iter::successors(self.head, |&key| items[key].links().after)
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
            list.sort_by_key(&mut items, &|item: &Item| item.rank);
            list.check(&items);
            let found: Vec<_> = list.iter(&items).map(|key| (items[key].rank, key)).collect();
            prop_assert_eq!(found, wanted);
        }

        /// If a list lost an item, a job of a disconnected client would never return to its tube.
        #[test]
        fn agrees_with_a_queue(
            operations in prop::collection::vec(any::<Option<prop::sample::Index>>(), 0..200),
        ) {
            let (mut items, mut list): (Arena<_>, _) = (Arena::default(), List::default());
            let mut model = VecDeque::new();
            for operation in operations {
                match operation {
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
