//! How much memory is left, in a few levels.
//!
//! A list that grows cannot report an error: without memory, the process ends. So some memory is
//! kept that nobody uses, the *ballast* of [`crate::sys::ballast`]. It is freed for small
//! allocations when the system has no more memory. The [`Level`] says how much ballast is left.
//! Before a command changes anything, the server checks that the level is high enough for the
//! command. All levels that commands need are in one table, in `server/admission.rs`. Only a large
//! list asks the system itself, by an attempt to grow that may fail.

use std::{fmt, mem};

use crate::collections::probe;

/// How much memory must be left for a purpose. Thanks to the levels, workers can connect and take
/// jobs when there is no memory for more jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For a reply to a client without unsent replies, and for timers that are due. Not for lasting
    /// data, which would use up this memory and end all service.
    Critical,
    /// For one of the first few connections, and of the first few jobs that a client reserves.
    Scarce,
    /// For other connections, a part of a line, a wait for a job, a job that is released with a
    /// delay, and a reply to a client that has unsent replies.
    Low,
    /// For lasting data: jobs, tubes, input that is kept.
    Plenty,
}

/// The bytes that must be left for each level.
pub(super) type Marks = [usize; 4];

/// The marks without a binlog.
const MARKS: Marks = [16 << 16, 21 << 16, 29 << 16, 36 << 16];

/// The marks with a binlog: higher, because a turn's records take up to five quarters of a MiB, and
/// after a restart the first connection must fit beside the same jobs in another layout.
pub(super) const BINLOG_MARKS: Marks = [36 << 16, 41 << 16, 48 << 16, 96 << 16];

/// The marks while a binlog is read: for lists that are small compared to the jobs. There are no
/// clients yet, and jobs that fitted before must fit again.
pub(super) const REPLAY_MARKS: Marks = [1 << 20; 4];

/// A source of memory. Tests use sources that refuse memory.
pub trait Supply: fmt::Debug {
    /// Returns how many bytes of memory are left.
    fn left(&mut self) -> usize;
    /// Begins a turn. Makes `wanted` bytes available, or as many as there are.
    fn refill(&mut self, wanted: usize);
    /// Whether a piece of `bytes` bytes can be taken, and `left` bytes would be left.
    fn has_piece(&mut self, bytes: usize, left: usize) -> bool {
        self.left() >= left && probe(bytes).is_ok()
    }
}

/// The memory that may be taken.
#[derive(Debug)]
pub struct Memory {
    /// Without a supply, there is always enough memory.
    supply: Option<Box<dyn Supply>>,
    marks: Marks,
    /// The lowest level that was refused in this turn.
    refused: Option<Level>,
    /// Whether resident memory is limited. Memory becomes resident when it is first written to.
    pub limits_resident: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self { supply: None, marks: MARKS, refused: None, limits_resident: false }
    }
}

impl Memory {
    /// Takes memory from `supply` from now on.
    pub fn set_supply(&mut self, supply: Box<dyn Supply>) {
        self.supply = Some(supply);
        self.begin_turn();
    }

    /// Sets the marks, and returns the previous marks.
    pub(super) fn set_marks(&mut self, marks: Marks) -> Marks {
        let before = mem::replace(&mut self.marks, marks);
        self.begin_turn();
        before
    }

    /// Begins a turn: freed memory is available again, and nothing has been refused yet.
    pub fn begin_turn(&mut self) {
        self.refused = None;
        if let Some(supply) = &mut self.supply {
            supply.refill(self.marks[Level::Plenty as usize]);
        }
    }

    /// Whether at least the memory of `level` is left. O(1).
    #[inline]
    pub fn admits(&mut self, level: Level) -> bool {
        let Some(supply) = &mut self.supply else { return true };
        let is_left = supply.left() >= self.marks[level as usize];
        if !is_left && self.refused.is_none_or(|lowest| level < lowest) {
            self.refused = Some(level);
        }
        is_left
    }

    /// Whether a piece of `bytes` bytes may be taken, and the memory of `level` would be left.
    pub fn has_piece(&mut self, bytes: usize, level: Level) -> bool {
        let left = self.marks[level as usize];
        match &mut self.supply {
            Some(supply) => supply.has_piece(bytes, left),
            None => probe(bytes).is_ok(),
        }
    }

    /// Whether at least `bytes` bytes more than the memory of `level` are left.
    pub(super) fn leaves(&mut self, bytes: usize, level: Level) -> bool {
        let wanted = self.marks[level as usize] + bytes;
        self.supply.as_mut().is_none_or(|supply| supply.left() >= wanted)
    }

    /// Whether `level` or a lower level was refused in this turn.
    pub fn has_refused(&self, level: Level) -> bool {
        self.refused.is_some_and(|lowest| lowest <= level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Left(usize);

    impl Supply for Left {
        fn left(&mut self) -> usize {
            self.0
        }
        fn refill(&mut self, _: usize) {}
    }

    /// In any other order, workers could not take jobs out of a queue that fills all memory.
    #[test]
    fn storage_is_refused_first_and_replies_last() {
        let all = [Level::Critical, Level::Scarce, Level::Low, Level::Plenty];
        for marks in [MARKS, BINLOG_MARKS] {
            for (admitted, left) in [0].into_iter().chain(marks).enumerate() {
                let mut memory = Memory { marks, ..Memory::default() };
                memory.set_supply(Box::new(Left(left)));
                let count = all.iter().filter(|&&level| memory.admits(level)).count();
                assert_eq!(count, admitted);
                let refused = all.iter().filter(|&&level| memory.has_refused(level)).count();
                assert_eq!(refused, 4 - admitted, "from the lowest that was refused on");
                memory.begin_turn();
                assert!(!memory.has_refused(Level::Plenty));
            }
        }
    }
}
