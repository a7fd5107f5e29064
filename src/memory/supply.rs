//! The supply of a real daemon: the system's memory, with or without a limit on resident memory.

use std::time::Duration;

use super::Supply;
use crate::{
    clock::{self, Time},
    sys::{self, ballast},
};

/// After this many bytes of allocations, the amount of resident memory is read again.
const READ_INTERVAL_BYTES: usize = 192 << 10;

/// The minimum time between two releases of free memory to the system is this time multiplied by
/// the limit in bytes: a second for a limit of 100 MB. There, a release takes about ten
/// milliseconds.
const RELEASE_INTERVAL_PER_BYTE: Duration = Duration::from_nanos(10);

/// The time that must pass between two releases is never longer than this.
const RELEASE_INTERVAL_MAX: Duration = Duration::from_secs(2);

/// The memory of the system. How much is left is measured by how much of the ballast has not been
/// freed yet.
#[derive(Debug)]
pub struct SystemMemory;

impl Supply for SystemMemory {
    /// How many bytes of ballast there are.
    fn left(&mut self) -> usize {
        ballast::held_bytes()
    }

    /// Fills the ballast up to `wanted` bytes.
    fn refill(&mut self, wanted: usize) {
        ballast::refill(wanted);
    }
}

/// Supplies the system's memory only while resident memory is below a limit. A limit on bodies
/// alone would not include allocated but unused memory, as in lists and blocks.
#[derive(Debug)]
pub struct ResidentLimit {
    /// The limit on resident memory. Each [`Level`] leaves a part of this memory free.
    limit: u64,
    resident: sys::ResidentMemory,
    /// The limit minus resident memory, in bytes, at the last reading.
    left: usize,
    /// [`ballast::allocated_bytes`] at the last reading. Bytes allocated later count as resident.
    allocated: usize,
    /// When free memory was last released to the system.
    released_at: Time,
}

impl ResidentLimit {
    /// A supply with at most `limit` resident bytes.
    pub fn new(limit: u64, resident: sys::ResidentMemory) -> Self {
        Self { limit, resident, left: 0, allocated: 0, released_at: Time::default() }
    }

    /// Reads how much memory is resident. If the reading fails, assumes that no memory is resident.
    fn read(&mut self) {
        self.allocated = ballast::allocated_bytes();
        let now = self.resident.bytes().unwrap_or(0);
        self.left = usize::try_from(self.limit.saturating_sub(now)).unwrap_or(usize::MAX);
    }
}

impl Supply for ResidentLimit {
    /// How many bytes can still become resident, or the remaining ballast if that is less.
    fn left(&mut self) -> usize {
        let mut taken = ballast::allocated_bytes().wrapping_sub(self.allocated);
        if taken >= READ_INTERVAL_BYTES {
            self.read();
            taken = 0;
        }
        self.left.saturating_sub(taken).min(SystemMemory.left())
    }

    /// Whether a piece of `bytes` bytes can be taken so that `left` other bytes stay free.
    fn has_piece(&mut self, bytes: usize, left: usize) -> bool {
        self.read();
        self.left >= left.saturating_add(bytes) && SystemMemory.has_piece(bytes, left)
    }

    /// Fills the ballast, and releases free memory if resident memory is near its limit.
    fn refill(&mut self, wanted: usize) {
        SystemMemory.refill(wanted);
        self.read();
        let bytes = u32::try_from(self.limit).unwrap_or(u32::MAX);
        let interval = (RELEASE_INTERVAL_PER_BYTE * bytes).min(RELEASE_INTERVAL_MAX);
        if self.left < wanted + READ_INTERVAL_BYTES && self.released_at + interval <= clock::now() {
            self.released_at = clock::now();
            sys::release_free_memory();
            self.read();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(limit: impl Fn(u64) -> u64) -> ResidentLimit {
        let resident = sys::ResidentMemory::open().expect("Linux reports it");
        let limit = limit(resident.bytes().expect("Linux reports it"));
        ResidentLimit::new(limit, resident)
    }

    #[test]
    #[cfg_attr(not(target_os = "linux"), ignore = "only Linux reports it")]
    fn what_is_left_is_the_least_of_the_limit_and_the_systems_memory() {
        let left = |mut limited: ResidentLimit| {
            limited.refill(1 << 20);
            limited.left()
        };
        // Other tests take and free memory meanwhile, so the test needs extreme limits.
        let much = left(limited(|resident| resident << 10));
        assert!((1 << 20..1 << 30).contains(&much), "{much} bytes");
        assert_eq!(left(limited(|resident| resident / 8)), 0);
    }

    /// If free memory stayed in the C library, even an empty daemon would refuse clients.
    #[test]
    #[cfg_attr(
        not(all(target_os = "linux", target_env = "gnu")),
        ignore = "only glibc releases it"
    )]
    fn free_memory_is_released_before_anything_is_refused() {
        let mut pieces: Vec<_> = (0..200_000).map(|_| vec![1u8; 1000]).collect();
        let mut limited = limited(|resident| resident);
        pieces.drain(..pieces.len() - 1);
        limited.refill(1 << 20);
        assert!(limited.left() >= 1 << 20, "beside {} piece", pieces.len());
    }
}
