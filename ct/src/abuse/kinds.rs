//! What is done to a daemon.
//!
//! An attack ends with a [`Held`]: what stays while the abuser does nothing, and how it leaves.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::mob::{Line, Place, deletes, late};
use crate::os::{self, Limit};

/// A way of leaving.
type Leave = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// What an attack leaves behind.
#[derive(Default)]
pub(super) struct Held {
    /// Closed when the abuser leaves.
    pub(super) connections: Vec<TcpStream>,
    /// Done before that.
    pub(super) leave: Option<Leave>,
    /// What was achieved, for the table.
    pub(super) note: String,
    /// What the daemon should have done and did not.
    pub(super) faults: Vec<String>,
}

/// How its daemon is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Plain,
    /// With a wall clock that can be set, if the system has the library for that.
    FakedClock,
}

/// One abuse.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) start: Start,
    pub(super) attack: fn(&Place) -> io::Result<Held>,
}

/// All of them, in the order of the table.
pub(super) const KINDS: &[Kind] = &[
    plain("idle", idle),
    plain("blocked", blocked),
    plain("half-line", half_line),
    plain("half-closed", half_closed),
    plain("mid-body", mid_body),
    plain("never-reading", never_reading),
    plain("byte-at-a-time", byte_at_a_time),
    plain("half-closed-unread", half_closed_unread),
    plain("urgent-byte", urgent_byte),
    plain("vanishing", vanishing),
    plain("descriptors", descriptors),
    plain("memory-large-jobs", memory_large),
    plain("memory-small-jobs", memory_small),
    plain("memory-uploads", memory_uploads),
    plain("tubes-with-jobs", tubes_with_jobs),
    plain("tubes-watched", tubes_watched),
    plain("pipeline", pipeline),
    plain("expiring-together", expiring),
    plain("leaving-with-jobs", leaving),
    Kind { name: "clock-stepped", start: Start::FakedClock, attack: clock_stepped },
];

const fn plain(name: &'static str, attack: fn(&Place) -> io::Result<Held>) -> Kind {
    Kind { name, start: Start::Plain, attack }
}

/// Holds nothing but connections.
fn crowd(connections: Vec<TcpStream>, what: &str) -> Held {
    let note = format!("{} connections {what}", connections.len());
    Held { connections, note, ..Held::default() }
}

fn idle(place: &Place) -> io::Result<Held> {
    Ok(crowd(place.mob(place.crowd, b"")?, "that say nothing"))
}

fn blocked(place: &Place) -> io::Result<Held> {
    let words = b"watch abuse\r\nignore default\r\nreserve\r\n";
    Ok(crowd(place.mob(place.crowd, words)?, "blocked in reserve"))
}

fn half_line(place: &Place) -> io::Result<Held> {
    Ok(crowd(place.mob(place.crowd, b"put 0 0 6")?, "silent within a line"))
}

