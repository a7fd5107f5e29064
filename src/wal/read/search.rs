//! The search for the next sound record after damage in a segment written here, and for the salt
//! of one whose beginning is damaged.
//!
//! The body of a job may be full of bytes that look like records, and each of these must be tried.
//! However many there are, they must not delay startup. So a search computes checksums of full
//! records only up to a limit. Beyond it, it still finds short records and segment headers, of
//! which there is one in every few KiB.
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

/// How many bytes of full records all searches of a segment check.
pub(super) const CHECKED_MAX_BYTES: u64 = 2 << 30;

/// The most salts that are compared.
const SALTS_MAX: usize = 64;

/// The most bits in which the salts of a damaged segment header and of a later one may differ.
/// Two unrelated salts differ in about 32.
const SALT_FLIPS_MAX: u32 = 8;

/// Returns where the next sound record with this salt begins, at `offset` or after it, and whether
/// all records were checked before that. Checks full records of at most `left` bytes in total.
pub(super) fn next_record(
    window: &mut Window<'_>,
    offset: u64,
    salt: u64,
    left: &mut u64,
) -> Result<(Option<u64>, bool), Error> {
    let (mut at, mut are_all_checked) = (offset, true);
    while at + (SHORT_RECORD_BYTES as u64) <= window.size {
        let Some(data) = window.first_data(at)? else { break };
        // A record begins with no more than eleven zeros.
        at = at.max(data.saturating_sub(11));
        if let Ok(Some(frame)) = Frame::decode(window.at(at, HEAD_MAX_BYTES)?, Format::Plain) {
            // Cheap checks come first.
            let is_likely = frame.judge(CRLF).is_ok() && frame.length() <= window.size - at;
            let cost = if frame.is_full() { frame.length() } else { 0 };
            if is_likely && cost <= *left {
                *left -= cost;
                if verify(window, at, &frame, Format::Salted(salt))?.is_ok() {
                    return Ok((Some(at), are_all_checked));
                }
            } else if is_likely {
                are_all_checked = false;
            }
        }
        at += 1;
    }
    Ok((None, are_all_checked))
}

/// Finds the salt of a segment whose first segment header, at `start`, is damaged. `likely` is the
/// salt in what looks like the damaged header.
///
/// The bodies of jobs may contain whole segments with another salt. So a later header's salt is
/// trusted only if it is close to `likely`. If there is no `likely` one, it is trusted if its
/// header begins where a record does, by the lengths of all records before it; or, without a
/// version, if it fits more than half of the file.
pub(super) fn find_salt(
    window: &mut Window<'_>,
    start: u64,
    likely: Option<u64>,
    has_version: bool,
) -> Result<Option<u64>, Error> {
    // Each salt, and how many bytes of the file are sound records with it.
    let mut salts: BTreeMap<u64, u64> = BTreeMap::new();
    if let Some(likely) = likely {
        if let Some(salt) = correct_salt(window.at(start, SHORT_RECORD_BYTES)?, start) {
            return Ok(Some(salt));
        }
        let behind = start + SHORT_RECORD_BYTES as u64;
        let end = sound_run_end(window, behind, likely)?;
        if end > behind {
            salts.insert(likely, end - behind);
        }
    }
    let (mut at, mut boundary) = (start, start);
    while at + (SHORT_RECORD_BYTES as u64) <= window.size {
        let Some(data) = window.first_data(at)? else { break };
        // A segment header begins with four zeros.
        at = at.max(data.saturating_sub(4));
        let Some(header) = SegmentHeader::at(window.at(at, SHORT_RECORD_BYTES)?, at) else {
            at += 1;
            continue;
        };
        while boundary < at {
            let frame = Frame::decode(window.at(boundary, HEAD_MAX_BYTES)?, Format::Plain);
            boundary = frame.ok().flatten().map_or(u64::MAX, |frame| boundary + frame.length());
        }
        if likely.is_none() && boundary == at {
            return Ok(Some(header.salt));
        }
        let end = sound_run_end(window, at, header.salt)?;
        if salts.len() < SALTS_MAX || salts.contains_key(&header.salt) {
            *salts.entry(header.salt).or_default() += end - at;
        }
        at = end.max(at + 1);
    }
    let written = window.last_data(start)?.map_or(0, |last| last + 1 - start);
    salts.retain(|salt, explained| match likely {
        Some(likely) => (likely ^ salt).count_ones() <= SALT_FLIPS_MAX,
        None => !has_version && 2 * *explained > written,
    });
    let most = salts.into_iter().max_by_key(|&(_, explained)| explained);
    Ok(most.map(|(salt, _)| salt).or(likely))
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
