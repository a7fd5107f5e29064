//! Files: locks, holes, and allocated disk space.

use std::{ffi::c_short, fs, io, mem::MaybeUninit, os::fd::AsRawFd, path::Path};
#[cfg(target_os = "linux")]
use std::{
    ffi::{CString, c_int},
    os::unix::ffi::OsStrExt,
};

// On 32-bit systems, glibc has separate functions for offsets of 2 GiB and more.
#[cfg(all(target_os = "linux", not(target_env = "gnu")))]
use libc::{fallocate, lseek, off_t};
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use libc::{fallocate64 as fallocate, lseek64 as lseek, off64_t as off_t};
#[cfg(target_os = "freebsd")]
use libc::{lseek, off_t};

use super::check;

/// Makes the next read ask the file system for data that other machines have written. Without this
/// call, `GlusterFS` reads from the cache as long as the file's size is unchanged. Does nothing
/// outside Linux.
pub fn forget_cached(file: &impl AsRawFd) {
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes numbers only. After an error, the next read may use the cache.
    let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Fails if this process is not permitted to create files in a directory.
pub fn check_can_create(directory: &impl AsRawFd) -> io::Result<()> {
    let (path, mode) = (c".".as_ptr(), libc::W_OK | libc::X_OK);
    // SAFETY: the pointer leads to a string that ends in NUL.
    check(unsafe { libc::faccessat(directory.as_raw_fd(), path, mode, 0) }).map(drop)
}

/// Takes the POSIX lock on a whole file. The process holds the lock until it exits or closes any
/// descriptor of that file. If another process has the lock, fails without waiting.
pub fn lock_file(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: a flock of zeros is valid, and means the whole file.
    let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    lock.l_type = c_short::try_from(libc::F_WRLCK).expect("a small constant");
    lock.l_whence = c_short::try_from(libc::SEEK_SET).expect("a small constant");
    // SAFETY: the pointer is valid for one flock.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    check(result).map(drop)
}

/// Takes the BSD lock on a file or a directory. The lock ends when `file` is closed. If another
/// process has the lock, fails with `WouldBlock` without waiting.
pub fn lock_until_closed(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    check(result).map(drop)
}

/// Renames a file. Fails with `AlreadyExists` if any file already has the new name.
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let [old, new] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
        let (old, new, at) = (old?, new?, libc::AT_FDCWD);
        let (call, flags) = (libc::SYS_renameat2, libc::RENAME_NOREPLACE);
        // Not every C library has a function for this system call.
        // SAFETY: both pointers lead to strings that end in NUL.
        let result = unsafe { libc::syscall(call, at, old.as_ptr(), at, new.as_ptr(), flags) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // These errors mean that the kernel or the file system does not support the call.
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) {
            return Err(error);
        }
    }
    link_and_unlink(from, to)
}

/// Makes a hard link with the new name, and then removes the old name. On a file system without
/// hard links, checks that no file has the new name, and then renames: there is no safer way.
fn link_and_unlink(from: &Path, to: &Path) -> io::Result<()> {
    let Err(error) = fs::hard_link(from, to) else { return fs::remove_file(from) };
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS) => {}
        _ => return Err(error),
    }
    if fs::symlink_metadata(to).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(from, to)
}

/// Returns the first offset, not before `offset`, at which a file may have a byte other than zero;
/// `None` if the file has only zeros from `offset` on. If the system or the file system does not
/// report holes, returns `offset` itself.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
pub fn next_data(file: &impl AsRawFd, offset: u64) -> io::Result<Option<u64>> {
    let Ok(from) = off_t::try_from(offset) else { return Ok(None) };
    // SAFETY: takes no pointers.
    let found = unsafe { lseek(file.as_raw_fd(), from, libc::SEEK_DATA) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found.max(offset)));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS | libc::ESPIPE) => Ok(Some(offset)),
        _ => Err(error),
    }
}

/// Returns `offset`, because this system does not report holes.
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
#[expect(clippy::unnecessary_wraps, reason = "the same shape on every system")]
pub fn next_data(_: &impl AsRawFd, offset: u64) -> io::Result<Option<u64>> {
    Ok(Some(offset))
}

/// Syncs all files of the file system that has this directory. Returns false if the system does not
/// support this sync. It may succeed although a write to a file failed: see [`confirm_written`].
#[cfg(target_os = "linux")]
pub fn sync_file_system(directory: &impl AsRawFd) -> io::Result<bool> {
    /// The type of FUSE file systems. On these, `syncfs` does not sync, because the kernel does not
    /// ask the file system's process to sync.
    const FUSE: u64 = 0x6573_5546;
    let mut facts = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the pointer is valid for one statfs.
    let is_known = check(unsafe { libc::fstatfs(directory.as_raw_fd(), facts.as_mut_ptr()) });
    // SAFETY: the statfs began as zeros, so it is valid even if the call failed.
    let facts = unsafe { facts.assume_init() };
    if is_known.is_err() || u64::try_from(facts.f_type) == Ok(FUSE) {
        return Ok(false);
    }
    // SAFETY: takes no pointers.
    unless_unsupported(check(unsafe { libc::syncfs(directory.as_raw_fd()) }))
}

/// Fails if a write to this file has failed. If [`sync_file_system`] has synced the file, does not
/// wait for the disk. Returns false if the system cannot report failed writes.
#[cfg(target_os = "linux")]
pub fn confirm_written(file: &impl AsRawFd) -> io::Result<bool> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // SAFETY: takes no pointers.
    unless_unsupported(check(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) }))
}

/// Returns an error of the disk as an error, and false for any other error, which means "not
/// supported".
#[cfg(target_os = "linux")]
fn unless_unsupported(result: io::Result<c_int>) -> io::Result<bool> {
    let Err(error) = result else { return Ok(true) };
    match error.raw_os_error() {
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error),
        _ => Ok(false),
    }
}

/// An error number that only the kernel's own code should see; some file systems return it anyway.
#[cfg(target_os = "linux")]
const ENOTSUPP: c_int = 524;

/// Makes a file `size` bytes long, and allocates disk space for all of it. If the file system does
/// not support such an allocation, changes nothing and returns false.
#[cfg(target_os = "linux")]
pub fn reserve_space(file: &impl AsRawFd, size: u64) -> io::Result<bool> {
    let size = off_t::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: takes no pointers.
        let result = unsafe { fallocate(file.as_raw_fd(), 0, 0, size) };
        let Err(error) = check(result) else { return Ok(true) };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(
                libc::EOPNOTSUPP
                | libc::ENOSYS
                | libc::EINVAL
                | libc::ENODEV
                | libc::EPERM
                | ENOTSUPP,
            ) => return Ok(false),
            _ => return Err(error),
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub use self::elsewhere::{confirm_written, reserve_space, sync_file_system};

/// Outside Linux, these functions return false, because the system calls for them are missing.
#[cfg(not(target_os = "linux"))]
mod elsewhere {
    #![expect(clippy::unnecessary_wraps, reason = "the same shape on every system")]

    use super::{AsRawFd, io};

    /// Returns false, because this system has no call that syncs a single file system.
    pub fn sync_file_system(_: &impl AsRawFd) -> io::Result<bool> {
        Ok(false)
    }

    /// Returns false, because on this system only a sync of the file reports failed writes.
    pub fn confirm_written(_: &impl AsRawFd) -> io::Result<bool> {
        Ok(false)
    }

    /// Returns false, because this system cannot allocate disk space.
    pub fn reserve_space(_: &impl AsRawFd, _: u64) -> io::Result<bool> {
        Ok(false)
    }
}
