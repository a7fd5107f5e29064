//! Records of the binlog: the daemon writes and reads version 7 of the format, and only reads
//! version 5. All functions are pure.
//!
//! A record has the length of a tube's name, the name, eighty bytes of fields, and a body. A *full*
//! record has a name and a body. A *short* record has no name and no body: it changes or deletes a
//! job with an earlier full record. All numbers are little-endian.
//!
//! In a segment of this daemon, the four bytes after `pri`, which the original does not read, are a
//! checksum of the whole record. The checksum starts from the segment's salt and the record's
//! offset, so a record that is in a body, or was copied from another place, does not match its
//! checksum. The salt is made of the key of the directory, which each segment header has, and of
//! the number of the segment.
//!
//! `dates.rs` makes fields from a job, and `read/reader.rs` makes a job from fields. A record that
//! concerns no job, such as [`SegmentHeader`], is a short record with an id that no job has.
//!
//! No byte is trusted: any bytes decode to a record, to the end of the records, or to [`Damage`].

use std::fmt;

use crc32fast::Hasher;

use crate::{
    proto::{self, CRLF, NAME_LIMIT},
    queue::{Dated, History},
};

/// The version of the format, which is the first four bytes of a segment.
pub(super) const VERSION: u32 = 7;

/// The length of the version at the start of a segment, in bytes.
pub(super) const VERSION_BYTES: usize = 4;

/// The version of the older format, which the original wrote before its release 1.5.
pub(super) const VERSION_5: u32 = 5;

/// The length of the fields of version 7, in bytes.
const FIELDS_BYTES: usize = 80;

/// The length of the fields of version 5, in bytes: they lack the last padding of version 7.
const FIELDS_5_BYTES: usize = 77;

/// The length in bytes of a short record. Every delete is a short record.
pub(super) const SHORT_RECORD_BYTES: usize = 4 + FIELDS_BYTES;

/// Returns the length in bytes of a full record. The body has `size` bytes, including its CR LF.
pub fn full_length(name: &str, size: usize) -> u64 {
    (SHORT_RECORD_BYTES + name.len() + size) as u64
}

/// A segment header is a record with this id. No job has this id, so a reader finds no job.
const HEADER_ID: u64 = u64::MAX;

/// The `created_at` of a segment header: "bnstlkRK", read as a number.
const HEADER_MAGIC: i64 = i64::from_le_bytes(*b"bnstlkRK");

/// The offset in bytes of the checksum in the fields of a record.
const CHECKSUM_AT: usize = 12;

/// The state of a job in a record, with the number that stands for the state in files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The job is deleted.
    #[default]
    Deleted = 0,
    /// Ready, or reserved when the record was written. The number 2, which the original writes when
    /// it relocates a reserved job, is read as ready, too.
    Ready = 1,
    /// Buried.
    Buried = 3,
    /// Delayed.
    Delayed = 4,
}

impl Kind {
    /// The kind that a number in a record stands for.
    fn from_number(number: u8) -> Option<Self> {
        let kinds = [Self::Deleted, Self::Ready, Self::Ready, Self::Buried, Self::Delayed];
        kinds.get(usize::from(number)).copied()
    }
}

/// The fields of a record. Durations are in nanoseconds, dates in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JobFields {
    pub(super) id: u64,
    pub(super) pri: u32,
    pub(super) delay: i64,
    pub(super) ttr: i64,
    /// The body's length with CR LF. Short records have this field, too, because the original takes
    /// all fields of a job from its last record.
    pub(super) body_size: i32,
    pub(super) created_at: i64,
    /// If the job is delayed, the date when its delay ends; if buried, the date when it was buried.
    pub(super) deadline_at: i64,
    pub(super) history: History,
    pub(super) kind: Kind,
}

/// Why there is no intact record at an offset of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// The segment ends within the record.
    Torn,
    /// The checksum does not match the bytes.
    Checksum,
    /// The record has a part, named here, with a value that no intact record has.
    Illegal(&'static str),
}