/// They have ended their side, and wait for a job all the same.
fn half_closed(place: &Place) -> io::Result<Held> {
    let words = b"watch abuse\r\nignore default\r\nreserve\r\n";
    let mob = place.mob(place.crowd, words)?;
    for stream in &mob {
        // A daemon may have closed it already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    Ok(crowd(mob, "half-closed in reserve"))
}

fn mid_body(place: &Place) -> io::Result<Held> {
    let words = [b"put 0 0 60 60000\r\n".as_slice(), &[b'x'; 5000]].concat();
    Ok(crowd(place.mob(place.crowd, &words)?, "silent after 5,000 of 60,000 bytes"))
}

fn never_reading(place: &Place) -> io::Result<Held> {
    let words = b"stats\r\n".repeat(200);
    let mob = place.deaf_mob(place.crowd.div_ceil(10), &words)?;
    Ok(crowd(mob, "that read none of 200 replies to stats"))
}

fn byte_at_a_time(place: &Place) -> io::Result<Held> {
    const RATE: usize = 25_000;
    let mut mob = place.mob(place.crowd, b"")?;
    for byte in b"use abuse\r\n" {
        // Evenly, for all at once would be load, of which there are other tests.
        for streams in mob.chunks_mut(RATE / 200) {
            let began = Instant::now();
            for stream in streams {
                stream.write_all(&[*byte])?;
            }
            thread::sleep(Duration::from_millis(5).saturating_sub(began.elapsed()));
        }
        if place.is_late() {
            return Err(late("some of the bytes"));
        }
    }
    Ok(crowd(mob, "that sent a line, a byte at a time, 25,000 bytes a second"))
}

fn half_closed_unread(place: &Place) -> io::Result<Held> {
    let mob = place.deaf_mob(10, &b"stats\r\n".repeat(5_000))?;
    for stream in &mob {
        stream.shutdown(std::net::Shutdown::Write)?;
    }
    Ok(crowd(mob, "half-closed, 5,000 replies unread"))
}

fn urgent_byte(place: &Place) -> io::Result<Held> {
    use std::os::fd::AsFd as _;
    let mob = place.mob(10, b"")?;
    for stream in &mob {
        os::send_urgent(stream.as_fd(), b'!')?;
    }
    Ok(crowd(mob, "with a byte of urgent data"))
}

/// Four threads connect, say something or nothing, and are gone, half of them with a reset.
fn vanishing(place: &Place) -> io::Result<Held> {
    const THREADS: usize = 4;
    let count = place.crowd;
    thread::scope(|scope| {
        let storms: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || storm(place, thread, count))).collect();
        let joined = storms.into_iter().map(|it| it.join().expect("a storm does not panic"));
        joined.collect::<io::Result<Vec<()>>>()
    })?;
    let note = format!("{} connections made and closed", THREADS * count);
    Ok(Held { note, ..Held::default() })
}

fn storm(place: &Place, thread: usize, count: usize) -> io::Result<()> {
    const WORDS: [&[u8]; 5] = [
        b"",
        b"put 0 0 1 500\r\nhalf a bo",
        b"watch abuse\r\nreserve\r\n",
        b"stats\r\nstats\r\nsta",
        b"use abuse\r\n",
    ];
    os::be_nice();
    for number in 0..count {
        let mut stream = place.connect(thread + number)?;
        // A full table of descriptors or a dying daemon shows in the gentle client.
        let _ = stream.write_all(WORDS[number % WORDS.len()]);
        if number % 2 == 0 {
            os::reset_on_close(&stream)?;
        }
        if place.is_late() {
            return Err(late(&format!("{number} of {count} connections")));
        }
    }
    Ok(())
}

/// The daemon may open 200 files more, and a thousand connections knock.
fn descriptors(place: &Place) -> io::Result<Held> {
    let open = fs::read_dir(format!("/proc/{}/fd", place.pid))?.count() as u64;
    os::set_limit(place.pid, Limit::Files, open + 200)?;
    Ok(crowd(place.mob(1000, b"")?, "where there are descriptors for 200"))
}

/// How much more memory than it has a daemon may take in the tests of memory.
const MEMORY: u64 = 64 << 20;

fn limit_memory(place: &Place) -> io::Result<()> {
    let status = fs::read_to_string(format!("/proc/{}/status", place.pid))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let size = size.ok_or_else(|| io::Error::other("no VmSize in /proc"))?;
    os::set_limit(place.pid, Limit::Memory, (size << 10) + MEMORY)
}

fn memory_large(place: &Place) -> io::Result<Held> {
    until_out_of_memory(place, 60_000)
}

fn memory_small(place: &Place) -> io::Result<Held> {
    until_out_of_memory(place, 10)
}

/// Puts jobs until there is no memory, and deletes them when it leaves.
fn until_out_of_memory(place: &Place, size: usize) -> io::Result<Held> {
    limit_memory(place)?;
    let mut line = place.line()?;
    line.exchange(b"use abuse\r\n", 1)?;
    let put = format!("put 0 0 600 {size}\r\n{}\r\n", "x".repeat(size));
    let batch = (300_000 / put.len()).max(1);
    let bytes = put.repeat(batch);
    let (mut ids, mut refused, mut beyond) = (Vec::new(), 0, 0);
    // It is pressed on beyond the first refusal, for another size may still fit.
    while beyond < 20 {
        let replies = line.exchange(bytes.as_bytes(), batch)?;
        ids.extend(replies.ids);
        refused += replies.refused;
        beyond += u64::from(refused > 0);
        if (ids.len() * size) as u64 > 3 * MEMORY {
            break;
        }
    }
    let note = format!("{} jobs of {size} bytes in 64 MB, then {refused} OUT_OF_MEMORY", ids.len());
    let mut faults = Vec::new();
    if refused == 0 {
        faults.push("never answered OUT_OF_MEMORY".to_owned());
    }
    Ok(Held { leave: Some(deleting(line, ids)), note, faults, ..Held::default() })
}

