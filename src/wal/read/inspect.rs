//! A report on a binlog for the operator: its segments, its jobs and all damage. It changes
//! nothing, so a daemon may be running meanwhile.

use std::{fmt, io};

use super::replay::{self, Report, Restored, SegmentReport, go_on};
use crate::{
    clock::{Calendar, Time},
    wal::{
        Error,
        disk::{Disk, Name},
        index::SegmentIndex,
        record::Format,
    },
};

/// The findings in a directory. Displayed as a page of text, line by line.
#[derive(Debug)]
pub struct Inspection {
    /// The jobs, with their bodies.
    pub restored: Restored,
    /// The segments, and all damage.
    pub report: Report,
    files: Vec<(Name, u64)>,
    live: u64,
}

/// How many times the directory is read if a daemon keeps opening and removing segments meanwhile.
const ATTEMPTS: usize = 20;

/// Reads everything that a daemon would read at startup, and changes nothing. Fails if [`replay`]
/// does, or if segments appear or vanish during each of 20 attempts.
pub fn inspect(disk: &mut dyn Disk, calendar: Calendar, now: Time) -> Result<Inspection, Error> {
    for _ in 0..ATTEMPTS {
        let files = disk.list()?;
        let (mut restored, mut index) = (Restored::default(), SegmentIndex::default());
        let report =
            replay::replay(disk, &files, &mut restored, &mut index, calendar, now, &mut go_on);
        // If segments appeared or vanished, jobs that moved from one to another may be missing.
        if names(&files) == names(&disk.list()?) {
            return Ok(Inspection { restored, report: report?, files, live: index.live() });
        }
    }
    Err(io::Error::other("the files change too fast to be read").into())
}

/// The names of all files except preallocated ones.
fn names(files: &[(Name, u64)]) -> Vec<Name> {
    let names = files.iter().map(|&(name, _)| name);
    names.filter(|name| !matches!(name, Name::Preallocated(_))).collect()
}

impl Inspection {
    /// Whether something is damaged, or a damaged segment has been kept.
    pub fn is_odd(&self) -> bool {
        let was_damaged = |&(name, _): &(Name, u64)| matches!(name, Name::Damaged(_));
        self.report.is_damaged() || self.files.iter().any(was_damaged)
    }

    fn segment(f: &mut fmt::Formatter<'_>, segment: &SegmentReport) -> fmt::Result {
        let SegmentReport { number, size, used, format, records, torn, .. } = segment;
        let format = match format {
            Some(Format::Salted(_)) => "checked",
            Some(Format::Plain) => "the original's",
            Some(Format::Five) => "version 5",
            None => "not readable",
        };
        let name = Name::Segment(*number).to_string();
        writeln!(f, "{name:<16} {used:>12} {size:>12} {records:>10}  {format}")?;
        if segment.has_other_key {
            writeln!(f, "  from another directory, by the key of its checksums")?;
        }
        for problem in &segment.problems {
            writeln!(f, "  damaged: {problem}")?;
        }
        let more = segment.problem_count - segment.problems.len() as u64;
        if more > 0 {
            writeln!(f, "  damaged: {more} more places")?;
        }
        if let Some(offset) = torn {
            writeln!(f, "  unfinished from {offset} on, which is normal after a crash")?;
        }
        Ok(())
    }

    fn tube(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let Some(tube) = self.restored.queue.find_tube(name) else { return Ok(()) };
        let tube = self.restored.queue.tube(tube);
        let (ready, delayed, buried) = (tube.ready(), tube.delayed(), tube.buried());
        writeln!(f, "{ready:>12} {delayed:>12} {buried:>12}  {name}")
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [file, used, size, records] = ["file", "bytes used", "of", "records"];
        writeln!(f, "{file:<16} {used:>12} {size:>12} {records:>10}")?;
        for segment in &self.report.segments {
            Self::segment(f, segment)?;
        }
        for (name, size) in &self.files {
            let (used, note) = match name {
                Name::Segment(_) => continue,
                Name::Preallocated(_) => ("0", ""),
                Name::Damaged(_) => ("", "  set aside"),
            };
            writeln!(f, "{:<16} {used:>12} {size:>12}{note}", name.to_string())?;
        }
        let used: u64 = self.report.segments.iter().map(|segment| segment.used).sum();
        let (live, jobs) = (self.live, self.restored.queue.jobs());
        writeln!(f, "\n{live} bytes are needed by {jobs} jobs, {} are not", used - live.min(used))?;
        let [ready, delayed, buried] = ["ready", "delayed", "buried"];
        writeln!(f, "\n{ready:>12} {delayed:>12} {buried:>12}  tube")?;
        // A start leaves more memory than this takes, or the inspection has failed.
        let mut names: Vec<_> = self.restored.queue.tube_names(None).collect();
        names.sort_unstable();
        names.iter().try_for_each(|name| self.tube(f, name))?;
        let verdict = if self.is_odd() { "Something is damaged." } else { "Nothing is damaged." };
        writeln!(f, "\n{verdict}")
    }
}