impl fmt::Display for Damage {
    /// Formats the damage of a record.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn => f.write_str("the file ends within a record"),
            Self::Checksum => f.write_str("a record with a wrong checksum"),
            Self::Illegal(part) => write!(f, "a record with {part}"),
        }
    }
}

/// The format in which a segment is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Version 7 as the original writes it, with padding instead of checksums.
    Plain,
    /// Version 7 as this daemon writes it, with checksums that start from this salt.
    Salted(u64),
    /// Version 5.
    Five,
}

impl JobFields {
    /// Returns which instants of the job are stored in the record as dates.
    pub(super) fn dated(&self) -> Dated {
        let is_state_at = matches!(self.kind, Kind::Delayed | Kind::Buried);
        Dated { is_created: true, is_state_at }
    }

    /// Appends the fields of a record to `out`.
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.pri.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.delay.to_le_bytes());
        out.extend_from_slice(&self.ttr.to_le_bytes());
        out.extend_from_slice(&self.body_size.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.created_at.to_le_bytes());
        out.extend_from_slice(&self.deadline_at.to_le_bytes());
        let History { reserves, timeouts, releases, buries, kicks } = self.history;
        for count in [reserves, timeouts, releases, buries, kicks] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&[self.kind as u8, 0, 0, 0]);
    }

    /// Reads the fields of a record; both versions have the same layout of fields. `unit` is the
    /// version's unit of time in nanoseconds. Reads an unknown state as `Deleted`;
    /// [`Frame::decode`] reports such a state.
    fn read(bytes: &[u8; FIELDS_5_BYTES], unit: i64) -> Self {
        let time = |at| i64::from_le_bytes(part(bytes, at)).saturating_mul(unit);
        let number = |at| u32::from_le_bytes(part(bytes, at));
        let [reserves, timeouts, releases, buries, kicks] = [56, 60, 64, 68, 72].map(number);
        Self {
            id: u64::from_le_bytes(part(bytes, 0)),
            pri: number(8),
            delay: time(16),
            ttr: time(24),
            body_size: i32::from_le_bytes(part(bytes, 32)),
            created_at: time(40),
            deadline_at: time(48),
            history: History { reserves, timeouts, releases, buries, kicks },
            kind: Kind::from_number(bytes[76]).unwrap_or(Kind::Deleted),
        }
    }
}

/// Returns the `N` bytes at the offset `at` of `bytes`, which must be long enough.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes were taken")
}

/// A record to be written. A full record has the tube's name, and the body with its CR LF; in a
/// short record, name and body are empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewRecord<'a> {
    pub(super) fields: JobFields,
    pub(super) name: &'a str,
    pub(super) body: &'a [u8],
}

impl NewRecord<'_> {
    /// A short record.
    pub(super) fn short(fields: JobFields) -> Self {
        Self { fields, name: "", body: b"" }
    }

    /// Returns the length of the whole record in bytes.
    pub(super) fn length(&self) -> u64 {
        full_length(self.name, self.body.len())
    }

    /// Appends the record without its body to `out`. The record will be at `offset` of a segment
    /// with this salt. The record's checksum includes the body, which the caller writes next.
    pub(super) fn encode(&self, salt: u64, offset: u64, out: &mut Vec<u8>) {
        let (start, name) = (out.len(), self.name.as_bytes());
        let length = i32::try_from(name.len()).expect("a tube's name has at most 200 bytes");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(name);
        self.fields.write(out);
        let mut hasher = checksum(salt, offset);
        hasher.update(&out[start..]);
        hasher.update(self.body);
        let at = start + 4 + name.len() + CHECKSUM_AT;
        out[at..at + 4].copy_from_slice(&hasher.finalize().to_le_bytes());
    }
}

/// A segment header marks a segment as written by this daemon, and has the key of the directory.
/// The header is a short record of no job; the original skips it as the delete of an unknown job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The key of the directory: a random number, the same in all headers of its segments.
    pub(super) key: u64,
    /// When the segment header was written, no job had this id or a larger one.
    pub(super) next_id: u64,
    /// Clients may have seen ids without a record; all such ids are below this one. Zero if there
    /// are none.
    pub(super) seen_below: u64,
}

