//! A check of the invariants of a list.

use super::{Arena, Linked, List};

impl<T: Linked> List<T> {
    /// Panics if the links or the length are wrong.
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
