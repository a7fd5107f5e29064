//! The tests that start the real binary, as its operators and clients meet it.
//!
//! | module | what it tells |
//! |---|---|
//! | `flags` | flags, exit statuses, completions |
//! | `log` | what is logged, and in which form |
//! | `signals` | the orderly end, draining |
//! | `addresses`, `unix_sockets` | where the daemon listens |
//! | `privileges` | the change to another user |
//! | `activation`, `service` | a service manager: passed sockets, notices, the watchdog |
//! | `ping` | the health check |
//! | `descriptors`, `limits` | shortages of descriptors and memory |
//! | `fairness`, `idle` | busy clients, and a daemon that has nothing to do |
//! | `binlog` | the binlog on real directories |
//! | `golden`, `diff` | the golden scripts, and seeded traffic beside the original |
//!
//! What the protocol says is proved by the golden scripts; the other modules test what takes a
//! process to show. Each test starts daemons of its own on free ports of the loopback and ends
//! exactly those. A test that must know what happens inside a single turn of the daemon stops the
//! process, lays everything ready, and lets it go on. So nothing here depends on who is faster, and
//! what is counted is commands, bytes and descriptors rather than time. Only tests that a daemon
//! does not spin watch it for a moment.
//!
//! What is known of a process comes from `/proc`, so most of these tests run on Linux only. A test
//! that needs root, a program or a network that not every machine has says so and is skipped.
//!
//! Tests in `limits` and `fairness` raise this process's limit on open files, for good: daemons
//! that are started later inherit it. A test that needs a limit sets it in a shell of its own.

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
