//! Reading a directory: from bytes to jobs, at startup and for `--check-binlog`.
//!
//! [`replay`](replay::replay) reads all segments with a [`Reader`](reader::Reader) each, which sees
//! a file through a [`Window`](window::Window) and puts jobs into a [`Sink`](sink::Sink). After
//! damage it finds the next sound record by [`records`], and if the first header of a segment is
//! damaged, the salt by [`key`]. Layouts of other machines and versions are
//! refused by [`formats`]. [`inspect`] reports all of it to the operator.

mod formats;
mod inspect;
mod key;
mod reader;
mod records;
mod replay;
mod sink;
mod window;

pub(super) use self::replay::replay;
pub use self::{
    inspect::{Inspection, inspect},
    replay::{Progress, Report, Restored, SegmentReport, go_on},
};
