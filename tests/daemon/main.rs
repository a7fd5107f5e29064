//! The tests of the real binary.

#[cfg(target_os = "linux")]
mod binlog;
mod diff;
mod golden;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod service;
