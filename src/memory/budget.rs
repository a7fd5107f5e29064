//! Whether there is memory, tried before it is needed.
//!
//! A list that grows cannot refuse: where memory for it is missing, the process ends. So whoever is
//! about to make something grow takes the memory for it from the [`MemoryBudget`], as long as that
//! can still be refused. The room is tried a step ahead: most of what is taken costs a subtraction,
//! and a call to the system only once in [`PROBE_STEP_BYTES`] bytes of growth. Growth within what a
//! list has room for already costs nothing at all.
//!
//! Beside what there is, there may be a ceiling on what bodies may count for.
//!
//! Not everything can be refused: a job whose time is over must go somewhere. What such steps need
//! is either had before, or is little, and comes out of what is spared.

use std::{collections::VecDeque, fmt, hint::black_box};

/// There is no memory, or none is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// How far a try reaches, in bytes. Less than what is spared.
const PROBE_STEP_BYTES: usize = 512 << 10;

/// A list that grows by more bytes than this at once must leave as much as a connection.
const SMALL_GROWTH_MAX_BYTES: usize = 4096;

/// What memory is asked for. The later ones may use what the earlier ones must spare, so that
/// clients who work jobs off can connect and go on where there is no room for more jobs, and those
/// who read their replies go on where there is none for those who do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Something that stays: jobs, tubes, input that is kept.
    Storage,
    /// A connection, or a large list.
    Connection,
    /// One more reply for a client that has not been sent all those before.
    Reply,
    /// A reply for a client that has been sent all others; something that falls due.
    Essential,
}

/// How many bytes must be left beside what is asked for, for each need. After a start, the same
/// jobs lie otherwise in memory, and the first connection must find some nevertheless: hence the
/// distance between the first two.
const HEADROOM_BYTES: [usize; 4] = [7 << 20, 4 << 20, 3 << 20, 2 << 20];

/// Where memory comes from. Tests have others, which refuse.
pub trait MemorySource: fmt::Debug {
    /// Whether `bytes` in one piece could be had now, and `headroom` more in smaller ones. Takes
    /// nothing.
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool;
}

/// The system's memory: two calls to the system for each try, some microseconds. If there is too
/// little in one piece, what was freed between other things is counted: some ten microseconds.
#[derive(Debug)]
struct SystemMemory;

/// A piece of memory in bytes that is surely enough for anything small.
const PIECE_BYTES: usize = 64 << 10;

/// The most pieces that are tried together: enough for what is spared.
const PIECES_MAX: usize = HEADROOM_BYTES[0] / PIECE_BYTES;

/// So many bytes in one piece, if they can be had.
fn try_piece(bytes: usize) -> Option<Vec<u8>> {
    let mut piece: Vec<u8> = Vec::new();
    let is_granted = piece.try_reserve_exact(bytes).is_ok();
    // Or the compiler would see that the memory is not used, and not ask for it.
    black_box(&mut piece);
    is_granted.then_some(piece)
}

impl MemorySource for SystemMemory {
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool {
        if try_piece(bytes.saturating_add(headroom)).is_some() {
            return true;
        }
        let Some(_first) = try_piece(bytes) else { return false };
        let mut pieces = [const { Vec::<u8>::new() }; PIECES_MAX];
        let count = headroom.div_ceil(PIECE_BYTES);
        count <= PIECES_MAX
            && pieces[..count].iter_mut().all(|piece| {
                let made = try_piece(PIECE_BYTES);
                let is_granted = made.is_some();
                *piece = made.unwrap_or_default();
                is_granted
            })
    }
}

/// Memory that may be taken.
#[derive(Debug)]
pub struct MemoryBudget {
    source: Box<dyn MemorySource>,
    step: isize,
    /// For each need: so many bytes must be left beside it.
    headroom: [usize; HEADROOM_BYTES.len()],
    /// For each need: so many bytes are left of what was tried last. Below zero where it must be
    /// tried again.
    left: [isize; HEADROOM_BYTES.len()],
    /// It was tried in vain since [`MemoryBudget::forget_refusals`].
    is_refused: [bool; HEADROOM_BYTES.len()],
    /// What all bodies count for, in bytes; and how much that may be.
    body_bytes: u64,
    body_limit: u64,
}

/// Nothing is left, and what is given back does not change that.
const NOTHING: isize = isize::MIN / 2;

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(Box::new(SystemMemory), PROBE_STEP_BYTES)
    }
}

impl MemoryBudget {
    /// Memory from there, tried so many bytes ahead; with zero, tried each time.
    pub fn new(source: Box<dyn MemorySource>, step: usize) -> Self {
        Self {
            source,
            step: bytes(step),
            headroom: HEADROOM_BYTES,
            left: [NOTHING; HEADROOM_BYTES.len()],
            is_refused: [false; HEADROOM_BYTES.len()],
            body_bytes: 0,
            body_limit: u64::MAX,
        }
    }

