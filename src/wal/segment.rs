//! The newest segment: its end, and the zeros that are written ahead of its records.
//!
//! A sync is fastest if the new records replace zeros, because the file system then has no metadata
//! to write. So if each change is synced, each turn writes zeros to one more piece of the file,
//! until 1 MiB of zeros follows the last record. If syncs are rarer, the zeros would cost more time
//! than they save, because they double the bytes that are written.

use super::{
    disk::{Name, Writable},
    record::{self, SegmentHeader, VERSION, VERSION_BYTES},
    reserve::Preallocated,
    space::Layout,
};

/// The length of a piece of zeros in bytes. Also the least budget of a turn for relocation and
/// preallocation. The budget is larger if commands append many bytes, or make many bytes garbage.
pub(super) const WORK_PER_TURN_MIN_BYTES: u64 = ZEROS.len() as u64;

pub(super) const ZEROS: &[u8] = &[0; 128 * 1024];

/// The most bytes of zeros that are written ahead of the records.
const ZEROS_AHEAD_BYTES: u64 = 1 << 20;

/// The number from which the salt of a preallocated file's header is made. No segment has number 0.
pub(super) const PREALLOCATED: u32 = 0;

/// Returns the beginning of segment `number`: the version and the first header.
pub(super) fn beginning(number: u32, header: SegmentHeader) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    header.encode(record::salt(header.key, number), VERSION_BYTES as u64, &mut bytes);
    bytes
}

/// The end of the binlog, including records that are not written yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct End {
    /// The number of the newest segment. After a failure, this segment may be abandoned.
    pub(super) number: u32,
    /// The bytes in use in the newest segment.
    pub(super) used: u64,
    /// The bytes ever appended, including those in segments that have been removed.
    pub(super) length: u64,
}

impl End {
    /// The name of the newest segment.
    pub(super) fn name(self) -> Name {
        Name::Segment(self.number)
    }

    /// Moves the end of the binlog to the beginning of segment `number`.
    pub(super) fn open(&mut self, number: u32) {
        (self.number, self.used) = (number, 0);
    }

    /// Moves the end of the binlog to the offset `used` of the newest segment.
    pub(super) fn advance(&mut self, used: u64) {
        self.length += used - self.used;
        self.used = used;
    }
}

/// The newest segment, to which records are appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Current {
    /// The key of the directory.
    key: u64,
    /// The initial value of the segment's checksums.
    pub(super) salt: u64,
    /// After a restart, new jobs get no ids below this one, unless the daemon has shut down
    /// cleanly.
    pub(super) seen_below: u64,
    pub(super) layout: Layout,
    /// The offset up to which zeros were written; after a failed write of zeros, the file's size.
    pub(super) zeroed: u64,
}

impl Current {
    /// Segment `number`, opened in a preallocated file. The next job will get the id `next_id`.
    pub(super) fn new(key: u64, number: u32, next_id: u64, file: Preallocated) -> Self {
        let layout = Layout::new(file.size);
        let seen_below = next_id + layout.puts();
        Self { key, salt: record::salt(key, number), seen_below, layout, zeroed: file.filled }
    }

    /// Returns a header for this segment. The next job will get the id `next_id`.
    pub(super) fn header(&self, next_id: u64) -> SegmentHeader {
        SegmentHeader { key: self.key, next_id, seen_below: self.seen_below }
    }

    /// Returns where to write a piece of zeros, if a piece is due. Only whole pieces are written: a
    /// few zeros with each commit would make each sync write to a second place on the disk.
    pub(super) fn zeros_start(&self, end: End) -> Option<u64> {
        let start = self.zeroed.max(end.used);
        let fits = start + WORK_PER_TURN_MIN_BYTES <= end.used + ZEROS_AHEAD_BYTES;
        (start < self.layout.size && fits).then_some(start)
    }

    /// Writes a piece of zeros ahead of the records, if a piece is due. Ignores an error, because
    /// the write of the next records will fail, too, and that failure is handled.
    pub(super) fn write_zeros(&mut self, disk: &mut Writable, end: End) {
        let Some(start) = self.zeros_start(end) else { return };
        let length = WORK_PER_TURN_MIN_BYTES.min(self.layout.size - start);
        let zeros = &ZEROS[..usize::try_from(length).expect("at most a step")];
        self.zeroed = match disk.write(end.name(), start, zeros) {
            Ok(()) => start + length,
            Err(_) => self.layout.size,
        };
    }
}

#[cfg(test)]
mod tests {
    use crate::wal::{SyncPolicy, disk::testing::Fixture};

    /// If some zeros were written in each turn, each sync would write to two places on the disk.
    #[test]
    fn zeros_are_written_ahead_in_whole_pieces() {
        let mut binlog = Fixture::new(SyncPolicy::EACH_CHANGE);
        binlog.wal.log.reserve.segment_size = 4 << 20;
        while binlog.wal.log.current.is_none_or(|current| current.layout.size < 4 << 20) {
            binlog.put(1000);
            binlog.settle();
        }
        binlog.disk.take_calls();
        for _ in 0..2000 {
            binlog.put(1000);
            binlog.settle();
        }
        let calls = binlog.disk.take_calls();
        let writes = calls.iter().filter(|call| call.starts_with("write binlog")).count();
        // 2,000 writes are of records (two megabytes in total), and about sixteen writes are of
        // zeros.
        assert!((2010..2030).contains(&writes), "{writes}");
        let log = &binlog.wal.log;
        assert!(log.current.expect("there is one").zeroed > log.end.used);
    }
}
