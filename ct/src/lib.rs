//! Tools that test and measure any beanstalkd through its socket.
//!
//! This crate shares no code with the server, and judges daemons by their replies. So the same
//! scripts test our daemon and the original beanstalkd. The crate is never shipped.
//!
//! The modules in reading order:
//! * [`script`] parses a golden script, and `text` parses the texts that a script sends or expects.
//!   `text` also matches received bytes against a pattern.
//! * [`mod@run`] executes a script on a [`Stage`], statement by statement. [`socket`] has TCP and
//!   UNIX sockets, on which a script is played to a daemon.
//! * [`dialect`] lists the known differences between our daemon and the original.
//! * [`check`] plays many scripts in parallel, for the tests and for the program `ct-check`.
//! * [`daemon`] starts a daemon, [`client`] sends commands to a daemon, and [`original`] finds the
//!   original. [`prng`] makes random numbers, [`wait`] waits for conditions, [`mod@skip`] reports
//!   skipped tests, and `os` makes system calls.
//! * [`mod@diff`] sends the same traffic to two daemons, for the program `ct-diff`.
//! * [`mod@bench`] measures and compares daemons, for the program `ct-bench`.
//! * [`mod@abuse`] attacks a daemon and measures a well-behaved client, for the program `ct-abuse`.
//! * [`soak`] loads, kills and restarts a daemon for a given time, for the program `ct-soak`.
//!
//! The programs in `bin` read arguments and print results. `ct-bare`, the bare responder, answers
//! commands but keeps no jobs.

pub mod abuse;
pub mod bench;
pub mod check;
pub mod client;
pub mod daemon;
pub mod dialect;
pub mod diff;
pub mod original;
mod os;
pub mod prng;
pub mod run;
pub mod script;
pub mod skip;
pub mod soak;
pub mod socket;
mod text;
pub mod wait;

pub use check::{Program, Report, Verdict};
pub use client::Client;
pub use daemon::{Daemon, free_port};
pub use dialect::Dialect;
pub use original::Original;
pub use prng::Prng;
pub use run::{Arrived, Failure, Outcome, Patience, Stage, run};
pub use script::{Script, ScriptError};
pub use skip::{has_git, knows_localhost, skip};
pub use socket::SocketStage;
pub use wait::{LONG, eventually};
