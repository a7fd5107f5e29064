//! A check of all invariants of the bodies, which tests call after every step.

use super::{
    Bodies, Body, Referenced,
    slots::{Hole, Place},
};
use crate::memory::block::{BLOCK_BYTES, Mark, slot_bytes};

impl Bodies {
    /// Checks the invariants, and panics if one is violated. `job_body` returns the body of the job
    /// with a given index. Returns the number of handles. O(all bodies): for tests.
    pub fn check<'a>(&self, job_body: impl Fn(usize) -> &'a Body) -> usize {
        let mut handles = self.referenced.iter().map(|(_, entry)| entry.handles as usize).sum();
        for (key, block) in self.blocks.iter() {
            let (mut place, mut live) = (Place { block: key, unit: 0 }, 0);
            while place.start() < BLOCK_BYTES {
                let (known, size) = match block.mark(place.start()) {
                    Mark::Free(size) => (None, size),
                    Mark::Job(index) => {
                        handles += 1;
                        (Some(job_body(index).place), slot_bytes(job_body(index).len()))
                    }
                    Mark::Referenced(key) => {
                        let Referenced { place, size, .. } = &self.referenced[key];
                        (Some(place.expect("it has a slot")), slot_bytes(*size))
                    }
                };
                assert!(known.is_none_or(|known| known == place), "the owner has another slot");
                live += known.map_or(0, |_| size);
                place = place.after(size);
            }
            assert_eq!((place.start(), live), (BLOCK_BYTES, block.live));
            assert!(live > 0 || self.filled_next() == Some(key), "an empty block");
        }
        let freed = self.blocks.iter().map(|(_, block)| block.freed());
        assert_eq!(freed.sum::<usize>(), self.freed);
        for &Hole { place, size } in &self.holes {
            assert_eq!(self.blocks[place.block].mark(place.start()), Mark::Free(size));
            assert!(self.moving.is_none_or(|moving| moving.block != place.block), "it is emptied");
        }
        handles
    }
}
