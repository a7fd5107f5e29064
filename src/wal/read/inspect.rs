//! Reports on a binlog to the operator: segments, jobs and all damage. The inspection changes
//! nothing, so a daemon may use the directory meanwhile.

use std::io;

use super::replay::{self, Report, Restored, go_on};
use crate::{
    clock::{Calendar, Time},
    wal::{
        Error,
        disk::{Disk, Name},
    },
};

/// The findings in a directory.
#[derive(Debug)]
pub struct Inspection {
    /// The jobs, with their bodies.
    pub restored: Restored,
    /// The segments, and all damage.
    pub report: Report,
    /// The files with their sizes in bytes.
    pub files: Vec<(Name, u64)>,
    /// The bytes of all records that jobs need.
    pub live: u64,
}

/// The most attempts to read the directory, if a daemon opens or removes segments meanwhile.
const ATTEMPTS: usize = 20;

/// Makes the report of `--check-binlog`: reads everything that a daemon would read at startup, and
/// changes nothing. Fails if `replay` fails, or if segments appear or vanish during each of 20
/// attempts.
pub fn inspect(disk: &mut dyn Disk, calendar: Calendar, now: Time) -> Result<Inspection, Error> {
    for _ in 0..ATTEMPTS {
        let files = disk.list()?;
        let mut restored = Restored::default();
        let read = replay::replay(disk, &files, &mut restored, calendar, now, &mut go_on);
        // If segments appeared or vanished, jobs that were relocated meanwhile may be missing.
        if names(&files) == names(&disk.list()?) {
            let (report, index) = read?;
            return Ok(Inspection { restored, report, files, live: index.live });
        }
    }
    Err(io::Error::other("the files keep changing while they are read").into())
}

/// The names of all listed files except preallocated files.
fn names(files: &[(Name, u64)]) -> Vec<Name> {
    let names = files.iter().map(|&(name, _)| name);
    names.filter(|name| !matches!(name, Name::Preallocated(_))).collect()
}
