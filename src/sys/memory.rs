//! Settings of the C library's allocator, and the resident memory of the process.
#![expect(clippy::disallowed_types, reason = "it reads a file of the kernel, not of the binlog")]

use std::{fs::File, io, os::unix::fs::FileExt};

/// The resident memory of this process. The amount is read from a file of `/proc` that stays open,
/// because there may be no free descriptor when memory is short.
#[derive(Debug)]
pub struct ResidentMemory(File);

impl ResidentMemory {
    /// Opens the file in which the kernel shows resident memory. Fails if the system has no
    /// `/proc/self/statm`.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/statm").map(Self)
    }

    /// How many bytes of the process are resident now. Takes about a microsecond.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut line = [0; 128];
        let length = self.0.read_at(&mut line, 0)?;
        let second = line[..length].split(|&byte| byte == b' ').nth(1);
        let pages = second.and_then(|field| std::str::from_utf8(field).ok()?.parse::<u64>().ok());
        // SAFETY: takes no pointers.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        Ok(pages.ok_or(io::ErrorKind::InvalidData)? * u64::try_from(page_bytes).unwrap_or(4096))
    }
}

/// Makes the C library map each large block separately, so that a freed block returns to the
/// kernel. By default, the library maps large blocks only until it first frees a large block. Up to
/// 256 KiB of free memory stay at the end of the heap, for the buffers of the next long list.
///
/// Also makes all threads allocate small blocks from one arena. By default, the C library takes 64
/// MiB of address space for each thread, however little the thread allocates, and a limit on
/// address space would include these 64 MiB.
pub fn tune_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [
        (libc::M_MMAP_THRESHOLD, 64 * 1024),
        (libc::M_TRIM_THRESHOLD, 256 * 1024),
        (libc::M_ARENA_MAX, 1),
    ] {
        // SAFETY: takes no pointers. If this call fails, memory is released later, or more address
        // space is used.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Makes the C library release its free memory to the kernel. By default the library keeps free
/// pieces of the heap that lie below a block in use.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointers, and does not change blocks that are in use.
    unsafe {
        libc::malloc_trim(0)
    };
}
