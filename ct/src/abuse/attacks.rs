//! The attacks.
//!
//! An attack returns an [`Outcome`]: the connections that stay open, the cleanup, a summary, and
//! the daemon's faults.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::attackers::{Attack, PipelineClient, delete_commands, timed_out};
use crate::os::{self, Limit};

/// Cleans up after an attack, before the attack's connections are closed.
type Cleanup = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// The result of an attack.
#[derive(Default)]
pub(super) struct Outcome {
    /// Connections that stay open until the cleanup has run.
    pub(super) connections: Vec<TcpStream>,
    /// The cleanup, which runs before the connections are closed.
    pub(super) cleanup: Option<Cleanup>,
    /// A short description of the attack, for the report.
    pub(super) summary: String,
    /// The daemon's faults.
    pub(super) faults: Vec<String>,
}

/// How the daemon is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Plain,
    /// The daemon gets, from libfaketime, a wall clock that the attack can set.
    FakedClock,
}

/// One kind of attack.
#[derive(Clone, Copy)]
pub(super) struct AttackKind {
    pub(super) name: &'static str,
    pub(super) start: Start,
    pub(super) run: fn(&Attack) -> io::Result<Outcome>,
}

/// All attacks, in the order of their rows in the table of results.
pub(super) const ATTACK_KINDS: &[AttackKind] = &[
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
    AttackKind { name: "clock-stepped", start: Start::FakedClock, run: clock_stepped },
];

/// Describes an attack on a daemon whose clock is not faked.
const fn plain(name: &'static str, run: fn(&Attack) -> io::Result<Outcome>) -> AttackKind {
    AttackKind { name, start: Start::Plain, run }
}

/// Makes the outcome of an attack that only holds connections open.
fn holding(connections: Vec<TcpStream>, what: &str) -> Outcome {
    let summary = format!("{} connections {what}", connections.len());
    Outcome { connections, summary, ..Outcome::default() }
}

/// Attacks with connections that send nothing.
fn idle(attack: &Attack) -> io::Result<Outcome> {
    Ok(holding(attack.connect_many(attack.connections, b"")?, "that send nothing"))
}

/// Attacks with connections that wait in `reserve`.
fn blocked(attack: &Attack) -> io::Result<Outcome> {
    let bytes = b"watch abuse\r\nignore default\r\nreserve\r\n";
    Ok(holding(attack.connect_many(attack.connections, bytes)?, "blocked in reserve"))
}

/// Attacks with connections that send a part of a line.
fn half_line(attack: &Attack) -> io::Result<Outcome> {
    Ok(holding(attack.connect_many(attack.connections, b"put 0 0 6")?, "silent within a line"))
}

/// Attacks with connections that wait in `reserve` and have shut down their sending sides.
fn half_closed(attack: &Attack) -> io::Result<Outcome> {
    let bytes = b"watch abuse\r\nignore default\r\nreserve\r\n";
    let attackers = attack.connect_many(attack.connections, bytes)?;
    for stream in &attackers {
        // Ignores errors: the daemon may have closed the connection already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    Ok(holding(attackers, "half-closed in reserve"))
}

/// Attacks with connections that send a part of a job's body.
fn mid_body(attack: &Attack) -> io::Result<Outcome> {
    let bytes = [b"put 0 0 60 60000\r\n".as_slice(), &[b'x'; 5000]].concat();
    Ok(holding(
        attack.connect_many(attack.connections, &bytes)?,
        "silent after 5,000 of 60,000 bytes",
    ))
}

/// Attacks with connections that do not read the replies to their `stats`.
fn never_reading(attack: &Attack) -> io::Result<Outcome> {
    let bytes = b"stats\r\n".repeat(200);
    let attackers =
        attack.connect_many_with_small_buffers(attack.connections.div_ceil(10), &bytes)?;
    Ok(holding(attackers, "that read none of 200 replies to stats"))
}

/// Attacks with connections that send a command byte by byte.
fn byte_at_a_time(attack: &Attack) -> io::Result<Outcome> {
    const BYTES_PER_SECOND: usize = 25_000;
    let mut attackers = attack.connect_many(attack.connections, b"")?;
    for byte in b"use abuse\r\n" {
        // Sends the bytes at an even rate: bursts would be a heavy load, which other attacks test.
        for streams in attackers.chunks_mut(BYTES_PER_SECOND / 200) {
            let began = Instant::now();
            for stream in streams {
                stream.write_all(&[*byte])?;
            }
            thread::sleep(Duration::from_millis(5).saturating_sub(began.elapsed()));
        }
        if attack.is_past_deadline() {
            return Err(timed_out("some of the bytes"));
        }
    }
    Ok(holding(attackers, "that sent a line byte by byte, at 25,000 bytes a second"))
}

/// Attacks with half-closed connections that leave thousands of replies unread.
fn half_closed_unread(attack: &Attack) -> io::Result<Outcome> {
    let attackers = attack.connect_many_with_small_buffers(10, &b"stats\r\n".repeat(5_000))?;
    for stream in &attackers {
        stream.shutdown(std::net::Shutdown::Write)?;
    }
    Ok(holding(attackers, "half-closed, 5,000 replies unread"))
}

/// Attacks with connections that send a byte of TCP urgent data.
fn urgent_byte(attack: &Attack) -> io::Result<Outcome> {
    use std::os::fd::AsFd as _;
    let attackers = attack.connect_many(10, b"")?;
    for stream in &attackers {
        os::send_urgent(stream.as_fd(), b'!')?;
    }
    Ok(holding(attackers, "with a byte of urgent data"))
}

/// Attacks from four threads, which open connections, send bytes on most of them, and close or
/// reset them.
fn vanishing(attack: &Attack) -> io::Result<Outcome> {
    const THREADS: usize = 4;
    let count = attack.connections;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || churn(attack, thread, count))).collect();
        let joined = threads.into_iter().map(|it| it.join().expect("a thread does not panic"));
        joined.collect::<io::Result<Vec<()>>>()
    })?;
    let summary = format!("{} connections made and closed", THREADS * count);
    Ok(Outcome { summary, ..Outcome::default() })
}

