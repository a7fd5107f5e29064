//! Any bytes as a binlog, or any damage to an intact binlog. Startup must neither panic nor hang.
//! When all damaged segments have been rewritten, the next startup must find every job again,
//! except for those deleted meanwhile. Damaged files must be kept unchanged. An inspection must
//! find the same jobs. If memory, descriptors or permission are refused at any call, the next
//! startup must still find all jobs.
//!
//! Each startup gets a new key, as the daemon draws a random key for a directory that has none. So
//! a startup finds the jobs of the previous startup only by the key in the files.
#![expect(clippy::disallowed_types, reason = "the judge and the daemon share the disk")]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    rc::Rc,
    sync::OnceLock,
    time::Duration,
};

use beanstalkd::{
    clock::{Calendar, Time},
    collections::Key,
    memory,
    queue::{Client, Job, Queue, Record, State, Tube},
    wal::{
        self, Change, CommitOutcome, Disk, Name, Options, Report, Restored, SyncPolicy, Wal,
        full_length,
    },
};

/// More ids than jobs fit into a segment of 4 KiB.
const IDS_SKIPPED_MAX: u64 = 100;

/// The system's error number of a failed read.
const EIO: i32 = 5;

type Files = BTreeMap<Name, Vec<u8>>;

/// The errors with which a system may refuse any call: `EMFILE`, `ENOMEM`, `EACCES`, `EROFS`.
const REFUSALS: [i32; 4] = [24, 12, 13, 30];

/// Files in memory. Nothing is ever lost, but a file may be unreadable.
#[derive(Debug, Default, Clone)]
struct Memory {
    files: Rc<RefCell<Files>>,
    unreadable: Option<(Name, i32)>,
    /// How many calls succeed before one is refused, and the error of that call.
    refusal: Option<(Rc<Cell<u32>>, i32)>,
}

/// A memory source that grants this number of requests, and refuses all later ones.
#[derive(Debug)]
struct Scarce(u32);

impl memory::Supply for Scarce {
    fn left(&mut self) -> usize {
        let left = if self.0 > 0 { usize::MAX } else { 0 };
        self.0 = self.0.saturating_sub(1);
        left
    }
    fn refill(&mut self, _: usize) {}
}

impl Memory {
    /// Fails if this is the call to refuse; later calls succeed.
    fn ask(&self) -> io::Result<()> {
        let Some((left, error)) = &self.refusal else { return Ok(()) };
        match left.replace(left.get().wrapping_sub(1)) {
            0 => Err(io::Error::from_raw_os_error(*error)),
            _ => Ok(()),
        }
    }

    fn with<T>(&mut self, name: Name, act: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
        self.ask()?;
        self.files.borrow_mut().get_mut(&name).map(act).ok_or(io::ErrorKind::NotFound.into())
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a small file")
}

impl Disk for Memory {
    fn confirm_lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        self.ask()?;
        Ok(self.files.borrow().iter().map(|(&name, bytes)| (name, bytes.len() as u64)).collect())
    }
    fn read(&mut self, name: Name, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.unreadable {
            Some((of, error)) if of == name => Err(io::Error::from_raw_os_error(error)),
            _ => self.with(name, |bytes| {
                let bytes = bytes.get(index(offset)..).unwrap_or_default();
                let count = bytes.len().min(buffer.len());
                buffer[..count].copy_from_slice(&bytes[..count]);
                count
            }),
        }
    }
    fn next_data(&mut self, _: Name, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }
    fn create(&mut self, name: Name) -> io::Result<()> {
        self.ask()?;
        match self.files.borrow_mut().insert(name, Vec::new()) {
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            None => Ok(()),
        }
    }
    fn reserve(&mut self, name: Name, size: u64) -> io::Result<bool> {
        self.with(name, |bytes| bytes.resize(index(size), 0)).map(|()| true)
    }
    fn write(&mut self, name: Name, offset: u64, new: &[u8]) -> io::Result<()> {
        let start = index(offset);
        self.with(name, |bytes| {
            bytes.resize(bytes.len().max(start + new.len()), 0);
            bytes[start..start + new.len()].copy_from_slice(new);
        })
    }
    fn truncate(&mut self, name: Name, size: u64) -> io::Result<()> {
        self.with(name, |bytes| bytes.resize(index(size), 0))
    }
    fn sync(&mut self, _: Name) -> io::Result<Duration> {
        self.ask().map(|()| Duration::ZERO)
    }
    fn begin_sync(&mut self, _: Name) -> io::Result<()> {
        Ok(())
    }
    fn sync_result(&mut self, _: bool) -> Option<io::Result<Duration>> {
        Some(Ok(Duration::ZERO))
    }
    fn close(&mut self, _: Name) {}
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        self.ask()?;
        let bytes = self.files.borrow_mut().remove(&from).ok_or(io::ErrorKind::NotFound)?;
        self.files.borrow_mut().insert(to, bytes);
        Ok(())
    }
    fn remove(&mut self, name: Name) -> io::Result<()> {
        self.ask()?;
        self.files.borrow_mut().remove(&name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }
    fn sync_directory(&mut self) -> io::Result<()> {
        self.ask()
    }
}