    /// Goes on with memory from somewhere else.
    pub fn set_source(&mut self, source: Box<dyn MemorySource>, step: usize) {
        let Self { headroom, body_bytes, body_limit, .. } = *self;
        *self = Self { headroom, body_bytes, body_limit, ..Self::new(source, step) };
    }

    /// Spares no more than so many bytes from now on, whatever the need, or again what it spares
    /// otherwise: a start, when there are no clients yet, must find room for what fitted before.
    pub fn limit_headroom(&mut self, bytes: Option<usize>) {
        self.headroom =
            HEADROOM_BYTES.map(|headroom| bytes.map_or(headroom, |bytes| headroom.min(bytes)));
        self.left = [NOTHING; HEADROOM_BYTES.len()];
    }

    /// Refuses what would make bodies count for more than so many bytes. What is there stays.
    pub fn set_body_limit(&mut self, bytes: u64) {
        self.body_limit = bytes;
    }

    /// What all bodies count for, in bytes.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Whether the ceiling allows so many bytes more.
    pub(super) fn admits_body_bytes(&self, bytes: u64) -> bool {
        self.body_bytes.saturating_add(bytes) <= self.body_limit
    }

    /// Counts so many bytes of bodies.
    pub fn add_body_bytes(&mut self, bytes: u64) {
        self.body_bytes += bytes;
    }

    /// They are gone.
    pub fn remove_body_bytes(&mut self, bytes: u64) {
        self.body_bytes -= bytes;
    }

    /// What was refused may be tried again: for once a turn, lest everybody try in vain.
    pub fn forget_refusals(&mut self) {
        self.is_refused = [false; HEADROOM_BYTES.len()];
    }

    /// Whether this need was refused since [`MemoryBudget::forget_refusals`]. Tries nothing.
    pub fn was_refused(&self, need: Need) -> bool {
        self.is_refused[need as usize]
    }

    /// Whether `count` bytes may be taken. O(1), and seldom a call to the system.
    #[inline]
    pub fn admits(&mut self, need: Need, count: usize) -> bool {
        self.left[need as usize] >= bytes(count) || self.probe_again(need, count)
    }

    #[cold]
    fn probe_again(&mut self, need: Need, count: usize) -> bool {
        let at = need as usize;
        if self.is_refused[at] && bytes(count) <= self.step {
            return false;
        }
        let asked = bytes(count);
        // Mostly there is enough for all needs, and one try is enough.
        let most = Need::Storage as usize;
        let first = if self.is_refused[most] { at } else { most };
        for tried in [first, at] {
            let ahead = count.saturating_add(self.step.unsigned_abs());
            if self.source.can_allocate(ahead, self.headroom[tried]) {
                let left = if self.step == 0 { 0 } else { self.step.saturating_add(asked) };
                self.left[tried..].fill(left);
                return true;
            }
            if asked <= self.step {
                self.left[tried] = NOTHING;
                self.is_refused[tried] = true;
            }
            if tried == at {
                break;
            }
        }
        false
    }

    /// Takes `count` bytes. Fails, and takes nothing, where they are not there.
    #[inline]
    pub fn take(&mut self, need: Need, count: usize) -> Result<(), OutOfMemory> {
        // What was tried before may be there in pieces only.
        let is_granted = if count > PIECE_BYTES {
            self.probe_again(need, count)
        } else {
            self.admits(need, count)
        };
        if !is_granted {
            return Err(OutOfMemory);
        }
        self.deduct(count);
        Ok(())
    }

    /// Takes `count` bytes that nobody can refuse any more: [`MemoryBudget::admits`] has granted
    /// them.
    #[inline]
    pub fn deduct(&mut self, count: usize) {
        for left in &mut self.left {
            *left = left.saturating_sub(bytes(count));
        }
    }

    /// Gives back `count` bytes that were taken.
    #[inline]
    pub fn credit(&mut self, count: usize) {
        for left in &mut self.left {
            if *left < self.step {
                *left = left.saturating_add(bytes(count)).min(self.step);
            }
        }
    }

    /// Takes what a buffer has grown by, or gives back what it has shrunk by.
    #[inline]
    pub fn on_resize(&mut self, before: usize, after: usize) {
        if after > before {
            self.deduct(after - before);
        } else if after < before {
            self.credit(before - after);
        }
    }

    /// Makes a list long enough for `length` items in all. Fails where there is no memory for it:
    /// the list is as it was. O(1), unless the list must move.
    #[inline]
    pub fn grow_vec<T>(
        &mut self,
        need: Need,
        list: &mut Vec<T>,
        length: usize,
    ) -> Result<(), OutOfMemory> {
        if list.capacity() >= length {
            return Ok(());
        }
        self.take_for::<T>(need, list.capacity(), length)?;
        list.try_reserve(length - list.len()).map_err(|_| OutOfMemory)
    }

