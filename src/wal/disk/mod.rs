//! The files of a binlog, and the calls on them. The trait [`Disk`] has these calls, so that tests
//! can use a simulated disk that fails, loses writes, or writes only a part of the bytes.
//!
//! [`Directory`] is the real disk, with its lock (`lock.rs`) and a thread for syncs (`syncer.rs`).
//! A daemon writes through a [`Lease`], which ends once another daemon may have the lock.

mod directory;
mod lease;
mod lock;
mod syncer;
#[cfg(test)]
pub(crate) mod testing;

use std::{fmt, io, time::Duration};

pub(super) use self::lease::{Lease, Writable};
pub use self::{directory::Directory, lease::LOCK_CONFIRM_INTERVAL};

/// A file of a binlog. Of these files, the original reads only segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// `binlog.N`.
    Segment(u32),
    /// `spare.N`: a preallocated file, with space for a later segment.
    Preallocated(u32),
    /// `binlog.N.damaged`: a damaged segment, kept for the operator and never read again.
    Damaged(u32),
}

impl Name {
    /// Parses the name of a file. `None` if no file of a binlog has such a name.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let number = digits.parse().ok().filter(|&number| number > 0)?;
        let names = [Self::Segment(number), Self::Preallocated(number), Self::Damaged(number)];
        names.into_iter().find(|name| name.to_string() == text)
    }
}

impl fmt::Display for Name {
    /// Formats the name of a file: `binlog.N`, `spare.N` or `binlog.N.damaged`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(number) => write!(f, "binlog.{number}"),
            Self::Preallocated(number) => write!(f, "spare.{number}"),
            Self::Damaged(number) => write!(f, "binlog.{number}.damaged"),
        }
    }
}

/// Returns the largest segment number in `files`, damaged segments included, and the largest number
/// of a preallocated file. A number is 0 if there is no such file.
pub(super) fn last_numbers(files: &[(Name, u64)]) -> (u32, u32) {
    files.iter().fold((0, 0), |(segment, preallocated), &(name, _)| match name {
        Name::Segment(number) | Name::Damaged(number) => (segment.max(number), preallocated),
        Name::Preallocated(number) => (segment, preallocated.max(number)),
    })
}

/// The calls on the files of a binlog. A power cut may undo a write until a sync of the file has
/// returned, and a creation, rename or removal until a sync of the directory has returned.
pub trait Disk: fmt::Debug {
    /// Fails if this daemon may have lost the lock of the directory. After a failure, this daemon
    /// must write nothing more, because another daemon may have taken over.
    fn confirm_lock(&mut self) -> io::Result<()>;
    /// Writes a note into the directory: this daemon ends cleanly, and will write nothing more.
    /// Without this note, the next startup may have to wait, because this daemon might still run.
    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Lists the files of the disk with their sizes in bytes, sorted by name. Other entries, such
    /// as directories, are omitted, so a name that is not listed may still be in use.
    fn list(&mut self) -> io::Result<Vec<(Name, u64)>>;
    /// Reads bytes of a file of the disk from `offset` on, and returns their number: 0 only at the
    /// end of the file.
    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Returns the first offset, from `offset` on, at which a byte may be other than zero. `None`
    /// if only zeros follow. If the file system does not report holes, returns `offset`.
    fn next_data(&mut self, name: Name, offset: u64) -> io::Result<Option<u64>>;
    /// Creates an empty file of the disk. Fails with `AlreadyExists` if the name is in use.
    fn create(&mut self, name: Name) -> io::Result<()>;
    /// Extends a file with zeros to `size` bytes, for which the file system reserves disk space. If
    /// the file system cannot reserve space, changes nothing and returns false.
    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool>;
    /// Writes all of `bytes` to a file of the disk at `offset`, or fails.
    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Truncates a file of the disk to `size` bytes.
    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()>;
    /// Syncs a file of the disk: its contents and size then survive a power cut. Returns the sync's
    /// duration.
    fn sync(&mut self, name: Name) -> io::Result<Duration>;
    /// Syncs files of the disk that are not open.
    fn sync_all(&mut self, names: &[Name]) -> io::Result<()> {
        names.iter().try_for_each(|&name| {
            self.sync(name)?;
            self.close(name);
            Ok(())
        })
    }
    /// Begins to sync the present contents of a file. Waits for the end of the sync only if there
    /// is no thread for syncs. Before the next sync, the caller must take the result of this sync.
    fn begin_sync(&mut self, name: Name) -> io::Result<()>;
    /// Returns how long the sync of [`Disk::begin_sync`] took, or why it failed. If `waits`, waits
    /// for the end of the sync; if not, returns `None` until the sync has ended.
    fn sync_result(&mut self, waits: bool) -> Option<io::Result<Duration>>;
    /// Asks the disk to start a thread that does the syncs of [`Disk::begin_sync`] and calls `wake`
    /// after each sync. A disk without such a thread ignores this call, and syncs in `begin_sync`.
    fn on_sync_end(&mut self, _wake: Box<dyn Fn() + Send>) {}
    /// Closes a file of the disk. The next call on the file opens it again.
    fn close(&mut self, name: Name);
    /// Renames a file of the disk. Fails with `AlreadyExists` if the new name is in use.
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()>;
    /// Removes a file of the disk.
    fn remove(&mut self, name: Name) -> io::Result<()>;
    /// Syncs the directory: all creations, renames and removals of files then survive a power cut.
    fn sync_directory(&mut self) -> io::Result<()>;
}
