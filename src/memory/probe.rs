//! Whether there is memory, tried before it is needed.
//!
//! A list that grows cannot refuse: where memory for it is missing, the process ends. So whoever
//! is about to make something grow takes the memory for it from the [`Room`], as long as that can
//! still be refused. The room is tried a step ahead: most of what is taken costs a subtraction, and
//! a call to the system only once in [`PROBE_STEP_BYTES`] bytes of growth. Growth within what a
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
    More,
    /// A connection, or a large list.
    Connection,
    /// One more reply for a client that has not been sent all those before.
    Reply,
    /// A reply for a client that has been sent all others; something that falls due.
    Least,
}

/// How many bytes must be left beside what is asked for, for each need. After a start, the same
/// jobs lie otherwise in memory, and the first connection must find some nevertheless: hence the
/// distance between the first two.
const SPARE_BYTES: [usize; 4] = [7 << 20, 4 << 20, 3 << 20, 2 << 20];

/// Where memory comes from. Tests have others, which refuse.
pub trait Memory: fmt::Debug {
    /// Whether `bytes` in one piece could be had now, and `spare` more in smaller ones. Takes
    /// nothing.
    fn is_there(&mut self, bytes: usize, spare: usize) -> bool;
}

/// The system's memory: two calls to the system for each try, some microseconds. If there is too
/// little in one piece, what was freed between other things is counted: some ten microseconds.
#[derive(Debug)]
struct System;

/// A piece of memory in bytes that is surely enough for anything small.
const PIECE_BYTES: usize = 64 << 10;

/// The most pieces that are tried together: enough for what is spared.
const PIECES_MAX: usize = SPARE_BYTES[0] / PIECE_BYTES;

/// So many bytes in one piece, if they can be had.
fn try_piece(bytes: usize) -> Option<Vec<u8>> {
    let mut piece: Vec<u8> = Vec::new();
    let is_there = piece.try_reserve_exact(bytes).is_ok();
    // Or the compiler would see that the memory is not used, and not ask for it.
    black_box(&mut piece);
    is_there.then_some(piece)
}

impl Memory for System {
    fn is_there(&mut self, bytes: usize, spare: usize) -> bool {
        if try_piece(bytes.saturating_add(spare)).is_some() {
            return true;
        }
        let Some(_first) = try_piece(bytes) else { return false };
        let mut pieces = [const { Vec::<u8>::new() }; PIECES_MAX];
        let count = spare.div_ceil(PIECE_BYTES);
        count <= PIECES_MAX
            && pieces[..count].iter_mut().all(|piece| {
                let made = try_piece(PIECE_BYTES);
                let is_there = made.is_some();
                *piece = made.unwrap_or_default();
                is_there
            })
    }
}

/// Memory that may be taken.
#[derive(Debug)]
pub struct Room {
    memory: Box<dyn Memory>,
    step: isize,
    /// For each need: so many bytes must be left beside it.
    spare: [usize; SPARE_BYTES.len()],
    /// For each need: so many bytes are left of what was tried last. Below zero where it must be
    /// tried again.
    left: [isize; SPARE_BYTES.len()],
    /// It was tried in vain since [`Room::renew`].
    is_refused: [bool; SPARE_BYTES.len()],
    /// What all bodies count for, in bytes; and how much that may be.
    held: u64,
    ceiling: u64,
}

/// Nothing is left, and what is given back does not change that.
const NOTHING: isize = isize::MIN / 2;

impl Default for Room {
    fn default() -> Self {
        Self::new(Box::new(System), PROBE_STEP_BYTES)
    }
}

impl Room {
    /// Memory from there, tried so many bytes ahead; with zero, tried each time.
    pub fn new(memory: Box<dyn Memory>, step: usize) -> Self {
        Self {
            memory,
            step: bytes(step),
            spare: SPARE_BYTES,
            left: [NOTHING; SPARE_BYTES.len()],
            is_refused: [false; SPARE_BYTES.len()],
            held: 0,
            ceiling: u64::MAX,
        }
    }

