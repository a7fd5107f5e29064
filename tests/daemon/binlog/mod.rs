//! The binlog of the real daemon on real directories, beside the original, and under faults of
//! disks and processes. doc/hacking.md has the subject of each module.
//!
//! Power cuts and failing disks are simulated in `tests/core/crash.rs`. A test that needs the
//! original, strace or a file system of its own is reported as skipped if these are missing. `make
//! kills` runs `kills` and `growth` for longer.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

mod calls;
mod checks;
mod damage;
mod exchange;
mod files;
mod format;
mod full;
mod growth;
mod kills;
mod losses;
mod shortage;
mod slow;
mod starts;
