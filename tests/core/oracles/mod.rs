//! The oracles of the fuzz targets in `ct/fuzz`: each takes any bytes and panics if the daemon's
//! code is wrong about them.

pub(crate) mod flags;
pub(crate) mod parse;
mod reference;
pub(crate) mod replay;
pub(crate) mod server;
