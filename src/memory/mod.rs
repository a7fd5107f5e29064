//! Memory: jobs' bodies in blocks ([`Bodies`]), and how much memory is still free ([`Level`]).

mod block;
mod bodies;
mod level;
mod supply;

pub use block::INDEX_LIMIT;
pub use bodies::{BODY_OVERHEAD_BYTES, Bodies, Body, BodyOwners, COPIED_BODY_MAX_BYTES};
pub use level::{Level, Memory, Supply};
pub use supply::{ResidentLimit, SystemMemory};
