//! Tools that test and measure any beanstalkd through its socket.
//!
//! This crate shares no code with the server, and judges daemons by their replies. So the same
//! scripts test our daemon and the original. The crate is never shipped.
//!
//! Reading order:
//! - [`script`] parses a golden script, and `text` the texts that it sends and expects; `text` also
//!   matches received bytes against a pattern;
//! - [`mod@run`] executes a script on a [`Stage`], statement by statement; [`socket`] has TCP and
//!   UNIX sockets, and the stage for real daemons;
//! - [`dialect`] lists known differences between daemons;
//! - [`check`] plays many scripts in parallel, for the tests and for the program `ct-check`;
//! - [`daemon`] starts a daemon, [`client`] talks to it, [`original`] finds the original; [`prng`]
//!   draws numbers, [`wait`] awaits conditions, [`mod@skip`] reports skips, `os` has system calls;
//! - [`mod@diff`] sends the same traffic to two daemons, for the program `ct-diff`: `generate`
//!   makes each `operation`, which has simpler forms, and `runner` executes the operations;
//!   `harness` drives both daemons, `side` one of them, and `target` starts them; `tracker`
//!   follows a connection, `reply` compares replies, `shrink` shortens runs, `record` writes one;
//! - [`mod@bench`] measures and compares, for the program `ct-bench`;
//! - [`mod@abuse`] attacks a daemon and measures a well-behaved client, for the program `ct-abuse`:
//!   `attacks` has the attacks and `attackers` their connections; `probe` is the client;
//! - [`soak`] loads, kills and restarts a daemon for a given time, for the program `ct-soak`:
//!   `acknowledged` has each client's jobs and commands, `monitor` samples the daemon.
//!
//! The programs in `bin` read arguments and print results; `ct-bare` is the bare responder.

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
