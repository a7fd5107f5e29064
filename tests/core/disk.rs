//! A disk that can lose, tear and reorder writes, and refuse calls. A seed decides what a power cut
//! or a kill leaves on it.
//!
//! For every file, and for the directory, the disk has the contents that are certain to survive a
//! power cut, and the changes that may survive the cut. A sync moves the changes into the contents.
//! Any set of sectors of unsynced writes may reach the disk, and a sector may be torn. Any unsynced
//! changes of names may reach the disk.

#![expect(clippy::disallowed_types, reason = "the test and the daemon share the disk")]

use std::{cell::RefCell, collections::BTreeMap, io, rc::Rc, time::Duration};

use beanstalkd::wal::{Disk, Name};
use ct::Prng;

/// The bytes that a disk writes atomically, unless the write is torn.
const SECTOR: usize = 512;

/// The unit in which a file system stores files with holes.
const PAGE_BYTES: usize = 4096;

/// How often each rare fault has happened.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Met {
    pub(crate) drops: u64,
    pub(crate) torn: u64,
    pub(crate) failed_syncs: u64,
    pub(crate) failed_writes: u64,
    pub(crate) full: u64,
    pub(crate) between_remove_and_sync: u64,
}

impl Met {
    pub(crate) fn add(&mut self, other: Self) {
        self.drops += other.drops;
        self.torn += other.torn;
        self.failed_syncs += other.failed_syncs;
        self.failed_writes += other.failed_writes;
        self.full += other.full;
        self.between_remove_and_sync += other.between_remove_and_sync;
    }
}

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

impl Change {
    /// Whether the change has data that a reader would miss.
    fn is_record(&self) -> bool {
        matches!(self, Self::Write { bytes, .. } if bytes.iter().any(|&byte| byte != 0))
    }

    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                content.resize(content.len().max(offset + bytes.len()), 0);
                content[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Self::Size(size) => content.resize(*size, 0),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct File {
    /// The contents as a reader sees them.
    content: Vec<u8>,
    /// The contents that survive every power cut.
    durable: Vec<u8>,
    /// The changes from `durable` to `content`.
    changes: Vec<Change>,
}

#[derive(Debug, Clone, Copy)]
enum NameChange {
    Create(Name, usize),
    Rename(Name, Name),
    Remove(Name),
}

fn apply_name(change: NameChange, names: &mut BTreeMap<Name, usize>) {
    match change {
        NameChange::Create(name, file) => {
            names.insert(name, file);
        }
        NameChange::Rename(from, to) => {
            if let Some(file) = names.remove(&from) {
                names.insert(to, file);
            }
        }
        NameChange::Remove(name) => {
            names.remove(&name);
        }
    }
}

/// What a test must know about the moment of a crash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The time in nanoseconds.
    pub(crate) now: u64,
    /// Everything up to this step survives a kill.
    pub(crate) kill_floor: usize,
    /// Everything up to this step survives a power cut.
    pub(crate) cut_floor: usize,
    /// The number of steps so far.
    pub(crate) steps: usize,
    /// The largest id that a client has seen.
    pub(crate) seen: u64,
}

/// The disk just before an operation.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) moment: Moment,
    files: Vec<File>,
    names: BTreeMap<Name, usize>,
    durable_names: BTreeMap<Name, usize>,
    name_changes: Vec<NameChange>,
    /// The write that was under way.
    next: Option<(usize, Change)>,
}

