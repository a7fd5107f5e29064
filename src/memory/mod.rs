//! Memory: jobs' bodies in blocks ([`Bodies`]), and the budget that probes memory before it is
//! needed ([`MemoryBudget`]).

mod block;
mod bodies;
mod budget;

pub use block::INDEX_LIMIT;
pub use bodies::{BODY_OVERHEAD_BYTES, Bodies, Body, BodyOwners, COPIED_BODY_MAX_BYTES};
pub use budget::{MemoryBudget, MemorySource, Need, OutOfMemory, ResidentLimit};
