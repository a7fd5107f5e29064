//! Containers that know nothing of queues: typed arenas, a heap whose items know their place, a
//! list by key, pages from id to key, names, bodies, and room for them.
//!
//! None of them does IO, reads a clock or logs. Each has one invariant, stated at its head, and a
//! model test at its foot.

mod arena;
mod body;
mod heap;
mod list;
mod names;
mod pages;
mod room;

pub use arena::{Arena, Key};
pub use body::{BODY_COST, Bodies, Body, SMALL};
pub use heap::Heap;
pub use list::{Linked, Links, List};
pub use names::{Entry, Named, Names};
pub use pages::Pages;
pub use room::{Memory, Need, NoRoom, Room};
