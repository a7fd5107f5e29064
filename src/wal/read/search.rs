//! The search for the next sound record after damage in a segment written here, and for the salt
//! of one whose beginning is damaged.
//!
//! The body of a job may be full of bytes that look like records, and each of these must be tried.
//! However many there are, they must not delay startup. So a search computes checksums of full
//! records only up to a limit in proportion to the file. Beyond it, it still finds short records
//! and segment headers, of which there is one in every few KiB.
//!
//! A body may also be full of segment headers. They differ from real ones in the records after
//! them: only real ones are followed by sound records up to the end.

use std::collections::BTreeMap;

use super::{
    reader::{sound_record, verify},
    window::Window,
};
use crate::{
    proto::CRLF,
    wal::{
        Error,
        record::{Format, Frame, HEAD_MAX_BYTES, SALT_AT, SHORT_RECORD_BYTES, SegmentHeader},
    },
};

/// How many bytes of full records are checked in all searches of a segment, for each byte of it. In
/// a segment without hostile bodies it is less than two.
const CHECKED_PER_BYTE: u64 = 64;

/// The most salts that are compared.
const SALTS_MAX: usize = 64;

/// The search for records after damage in one segment.
pub(super) struct Search {
    salt: u64,
    /// How many bytes of full records may still be checked.
    left: u64,
}

impl Search {
    /// A search for records of a segment of `size` bytes with this salt.
    pub(super) fn new(salt: u64, size: u64) -> Self {
        Self { salt, left: size.saturating_mul(CHECKED_PER_BYTE) }
    }

    /// Returns where the next sound record begins, at `offset` or after it.
    pub(super) fn next_record(
        &mut self,
        window: &mut Window<'_>,
        offset: u64,
    ) -> Result<Option<u64>, Error> {
        let mut at = offset;
        while at + (SHORT_RECORD_BYTES as u64) <= window.size {
            let Some(data) = window.first_data(at)? else { break };
            // A record begins with no more than eleven zeros.
            at = at.max(data.saturating_sub(11));
            let frame = Frame::decode(window.at(at, HEAD_MAX_BYTES)?, Format::Plain);
            // Cheap checks come first.
            if let Ok(Some(frame)) = frame.map(|it| it.filter(|it| it.judge(CRLF).is_ok())) {
                let cost = if frame.is_full() { frame.length() } else { 0 };
                let left = self.left.checked_sub(cost);
                if left.is_some() && verify(window, at, &frame, Format::Salted(self.salt))?.is_ok()
                {
                    return Ok(Some(at));
                }
                self.left = left.unwrap_or(self.left);
            }
            at += 1;
        }
        Ok(None)
    }
}

/// Finds the salt of a segment whose first segment header, at `start`, is damaged: with which most
/// of the file is sound. `None` if there is no sign of any.
///
/// `likely` is the salt in what looks like the damaged header. If nothing does, and there is a
/// version, the segment may be the original's, and its bodies may contain segments of this daemon:
/// then the salt must fit more than half of the file after the first sound header.
pub(super) fn find_salt(
    window: &mut Window<'_>,
    start: u64,
    likely: Option<u64>,
    has_version: bool,
) -> Result<Option<u64>, Error> {
    // Each salt, and how many bytes of the file are sound records with it.
    let mut salts: BTreeMap<u64, u64> = BTreeMap::new();
    if let Some(likely) = likely {
        let header = window.at(start, SHORT_RECORD_BYTES)?;
        let salt = correct_salt(header, start).unwrap_or(likely);
        let end = sound_run_end(window, start + SHORT_RECORD_BYTES as u64, salt)?;
        salts.insert(salt, end - start);
    }
    let mut first = None;
    let mut at = start;
    while at + (SHORT_RECORD_BYTES as u64) <= window.size {
        let Some(data) = window.first_data(at)? else { break };
        // A segment header begins with four zeros.
        at = at.max(data.saturating_sub(4));
        let Some(header) = SegmentHeader::at(window.at(at, SHORT_RECORD_BYTES)?, at) else {
            at += 1;
            continue;
        };
        first.get_or_insert(at);
        let end = sound_run_end(window, at, header.salt)?;
        if salts.len() < SALTS_MAX || salts.contains_key(&header.salt) {
            *salts.entry(header.salt).or_default() += end - at;
        }
        at = end.max(at + 1);
    }
    let most = salts.into_iter().max_by_key(|&(_, explained)| explained);
    let last = window.last_data(start)?.unwrap_or(start);
    let written = last + 1 - first.unwrap_or(start);
    let is_ours = likely.is_some() || !has_version;
    Ok(most.filter(|&(_, explained)| is_ours || 2 * explained > written).map(|(salt, _)| salt))
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

/// Returns the end of the run of sound records with this salt that begins at `from`.
fn sound_run_end(window: &mut Window<'_>, from: u64, salt: u64) -> Result<u64, Error> {
    let mut at = from;
    while let Ok(Some(frame)) = sound_record(window, at, Format::Salted(salt))? {
        at += frame.length();
    }
    Ok(at)
}
