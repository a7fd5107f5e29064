//! The lock of a binlog's directory, so that only one daemon at a time writes to the directory.
//!
//! A daemon takes the POSIX lock on the file `lock`, as the original does. If a network file system
//! loses contact with this machine, the lock may be revoked, and another daemon may take the lock.
//! The daemon that has lost the lock must not write any more. To notice the loss, each daemon
//! writes a line into the file `lock` at startup. From time to time, before it writes or replies, a
//! daemon checks that it can still take the lock, and that its line is still in the file.
#![expect(clippy::disallowed_types, reason = "the binlog's files are here, and nowhere else")]

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::{sys, wal::Error};

/// The length in bytes of the line in the file `lock`, with the line feed. All lines have this
/// length, so that a new line can be written even on a full disk.
const LINE_BYTES: usize = 200;

/// The line in the file after a daemon has shut down cleanly.
const ENDED: &str = "no daemon; the last one shut down cleanly";

/// The lock of a directory. This process has the lock until its end, unless the file system revokes
/// the lock.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    /// The process's only descriptor of the file: closing a second one would release the lock.
    file: File,
    path: PathBuf,
    /// The contents of the file. `None` if the file is not regular, and so cannot store a line.
    line: Option<Vec<u8>>,
}

impl DirectoryLock {
    /// Takes the lock of the binlog's directory. Fails if another daemon has the lock; the error
    /// names that daemon if the file `lock` names it.
    pub(super) fn take(directory: &Path) -> Result<Self, Error> {
        let path = directory.join("lock");
        let (file, has_line) = open(&path, true, 0)?;
        sys::lock_file(&file).map_err(|error| held_by(&error, &file, &path))?;
        sys::forget_cached(&file);
        let line = has_line.then(|| read_line(&file)).transpose();
        let line = line.map_err(|error| named(&path, error.kind(), &error))?;
        Ok(Self { file, path, line })
    }

    /// Fails if the file `lock` exists, but [`DirectoryLock::take`] could not open it. Changes
    /// nothing.
    pub(super) fn check(directory: &Path) -> io::Result<()> {
        // If `lock` is a pipe, a call without `O_NONBLOCK` would wait for a reader.
        match open(&directory.join("lock"), false, libc::O_NONBLOCK) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the daemon that last had the lock could still be running, unaware that it has lost
    /// the lock. If the line ends in `machine`, its daemon ran on this machine, and must have
    /// ended: otherwise this kernel would not have given the lock away. `None` if the file is
    /// empty: the original had the lock last, or no daemon ever had it.
    pub(super) fn last_holder_may_run(&self, machine: &str) -> Option<bool> {
        let Some(line) = &self.line else { return Some(false) };
        let line = text(line);
        (!line.is_empty()).then(|| line != ENDED && !line.ends_with(machine))
    }

    /// Writes `holder`, the name of this daemon, into the file `lock`. The name begins with a
    /// random word that no other process has. After an error, the file may still name an earlier
    /// daemon.
    pub(super) fn write_holder(&mut self, holder: &str) -> io::Result<()> {
        if self.line.is_none() {
            return Ok(());
        }
        let mut line: Vec<u8> = holder.bytes().take(LINE_BYTES - 1).collect();
        line.resize(LINE_BYTES - 1, b' ');
        line.push(b'\n');
        let written = self.file.write_all_at(&line, 0);
        let written = written.and_then(|()| self.file.set_len(LINE_BYTES as u64));
        self.line = Some(read_line(&self.file)?);
        written.map_err(|error| named(&self.path, error.kind(), &error))
    }

    /// Replaces the line in the file `lock` with [`ENDED`], because the daemon ends cleanly. Keeps
    /// the lock until the process ends.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.confirm()?;
        self.write_holder(ENDED)
    }

    /// Takes the lock again, on the same descriptor. Fails if another process has the lock, or if
    /// the file `lock` has the line of another daemon or has been replaced.
    pub(super) fn confirm(&self) -> io::Result<()> {
        sys::lock_file(&self.file)?;
        sys::forget_cached(&self.file);
        let Some(line) = &self.line else { return Ok(()) };
        if read_line(&self.file)? != *line {
            return Err(io::Error::other("the file `lock` no longer names this daemon"));
        }
        let present = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other("the file `lock` has been removed"));
            }
            present => present?,
        };
        let own = self.file.metadata()?;
        if (own.dev(), own.ino()) != (present.dev(), present.ino()) {
            return Err(io::Error::other("the file `lock` has been replaced"));
        }
        Ok(())
    }
}

