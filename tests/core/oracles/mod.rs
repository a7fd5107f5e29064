//! The oracles of the fuzz targets in `ct/fuzz`: each oracle takes any bytes, and panics if the
//! daemon's code treats them wrongly.

pub(crate) mod flags;
pub(crate) mod parse;
mod reference;
pub(crate) mod replay;
pub(crate) mod server;
