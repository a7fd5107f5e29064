//! From a directory to jobs: reading whatever bytes are there, and saying what they were.
//!
//! Records are applied to the queue one by one, in the order in which they were written: a full
//! record brings a job or replaces one, a short one changes or ends one that is known. A short
//! record of an unknown job is normal: the job was deleted, or its full record stands later.
//!
//! In a segment of ours every record is checked, so one that fails is stepped over, to the next
//! place where a sound one begins. In one of the original's nothing tells a record from a body
//! that looks like one; there, reading ends at the first that makes no sense.

use std::{fmt, io};

use super::{
    disk::{Disk, Name},
    ledger::Ledger,
    record::{self, Damage, Facts, Format, Found, Kind, Mark, VERSION, VERSION_5},
};
use crate::{
    clock::{Calendar, Time},
    queue::{Queue, Record, State},
};

/// The length of the version at the start of a segment, in bytes.
pub(super) const HEAD: usize = 4;

/// How many complaints about one segment are kept; the rest are only counted.
const COMPLAINTS: usize = 20;

/// How often, at most, the bytes of a segment are run through a checksum in search of sound
/// records: a body full of records that look right must not keep a start waiting for hours.
const PASSES: usize = 64;

/// The largest id that is believed where no checksum vouches for it: a damaged one must not use up
/// those of later jobs.
const UNCHECKED_ID_LIMIT: u64 = u64::MAX / 4;

/// What was wrong at one place of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Where, in bytes from the start.
    pub offset: usize,
    /// What was wrong there.
    pub what: Wrong,
    /// How many bytes could not be read.
    pub lost: usize,
}

/// What can be wrong with a part of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// A record is damaged.
    Record(Damage),
    /// The version is none that can be read: this number.
    Version(u32),
    /// There is not even a version.
    NoVersion,
    /// It is one of ours, and nothing in it says where its checksums start from.
    NoMark,
    /// There are bytes behind the end.
    BehindTheEnd,
    /// The file could not be read.
    Unreadable(String),
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, what, lost } = self;
        match what {
            Wrong::Record(damage) => write!(f, "at {offset}: {damage}; {lost} bytes skipped"),
            Wrong::Version(number) => write!(f, "version {number}, which is not known"),
            Wrong::NoVersion => f.write_str("no version"),
            Wrong::NoMark => f.write_str("its mark is damaged, so nothing in it can be checked"),
            Wrong::BehindTheEnd => write!(f, "at {offset}: {lost} bytes behind the end"),
            Wrong::Unreadable(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

/// What was found in one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    /// The `N` of its name.
    pub number: u32,
    /// The file's size in bytes.
    pub size: u64,
    /// Bytes in use: up to the end of the last record.
    pub used: u64,
    /// How its records were read; `None` where they were not.
    pub format: Option<Format>,
    /// Records that brought, changed or ended a job.
    pub kept: u64,
    /// Records of jobs that were not known, nor needed.
    pub skipped: u64,
    /// What was wrong, the first few of it.
    pub complaints: Vec<Complaint>,
    /// How much was wrong.
    pub complaints_in_all: u64,
    /// The last record was not written to its end, which is normal where the daemon was killed
    /// or the power failed: the bytes from here on.
    pub torn: Option<usize>,
}

impl SegmentReport {
    /// Whether something in it could not be read.
    pub fn is_damaged(&self) -> bool {
        self.complaints_in_all > 0
    }
}

/// What was found in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Each segment, oldest first.
    pub segments: Vec<SegmentReport>,
}

impl Report {
    /// Whether something could not be read.
    pub fn is_damaged(&self) -> bool {
        self.segments.iter().any(SegmentReport::is_damaged)
    }

    /// Records read in all segments.
    pub fn records(&self) -> u64 {
        self.segments.iter().map(|segment| segment.kept + segment.skipped).sum()
    }
}

