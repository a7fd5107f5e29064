//! The memory budget: memory is probed before it is needed.
//!
//! A list that grows cannot report an error: if memory for it is missing, the process ends. So the
//! caller takes the memory from the [`MemoryBudget`] first, while the change can still be refused.
//! The budget probes one step ahead. So most calls cost only a subtraction. The system is called
//! once for each [`PROBE_STEP_BYTES`] of growth, and for each piece larger than [`PIECE_BYTES`].
//! Growth within the capacity of a list costs nothing.
//!
//! There may also be a limit on the total size of bodies.
//!
//! Not everything can be refused: a job whose time to run is over must return to its tube. The
//! memory of such steps is taken in advance, or it is little and comes out of the headroom.

use std::{collections::VecDeque, fmt, hint::black_box, io};

use super::{OutOfMemory, Result};

/// How many bytes a probe requests in advance. Less than any headroom.
const PROBE_STEP_BYTES: usize = 256 << 10;

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
    /// A connection, or a large list.
    Connection,
    /// Another reply for a client that has unsent replies.
    Reply,
    /// A reply for a client that has no unsent replies; a timer that is due.
    Essential,
}

/// By need: bytes that must stay available beside those taken. After a restart the same jobs may be
/// laid out differently, and the first connection must still fit. That is why the first two differ.
const HEADROOM_BYTES: [usize; 4] = [7 << 20, 4 << 20, 3 << 20, 2 << 20];

/// A source of memory. Tests have others, which fail.
pub trait MemorySource: fmt::Debug {
    /// Whether `bytes` in one piece and `headroom` more in smaller ones are available now. Takes
    /// nothing.
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool;
}

/// The system's memory. A probe makes two system calls, which take some microseconds. If one piece
/// is too large, smaller freed pieces are counted, in some ten microseconds.
#[derive(Debug)]
struct SystemMemory;

/// Grants the system's memory only while resident memory is below a limit. The limit on bodies
/// alone would not bound memory that is allocated but unused: parts of lists and blocks.
pub struct ResidentLimit {
    /// How many bytes may be resident, the headroom of all needs included.
    limit: u64,
    /// Reads how many bytes are resident.
    resident: Box<dyn Fn() -> io::Result<u64>>,
}

/// Bytes of resident memory that the limit permits in addition to five quarters of the limit on
/// bodies: for the headroom, the program, and changes between two probes.
const RESIDENT_EXTRA_BYTES: u64 = 9_000_000;

impl ResidentLimit {
    /// Makes the limit that belongs to a limit of `bytes` on bodies: five quarters of it, plus at
    /// most 10 MB. `resident` reads how many bytes are resident.
    pub fn beside(bytes: u64, resident: impl Fn() -> io::Result<u64> + 'static) -> Self {
        let limit = bytes.saturating_add(bytes / 4).saturating_add(RESIDENT_EXTRA_BYTES);
        Self { limit, resident: Box::new(resident) }
    }
}

impl fmt::Debug for ResidentLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} bytes resident", self.limit)
    }
}

impl MemorySource for ResidentLimit {
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool {
        let more = bytes.saturating_add(headroom) as u64;
        // If it cannot be read, only the system's memory is the limit.
        let is_beyond = (self.resident)().is_ok_and(|now| now.saturating_add(more) > self.limit);
        !is_beyond && SystemMemory.can_allocate(bytes, headroom)
    }
}

/// The size of a smaller piece in bytes, enough for any small allocation.
const PIECE_BYTES: usize = 64 << 10;

/// The most pieces that one probe counts: enough for the largest headroom.
const PIECES_MAX: usize = HEADROOM_BYTES[0] / PIECE_BYTES;

/// Allocates `bytes` in one piece, if they are available.
fn try_piece(bytes: usize) -> Option<Vec<u8>> {
    let mut piece: Vec<u8> = Vec::new();
    let is_granted = piece.try_reserve_exact(bytes).is_ok();
    // Otherwise the compiler would see that the memory is unused, and not allocate it.
    black_box(&mut piece);
    is_granted.then_some(piece)
}

impl MemorySource for SystemMemory {
    fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool {
        if try_piece(bytes.saturating_add(headroom)).is_some() {
            return true;
        }
        let first = try_piece(bytes);
        let mut pieces = [const { None }; PIECES_MAX];
        first.is_some()
            && pieces[..headroom.div_ceil(PIECE_BYTES)].iter_mut().all(|piece| {
                *piece = try_piece(PIECE_BYTES);
                piece.is_some()
            })
    }
}