    /// Goes on with memory from somewhere else.
    pub fn change_memory(&mut self, memory: Box<dyn Memory>, step: usize) {
        let Self { spare, held, ceiling, .. } = *self;
        *self = Self { spare, held, ceiling, ..Self::new(memory, step) };
    }

    /// Spares no more than so many bytes from now on, whatever the need, or again what it spares
    /// otherwise: a start, when there are no clients yet, must find room for what fitted before.
    pub fn set_spare(&mut self, bytes: Option<usize>) {
        self.spare = SPARE_BYTES.map(|spare| bytes.map_or(spare, |bytes| spare.min(bytes)));
        self.left = [NOTHING; SPARE_BYTES.len()];
    }

    /// Refuses what would make bodies count for more than so many bytes. What is there stays.
    pub fn set_ceiling(&mut self, bytes: u64) {
        self.ceiling = bytes;
    }

    /// What all bodies count for, in bytes.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether the ceiling allows so many bytes more.
    pub(super) fn may_hold(&self, bytes: u64) -> bool {
        self.held.saturating_add(bytes) <= self.ceiling
    }

    /// Counts so many bytes of bodies.
    pub fn hold(&mut self, bytes: u64) {
        self.held += bytes;
    }

    /// They are gone.
    pub fn let_go(&mut self, bytes: u64) {
        self.held -= bytes;
    }

    /// What was refused may be tried again: for once a turn, lest everybody try in vain.
    pub fn renew(&mut self) {
        self.is_refused = [false; SPARE_BYTES.len()];
    }

    /// Whether this need was refused since [`Room::renew`]. Tries nothing.
    pub fn is_refused(&self, need: Need) -> bool {
        self.is_refused[need as usize]
    }

    /// Whether `count` bytes may be taken. O(1), and seldom a call to the system.
    #[inline]
    pub fn has(&mut self, need: Need, count: usize) -> bool {
        self.left[need as usize] >= bytes(count) || self.is_there(need, count)
    }

