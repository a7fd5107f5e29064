//! Segments of the original in the layout of another machine, or of a later version.
//!
//! The original writes its structures as they are laid out in memory: on most machines, as
//! [`record`](crate::wal::record) describes. The other layouts are recognised here, so that their
//! segments are refused and not taken for damage.

use std::ops::RangeInclusive;

use super::window::Window;
use crate::{
    proto::NAME_LIMIT,
    wal::{
        Error,
        record::{VERSION, VERSION_5},
    },
};

/// The length of the fields on 32-bit x86, which aligns 64-bit numbers at four bytes.
const FIELDS_X86_BYTES: usize = 72;

/// The plausible dates of a put: from 2000 on, in nanoseconds since 1970. In a damaged record of
/// the usual layout, there is a small number in this place.
const WALL_CLOCK_NS: RangeInclusive<u64> = 946_684_800_000_000_000..=i64::MAX.unsigned_abs();

/// Versions that forks of the original may write.
const LATER_VERSIONS: RangeInclusive<u32> = VERSION + 1..=VERSION + 8;

/// Fails if the segment was written by the original on a machine with another layout, or is of a
/// later version. The caller has found neither a segment header nor a sound first record of a known
/// layout at `start`.
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

/// Whether there is a record at `at` as the original lays it out on 32-bit x86: the date of the put
/// is eight bytes nearer to the start than usual. No record of the usual layout looks so.
pub(super) fn begins_as_x86(window: &mut Window<'_>, at: u64) -> Result<bool, Error> {
    let bytes = window.at(at, 4 + NAME_LIMIT + FIELDS_X86_BYTES)?;
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(false) };
    let name_length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let fields = rest.get(name_length..).and_then(|it| it.first_chunk::<FIELDS_X86_BYTES>());
    Ok(fields.is_some_and(|fields| {
        let created = fields[32..40].try_into().expect("eight bytes");
        let has_state = matches!(fields, [.., 0..=4, 0, 0, 0]);
        has_state && WALL_CLOCK_NS.contains(&u64::from_le_bytes(created))
    }))
}
