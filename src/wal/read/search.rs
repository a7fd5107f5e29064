//! The search for the next sound record after damage in a segment written here.
//!
//! The body of a job may be full of bytes that look like records, and each of these must be tried.
//! However many there are, they must not delay startup. So a search computes checksums of full
//! records only up to a limit. Beyond it, it still finds short records and segment headers, of
//! which there is one in every few KiB.

use super::window::Window;
use crate::{
    proto::CRLF,
    wal::{
        Error,
        record::{Format, SHORT_RECORD_BYTES},
    },
};

/// How many bytes of full records all searches of a segment check.
pub(super) const CHECKED_MAX_BYTES: u64 = 2 << 30;

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
        if let Ok(Some(frame)) = window.frame(at, Format::Plain)? {
            // Cheap checks come first.
            let is_likely = frame.judge(CRLF).is_ok() && frame.length() <= window.size - at;
            let cost = if frame.is_full() { frame.length() } else { 0 };
            if is_likely && cost <= *left {
                *left -= cost;
                if window.verify(at, &frame, Format::Salted(salt))?.is_ok() {
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
