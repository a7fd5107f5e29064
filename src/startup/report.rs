//! The texts about a binlog for an operator: the log lines about damage at startup, and the report
//! of `--check-binlog`.

use std::{fmt, path::Path};

use log::{info, warn};

use crate::{
    queue::Queue,
    wal::{Format, Inspection, Name, Report, SegmentReport},
};

/// Logs damage and unfinished records of the binlog, and returns the number of damaged files.
pub(super) fn report_damage(path: &Path, report: &Report) -> usize {
    for segment in &report.segments {
        let file = path.join(Name::Segment(segment.number).to_string());
        let file = file.display();
        if segment.has_other_key {
            warn!("{file}: copied from another directory: its checksums have another key");
        }
        for problem in &segment.problems {
            warn!("{file}: {problem}");
        }
        let more = segment.problem_count - segment.problems.len() as u64;
        if more > 0 {
            warn!("{file}: {more} more problems");
        }
        if let Some(offset) = segment.torn {
            info!("{file}: ends with an unfinished record at {offset}, left by a kill or a crash");
        }
    }
    report.segments.iter().filter(|segment| segment.problem_count > 0).count()
}

impl Inspection {
    /// Whether the binlog is damaged, or has a segment that a daemon renamed because of damage.
    pub fn is_odd(&self) -> bool {
        let was_damaged = |&(name, _): &(Name, u64)| matches!(name, Name::Damaged(_));
        self.report.is_damaged() || self.files.iter().any(was_damaged)
    }
}

/// The lines of the report of `--check-binlog`.
impl fmt::Display for Inspection {
    /// Formats the report of `--check-binlog`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [file, used, size, records] = ["file", "bytes used", "of", "records"];
        writeln!(f, "{file:<16} {used:>12} {size:>12} {records:>10}")?;
        for segment in &self.report.segments {
            write_segment(f, segment)?;
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
        let (live, queue) = (self.live, &self.restored.queue);
        let jobs = queue.jobs();
        writeln!(f, "\n{jobs} jobs need {live} bytes, {} can be freed", used - live.min(used))?;
        let [ready, delayed, buried] = ["ready", "delayed", "buried"];
        writeln!(f, "\n{ready:>12} {delayed:>12} {buried:>12}  tube")?;
        // There is memory for a list of all tubes: otherwise the inspection would have failed.
        let mut names: Vec<_> = queue.tube_names(None).collect();
        names.sort_unstable();
        names.iter().try_for_each(|name| write_tube(f, queue, name))?;
        let verdict = if self.is_odd() { "Something is damaged." } else { "Nothing is damaged." };
        writeln!(f, "\n{verdict}")
    }
}

/// Formats a segment's row in the report of `--check-binlog`.
fn write_segment(f: &mut fmt::Formatter<'_>, segment: &SegmentReport) -> fmt::Result {
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
        writeln!(f, "  copied from another directory: its checksums have another key")?;
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

/// Formats a tube's row in the report of `--check-binlog`.
fn write_tube(f: &mut fmt::Formatter<'_>, queue: &Queue, name: &str) -> fmt::Result {
    let Some(tube) = queue.find_tube(name) else { return Ok(()) };
    let tube = queue.tube(tube);
    let (ready, delayed, buried) = (tube.ready(), tube.delayed(), tube.buried());
    writeln!(f, "{ready:>12} {delayed:>12} {buried:>12}  {name}")
}
