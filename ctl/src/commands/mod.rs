//! The commands, one module each.

pub(crate) mod big;
pub(crate) mod bury;
pub(crate) mod check;
pub(crate) mod clear;
pub(crate) mod completions;
pub(crate) mod delete;
pub(crate) mod drain;
pub(crate) mod export;
pub(crate) mod grep;
pub(crate) mod import;
pub(crate) mod job;
pub(crate) mod kick;
pub(crate) mod list;
pub(crate) mod manual;
pub(crate) mod r#move;
pub(crate) mod pause;
pub(crate) mod put;
pub(crate) mod release;
pub(crate) mod report;
pub(crate) mod reserve;
pub(crate) mod resume;
pub(crate) mod stats;
pub(crate) mod top;
mod top_screen;
pub(crate) mod tubes;
pub(crate) mod work;
mod work_command;
