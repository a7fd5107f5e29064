//! The memory budget: memory is probed before it is needed.
//!
//! A list that grows cannot report an error: if memory for it is missing, the process ends. So the
//! caller takes the memory from the [`MemoryBudget`] first, while the change can still be refused.
//! The budget probes a step ahead. So most calls cost only a subtraction. The system is called once
//! for each step of growth, see [`PROBE_STEPS_BYTES`], and if there are only small pieces, for each
//! piece larger than [`PIECE_BYTES`]. Growth within the capacity of a list costs nothing.
//!
//! There may also be a limit on the total size of bodies.
//!
//! Not everything can be refused: a job whose time to run is over must return to its tube. The
//! memory of such steps is taken in advance, or it is little and comes out of the headroom.

use std::{collections::VecDeque, fmt, hint::black_box};

#[cfg(doc)]
use super::BODY_OVERHEAD_BYTES;
use super::{OutOfMemory, Result};

/// How many bytes a probe requests in advance, and the largest piece that may then be taken without
/// another probe. First it requests one piece with the headroom, which contains pieces of any size,
/// and otherwise small ones. The second number of bytes is less than any headroom, and enough for
/// several commands. With it alone, probes took four percent of the CPU time of a full pipeline.
const PROBE_STEPS_BYTES: [(usize, usize); 2] = [(1 << 20, usize::MAX), (192 << 10, PIECE_BYTES)];

/// A list that grows beyond this many bytes must leave the headroom of [`Need::Connection`].
const SMALL_GROWTH_MAX_BYTES: usize = 4096;

/// A list of at least this many bytes grows by an eighth.
const LARGE_LIST_BYTES: usize = 256 << 10;

/// A purpose of memory. Each need may use memory that the needs listed above it must leave free. So
/// workers can connect and continue when there is no memory for more jobs. And clients that read
/// their replies can continue when there is none for clients that do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Lasting data: jobs, tubes, input that is kept.
    Storage,
    /// Another reply for a client that has unsent replies, a wait for a job, a job that is released
    /// with a delay, another job for a client that has many.
    Reply,
    /// A connection, a part of a line, or a large list.
    Connection,
    /// One of the first few connections, one of the first few jobs that a client reserves.
    Worker,
    /// A reply for a client without unsent replies; a timer that is due. Nothing that lasts, or it
    /// would end all service.
    Essential,
}

/// By need: bytes that must stay available beside those taken, without a binlog. The last of them
/// are for memory that is not counted, such as lines of the log. A connection or a long list must
/// leave enough for one of the few first connections.
const HEADROOM_BYTES: [usize; 5] = [2304 << 10, 2112 << 10, 1792 << 10, 1408 << 10, 1 << 20];

/// The same with a binlog. The records of a turn take up to five quarters of a MiB. And after a
/// restart the same jobs may be laid out differently, and the first connection must still fit: so
/// the first two differ more.
pub const BINLOG_HEADROOM_BYTES: [usize; 5] = [48 << 17, 28 << 17, 24 << 17, 21 << 17, 18 << 17];

/// A source of memory. Tests have others, which fail.
pub trait MemorySource: fmt::Debug {
    /// Whether `bytes` in one piece and `headroom` more in smaller ones are available now. Takes
    /// nothing.
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool;
}

/// The system's memory. A probe makes two system calls, which take some microseconds. If one piece
/// is too large, smaller freed pieces are counted, in some ten microseconds.
#[derive(Debug)]
pub struct SystemMemory;

/// The size of the smallest piece in bytes, enough for any small allocation.
const PIECE_BYTES: usize = 32 << 10;

/// Allocates `bytes` in one piece, if they are available.
fn try_piece(bytes: usize) -> Option<Vec<u8>> {
    let mut piece = Vec::new();
    piece.try_reserve_exact(bytes).ok()?;
    // Otherwise the compiler would see that the memory is unused, and not allocate it.
    Some(black_box(piece))
}

/// Whether `total` bytes are available in pieces of at most `largest` bytes, beside each other.
fn can_allocate_pieces(total: usize, largest: usize) -> bool {
    let size = largest.min(total).max(PIECE_BYTES);
    total == 0
        || match try_piece(size) {
            Some(_piece) => can_allocate_pieces(total.saturating_sub(size), size),
            None => size > PIECE_BYTES && can_allocate_pieces(total, size / 4 * 3),
        }
}

impl MemorySource for SystemMemory {
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool {
        try_piece(bytes).is_some_and(|_piece| can_allocate_pieces(headroom, headroom))
    }
}

/// The memory that may be taken.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    /// The system's memory, unless it is another source.
    source: Option<Box<dyn MemorySource>>,
    /// Whether each call probes, and none in advance.
    is_exact: bool,
    /// The headroom, unless it is the one without a binlog.
    headroom: Option<[usize; 5]>,
    /// Bytes left from the latest probe. Memory that is freed is not added, so the next probe may
    /// come sooner than it must.
    left: usize,
    /// The first need that the latest probe granted them to.
    granted_from: usize,
    /// The largest piece in bytes that they are sure to contain.
    piece_max: usize,
    /// By need: probes of at least this many bytes would fail, because one of that size has failed
    /// since [`MemoryBudget::forget_refusals`].
    refused_from: [Option<usize>; HEADROOM_BYTES.len()],
    /// Whether resident memory is limited. Memory becomes resident when it is first written to, so
    /// each turn begins without memory from earlier probes.
    pub limits_resident: bool,
    /// What all bodies count towards the limit, in bytes.
    pub body_bytes: u64,
    /// The limit on that, if there is one. Bodies that exceed it stay.
    pub body_limit: Option<u64>,
}