#[derive(Debug)]
pub(crate) struct State {
    files: Vec<File>,
    names: BTreeMap<Name, usize>,
    durable_names: BTreeMap<Name, usize>,
    name_changes: Vec<NameChange>,
    prng: Prng,
    pub(crate) moment: Moment,
    pub(crate) snapshots: Vec<Snapshot>,
    /// A snapshot is kept before one call in this many, as a possible crash.
    pub(crate) snapshot_every: u64,
    /// One call in this many fails; no call if zero.
    pub(crate) fail_every: u64,
    /// Failing calls find the disk full, although their files' space was reserved, as on btrfs.
    pub(crate) lacks_reserved: bool,
    /// After this many more calls, one call fails with this error.
    pub(crate) fault: Option<(u64, i32)>,
    /// The number of bytes that fit on the disk.
    pub(crate) capacity: usize,
    /// Whether space can be preallocated without writing.
    pub(crate) can_reserve: bool,
    pub(crate) met: Met,
    /// The sync that was begun: its file, how many changes it covers, and the step.
    syncing: Option<(usize, usize, usize)>,
    /// The step of the last sync that has ended well.
    pub(crate) synced_step: usize,
    /// The newest segment when the binlog failed last. The daemon no longer writes to this segment
    /// or to older segments, and may never sync them.
    abandoned: Option<Name>,
    /// The number of writes of records to segments so far.
    pub(crate) writes: u64,
    /// The number of bytes in all these writes.
    pub(crate) written_bytes: u64,
    /// How long each sync reports to have taken.
    pub(crate) sync_time: Duration,
}

/// The daemon's side of the disk.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk(pub(crate) Rc<RefCell<State>>);

impl SimDisk {
    pub(crate) fn new(prng: Prng) -> Self {
        Self::of(Snapshot::empty(), prng)
    }

    fn of(snapshot: Snapshot, prng: Prng) -> Self {
        let Snapshot { files, names, durable_names, name_changes, .. } = snapshot;
        Self(Rc::new(RefCell::new(State {
            files,
            names,
            durable_names,
            name_changes,
            prng,
            moment: Moment::default(),
            snapshots: Vec::new(),
            snapshot_every: 0,
            fail_every: 0,
            lacks_reserved: false,
            fault: None,
            capacity: usize::MAX,
            can_reserve: true,
            met: Met::default(),
            syncing: None,
            synced_step: 0,
            abandoned: None,
            writes: 0,
            written_bytes: 0,
            sync_time: Duration::ZERO,
        })))
    }

    /// Ends the process that has the files open, and with it the thread that syncs.
    pub(crate) fn end_process(&self) {
        self.0.borrow_mut().syncing = None;
    }

    /// Returns the bytes of the pages of all files.
    pub(crate) fn size(&self) -> usize {
        self.0.borrow().size()
    }

    /// Returns another disk with the same contents, as a reader sees them.
    pub(crate) fn copy(&self) -> Self {
        let state = self.0.borrow();
        let file = |content: &Vec<u8>| File {
            content: content.clone(),
            durable: content.clone(),
            changes: Vec::new(),
        };
        let files = state.files.iter().map(|it| file(&it.content)).collect();
        let (names, durable_names) = (state.names.clone(), state.names.clone());
        let snapshot = Snapshot { files, names, durable_names, ..Snapshot::empty() };
        Self::of(snapshot, Prng::new(1))
    }

    /// The contents of the segments.
    pub(crate) fn segments(&self) -> BTreeMap<Name, Vec<u8>> {
        let state = self.0.borrow();
        let segments = state.names.iter().filter(|(name, _)| matches!(name, Name::Segment(_)));
        segments.map(|(&name, &file)| (name, state.files[file].content.clone())).collect()
    }

    /// Fails unless all these segments still exist with all their bytes. Zeros after the last
    /// record may have been truncated, and so may an unfinished record at the end of the newest
    /// segment.
    pub(crate) fn judge_untouched(&self, before: &BTreeMap<Name, Vec<u8>>) -> Result<(), String> {
        let after = self.segments();
        let newest = before.keys().max();
        for (name, bytes) in before {
            let Some(left) = after.get(name) else { return Err(format!("{name} is gone")) };
            let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
            let cut = bytes.strip_prefix(&left[..]).ok_or(format!("{name} has other bytes"))?;
            if !is_zero(cut) && Some(name) != newest {
                return Err(format!("{name} has lost {} bytes", cut.len()));
            }
        }
        Ok(())
    }

    /// The files' names and sizes.
    pub(crate) fn files(&self) -> Vec<(Name, usize)> {
        let state = self.0.borrow();
        state.names.iter().map(|(&name, &file)| (name, state.files[file].content.len())).collect()
    }
}

