//! The search for the next sound record after damage in a segment written here, and for the salt
//! of one whose beginning is damaged.
//!
//! The body of a job may be full of bytes that look like records or segment headers, and each of
//! these must be tried. However many there are, they must not delay startup, or end the search
//! early. So the CRCs of the file's prefixes are computed once, and the CRC of any part follows
//! from two of them. A search takes time linear in the length of the file, whatever its contents. A
//! segment header within a body differs from a real one in the records after it: only a real one is
//! followed by sound records up to the end.

use std::collections::BTreeMap;

use crc32fast::Hasher;

use super::{reader::sound_record, window::Window};
use crate::{
    proto::CRLF,
    wal::{
        Error,
        record::{
            Format, Frame, HEAD_MAX_BYTES, SALT_AT, SHORT_RECORD_BYTES, SegmentHeader,
            VERSION_BYTES,
        },
    },
};

/// The fewest bytes from one CRC to the next. In a very large file they are further apart.
const STEP_MIN_BYTES: u64 = 4096;

/// The most CRCs that are kept; they take 1 MiB.
const SUMS_MAX: u64 = 256 * 1024;

/// The most salts that are compared if the beginning of the segment gives no hint.
const SALTS_MAX: usize = 64;

/// The most bits in which the salts of a damaged segment header and of a later one may differ.
/// Two unrelated salts differ in about 32.
const SALT_FLIPS_MAX: u32 = 8;

/// The CRC-32 of prefixes of a file: `sums[n]` covers the first `n * step` bytes.
pub(super) struct PrefixSums {
    step: u64,
    sums: Vec<u32>,
}

/// Returns the CRC-32 of two consecutive parts, given the CRC-32 of each. The second part has
/// `length` bytes.
fn join(first: u32, second: u32, length: u64) -> u32 {
    let mut hasher = Hasher::new_with_initial(first);
    hasher.combine(&Hasher::new_with_initial_len(second, length));
    hasher.finalize()
}

impl PrefixSums {
    /// Reads the first `size` bytes of the file. Fails if there is no memory for the CRCs, at most
    /// 1 MiB.
    pub(super) fn new(window: &mut Window<'_>, size: u64) -> Result<Self, Error> {
        let step = size.div_ceil(SUMS_MAX).next_multiple_of(STEP_MIN_BYTES).max(STEP_MIN_BYTES);
        let count = usize::try_from(size / step + 1).expect("at most SUMS_MAX");
        let mut sums = Vec::new();
        sums.try_reserve_exact(count).map_err(|_| Error::OutOfMemory(String::new()))?;
        let mut hasher = Hasher::new();
        sums.push(0);
        let length = usize::try_from(step).expect("a small part of a file");
        for number in 1..count as u64 {
            window.for_each_part((number - 1) * step, length, |part| {
                hasher.update(part);
                Ok(())
            })?;
            sums.push(hasher.clone().finalize());
        }
        Ok(Self { step, sums })
    }

    /// Returns the CRC-32 of the first `end` bytes of the file.
    fn of_first(&self, window: &mut Window<'_>, end: u64) -> Result<u32, Error> {
        let number = (end / self.step).min(self.sums.len() as u64 - 1);
        let sum = self.sums[usize::try_from(number).expect("there are as many")];
        let mut hasher = Hasher::new_with_initial(sum);
        let mut at = number * self.step;
        let mut buffer = [0; 4096];
        while at < end {
            let length = usize::try_from((end - at).min(buffer.len() as u64)).expect("a page");
            window.peek(at, &mut buffer[..length])?;
            hasher.update(&buffer[..length]);
            at += length as u64;
        }
        Ok(hasher.finalize())
    }

    /// Returns the CRC-32 of `length` bytes from `offset` on.
    fn of_part(&self, window: &mut Window<'_>, offset: u64, length: u64) -> Result<u32, Error> {
        let before = self.of_first(window, offset)?;
        let all = self.of_first(window, offset + length)?;
        Ok(all ^ join(before, 0, length))
    }

    /// Returns where the next sound record begins, at `offset` or after it.
    pub(super) fn next_record(
        &self,
        window: &mut Window<'_>,
        offset: u64,
        salt: u64,
    ) -> Result<Option<u64>, Error> {
        let mut at = offset;
        while at + (SHORT_RECORD_BYTES as u64) <= window.size() {
            let Some(data) = window.first_data(at)? else { break };
            // A record begins with no more than eleven zeros.
            at = at.max(data.saturating_sub(11));
            let is_sound = match Frame::decode(window.at(at, HEAD_MAX_BYTES)?, Format::Plain) {
                Ok(Some(frame)) => self.is_sound(window, at, &frame, salt)?,
                Ok(None) | Err(_) => false,
            };
            if is_sound {
                return Ok(Some(at));
            }
            at += 1;
        }
        Ok(None)
    }

