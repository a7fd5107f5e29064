//! Commands that change something.

pub(crate) mod clear;
pub(crate) mod delete;
pub(crate) mod kick;
pub(crate) mod move_jobs;
pub(crate) mod one;
pub(crate) mod pause;
pub(crate) mod put;
pub(crate) mod remove;
pub(crate) mod reserve;
pub(crate) mod work;
