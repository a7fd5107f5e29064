//! The tests that start the real binary, and use it as operators and clients do.
//! doc/hacking.md has the subject of each module.
//!
//! The golden scripts test the protocol; the other modules test behaviour that needs a process.
//! Each test starts daemons of its own on free ports of the loopback, and stops exactly those. A
//! test of a single turn suspends the daemon, prepares everything, and lets it continue. So nothing
//! here depends on the speed of either side, and tests count commands, bytes and descriptors rather
//! than time. Only the tests for spinning watch a daemon for a moment.
//!
//! Facts about a process come from `/proc`, so most of these tests run only on Linux. A test that
//! needs root, a program or a network is reported as skipped on a machine without it.
//!
//! Tests in `limits` and `fairness` raise this process's limit on open files, permanently, and
//! daemons started later inherit it. A test that needs a limit sets it in a shell of its own.

#[cfg(target_os = "linux")]
mod activation;
#[cfg(target_os = "linux")]
mod addresses;
#[cfg(target_os = "linux")]
mod binlog;
#[cfg(target_os = "linux")]
mod descriptors;
mod diff;
#[cfg(target_os = "linux")]
mod fairness;
#[cfg(target_os = "linux")]
mod flags;
mod golden;
mod harness;
#[cfg(target_os = "linux")]
mod idle;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
mod ping;
#[cfg(target_os = "linux")]
mod privileges;
#[cfg(target_os = "linux")]
mod service;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod unix_sockets;
