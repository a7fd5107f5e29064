//! The directory of a binlog: its lock, its files, and the thread that syncs them.
#![expect(clippy::disallowed_types, reason = "the binlog's files are here, and nowhere else")]

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread,
};

use log::warn;

use super::{Disk, Name};
use crate::sys;

/// Segments are for their owner's eyes, and nobody's editor; the original's are the same.
const MODE: u32 = 0o400;

/// How many files a directory has open at once while the log runs: the current segment, one more
/// that is made or shortened, and one that the sync thread still holds.
pub(super) const OPEN_FILES_MAX: usize = 3;

/// The stack of the sync thread in bytes: it makes one system call.
const SYNC_STACK_BYTES: usize = 128 * 1024;

/// A thread that waits for the disk so that the queue need not. It sees open files and nothing
/// else.
#[derive(Debug)]
struct Syncer {
    files: Sender<(Name, Arc<File>)>,
    results: Receiver<io::Result<()>>,
}

impl Syncer {
    pub(super) fn start() -> io::Result<Self> {
        let (files, to_sync) = mpsc::channel::<(Name, Arc<File>)>();
        let (synced, results) = mpsc::channel();
        let sync_each = move || {
            for (name, file) in to_sync {
                if synced.send(named("sync", name, file.sync_data())).is_err() {
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("sync".into()).stack_size(SYNC_STACK_BYTES);
        builder.spawn(sync_each)?;
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
    /// The file that is being read.
    reading: Option<(Name, File)>,
    /// Descriptors for files that are not open now: each is given up for one that is opened, and
    /// taken again when that is closed.
    reserved: Vec<File>,
    /// How many files may be open and descriptors reserved, together.
    descriptors: usize,
    syncer: Option<Syncer>,
    /// What a sync came to that had no thread.
    synced: Option<io::Result<()>>,
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
        Ok(Self {
            path: path.into(),
            handle,
            open: BTreeMap::new(),
            reading: None,
            reserved: Vec::new(),
            descriptors: 0,
            syncer: None,
            synced: None,
            _lock: None,
        })
    }

    pub(super) fn path(&self, name: Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// Takes descriptors until there are enough for all files that may be open at once.
    fn reserve_descriptors(&mut self) -> io::Result<()> {
        while self.reserved.len() + self.open.len() < self.descriptors {
            self.reserved.push(File::open(&self.path)?);
        }
        Ok(())
    }

    /// Opens a file to write to it, by the descriptor that was set aside for it.
    pub(super) fn open(
        &mut self,
        name: Name,
        open: impl FnOnce(&Path) -> io::Result<File>,
    ) -> io::Result<&Arc<File>> {
        drop(self.reserved.pop());
        match open(&self.path(name)) {
            Ok(file) => Ok(self.open.entry(name).or_insert(file.into())),
            Err(error) => {
                // The descriptor that was given up above is free again.
                let _ = self.reserve_descriptors();
                Err(error)
            }
        }
    }

    pub(super) fn file(&mut self, name: Name) -> io::Result<&Arc<File>> {
        if self.open.contains_key(&name) {
            return Ok(&self.open[&name]);
        }
        self.open(name, |path| {
            let open = || OpenOptions::new().write(true).open(path);
            match open() {
                // The mode forbids it to us as well, unless we made the file just now.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    fs::set_permissions(path, Permissions::from_mode(MODE | 0o200))?;
                    open()
                }
                result => result,
            }
        })
    }

    pub(super) fn reader(&mut self, name: Name) -> io::Result<&File> {
        if self.reading.as_ref().is_none_or(|(of, _)| *of != name) {
            self.reading = None;
            self.reading = Some((name, File::open(self.path(name))?));
        }
        let (_, file) = self.reading.as_ref().expect("it was opened above");
        Ok(file)
    }
}

/// Adds to an error which call failed, and on which file.
pub(super) fn named<T>(call: &str, name: Name, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{call} {name}: {error}")))
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
            files.try_reserve(1).map_err(|_| io::ErrorKind::OutOfMemory)?;
            match (name, size) {
                (name, Some(size)) => files.push((name, size)),
                // Somebody's directory: not to be read, and no segment can have its name.
                (Name::Segment(number), None) => files.push((Name::Damaged(number), 0)),
                (Name::Preallocated(_) | Name::Damaged(_), None) => {}
            }
        }
        Ok(files)
    }

    fn prepare(&mut self, syncs_in_background: bool) -> io::Result<()> {
        self.descriptors = OPEN_FILES_MAX;
        self.reserve_descriptors()?;
        if syncs_in_background && self.syncer.is_none() {
            match Syncer::start() {
                Ok(syncer) => self.syncer = Some(syncer),
                Err(error) => {
                    warn!("cannot start a thread for syncs; the daemon waits for each: {error}");
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader(name)?.read_at(buffer, offset)
    }

    fn next_data(&mut self, name: Name, offset: u64) -> io::Result<Option<u64>> {
        sys::next_data(self.reader(name)?, offset)
    }

    fn create(&mut self, name: Name) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        let created = self.open(name, |path| options.open(path)).map(drop);
        named("create", name, created)
    }

    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        let reserved = self.file(name).and_then(|file| sys::reserve_space(file, size));
        named("set space aside for", name, reserved)
    }

    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.file(name).and_then(|file| file.write_all_at(bytes, offset));
        named("write", name, written)
    }

    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        let cut = self.file(name).and_then(|file| file.set_len(size));
        named("truncate", name, cut)
    }

