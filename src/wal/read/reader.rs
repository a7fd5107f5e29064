//! Reads segments: applies their records to the queue, and reports damage and unfinished records.

use std::mem;

use super::{
    formats,
    key::{self, START},
    records::{CHECKED_MAX_BYTES, Verdict},
    replay::SegmentReport,
    window::Window,
};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    memory::{Bodies, Body},
    proto::{CRLF, NAME_LIMIT},
    queue::{Queue, Record, State, Tube},
    wal::{
        Error, Name,
        index::SegmentIndex,
        record::{
            self, Damage, Format, Frame, JobFields, Kind, SHORT_RECORD_BYTES, SegmentHeader,
            VERSION, VERSION_5, VERSION_BYTES,
        },
    },
};

/// The largest id accepted without a checksum. Such an id may be wrong because of damage, and later
/// jobs need ids that are larger still.
const UNCHECKED_ID_LIMIT: u64 = u64::MAX / 4;

/// The largest id that is accepted from a record with a checksum. This limit is above
/// [`UNCHECKED_ID_LIMIT`], because a job put after a job with an unchecked id has a larger id. The
/// limit fits into the 63 bits that a segment header has for the next id.
const CHECKED_ID_LIMIT: u64 = UNCHECKED_ID_LIMIT / 2 * 3;

/// How far the id of an unfinished record may exceed all known ids: fewer jobs than this are put
/// between two syncs. So a larger id must be damaged, and is ignored.
const TORN_ID_REACH: u64 = 1 << 16;

/// The maximum size of an unfinished record whose length cannot be read, at the end of the newest
/// segment. If more bytes than this are left at the end, they are damage.
const TORN_TAIL_MAX_BYTES: u64 = 1 << 20;

/// A reader of segments, oldest first.
pub(super) struct Reader<'a> {
    pub(super) window: Window<'a>,
    pub(super) queue: &'a mut Queue,
    pub(super) bodies: &'a mut Bodies,
    pub(super) index: SegmentIndex,
    pub(super) calendar: Calendar,
    pub(super) now: Time,
    /// Clients may have seen all ids below this one, which is from the last segment header.
    pub(super) seen_below: u64,
    /// The directory's key, from which the checksums in its segments are computed.
    pub(super) key: Option<u64>,
    /// The findings in the segment that is being read.
    pub(super) report: SegmentReport,
}