/// The size of a file's pages in bytes.
fn pages(size: usize) -> usize {
    size.next_multiple_of(4096)
}

impl State {
    fn segments(&self) -> impl DoubleEndedIterator<Item = (Name, &File)> {
        let segments = self.names.iter().filter(|(name, _)| matches!(name, Name::Segment(_)));
        segments.map(|(&name, &file)| (name, &self.files[file]))
    }

    /// Marks the present segments as those to which the daemon no longer writes.
    pub(crate) fn abandon(&mut self) {
        let newest = self.segments().next_back().map(|(name, _)| name);
        self.abandoned = newest;
    }

    /// Whether every byte of every segment that is not abandoned would survive a power cut.
    pub(crate) fn is_synced(&self) -> bool {
        let mut used = self.segments().filter(|&(name, _)| Some(name) > self.abandoned);
        used.all(|(_, file)| !file.changes.iter().any(Change::is_record))
    }

    /// Whether a sync has been begun and not ended.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }

    fn size(&self) -> usize {
        self.names.values().map(|&file| pages(self.files[file].content.len())).sum()
    }

    fn file(&self, name: Name) -> io::Result<usize> {
        self.names.get(&name).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Keeps a snapshot before a call, because the crash may come during this call.
    fn about_to(&mut self, next: Option<(usize, Change)>) {
        if self.snapshot_every > 0 && self.prng.chance(1, self.snapshot_every) {
            let is_remove =
                |change: &NameChange| matches!(change, NameChange::Remove(Name::Segment(_)));
            if self.name_changes.iter().any(is_remove) {
                self.met.between_remove_and_sync += 1;
            }
            self.snapshots.push(Snapshot {
                moment: self.moment,
                files: self.files.clone(),
                names: self.names.clone(),
                durable_names: self.durable_names.clone(),
                name_changes: self.name_changes.clone(),
                next,
            });
        }
    }

    /// Fails if this call is the one that `fault` selects.
    fn call(&mut self) -> io::Result<()> {
        match &mut self.fault {
            Some((0, error)) => {
                let error = io::Error::from_raw_os_error(*error);
                self.fault = None;
                Err(error)
            }
            Some((calls, _)) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn fails(&mut self) -> bool {
        self.fail_every > 0 && self.prng.chance(1, self.fail_every)
    }

    /// The error of a call that fails.
    fn error(&self) -> io::Error {
        if self.lacks_reserved {
            io::ErrorKind::StorageFull.into()
        } else {
            io::Error::other("a simulated fault")
        }
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        self.about_to(None);
        let needs_no_space = self.lacks_reserved && matches!(change, NameChange::Remove(_));
        if !needs_no_space && self.fails() {
            return Err(self.error());
        }
        apply_name(change, &mut self.names);
        self.name_changes.push(change);
        Ok(())
    }

    fn change(&mut self, name: Name, change: Change) -> io::Result<()> {
        let file = self.file(name)?;
        if let (Name::Segment(_), Change::Write { bytes, .. }) = (name, &change) {
            self.writes += u64::from(change.is_record());
            self.written_bytes += if change.is_record() { bytes.len() as u64 } else { 0 };
        }
        self.about_to(Some((file, change.clone())));
        let fails = self.fails();
        let end = match &change {
            Change::Write { offset, bytes } => offset + bytes.len(),
            Change::Size(size) => *size,
        };
        let grows = pages(end).saturating_sub(pages(self.files[file].content.len()));
        if self.size() + grows > self.capacity && grows > 0 {
            self.met.full += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        if fails && grows > 0 && matches!(change, Change::Size(_)) {
            return Err(self.error());
        }
        if let Change::Write { offset, bytes } = &change {
            if fails {
                // A part of the bytes may have been written.
                self.met.failed_writes += 1;
                let part = usize::try_from(self.prng.below(bytes.len() as u64 + 1)).expect("small");
                let part = Change::Write { offset: *offset, bytes: bytes[..part].to_vec() };
                part.apply(&mut self.files[file].content);
                self.files[file].changes.push(part);
                return Err(self.error());
            }
        }
        change.apply(&mut self.files[file].content);
        self.files[file].changes.push(change);
        Ok(())
    }
}

impl Disk for SimDisk {
    fn confirm_lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        self.0.borrow_mut().call()?;
        Ok(self.files().into_iter().map(|(name, size)| (name, size as u64)).collect())
    }

    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().call()?;
        let state = self.0.borrow();
        let content = &state.files[state.file(name)?].content;
        let at = usize::try_from(offset).expect("a small file");
        let bytes = content.get(at..).unwrap_or_default();
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn next_data(&mut self, name: Name, offset: u64) -> io::Result<Option<u64>> {
        self.0.borrow_mut().call()?;
        let state = self.0.borrow();
        let content = &state.files[state.file(name)?].content;
        let at = usize::try_from(offset).expect("a small file");
        // Only whole pages can be holes.
        let at = at - at % PAGE_BYTES;
        let data = content.get(at..).unwrap_or_default().iter().position(|&byte| byte != 0);
        let data = data.map(|data| (at + data - data % PAGE_BYTES) as u64);
        Ok(data.map(|data| data.max(offset)))
    }

    fn create(&mut self, name: Name) -> io::Result<()> {
        self.0.borrow_mut().call()?;
        let mut state = self.0.borrow_mut();
        if state.names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.push(File::default());
        let file = state.files.len() - 1;
        state.change_name(NameChange::Create(name, file))
    }

    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        self.0.borrow_mut().call()?;
        let mut state = self.0.borrow_mut();
        if !state.can_reserve {
            return Ok(false);
        }
        state
            .change(name, Change::Size(usize::try_from(size).expect("a small file")))
            .map(|()| true)
    }

    fn write(&mut self, name: Name, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().call()?;
        let offset = usize::try_from(offset).expect("a small file");
        self.0.borrow_mut().change(name, Change::Write { offset, bytes: bytes.into() })
    }

    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        self.0.borrow_mut().call()?;
        let size = usize::try_from(size).expect("a small file");
        self.0.borrow_mut().change(name, Change::Size(size))
    }

    fn sync(&mut self, name: Name) -> io::Result<Duration> {
        self.0.borrow_mut().call()?;
        let state = &mut *self.0.borrow_mut();
        let file = state.file(name)?;
        state.about_to(None);
        // A sync with nothing left to write needs no space.
        let is_clean = state.lacks_reserved && state.files[file].changes.is_empty();
        let fails = !is_clean && state.fails();
        let file = &mut state.files[file];
        if fails {
            // As on Linux, data that could not be written counts as written from now on, and a
            // power cut loses it.
            state.met.failed_syncs += 1;
            for change in std::mem::take(&mut file.changes) {
                if state.prng.chance(1, 2) {
                    change.apply(&mut file.durable);
                }
            }
            return Err(state.error());
        }
        for change in std::mem::take(&mut file.changes) {
            change.apply(&mut file.durable);
        }
        // A sync of the segment being written covers everything before this step.
        let newest = state.names.keys().filter(|name| matches!(name, Name::Segment(_))).max();
        if newest == Some(&name) {
            state.synced_step = state.synced_step.max(state.moment.steps.saturating_sub(1));
        }
        Ok(state.sync_time)
    }

    fn begin_sync(&mut self, name: Name) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        let file = state.file(name)?;
        assert!(state.syncing.is_none(), "one sync at a time");
        state.syncing = Some((file, state.files[file].changes.len(), state.moment.steps));
        Ok(())
    }