    /// The same for a line that is left at its other end.
    #[inline]
    pub fn grow_deque<T>(
        &mut self,
        need: Need,
        deque: &mut VecDeque<T>,
        length: usize,
    ) -> Result<(), OutOfMemory> {
        if deque.capacity() >= length {
            return Ok(());
        }
        self.take_for::<T>(need, deque.capacity(), length)?;
        deque.try_reserve(length - deque.len()).map_err(|_| OutOfMemory)
    }

    /// Takes the memory of a list that moves: it doubles, and begins with four items or so.
    #[cold]
    fn take_for<T>(&mut self, need: Need, before: usize, length: usize) -> Result<(), OutOfMemory> {
        let length = length.max(before.saturating_mul(2)).max(4);
        let size = length.saturating_mul(size_of::<T>());
        self.take(
            if size > SMALL_GROWTH_MAX_BYTES { need.min(Need::Connection) } else { need },
            size,
        )?;
        // The old one goes when the new one is filled.
        self.credit(before * size_of::<T>());
        Ok(())
    }
}

/// A number of bytes, to count with.
#[inline]
fn bytes(count: usize) -> isize {
    isize::try_from(count).unwrap_or(isize::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    /// So much memory, and how often it was asked for.
    #[derive(Debug, Clone, Default)]
    struct Limited {
        bytes: Arc<AtomicUsize>,
        tries: Arc<AtomicUsize>,
    }

    impl MemorySource for Limited {
        fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool {
            self.tries.fetch_add(1, Relaxed);
            bytes.saturating_add(headroom) <= self.bytes.load(Relaxed)
        }
    }

    #[test]
    fn what_no_machine_has_is_not_there() {
        let mut budget = MemoryBudget::default();
        assert!(budget.admits(Need::Storage, 0));
        assert!(!budget.admits(Need::Storage, usize::MAX));
        assert!(!budget.admits(Need::Storage, 1 << 62));
        assert!(budget.admits(Need::Storage, 1), "what is too much for one is not missing for all");
    }

    #[test]
    fn a_try_covers_a_step_and_no_more() {
        let memory = Limited::default();
        memory.bytes.store(usize::MAX, Relaxed);
        let mut budget = MemoryBudget::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        for _ in 0..100 {
            budget.take(Need::Storage, PROBE_STEP_BYTES / 100).expect("there is memory");
        }
        assert_eq!(memory.tries.load(Relaxed), 1);
        // What comes and goes is not tried again and again.
        for _ in 0..1000 {
            budget.take(Need::Storage, PROBE_STEP_BYTES / 10).expect("there is memory");
            budget.credit(PROBE_STEP_BYTES / 10);
        }
        assert_eq!(memory.tries.load(Relaxed), 2);
    }

    #[test]
    fn who_needs_less_goes_on_longer() {
        let memory = Limited::default();
        let mut budget = MemoryBudget::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        let needs = [Need::Storage, Need::Connection, Need::Reply, Need::Essential];
        for (mebibytes, granted) in [(8, 4), (7, 3), (5, 3), (4, 2), (3, 1), (2, 0), (8, 4)] {
            memory.bytes.store(mebibytes << 20, Relaxed);
            budget.forget_refusals();
            budget.left = [NOTHING; HEADROOM_BYTES.len()];
            let count = needs.iter().filter(|&&need| budget.admits(need, 1000)).count();
            assert_eq!(count, granted, "with {mebibytes} MiB");
        }
    }

    #[test]
    fn what_is_refused_is_not_tried_again_until_it_may_be() {
        let memory = Limited::default();
        let mut budget = MemoryBudget::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        for _ in 0..10 {
            assert_eq!(budget.take(Need::Storage, 1), Err(OutOfMemory));
            budget.credit(1 << 20);
        }
        assert_eq!(memory.tries.load(Relaxed), 1, "and what is given back is not enough");
        memory.bytes.store(usize::MAX, Relaxed);
        budget.forget_refusals();
        assert_eq!(budget.take(Need::Storage, 1), Ok(()));
    }

    #[test]
    fn a_list_that_cannot_grow_is_as_it_was() {
        let memory = Limited::default();
        let mut budget = MemoryBudget::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        let (mut list, mut deque) = (vec![1, 2, 3], VecDeque::from([1, 2, 3]));
        let (long, deep) = (list.capacity(), deque.capacity());
        assert_eq!(budget.grow_vec(Need::Essential, &mut list, 1000), Err(OutOfMemory));
        assert_eq!(budget.grow_deque(Need::Essential, &mut deque, 1000), Err(OutOfMemory));
        assert_eq!((list.capacity(), deque.capacity()), (long, deep));
        memory.bytes.store(usize::MAX, Relaxed);
        budget.forget_refusals();
        assert_eq!(budget.grow_vec(Need::Essential, &mut list, 1000), Ok(()));
        assert_eq!(budget.grow_deque(Need::Essential, &mut deque, 1000), Ok(()));
        assert!(list.capacity() >= 1000 && deque.capacity() >= 1000);
    }
}
