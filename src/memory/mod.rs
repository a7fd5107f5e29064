//! Memory: jobs' bodies in blocks of their size ([`Bodies`]), and whether there is more to be had
//! ([`MemoryBudget`]), tried before it is needed.

mod bodies;
mod budget;

pub use bodies::{BODY_OVERHEAD_BYTES, Bodies, Body, COPIED_BODY_MAX_BYTES};
pub use budget::{MemoryBudget, MemorySource, Need, OutOfMemory};
