//! The binlog of the real daemon on real directories, beside the original, and under faults of
//! disks and processes.
//!
//! | module | what it tells |
//! |---|---|
//! | `exchange` | a directory goes to the original and back; old ones from `fixtures` are read |
//! | `kills` | killed at any instant under load, it has every change that was acknowledged |
//! | `losses` | jobs that crash their workers are buried, also between kills |
//! | `calls` | what is written is synced when the flags say, seen in its system calls |
//! | `full` | a full disk refuses what must be refused and strands no job |
//! | `damage` | of a damaged log, what is intact is kept and nothing is invented |
//! | `files` | names, modes, sizes, the lock, and what else a restart must keep |
//! | `starts` | a start never cuts or retires what it did not understand |
//! | `slow` | a disk whose syncs take seconds: who waits for them, and who does not |
//! | `shortage` | short of memory, descriptors, threads or room, it keeps what was acknowledged |
//! | `growth` | the log of a few busy jobs stays small |
//!
//! Power cuts and failing disks are simulated in `tests/core/crash.rs`. A test that needs the
//! original, strace or a file system of its own says so if these are missing, and is skipped. `make
//! kills` runs `kills` and `growth` for longer.
#![expect(clippy::disallowed_methods, reason = "a real daemon is met in real time")]

mod calls;
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