/// Leaves by deleting jobs.
fn deleting(mut line: Line, ids: Vec<u64>) -> Leave {
    Box::new(move || {
        line.allow(Duration::from_secs(30));
        match line.delete(&ids)? {
            0 => Ok(()),
            missing => Err(io::Error::other(format!("{missing} jobs were not there any more"))),
        }
    })
}

/// More uploads at a time than there is memory for: as many as are let in.
fn memory_uploads(place: &Place) -> io::Result<Held> {
    limit_memory(place)?;
    let words = [b"put 0 0 60 60000\r\n".as_slice(), &b"x".repeat(20_000)].concat();
    let mut mob = Vec::new();
    while mob.len() < place.crowd {
        // Where nobody is let in any more, the next ones knock in vain.
        let Ok(mut stream) = place.connect_quickly(mob.len()) else { break };
        stream.write_all(&words)?;
        mob.push(stream);
    }
    Ok(crowd(mob, "let in, or at the door, each with 20,000 of 60,000 bytes, in 64 MB"))
}

fn tubes_with_jobs(place: &Place) -> io::Result<Held> {
    let mut line = place.line()?;
    let mut ids = Vec::new();
    for first in (0..place.many).step_by(1000) {
        let put = |number| format!("use abuse-{number}\r\nput 0 0 60 1\r\nx\r\n");
        let text: String = (first..first + 1000).map(put).collect();
        ids.extend(line.exchange(text.as_bytes(), 2000)?.ids);
    }
    let tubes = line.statistic("stats", "current-tubes")?;
    let mut faults = Vec::new();
    if tubes < place.many as u64 {
        faults.push(format!("{tubes} tubes instead of {}", place.many));
    }
    let note = format!("{tubes} tubes with a job");
    Ok(Held { leave: Some(deleting(line, ids)), note, faults, ..Held::default() })
}

fn tubes_watched(place: &Place) -> io::Result<Held> {
    let mut line = place.line()?;
    let watch = |number| format!("watch abuse-{number}\r\n");
    let text: String = (0..place.many).map(watch).collect();
    line.exchange(text.as_bytes(), place.many)?;
    let note = format!("{} tubes watched by one connection", place.many);
    let leave = Box::new(move || {
        drop(line);
        Ok(())
    });
    Ok(Held { leave: Some(leave), note, ..Held::default() })
}

/// Everything is sent before an answer is waited for.
fn pipeline(place: &Place) -> io::Result<Held> {
    let count = 3 * place.many;
    let mut line = place.line()?;
    line.exchange(b"use abuse\r\nwatch abuse\r\nignore default\r\n", 3)?;
    let put = format!("put 0 0 600 100\r\n{}\r\n", "x".repeat(100));
    let ids = line.exchange(put.repeat(count).as_bytes(), count)?.ids;
    line.exchange(b"reserve\r\n".repeat(count).as_slice(), count)?;
    line.exchange(&deletes(&ids), ids.len())?;
    let lists = place.many;
    line.exchange(b"stats\r\n".repeat(lists).as_slice(), lists)?;
    let note = format!("{count} puts, as many reserves and deletes, {lists} stats, each in one go");
    Ok(Held { note, ..Held::default() })
}

/// Puts many jobs and reserves them all.
fn reserve_many(place: &Place, ttr: u64) -> io::Result<(Line, Vec<u64>)> {
    let mut line = place.line()?;
    line.exchange(b"use abuse\r\nwatch abuse\r\nignore default\r\n", 3)?;
    let put = format!("put 0 0 {ttr} 1\r\nx\r\n");
    let ids = line.exchange(put.repeat(place.many).as_bytes(), place.many)?.ids;
    let reserves = b"reserve-with-timeout 0\r\n".repeat(place.many);
    let others = line.exchange(&reserves, place.many)?.others;
    if others > 0 {
        return Err(io::Error::other(format!("{others} of the jobs could not be reserved")));
    }
    Ok((line, ids))
}

