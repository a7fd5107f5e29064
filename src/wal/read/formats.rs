//! Recognises segments of other machine types or other versions, which the daemon cannot read.
//!
//! The original writes its structures as they are laid out in memory; for most machines,
//! [`record`](crate::wal::record) describes this layout. Segments in other layouts are recognised
//! here, so that the daemon refuses to read them, and does not take them for damaged.

use std::ops::RangeInclusive;

use super::window::Window;
use crate::{
    proto::{self, CRLF, NAME_LIMIT},
    wal::{
        Error, Name,
        record::{VERSION, VERSION_5},
    },
};

/// The length in bytes of the fields on 32-bit x86, which aligns 64-bit numbers at four bytes.
const FIELDS_X86_BYTES: usize = 72;

/// The plausible dates of a put: from the year 2000 on, in nanoseconds since 1970. In the usual
/// layout, the body's size and padding are at this place; read as a number, they are smaller than
/// any of these dates.
const WALL_CLOCK_NS: RangeInclusive<u64> = 946_684_800_000_000_000..=i64::MAX.unsigned_abs();

/// Versions that forks of the original may write.
const LATER_VERSIONS: RangeInclusive<u32> = VERSION + 1..=VERSION + 8;

/// The error for a segment of a build before 2.0.0, whose headers have another format.
pub(super) fn of_earlier_build(name: Name) -> Error {
    Error::Foreign(format!(
        "{name}: a build of this daemon before 2.0.0 wrote it, and only such a build can read it: \
         let that build serve its jobs. Nothing has been changed"
    ))
}

/// Fails if the original wrote the segment on a machine with another layout, or if the segment has
/// a later version. At `start`, the caller has found neither a segment header nor an intact record
/// of a known layout.
pub(super) fn refuse(window: &mut Window<'_>, version: u32, start: u64) -> Result<(), Error> {
    let name = window.name;
    let known = [VERSION, VERSION_5];
    let is_flipped = known.iter().any(|known| (version ^ known).is_power_of_two());
    let machine = if LATER_VERSIONS.contains(&version) && !is_flipped {
        return Err(Error::Foreign(format!(
            "{name}: its version is {version}, and this daemon reads only {VERSION_5} and \
             {VERSION}: let the program that wrote it serve its jobs. Nothing has been changed"
        )));
    } else if known.contains(&version.swap_bytes()) {
        "a big-endian machine"
    } else if version == VERSION && begins_as_x86(window, start)? {
        "32-bit x86"
    } else {
        return Ok(());
    };
    Err(Error::Foreign(format!(
        "{name}: the original wrote it on {machine}, and only the original there can read it. \
         Nothing has been changed"
    )))
}

/// Whether the record at `at` has the layout of the original on 32-bit x86. No record of the usual
/// layout passes this check.
pub(super) fn begins_as_x86(window: &mut Window<'_>, at: u64) -> Result<bool, Error> {
    let bytes = window.at(at, 4 + NAME_LIMIT + FIELDS_X86_BYTES)?;
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(false) };
    let name_length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let Some((name, fields)) = rest.split_at_checked(name_length) else { return Ok(false) };
    let Some(fields) = fields.first_chunk::<FIELDS_X86_BYTES>() else { return Ok(false) };
    let body_size = u32::from_le_bytes(fields[28..32].try_into().expect("four bytes"));
    let created = u64::from_le_bytes(fields[32..40].try_into().expect("eight bytes"));
    let has_state = matches!(fields, [.., 0..=4, 0, 0, 0]);
    let is_likely = body_size >= 2 && has_state && WALL_CLOCK_NS.contains(&created);
    if !is_likely || name_length == 0 {
        return Ok(is_likely);
    }
    let next = at + (4 + name_length + FIELDS_X86_BYTES) as u64 + u64::from(body_size);
    Ok(proto::is_tube_name(name)
        && next <= window.size
        && window.at(next - CRLF.len() as u64, CRLF.len())?.starts_with(CRLF))
}
