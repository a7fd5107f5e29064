//! The load generator, which measures how fast any beanstalkd is, and compares it with others.
//!
//! Reading order:
//! - [`op`] has the commands and their bytes, [`reader`] parses the replies;
//! - [`group`] describes connections and the limits of a run, `connection` sends and receives on
//!   one connection, [`load`] is the event loop of all, and [`tally`] has the counters;
//! - [`setup`] and [`state`] bring a daemon into the state that is to be measured;
//! - [`measure`] pins daemon and load to cores and reads their CPU time, `syscalls` counts calls;
//! - [`scenario`] lists the presets, and `special` runs those without a repeated load;
//! - [`target`] parses and starts the daemons, [`compare`] runs them in turn, [`outcome`] has their
//!   figures, [`stats`] has medians and ratios;
//! - [`report`] makes the table and the JSON, [`machine`] describes the machine;
//! - [`run_file`] reads the table back from Markdown, and [`plot`] draws its figures;
//! - [`goals`] compares the result with a file of goals;
//! - [`slow_sync`] measures with a disk whose syncs take milliseconds;
//! - [`crowd`] compares a daemon with itself, empty and crowded.

pub mod compare;
mod connection;
pub mod crowd;
pub mod goals;
pub mod group;
pub mod load;
pub mod machine;
pub mod measure;
pub mod op;
pub mod outcome;
pub mod plot;
pub mod reader;
pub mod report;
pub mod run_file;
pub mod scenario;
pub mod setup;
pub mod slow_sync;
mod special;
pub mod state;
pub mod stats;
mod syscalls;
pub mod tally;
pub mod target;
