//! The load generator: how fast any beanstalkd is, side by side with another.
//!
//! Reading order:
//! - [`op`] has the commands and their bytes, [`reader`] the replies;
//! - [`group`] says who repeats what, `connection` does it, and [`load`] is their event loop;
//! - [`client`] and [`state`] bring a daemon into the state that is to be measured;
//! - [`measure`] reads what a run cost either side, and `calls` counts system calls;
//! - [`scenario`] lists the presets, and `special` runs those that are no repeated load;
//! - [`target`] starts what is compared, [`compare`] takes turns, [`stats`] finds the middle;
//! - [`report`] makes the table and the JSON, [`plot`] the curves, [`machine`] one line for both;
//! - [`goals`] says whether that is enough;
//! - [`crowd`] compares a daemon with itself, alone and in a crowd.

pub mod compare;
mod connection;
pub mod crowd;
pub mod goals;
pub mod group;
pub mod load;
pub mod machine;
pub mod measure;
pub mod op;
pub mod plot;
pub mod reader;
pub mod report;
pub mod scenario;
pub mod setup;
mod special;
pub mod state;
pub mod stats;
mod syscalls;
pub mod target;