impl MemoryBudget {
    /// Takes memory from `source` from now on. If `is_exact`, asks it at each call.
    pub fn set_source(&mut self, source: Box<dyn MemorySource>, is_exact: bool) {
        (self.source, self.is_exact, self.left) = (Some(source), is_exact, 0);
    }

    /// Sets the headroom. At startup there are no clients yet, and jobs that fitted before must
    /// find memory.
    pub fn set_headroom(&mut self, headroom: [usize; 5]) {
        (self.headroom, self.left) = (Some(headroom), 0);
    }

    /// Fails if the limit does not permit `bytes` more bytes of bodies, each counted with
    /// [`BODY_OVERHEAD_BYTES`].
    pub fn ensure_limit_permits(&self, bytes: u64) -> Result {
        let all = self.body_bytes.saturating_add(bytes);
        if self.body_limit.is_none_or(|limit| all <= limit) { Ok(()) } else { Err(OutOfMemory) }
    }

    /// Allows refused needs to be probed again. Call it once a turn: more probes would be in vain.
    pub fn forget_refusals(&mut self) {
        self.refused_from = Default::default();
        if self.limits_resident {
            self.left = 0;
        }
    }

    /// Whether less than a step was refused to this need, or to one that may use more of the
    /// headroom, since [`MemoryBudget::forget_refusals`]. Does not probe.
    pub fn was_refused(&self, need: Need) -> bool {
        self.refused_from[need as usize..].iter().flatten().any(|&it| it <= PROBE_STEPS_BYTES[0].0)
    }

    /// Whether `count` bytes in one piece may be taken. O(1), and rarely makes a system call.
    #[inline]
    pub fn admits(&mut self, need: Need, count: usize) -> bool {
        let is_left = self.left >= count && self.piece_max >= count;
        (is_left && need as usize >= self.granted_from) || self.probe(need, count)
    }

    #[cold]
    fn probe(&mut self, need: Need, count: usize) -> bool {
        let steps = if self.is_exact { &[(0, PIECE_BYTES)][..] } else { &PROBE_STEPS_BYTES };
        // Usually there is enough for all needs, and one probe suffices.
        for need in [Need::Storage, need] {
            if self.refused_from[need as usize].is_some_and(|bytes| count >= bytes) {
                continue;
            }
            let headroom = self.headroom.unwrap_or(HEADROOM_BYTES)[need as usize];
            for &(step, piece) in steps {
                let more = step.saturating_sub(count);
                let apart = if piece == PIECE_BYTES { headroom + more } else { 0 };
                let together = count.saturating_add(headroom + more - apart);
                let source = self.source.get_or_insert_with(|| Box::new(SystemMemory));
                if source.can_allocate(together, apart) {
                    self.left = if self.is_exact { 0 } else { count + more };
                    (self.piece_max, self.granted_from) = (piece, need as usize);
                    return true;
                }
            }
            let refused = if count > PIECE_BYTES { count } else { 0 };
            self.refused_from[need as usize] = (!self.is_exact).then_some(refused);
        }
        false
    }

    /// Takes `count` bytes. Fails, and takes nothing, if they are not available.
    #[inline]
    pub fn take(&mut self, need: Need, count: usize) -> Result {
        self.admits(need, count).then(|| self.deduct(count)).ok_or(OutOfMemory)
    }

    /// Takes `count` bytes without a check, because [`MemoryBudget::admits`] has granted them.
    #[inline]
    pub fn deduct(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
    }

    /// Grows a list's capacity to at least `length` items. Fails, and leaves the list as it was, if
    /// there is no memory. O(1), unless the list is reallocated.
    #[inline]
    pub fn grow_vec<T>(&mut self, need: Need, list: &mut Vec<T>, length: usize) -> Result {
        let capacity = self.take_for::<T>(need, list.capacity(), length)?;
        list.try_reserve_exact(capacity - list.len()).map_err(|_| OutOfMemory)
    }

    /// Grows a deque's capacity to at least `length` items. Fails, and leaves the deque as it was,
    /// if there is no memory. O(1), unless the deque is reallocated.
    #[inline]
    pub fn grow_deque<T>(&mut self, need: Need, deque: &mut VecDeque<T>, length: usize) -> Result {
        let capacity = self.take_for::<T>(need, deque.capacity(), length)?;
        deque.try_reserve_exact(capacity - deque.len()).map_err(|_| OutOfMemory)
    }

    /// Takes the memory for growing a list, and returns its next capacity: the previous one if that
    /// suffices; or twice that, or an eighth more for a large list. The kernel moves a large list
    /// without copying it.
    #[inline]
    fn take_for<T>(&mut self, need: Need, before: usize, length: usize) -> Result<usize> {
        if before >= length {
            return Ok(before);
        }
        let is_large = before * size_of::<T>() >= LARGE_LIST_BYTES;
        let capacity = length.max(before + if is_large { before / 8 } else { before.max(4) });
        let is_small = capacity.saturating_mul(size_of::<T>()) <= SMALL_GROWTH_MAX_BYTES;
        let need = if is_small { need } else { need.min(Need::Connection) };
        self.take(need, (capacity - before).saturating_mul(size_of::<T>())).map(|()| capacity)
    }
}

#[cfg(test)]
mod tests;
