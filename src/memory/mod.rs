//! Memory: jobs' bodies in blocks ([`Bodies`]), and how much memory is still free ([`Level`]).
//!
//! | file | contents |
//! |---|---|
//! | `bodies` | [`Bodies`]: bodies from first byte to removal, their handles, their total limit |
//! | `bodies/slots` | takes and frees slots; moves bodies; releases blocks; begins turns, replays |
//! | `block` | one block: its slots and their marks |
//! | `level` | [`Level`] and [`Memory`]: whether enough memory is free; the trait [`Supply`] |
//! | `supply` | the supplies of a real daemon: system memory, or resident memory up to a limit |

mod block;
mod bodies;
mod level;
mod supply;

pub use block::INDEX_LIMIT;
pub use bodies::{BODY_OVERHEAD_BYTES, Bodies, Body, BodyOwners, COPIED_BODY_MAX_BYTES};
pub use level::{Level, Memory, Supply};
pub use supply::{ResidentLimit, SystemMemory};