/// Opens connections of the attack `vanishing` in one thread, and closes or resets each.
fn churn(attack: &Attack, thread: usize, count: usize) -> io::Result<()> {
    const REQUESTS: [&[u8]; 5] = [
        b"",
        b"put 0 0 1 500\r\nhalf a bo",
        b"watch abuse\r\nreserve\r\n",
        b"stats\r\nstats\r\nsta",
        b"use abuse\r\n",
    ];
    os::lower_priority();
    for number in 0..count {
        let mut stream = attack.connect(thread + number)?;
        // Ignores errors: the probe reports a daemon that has died or has no free descriptors.
        let _ = stream.write_all(REQUESTS[number % REQUESTS.len()]);
        if number % 2 == 0 {
            os::reset_on_close(&stream)?;
        }
        if attack.is_past_deadline() {
            return Err(timed_out(&format!("{number} of {count} connections")));
        }
    }
    Ok(())
}

/// Attacks with a thousand connections to a daemon that is allowed to open only 200 more files.
fn descriptors(attack: &Attack) -> io::Result<Outcome> {
    let open = fs::read_dir(format!("/proc/{}/fd", attack.pid))?.count() as u64;
    os::set_limit(attack.pid, Limit::Files, open + 200)?;
    Ok(holding(attack.connect_many(1000, b"")?, "where there are descriptors for 200"))
}

/// The number of bytes that a daemon may allocate beyond its size at the start of the attack.
const MEMORY_LIMIT_BYTES: u64 = 64 << 20;

/// Limits the memory of the attacked daemon to its present size plus [`MEMORY_LIMIT_BYTES`].
fn limit_memory(attack: &Attack) -> io::Result<()> {
    let status = fs::read_to_string(format!("/proc/{}/status", attack.pid))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let size = size.ok_or_else(|| io::Error::other("no VmSize in /proc"))?;
    os::set_limit(attack.pid, Limit::Memory, (size << 10) + MEMORY_LIMIT_BYTES)
}

/// Attacks with large jobs until the daemon answers `OUT_OF_MEMORY`.
fn memory_large(attack: &Attack) -> io::Result<Outcome> {
    put_until_out_of_memory(attack, 60_000)
}

/// Attacks with small jobs until the daemon answers `OUT_OF_MEMORY`.
fn memory_small(attack: &Attack) -> io::Result<Outcome> {
    put_until_out_of_memory(attack, 10)
}

/// Puts batches of jobs, and a few more batches after the first `OUT_OF_MEMORY`. The cleanup
/// deletes the jobs.
fn put_until_out_of_memory(attack: &Attack, size: usize) -> io::Result<Outcome> {
    limit_memory(attack)?;
    let mut client = attack.pipeline_client()?;
    client.exchange(b"use abuse\r\n", 1)?;
    let put = format!("put 0 0 600 {size}\r\n{}\r\n", "x".repeat(size));
    let batch = (300_000 / put.len()).max(1);
    let bytes = put.repeat(batch);
    let (mut ids, mut out_of_memory, mut beyond) = (Vec::new(), 0, 0);
    // Continues after the first `OUT_OF_MEMORY`, because a later job may still fit.
    while beyond < 20 {
        let replies = client.exchange(bytes.as_bytes(), batch)?;
        ids.extend(replies.ids);
        out_of_memory += replies.out_of_memory;
        beyond += u64::from(out_of_memory > 0);
        if (ids.len() * size) as u64 > 3 * MEMORY_LIMIT_BYTES {
            break;
        }
    }
    let summary =
        format!("{} jobs of {size} bytes in 64 MB, then {out_of_memory} OUT_OF_MEMORY", ids.len());
    let mut faults = Vec::new();
    if out_of_memory == 0 {
        faults.push("never answered OUT_OF_MEMORY".to_owned());
    }
    Ok(Outcome { cleanup: Some(delete_jobs(client, ids)), summary, faults, ..Outcome::default() })
}

