//! How long the jobs of a tube wait for a worker, and how long workers hold them.

use crate::collections::LongTimes;

/// Times of one tube's jobs, counted from its first job.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// From ready to reserved. This includes a pause of the tube, but not a delay of the job.
    pub wait: LongTimes,
    /// From reserved to deleted by the worker.
    pub run: LongTimes,
}

impl Times {
    /// The bytes of memory that they take, with the allocator's overhead.
    pub(super) const BYTES: usize = size_of::<Self>() + 16;
}

/// doc/architecture.md promises this bound for each tube that has had a job.
const _: () = assert!(Times::BYTES <= 300);
