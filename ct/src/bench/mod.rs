//! The load generator, which measures how fast any beanstalkd is, and compares several daemons.
//!
//! The modules in reading order:
//! * [`op`] has the commands: their bytes, and the priorities of their jobs. [`reader`] parses the
//!   replies, and checks the bodies of jobs.
//! * [`group`] describes connections and the limits of a run. `connection` performs the steps of a
//!   cycle on one connection. [`load`] is the event loop of all connections, with queues and
//!   schedules of cycles. [`tally`] has the counters.
//! * [`state`] describes backlogs, tubes and background connections, and makes them with the client
//!   of [`setup`].
//! * [`measure`] starts a daemon on its cores, pins the load, and reads memory, CPU time and waits
//!   for a core. `syscalls` counts system calls.
//! * [`scenario`] makes the presets, each a scenario with phases. `special` runs the scenarios that
//!   repeat no load.
//! * [`target`] parses the command lines of daemons, starts the daemons, and makes scratch
//!   directories. [`compare`] runs the scenarios on each daemon. [`outcome`] has rows and figures,
//!   [`stats`] medians and ranges.
//! * [`report`] makes the table and the JSON. [`machine`] describes machine, sources and daemons.
//! * [`run_file`] reads the table back from Markdown, and [`plot`] draws the table's figures.
//! * [`goals`] compares the results with a file of goals.
//! * [`slow_sync`] measures a daemon whose syncs take milliseconds.
//! * [`crowd`] compares an empty daemon with a crowded daemon of the same program.

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