impl SegmentHeader {
    /// Appends the segment header, which will be at `offset` of the segment with this salt.
    pub(super) fn encode(self, salt: u64, offset: u64, out: &mut Vec<u8>) {
        let fields = JobFields {
            id: HEADER_ID,
            delay: i64::try_from(self.next_id).unwrap_or(i64::MAX),
            ttr: i64::from_le_bytes(self.key.to_le_bytes()),
            created_at: HEADER_MAGIC,
            deadline_at: i64::try_from(self.seen_below).unwrap_or(i64::MAX),
            ..JobFields::default()
        };
        NewRecord::short(fields).encode(salt, offset, out);
    }

    /// Returns the segment header in the fields of an intact record, if the record is a header.
    pub(super) fn of(fields: &JobFields) -> Option<Self> {
        let JobFields { id, delay, ttr, created_at, deadline_at, .. } = *fields;
        ((id, created_at) == (HEADER_ID, HEADER_MAGIC)).then(|| Self {
            key: u64::from_le_bytes(ttr.to_le_bytes()),
            next_id: u64::try_from(delay).unwrap_or(0),
            seen_below: u64::try_from(deadline_at).unwrap_or(0),
        })
    }

    /// Returns the segment header that `bytes` begin with, if it is intact, and was written at
    /// `offset` of segment `number`.
    pub(super) fn at(bytes: &[u8], number: u32, offset: u64) -> Option<Self> {
        let bytes = bytes.get(..SHORT_RECORD_BYTES)?;
        let frame = Frame::decode(bytes, Format::Plain).ok()??;
        let header = Self::of(&frame.fields)?;
        let (hasher, wanted) = frame.begin_checksum(bytes, salt(header.key, number), offset);
        (frame.flaw.is_none() && hasher.finalize() == wanted).then_some(header)
    }

    /// Whether `bytes` probably begin with a segment header, perhaps a damaged one: at least two of
    /// a header's three constant parts match. A tube's name may contain the magic, but not the
    /// other two parts.
    pub(super) fn is_likely(bytes: &[u8]) -> bool {
        let Some(fields) = bytes.get(4..SHORT_RECORD_BYTES) else { return false };
        let signs = [
            bytes[..4] == [0; 4],
            part(fields, 0) == HEADER_ID.to_le_bytes(),
            part(fields, 40) == HEADER_MAGIC.to_le_bytes(),
        ];
        signs.into_iter().filter(|&sign| sign).count() >= 2
    }

    /// Whether `bytes` begin with a segment header that a build before 2.0.0 wrote, with another
    /// magic. The checksums of such a segment start from other salts.
    pub(super) fn is_earlier(bytes: &[u8]) -> bool {
        bytes.starts_with(&[0; 4]) && bytes.get(44..52) == Some(b"bnstlkRS")
    }
}

/// Returns the salt of segment `number` in the directory with this key. If a segment's file is
/// copied to the name of another segment, its checksums do not match any more.
pub(super) fn salt(key: u64, number: u32) -> u64 {
    (key ^ u64::from(number)).wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(32)
}

/// Returns the initial state of the checksum of a record at `offset`.
fn checksum(salt: u64, offset: u64) -> Hasher {
    // The initial state has only 32 bits, so both halves of `salt ^ offset` are mixed into these.
    let mixed = (salt ^ offset).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let high = u32::try_from(mixed >> 32).expect("half as many bits");
    Hasher::new_with_initial(high)
}

/// The most bytes that a record has before its body.
pub(super) const HEAD_MAX_BYTES: usize = 8 + NAME_LIMIT + FIELDS_BYTES;

/// All of a record except its body: its lengths and its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// The fields, which have no meaning if the record has a flaw.
    pub(super) fields: JobFields,
    /// The offset of the tube's name in the record.
    name_at: usize,
    /// The length of the tube's name in bytes; zero in a short record.
    name_length: usize,
    /// Bytes before the body.
    pub(super) head_length: usize,
    /// The length of the body with its CR LF, in bytes; zero in a short record.
    pub(super) body_length: usize,
    /// The flaw of the record, if it has one. The length of a flawed record is known, too.
    flaw: Option<&'static str>,
}