    fn sync_result(&mut self, waits: bool) -> Option<io::Result<Duration>> {
        let state = &mut *self.0.borrow_mut();
        if !waits && state.prng.chance(1, 3) {
            return None;
        }
        let (file, count, step) = state.syncing.take()?;
        state.about_to(None);
        let fails = state.fails();
        let file = &mut state.files[file];
        // A sync of the whole file may have come since this sync began.
        let covered: Vec<_> = file.changes.drain(..count.min(file.changes.len())).collect();
        for change in covered {
            if !fails || state.prng.chance(1, 2) {
                change.apply(&mut file.durable);
            }
        }
        if fails {
            state.met.failed_syncs += 1;
            return Some(Err(state.error()));
        }
        state.synced_step = state.synced_step.max(step);
        Some(Ok(state.sync_time))
    }

    fn close(&mut self, _: Name) {}

    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        self.0.borrow_mut().call()?;
        let state = &mut *self.0.borrow_mut();
        state.file(from)?;
        state.change_name(NameChange::Rename(from, to))
    }

    fn remove(&mut self, name: Name) -> io::Result<()> {
        self.0.borrow_mut().call()?;
        let state = &mut *self.0.borrow_mut();
        state.file(name)?;
        state.change_name(NameChange::Remove(name))?;
        state.met.drops += u64::from(matches!(name, Name::Segment(_)));
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        self.0.borrow_mut().call()?;
        let state = &mut *self.0.borrow_mut();
        state.about_to(None);
        let is_clean = state.lacks_reserved && state.name_changes.is_empty();
        if !is_clean && state.fails() {
            state.met.failed_syncs += 1;
            return Err(state.error());
        }
        state.durable_names = state.names.clone();
        state.name_changes.clear();
        Ok(())
    }
}

