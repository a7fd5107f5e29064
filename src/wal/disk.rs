//! The files of a binlog, and the few things done to them: a trait, so that a test's disk can
//! lose, tear and refuse, and the real directory.
#![expect(clippy::disallowed_types, reason = "the binlog's files are here, and nowhere else")]

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread,
};

use crate::sys;

/// Segments are for their owner's eyes, and nobody's editor; the original's are the same.
const MODE: u32 = 0o400;

/// A file of a binlog. The original heeds only the names of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// `binlog.N`.
    Segment(u32),
    /// `spare.N`: room for a segment to come.
    Spare(u32),
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
            return number(digits).map(Self::Spare);
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
            Self::Spare(number) => write!(f, "spare.{number}"),
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
    /// All bytes of a file.
    fn read(&mut self, name: Name) -> io::Result<Vec<u8>>;
    /// Makes an empty file, in place of any of that name.
    fn create(&mut self, name: Name) -> io::Result<()>;
    /// Writes at an offset, all of it or an error.
    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Gives up what lies behind `size` bytes.
    fn cut(&mut self, name: Name, size: u64) -> io::Result<()>;
    /// Returns when what was written to a file, and its size, outlasts a power cut.
    fn sync(&mut self, name: Name) -> io::Result<()>;
    /// Begins a sync of what has been written to a file so far, without waiting for it. No other is
    /// begun before [`Disk::sync_result`] has told of this one.
    fn begin_sync(&mut self, name: Name) -> io::Result<()>;
    /// What a sync that was begun has come to, once it has.
    fn sync_result(&mut self) -> Option<io::Result<()>>;
    /// Waits for what a sync that was begun comes to.
    fn end_sync(&mut self) -> io::Result<()>;
    /// Lets go of a file that will not be written again.
    fn close(&mut self, name: Name);
    /// Gives a file another name, in place of any that has it.
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: Name) -> io::Result<()>;
    /// Returns when all names made, changed and removed outlast a power cut.
    fn sync_names(&mut self) -> io::Result<()>;
}

/// A thread that waits for the disk so that the queue need not. It sees open files and nothing
/// else.
#[derive(Debug)]
struct Syncer {
    files: Sender<Arc<File>>,
    results: Receiver<io::Result<()>>,
}

impl Syncer {
    fn start() -> io::Result<Self> {
        let (files, to_sync) = mpsc::channel::<Arc<File>>();
        let (synced, results) = mpsc::channel();
        let sync_each = move || {
            for file in to_sync {
                if synced.send(file.sync_data()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("sync".into()).spawn(sync_each)?;
        Ok(Self { files, results })
    }
}

/// A directory on a file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: File,
    /// Files that are being written.
    open: BTreeMap<Name, Arc<File>>,
    syncer: Option<Syncer>,
    /// Keeps other daemons out; `None` where we only read.
    _lock: Option<File>,
}

impl Directory {
    /// Opens the directory for this process alone, by the lock that the original takes too. The
    /// lock lasts as long as the process.
    pub fn lock(path: &Path) -> io::Result<Self> {
        let directory = Self::read_only(path)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path.join("lock"))?;
        sys::lock_file(&file)?;
        Ok(Self { _lock: Some(file), ..directory })
    }

    /// Opens the directory to look at, beside whoever uses it.
    pub fn read_only(path: &Path) -> io::Result<Self> {
        let handle = File::open(path)?;
        if !handle.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { path: path.into(), handle, open: BTreeMap::new(), syncer: None, _lock: None })
    }

    fn path(&self, name: Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    fn file(&mut self, name: Name) -> io::Result<&Arc<File>> {
        if !self.open.contains_key(&name) {
            let path = self.path(name);
            let open = || OpenOptions::new().write(true).open(&path);
            let file = match open() {
                // The mode forbids it to us as well, unless we made the file just now.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    fs::set_permissions(&path, Permissions::from_mode(MODE | 0o200))?;
                    open()?
                }
                result => result?,
            };
            self.open.insert(name, file.into());
        }
        Ok(&self.open[&name])
    }
}

impl Disk for Directory {
    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().and_then(Name::parse) else { continue };
            let size = match fs::metadata(entry.path()) {
                Ok(metadata) => metadata.is_file().then_some(metadata.len()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if fs::symlink_metadata(entry.path()).is_err() {
                        continue; // It has gone since.
                    }
                    None // It is a link that leads nowhere.
                }
                Err(error) => return Err(error),
            };
            match (name, size) {
                (name, Some(size)) => files.push((name, size)),
                // Somebody's directory: not to be read, and no segment can have its name.
                (Name::Segment(number), None) => files.push((Name::Damaged(number), 0)),
                (Name::Spare(_) | Name::Damaged(_), None) => {}
            }
        }
        Ok(files)
    }

    fn read(&mut self, name: Name) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path(name))?;
        let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&mut self, name: Name) -> io::Result<()> {
        let path = self.path(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        let file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&path)?;
                options.open(&path)?
            }
            result => result?,
        };
        self.open.insert(name, file.into());
        Ok(())
    }

    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all_at(bytes, offset)
    }

    fn cut(&mut self, name: Name, size: u64) -> io::Result<()> {
        self.file(name)?.set_len(size)
    }

    fn sync(&mut self, name: Name) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        let file = Arc::clone(self.file(name)?);
        let syncer = match self.syncer.take() {
            Some(syncer) => syncer,
            None => Syncer::start()?,
        };
        self.syncer.insert(syncer).files.send(file).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn sync_result(&mut self) -> Option<io::Result<()>> {
        match self.syncer.as_ref()?.results.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn end_sync(&mut self) -> io::Result<()> {
        let syncer = self.syncer.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        syncer.results.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?
    }

    fn close(&mut self, name: Name) {
        self.open.remove(&name);
    }

    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))?;
        self.open.remove(&to);
        if let Some(file) = self.open.remove(&from) {
            self.open.insert(to, file);
        }
        Ok(())
    }

    fn remove(&mut self, name: Name) -> io::Result<()> {
        self.open.remove(&name);
        fs::remove_file(self.path(name))
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_no_others() {
        for name in [Name::Segment(1), Name::Segment(u32::MAX), Name::Spare(2), Name::Damaged(3)] {
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        for text in ["lock", "binlog", "binlog.", "binlog.0", "binlog.01", "binlog.+1", "binlog.1x"]
        {
            assert_eq!(Name::parse(text), None, "{text}");
        }
        for text in ["binlog.4294967296", "binlog.1.tmp", "binlog..damaged", "spare.x", "xbinlog.1"]
        {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_directory_keeps_what_it_is_given() {
        let root = tempfile::tempdir().expect("a directory");
        let mut disk = Directory::lock(root.path()).expect("nobody else has it");
        let (one, two) = (Name::Spare(1), Name::Segment(2));
        disk.create(one).expect("created");
        disk.write(one, 3, b"defg").expect("written");
        disk.write(one, 0, b"abc").expect("written");
        disk.sync(one).expect("synced");
        disk.rename(one, two).expect("renamed");
        disk.write(two, 7, b"hi").expect("written under its new name");
        disk.close(two);
        disk.cut(two, 8).expect("cut, though its mode forbids writing");
        disk.sync_names().expect("synced");
        assert_eq!(disk.list().expect("listed"), [(two, 8)]);
        assert_eq!(disk.read(two).expect("read"), b"abcdefgh");
        disk.create(two).expect("replaced");
        assert_eq!(disk.read(two).expect("read"), b"");
        disk.remove(two).expect("removed");
        assert_eq!(disk.list().expect("listed"), []);
    }
}