/// Who wants to know how far a replay is: called after each segment with the bytes read so far
/// and the bytes there are.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Reads all segments, oldest first, into the queue and the ledger. Fails where a file cannot be
/// had at all, which may be mended; what the disk cannot read any more is damage.
pub(super) fn replay(
    disk: &mut dyn Disk,
    files: &[(Name, u64)],
    queue: &mut Queue,
    ledger: &mut Ledger,
    calendar: Calendar,
    now: Time,
    progress: Progress<'_>,
) -> io::Result<Report> {
    let mut segments: Vec<(u32, u64)> = files
        .iter()
        .filter_map(|&(name, size)| match name {
            Name::Segment(number) => Some((number, size)),
            Name::Spare(_) | Name::Damaged(_) => None,
        })
        .collect();
    segments.sort_unstable();
    let newest = segments.last().map(|&(number, _)| number);
    let all = segments.iter().map(|&(_, size)| size).sum();
    let mut read = 0;
    let mut report = Report::default();
    for (number, size) in segments {
        ledger.open(number);
        let mut reader = Reader::new(number, size, queue, ledger, calendar, now);
        match disk.read(Name::Segment(number)) {
            Ok(bytes) => reader.read(&bytes, Some(number) == newest),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                reader.complain(0, Wrong::Unreadable(error.to_string()), 0);
            }
            Err(error) => {
                let name = Name::Segment(number);
                return Err(io::Error::new(error.kind(), format!("{name}: {error}")));
            }
        }
        report.segments.push(reader.finish());
        read += size;
        progress(read, all);
    }
    queue.sort_buried();
    Ok(report)
}

/// Reads one segment.
struct Reader<'a> {
    report: SegmentReport,
    queue: &'a mut Queue,
    ledger: &'a mut Ledger,
    calendar: Calendar,
    now: Time,
}

impl<'a> Reader<'a> {
    fn new(
        number: u32,
        size: u64,
        queue: &'a mut Queue,
        ledger: &'a mut Ledger,
        calendar: Calendar,
        now: Time,
    ) -> Self {
        let report = SegmentReport {
            number,
            size,
            used: 0,
            format: None,
            kept: 0,
            skipped: 0,
            complaints: Vec::new(),
            complaints_in_all: 0,
            torn: None,
        };
        Self { report, queue, ledger, calendar, now }
    }

    fn finish(self) -> SegmentReport {
        self.ledger.grow(self.report.used);
        if self.report.is_damaged() {
            self.ledger.mark_damaged();
        }
        self.report
    }

    fn complain(&mut self, offset: usize, what: Wrong, lost: usize) {
        self.report.complaints_in_all += 1;
        if self.report.complaints.len() < COMPLAINTS {
            self.report.complaints.push(Complaint { offset, what, lost });
        }
    }