impl Frame {
    /// Decodes the frame that `bytes` begin with. `bytes` must have at least [`HEAD_MAX_BYTES`], or
    /// reach to the end of the file. Returns `None` at the end of the records, or an error if the
    /// record's length is unknown.
    pub(super) fn decode(bytes: &[u8], format: Format) -> Result<Option<Self>, Damage> {
        // If only zeros are left, even if too few for a record, the records end here.
        if bytes.len() < HEAD_MAX_BYTES && bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let (name_at, fields_bytes, unit) = match format {
            Format::Five => (8, FIELDS_5_BYTES, 1000),
            Format::Plain | Format::Salted(_) => (4, FIELDS_BYTES, 1),
        };
        let length = bytes.get(..name_at).ok_or(Damage::Torn)?;
        let name_length = usize::from(length[0]);
        if name_length > NAME_LIMIT || length[1..].iter().any(|&byte| byte > 0) {
            return Err(Damage::Illegal("a tube name of wrong length"));
        }
        let at = name_at + name_length;
        let name = bytes.get(name_at..at).ok_or(Damage::Torn)?;
        let fields = bytes.get(at..at + fields_bytes).ok_or(Damage::Torn)?;
        if part::<8>(fields, 0) == [0; 8] {
            return Ok(None);
        }
        let state = fields[76];
        let fields = JobFields::read(&part(fields, 0), unit);
        // A body ends in CR LF, so its size is at least two bytes.
        let size = usize::try_from(fields.body_size).ok().filter(|&size| size >= 2);
        let size = size.ok_or(Damage::Illegal("a wrong body size"));
        let body_length = if name_length > 0 { size? } else { 0 };
        let flaws = [
            (Kind::from_number(state).is_none(), "an unknown state"),
            // If a missing date were allowed, an incomplete segment header would look like the
            // delete of a job, so the segment would look like one of the original.
            (fields.created_at == 0, "a missing date"),
            (name_length > 0 && !proto::is_tube_name(name), "a wrong tube name"),
        ];
        let flaw = flaws.into_iter().find_map(|(is_so, part)| is_so.then_some(part));
        let head_length = at + fields_bytes;
        Ok(Some(Self { fields, name_at, name_length, head_length, body_length, flaw }))
    }

    /// Returns the length of the whole record in bytes.
    pub(super) fn length(&self) -> u64 {
        (self.head_length + self.body_length) as u64
    }

    /// Whether the record is full, so that it includes a body.
    pub(super) fn is_full(&self) -> bool {
        self.name_length > 0
    }

    /// Returns the name of the tube in the record. `bytes` must begin with this record, which must
    /// have no flaw.
    pub(super) fn name<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        std::str::from_utf8(bytes.get(self.name_at..self.name_at + self.name_length)?).ok()
    }

    /// Begins to compute the checksum of a version 7 record at `offset` that begins with `bytes`.
    /// Returns the hasher, and the checksum stored in the record. The hasher has hashed zeros in
    /// place of that checksum. Pass all of the body that is in memory: hashing is then faster.
    pub(super) fn begin_checksum(&self, bytes: &[u8], salt: u64, offset: u64) -> (Hasher, u32) {
        let at = self.name_at + self.name_length + CHECKSUM_AT;
        let mut hasher = checksum(salt, offset);
        hasher.update(&bytes[..at]);
        hasher.update(&[0; 4]);
        hasher.update(&bytes[at + 4..]);
        (hasher, u32::from_le_bytes(part(bytes, at)))
    }

    /// Fails if the record has a flaw, or if its body does not end in CR LF. `body_end` begins with
    /// the body's last two bytes. The caller has checked the record's length and checksum.
    pub(super) fn judge(&self, body_end: &[u8]) -> Result<(), Damage> {
        let has_end = !self.is_full() || body_end.starts_with(CRLF);
        let flaw = self.flaw.or((!has_end).then_some("a body without its line end"));
        flaw.map_or(Ok(()), |part| Err(Damage::Illegal(part)))
    }
}

#[cfg(test)]
mod tests;
