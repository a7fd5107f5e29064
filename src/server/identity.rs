//! The data that the server gets at startup: the identity of the process and machine, and flags.

use std::{num::NonZeroU32, time::Duration};

use crate::proto::JOB_SIZE_DEFAULT;

/// The process and its machine, as `stats` reports them.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// The daemon's version.
    pub version: String,
    /// Sixteen random hexadecimal digits that distinguish this run from others.
    pub id: String,
    /// The machine's name.
    pub hostname: String,
    /// The kernel's version.
    pub os: String,
    /// The architecture of the processor.
    pub platform: String,
    /// Returns the CPU times that the process has used so far in user mode and in the kernel.
    pub rusage: fn() -> (Duration, Duration),
}

/// The flags that the server needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The flag `-z`: the largest job body in bytes.
    pub job_size_limit: u32,
    /// The flag `-s`: the size of a segment of the binlog in bytes.
    pub binlog_size: u64,
    /// `--max-memory`: the limit in bytes on all bodies, including uploads and unsent replies, with
    /// [`crate::queue::JOB_OVERHEAD_BYTES`] added for each body.
    pub memory_limit: Option<u64>,
    /// `--bury-after`: after how many losses a job is buried. See
    /// [`Record::is_lost_too_often`](crate::queue::Record::is_lost_too_often).
    pub bury_after: Option<NonZeroU32>,
}

impl Default for Settings {
    /// The defaults of `-z`, `-s`, `--max-memory` and `--bury-after`.
    fn default() -> Self {
        Self {
            job_size_limit: JOB_SIZE_DEFAULT,
            binlog_size: 10 << 20,
            memory_limit: None,
            bury_after: None,
        }
    }
}
