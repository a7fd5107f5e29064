//! Memory: how the C library and the kernel allocate it, and how much of it the process has.
#![expect(clippy::disallowed_types, reason = "it reads a file of the kernel, not of the binlog")]

use std::{fs::File, io, os::unix::fs::FileExt};

#[cfg(target_os = "linux")]
use super::check;

/// The resident memory of this process. It is read from a file of `/proc` that stays open, because
/// there may be no descriptor when it matters.
#[derive(Debug)]
pub struct ResidentMemory {
    statistics: File,
    page_bytes: u64,
}

impl ResidentMemory {
    /// Opens the file. Fails if the system has no such file.
    pub fn open() -> io::Result<Self> {
        Ok(Self { statistics: File::open("/proc/self/statm")?, page_bytes: page_bytes() as u64 })
    }

    /// How many bytes are resident now. Takes about a microsecond.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut line = [0; 128];
        let length = self.statistics.read_at(&mut line, 0)?;
        let second = line[..length].split(|&byte| byte == b' ').nth(1);
        let pages = second.and_then(|field| std::str::from_utf8(field).ok()?.parse::<u64>().ok());
        Ok(pages.ok_or(io::ErrorKind::InvalidData)? * self.page_bytes)
    }
}

fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Populates the pages of `bytes` in one system call, except for a last page that extends beyond
/// them. Returns false if the kernel cannot do that; then each page is populated at its first
/// access.
#[cfg(target_os = "linux")]
pub fn populate(bytes: &mut [u8]) -> bool {
    let page = page_bytes();
    let before = bytes.as_ptr().addr() % page;
    let start = bytes.as_mut_ptr().wrapping_sub(before);
    let length = (before + bytes.len()) / page * page;
    // SAFETY: no byte of any page changes, and unmapped pages make the call fail.
    let result = unsafe { libc::madvise(start.cast(), length, libc::MADV_POPULATE_WRITE) };
    check(result).is_ok()
}

/// Returns false, because no system call does this.
#[cfg(not(target_os = "linux"))]
pub fn populate(_: &mut [u8]) -> bool {
    false
}

/// Makes the C library map each large block separately, so that freeing one releases its memory to
/// the kernel. By default, it stops doing so when the first such block is freed.
pub fn keep_large_blocks_apart() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. If it fails, memory is released later.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024)
    };
}

/// Makes all threads allocate small blocks from one arena. By default, the C library takes 64 MiB
/// of address space for each thread, however little the thread allocates. That would count towards
/// a limit on address space.
pub fn share_small_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers. If it fails, more address space is used.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Makes the C library release its free memory to the kernel. By default it keeps all that lies
/// before a block in use.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers, and leaves all blocks in use as they are.
    unsafe {
        libc::malloc_trim(0)
    };
}
