//! The directory of a binlog: its lock, and its files.
#![expect(clippy::disallowed_types, reason = "the binlog's files are here, and nowhere else")]

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use log::warn;

use super::{
    Disk, Name,
    lock::DirectoryLock,
    syncer::{Syncer, timed_sync},
};
use crate::{sys, wal::Error};

/// The mode of segments, as in the original: their owner may read them, nobody may write to them.
const MODE: u32 = 0o400;

/// The most files that are open for writing at once: the current segment, another file that is
/// being made or truncated, and a file that the thread for syncs still has open.
pub(super) const OPEN_FILES_MAX: usize = 3;

/// If more files than this must be synced, one call syncs the whole file system, because each sync
/// of a single file would wait for the disk.
const SYNCED_SINGLY_MAX: usize = 16;

/// A directory on a file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: File,
    /// Files that are open for writing.
    open: BTreeMap<Name, Arc<File>>,
    /// The file that is open for reading.
    reading: Option<(Name, File)>,
    /// Open descriptors, so that files can always be opened for writing: one of these is closed
    /// just before a file is opened, and is replaced after the file is closed.
    reserved: Vec<File>,
    syncer: Option<Syncer>,
    /// If there is no thread for syncs: the result of the last sync, until `sync_result` takes it.
    synced: Option<io::Result<Duration>>,
    /// The lock, which keeps other daemons out. `None` if the directory is only read.
    lock: Option<DirectoryLock>,
}

impl Directory {
    /// Opens the directory, takes the same lock as the original, and reserves descriptors, because
    /// later all descriptors may be in use. Fails if another daemon has the lock, or if too few
    /// descriptors are free. This process then has the lock until its end, unless the file system
    /// revokes the lock: see [`Disk::confirm_lock`].
    pub fn lock(path: &Path) -> Result<Self, Error> {
        let directory = Self::read_only(path)?;
        let mut locked = Self { lock: Some(DirectoryLock::take(path)?), ..directory };
        locked.reserve_descriptors()?;
        Ok(locked)
    }

    /// Whether the daemon that last used this directory could still be running, unaware that it has
    /// lost the lock. If a daemon runs on this machine, its line in `lock` ends in `machine`.
    pub fn last_holder_may_run(&mut self, machine: &str) -> io::Result<bool> {
        match self.lock.as_ref().map(|lock| lock.last_holder_may_run(machine)) {
            Some(Some(may_run)) => Ok(may_run),
            // If `lock` has no line, somebody may have removed the `lock` of a running daemon.
            _ => Ok(self.list()?.iter().any(|(name, _)| matches!(name, Name::Segment(_)))),
        }
    }

    /// Writes `holder`, the name of this daemon, into the file `lock`. The name begins with a
    /// random word that no other process has.
    pub fn write_holder(&mut self, holder: &str) -> io::Result<()> {
        self.lock.as_mut().map_or(Ok(()), |lock| lock.write_holder(holder))
    }

    /// Opens the directory to read it, without a lock. A daemon may use it at the same time.
    pub fn read_only(path: &Path) -> Result<Self, Error> {
        let handle = File::open(path)?;
        Ok(Self {
            path: path.into(),
            handle,
            open: BTreeMap::new(),
            reading: None,
            reserved: Vec::new(),
            syncer: None,
            synced: None,
            lock: None,
        })
    }

    /// Fails if this process could not open the file `lock`, or create files. Changes nothing.
    pub fn check_writable(&self) -> io::Result<()> {
        DirectoryLock::check(&self.path)?;
        sys::check_can_create(&self.handle)
    }