/// Makes an attack's cleanup, which deletes the jobs with these ids.
fn delete_jobs(mut client: PipelineClient, ids: Vec<u64>) -> Cleanup {
    Box::new(move || {
        client.extend_deadline(Duration::from_secs(30));
        match client.delete(&ids)? {
            0 => Ok(()),
            missing => Err(io::Error::other(format!("{missing} jobs had vanished"))),
        }
    })
}

/// Attacks with a third of a body on each of many connections; together, these parts exceed the
/// daemon's limit on memory.
fn memory_uploads(attack: &Attack) -> io::Result<Outcome> {
    limit_memory(attack)?;
    let bytes = [b"put 0 0 60 60000\r\n".as_slice(), &b"x".repeat(20_000)].concat();
    let mut attackers = Vec::new();
    while attackers.len() < attack.connections {
        // A daemon that is out of memory may no longer accept connections.
        let Ok(mut stream) = attack.connect_quickly(attackers.len()) else { break };
        stream.write_all(&bytes)?;
        attackers.push(stream);
    }
    Ok(holding(attackers, "accepted or waiting to be, each with 20,000 of 60,000 bytes, in 64 MB"))
}

/// Attacks with many tubes that have a job each.
fn tubes_with_jobs(attack: &Attack) -> io::Result<Outcome> {
    let mut client = attack.pipeline_client()?;
    let mut ids = Vec::new();
    for first in (0..attack.items).step_by(1000) {
        let put = |number| format!("use abuse-{number}\r\nput 0 0 60 1\r\nx\r\n");
        let text: String = (first..first + 1000).map(put).collect();
        ids.extend(client.exchange(text.as_bytes(), 2000)?.ids);
    }
    let tubes = client.statistic("stats", "current-tubes")?;
    let mut faults = Vec::new();
    if tubes < attack.items as u64 {
        faults.push(format!("{tubes} tubes instead of {}", attack.items));
    }
    let summary = format!("{tubes} tubes with a job");
    Ok(Outcome { cleanup: Some(delete_jobs(client, ids)), summary, faults, ..Outcome::default() })
}

/// Attacks with a connection that watches many tubes.
fn tubes_watched(attack: &Attack) -> io::Result<Outcome> {
    let mut client = attack.pipeline_client()?;
    let watch = |number| format!("watch abuse-{number}\r\n");
    let text: String = (0..attack.items).map(watch).collect();
    client.exchange(text.as_bytes(), attack.items)?;
    let summary = format!("{} tubes watched by one connection", attack.items);
    let cleanup = Box::new(move || {
        drop(client);
        Ok(())
    });
    Ok(Outcome { cleanup: Some(cleanup), summary, ..Outcome::default() })
}

/// Attacks with four batches, each of thousands of commands: puts, then reserves, then deletes,
/// then `stats`.
fn pipeline(attack: &Attack) -> io::Result<Outcome> {
    let count = 3 * attack.items;
    let mut client = attack.pipeline_client()?;
    client.exchange(b"use abuse\r\nwatch abuse\r\nignore default\r\n", 3)?;
    let put = format!("put 0 0 600 100\r\n{}\r\n", "x".repeat(100));
    let ids = client.exchange(put.repeat(count).as_bytes(), count)?.ids;
    client.exchange(b"reserve\r\n".repeat(count).as_slice(), count)?;
    client.exchange(&delete_commands(&ids), ids.len())?;
    let lists = attack.items;
    client.exchange(b"stats\r\n".repeat(lists).as_slice(), lists)?;
    let summary =
        format!("{count} puts, as many reserves and deletes, {lists} stats, each in one go");
    Ok(Outcome { summary, ..Outcome::default() })
}

/// For an attack, puts `attack.items` jobs and reserves all these jobs on one connection.
fn reserve_many(attack: &Attack, ttr: u64) -> io::Result<(PipelineClient, Vec<u64>)> {
    let mut client = attack.pipeline_client()?;
    client.exchange(b"use abuse\r\nwatch abuse\r\nignore default\r\n", 3)?;
    let put = format!("put 0 0 {ttr} 1\r\nx\r\n");
    let ids = client.exchange(put.repeat(attack.items).as_bytes(), attack.items)?.ids;
    let reserves = b"reserve-with-timeout 0\r\n".repeat(attack.items);
    let others = client.exchange(&reserves, attack.items)?.others;
    if others > 0 {
        return Err(io::Error::other(format!("{others} of the jobs could not be reserved")));
    }
    Ok((client, ids))
}

