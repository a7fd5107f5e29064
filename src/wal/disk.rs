//! The files of a binlog, and the few things done to them: a trait, so that a test's disk can
//! lose, tear and refuse.

use std::{fmt, io};

/// A file of a binlog. The original heeds only the names of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// `binlog.N`.
    Segment(u32),
    /// `file.N`: room for a segment to come.
    Preallocated(u32),
    /// `binlog.N.damaged`: kept for a person to look at, never read again.
    Damaged(u32),
}

impl Name {
    /// The name of a file as one of ours, if it is.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| {
            let canonical = digits.parse().ok().filter(|number: &u32| number.to_string() == digits);
            canonical.filter(|&number| number > 0)
        };
        if let Some(digits) = text.strip_prefix("spare.") {
            return number(digits).map(Self::Preallocated);
        }
        let rest = text.strip_prefix("binlog.")?;
        match rest.strip_suffix(".damaged") {
            Some(digits) => number(digits).map(Self::Damaged),
            None => number(rest).map(Self::Segment),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(number) => write!(f, "binlog.{number}"),
            Self::Preallocated(number) => write!(f, "spare.{number}"),
            Self::Damaged(number) => write!(f, "binlog.{number}.damaged"),
        }
    }
}

/// What is done to the files of a binlog. Nothing written, created, renamed or removed is sure to
/// outlast a power cut before the matching sync has returned.
pub trait Disk: fmt::Debug {
    /// The files there are, with their sizes in bytes, in no order worth relying on. What has a
    /// segment's name and is no file is listed as damaged: its number is taken.
    fn list(&mut self) -> io::Result<Vec<(Name, u64)>>;
    /// Sets aside what a running log needs and could not do without later: descriptors, and a
    /// thread for [`Disk::begin_sync`] if `syncs_in_background`. Fails, and changes no file, if the
    /// system has no descriptors. A thread that cannot be had is no failure: see `begin_sync`.
    fn prepare(&mut self, syncs_in_background: bool) -> io::Result<()>;
    /// Reads bytes of a file from an offset on and says how many: none only at its end.
    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// The first offset, from this one on, at which a byte may stand that is not zero; `None` if
    /// there are only zeros. A file system that cannot tell answers the offset itself.
    fn next_data(&mut self, name: Name, offset: u64) -> io::Result<Option<u64>>;
    /// Makes an empty file. Fails with `AlreadyExists` if something has that name.
    fn create(&mut self, name: Name) -> io::Result<()>;
    /// Makes a file `size` bytes long, of which those behind its end become zeros, and has the file
    /// system set their space aside. False, with nothing changed, if it does not offer that.
    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool>;
    /// Writes at an offset, all of it or an error.
    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Gives up what lies behind `size` bytes.
    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()>;
    /// Returns when what was written to a file, and its size, outlasts a power cut.
    fn sync(&mut self, name: Name) -> io::Result<()>;
    /// Begins a sync of what has been written to a file so far, without waiting for it; without a
    /// thread to wait for it, this call does. No other is begun before [`Disk::sync_result`] has
    /// told of this one.
    fn begin_sync(&mut self, name: Name) -> io::Result<()>;
    /// What a sync that was begun has come to, once it has.
    fn sync_result(&mut self) -> Option<io::Result<()>>;
    /// Waits for what a sync that was begun comes to.
    fn end_sync(&mut self) -> io::Result<()>;
    /// Lets go of a file that will not be written again.
    fn close(&mut self, name: Name);
    /// Gives a file another name, in place of any that has it, but for what was set aside.
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: Name) -> io::Result<()>;
    /// Returns when all names made, changed and removed outlast a power cut.
    fn sync_directory(&mut self) -> io::Result<()>;
}
