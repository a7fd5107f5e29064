//! A disk in memory, and a queue with a binlog on that disk, for unit tests of the binlog.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{Disk, Name};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    queue::{Client, Job, Record},
    wal::{
        Change, CommitOutcome, Options, Report, Restored, SyncPolicy, Unavailable, Wal,
        full_length, go_on,
    },
};

/// The time at which tests begin.
pub(crate) const START: Time = Time::from_nanoseconds(1_000_000_000_000);

/// The parts of a [`MemoryDisk`] that a test sees and sets.
#[derive(Debug, Default)]
pub(crate) struct MemoryDiskState {
    pub(crate) files: BTreeMap<Name, Vec<u8>>,
    /// The text of each call that changes or syncs a file or directory, such as `write binlog.1`.
    pub(crate) calls: Vec<String>,
    /// A call fails if its entry in `calls` begins with this text.
    pub(crate) failing: Option<&'static str>,
    /// The error number of calls that fail; `None` means `EIO`.
    pub(crate) errno: Option<i32>,
    /// How many more calls will fail because of `failing`; `None` means all such calls.
    pub(crate) failures: Option<u32>,
    /// The most bytes that all files together may have: a call that would exceed this fails.
    pub(crate) capacity: Option<u64>,
    /// Whether a background sync ends by itself. If false, a sync ends as soon as a caller waits
    /// for it.
    pub(crate) ends_syncs: bool,
    /// How long each sync takes, as this disk reports it.
    pub(crate) sync_time: Duration,
    /// Whether another daemon has taken the lock.
    pub(crate) is_lock_lost: bool,
    is_syncing: bool,
}

/// A disk in memory. All clones of a disk have the same files.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<MemoryDiskState>>);

impl MemoryDisk {
    pub(crate) fn state(&self) -> MutexGuard<'_, MemoryDiskState> {
        self.0.lock().expect("no test panics while it holds the lock")
    }

    /// Returns the calls since the last `take_calls`.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }

    /// The names of all files.
    pub(crate) fn names(&self) -> Vec<String> {
        self.state().files.keys().map(ToString::to_string).collect()
    }

    fn call(&self, call: &str, name: &str) -> io::Result<MutexGuard<'_, MemoryDiskState>> {
        let mut state = self.state();
        let text = format!("{call} {name}");
        let fails = state.failing.is_some_and(|failing| text.starts_with(failing));
        state.calls.push(text);
        let errno = state.errno.unwrap_or(libc::EIO);
        if fails {
            state.failures = state.failures.map(|left| left - 1);
            state.failing = state.failing.filter(|_| state.failures != Some(0));
        }
        if fails { Err(io::Error::from_raw_os_error(errno)) } else { Ok(state) }
    }
}

impl MemoryDiskState {
    fn grow(&mut self, name: Name, size: usize) -> io::Result<&mut Vec<u8>> {
        let others = self.files.iter().filter(|&(&other, _)| other != name);
        let others: usize = others.map(|(_, bytes)| bytes.len()).sum();
        let bytes = self.files.get_mut(&name).ok_or(io::ErrorKind::NotFound)?;
        let grown = bytes.len().max(size);
        if self.capacity.is_some_and(|capacity| (others + grown) as u64 > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        bytes.resize(grown, 0);
        Ok(bytes)
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("files in memory are small")
}

impl Disk for MemoryDisk {
    fn confirm_lock(&mut self) -> io::Result<()> {
        if self.state().is_lock_lost { Err(io::Error::other("another has it")) } else { Ok(()) }
    }

    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        Ok(self.state().files.iter().map(|(&name, bytes)| (name, bytes.len() as u64)).collect())
    }

    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.state();
        let bytes = state.files.get(&name).ok_or(io::ErrorKind::NotFound)?;
        let rest = bytes.get(index(offset)..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn next_data(&mut self, _: Name, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }

    fn create(&mut self, name: Name) -> io::Result<()> {
        self.call("create", &name.to_string())?.files.insert(name, Vec::new());
        Ok(())
    }

    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        self.call("reserve", &name.to_string())?.grow(name, index(size)).map(|_| true)
    }

    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.call("write", &name.to_string())?;
        let file = state.grow(name, index(offset) + bytes.len())?;
        file[index(offset)..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        let mut state = self.call("truncate", &name.to_string())?;
        state.files.get_mut(&name).ok_or(io::ErrorKind::NotFound)?.truncate(index(size));
        Ok(())
    }

    fn sync(&mut self, name: Name) -> io::Result<Duration> {
        self.call("sync", &name.to_string()).map(|state| state.sync_time)
    }

    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        self.call("begin-sync", &name.to_string())?.is_syncing = true;
        Ok(())
    }

