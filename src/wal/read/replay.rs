//! Replay: reads all segments of a directory, restores their jobs, and reports any damage.
//!
//! Records are applied to the queue one by one, in the order in which they were written. A full
//! record adds or replaces a job; a short record changes or deletes a known job. A short record of
//! an unknown job is normal: the job was deleted, or its full record comes later.
//!
//! In a segment of this daemon, every record has a checksum. If a record's checksum is wrong, bytes
//! are skipped up to the next intact record. In a segment of the original, nothing distinguishes a
//! record from a body that looks like a record. A damaged record of the original is skipped only if
//! its length is known, and an intact record or the end of the records follows directly. If not,
//! reading of the segment ends.
//!
//! A file is read through a [`Window`], from which a large body is copied piece by piece. So a
//! replay takes the memory of the jobs plus a small constant. Memory is taken only for intact
//! records. If memory is short, the replay fails: a shortage is never mistaken for damage.

use std::ops::ControlFlow;

use super::{key, reader::Reader, window::Window};
use crate::{
    clock::{Calendar, Time},
    collections::grow,
    memory::Bodies,
    queue::Queue,
    wal::{
        Error,
        disk::{Disk, Name, last_numbers},
        index::SegmentIndex,
        log::{NUMBER_MAX, number_after},
        record::Format,
        segment::End,
        space::HEADER_BYTES,
    },
};

/// How many numbers must be left for later segments: more than a daemon ever uses.
const NUMBERS_LEFT_MIN: u32 = 1 << 20;

/// The largest number of problems that are described for one segment. Further problems are only
/// counted.
const PROBLEMS_MAX: usize = 20;

/// The findings in one segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentReport {
    /// The `N` of the segment's name `binlog.N`.
    pub number: u32,
    /// The file's size in bytes.
    pub size: u64,
    /// Bytes in use: up to the end of the last record.
    pub used: u64,
    /// The format in which the segment's records were read; `None` if none could be read.
    pub format: Option<Format>,
    /// How many records of jobs were read.
    pub records: u64,
    /// Whether the checksums start from another key than the directory's, because the segment comes
    /// from another directory. The segment is read all the same.
    pub has_other_key: bool,
    /// Texts about the first problems, most of them with an offset and a number of bytes.
    pub problems: Vec<String>,
    /// The number of all problems.
    pub problem_count: u64,
    /// The offset of an unfinished last record, or 0 if all bytes are zero. Unfinished records and
    /// files of zeros are normal after a kill or a power cut.
    pub torn: Option<u64>,
}

impl SegmentReport {
    /// Whether the report shows that part of the segment could not be read.
    pub fn is_damaged(&self) -> bool {
        self.problem_count > 0
    }

    /// Adds a text about damage to the report of a segment.
    pub(super) fn report_problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        }
    }

    /// Whether the segment has more than its first header.
    fn has_records(&self) -> bool {
        self.used > HEADER_BYTES || self.torn.is_some_and(|at| at > 0) || self.is_damaged()
    }
}

/// The findings in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Each segment, oldest first.
    pub segments: Vec<SegmentReport>,
    /// The key of the directory, and a file in which it was found; `None` if no file has a key.
    pub(in crate::wal) key: Option<(u64, Name)>,
}

impl Report {
    /// Whether the report shows that part of any segment could not be read.
    pub fn is_damaged(&self) -> bool {
        self.segments.iter().any(SegmentReport::is_damaged)
    }
}

/// Called about every 256 KiB of a replay, with the bytes read so far and the bytes of all
/// segments. If this function returns `Break`, the replay ends with [`Error::Interrupted`], and has
/// changed no file.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// A [`Progress`] that ignores its arguments and lets the replay continue.
pub fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The jobs that a binlog holds, in a queue, and their bodies.
#[derive(Debug, Default)]
pub struct Restored {
    /// The jobs.
    pub queue: Queue,
    /// The bodies of these jobs.
    pub bodies: Bodies,
}

/// Reads all segments, oldest first, into `restored`. Returns a report and the index of the
/// segments. Fails if a file cannot be read, if a segment has a foreign layout, if memory is short,
/// if segment numbers run out, or if `progress` returns a break. After an error, no file has been
/// changed, so the operator can remove the cause. Unreadable bytes (EIO) are damage.
pub(in crate::wal) fn replay(
    disk: &mut dyn Disk,
    files: &[(Name, u64)],
    restored: &mut Restored,
    calendar: Calendar,
    now: Time,
    progress: Progress<'_>,
) -> Result<(Report, SegmentIndex), Error> {
    number_after(last_numbers(files).0, NUMBER_MAX - NUMBERS_LEFT_MIN)?;
    // Jobs that fitted into memory during the last run must fit now, too.
    let Restored { queue, bodies } = restored;
    bodies.begin_replay();
    let mut report = Report::default();
    let made = grow(&mut report.segments, files.len());
    made.map_err(|_| Error::OutOfMemory(format!(" for a list of {} files", files.len())))?;
    let segments = files.iter().filter_map(|&(name, size)| match name {
        Name::Segment(number) => Some((number, size)),
        Name::Preallocated(_) | Name::Damaged(_) => None,
    });
    report.key = key::of_directory(disk, files)?;
    let all = segments.clone().map(|(_, size)| size).sum();
    let mut reader = Reader {
        window: Window::new(disk, progress, all)?,
        queue,
        bodies,
        index: SegmentIndex::default(),
        calendar,
        now,
        seen_below: 0,
        key: report.key.map(|(key, _)| key),
        report: SegmentReport::default(),
    };
    let mut end = End::default();
    for (number, size) in segments {
        end.open(number);
        reader.index.follow(end);
        let read = reader.read(number, size);
        let segment = read.map_err(|error| explain(error, number, reader.queue, all))?;
        end.advance(segment.used);
        reader.index.follow(end);
        report.segments.push(segment);
    }
    // Only the newest segment with records may end in an unfinished record.
    let newest = report.segments.iter().rposition(SegmentReport::has_records).unwrap_or(0);
    for segment in &mut report.segments[..newest] {
        if let Some(at) = segment.torn.take() {
            segment
                .report_problem(format!("at {at}: an unfinished record, but newer files follow"));
        }
    }
    for segment in report.segments.iter().filter(|segment| segment.is_damaged()) {
        reader.index.mark_damaged(segment.number);
    }
    reader.queue.raise_id(reader.seen_below);
    reader.queue.sort_buried();
    reader.release_unused();
    let jobs = reader.queue.jobs();
    let no_memory = |_| Error::OutOfMemory(format!(" for a connection after {jobs} jobs"));
    reader.bodies.end_replay(reader.queue).map_err(no_memory)?;
    Ok((report, reader.index))
}

/// If memory was too short, adds to the error how many jobs fitted, and which file has the next
/// job.
fn explain(error: Error, number: u32, queue: &Queue, all: u64) -> Error {
    let Error::OutOfMemory(_) = error else { return error };
    let (name, jobs, held) = (Name::Segment(number), queue.jobs(), queue.job_bytes());
    Error::OutOfMemory(format!(
        ": after {jobs} jobs with {held} bytes, the next one in {name} does not fit; all files \
         have {all} bytes"
    ))
}