const START: Time = Time::from_nanoseconds(3_000_000_000_000_000_000);

fn calendar() -> Calendar {
    Calendar::new(START, 1_700_000_000_000_000_000)
}

/// The facts about a job, its tube and its body. The time since which a ready job has been ready is
/// not compared.
type Found = (u64, String, Vec<u8>, String);

/// Takes all jobs out of the queue, one by one, and returns the facts about each.
fn drain(restored: &mut Restored) -> Vec<Found> {
    let Restored { queue, bodies } = restored;
    let mut found = Vec::new();
    let names: Vec<String> = queue.tube_names(None).map(str::to_owned).collect();
    for name in names {
        while let Some(tube) = queue.find_tube(&name) {
            let Some(job) = first(queue, tube) else { break };
            let mut record: Record = queue.job(job).record.clone();
            if record.state == State::Ready {
                record.state_at = Time::default();
            }
            let body = bodies.bytes(&queue.job(job).body);
            found.push((record.id, name.clone(), body.to_vec(), format!("{record:?}")));
            bodies.remove(queue.discard(job));
        }
    }
    found.sort_unstable();
    found
}

/// The keys of the intact files, and of each later startup. Keys differ in bits that no segment's
/// number has: a salt is made of key and number, and must not be another segment's salt.
const SOUND_KEY: u64 = 1 << 60;
const REFUSED_KEY: u64 = 2 << 60;
const FIRST_KEY: u64 = 3 << 60;
const SECOND_KEY: u64 = 4 << 60;

/// Starts on copies of the files while memory or a call is refused. The refusal must not change the
/// jobs that the next startup finds, nor any byte if memory was refused.
fn refuse(files: &Files, granted: u32) {
    let open_copy = |memory: Option<Scarce>, refusal, key| {
        let files = Rc::new(RefCell::new(files.clone()));
        let disk = Memory { files, unreadable: None, refusal };
        let mut restored = Restored::default();
        if let Some(memory) = memory {
            restored.bodies.memory.set_supply(Box::new(memory));
        }
        let options = Options { segment_size: 4096, sync: SyncPolicy::Within(Duration::ZERO), key };
        let opened = Wal::open(
            Box::new(disk.clone()),
            options,
            &mut restored,
            calendar(),
            START,
            &mut wal::go_on,
        );
        (disk, restored, opened)
    };
    let (disk, _, opened) = open_copy(Some(Scarce(granted)), None, REFUSED_KEY);
    if let Err(error) = opened {
        assert!(matches!(error, wal::Error::OutOfMemory(_)), "{error}");
        assert_eq!(*disk.files.borrow(), *files, "a start without memory has changed something");
    }
    let error = REFUSALS[granted as usize % REFUSALS.len()];
    let refusal = Some((Rc::new(Cell::new(granted)), error));
    let (mut disk, _, opened) = open_copy(None, refusal, REFUSED_KEY);
    if opened.is_err() {
        drop(opened);
        disk.refusal = None;
        let (_, mut restored, opened) = open_copy(None, None, FIRST_KEY);
        opened.expect("nothing is refused");
        let (mut found, _wal, _) =
            open(&disk, 4096, SECOND_KEY).expect("nothing is refused any more");
        let ids = restored.queue.next_id()..=restored.queue.next_id() + IDS_SKIPPED_MAX;
        assert!(ids.contains(&found.queue.next_id()));
        assert_eq!(drain(&mut found), drain(&mut restored));
    }
}

fn open(disk: &Memory, segment_size: u64, key: u64) -> Result<(Restored, Wal, Report), wal::Error> {
    let options = Options { segment_size, sync: SyncPolicy::Within(Duration::ZERO), key };
    let mut restored = Restored::default();
    let disk = Box::new(disk.clone());
    let (wal, report) =
        Wal::open(disk, options, &mut restored, calendar(), START, &mut wal::go_on)?;
    restored.queue.check();
    wal.check();
    Ok((restored, wal, report))
}

