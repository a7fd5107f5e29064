//! The commands, one module each.

pub(crate) mod change;
pub(crate) mod check;
pub(crate) mod clear;
pub(crate) mod delete;
pub(crate) mod export;
pub(crate) mod grep;
pub(crate) mod import;
pub(crate) mod job;
pub(crate) mod kick;
pub(crate) mod list;
pub(crate) mod move_jobs;
pub(crate) mod pause;
pub(crate) mod put;
pub(crate) mod report;
pub(crate) mod reserve;
pub(crate) mod stats;
pub(crate) mod top;
mod top_screen;
pub(crate) mod tubes;
pub(crate) mod work;
mod work_command;
