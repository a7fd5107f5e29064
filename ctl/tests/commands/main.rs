//! The tests that run the real `beanstalkctl`, beside this daemon, beside the original, and beside
//! servers that a test plays.
//!
//! | module | what it tells |
//! |---|---|
//! | `look`, `screen` | what is shown, also on a full screen |
//! | `act`, `bulk`, `work` | what changes jobs, one by one, in bulk, or by a command that works |
//! | `agreed`, `ends` | that an act touches what was agreed to, and how commands end |
//! | `hostile` | servers and files that are odd or wrong |
//! | `carry` | jobs that go to files and other servers |
//! | `extensions` | what is used of a server that has more commands, or answers wrongly |
//! | `metrics`, `metrics_http` | the metrics, on standard output, in files, over HTTP |
//! | `stress` | acts that end at any moment, beside others; only on request |
//! | `web`, `web_guard` | the page, and what it refuses |
//!
//! Each test starts servers of its own on free ports of the loopback. They run the daemon that was
//! built last, or the one that `BEANSTALKD` names; `ORIGINAL` names the original, and without it
//! the tests beside it say that they were skipped.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod act;
mod agreed;
mod bulk;
mod carry;
mod ends;
mod extensions;
mod harness;
mod hostile;
mod look;
mod metrics;
mod metrics_http;
mod screen;
mod stress;
mod web;
mod web_acts;
mod web_guard;
mod work;