/// Opens the file `lock`, and returns whether this daemon can write its line into it.
fn open(path: &Path, creates: bool, flags: i32) -> io::Result<(File, bool)> {
    let has_line = fs::symlink_metadata(path).map_or(true, |it| it.is_file());
    let mut options = OpenOptions::new();
    options.read(has_line).write(true).create(creates).truncate(false).mode(0o600);
    // Follows no symbolic link: in a directory that other users can write to, a link may lead to
    // any file, and this daemon would overwrite that file.
    options.custom_flags(libc::O_NOFOLLOW | flags);
    options.open(path).map(|file| (file, has_line)).map_err(|error| {
        let text = "a symbolic link, which is not followed: remove it";
        named(path, error.kind(), if path.is_symlink() { &text } else { &error })
    })
}

/// Adds the path of the file `lock` to an error.
fn named(path: &Path, kind: io::ErrorKind, text: &dyn fmt::Display) -> io::Error {
    io::Error::new(kind, format!("{}: {text}", path.display()))
}

/// Reads the file `lock`, but at most one byte more than a line has.
fn read_line(mut file: &File) -> io::Result<Vec<u8>> {
    // With this capacity, two reads suffice: one of the line, and one that finds the file's end.
    let mut line = Vec::with_capacity(2 * LINE_BYTES);
    file.rewind()?;
    file.take(LINE_BYTES as u64 + 1).read_to_end(&mut line)?;
    Ok(line)
}

/// The line of the file `lock` as text.
fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().into()
}

/// Returns the error for a lock that cannot be taken. The error quotes the line that the holder of
/// the lock wrote into the file.
fn held_by(error: &io::Error, file: &File, path: &Path) -> Error {
    if !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) {
        return named(path, error.kind(), &format_args!("cannot lock it: {error}")).into();
    }
    let holder = text(&read_line(file).unwrap_or_default());
    let text = "another process holds the lock";
    let is_told = !holder.is_empty() && holder != ENDED;
    Error::Locked(if is_told { format!("{text}: {holder}") } else { text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(directory: &Path) -> String {
        fs::read_to_string(directory.join("lock")).expect("it is there")
    }

    fn take(directory: &Path, holder: &str) -> DirectoryLock {
        let mut lock = DirectoryLock::take(directory).expect("free, or of the same process");
        lock.confirm().expect("it is held");
        lock.write_holder(holder).expect("there is space");
        lock.confirm().expect("it is held");
        lock
    }

    #[test]
    fn the_file_names_its_holder() {
        let root = tempfile::tempdir().expect("a directory");
        fs::write(root.path().join("lock"), "x".repeat(1000)).expect("written");
        take(root.path(), "abc 7 host");
        assert_eq!(line(root.path()).len(), LINE_BYTES);
        assert_eq!(line(root.path()).trim_end(), "abc 7 host");
        take(root.path(), &"x".repeat(500));
        assert_eq!(line(root.path()).len(), LINE_BYTES, "every line has the same length");
    }

    #[test]
    fn a_holder_may_run_unless_it_ended_or_was_of_this_machine() {
        let root = tempfile::tempdir().expect("a directory");
        let may_run = |machine| {
            let lock = DirectoryLock::take(root.path()).expect("it is free");
            lock.last_holder_may_run(machine)
        };
        assert_eq!(may_run("on one"), None, "nobody has had it");
        let mut lock = take(root.path(), "abc process 7 on one");
        assert_eq!(may_run("on one"), Some(false));
        assert_eq!(may_run("on two"), Some(true));
        lock.end().expect("it is held");
        lock.confirm().expect("it is held until the process ends");
        assert_eq!(may_run("on two"), Some(false));
        take(root.path(), "def");
        assert!(lock.end().is_err(), "the line is another daemon's");
        assert_eq!(line(root.path()).trim_end(), "def");
    }

    /// If the line were not checked, a daemon would not notice that another one has had the lock.
    #[test]
    fn a_lock_that_another_daemon_has_had_is_lost() {
        let root = tempfile::tempdir().expect("a directory");
        let lock = take(root.path(), "abc");
        take(root.path(), "def");
        assert!(lock.confirm().is_err());
    }

    #[test]
    fn a_lock_whose_file_was_removed_or_replaced_is_lost() {
        let root = tempfile::tempdir().expect("a directory");
        let lock = take(root.path(), "abc");
        let path = root.path().join("lock");
        let held = line(root.path());
        fs::rename(&path, root.path().join("other")).expect("renamed");
        assert_eq!(lock.confirm().unwrap_err().to_string(), "the file `lock` has been removed");
        fs::write(&path, held).expect("written");
        assert_eq!(lock.confirm().unwrap_err().to_string(), "the file `lock` has been replaced");
    }
}
