//! Whether there is memory, tried before it is needed.
//!
//! A list that grows cannot refuse: where memory for it is missing, the process ends. So memory is
//! tried ahead of lists, with some to spare, as long as what needs them can still be refused.

use std::hint::black_box;

/// There is no memory for a body.
#[derive(Debug)]
pub struct NoRoom;

/// What must be left beside anything that is tried: for replies, lines, and the lists of what is
/// rare.
const SPARE: usize = 4 << 20;

/// Whether `bytes` more could be had, and some to spare. Takes nothing: two calls to the system,
/// some microseconds.
pub fn is_there(bytes: usize) -> bool {
    let mut room: Vec<u8> = Vec::new();
    let is_there = room.try_reserve_exact(SPARE.saturating_add(bytes)).is_ok();
    // Or the compiler would see that the memory is not used, and not ask for it.
    black_box(&room);
    is_there
}

/// Tries memory for jobs, a step ahead of them.
#[derive(Debug, Default)]
pub struct Room {
    /// So many bytes of jobs are covered by what was tried last.
    covered: u64,
}

impl Room {
    /// How far a try reaches. Less than what is spared, which it may use up.
    const STEP: u64 = 512 << 10;

    /// Whether one more of `jobs` jobs, which then hold `held` bytes, will find memory beside that
    /// of its body. O(1), and seldom a call to the system.
    pub fn covers(&mut self, jobs: usize, held: u64) -> bool {
        // Memory that jobs gave back may have gone elsewhere.
        if held <= self.covered && held + 2 * Self::STEP > self.covered {
            return true;
        }
        // A list of jobs doubles when it is full, and there are a few of them.
        let lists = jobs.saturating_mul(64);
        let is_covered = is_there(lists);
        self.covered = if is_covered { held + Self::STEP } else { 0 };
        is_covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_not_there() {
        assert!(is_there(0));
        assert!(!is_there(usize::MAX));
        assert!(!is_there(1 << 62));
    }

    #[test]
    fn a_try_covers_a_step_and_no_more() {
        let mut room = Room::default();
        assert!(room.covers(1, 200));
        let covered = room.covered;
        assert!(room.covers(2, 400));
        assert_eq!(room.covered, covered, "not tried again");
        assert!(room.covers(3, covered + 1));
        assert!(room.covered > covered);
        // Jobs have gone, and others may have their memory now.
        assert!(room.covers(1, 200));
        assert_eq!(room.covered, covered);
        assert!(!room.covers(usize::MAX / 64, u64::MAX / 2));
        assert_eq!(room.covered, 0);
    }
}
