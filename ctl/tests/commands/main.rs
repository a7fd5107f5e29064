//! The tests that run the real `beanstalkctl` on this daemon, on the original, and on servers that
//! a test plays.
//!
//! | module | subject |
//! |---|---|
//! | `look`, `screen` | output, on a full screen as well |
//! | `act`, `bulk`, `work` | changes of jobs, one by one, in bulk, or by a command for each |
//! | `advice` | the advice of a message is carried out after the failure, and nothing is lost |
//! | `lease` | a command of `work` ends with the reservation of its job |
//! | `agreed`, `ends` | an act changes only the confirmed jobs; the ends of commands |
//! | `consent` | the same at random, for each act, below and above each bound |
//! | `bounds` | limits on time, and output for programs |
//! | `hostile` | odd or wrong servers and files |
//! | `carry` | jobs copied to files and other servers |
//! | `extensions` | the use of a server with more commands, or with wrong answers |
//! | `metrics`, `metrics_http` | the metrics, on standard output, in files, over HTTP |
//! | `trouble` | servers that refuse changes, and why |
//! | `stress` | acts ended at any moment, beside other clients; only on request |
//! | `web`, `web_guard` | the page, and the requests that it refuses |
//!
//! Each test starts servers of its own on free ports of the loopback. They run the daemon that was
//! built last, or the one given by `BEANSTALKD`. `ORIGINAL` names the original; without it, the
//! tests that need it are reported as skipped.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod act;
mod advice;
mod agreed;
mod bounds;
mod bulk;
mod carry;
mod consent;
mod ends;
mod extensions;
mod harness;
mod hostile;
mod lease;
mod look;
mod metrics;
mod metrics_http;
mod screen;
mod stress;
mod trouble;
mod web;
mod web_acts;
mod web_guard;
mod work;
