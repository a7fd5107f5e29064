//! The lock of a binlog's directory: one daemon at a time writes there.
//!
//! It is the POSIX lock on the file `lock`, which the original takes too. A network file system may
//! take it back, after its server has lost the client for some time. Then another daemon may have
//! it, and this one must not write any more. So each start writes a line of its own into the file,
//! and the daemon asks from time to time before it writes or answers: is the lock still to be had, and is the
//! line still that of this daemon?
#![expect(clippy::disallowed_types, reason = "the binlog's files are here, and nowhere else")]

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use log::warn;

use super::{LOCK_CONFIRM_INTERVAL, Wal};
use crate::{clock::Time, sys};

/// The longest line in the file, in bytes.
const HOLDER_MAX_BYTES: usize = 200;

/// The lock of a directory, held as long as the process, unless the file system takes it back.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    /// The only descriptor of the file: closing another one would end the lock.
    file: File,
    path: PathBuf,
    /// What the file has held since the lock was taken.
    line: Option<Vec<u8>>,
    /// What it held before: nothing if the last daemon ended in order.
    line_before: String,
}

impl DirectoryLock {
    /// Takes the lock of a directory, and writes who holds it. `holder` begins with a random word
    /// that no other start has. The error names the present holder, if the file does.
    pub(super) fn take(directory: &Path, holder: &str) -> io::Result<Self> {
        let path = directory.join("lock");
        let open = |reads: bool| {
            let mut options = OpenOptions::new();
            options.read(reads).write(true).create(true).truncate(false).mode(0o600);
            options.open(&path)
        };
        let mut file = open(false)?;
        // A pipe, for example, can be locked and cannot hold a line.
        let has_line = file.metadata()?.is_file();
        if has_line {
            file = open(true)?;
        }
        sys::lock_file(&file).map_err(|error| {
            let holder = read_line(&file).unwrap_or_default();
            held_by(&error, &text(&holder))
        })?;
        let (mut line, mut line_before) = (None, String::new());
        if has_line {
            line_before = text(&read_line(&file)?);
            if let Err(error) = write_line(&file, holder) {
                // A full disk, for example. The line of the last holder serves as well until
                // another one replaces it.
                warn!("cannot write who holds the lock: {}: {error}", path.display());
            }
            line = Some(read_line(&file)?);
        }
        Ok(Self { file, path, line, line_before })
    }

    /// What the daemon wrote that had the lock last. Empty if it ended in order.
    pub(super) fn line_before(&self) -> &str {
        &self.line_before
    }

    /// Notes that the daemon has written all that it will write. It keeps the lock until it ends.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.line.is_some() {
            self.confirm()?;
            self.file.set_len(0)?;
            self.line = Some(Vec::new());
        }
        Ok(())
    }

    /// Takes the lock again, with the same descriptor. Fails if it cannot be had, or if another
    /// daemon has had it meanwhile.
    pub(super) fn confirm(&self) -> io::Result<()> {
        sys::lock_file(&self.file)?;
        sys::forget_cached(&self.file);
        let Some(line) = &self.line else { return Ok(()) };
        if read_line(&self.file)? != *line {
            return Err(io::Error::other("another daemon has written its name into the lock"));
        }
        let (own, present) = (self.file.metadata()?, fs::metadata(&self.path)?);
        if (own.dev(), own.ino()) != (present.dev(), present.ino()) {
            return Err(io::Error::other("the file `lock` has been replaced"));
        }
        Ok(())
    }
}

fn write_line(file: &File, holder: &str) -> io::Result<()> {
    let mut line: Vec<u8> = holder.bytes().take(HOLDER_MAX_BYTES).collect();
    line.push(b'\n');
    file.write_all_at(&line, 0)?;
    file.set_len(line.len() as u64)
}

fn read_line(file: &File) -> io::Result<Vec<u8>> {
    let mut line = vec![0; HOLDER_MAX_BYTES + 1];
    let mut length = 0;
    while length < line.len() {
        match file.read_at(&mut line[length..], length as u64)? {
            0 => break,
            count => length += count,
        }
    }
    line.truncate(length);
    Ok(line)
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().into()
}

fn held_by(error: &io::Error, holder: &str) -> io::Error {
    if !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) {
        return io::Error::new(error.kind(), format!("cannot lock it: {error}"));
    }
    let text = "another process has it locked";
    let text = if holder.is_empty() { text.into() } else { format!("{text}: {holder}") };
    io::Error::new(io::ErrorKind::WouldBlock, text)
}

/// The lock of the directory.
impl Wal {
    /// Asks whether this daemon still has the directory to itself. If not, nothing is written from
    /// then on.
    pub(super) fn confirm_lock(&mut self) -> io::Result<()> {
        self.disk.confirm_lock().map_err(|error| {
            self.lost_lock = Some(error);
            io::Error::other("the lock of the directory is lost")
        })
    }

    /// The same in a turn of the event loop, if it was not asked within [`LOCK_CONFIRM_INTERVAL`]:
    /// before anything is written, and before any client is answered.
    pub(super) fn confirm_lock_if_due(&mut self, now: Time) -> io::Result<()> {
        if now < self.lock_confirmed_at + LOCK_CONFIRM_INTERVAL {
            return Ok(());
        }
        self.lock_confirmed_at = now;
        self.confirm_lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(directory: &Path) -> String {
        fs::read_to_string(directory.join("lock")).expect("it is there")
    }

    #[test]
    fn the_file_names_its_holder() {
        let root = tempfile::tempdir().expect("a directory");
        fs::write(root.path().join("lock"), "x".repeat(1000)).expect("written");
        let lock = DirectoryLock::take(root.path(), "abc 7 host").expect("it is free");
        assert_eq!(line(root.path()), "abc 7 host\n");
        lock.confirm().expect("it is held");
        assert_eq!(lock.line_before().len(), HOLDER_MAX_BYTES + 1);
        let long = DirectoryLock::take(root.path(), &"é".repeat(500)).expect("the same process");
        assert_eq!(line(root.path()).len(), HOLDER_MAX_BYTES + 1);
        long.confirm().expect("it is held");
        assert_eq!(long.line_before(), "abc 7 host");
    }

    #[test]
    fn a_daemon_that_ended_in_order_is_named_no_more() {
        let root = tempfile::tempdir().expect("a directory");
        let mut lock = DirectoryLock::take(root.path(), "abc").expect("it is free");
        lock.end().expect("it is held");
        lock.confirm().expect("it is held until the process ends");
        let next = DirectoryLock::take(root.path(), "def").expect("the same process may take it");
        assert_eq!(next.line_before(), "");
        assert!(lock.end().is_err(), "the line is another daemon's");
        assert_eq!(line(root.path()), "def\n");
    }

    /// The file system has taken the lock back, and another daemon has ended meanwhile.
    #[test]
    fn a_lock_that_another_daemon_has_had_is_lost() {
        let root = tempfile::tempdir().expect("a directory");
        let lock = DirectoryLock::take(root.path(), "abc").expect("it is free");
        DirectoryLock::take(root.path(), "def").expect("the same process may take it");
        assert!(lock.confirm().is_err());
    }

    #[test]
    fn a_lock_whose_file_was_removed_or_replaced_is_lost() {
        let root = tempfile::tempdir().expect("a directory");
        let lock = DirectoryLock::take(root.path(), "abc").expect("it is free");
        let path = root.path().join("lock");
        fs::rename(&path, root.path().join("other")).expect("renamed");
        assert!(lock.confirm().is_err());
        fs::write(&path, "abc\n").expect("written");
        assert!(lock.confirm().is_err());
    }
}
