//! Counters over all tubes. The counters of one tube are fields of the tube.

/// Counts that the queue keeps up to date, and that `stats` reports.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Ready jobs with an urgent priority.
    pub urgent: u64,
    /// Ready jobs.
    pub ready: u64,
    /// Reserved jobs.
    pub reserved: u64,
    /// Delayed jobs.
    pub delayed: u64,
    /// Buried jobs.
    pub buried: u64,
    /// Reservations that timed out.
    pub timeouts: u64,
    /// Burials by `--bury-after`, of jobs that were lost too often.
    pub buried_for_losses: u64,
    /// Jobs put since the start.
    pub total_jobs: u64,
    /// Connections open now.
    pub connections: u32,
    /// Open connections that have sent a `put`.
    pub producers: u32,
    /// Open connections that have sent a `reserve` of any kind.
    pub workers: u32,
    /// Connections that wait for a job.
    pub waiting: u32,
    /// Connections accepted since the start.
    pub total_connections: u64,
}
