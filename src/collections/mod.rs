//! Containers that know nothing of queues: [`Arena`] with typed keys, [`Heap`] whose items know
//! their positions, [`List`] by key, [`IdMap`] from id to key, and [`Histogram`], which counts
//! durations.
//!
//! A container that may become large has a method `make_room`, which fails, and changes nothing, if
//! there is no memory for one more item.

mod arena;
mod growth;
mod heap;
mod histogram;
mod id_map;
mod list;

pub use arena::{Arena, Key, SmallArena};
pub use growth::{Growth, OutOfMemory, ensure, grow, grow_deque, probe};
pub use heap::Heap;
pub use histogram::{Histogram, LongTimes, ShortTimes};
pub use id_map::IdMap;
pub use list::{Linked, Links, List};
