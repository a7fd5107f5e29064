//! The tests that run the real `beanstalkctl` on this daemon, on the original, and on servers that
//! a test plays. doc/hacking.md has the subject of each module.
//!
//! Each test starts its own servers on free ports of the loopback, with the daemon that was built
//! last or that `BEANSTALKD` names. `ORIGINAL` names the original beanstalkd. Tests that need the
//! original, but do not find it, are reported as skipped.

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
