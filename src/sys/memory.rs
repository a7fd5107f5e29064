//! Memory: how the C library and the kernel allocate it.

#[cfg(any(target_os = "linux", target_os = "android"))]
use super::check;

/// Populates the pages of `bytes` in one system call, except a last page that extends beyond them.
/// Returns false if the kernel cannot; then each page is populated at its first access.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn populate(bytes: &mut [u8]) -> bool {
    // SAFETY: takes no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let before = bytes.as_ptr().addr() % page;
    let start = bytes.as_mut_ptr().wrapping_sub(before);
    let length = (before + bytes.len()) / page * page;
    // SAFETY: no byte of any page changes, and unmapped pages make the call fail.
    let result = unsafe { libc::madvise(start.cast(), length, libc::MADV_POPULATE_WRITE) };
    check(result).is_ok()
}

/// Returns false, because no system call does this.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn populate(_: &mut [u8]) -> bool {
    false
}

/// Makes the C library map large blocks one by one, so that freeing one releases its memory to the
/// kernel. By default it stops doing so when the first such block is freed.
pub fn keep_large_blocks_apart() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. If it fails, memory is released later.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024)
    };
}

/// Makes all threads allocate small blocks from one arena. By default the C library takes 64 MiB of
/// address space for each thread, however little it allocates. A limit on address space counts
/// that.
pub fn share_small_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. If it fails, more address space is used.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}
