//! Checks the records of a file, and searches for the next intact record after damage in a segment
//! of this daemon.
//!
//! The body of a job may be full of bytes that look like records, and a search must check each
//! place where a record seems to begin. Such bodies must not delay startup. So the bytes of full
//! records over which the searches in a segment compute checksums are limited in total. Beyond that
//! limit, a search still finds short records, and the segment header after each 16 KiB of records.

use super::window::Window;
use crate::{
    proto::CRLF,
    wal::{
        Error,
        record::{Damage, Format, Frame, HEAD_MAX_BYTES, SHORT_RECORD_BYTES},
    },
};

/// All searches in a segment together compute checksums over at most this many bytes of full
/// records.
pub(super) const CHECKED_MAX_BYTES: u64 = 2 << 30;

/// A value, or damage instead. The outer error is a lack of memory, or an error of the disk.
pub(super) type Verdict<T> = Result<Result<T, Damage>, Error>;

impl Window<'_> {
    /// Reads the frame of the record at `at` in the window; `None` at the end of the records.
    pub(super) fn frame(&mut self, at: u64, format: Format) -> Verdict<Option<Frame>> {
        Ok(Frame::decode(self.at(at, HEAD_MAX_BYTES)?, format))
    }

    /// Returns the frame of the record at `at`, if it is intact; `None` at the end of the records.
    pub(super) fn sound_record(&mut self, at: u64, format: Format) -> Verdict<Option<Frame>> {
        match self.frame(at, format)? {
            Ok(Some(frame)) => Ok(self.verify(at, &frame, format)?.map(|()| Some(frame))),
            end_or_damage => Ok(end_or_damage),
        }
    }

    /// Checks that a record is complete and unchanged since it was written.
    pub(super) fn verify(&mut self, at: u64, frame: &Frame, format: Format) -> Verdict<()> {
        if frame.length() > self.size.saturating_sub(at) {
            return Ok(Err(Damage::Torn));
        }
        let length = frame.head_length + frame.body_length;
        // If the window can hold the whole record, loads all of it, so that it is read only once.
        let bytes = self.at(at, length.min(Window::BYTES))?;
        if let Format::Salted(salt) = format {
            let first = bytes.len().min(length);
            let (mut hasher, wanted) = frame.begin_checksum(&bytes[..first], salt, at);
            self.for_each_part(at + first as u64, length - first, |part| {
                hasher.update(part);
                Ok(())
            })?;
            if hasher.finalize() != wanted {
                return Ok(Err(Damage::Checksum));
            }
        }
        Ok(frame.judge(self.at(at + frame.length() - CRLF.len() as u64, CRLF.len())?))
    }

    /// Searches from `offset` on for a record that is intact with this salt. Returns where that
    /// record begins, and whether the checksum was computed wherever a record seemed to begin
    /// before it. Checks full records of at most `left` bytes in total.
    pub(super) fn next_record(
        &mut self,
        offset: u64,
        salt: u64,
        left: &mut u64,
    ) -> Result<(Option<u64>, bool), Error> {
        let (mut at, mut are_all_checked) = (offset, true);
        while at + (SHORT_RECORD_BYTES as u64) <= self.size {
            let Some(data) = self.first_data(at)? else { break };
            // A record begins with at most eleven zeros, so the next record begins at most eleven
            // bytes before the next byte that is not zero.
            at = at.max(data.saturating_sub(11));
            if let Ok(Some(frame)) = self.frame(at, Format::Plain)? {
                // Cheap checks come first.
                let is_likely = frame.judge(CRLF).is_ok() && frame.length() <= self.size - at;
                let cost = if frame.is_full() { frame.length() } else { 0 };
                if is_likely && cost <= *left {
                    *left -= cost;
                    if self.verify(at, &frame, Format::Salted(salt))?.is_ok() {
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
}
