//! Measures commands that need no sync, while each sync of a file takes milliseconds.
//!
//! A small library is compiled by `cc` and loaded into the daemon. The library delays `fdatasync`
//! and `fsync`, and counts these calls.

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::group::{Group, Until};
use super::load::Load;
use super::measure::Placement;
use super::op::{Op, Priority};
use super::outcome::{Sample, microseconds, named, ratio};
use super::reader::Body;
use super::scenario::SYNC_TIME;
use super::tally::{Tally, nanoseconds};
use super::target::{Config, ScratchDir, Target};
use crate::{Client, Program};

/// The number of measurements, each on a new daemon.
const ROUNDS: usize = 3;
/// How long each measurement takes.
const WINDOW: Duration = Duration::from_secs(4);
/// How long the load runs before the measurement, so that the daemon has measured how long a sync
/// takes.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long the client in [`read`] waits before each of its commands.
const READ_PAUSE: Duration = Duration::from_millis(1);

/// Measures the latency of commands that need no sync, and how many jobs are put for each sync.
pub(super) fn run(producers: usize, target: &Target, config: &Config) -> io::Result<Vec<Sample>> {
    let tools = ScratchDir::new(&config.scratch)?;
    let library = compile(tools.path())?;
    (0..ROUNDS).map(|_| measure(producers, target, config, &library)).collect()
}

/// Measures one target while each of its syncs takes milliseconds.
fn measure(
    producers: usize,
    target: &Target,
    config: &Config,
    library: &Path,
) -> io::Result<Sample> {
    let (binlog, folder) = (ScratchDir::new(&config.scratch)?, ScratchDir::new(&config.scratch)?);
    let (path, count) = wrapper(folder.path(), library, &target.program.path, SYNC_TIME)?;
    let program = Program { path, flags: target.program.flags.clone() };
    let flags = target.binlog_flags("-f0", binlog.path());
    let daemon = config.cores.start(Placement::Apart, &program, &flags)?;

    let put = Op::Put { priority: Priority::Fixed(10), delay: 0 };
    let writers = Group::new(producers, 1, &[put], Body::plain(64));
    let mut writers = Load::connect(daemon.address(), &[writers], false, 1)?;
    writers.run(Until::time(WARM_UP))?;
    let syncs = || fs::metadata(&count).map(|file| file.len());
    let before = syncs()?;
    let (written, read) = thread::scope(|scope| {
        let reads = scope.spawn(|| read(daemon.address()));
        let written = writers.run(Until::time(WINDOW));
        (written, reads.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked"))))
    });
    let (written, read, syncs) = (written?, read?, syncs()? - before);
    Ok(named([
        ("unlogged_p99", microseconds(read.value_at_quantile(0.99))),
        ("puts_per_sync", ratio(written.commands, syncs)),
    ]))
}

/// Repeats `reserve`, `peek-ready` and `stats` with pauses while syncs are slow, and returns the
/// latencies in nanoseconds. Runs in a thread of its own, so that this client waits only for the
/// daemon, and not for the writers' load.
fn read(address: &str) -> io::Result<Histogram<u64>> {
    let mut client = Client::connect(address)?;
    let mut latencies = Tally::new().latency;
    let begun = Instant::now();
    while begun.elapsed() < WINDOW {
        for command in ["reserve", "peek-ready", "stats"] {
            thread::sleep(READ_PAUSE);
            let sent = Instant::now();
            client.with_body(command)?;
            latencies.saturating_record(nanoseconds(sent.elapsed()));
        }
    }
    Ok(latencies)
}

/// Writes into a directory a shell script that runs the program with slow syncs. Returns the paths
/// of the script and of a file that grows by a byte with each sync.
pub fn wrapper(
    directory: &Path,
    library: &Path,
    program: &Path,
    sync_time: Duration,
) -> io::Result<(PathBuf, PathBuf)> {
    let (path, count) = (directory.join("daemon"), directory.join("syncs"));
    let (library, microseconds) = (library.display(), sync_time.as_micros());
    let (program, shown_count) = (program.display(), count.display());
    let script = format!(
        "#!/bin/sh\nexport LD_PRELOAD='{library}' SLOW_SYNC_MICROSECONDS={microseconds} \
         SLOW_SYNC_COUNT='{shown_count}'\nexec '{program}' \"$@\"\n"
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    Ok((path, count))
}

/// Compiles the library into a directory, with the compiler `$CC` or, without `$CC`, with `cc`.
/// Returns the library's path.
pub fn compile(directory: &Path) -> io::Result<PathBuf> {
    let (source, library) = (directory.join("slow_sync.c"), directory.join("slow_sync.so"));
    fs::write(&source, include_str!("slow_sync.c"))?;
    let output = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output()?;
    if output.status.success() {
        return Ok(library);
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_can_be_compiled() {
        let scratch = ScratchDir::new(&std::env::temp_dir()).unwrap();
        assert!(compile(scratch.path()).unwrap().is_file());
    }
}