/// Commits until the binlog has nothing left to do: jobs of damaged segments are written again, a
/// piece in each turn.
fn settle(restored: &Restored, wal: &mut Wal) {
    let mut turns = 0;
    while wal.next_deadline().is_some_and(|at| at <= START) {
        let outcome = wal.commit(restored.jobs(), None, START);
        assert!(outcome == CommitOutcome::Done && turns < 10_000);
        turns += 1;
    }
    wal.check();
}

/// Returns the next job of a tube, whatever its state.
fn first(queue: &Queue, tube: Key<Tube>) -> Option<Key<Job>> {
    let first = queue.first_ready(tube).or_else(|| queue.first_delayed(tube));
    first.or_else(|| queue.first_buried(tube))
}

/// Deletes one job of each tube, puts one into a new tube and buries it.
fn go_on(restored: &mut Restored, wal: &mut Wal) {
    let names: Vec<String> = restored.queue.tube_names(None).map(str::to_owned).collect();
    for name in names {
        let Restored { queue, bodies } = restored;
        let Some(tube) = queue.find_tube(&name) else { continue };
        let Some(job) = first(queue, tube) else { continue };
        let permit = wal.permit(Change::Delete, START).expect("there is always room for a delete");
        wal.delete(permit, queue, job);
        bodies.remove(queue.delete(job, START));
    }
    let client = restored.queue.join();
    let put = Record::new(restored.queue.take_id(), 1, 2, 3, START);
    let job = put_into(restored, wal, client, "new", put, b"body\r\n");
    bury(restored, wal, client, job);
    assert_eq!(wal.commit(restored.jobs(), None, START), CommitOutcome::Done);
    wal.check();
}

fn put_into(
    restored: &mut Restored,
    wal: &mut Wal,
    client: Key<Client>,
    tube: &str,
    put: Record,
    body: &[u8],
) -> Key<Job> {
    let Restored { queue, bodies } = restored;
    let found = queue.find_tube(tube);
    let of_name = found.map_or_else(|| queue.make_tube(tube), Ok).expect("there is memory");
    queue.use_tube(client, of_name);
    let length = full_length(tube, body.len());
    let body = bodies.store(body).expect("there is memory");
    let permit = wal.permit(Change::Put(length), START).expect("there is room");
    let job = queue.put(client, put, body, START);
    bodies.own(queue, job.index());
    wal.put(permit, restored.jobs(), job);
    job
}

fn bury(restored: &mut Restored, wal: &mut Wal, client: Key<Client>, job: Key<Job>) {
    let permit = wal.permit(Change::Update, START).expect("there is room");
    let reserved = restored.queue.reserve_job(client, job, START);
    reserved.expect("there is memory");
    restored.queue.bury(job, 7, START);
    wal.update(permit, &restored.queue, job, START);
}

/// Returns an intact binlog of a few jobs in all states: in several small segments, or mostly in
/// one segment so large that its header is repeated.
fn sound(is_large: bool) -> &'static Files {
    static SMALL: OnceLock<Files> = OnceLock::new();
    static LARGE: OnceLock<Files> = OnceLock::new();
    if is_large {
        LARGE.get_or_init(|| make_sound(24 * 1024, 12))
    } else {
        SMALL.get_or_init(|| make_sound(4096, 1))
    }
}

fn make_sound(segment_size: u64, length: usize) -> Files {
    let disk = Memory::default();
    let (mut restored, mut wal, _) =
        open(&disk, segment_size, SOUND_KEY).expect("it does not fail");
    let client = restored.queue.join();
    for number in 0..40u32 {
        let name = ["a", "default", "long-tube-name"][number as usize % 3];
        let (id, created_at) = (restored.queue.take_id(), START);
        let put = Record::new(id, number, number % 4, 9, created_at);
        let body = format!("{number}").repeat(number as usize * length) + "\r\n";
        let job = put_into(&mut restored, &mut wal, client, name, put, body.as_bytes());
        if number % 5 == 0 {
            bury(&mut restored, &mut wal, client, job);
        } else if number % 7 == 0 {
            let permit =
                wal.permit(Change::Delete, START).expect("there is always room for a delete");
            wal.delete(permit, &restored.queue, job);
            restored.bodies.remove(restored.queue.delete(job, START));
        }
        assert_eq!(wal.commit(restored.jobs(), None, START), CommitOutcome::Done);
    }
    drop(wal);
    disk.files.take()
}

