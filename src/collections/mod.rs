//! Containers that know nothing of queues: [`Arena`] with typed keys, [`Heap`] whose items know
//! their positions, [`List`] by key, [`IdMap`] from id to key, and [`Histogram`], which counts
//! durations.
//!
//! A container that grows takes memory from [`crate::memory::MemoryBudget`] before it changes.

mod arena;
mod heap;
mod histogram;
mod id_map;
mod list;

pub use arena::{Arena, Key, SmallArena};
pub use heap::Heap;
pub use histogram::{Histogram, LongTimes, ShortTimes};
pub use id_map::IdMap;
pub use list::{Linked, Links, List};
