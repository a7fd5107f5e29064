//! How much memory is still free, expressed in four levels.
//!
//! Most allocations cannot report an error: without memory, the process ends. So the daemon keeps
//! unused memory, the *ballast* of [`crate::sys::ballast`]. The ballast is freed for small
//! allocations when the system has no more memory. Each [`Level`] requires that a certain amount of
//! ballast is left. Before a command changes anything, the server checks that enough ballast is
//! left for the level of the command; `server/admission.rs` defines these levels. Before a large
//! list grows, the server tries the allocation, which may fail.

use std::{fmt, mem};

use crate::collections::probe;

/// How much memory must still be free for a purpose. Because of the levels, workers can connect and
/// take jobs even if there is no memory for more jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Enough memory to process timers that are due, and to reply to a client that has read all
    /// earlier replies. Data that is kept must leave this memory free: without it, no client can be
    /// served.
    Critical,
    /// Enough memory for one more connection or reservation, as long as there are only a few
    /// connections, or the client has reserved only a few jobs.
    Scarce,
    /// Enough for another connection, a part of a line, a wait for a job, a job that is released
    /// with a delay, or a reply to a client that has unsent replies.
    Low,
    /// Enough for data that is kept: a job, a tube, or input.
    Plenty,
}

/// For each level, how many bytes of memory must still be free.
pub(super) type Marks = [usize; 4];

/// For each level, how many bytes must still be free in a daemon without a binlog.
const MARKS: Marks = [16 << 16, 21 << 16, 29 << 16, 36 << 16];

/// The marks are higher if the daemon has a binlog. The records of a turn take up to 1.25 MiB. A
/// restart may need more memory for the same jobs, and after the restart, a client must still be
/// able to connect.
pub(super) const BINLOG_MARKS: Marks = [36 << 16, 41 << 16, 48 << 16, 96 << 16];

/// The marks for the replay of a binlog at startup. There are no clients yet, so the free memory
/// need only suffice for lists, which are small compared to the jobs. Jobs that fitted before the
/// restart must fit again.
pub(super) const REPLAY_MARKS: Marks = [1 << 20; 4];

/// A source of memory; some tests use sources with little or no memory.
pub trait Supply: fmt::Debug {
    /// Returns how many bytes of memory are still free.
    fn left(&mut self) -> usize;
    /// Begins a turn: makes `wanted` bytes available, or as many of them as the system has.
    fn refill(&mut self, wanted: usize);
    /// Whether a piece of `bytes` bytes can be taken so that `left` other bytes stay free.
    fn has_piece(&mut self, bytes: usize, left: usize) -> bool {
        self.left() >= left && probe(bytes).is_ok()
    }
}

/// How much memory the daemon may still take.
#[derive(Debug)]
pub struct Memory {
    /// The source of memory; `None` if memory is unlimited.
    supply: Option<Box<dyn Supply>>,
    marks: Marks,
    /// The level that requires the least memory, of those for which too little memory was free in
    /// this turn.
    refused: Option<Level>,
    /// Whether resident memory is limited. Memory becomes resident when it is first written to.
    pub limits_resident: bool,
}

impl Default for Memory {
    /// Unlimited memory, with the marks of a daemon without a binlog.
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

    /// Begins a turn: makes freed memory available again, and forgets for which levels there was
    /// not enough memory.
    pub fn begin_turn(&mut self) {
        self.refused = None;
        if let Some(supply) = &mut self.supply {
            supply.refill(self.marks[Level::Plenty as usize]);
        }
    }

    /// Whether as much memory is free as `level` requires. O(1).
    #[inline]
    pub fn admits(&mut self, level: Level) -> bool {
        let Some(supply) = &mut self.supply else { return true };
        let is_left = supply.left() >= self.marks[level as usize];
        if !is_left && self.refused.is_none_or(|lowest| level < lowest) {
            self.refused = Some(level);
        }
        is_left
    }

    /// Whether a piece of `bytes` bytes can be taken, and then as much memory as `level` requires
    /// is still free.
    pub fn has_piece(&mut self, bytes: usize, level: Level) -> bool {
        let left = self.marks[level as usize];
        match &mut self.supply {
            Some(supply) => supply.has_piece(bytes, left),
            None => probe(bytes).is_ok(),
        }
    }

    /// Whether `bytes` bytes can be taken so that at least the memory that `level` requires stays
    /// free.
    pub(super) fn leaves(&mut self, bytes: usize, level: Level) -> bool {
        let wanted = self.marks[level as usize] + bytes;
        self.supply.as_mut().is_none_or(|supply| supply.left() >= wanted)
    }

    /// Whether a request for memory at `level` or at a lower level was refused in this turn.
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

    /// If replies were refused first, workers could not empty a queue that fills the memory.
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
                assert_eq!(refused, 4 - admitted, "the refused level and all above it");
                memory.begin_turn();
                assert!(!memory.has_refused(Level::Plenty));
            }
        }
    }
}