    fn read(&mut self, bytes: &[u8], is_newest: bool) {
        let Some(version) = bytes.first_chunk().copied().map(u32::from_le_bytes) else {
            // A file that was made and not yet written when the power failed.
            if !bytes.is_empty() {
                self.complain(0, Wrong::NoVersion, bytes.len());
            }
            return;
        };
        let format = match format(bytes, version) {
            Ok(format) => format,
            Err(wrong) => return self.complain(0, wrong, bytes.len()),
        };
        if version != if format == Format::Five { VERSION_5 } else { VERSION } {
            self.complain(0, Wrong::Version(version), HEAD);
        }
        self.report.format = Some(format);
        self.report.used = HEAD as u64;
        let mut search = Search { left: bytes.len().saturating_mul(PASSES) };
        let mut at = HEAD;
        loop {
            let damage = match record::decode(bytes, at, format) {
                Ok(Found::Record(record)) => match self.apply(&record) {
                    Ok(()) => {
                        at += record.length;
                        self.report.used = at as u64;
                        continue;
                    }
                    Err(damage) => Some(damage),
                },
                Ok(Found::End) => match format {
                    Format::Salted(_) if !is_zero(&bytes[at..]) => None,
                    _ => return,
                },
                Err(damage) => Some(damage),
            };
            let next = match format {
                Format::Salted(_) => search.next(bytes, at, format),
                Format::Plain | Format::Five => None,
            };
            let lost = next.unwrap_or(bytes.len()) - at;
            // Only in the newest segment can writing have been cut short; and only in one of ours
            // is it certain that nothing sound follows.
            if next.is_none() && is_newest && matches!(format, Format::Salted(_)) {
                self.report.torn = Some(at);
                return;
            }
            self.complain(at, damage.map_or(Wrong::BehindTheEnd, Wrong::Record), lost);
            match next {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    /// Does to the queue what a record says was done. A short record that tells another size than
    /// the body has is refused: it would have the original read past that body.
    fn apply(&mut self, record: &record::Record<'_>) -> Result<(), Damage> {
        let facts = &record.facts;
        let mark = Mark::of(record);
        let id = mark.map_or(facts.id, |mark| mark.next_id);
        let is_checked = matches!(self.report.format, Some(Format::Salted(_)));
        if id > UNCHECKED_ID_LIMIT && !is_checked {
            return Err(Damage::Id(id));
        }
        if let Some(mark) = mark {
            self.queue.raise_id(mark.next_id);
            return Ok(());
        }
        let known = self.queue.find(facts.id);
        if known.is_none() && (record.full.is_none() || facts.kind == Kind::Deleted) {
            self.report.skipped += 1;
            self.queue.raise_id(facts.id.saturating_add(1));
            return Ok(());
        }
        let size = known.map(|job| self.queue.job(job).body.len());
        if record.full.is_none() && size != usize::try_from(facts.body_size).ok() {
            return Err(Damage::BodySize(facts.body_size));
        }
        self.report.kept += 1;
        match (known, record.full) {
            (Some(job), None) if facts.kind != Kind::Deleted => {
                self.queue.amend(job, self.known(facts));
                self.ledger.update(job);
            }
            (known, full) => {
                if let Some(job) = known {
                    self.queue.discard(job);
                    self.ledger.remove(job);
                }
                let Some((tube, body)) = full.filter(|_| facts.kind != Kind::Deleted) else {
                    return Ok(());
                };
                let body = self.queue.bodies_mut().store(body).map_err(|_| Damage::Memory)?;
                let job = self.queue.restore(self.known(facts), tube, body);
                let length = u32::try_from(record.length).expect("a body and 300 bytes");
                self.ledger.insert(job, length);
            }
        }
        Ok(())
    }

    /// What the queue should know of the job.
    fn known(&self, facts: &Facts) -> Record {
        let deadline_at = self.calendar.instant(facts.deadline_at);
        let state = match facts.kind {
            Kind::Buried => State::Buried,
            Kind::Delayed if deadline_at > self.now => State::Delayed,
            Kind::Delayed | Kind::Ready | Kind::Reserved | Kind::Deleted => State::Ready,
        };
        Record {
            id: facts.id,
            pri: facts.pri,
            delay: seconds(facts.delay),
            ttr: seconds(facts.ttr).max(1),
            created_at: self.calendar.instant(facts.created_at).min(self.now),
            deadline_at,
            reserves: facts.reserves,
            timeouts: facts.timeouts,
            releases: facts.releases,
            buries: facts.buries,
            kicks: facts.kicks,
            state,
        }
    }
}

/// How a segment is to be read, or why it cannot be.
fn format(bytes: &[u8], version: u32) -> Result<Format, Wrong> {
    if let Some(mark) = Mark::at(bytes, HEAD) {
        return Ok(Format::Salted(mark.salt));
    }
    let is_ours = Mark::is_likely_at(bytes, HEAD);
    let first = record::decode(bytes, HEAD, Format::Plain);
    if version == VERSION && !is_ours && matches!(first, Ok(Found::Record(_))) {
        return Ok(Format::Plain);
    }
    // Its beginning is damaged, or it has none yet. The mark is repeated.
    if !is_zero(&bytes[HEAD..]) {
        if let Some(mark) = (HEAD..bytes.len()).find_map(|at| Mark::at(bytes, at)) {
            return Ok(Format::Salted(mark.salt));
        }
    }
    match version {
        _ if is_ours => Err(Wrong::NoMark),
        VERSION => Ok(Format::Plain),
        VERSION_5 => Ok(Format::Five),
        _ => Err(Wrong::Version(version)),
    }
}

/// Whether there is nothing but zeros, at the speed of a comparison of memory.
fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: &[u8] = &[0; 4096];
    bytes.chunks(ZEROS.len()).all(|part| *part == ZEROS[..part.len()])
}

/// The way from a damaged record to the next sound one.
struct Search {
    /// How many bytes may still be run through a checksum.
    left: usize,
}

impl Search {
    fn next(&mut self, bytes: &[u8], damaged: usize, format: Format) -> Option<usize> {
        for at in damaged + 1..bytes.len() {
            // Cheap things are looked at first; so this costs little where no record begins.
            if let Ok(Found::Record(record)) = record::decode(bytes, at, Format::Plain) {
                self.left = self.left.checked_sub(record.length)?;
                if matches!(record::decode(bytes, at, format), Ok(Found::Record(_))) {
                    return Some(at);
                }
            }
        }
        None
    }
}

/// Nanoseconds as the protocol's whole seconds.
fn seconds(nanoseconds: i64) -> u32 {
    let seconds = nanoseconds.max(0) / 1_000_000_000;
    u32::try_from(seconds).unwrap_or(u32::MAX)
}
