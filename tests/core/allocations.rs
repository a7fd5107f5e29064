//! The allocator of these tests, which counts the bytes of a step and can refuse large allocations.

#![expect(unsafe_code, reason = "an allocator is unsafe by its signature")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ptr,
};

use beanstalkd::sys::ballast::SERVED_MAX_BYTES;

/// The system's allocator, which counts a step's bytes and refuses large allocations on request.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes in small allocations, for which ballast is freed, and bytes in large ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) small: isize,
    pub(crate) large: isize,
}

impl Bytes {
    const NONE: Self = Self { small: 0, large: 0 };

    pub(crate) fn max(self, other: Self) -> Self {
        Self { small: self.small.max(other.small), large: self.large.max(other.large) }
    }
}

thread_local! {
    /// The bytes allocated and not freed since the step began, and the most so far.
    static NOW: Cell<Bytes> = const { Cell::new(Bytes::NONE) };
    static PEAK: Cell<Bytes> = const { Cell::new(Bytes::NONE) };
    static REFUSES_LARGE: Cell<bool> = const { Cell::new(false) };
    static IS_STEP: Cell<bool> = const { Cell::new(false) };
}

fn count(size: usize, sign: isize) {
    let bytes = sign * isize::try_from(size).expect("a layout has at most isize::MAX bytes");
    let mut now = NOW.get();
    *if size > SERVED_MAX_BYTES { &mut now.large } else { &mut now.small } += bytes;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

/// Returns whether to refuse an allocation of `size` bytes (`more`: it grows); counts others.
fn is_refused(size: usize, more: bool) -> bool {
    if more && size > SERVED_MAX_BYTES && REFUSES_LARGE.get() && IS_STEP.get() {
        return true;
    }
    count(size, 1);
    false
}

// SAFETY: the system's allocator does all allocating and freeing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size(), true) {
            return ptr::null_mut();
        }
        // SAFETY: the caller has promised what this call requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size(), true) {
            return ptr::null_mut();
        }
        // SAFETY: the caller has promised what this call requires.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_refused(size, size > layout.size()) {
            return ptr::null_mut();
        }
        count(layout.size(), -1);
        // SAFETY: the caller has promised what this call requires.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller has promised what this call requires.
        unsafe { System.dealloc(memory, layout) };
    }
}

/// Sets whether large allocations are refused in each step from now on.
pub(crate) fn refuse_large(refuses: bool) {
    REFUSES_LARGE.set(refuses);
}

/// Takes a step, and returns the most bytes that the step had allocated at once.
pub(crate) fn measured<T>(step: impl FnOnce() -> T) -> (T, Bytes) {
    NOW.set(Bytes::NONE);
    PEAK.set(Bytes::NONE);
    IS_STEP.set(true);
    let result = step();
    IS_STEP.set(false);
    (result, PEAK.get())
}