    fn sync_result(&mut self, waits: bool) -> Option<io::Result<Duration>> {
        let is_over = waits || self.state().ends_syncs;
        is_over.then(|| {
            let mut state = self.call("end-sync", "")?;
            assert!(std::mem::take(&mut state.is_syncing), "a sync was begun");
            Ok(state.sync_time)
        })
    }

    fn close(&mut self, _: Name) {}

    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        let mut state = self.call("rename", &format!("{from} {to}"))?;
        if state.files.contains_key(&to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let bytes = state.files.remove(&from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to, bytes);
        Ok(())
    }

    fn remove(&mut self, name: Name) -> io::Result<()> {
        let mut state = self.call("remove", &name.to_string())?;
        state.files.remove(&name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        self.call("sync", "directory").map(drop)
    }
}

/// Opens the binlog on a disk, as at startup.
pub(crate) fn open(disk: &MemoryDisk, sync: SyncPolicy, now: Time) -> (Restored, Wal, Report) {
    let options = Options { segment_size: 4096, sync, key: 1 };
    let mut restored = Restored::default();
    let calendar = Calendar::new(START, 1_700_000_000_000_000_000);
    let boxed = Box::new(disk.clone());
    let opened = Wal::open(boxed, options, &mut restored, calendar, now, &mut go_on);
    let (wal, report) = opened.expect("the disk works");
    disk.take_calls();
    (restored, wal, report)
}

/// A queue and its binlog, as in the server.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) disk: MemoryDisk,
    pub(crate) restored: Restored,
    pub(crate) wal: Wal,
    pub(crate) now: Time,
    client: Key<Client>,
}

impl Fixture {
    /// A binlog on an empty disk, with segments of 4,096 bytes.
    pub(crate) fn new(sync: SyncPolicy) -> Self {
        Self::open(MemoryDisk::default(), sync, START).0
    }

    /// Opens the binlog on a disk, restores its jobs, and adds a client.
    pub(crate) fn open(disk: MemoryDisk, sync: SyncPolicy, now: Time) -> (Self, Report) {
        let (mut restored, wal, report) = open(&disk, sync, now);
        let client = restored.queue.join();
        (Self { disk, restored, wal, now, client }, report)
    }

    /// Puts a job with a body of `size` bytes, if the binlog permits the put.
    pub(crate) fn try_put(&mut self, size: usize) -> Result<Key<Job>, Unavailable> {
        let Restored { queue, bodies } = &mut self.restored;
        let permit = self.wal.permit(Change::Put(full_length("default", size + 2)), self.now)?;
        let mut body = vec![b'x'; size];
        body.extend_from_slice(b"\r\n");
        let body = bodies.store(&body).expect("there is memory");
        let put = Record::new(queue.take_id(), 0, 0, 1, self.now);
        let job = queue.put(self.client, put, body, self.now);
        bodies.own(queue, job.index());
        self.wal.put(permit, self.restored.jobs(), job);
        Ok(job)
    }

    pub(crate) fn put(&mut self, size: usize) -> Key<Job> {
        self.try_put(size).expect("it is permitted")
    }

    pub(crate) fn bury(&mut self, job: Key<Job>) {
        let permit = self.wal.permit(Change::Update, self.now).expect("it is permitted");
        let queue = &mut self.restored.queue;
        let reserved = queue.reserve_job(self.client, job, self.now);
        reserved.expect("there is memory");
        queue.bury(job, 7, self.now);
        self.wal.update(permit, &self.restored.queue, job, self.now);
    }

    pub(crate) fn delete(&mut self, job: Key<Job>) {
        let permit =
            self.wal.permit(Change::Delete, self.now).expect("a delete is always permitted");
        self.wal.delete(permit, &self.restored.queue, job);
        self.restored.bodies.remove(self.restored.queue.delete(job, self.now));
    }

    /// Ends a turn with a commit.
    pub(crate) fn commit(&mut self) -> CommitOutcome {
        let outcome = self.wal.commit(self.restored.jobs(), None, self.now);
        self.wal.check();
        outcome
    }

    /// Ends a turn, and panics if the commit fails.
    pub(crate) fn turn(&mut self) {
        assert_ne!(self.commit(), CommitOutcome::Failed);
    }

    /// Ends one turn after another until no work of the binlog is due.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.turn();
            if self.wal.next_deadline().is_none_or(|at| at > self.now) {
                return;
            }
        }
        panic!("the binlog never comes to rest");
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// The ids of the jobs that a restart finds on a copy of the disk.
    pub(crate) fn ids_after_restart(&self) -> Vec<u64> {
        let copy = MemoryDisk::default();
        copy.state().files = self.disk.state().files.clone();
        let (found, report) = Self::open(copy, SyncPolicy::Never, self.now);
        assert!(!report.is_damaged(), "{report:?}");
        let queue = &found.restored.queue;
        (1..queue.next_id()).filter(|&id| queue.find(id).is_some()).collect()
    }
}
