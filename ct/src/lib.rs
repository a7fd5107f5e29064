//! Conformance and timing: meets any beanstalkd through its socket.
//!
//! This crate holds no code of the server and shares none with it. It tells daemons apart by what
//! they answer, so the same scripts judge ours and the original. It is never shipped.
//!
//! Reading order:
//! - [`script`] reads a golden script, with the texts that `text` knows to send and to match;
//! - [`mod@run`] plays it on a [`Stage`], and [`socket`] is the stage for real daemons;
//! - [`dialect`] lists where a known daemon answers differently;
//! - [`check`] plays many scripts at a time, for the tests and for the program `ct-check`;
//! - [`daemon`], [`client`] and [`prng`] are tools for tests in Rust; [`original`] finds what they
//!   compare with, [`mod@skip`] says what they could not do, and [`wait`] waits;
//! - [`mod@bench`] measures and compares, for the program `ct-bench`;
//! - [`mod@abuse`] does harm and sees who suffers, for the program `ct-abuse`;
//! - [`soak`] loads, kills and restarts for as long as one likes, for the program `ct-soak`.

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
pub use skip::skip;
pub use socket::SocketStage;
pub use wait::{LONG, eventually};