/// Attacks by reserving all jobs on one connection, which then sends nothing until the jobs' time
/// to run ends.
fn expiring(attack: &Attack) -> io::Result<Outcome> {
    const TTR_SECONDS: u64 = 4;
    let (client, ids) = reserve_many(attack, TTR_SECONDS)?;
    let mut other = attack.pipeline_client()?;
    thread::sleep(Duration::from_secs(TTR_SECONDS + 1));
    let mut faults = Vec::new();
    let reserved = other.statistic("stats-tube abuse", "current-jobs-reserved")?;
    if reserved > 0 {
        faults.push(format!("{reserved} jobs still reserved a second after their time"));
    }
    let summary = format!("{} reserved jobs of one silent connection", ids.len());
    let cleanup: Cleanup = Box::new(move || {
        drop(client);
        // Jobs that `client` still holds become ready once the daemon has noticed the close.
        thread::sleep(Duration::from_millis(200));
        delete_jobs(other, ids)()
    });
    Ok(Outcome { cleanup: Some(cleanup), summary, faults, ..Outcome::default() })
}

/// Attacks by closing a connection that has reserved all jobs.
fn leaving(attack: &Attack) -> io::Result<Outcome> {
    let (client, ids) = reserve_many(attack, 600)?;
    let mut other = attack.pipeline_client()?;
    drop(client);
    let count = ids.len();
    let began = Instant::now();
    while other.statistic("stats-tube abuse", "current-jobs-ready")? < count as u64 {
        if attack.is_past_deadline() {
            return Err(timed_out("waiting for its jobs to be ready again"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    let took = began.elapsed().as_millis();
    let summary = format!("closed with {count} reserved jobs, ready again after {took} ms");
    Ok(Outcome { cleanup: Some(delete_jobs(other, ids)), summary, ..Outcome::default() })
}

/// Returns the path at which Debian has installed libfaketime, for the attack on the clock; `None`
/// without that library.
pub(super) fn clock_library() -> Option<PathBuf> {
    let libraries = fs::read_dir("/usr/lib").ok()?.flatten();
    let named = |entry: fs::DirEntry| entry.path().join("faketime/libfaketimeMT.so.1");
    libraries.map(named).find(|path| path.exists())
}

/// Returns the directory of [`clock_file`], for the attack on the clock.
pub(super) fn clock_folder() -> PathBuf {
    std::env::temp_dir().join(format!("ct-abuse-{}", std::process::id()))
}

/// Returns the path of the file from which a daemon with a faked clock reads the clock's offset.
pub(super) fn clock_file() -> PathBuf {
    clock_folder().join("clock")
}

/// Attacks by setting the daemon's wall clock an hour ahead, then two hours back. Setting the clock
/// ahead must not make a job due, and setting it back must not delay a job.
fn clock_stepped(attack: &Attack) -> io::Result<Outcome> {
    let file = clock_file();
    fs::write(&file, "+0\n")?;
    let mut client = attack.pipeline_client()?;
    client.exchange(b"use abuse\r\nwatch abuse\r\nignore default\r\n", 3)?;
    let ids = client.exchange(b"put 0 3 600 1\r\nx\r\nput 0 0 5 1\r\nx\r\nreserve\r\n", 3)?.ids;
    let mut faults = Vec::new();
    let mut counts = |client: &mut PipelineClient, when: &str, delayed: u64, reserved: u64| {
        for (name, wanted) in [("delayed", delayed), ("reserved", reserved)] {
            let count = client.statistic("stats-tube abuse", &format!("current-jobs-{name}"))?;
            if count != wanted {
                faults.push(format!("{count} {name} instead of {wanted} {when}"));
            }
        }
        io::Result::Ok(())
    };
    fs::write(&file, "+3600\n")?;
    thread::sleep(Duration::from_secs(1));
    counts(&mut client, "after a step ahead", 1, 1)?;
    fs::write(&file, "-3600\n")?;
    thread::sleep(Duration::from_secs(3));
    counts(&mut client, "after a step back", 0, 1)?;
    thread::sleep(Duration::from_secs(2));
    counts(&mut client, "when all was due", 0, 0)?;
    fs::write(&file, "+0\n")?;
    let cleanup = delete_jobs(client, ids.into_iter().take(2).collect());
    let summary = "clock stepped an hour ahead, two hours back, and to the right time".to_owned();
    Ok(Outcome { cleanup: Some(cleanup), summary, faults, ..Outcome::default() })
}
