//! Commands that change something.

pub(crate) mod delete;
pub(crate) mod kick;
pub(crate) mod put;
pub(crate) mod remove;