/// Makes files of the fuzzer's bytes: for each file, two bytes of length, then that many of the
/// remaining bytes.
fn any_files(mut input: &[u8]) -> Files {
    let mut files = Files::new();
    while let Some((length, rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        let number = 1 + u32::try_from(files.len()).expect("few");
        files.insert(Name::Segment(number), bytes.into());
        input = rest;
    }
    files
}

/// Changes intact files as the fuzzer's bytes say.
fn damaged_files(is_large: bool, input: &[u8]) -> Files {
    let mut files = sound(is_large).clone();
    for edit in input.chunks_exact(6) {
        let nth = usize::from(edit[1]) % files.len();
        let (&name, bytes) = files.iter_mut().nth(nth).expect("one of them");
        let at = usize::from(u16::from_le_bytes([edit[2], edit[3]])) % (bytes.len() + 1);
        let length = usize::from(edit[4]);
        let end = (at + length).min(bytes.len());
        match edit[0] % 8 {
            0..=2 if at < end => bytes[at] ^= edit[5],
            3 => bytes[at..end].fill(edit[5]),
            4 => bytes.truncate(at),
            5 => {
                // A copy of a piece of the file is inserted at a wrong position.
                let piece = bytes[at..end].to_vec();
                let to = usize::from(edit[5]) * 16 % (bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 => drop(bytes.drain(at..end)),
            7 if files.len() > 1 => {
                let bytes = files.remove(&name).unwrap_or_default();
                if length % 2 == 0 {
                    files.insert(Name::Segment(100 + u32::from(edit[5])), bytes);
                }
            }
            _ => {}
        }
    }
    files
}

/// Judges a binlog made of any bytes.
pub(crate) fn judge(input: &[u8]) {
    let Some((&mode, input)) = input.split_first() else { return };
    let files = match mode & 1 {
        0 => any_files(input),
        _ => damaged_files(mode & 128 > 0, input),
    };
    // A segment of the original from another kind of machine, or of an earlier build, is refused,
    // whatever the other files are.
    let copy = Rc::new(RefCell::new(files.clone()));
    let disk = Memory { files: Rc::clone(&copy), unreadable: None, refusal: None };
    let opened = open(&disk, 4096, FIRST_KEY);
    if opened.is_err_and(|error| matches!(error, wal::Error::Foreign(_))) {
        assert_eq!(*copy.borrow(), files);
        return;
    }
    // The input decides after how many calls a call is refused.
    refuse(&files, input.iter().fold(0, |sum, &byte| sum ^ u32::from(byte)) % 64);
    let unreadable = match mode >> 1 & 7 {
        0 => Some(EIO),
        1 => Some(EIO + 1),
        _ => None,
    };
    let unreadable = unreadable.and_then(|error| {
        let nth = usize::from(mode >> 4 & 7) % files.len().max(1);
        files.keys().nth(nth).map(|&name| (name, error))
    });
    let mut disk = Memory { files: Rc::new(RefCell::new(files)), unreadable, refusal: None };
    let inspected = wal::inspect(&mut disk, calendar(), START);
    let Ok((mut restored, mut wal, report)) = open(&disk, 4096, FIRST_KEY) else {
        assert!(inspected.is_err() && unreadable.is_some_and(|(_, error)| error != EIO));
        return;
    };
    let jobs = format!("{} jobs need ", restored.queue.jobs());
    let text = inspected.expect("what can be opened can be looked at").to_string();
    assert!(text.contains(&jobs), "{text}");
    let damaged = report.segments.iter().filter(|segment| segment.is_damaged());
    let damaged: Vec<u32> = damaged.map(|segment| segment.number).collect();
    let before = disk.files.borrow().clone();
    go_on(&mut restored, &mut wal);
    settle(&restored, &mut wal);
    drop(wal);
    let next_id = restored.queue.next_id();
    let found = drain(&mut restored);
    for number in damaged {
        let (was, kept) = (Name::Segment(number), Name::Damaged(number));
        assert_eq!(disk.files.borrow().get(&kept), before.get(&was));
    }
    let (mut restored, _wal, report) =
        open(&disk, 4096, SECOND_KEY).expect("what cannot be read is set aside");
    assert!(!report.is_damaged());
    // The first run did not shut down cleanly, so clients may have seen higher ids.
    assert!((next_id..=next_id + IDS_SKIPPED_MAX).contains(&restored.queue.next_id()));
    assert_eq!(drain(&mut restored), found);
}