    #[cold]
    fn is_there(&mut self, need: Need, count: usize) -> bool {
        let at = need as usize;
        if self.is_refused[at] && bytes(count) <= self.step {
            return false;
        }
        let asked = bytes(count);
        // Mostly there is enough for all needs, and one try is enough.
        let most = Need::More as usize;
        let first = if self.is_refused[most] { at } else { most };
        for tried in [first, at] {
            let ahead = count.saturating_add(self.step.unsigned_abs());
            if self.memory.is_there(ahead, self.spare[tried]) {
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
        let is_there =
            if count > PIECE_BYTES { self.is_there(need, count) } else { self.has(need, count) };
        if !is_there {
            return Err(OutOfMemory);
        }
        self.spend(count);
        Ok(())
    }

    /// Takes `count` bytes that nobody can refuse any more: [`Room::has`] has granted them.
    #[inline]
    pub fn spend(&mut self, count: usize) {
        for left in &mut self.left {
            *left = left.saturating_sub(bytes(count));
        }
    }

    /// Gives back `count` bytes that were taken.
    #[inline]
    pub fn give(&mut self, count: usize) {
        for left in &mut self.left {
            if *left < self.step {
                *left = left.saturating_add(bytes(count)).min(self.step);
            }
        }
    }

    /// Takes what a buffer has grown by, or gives back what it has shrunk by.
    #[inline]
    pub fn follow(&mut self, before: usize, after: usize) {
        if after > before {
            self.spend(after - before);
        } else if after < before {
            self.give(before - after);
        }
    }

    /// Makes a list long enough for `length` items in all. Fails where there is no memory for it:
    /// the list is as it was. O(1), unless the list must move.
    #[inline]
    pub fn grow<T>(
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
    pub fn grow_line<T>(
        &mut self,
        need: Need,
        line: &mut VecDeque<T>,
        length: usize,
    ) -> Result<(), OutOfMemory> {
        if line.capacity() >= length {
            return Ok(());
        }
        self.take_for::<T>(need, line.capacity(), length)?;
        line.try_reserve(length - line.len()).map_err(|_| OutOfMemory)
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
        self.give(before * size_of::<T>());
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

    impl Memory for Limited {
        fn is_there(&mut self, bytes: usize, spare: usize) -> bool {
            self.tries.fetch_add(1, Relaxed);
            bytes.saturating_add(spare) <= self.bytes.load(Relaxed)
        }
    }

    #[test]
    fn what_no_machine_has_is_not_there() {
        let mut room = Room::default();
        assert!(room.has(Need::More, 0));
        assert!(!room.has(Need::More, usize::MAX));
        assert!(!room.has(Need::More, 1 << 62));
        assert!(room.has(Need::More, 1), "what is too much for one is not missing for all");
    }

    #[test]
    fn a_try_covers_a_step_and_no_more() {
        let memory = Limited::default();
        memory.bytes.store(usize::MAX, Relaxed);
        let mut room = Room::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        for _ in 0..100 {
            room.take(Need::More, PROBE_STEP_BYTES / 100).expect("there is memory");
        }
        assert_eq!(memory.tries.load(Relaxed), 1);
        // What comes and goes is not tried again and again.
        for _ in 0..1000 {
            room.take(Need::More, PROBE_STEP_BYTES / 10).expect("there is memory");
            room.give(PROBE_STEP_BYTES / 10);
        }
        assert_eq!(memory.tries.load(Relaxed), 2);
    }

    #[test]
    fn who_needs_less_goes_on_longer() {
        let memory = Limited::default();
        let mut room = Room::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        let needs = [Need::More, Need::Connection, Need::Reply, Need::Least];
        for (mebibytes, granted) in [(8, 4), (7, 3), (5, 3), (4, 2), (3, 1), (2, 0), (8, 4)] {
            memory.bytes.store(mebibytes << 20, Relaxed);
            room.renew();
            room.left = [NOTHING; SPARE_BYTES.len()];
            let count = needs.iter().filter(|&&need| room.has(need, 1000)).count();
            assert_eq!(count, granted, "with {mebibytes} MiB");
        }
    }

    #[test]
    fn what_is_refused_is_not_tried_again_until_it_may_be() {
        let memory = Limited::default();
        let mut room = Room::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        for _ in 0..10 {
            assert_eq!(room.take(Need::More, 1), Err(OutOfMemory));
            room.give(1 << 20);
        }
        assert_eq!(memory.tries.load(Relaxed), 1, "and what is given back is not enough");
        memory.bytes.store(usize::MAX, Relaxed);
        room.renew();
        assert_eq!(room.take(Need::More, 1), Ok(()));
    }

    #[test]
    fn a_list_that_cannot_grow_is_as_it_was() {
        let memory = Limited::default();
        let mut room = Room::new(Box::new(memory.clone()), PROBE_STEP_BYTES);
        let (mut list, mut line) = (vec![1, 2, 3], VecDeque::from([1, 2, 3]));
        let (long, deep) = (list.capacity(), line.capacity());
        assert_eq!(room.grow(Need::Least, &mut list, 1000), Err(OutOfMemory));
        assert_eq!(room.grow_line(Need::Least, &mut line, 1000), Err(OutOfMemory));
        assert_eq!((list.capacity(), line.capacity()), (long, deep));
        memory.bytes.store(usize::MAX, Relaxed);
        room.renew();
        assert_eq!(room.grow(Need::Least, &mut list, 1000), Ok(()));
        assert_eq!(room.grow_line(Need::Least, &mut line, 1000), Ok(()));
        assert!(list.capacity() >= 1000 && line.capacity() >= 1000);
    }
}
