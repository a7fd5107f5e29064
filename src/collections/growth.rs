//! Growth that can fail. A large list may need more memory than the daemon's reserve, the ballast,
//! provides. So a command first makes its lists grow, and changes jobs or tubes only after that.

use std::{
    collections::{TryReserveError, VecDeque},
    error::Error,
    fmt,
    hint::black_box,
};

/// A list of this many bytes or more grows by half of this number at a time, and the kernel moves
/// the list without copying it. So even a very large list takes little new memory when it grows.
const LARGE_LIST_BYTES: usize = 256 << 10;

/// There is no memory, or a limit forbids taking more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// The result of making room; after an error, nothing has changed.
pub type Growth<T = ()> = Result<T, OutOfMemory>;

impl From<TryReserveError> for OutOfMemory {
    /// Converts the error of the standard library's lists to [`OutOfMemory`].
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

impl fmt::Display for OutOfMemory {
    /// Formats an [`OutOfMemory`] as "not enough memory".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not enough memory")
    }
}

impl Error for OutOfMemory {}

/// Fails with [`OutOfMemory`] unless `is_permitted`.
#[inline]
pub fn ensure(is_permitted: bool) -> Growth {
    if is_permitted { Ok(()) } else { Err(OutOfMemory) }
}

/// Allocates `bytes` bytes in one piece, and frees them at once. Fails if the allocation fails.
pub fn probe(bytes: usize) -> Growth {
    let mut piece = Vec::<u8>::new();
    piece.try_reserve_exact(bytes)?;
    // Without `black_box`, the compiler may leave out an allocation that is not used.
    black_box(piece);
    Ok(())
}

/// Grows a list's capacity to at least `length` items. If there is no memory, fails and leaves the
/// list as it was. O(1), unless the list is reallocated.
#[inline]
pub fn grow<T>(list: &mut Vec<T>, length: usize) -> Growth {
    let capacity = next_capacity::<T>(list.capacity(), length);
    Ok(list.try_reserve_exact(capacity - list.len())?)
}

/// Grows a deque's capacity as [`grow`] does for a list.
#[inline]
pub fn grow_deque<T>(deque: &mut VecDeque<T>, length: usize) -> Growth {
    let capacity = next_capacity::<T>(deque.capacity(), length);
    Ok(deque.try_reserve_exact(capacity - deque.len())?)
}

/// Returns the capacity `before` if that suffices for `length` items. If not, returns twice
/// `before`, or for a large list a little more than `before`, but at least `length`.
#[inline]
pub(super) fn next_capacity<T>(before: usize, length: usize) -> usize {
    if before >= length {
        return before;
    }
    let more = (LARGE_LIST_BYTES / 2 / size_of::<T>().max(1)).max(1);
    let is_large = before * size_of::<T>() >= LARGE_LIST_BYTES;
    length.max(before + if is_large { more } else { before.max(4) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a failed growth changed the list, the command would fail with some of its changes made.
    #[test]
    fn a_list_that_cannot_grow_stays_as_it_was() {
        let (mut list, mut deque) = (vec![1, 2, 3], VecDeque::from([1, 2, 3]));
        assert!(grow(&mut list, usize::MAX).is_err());
        assert!(grow_deque(&mut deque, usize::MAX).is_err());
        assert!(probe(usize::MAX).is_err());
        assert_eq!((list.len(), deque.len()), (3, 3));
        grow(&mut list, 1000).expect("there is memory");
        grow_deque(&mut deque, 1000).expect("there is memory");
        assert!(list.capacity() >= 1000 && deque.capacity() >= 1000);
    }
}
