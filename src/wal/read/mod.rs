//! Reading a directory: from bytes to jobs, at startup and for `--check-binlog`.
//!
//! [`replay`](replay::replay) reads all segments with a [`Reader`](reader::Reader), which reads
//! each file through a [`Window`](window::Window) and applies records to the queue. After damage,
//! [`records`] finds the next intact record. If the first header of a segment is damaged, [`key`]
//! finds the key that the segment's checksums need. [`formats`] refuses layouts of other machines
//! and versions. [`inspect`] makes a report for the operator.

mod formats;
mod inspect;
mod key;
mod reader;
mod records;
mod replay;
mod window;

pub(super) use self::replay::replay;
pub use self::{
    inspect::{Inspection, inspect},
    replay::{Progress, Report, Restored, SegmentReport, go_on},
};
