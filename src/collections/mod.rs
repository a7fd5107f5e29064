//! Containers that do not depend on jobs and tubes. An [`Arena`] stores items in chunks, and finds
//! them by typed keys; each item of a [`Heap`] stores its position; a [`List`] links items; an
//! [`IdMap`] maps ids to keys; a [`Histogram`] counts durations.
//!
//! A container that may become large has a method `make_room`. If there is no memory for one more
//! item, this method fails and changes nothing. `growth.rs` defines the error [`OutOfMemory`], and
//! functions that check for memory and grow lists.

mod arena;
mod growth;
mod heap;
mod histogram;
mod id_map;
mod list;
mod testing;

pub use arena::{Arena, Key, SmallArena};
pub use growth::{Growth, OutOfMemory, ensure, grow, grow_deque, probe};
pub use heap::Heap;
pub use histogram::{Histogram, LongTimes, ShortTimes};
pub use id_map::IdMap;
pub use list::{Linked, Links, List};
