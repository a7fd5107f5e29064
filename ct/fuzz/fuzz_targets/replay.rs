//! Any bytes as a binlog, or any damage to a sound one: a start must not panic nor hang, and what it
//! found must be there again at the next one, when all that was damaged has been written anew.
#![no_main]

use std::{cell::RefCell, collections::BTreeMap, io, rc::Rc, time::Duration};

use beanstalkd::{
    clock::{Calendar, Time},
    queue::{Put, Queue},
    wal::{Disk, Name, Options, Outcome, Sync, Wal},
};
use libfuzzer_sys::fuzz_target;

/// Files in memory; nothing is ever lost.
#[derive(Debug, Default, Clone)]
struct Memory(Rc<RefCell<BTreeMap<Name, Vec<u8>>>>);

impl Memory {
    fn with<T>(&mut self, name: Name, act: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
        self.0.borrow_mut().get_mut(&name).map(act).ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Disk for Memory {
    fn list(&mut self) -> io::Result<Vec<(Name, u64)>> {
        Ok(self.0.borrow().iter().map(|(&name, bytes)| (name, bytes.len() as u64)).collect())
    }
    fn read(&mut self, name: Name) -> io::Result<Vec<u8>> {
        self.with(name, |bytes| bytes.clone())
    }
    fn create(&mut self, name: Name) -> io::Result<()> {
        self.0.borrow_mut().insert(name, Vec::new());
        Ok(())
    }
    fn write(&mut self, name: Name, offset: u64, new: &[u8]) -> io::Result<()> {
        let start = offset as usize;
        self.with(name, |bytes| {
            bytes.resize(bytes.len().max(start + new.len()), 0);
            bytes[start..start + new.len()].copy_from_slice(new);
        })
    }
    fn cut(&mut self, name: Name, size: u64) -> io::Result<()> {
        self.with(name, |bytes| bytes.resize(size as usize, 0))
    }
    fn sync(&mut self, _: Name) -> io::Result<()> {
        Ok(())
    }
    fn begin_sync(&mut self, _: Name) -> io::Result<()> {
        Ok(())
    }
    fn sync_result(&mut self) -> Option<io::Result<()>> {
        Some(Ok(()))
    }
    fn end_sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn close(&mut self, _: Name) {}
    fn rename(&mut self, from: Name, to: Name) -> io::Result<()> {
        let bytes = self.0.borrow_mut().remove(&from).ok_or(io::ErrorKind::NotFound)?;
        self.0.borrow_mut().insert(to, bytes);
        Ok(())
    }
    fn remove(&mut self, name: Name) -> io::Result<()> {
        self.0.borrow_mut().remove(&name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }
    fn sync_names(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const START: Time = Time::from_nanoseconds(3_000_000_000_000_000_000);

fn calendar() -> Calendar {
    Calendar::new(START, 1_700_000_000_000_000_000)
}

/// What a second start must find again.
fn summary(queue: &Queue) -> (usize, u64, [u64; 3]) {
    let counts = queue.counts();
    (queue.jobs(), queue.next_id(), [counts.ready, counts.delayed, counts.buried])
}

fn open(disk: &Memory) -> (Queue, Wal) {
    let options = Options { segment_size: 4096, sync: Sync::Within(Duration::ZERO), seed: 1 };
    let mut queue = Queue::default();
    let disk = Box::new(disk.clone());
    let (wal, _) = Wal::open(disk, options, &mut queue, calendar(), START, &mut |_, _| ())
        .expect("a disk in memory does not fail");
    queue.check();
    wal.check();
    (queue, wal)
}

/// A sound binlog of a few jobs in all states.
fn sound() -> Memory {
    let disk = Memory::default();
    let (mut queue, mut wal) = open(&disk);
    let client = queue.join();
    for number in 0..40u32 {
        queue.use_tube(client, ["a", "default", "long-tube-name"][number as usize % 3]);
        let put = Put { id: queue.take_id(), pri: number, delay: number % 4, ttr: 9, created_at: START };
        let body = format!("{number}").repeat(number as usize) + "\r\n";
        let body = queue.store(body.into_bytes().into()).expect("there is memory");
        let job = queue.put(client, put, body, START);
        wal.put(&queue, job);
        if number % 5 == 0 {
            queue.reserve_job(client, job, START);
            queue.bury(job, 7, START);
            wal.update(&queue, job, START);
        } else if number % 7 == 0 {
            wal.delete(&queue, job);
            queue.delete(job);
        }
        let _ = wal.commit(&queue, START);
    }
    disk
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, input)) = input.split_first() else { return };
    let disk = if mode & 1 == 0 {
        let disk = Memory::default();
        let count = 1 + usize::from(mode >> 1) % 3;
        for (number, part) in input.chunks(input.len().div_ceil(count).max(1)).enumerate() {
            disk.0.borrow_mut().insert(Name::Segment(1 + number as u32), part.into());
        }
        disk
    } else {
        let disk = sound();
        let mut files = disk.0.borrow_mut();
        for edit in input.chunks_exact(4) {
            let nth = usize::from(edit[0]) % files.len();
            let file = files.values_mut().nth(nth).expect("one of them");
            let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % file.len().max(1);
            if let Some(byte) = file.get_mut(at) {
                *byte ^= edit[3];
            }
        }
        drop(files);
        disk
    };
    let (queue, mut wal) = open(&disk);
    let found = summary(&queue);
    // Whatever was damaged is written again; each turn does a piece of it.
    let mut turns = 0;
    while wal.next_deadline().is_some_and(|at| at <= START) {
        let outcome = wal.commit(&queue, START);
        assert!(outcome == Outcome::Done && turns < 10_000);
        turns += 1;
    }
    wal.check();
    drop(wal);
    let (queue, _wal) = open(&disk);
    assert_eq!(summary(&queue), found);
});