    fn sync(&mut self, name: Name) -> io::Result<()> {
        // A file that is only read need not be one that may be written.
        let synced = match self.open.get(&name) {
            Some(file) => file.sync_data(),
            None => self.reader(name).and_then(File::sync_data),
        };
        named("sync", name, synced)
    }

    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        let file = Arc::clone(named("sync", name, self.file(name))?);
        let Some(syncer) = &self.syncer else {
            self.synced = Some(named("sync", name, file.sync_data()));
            return Ok(());
        };
        syncer.files.send((name, file)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn sync_result(&mut self) -> Option<io::Result<()>> {
        let Some(syncer) = &self.syncer else { return self.synced.take() };
        match syncer.results.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn end_sync(&mut self) -> io::Result<()> {
        let Some(syncer) = &self.syncer else {
            return self.synced.take().unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
        };
        syncer.results.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?
    }

    fn close(&mut self, name: Name) {
        self.open.remove(&name);
        self.reading.take_if(|(of, _)| *of == name);
        // What was given back just now can be had; if not, the next file that is closed makes up
        // for it.
        let _ = self.reserve_descriptors();
    }

    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        let is_taken = matches!(to, Name::Damaged(_)) && self.path(to).exists();
        let renamed = if is_taken {
            // Of another day, and kept for a person to look at.
            Err(io::ErrorKind::AlreadyExists.into())
        } else {
            fs::rename(self.path(from), self.path(to))
        };
        named(&format!("rename to {to}"), from, renamed)?;
        self.open.remove(&to);
        if let Some(file) = self.open.remove(&from) {
            self.open.insert(to, file);
        }
        Ok(())
    }

    fn remove(&mut self, name: Name) -> io::Result<()> {
        self.close(name);
        named("remove", name, fs::remove_file(self.path(name)))
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let synced = self.handle.sync_all();
        synced.map_err(|error| io::Error::new(error.kind(), format!("sync the directory: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_no_others() {
        for name in
            [Name::Segment(1), Name::Segment(u32::MAX), Name::Preallocated(2), Name::Damaged(3)]
        {
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
        let (one, two) = (Name::Preallocated(1), Name::Segment(2));
        disk.create(one).expect("created");
        disk.write(one, 3, b"defg").expect("written");
        disk.write(one, 0, b"abc").expect("written");
        disk.sync(one).expect("synced");
        disk.rename(one, two).expect("renamed");
        disk.write(two, 7, b"hi").expect("written under its new name");
        disk.close(two);
        disk.truncate(two, 8).expect("cut, though its mode forbids writing");
        disk.sync_directory().expect("synced");
        assert_eq!(disk.list().expect("listed"), [(two, 8)]);
        let mut bytes = [0; 20];
        assert_eq!(disk.read(two, 2, &mut bytes).expect("read"), 6);
        assert_eq!(&bytes[..6], b"cdefgh");
        let taken = disk.create(two).expect_err("its name is taken");
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        disk.remove(two).expect("removed");
        assert_eq!(disk.list().expect("listed"), []);
    }

    #[test]
    fn reserved_space_is_zeros_and_what_was_written_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let mut disk = Directory::lock(root.path()).expect("nobody else has it");
        let name = Name::Preallocated(1);
        disk.create(name).expect("created");
        disk.write(name, 0, b"abc").expect("written");
        if !disk.reserve(name, 1 << 20).expect("reserved, or not offered") {
            return;
        }
        assert_eq!(disk.list().expect("listed"), [(name, 1 << 20)]);
        let mut bytes = vec![1; 4096];
        assert_eq!(disk.read(name, 0, &mut bytes).expect("read"), 4096);
        assert_eq!((&bytes[..3], &bytes[3..]), (&b"abc"[..], &[0; 4093][..]));
        let data = disk.next_data(name, 5).expect("known, or the offset");
        assert!(data.is_none_or(|at| at >= 5));
    }

    #[test]
    fn what_was_set_aside_is_not_overwritten() {
        let root = tempfile::tempdir().expect("a directory");
        let mut disk = Directory::lock(root.path()).expect("nobody else has it");
        for name in [Name::Segment(1), Name::Damaged(1)] {
            disk.create(name).expect("created");
        }
        let taken = disk.rename(Name::Segment(1), Name::Damaged(1)).expect_err("it is kept");
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_sync_without_a_thread_is_done_when_it_is_begun() {
        let root = tempfile::tempdir().expect("a directory");
        let mut disk = Directory::lock(root.path()).expect("nobody else has it");
        disk.prepare(false).expect("there are enough");
        let name = Name::Segment(1);
        disk.create(name).expect("created");
        for _ in 0..2 {
            disk.begin_sync(name).expect("done");
            assert!(disk.sync_result().expect("its result").is_ok());
            assert!(disk.sync_result().is_none());
            disk.begin_sync(name).expect("done");
            disk.end_sync().expect("its result");
        }
    }

    /// A crowd of connections takes every descriptor there is; the log must go on.
    #[test]
    fn the_number_of_descriptors_stays_the_same() {
        let root = tempfile::tempdir().expect("a directory");
        let mut disk = Directory::lock(root.path()).expect("nobody else has it");
        disk.prepare(true).expect("there are enough");
        let count = |disk: &Directory| disk.open.len() + disk.reserved.len();
        assert_eq!(count(&disk), OPEN_FILES_MAX);
        let names = [Name::Segment(1), Name::Preallocated(1), Name::Preallocated(2)];
        for name in names {
            disk.create(name).expect("created");
            assert_eq!(count(&disk), OPEN_FILES_MAX);
        }
        assert!(disk.create(names[0]).is_err());
        assert_eq!(count(&disk), OPEN_FILES_MAX);
        disk.close(names[0]);
        disk.remove(names[1]).expect("removed");
        assert_eq!(count(&disk), OPEN_FILES_MAX);
        disk.write(names[0], 0, b"x").expect("opened again");
        assert!(disk.write(names[1], 0, b"x").is_err());
        assert_eq!(count(&disk), OPEN_FILES_MAX);
    }
}
