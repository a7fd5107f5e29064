//! Memory: jobs' bodies in blocks of their size ([`Bodies`]), and whether there is more to be had
//! ([`Room`]), tried before it is needed.

mod bodies;
mod probe;

pub use bodies::{BODY_COST, Bodies, Body, SMALL};
pub use probe::{Memory, Need, OutOfMemory, Room};