    /// The path of a file in the directory.
    pub(super) fn path(&self, name: Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// Reserves descriptors until there are enough for all files that may be open at once.
    fn reserve_descriptors(&mut self) -> io::Result<()> {
        while self.lock.is_some() && self.reserved.len() + self.open.len() < OPEN_FILES_MAX {
            self.reserved.push(File::open(&self.path)?);
        }
        Ok(())
    }

    /// Closes a reserved descriptor, and opens a file for writing in its place.
    pub(super) fn open_file(
        &mut self,
        name: Name,
        open: impl FnOnce(&Path) -> io::Result<File>,
    ) -> io::Result<&Arc<File>> {
        drop(self.reserved.pop());
        // Locks this file, too: a file system that revokes the lock of the directory then also
        // revokes this lock, and refuses writes through this descriptor.
        let locked = |file: File| sys::lock_file(&file).map(|()| file);
        match open(&self.path(name)).and_then(locked) {
            Ok(file) => Ok(self.open.entry(name).or_insert(file.into())),
            Err(error) => {
                // Reserves a descriptor in place of the one that was closed above.
                let _ = self.reserve_descriptors();
                Err(error)
            }
        }
    }

    /// Opens a file of the directory for writing, unless it is open.
    pub(super) fn file(&mut self, name: Name) -> io::Result<&Arc<File>> {
        if self.open.contains_key(&name) {
            return Ok(&self.open[&name]);
        }
        self.open_file(name, |path| {
            let open = || OpenOptions::new().write(true).open(path);
            match open() {
                // The file's mode lets only root open the file for writing. So the mode is changed
                // while the file is opened; the descriptor then stays writable.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    fs::set_permissions(path, Permissions::from_mode(MODE | 0o200))?;
                    let opened = open();
                    fs::set_permissions(path, Permissions::from_mode(MODE))?;
                    opened
                }
                result => result,
            }
        })
    }

    /// Makes a call on a file. After a failed call, closes the file, and returns an error that
    /// names the call. The next call then opens the file again: a network file system may have
    /// invalidated only the descriptor.
    fn on_file<T>(
        &mut self,
        call: &str,
        name: Name,
        make: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        let result = self.file(name).and_then(|file| make(file));
        if result.is_err() {
            self.close(name);
        }
        named(call, name, result)
    }

    /// Opens a file of the directory for reading, unless this file is still open for reading.
    pub(super) fn reader(&mut self, name: Name) -> io::Result<&File> {
        if self.reading.as_ref().is_none_or(|(of, _)| *of != name) {
            self.reading = None;
            self.reading = Some((name, File::open(self.path(name))?));
        }
        let (_, file) = self.reading.as_ref().expect("it was opened above");
        Ok(file)
    }
}

/// Adds the failed call and the name of the file to an error.
pub(super) fn named<T>(call: &str, name: Name, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{call} {name}: {error}")))
}

impl Disk for Directory {
    fn confirm_lock(&mut self) -> io::Result<()> {
        self.lock.as_ref().map_or(Ok(()), DirectoryLock::confirm)
    }

    fn end(&mut self) -> io::Result<()> {
        self.lock.as_mut().map_or(Ok(()), DirectoryLock::end)
    }

    /// The files of the real directory, with their sizes.
    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().and_then(Name::parse) else { continue };
            let metadata = match fs::metadata(entry.path()) {
                // The file was removed meanwhile, or the entry is a dangling link.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result?,
            };
            if metadata.is_file() {
                files.try_reserve(1).map_err(|_| io::ErrorKind::OutOfMemory)?;
                files.push((name, metadata.len()));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    /// Reads a file of the real directory.
    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader(name)?.read_at(buffer, offset)
    }

    fn next_data(&mut self, name: Name, offset: u64) -> io::Result<Option<u64>> {
        sys::next_data(self.reader(name)?, offset)
    }

