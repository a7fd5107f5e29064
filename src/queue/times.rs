//! How long the jobs of a tube wait for a worker, and how long workers hold them.

use crate::collections::LongTimes;

/// Times of one tube's jobs, since its first job.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// From ready to reserved. This includes a pause of the tube, but not a delay of the job.
    pub wait: LongTimes,
    /// From reserved to deleted by the worker.
    pub run: LongTimes,
}

/// doc/architecture.md promises 300 bytes, with the allocator's, for a tube that has had a job.
const _: () = assert!(size_of::<Times>() + 16 <= 300);
