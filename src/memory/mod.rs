//! Memory: jobs' bodies in blocks ([`Bodies`]), and the budget that probes memory before it is
//! needed ([`MemoryBudget`]).

mod block;
mod bodies;
mod budget;

use std::{error::Error, fmt};

pub use block::INDEX_LIMIT;
pub use bodies::{BODY_OVERHEAD_BYTES, Bodies, Body, BodyOwners, COPIED_BODY_MAX_BYTES};
pub use budget::{BINLOG_HEADROOM_BYTES, MemoryBudget, MemorySource, Need, SystemMemory};

/// The result of a call that needs memory.
pub type Result<T = ()> = std::result::Result<T, OutOfMemory>;

/// There is no memory, or the limit does not permit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not enough memory")
    }
}

impl Error for OutOfMemory {}