impl Reader<'_> {
    /// Reads a segment of `size` bytes into the queue. Damage is not an error, but is reported.
    pub(super) fn read(&mut self, number: u32, size: u64) -> Result<SegmentReport, Error> {
        self.report = SegmentReport { number, size, ..SegmentReport::default() };
        self.window.open(Name::Segment(number), size)?;
        self.read_segment()?;
        if let Some((offset, lost, error)) = &self.window.unreadable {
            let text = format!("at {offset}: {lost} bytes cannot be read: {error}");
            self.report.report_problem(text);
        }
        self.window.close(size)?;
        Ok(mem::take(&mut self.report))
    }

    /// Reads the version of the segment, then all of its records.
    fn read_segment(&mut self) -> Result<(), Error> {
        if self.window.first_data(0)?.is_none() {
            // After a power cut, or if the original is killed while it makes a file, the file may
            // have only zeros.
            self.report.torn = (self.report.size > 0).then_some(0);
            return Ok(());
        }
        let Some(version) = self.window.at(0, VERSION_BYTES)?.first_chunk().copied() else {
            self.report.report_problem("no version".into());
            return Ok(());
        };
        let version = u32::from_le_bytes(version);
        let format = self.format(version)?;
        if version != if format == Some(Format::Five) { VERSION_5 } else { VERSION } {
            self.report.report_problem(format!("unknown version {version}"));
        }
        let Some(format) = format else {
            if version == VERSION {
                self.report.report_problem(format!(
                    "none of its {} bytes can be read: no segment in the directory has an intact \
                     header",
                    self.report.size
                ));
            }
            // Clients know the ids of the lost jobs, so new jobs must not get these ids.
            return self.raise_id_past_torn(VERSION_BYTES as u64, self.report.size, Format::Plain);
        };
        self.report.has_other_key = matches!((format, self.key), (Format::Salted(salt), Some(key))
            if salt != record::salt(key, self.report.number));
        self.report.format = Some(format);
        self.report.used = START;
        self.read_records(format)
    }

    /// Applies intact records from `at` on, and moves `at` past them. Returns the damage at the new
    /// `at`, or `None` if the records seem to end there.
    fn read_sound(&mut self, at: &mut u64, format: Format) -> Result<Option<Damage>, Error> {
        loop {
            let frame = match self.window.sound_record(*at, format)? {
                Ok(Some(frame)) => frame,
                end_or_damage => return Ok(end_or_damage.err()),
            };
            if let Err(damage) = self.apply(*at, &frame, format)? {
                return Ok(Some(damage));
            }
            *at += frame.length();
            self.report.used = *at;
        }
    }

    /// Reads all records of the segment. After damage in a segment of this daemon, searches for the
    /// next intact record; in a segment of the original, skips only a record whose length can be
    /// trusted.
    fn read_records(&mut self, format: Format) -> Result<(), Error> {
        let (mut at, mut left) = (START, CHECKED_MAX_BYTES);
        loop {
            let damage = self.read_sound(&mut at, format)?;
            let Some(last) = self.window.last_data(at)? else { return Ok(()) };
            let (next, are_all_checked) = match (format, damage) {
                (Format::Salted(salt), _) => self.window.next_record(at + 1, salt, &mut left)?,
                (_, Some(_)) => (self.after_flaw(at, format)?, false),
                (_, None) => (None, false),
            };
            let end = next.unwrap_or(last + 1);
            self.raise_id_past_torn(at, end, format)?;
            let is_whole = !matches!(damage, Some(Damage::Torn | Damage::Checksum));
            if next.is_none() && are_all_checked && self.is_unfinished(at, end - at, is_whole)? {
                self.report.torn = Some(at);
                return Ok(());
            }
            self.report.report_problem(match damage {
                Some(damage) => format!("at {at}: {damage}; {} bytes skipped", end - at),
                None => format!("at {at}: {} bytes after the end of the records", end - at),
            });
            let Some(next) = next else { return Ok(()) };
            at = next;
        }
    }

    /// Returns where a damaged record ends, if the record's length can be trusted: at most one bit
    /// of its CR LF is wrong, and an intact record or only zeros follow.
    fn after_flaw(&mut self, at: u64, format: Format) -> Result<Option<u64>, Error> {
        let Ok(Some(frame)) = self.window.frame(at, format)? else { return Ok(None) };
        let next = at + frame.length();
        // A damaged segment header of this daemon looks like a short record.
        let is_perhaps_ours = at == START && !frame.is_full();
        if is_perhaps_ours || next > self.window.size {
            return Ok(None);
        }
        if frame.is_full() {
            let end = self.window.at(next - CRLF.len() as u64, CRLF.len())?;
            let wrong: u32 = end.iter().zip(CRLF).map(|(is, be)| (is ^ be).count_ones()).sum();
            if wrong > 1 {
                return Ok(None);
            }
        }
        let is_sound = match self.window.sound_record(next, format)? {
            Ok(None) => self.window.last_data(next)?.is_none(),
            record => record.is_ok(),
        };
        Ok(is_sound.then_some(next))
    }

    /// Whether the `length` bytes at `at` may be one record that a crash left incomplete. If a
    /// length can be read from the record, this length must be at least `length`, and `is_whole`
    /// must be false.
    fn is_unfinished(&mut self, at: u64, length: u64, is_whole: bool) -> Result<bool, Error> {
        // The first header is never incomplete: it is synced before the file becomes a segment.
        if at == START {
            return Ok(false);
        }
        Ok(match self.window.frame(at, Format::Plain)? {
            Ok(Some(frame)) => !is_whole && length <= frame.length(),
            Err(_) => length <= TORN_TAIL_MAX_BYTES,
            // If a crash left only zeros after the tube name of a record, the record looks like the
            // unused end of the file.
            Ok(None) => length <= (4 + NAME_LIMIT) as u64,
        })
    }

    /// Ensures that no new job gets an id of an unfinished or damaged record between two offsets.
    /// Considers only records whose fields and tube name are complete; the body may be cut off.
    fn raise_id_past_torn(&mut self, from: u64, end: u64, format: Format) -> Result<(), Error> {
        let mut at = from;
        while at < end {
            let Some(data) = self.window.first_data(at)? else { return Ok(()) };
            // Skips zeros, except for the four zeros that a short record begins with.
            at = at.max(data.saturating_sub(4));
            let Ok(Some(frame)) = self.window.frame(at, format)? else { return Ok(()) };
            let (id, next) = (frame.fields.id, self.queue.next_id());
            if frame.judge(CRLF).is_ok() && id < next.saturating_add(TORN_ID_REACH) {
                self.queue.raise_id(id + 1);
            }
            at += frame.length();
        }
        Ok(())
    }

    /// Applies a verified record to the queue. A short record in which the body's size differs from
    /// the size of its job's body is damage, because the original would read past the body.
    fn apply(&mut self, at: u64, frame: &Frame, format: Format) -> Verdict<()> {
        let fields = &frame.fields;
        let is_checked = matches!(format, Format::Salted(_));
        let header = SegmentHeader::of(fields).filter(|_| is_checked);
        let id = header.map_or(fields.id, |header| header.next_id.max(header.seen_below));
        let limit = if is_checked { CHECKED_ID_LIMIT } else { UNCHECKED_ID_LIMIT };
        if id > limit {
            return Ok(Err(Damage::Illegal("an id that is too large")));
        }
        if let Some(header) = header {
            self.queue.raise_id(header.next_id);
            self.seen_below = header.seen_below;
            return Ok(Ok(()));
        }
        let known = self.queue.find(fields.id);
        let size = usize::try_from(fields.body_size);
        let has_other_size = |job| Ok(self.queue.job(job).body.len()) != size;
        if !frame.is_full() && known.is_some_and(has_other_size) {
            return Ok(Err(Damage::Illegal("a wrong body size")));
        }
        self.report.records += 1;
        self.queue.raise_id(fields.id.saturating_add(1));
        if let Some(job) = known {
            if !frame.is_full() && fields.kind != Kind::Deleted {
                let (tube, record) = (self.queue.job(job).tube, self.known(fields));
                self.queue.make_room_to_delay(tube, record.state == State::Delayed)?;
                self.queue.replace_record(job, record, fields.dated());
                self.index.update(job);
                return Ok(Ok(()));
            }
            self.bodies.remove(self.queue.discard(job));
            self.index.remove(job);
            // Moves bodies now, so that the memory of free slots can be released, which counts
            // towards a memory limit.
            self.bodies.move_some(self.queue, u32::MAX, usize::MAX);
        }
        if !frame.is_full() || fields.kind == Kind::Deleted {
            return Ok(Ok(()));
        }
        let (tube, body) = match self.store_body(at, frame) {
            Err(Error::OutOfMemory(_)) if self.bodies.compact(self.queue) => {
                self.store_body(at, frame)?
            }
            result => result?,
        };
        let job = self.queue.add(self.known(fields), fields.dated(), tube, body);
        self.bodies.own(self.queue, job.index());
        let length = u32::try_from(frame.length()).expect("a body and 300 bytes");
        self.index.insert(job, length);
        Ok(Ok(()))
    }

    /// Converts the fields of a record to the fields of a job in the queue.
    fn known(&self, fields: &JobFields) -> Record {
        let deadline_at = self.calendar.instant(fields.deadline_at);
        let seconds = |ns: i64| u32::try_from(ns.max(0) / 1_000_000_000).unwrap_or(u32::MAX);
        let (state, state_at) = match fields.kind {
            Kind::Buried => (State::Buried, deadline_at),
            Kind::Delayed if deadline_at > self.now => (State::Delayed, deadline_at),
            Kind::Delayed => (State::Ready, deadline_at),
            // `deadline_at` is ignored: in a record of the original, it may be the deadline of an
            // earlier reservation.
            Kind::Ready | Kind::Deleted => (State::Ready, self.now),
        };
        Record {
            id: fields.id,
            pri: fields.pri,
            delay: seconds(fields.delay),
            ttr: seconds(fields.ttr).max(1),
            created_at: self.calendar.instant(fields.created_at),
            state_at,
            history: fields.history,
            state,
        }
    }

    /// Stores the body of the full record at `at`, piece by piece if the record exceeds the window.
    /// Makes the job's tube first, if necessary. Fails if there is no memory for the job.
    fn store_body(&mut self, at: u64, frame: &Frame) -> Result<(Key<Tube>, Body), Error> {
        if self.bodies.ensure_storage().is_err() {
            self.release_unused();
            self.bodies.begin_turn();
        }
        let Self { window, queue, bodies, index, .. } = self;
        let length = frame.head_length + frame.body_length;
        let bytes = window.at(at, length.min(Window::BYTES))?;
        let name = frame.name(bytes).expect("it has been verified");
        bodies.ensure_storage()?;
        index.make_room()?;
        let is_delayed = frame.fields.kind == Kind::Delayed;
        let tube = queue.make_room_to_restore(name, is_delayed)?;
        if length <= Window::BYTES {
            return Ok((tube, bodies.store(&bytes[frame.head_length..length])?));
        }
        let mut body = bodies.begin(frame.body_length)?;
        let body_at = at + frame.head_length as u64;
        let append = |part: &[u8]| Ok(bodies.append(&mut body, part)?);
        if let Err(error) = window.for_each_part(body_at, frame.body_length, append) {
            bodies.remove(body);
            return Err(error);
        }
        Ok((tube, body))
    }

    /// Releases the memory of the jobs that have been deleted, in the queue and in the index.
    pub(super) fn release_unused(&mut self) {
        while self.queue.release_one() || self.index.release_one() {}
    }

    /// Reads the format of the segment. `None` if the segment cannot be read, because its version
    /// is unknown, or because no header has the key for its checksums. Fails if this daemon cannot
    /// read the segment, but the program that wrote the segment can.
    fn format(&mut self, version: u32) -> Result<Option<Format>, Error> {
        let (window, number) = (&mut self.window, self.report.number);
        let salted = |key| Format::Salted(record::salt(key, number));
        let first = window.at(START, SHORT_RECORD_BYTES)?;
        if let Some(header) = SegmentHeader::at(first, number, START) {
            return Ok(Some(salted(header.key)));
        }
        let is_likely = SegmentHeader::is_likely(first);
        if SegmentHeader::is_earlier(first) {
            return Err(formats::of_earlier_build(window.name));
        }
        let theirs = match version {
            VERSION => Some(Format::Plain),
            VERSION_5 => Some(Format::Five),
            _ => None,
        };
        // A damaged segment header may pass for an intact short record, but not for a full record.
        if let (false, Some(format)) = (is_likely, theirs) {
            if matches!(window.sound_record(START, format)?, Ok(Some(first)) if first.is_full()) {
                return Ok(theirs);
            }
        }
        let key = key::of_damaged(window, number, self.key)?;
        if key.is_some() || is_likely {
            return Ok(key.or(self.key).map(salted));
        }
        formats::refuse(window, version, START)?;
        Ok(theirs)
    }
}
