//! The allocator, which has ballast: unused memory that is freed if the system refuses an
//! allocation. While there is ballast, no small allocation fails; a failure would end the process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed},
};

/// The size of a piece of ballast in bytes. Each piece is a mapping of its own, unless only the
/// heap has space for the piece.
pub const PIECE_BYTES: usize = 64 * 1024;

/// The largest allocation in bytes for which ballast is freed. For a larger allocation, freeing
/// ballast would not help, because the freed pieces are perhaps not next to each other.
pub const SERVED_MAX_BYTES: usize = 3 * PIECE_BYTES;

/// The maximum number of pieces of ballast.
const PIECES_MAX: usize = 96;

/// Allocations of fewer bytes than this are not counted: in one turn, they take little memory.
const COUNTED_MIN_BYTES: usize = 512;

/// The addresses of the pieces. [`FROM_HEAP`] is added to the address of a piece from the heap.
static PIECES: [AtomicPtr<u8>; PIECES_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; PIECES_MAX];

/// The number of pieces. They are the first entries of `PIECES`; all later entries are empty.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// How many pieces of ballast are from the heap.
static HELD_FROM_HEAP: AtomicUsize = AtomicUsize::new(0);

/// The bytes of all allocations of `COUNTED_MIN_BYTES` or more, plus what [`count_written`] adds.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

const FROM_HEAP: usize = 1;

const PIECE: Layout = match Layout::from_size_align(PIECE_BYTES, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// The system's allocator, with ballast. The daemon installs this allocator; tests need not.
#[derive(Debug)]
pub struct Ballasted;

/// Returns how many bytes of ballast there are.
pub fn held_bytes() -> usize {
    HELD.load(Relaxed) * PIECE_BYTES
}

/// Returns how many bytes were ever allocated, not counting tiny allocations, plus the bytes that
/// calls of [`count_written`] have added.
pub fn allocated_bytes() -> usize {
    ALLOCATED.load(Relaxed)
}

/// Adds `bytes` to [`allocated_bytes`]; the caller has written this many bytes to memory. Memory
/// may be allocated long before, but becomes resident only when it is written.
pub fn count_written(bytes: usize) {
    ALLOCATED.fetch_add(bytes, Relaxed);
}

/// Grows or shrinks the ballast to `bytes` bytes; if memory is short, the ballast may stay smaller.
/// Only the thread of the event loop calls this.
pub fn refill(bytes: usize) {
    let wanted = (bytes / PIECE_BYTES).min(PIECES_MAX);
    while HELD.load(Relaxed) > wanted && free_piece() {}
    while HELD.load(Relaxed) < wanted {
        let Some(piece) = map_piece().or_else(heap_piece) else { return };
        PIECES[HELD.load(Relaxed)].store(piece, Relaxed);
        HELD.fetch_add(1, Relaxed);
    }
    // While a piece is at the heap's end, the C library cannot release the memory below the piece.
    while HELD_FROM_HEAP.load(Relaxed) > 0 {
        let Some(mapped) = map_piece() else { return };
        // Meanwhile another thread may have freed the last piece that came from the heap.
        let slot = PIECES.iter().find(|slot| is_from_heap(slot.load(Relaxed)));
        release(slot.map_or(mapped, |slot| slot.swap(mapped, Relaxed)));
    }
}

/// Whether a piece of ballast is from the C library's heap.
fn is_from_heap(piece: *mut u8) -> bool {
    piece.addr() & FROM_HEAP != 0
}

/// Takes a piece of ballast from the kernel.
fn map_piece() -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
    // SAFETY: the call makes a new mapping, and changes no other mapping.
    let piece = unsafe { libc::mmap(ptr::null_mut(), PIECE_BYTES, access, flags, -1, 0) };
    (piece != libc::MAP_FAILED).then_some(piece.cast())
}

/// Takes a piece of ballast from the C library's heap.
fn heap_piece() -> Option<*mut u8> {
    // SAFETY: the layout has a size above zero.
    let piece = unsafe { System.alloc(PIECE) };
    if piece.is_null() {
        return None;
    }
    HELD_FROM_HEAP.fetch_add(1, Relaxed);
    Some(piece.map_addr(|address| address | FROM_HEAP))
}

/// Releases a piece of ballast that has been taken out of `PIECES`.
fn release(piece: *mut u8) {
    if is_from_heap(piece) {
        HELD_FROM_HEAP.fetch_sub(1, Relaxed);
        // SAFETY: the piece was allocated with this layout, and nothing else uses the piece.
        unsafe { System.dealloc(piece.map_addr(|address| address & !FROM_HEAP), PIECE) };
    } else if !piece.is_null() {
        // SAFETY: the piece is a mapping of this size, and nothing else uses the piece.
        unsafe { libc::munmap(piece.cast(), PIECE_BYTES) };
    }
}

/// Frees a piece of ballast. Returns false if there is no ballast.
fn free_piece() -> bool {
    let taken = HELD.fetch_update(Relaxed, Relaxed, |held| held.checked_sub(1));
    let Ok(held) = taken else { return false };
    release(PIECES[held - 1].swap(ptr::null_mut(), Relaxed));
    true
}

/// Allocates `size` bytes with `allocate`. After each failure of `allocate`, frees a piece of
/// ballast and tries again; does not free ballast for a large allocation.
#[inline]
fn allocated(size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    if size >= COUNTED_MIN_BYTES {
        ALLOCATED.fetch_add(size, Relaxed);
    }
    let mut memory = allocate();
    while memory.is_null() && size <= SERVED_MAX_BYTES && free_piece() {
        memory = allocate();
    }
    memory
}

// SAFETY: all calls go to the system's allocator, which obeys the rules of `GlobalAlloc`.
unsafe impl GlobalAlloc for Ballasted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises what the system's allocator requires.
        allocated(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises what the system's allocator requires.
        allocated(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises what `System` requires. A failure does not change `memory`.
        allocated(size, || unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller promises what the system's allocator requires.
        unsafe { System.dealloc(memory, layout) };
    }
}
