//! Segments of the original whose layout is that of another machine.
//!
//! The original writes its structures as they lie in memory. Most machines lay them out as
//! [`record`](super::record) says. The others are named here, so that a start refuses their
//! segments instead of taking them for damage.

use std::io;

use super::{
    record::{VERSION, VERSION_5},
    window::Window,
};
use crate::proto::{self, CRLF, NAME_LIMIT};

/// The length of the fields on 32-bit x86, which aligns 64-bit numbers at four bytes.
const FIELDS_X86_BYTES: usize = 72;

/// Fails if the segment was written by the original on a machine with another layout. The caller
/// has found neither a segment header nor a sound first record at `start`.
pub(super) fn refuse(window: &mut Window<'_>, version: u32, start: u64) -> io::Result<()> {
    let machine = if [VERSION, VERSION_5].contains(&version.swap_bytes()) {
        "a big-endian machine"
    } else if version == VERSION && begins_as_x86(window, start)? {
        "32-bit x86"
    } else {
        return Ok(());
    };
    let text = format!(
        "the original wrote it on {machine}, and only the original there can read it. Nothing has \
         been changed"
    );
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// Whether a full record of a job stands at `at`, as the original lays it out on 32-bit x86.
fn begins_as_x86(window: &mut Window<'_>, at: u64) -> io::Result<bool> {
    let bytes = window.at(at, 4 + NAME_LIMIT + FIELDS_X86_BYTES)?;
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(false) };
    let name_length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let Some((name, fields)) = rest.split_at_checked(name_length) else { return Ok(false) };
    let Some(fields) = fields.first_chunk::<FIELDS_X86_BYTES>() else { return Ok(false) };
    let body_size = &fields[28..32];
    let &[.., state, 0, 0, 0] = fields else { return Ok(false) };
    let body_size = u32::from_le_bytes(body_size.try_into().expect("four bytes"));
    if proto::tube_name(name).is_none() || state > 4 || body_size < 2 {
        return Ok(false);
    }
    let next = at + (4 + name_length + FIELDS_X86_BYTES) as u64 + u64::from(body_size);
    let mut end = [0; CRLF.len()];
    if next > window.size() {
        return Ok(false);
    }
    window.peek(next - CRLF.len() as u64, &mut end)?;
    Ok(end == CRLF)
}
