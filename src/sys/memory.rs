//! Memory: how the C library and the kernel hand it out.

use super::check;

/// Has the kernel make the pages of some memory ready in one call, but for a last one that is not
/// all of it; false if it cannot, and then each is made ready as it is touched.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn populate(bytes: &mut [u8]) -> bool {
    // SAFETY: takes no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let before = bytes.as_ptr().addr() % page;
    let start = bytes.as_mut_ptr().wrapping_sub(before);
    let length = (before + bytes.len()) / page * page;
    // SAFETY: no byte of any page changes, and pages that are not there fail the call.
    let result = unsafe { libc::madvise(start.cast(), length, libc::MADV_POPULATE_WRITE) };
    check(result).is_ok()
}

/// The same where no system call does it.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn populate(_: &mut [u8]) -> bool {
    false
}

/// Has large blocks of memory come from the system one by one, so that each goes back to it when
/// it is freed. The C library would otherwise change its mind at the first one that is freed.
pub fn keep_large_blocks_apart() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. It can only refuse, and then memory is kept longer.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024)
    };
}

/// Has all threads share one place that small blocks of memory come from. The C library would
/// otherwise take 64 MiB of address space for each thread, however little it allocates, and a
/// limit on address space counts that.
pub fn share_small_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. It can only refuse, and then address space is used up.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}