/// The memory that may be taken.
#[derive(Debug)]
pub struct MemoryBudget {
    source: Box<dyn MemorySource>,
    step: usize,
    /// The most headroom of any need, in bytes.
    headroom_limit: usize,
    /// Bytes left from the latest probe. If this is below zero, the next call must probe again.
    left: isize,
    /// The first need that the latest probe granted them to.
    granted_from: usize,
    /// By need: probes of at least this many bytes would fail, because one of that size has failed
    /// since [`MemoryBudget::forget_refusals`].
    refused_from: [usize; HEADROOM_BYTES.len()],
    /// Whether each turn begins without memory from earlier probes.
    is_probed_each_turn: bool,
    /// What all bodies count towards the limit, in bytes; and the limit.
    body_bytes: u64,
    body_limit: u64,
}

/// The value of `refused_from` if no probe has failed.
const NOTHING_REFUSED: usize = usize::MAX;

impl Default for MemoryBudget {
    fn default() -> Self {
        Self {
            source: Box::new(SystemMemory),
            step: PROBE_STEP_BYTES,
            headroom_limit: usize::MAX,
            left: 0,
            granted_from: HEADROOM_BYTES.len(),
            refused_from: [NOTHING_REFUSED; HEADROOM_BYTES.len()],
            is_probed_each_turn: false,
            body_bytes: 0,
            body_limit: u64::MAX,
        }
    }
}

impl MemoryBudget {
    /// Keeps resident memory below `limit` from now on.
    pub fn limit_resident(&mut self, limit: ResidentLimit) {
        self.set_source(Box::new(limit), PROBE_STEP_BYTES);
        // Memory that was granted becomes resident when it is first written to.
        self.is_probed_each_turn = true;
    }

    /// Takes memory from `source` from now on, probing `step` bytes ahead; with 0, probes at each
    /// call.
    pub fn set_source(&mut self, source: Box<dyn MemorySource>, step: usize) {
        (self.source, self.step) = (source, step);
        self.granted_from = HEADROOM_BYTES.len();
        self.forget_refusals();
    }

    /// Limits the headroom of all needs to `bytes`; `usize::MAX` restores it. At startup there are
    /// no clients yet, and jobs that fitted before must find memory.
    pub fn limit_headroom(&mut self, bytes: usize) {
        self.headroom_limit = bytes;
        self.granted_from = HEADROOM_BYTES.len();
    }

    /// Limits what all bodies count in total, in bytes. Existing bodies stay.
    pub fn set_body_limit(&mut self, bytes: u64) {
        self.body_limit = bytes;
    }

    /// What all bodies count towards the limit, in bytes.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Whether the limit permits bodies of `bytes` more bytes.
    pub(super) fn admits_body_bytes(&self, bytes: u64) -> bool {
        self.body_bytes.saturating_add(bytes) <= self.body_limit
    }

    /// Adds `bytes` to the total size of bodies.
    pub fn add_body_bytes(&mut self, bytes: u64) {
        self.body_bytes += bytes;
    }

    /// Subtracts `bytes` from the total size of bodies.
    pub fn remove_body_bytes(&mut self, bytes: u64) {
        self.body_bytes -= bytes;
    }

    /// Allows refused needs to be probed again. Call it once a turn: more probes would be in vain.
    pub fn forget_refusals(&mut self) {
        self.refused_from = [NOTHING_REFUSED; HEADROOM_BYTES.len()];
        if self.is_probed_each_turn {
            self.granted_from = HEADROOM_BYTES.len();
        }
    }

    /// Whether even a few bytes were refused to this need since [`MemoryBudget::forget_refusals`].
    /// Does not probe.
    pub fn was_refused(&self, need: Need) -> bool {
        self.refused_from[need as usize] == 0
    }

    /// Whether `count` bytes may be taken. O(1), and rarely makes a system call.
    #[inline]
    pub fn admits(&mut self, need: Need, count: usize) -> bool {
        (self.left >= bytes(count) && need as usize >= self.granted_from) || self.probe(need, count)
    }

    #[cold]
    fn probe(&mut self, need: Need, count: usize) -> bool {
        // Usually there is enough for all needs, and one probe suffices.
        (need > Need::Storage && self.probe_for(Need::Storage, count))
            || self.probe_for(need, count)
    }