    /// Creates a file of the real directory.
    fn create(&mut self, name: Name) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        let created = self.open_file(name, |path| options.open(path)).map(drop);
        named("create", name, created)
    }

    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        self.on_file("preallocate", name, |file| sys::reserve_space(file, size))
    }

    /// Writes to a file of the real directory.
    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.on_file("write", name, |file| file.write_all_at(bytes, offset))
    }

    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        self.on_file("truncate", name, |file| file.set_len(size))
    }

    /// Syncs a file of the real directory.
    fn sync(&mut self, name: Name) -> io::Result<Duration> {
        self.on_file("sync", name, timed_sync)
    }

    fn sync_all(&mut self, names: &[Name]) -> io::Result<()> {
        let at_once = names.len() > SYNCED_SINGLY_MAX && sys::sync_file_system(&self.handle)?;
        let sync = |file: &File| {
            if at_once && sys::confirm_written(file)? { Ok(()) } else { file.sync_data() }
        };
        for &name in names {
            named("sync", name, self.reader(name).and_then(sync))?;
        }
        self.reading = None;
        Ok(())
    }

    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        let file = Arc::clone(named("sync", name, self.file(name))?);
        match &self.syncer {
            Some(syncer) => syncer.begin(name, file)?,
            None => self.synced = Some(named("sync", name, timed_sync(&file))),
        }
        Ok(())
    }

    fn sync_result(&mut self, waits: bool) -> Option<io::Result<Duration>> {
        match &self.syncer {
            Some(syncer) => syncer.result(waits),
            None => self.synced.take(),
        }
    }

    fn on_sync_end(&mut self, wake: Box<dyn Fn() + Send>) {
        match Syncer::start(wake) {
            Ok(syncer) => self.syncer = Some(syncer),
            Err(error) => {
                warn!("cannot start a thread for syncs; clients wait during each sync: {error}");
            }
        }
    }

    /// Closes a file of the real directory.
    fn close(&mut self, name: Name) {
        self.open.remove(&name);
        self.reading.take_if(|(of, _)| *of == name);
        // Reserves the descriptor that has just become free. If this fails, the next close tries
        // again.
        let _ = self.reserve_descriptors();
    }

    /// Renames a file of the real directory.
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        let renamed = sys::rename_to_new(&self.path(from), &self.path(to));
        named(&format!("rename to {to}"), from, renamed)?;
        if let Some(file) = self.open.remove(&from) {
            self.open.insert(to, file);
        }
        Ok(())
    }

    /// Removes a file of the real directory.
    fn remove(&mut self, name: Name) -> io::Result<()> {
        self.close(name);
        named("remove", name, fs::remove_file(self.path(name)))
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let Err(error) = self.handle.sync_all() else { return Ok(()) };
        // Opens the directory again, because its descriptor may be invalid. If this fails, it is
        // tried again after the next failed sync.
        let _ = File::open(&self.path).map(|handle| self.handle = handle);
        match error.raw_os_error() {
            // Some file systems cannot sync directories: vboxsf and old CIFS.
            Some(libc::EINVAL | libc::EBADF) => Ok(()),
            _ => Err(io::Error::new(error.kind(), format!("sync the directory: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::OwnedFd, unix::net::UnixStream};

    use super::*;

    fn locked() -> (tempfile::TempDir, Directory) {
        let root = tempfile::tempdir().expect("a directory");
        let disk = Directory::lock(root.path()).expect("the lock is free");
        (root, disk)
    }

    #[test]
    fn only_names_that_the_daemon_writes_are_parsed() {
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

    /// If descriptors that a network outage made invalid stayed open, all later calls would fail.
    #[test]
    fn what_has_failed_is_opened_anew() {
        let (_root, mut disk) = locked();
        let one = Name::Preallocated(1);
        disk.create(one).expect("created");
        // Each of the calls below fails on a socket.
        let dead = || {
            let (socket, _) = UnixStream::pair().expect("two descriptors");
            File::from(OwnedFd::from(socket))
        };
        for call in [
            |disk: &mut Directory, name| disk.write(name, 0, b"abc"),
            |disk: &mut Directory, name| disk.truncate(name, 3),
            |disk: &mut Directory, name| disk.sync(name).map(drop),
        ] {
            disk.open.insert(one, dead().into());
            call(&mut disk, one).expect_err("the descriptor is dead");
            call(&mut disk, one).expect("the file is not");
            assert_eq!(disk.reserved.len() + disk.open.len(), OPEN_FILES_MAX);
        }
        disk.handle = dead();
        disk.sync_directory().expect("EINVAL: some file systems do not offer it");
    }

    #[test]
    fn files_are_written_renamed_truncated_and_removed() {
        let (_root, mut disk) = locked();
        let (one, two) = (Name::Preallocated(1), Name::Segment(2));
        disk.create(one).expect("created");
        disk.write(one, 3, b"defg").expect("written");
        disk.write(one, 0, b"abc").expect("written");
        disk.sync(one).expect("synced");
        disk.rename(one, two).expect("renamed");
        disk.write(two, 7, b"hi").expect("written under its new name");
        disk.close(two);
        disk.truncate(two, 8).expect("cut, though its mode forbids writing");
        let mode = fs::metadata(disk.path(two)).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o7777, MODE, "as before, also if the user is not root");
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

    /// A power cut after startup might destroy a segment that startup did not sync.
    #[test]
    fn of_many_files_that_are_synced_none_is_left_out() {
        let (_root, mut disk) = locked();
        let names: Vec<_> = (1..=100).map(Name::Segment).collect();
        for &name in &names {
            disk.create(name).expect("created");
            disk.close(name);
        }
        disk.sync_all(&names).expect("all are there");
        for &name in &names {
            disk.rename(name, Name::Damaged(1)).expect("it is there");
            let error = disk.sync_all(&names).expect_err("one is missing");
            assert!(error.to_string().contains(&name.to_string()), "{error}");
            disk.rename(Name::Damaged(1), name).expect("its name is free");
        }
    }

    #[test]
    fn reserved_space_is_zeros_and_what_was_written_stays() {
        let (_root, mut disk) = locked();
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

    /// If offsets had 32 bits, as in some 32-bit libcs, data beyond 2 GiB would be taken for zeros.
    #[test]
    fn data_far_behind_a_hole_is_found() {
        let (_root, mut disk) = locked();
        let name = Name::Segment(1);
        disk.create(name).expect("created");
        disk.write(name, 5 << 30, b"x").expect("written, and it takes a block of the disk");
        let found = disk.next_data(name, 3 << 30).expect("known, or the offset");
        assert!(found.is_some_and(|at| (3 << 30..=5 << 30).contains(&at)), "{found:?}");
    }

    /// A rename that replaced a file could destroy jobs of another daemon, or a damaged segment.
    #[test]
    fn a_rename_replaces_nothing() {
        let (_root, mut disk) = locked();
        for name in [Name::Preallocated(1), Name::Segment(1), Name::Damaged(1)] {
            disk.create(name).expect("created");
        }
        for (from, to) in
            [(Name::Segment(1), Name::Damaged(1)), (Name::Preallocated(1), Name::Segment(1))]
        {
            let taken = disk.rename(from, to).expect_err("it is kept");
            assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(disk.list().expect("listed").len(), 3);
    }

    #[test]
    fn a_sync_without_a_thread_is_done_when_it_is_begun() {
        let (_root, mut disk) = locked();
        let name = Name::Segment(1);
        disk.create(name).expect("created");
        for _ in 0..2 {
            disk.begin_sync(name).expect("done");
            assert!(disk.sync_result(false).expect("its result").is_ok());
            assert!(disk.sync_result(false).is_none());
            disk.begin_sync(name).expect("done");
            disk.sync_result(true).expect("its result").expect("synced");
        }
    }

    /// If the binlog gave up a descriptor, a connection could take it, and no file could be opened.
    #[test]
    fn the_number_of_descriptors_stays_the_same() {
        let (_root, mut disk) = locked();
        let count = |disk: &Directory| disk.open.len() + disk.reserved.len();
        let names = [Name::Segment(1), Name::Preallocated(1), Name::Preallocated(2)];
        for name in names {
            disk.create(name).expect("created");
            assert_eq!(count(&disk), OPEN_FILES_MAX);
        }
        assert!(disk.create(names[0]).is_err());
        disk.close(names[0]);
        disk.remove(names[1]).expect("removed");
        assert_eq!(count(&disk), OPEN_FILES_MAX);
        disk.write(names[0], 0, b"x").expect("opened again");
        assert!(disk.write(names[1], 0, b"x").is_err());
        assert_eq!(count(&disk), OPEN_FILES_MAX);
    }
}
