//! Memory: jobs' bodies in blocks ([`Bodies`]), and how much memory is still free ([`Level`]).
//!
//! | file | contents |
//! |---|---|
//! | `bodies` | [`Bodies`]: handles of bodies, from first byte to end; the limit on all of them |
//! | `bodies/slots` | slots; moves bodies of [`BodyOwners`]; releases blocks; a turn, a replay |
//! | `block` | one block: its slots and their marks |
//! | `level` | [`Level`] and [`Memory`]: whether enough is free; the trait [`Supply`] |
//! | `supply` | the two supplies of a real daemon: ballast, and a limit on resident memory |

mod block;
mod bodies;
mod level;
mod supply;

pub use block::INDEX_LIMIT;
pub use bodies::{BODY_OVERHEAD_BYTES, Bodies, Body, BodyOwners, COPIED_BODY_MAX_BYTES};
pub use level::{Level, Memory, Supply};
pub use supply::{ResidentLimit, SystemMemory};