    fn probe_for(&mut self, need: Need, count: usize) -> bool {
        let at = need as usize;
        if count >= self.refused_from[at] {
            return false;
        }
        // A large piece leaves nothing over: the next request may be as large.
        let ahead = count.max(self.step);
        if self.source.can_allocate(ahead, HEADROOM_BYTES[at].min(self.headroom_limit)) {
            self.left = if self.step == 0 { 0 } else { bytes(ahead) };
            self.granted_from = at;
            return true;
        }
        if count <= self.step {
            self.granted_from = self.granted_from.max(at + 1);
            self.refused_from[at] = 0;
        } else if self.step > 0 {
            self.refused_from[at] = count;
        }
        false
    }

    /// Takes `count` bytes. Fails, and takes nothing, if they are not available.
    #[inline]
    pub fn take(&mut self, need: Need, count: usize) -> Result {
        // Memory that was probed before may be available only in pieces.
        let is_granted =
            if count > PIECE_BYTES { self.probe(need, count) } else { self.admits(need, count) };
        if !is_granted {
            return Err(OutOfMemory);
        }
        self.deduct(count);
        Ok(())
    }

    /// Takes `count` bytes without a check, because [`MemoryBudget::admits`] has granted them.
    #[inline]
    pub fn deduct(&mut self, count: usize) {
        self.left = self.left.saturating_sub(bytes(count));
    }

    /// Returns `count` bytes that were taken.
    #[inline]
    pub fn credit(&mut self, count: usize) {
        self.left = self.left.saturating_add(bytes(count)).min(bytes(self.step));
    }

    /// Deducts the growth of a buffer, or credits its shrinkage, in bytes.
    #[inline]
    pub fn on_resize(&mut self, before: usize, after: usize) {
        self.deduct(after);
        self.credit(before);
    }

    /// Grows a list's capacity to at least `length` items. Fails, and leaves the list as it was, if
    /// there is no memory. O(1), unless the list is reallocated.
    #[inline]
    pub fn grow_vec<T>(&mut self, need: Need, list: &mut Vec<T>, length: usize) -> Result {
        if list.capacity() >= length {
            return Ok(());
        }
        let capacity = self.take_for::<T>(need, list.capacity(), length)?;
        list.try_reserve_exact(capacity - list.len()).map_err(|_| OutOfMemory)
    }

    /// Grows a deque's capacity to at least `length` items. Fails, and leaves the deque as it was,
    /// if there is no memory. O(1), unless the deque is reallocated.
    #[inline]
    pub fn grow_deque<T>(&mut self, need: Need, deque: &mut VecDeque<T>, length: usize) -> Result {
        if deque.capacity() >= length {
            return Ok(());
        }
        let capacity = self.take_for::<T>(need, deque.capacity(), length)?;
        deque.try_reserve_exact(capacity - deque.len()).map_err(|_| OutOfMemory)
    }

    /// Takes the memory for reallocating a list, and returns its next capacity: twice the previous
    /// one, or an eighth more for a large list. The kernel moves a large list without copying it.
    #[cold]
    fn take_for<T>(&mut self, need: Need, before: usize, length: usize) -> Result<usize> {
        let is_large = before * size_of::<T>() >= LARGE_LIST_BYTES;
        let more = if is_large { before / 8 } else { before.max(4) };
        let capacity = length.max(before + more);
        let is_small = capacity.saturating_mul(size_of::<T>()) <= SMALL_GROWTH_MAX_BYTES;
        let need = if is_small { need } else { need.min(Need::Connection) };
        self.take(need, (capacity - before).saturating_mul(size_of::<T>())).map(|()| capacity)
    }
}