/// One connection holds them all, says nothing more, and their times run out.
fn expiring(place: &Place) -> io::Result<Held> {
    const TTR: u64 = 4;
    let (line, ids) = reserve_many(place, TTR)?;
    let mut other = place.line()?;
    thread::sleep(Duration::from_secs(TTR + 1));
    let mut faults = Vec::new();
    let reserved = other.statistic("stats-tube abuse", "current-jobs-reserved")?;
    if reserved > 0 {
        faults.push(format!("{reserved} jobs still reserved a second after their time"));
    }
    let note = format!("{} reserved jobs of one silent connection", ids.len());
    let leave: Leave = Box::new(move || {
        drop(line);
        // The job a worker had is ready again when its connection has been closed.
        thread::sleep(Duration::from_millis(200));
        deleting(other, ids)()
    });
    Ok(Held { leave: Some(leave), note, faults, ..Held::default() })
}

/// The connection goes with all its jobs.
fn leaving(place: &Place) -> io::Result<Held> {
    let (line, ids) = reserve_many(place, 600)?;
    let mut other = place.line()?;
    drop(line);
    let count = ids.len();
    let began = Instant::now();
    while other.statistic("stats-tube abuse", "current-jobs-ready")? < count as u64 {
        if place.is_late() {
            return Err(late("waiting for its jobs to be ready again"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    let took = began.elapsed().as_millis();
    let note = format!("closed with {count} reserved jobs, ready again after {took} ms");
    Ok(Held { leave: Some(deleting(other, ids)), note, ..Held::default() })
}

/// Where the library for a faked clock is in Debian, by architecture; empty if it is not there.
pub(super) fn clock_library() -> Option<PathBuf> {
    let libraries = fs::read_dir("/usr/lib").ok()?.flatten();
    let named = |entry: fs::DirEntry| entry.path().join("faketime/libfaketimeMT.so.1");
    libraries.map(named).find(|path| path.exists())
}

/// A directory for the file below.
pub(super) fn clock_folder() -> PathBuf {
    std::env::temp_dir().join(format!("ct-abuse-{}", std::process::id()))
}

/// Where a daemon with a faked clock reads by how much to step it.
pub(super) fn clock_file() -> PathBuf {
    clock_folder().join("clock")
}

/// Steps the clock an hour ahead, which must make no job due, and two hours back, which must hold
/// none up.
fn clock_stepped(place: &Place) -> io::Result<Held> {
    let file = clock_file();
    fs::write(&file, "+0\n")?;
    let mut line = place.line()?;
    line.exchange(b"use abuse\r\nwatch abuse\r\nignore default\r\n", 3)?;
    let ids = line.exchange(b"put 0 3 600 1\r\nx\r\nput 0 0 5 1\r\nx\r\nreserve\r\n", 3)?.ids;
    let mut faults = Vec::new();
    let mut counts = |line: &mut Line, when: &str, delayed: u64, reserved: u64| {
        for (name, wanted) in [("delayed", delayed), ("reserved", reserved)] {
            let count = line.statistic("stats-tube abuse", &format!("current-jobs-{name}"))?;
            if count != wanted {
                faults.push(format!("{count} {name} instead of {wanted} {when}"));
            }
        }
        io::Result::Ok(())
    };
    fs::write(&file, "+3600\n")?;
    thread::sleep(Duration::from_secs(1));
    counts(&mut line, "after a step ahead", 1, 1)?;
    fs::write(&file, "-3600\n")?;
    thread::sleep(Duration::from_secs(3));
    counts(&mut line, "after a step back", 0, 1)?;
    thread::sleep(Duration::from_secs(2));
    counts(&mut line, "when all was due", 0, 0)?;
    fs::write(&file, "+0\n")?;
    let leave = deleting(line, ids.into_iter().take(2).collect());
    let note = "an hour ahead, two hours back, back again".to_owned();
    Ok(Held { leave: Some(leave), note, faults, ..Held::default() })
}
