//! The key of a directory, from which the salts of its segments are made.
//!
//! Every segment header has the key, so one intact header suffices to read all segments. A header
//! is accepted only where a record begins, because a job's body may be full of copies of headers.

use super::{records::CHECKED_MAX_BYTES, replay::go_on, window::Window};
use crate::wal::{
    Error,
    disk::{Disk, Name},
    record::{self, Format, SHORT_RECORD_BYTES, SegmentHeader, VERSION_BYTES},
    segment::PREALLOCATED,
};

/// Where the first header of a segment begins.
pub(super) const START: u64 = VERSION_BYTES as u64;

/// Returns the key, and the name of the file that has the key: the newest segment with an intact
/// header, or else a preallocated file. `None` if no file has a key: the original writes no keys.
pub(super) fn of_directory(
    disk: &mut dyn Disk,
    files: &[(Name, u64)],
) -> Result<Option<(u64, Name)>, Error> {
    let newest_first = || files.iter().rev();
    let segments = newest_first().filter(|(name, _)| matches!(name, Name::Segment(_)));
    let reserve = newest_first().filter(|(name, _)| matches!(name, Name::Preallocated(_)));
    let mut progress = go_on;
    let mut window = Window::new(disk, &mut progress, 0)?;
    for &(name, size) in segments.chain(reserve) {
        let number = if let Name::Segment(number) = name { number } else { PREALLOCATED };
        window.open(name, size)?;
        let first = window.at(START, SHORT_RECORD_BYTES)?;
        let key = match SegmentHeader::at(first, number, START) {
            Some(header) => Some(header.key),
            None if SegmentHeader::is_likely(first) => in_later_header(&mut window, number)?,
            None => None,
        };
        if let Some(key) = key {
            return Ok(Some((key, name)));
        }
    }
    Ok(None)
}

/// Returns the key of a segment whose first header is damaged. This is the `key` of the directory
/// if a record of the segment is valid with that key; if not, it is the key in a later header.
pub(super) fn of_damaged(
    window: &mut Window<'_>,
    number: u32,
    key: Option<u64>,
) -> Result<Option<u64>, Error> {
    if let Some(key) = key {
        let (salt, mut left) = (record::salt(key, number), CHECKED_MAX_BYTES);
        if window.next_record(START, salt, &mut left)?.0.is_some() {
            return Ok(Some(key));
        }
    }
    in_later_header(window, number)
}

/// Returns the key in the next intact header of a segment whose first header is damaged. Finds that
/// header by the lengths of the records before it. If there is a record just before the header, the
/// record's checksum must be right if computed with the header's key.
fn in_later_header(window: &mut Window<'_>, number: u32) -> Result<Option<u64>, Error> {
    let (mut at, mut before) = (START + SHORT_RECORD_BYTES as u64, None);
    while let Ok(Some(frame)) = window.frame(at, Format::Plain)? {
        if let Some(header) = SegmentHeader::at(window.at(at, SHORT_RECORD_BYTES)?, number, at) {
            let format = Format::Salted(record::salt(header.key, number));
            let fits = match before {
                Some(before) => matches!(window.sound_record(before, format)?, Ok(Some(_))),
                None => true,
            };
            if fits {
                return Ok(Some(header.key));
            }
        }
        before = Some(at);
        at += frame.length();
    }
    Ok(None)
}