/// A count of bytes as a signed number, saturating.
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

    /// A memory source with this many bytes, which counts probes.
    #[derive(Debug, Clone, Default)]
    struct Limited {
        bytes: Arc<AtomicUsize>,
        probes: Arc<AtomicUsize>,
    }

    impl MemorySource for Limited {
        fn can_allocate(&mut self, bytes: usize, headroom: usize) -> bool {
            self.probes.fetch_add(1, Relaxed);
            bytes.saturating_add(headroom) <= self.bytes.load(Relaxed)
        }
    }

    fn limited(memory: &Limited) -> MemoryBudget {
        let mut budget = MemoryBudget::default();
        budget.set_source(Box::new(memory.clone()), PROBE_STEP_BYTES);
        budget
    }

    /// With just enough memory for one need, the needs after it are granted, too.
    fn check_needs(mut with: impl FnMut(usize) -> MemoryBudget) {
        let needs = [Need::Storage, Need::Connection, Need::Reply, Need::Essential];
        for (at, headroom) in HEADROOM_BYTES.into_iter().enumerate() {
            for missing in [0, 1] {
                let mut budget = with(headroom + PROBE_STEP_BYTES - missing);
                let count = needs.iter().filter(|&&need| budget.admits(need, 1000)).count();
                assert_eq!(count, needs.len() - at - missing, "beside {headroom} bytes");
            }
        }
    }

    #[test]
    fn later_needs_may_use_more_of_the_headroom() {
        check_needs(|bytes| {
            let memory = Limited::default();
            memory.bytes.store(bytes, Relaxed);
            limited(&memory)
        });
    }

    #[test]
    fn memory_that_is_resident_counts_whoever_has_it() {
        let limit = 50_000_000 + RESIDENT_EXTRA_BYTES;
        check_needs(|bytes| {
            let mut budget = MemoryBudget::default();
            let resident = limit - bytes as u64;
            budget.limit_resident(ResidentLimit::beside(40_000_000, move || Ok(resident)));
            budget
        });
    }

    /// Granted memory becomes resident only when it is first written to, so resident memory would
    /// grow further.
    #[test]
    fn resident_memory_is_read_in_each_turn() {
        let resident = Arc::new(AtomicUsize::new(0));
        let reading = resident.clone();
        let mut budget = MemoryBudget::default();
        let read = move || Ok(reading.load(Relaxed) as u64);
        budget.limit_resident(ResidentLimit::beside(40_000_000, read));
        assert!(budget.admits(Need::Storage, 1000));
        resident.store(59_000_000, Relaxed);
        budget.forget_refusals();
        assert!(!budget.admits(Need::Essential, 1000));
    }

    #[test]
    fn an_absurd_request_fails_alone() {
        let mut budget = MemoryBudget::default();
        assert!(budget.admits(Need::Storage, 0));
        assert!(!budget.admits(Need::Storage, usize::MAX));
        #[cfg(target_pointer_width = "64")]
        assert!(!budget.admits(Need::Storage, 1 << 62));
        assert!(budget.admits(Need::Storage, 1), "too much for one need is not a shortage for all");
    }

    #[test]
    fn a_probe_covers_a_step_and_no_more() {
        let memory = Limited::default();
        memory.bytes.store(usize::MAX, Relaxed);
        let mut budget = limited(&memory);
        for _ in 0..100 {
            budget.take(Need::Storage, PROBE_STEP_BYTES / 100).expect("there is memory");
        }
        assert_eq!(memory.probes.load(Relaxed), 1);
        // Memory that is alternately taken and credited needs no probe each time.
        for _ in 0..1000 {
            budget.take(Need::Storage, PROBE_STEP_BYTES / 10).expect("there is memory");
            budget.credit(PROBE_STEP_BYTES / 10);
        }
        assert_eq!(memory.probes.load(Relaxed), 2);
    }

    #[test]
    fn a_refused_need_is_not_probed_until_refusals_are_forgotten() {
        let memory = Limited::default();
        let mut budget = limited(&memory);
        for _ in 0..10 {
            assert_eq!(budget.take(Need::Storage, 1), Err(OutOfMemory));
            budget.credit(1 << 20);
        }
        assert_eq!(memory.probes.load(Relaxed), 1, "and the memory returned is not enough");
        memory.bytes.store(usize::MAX, Relaxed);
        budget.forget_refusals();
        assert_eq!(budget.take(Need::Storage, 1), Ok(()));
    }

    /// A probe in small pieces takes long, and thousands of uploads may want a block each.
    #[test]
    fn a_large_request_that_was_refused_is_not_probed_again_and_small_ones_are() {
        let memory = Limited::default();
        memory.bytes.store(HEADROOM_BYTES[0] + PROBE_STEP_BYTES, Relaxed);
        let mut budget = limited(&memory);
        for _ in 0..10 {
            assert_eq!(budget.take(Need::Storage, 2 * PROBE_STEP_BYTES), Err(OutOfMemory));
        }
        assert_eq!(memory.probes.load(Relaxed), 1);
        assert!(!budget.was_refused(Need::Storage));
        assert_eq!(budget.take(Need::Storage, 1000), Ok(()));
        assert_eq!(memory.probes.load(Relaxed), 2);
        budget.forget_refusals();
        assert_eq!(budget.take(Need::Storage, 2 * PROBE_STEP_BYTES), Err(OutOfMemory));
        assert_eq!(memory.probes.load(Relaxed), 3);
    }

    #[test]
    fn a_list_that_cannot_grow_is_unchanged() {
        let memory = Limited::default();
        let mut budget = limited(&memory);
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
