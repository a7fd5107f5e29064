//! The binlog of the real daemon on real directories, beside the original, and under faults of
//! disks and processes.
//!
//! | module | subject |
//! |---|---|
//! | `exchange` | a directory goes to the original and back; old ones from `fixtures` are read |
//! | `kills` | killed at any instant under load, it keeps every acknowledged change |
//! | `losses` | jobs that crash their workers are buried, also between kills |
//! | `calls` | writes are synced at the times of the flags, as seen in system calls |
//! | `checks` | `--check-binlog` reports whatever prevents a start |
//! | `full` | a full disk refuses only the changes it must, and strands no job |
//! | `damage` | of a damaged log, intact records are kept and none are invented |
//! | `files` | names, modes, sizes, the lock, and everything else that a restart must keep |
//! | `starts` | startup never truncates or removes files that it did not understand |
//! | `slow` | a disk whose syncs take seconds: the clients that wait, and those that do not |
//! | `shortage` | short of memory, descriptors, threads or space, it keeps acknowledged changes |
//! | `growth` | the log of a few busy jobs stays small |
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