impl Snapshot {
    fn empty() -> Self {
        Self {
            moment: Moment::default(),
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            next: None,
        }
    }

    /// Returns the disk after the process was killed: all completed operations are on it, and
    /// perhaps a part of the operation under way.
    pub(crate) fn after_kill(&self, mut prng: Prng) -> SimDisk {
        let mut snapshot = self.clone();
        if let Some((file, Change::Write { offset, bytes })) = snapshot.next.take() {
            let part = usize::try_from(prng.below(bytes.len() as u64 + 1)).expect("small");
            let part = Change::Write { offset, bytes: bytes[..part].to_vec() };
            part.apply(&mut snapshot.files[file].content);
            snapshot.files[file].changes.push(part);
        }
        SimDisk::of(snapshot, prng)
    }

    /// Returns the disk after a power cut, and how many writes the cut has torn.
    pub(crate) fn after_power_cut(&self, mut prng: Prng) -> (SimDisk, u64) {
        let mut torn = 0;
        let mut names = self.durable_names.clone();
        for &change in &self.name_changes {
            if prng.chance(1, 2) {
                apply_name(change, &mut names);
            }
        }
        let mut files = self.files.clone();
        for file in &mut files {
            // How much of the unsynced data reached the disk: nothing, all, or any part.
            let odds = prng.below(5);
            for change in std::mem::take(&mut file.changes) {
                torn += u64::from(apply_in_part(&change, odds, &mut file.durable, &mut prng));
            }
            file.content = file.durable.clone();
        }
        let snapshot = Self {
            files,
            durable_names: names.clone(),
            names,
            name_changes: Vec::new(),
            next: None,
            ..*self
        };
        (SimDisk::of(snapshot, prng), torn)
    }
}

/// Applies each sector of a write with a probability of `odds` in four. Returns whether the write
/// was torn: applied in part.
fn apply_in_part(change: &Change, odds: u64, content: &mut Vec<u8>, prng: &mut Prng) -> bool {
    let Change::Write { offset, bytes } = change else {
        if prng.chance(odds.min(4), 4) {
            change.apply(content);
        }
        return false;
    };
    let (mut went, mut lost) = (false, false);
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes.len().min(((offset + at) / SECTOR + 1) * SECTOR - offset);
        let mut part = &bytes[at..end];
        let mut start = offset + at;
        if prng.chance(odds.min(4), 4) {
            went = true;
            if odds < 4 && prng.chance(1, 8) {
                // The write is torn within this sector.
                let cut = usize::try_from(prng.below(part.len() as u64)).expect("small");
                if prng.chance(1, 2) {
                    part = &part[..cut];
                } else {
                    start += cut;
                    part = &part[cut..];
                }
                lost = true;
            }
            Change::Write { offset: start, bytes: part.into() }.apply(content);
        } else {
            lost = true;
        }
        at = end;
    }
    went && lost
}