    /// Whether there is a sound record with this frame and this salt at `at`.
    fn is_sound(
        &self,
        window: &mut Window<'_>,
        at: u64,
        frame: &Frame,
        salt: u64,
    ) -> Result<bool, Error> {
        if frame.length() > window.size() - at {
            return Ok(false);
        }
        let mut end = [0; CRLF.len()];
        window.peek(at + frame.length() - CRLF.len() as u64, &mut end)?;
        // Cheap checks come first.
        if frame.judge(&end).is_err() {
            return Ok(false);
        }
        let head = window.at(at, frame.head_length)?;
        let (hasher, wanted) = frame.begin_checksum(head, salt, at);
        let length = frame.body_length as u64;
        if length == 0 {
            return Ok(hasher.finalize() == wanted);
        }
        let body = self.of_part(window, at + frame.head_length as u64, length)?;
        Ok(join(hasher.finalize(), body, length) == wanted)
    }
}

/// Finds the salt of a segment whose first segment header, at `start`, is damaged: the salt in it,
/// if it is right or nearly so, or else the salt of later headers. `None` if no salt is trusted.
///
/// A body may contain whole segments with another salt, so a single segment header proves nothing.
/// A salt is trusted if it is close to `likely`, the one in what looks like the damaged header. If
/// nothing does, it is trusted if its header begins where a record does, outside all bodies; or if
/// the segment does not even have a version, and the salt fits most of the file.
pub(super) fn find_salt(
    window: &mut Window<'_>,
    start: u64,
    likely: Option<u64>,
    has_version: bool,
) -> Result<Option<u64>, Error> {
    if let Some(told) = likely {
        let behind = start + SHORT_RECORD_BYTES as u64;
        if sound_run_end(window, behind, told)? > behind {
            return Ok(Some(told));
        }
        if let Some(salt) = correct_salt(window.at(start, SHORT_RECORD_BYTES)?, start) {
            return Ok(Some(salt));
        }
    }
    // Each salt, and how many bytes of the file are sound records with it.
    let mut salts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut first_header = None;
    let mut at = VERSION_BYTES as u64;
    while at + (SHORT_RECORD_BYTES as u64) <= window.size() {
        let Some(data) = window.first_data(at)? else { break };
        // A segment header begins with four zeros.
        at = at.max(data.saturating_sub(4));
        let Some(header) = SegmentHeader::at(window.at(at, SHORT_RECORD_BYTES)?, at) else {
            at += 1;
            continue;
        };
        first_header.get_or_insert(at);
        let is_believed = match likely {
            Some(told) => (told ^ header.salt).count_ones() <= SALT_FLIPS_MAX,
            None => has_version && is_boundary(window, at)?,
        };
        if is_believed {
            return Ok(Some(header.salt));
        }
        let end = sound_run_end(window, at, header.salt)?;
        if salts.len() < SALTS_MAX || salts.contains_key(&header.salt) {
            *salts.entry(header.salt).or_default() += end - at;
        }
        at = end.max(at + 1);
    }
    let (None, false, Some(first)) = (likely, has_version, first_header) else { return Ok(None) };
    let written = window.last_data(first)?.map_or(0, |last| last + 1 - first);
    let most = salts.into_iter().max_by_key(|&(_, explained)| explained);
    Ok(most.filter(|&(_, explained)| 2 * explained > written).map(|(salt, _)| salt))
}

/// Returns the salt of a segment header that becomes sound when one bit of the salt is changed.
fn correct_salt(header: &[u8], offset: u64) -> Option<u64> {
    let header: &[u8; SHORT_RECORD_BYTES] = header.first_chunk()?;
    (0..64).find_map(|bit| {
        let mut bytes = *header;
        bytes[SALT_AT + bit / 8] ^= 1 << (bit % 8);
        SegmentHeader::at(&bytes, offset).map(|header| header.salt)
    })
}

/// Whether a record begins at `offset` of a file with a damaged beginning, according to the lengths
/// of the records before it. False if the offset is within a record, or if the lengths cannot be
/// known.
fn is_boundary(window: &mut Window<'_>, offset: u64) -> Result<bool, Error> {
    let mut at = VERSION_BYTES as u64;
    while at < offset {
        match Frame::decode(window.at(at, HEAD_MAX_BYTES)?, Format::Plain) {
            Ok(Some(frame)) => at += frame.length(),
            Ok(None) | Err(_) => return Ok(false),
        }
    }
    Ok(at == offset)
}

/// Returns the end of the run of sound records with this salt that begins at `from`.
fn sound_run_end(window: &mut Window<'_>, from: u64, salt: u64) -> Result<u64, Error> {
    let mut at = from;
    while let Ok(Some(frame)) = sound_record(window, at, Format::Salted(salt))? {
        at += frame.length();
    }
    Ok(at)
}
