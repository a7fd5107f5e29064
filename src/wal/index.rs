//! The index of segments: which segment has the full record of each job, which segment may be
//! removed, and which jobs to relocate.
//!
//! Each job has a *full* record, and perhaps later *short* records with changed fields. A job's
//! full record and last short record are live; all other records are garbage. The index has only
//! the segments of full records: a job's short records are in the same or in newer segments, and
//! segments are removed oldest first. Before a segment is removed, its jobs are relocated, which
//! makes their short records garbage.
//!
//! Invariant: locations are added and removed together with the queue's jobs, so a job and its
//! location have the same index. The fields `live` and `closed` are the sums that
//! [`SegmentIndex::check`] computes.

use std::{collections::BTreeMap, mem, ops::RangeInclusive};

use super::{segment::End, space::SHORT_BYTES};
use crate::{
    collections::{Arena, Growth, Key, Linked, Links, List},
    queue::Job,
};

/// How many bytes a turn may relocate for each byte that commands appended or made garbage.
///
/// Jobs are relocated while garbage exceeds three quarters of the live bytes. In the worst case,
/// the oldest segments have no garbage, and all *l* live bytes must be relocated before any garbage
/// can be removed. Meanwhile, commands turn at most *l*/8 bytes into garbage. So garbage is at most
/// seven eighths of the live bytes: three quarters, and then one eighth more.
pub(super) const GARBAGE_PACE: u64 = 8;

/// The location of a job in the binlog.
#[derive(Debug, Default)]
pub(super) struct Location {
    /// The segment of the job's full record.
    pub(super) segment: u32,
    /// The length of the job's full record, in bytes.
    pub(super) length: u32,
    /// Whether a short record of the job was appended after its full record.
    pub(super) is_updated: bool,
    /// Whether a record of the job is deferred, because there was no disk space for the record.
    pub(super) is_deferred: bool,
    links: Links<Location>,
}

impl Linked for Location {
    /// The links of a job in the list of its segment.
    fn links(&self) -> &Links<Self> {
        &self.links
    }
    /// The links of a job in the list of its segment, which changes them.
    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }
}

/// A segment of the binlog.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// The `N` of the segment's name `binlog.N`.
    pub(super) number: u32,
    /// Bytes in use, from the start of the file.
    pub(super) used: u64,
    /// Bytes of the live full records in the segment.
    pub(super) live: u64,
    /// Whether part of the segment is unreadable. A damaged segment is renamed, not removed.
    pub(super) is_damaged: bool,
    /// The length of the binlog up to the end of the last record that deleted or relocated a job of
    /// this segment.
    pub(super) last_removal_at: u64,
    pub(super) jobs: List<Location>,
}

/// All segments, oldest first, and the location of each job. The last segment is the current one.
#[derive(Debug, Default)]
pub(super) struct SegmentIndex {
    pub(super) locations: Arena<Location>,
    /// The segments by number. A tree grows in small pieces, for which there is always memory.
    pub(super) segments: BTreeMap<u32, Segment>,
    /// Bytes of all live records.
    pub(super) live: u64,
    /// Bytes used in all segments but the current one.
    pub(super) closed: u64,
    /// No job needs a segment below this number; such segments are removed once that is safe.
    pub(super) needed_from: u32,
    /// Bytes used in the segments below `needed_from`.
    pub(super) unneeded_bytes: u64,
    /// The end of the binlog at the last call of [`SegmentIndex::follow`].
    pub(super) end: End,
    /// The number of jobs with a deferred record.
    pub(super) deferred: u64,
    /// Where the search for the next deferred record continues.
    cursor: usize,
    /// After damage or a failure, all jobs in segments up to this number must be relocated.
    pub(super) rewrite_through: u32,
    /// The segments from this number up to `rewrite_through` are *suspect*: on the disk, they may
    /// lack records that the index relies on. Jobs of suspect segments are relocated first.
    pub(super) suspect_from: Option<u32>,
}

/// The most locations that one search for a deferred record visits.
const LOCATIONS_PER_SEARCH: usize = 64 * 1024;

impl SegmentIndex {
    /// Moves the end of the binlog to `end`, after records were appended. If `end` is in a new
    /// segment, that segment becomes the current one.
    pub(super) fn follow(&mut self, end: End) {
        let (number, used) = (end.number, end.used);
        let before = mem::replace(&mut self.end, end);
        if let Some(current) = self.segments.get_mut(&number) {
            current.used = used;
            return;
        }
        self.closed += before.used;
        self.segments.insert(number, Segment { number, used, ..Segment::default() });
        self.count_unneeded();
    }

    /// Moves `needed_from` past the oldest segments that no job needs. O(log segments) on average.
    fn count_unneeded(&mut self) {
        while let Some(segment) = self.oldest_needed().filter(|segment| segment.jobs.is_empty()) {
            let (number, used) = (segment.number, segment.used);
            self.needed_from = number + 1;
            self.unneeded_bytes += used;
        }
    }

    /// Marks a segment as damaged, so that all jobs are relocated.
    pub(super) fn mark_damaged(&mut self, number: u32) {
        self.rewrite_through = self.end.number;
        self.segments.get_mut(&number).expect("it was read").is_damaged = true;
    }

    /// Makes room for [`SegmentIndex::insert`].
    pub(super) fn make_room(&mut self) -> Growth {
        self.locations.make_room()
    }

    /// Adds to the index a new job, whose full record is in the current segment.
    pub(super) fn insert(&mut self, job: Key<Job>, length: u32) {
        let location = self.locations.insert(Location { length, ..Location::default() });
        assert_eq!(location.paired(), job, "jobs and locations are added and removed together");
        self.link(location);
    }

    /// Sets whether the job has a deferred record.
    pub(super) fn set_deferred(&mut self, job: Key<Job>, is_deferred: bool) {
        let before = mem::replace(&mut self.locations[job.paired()].is_deferred, is_deferred);
        self.deferred = self.deferred + u64::from(is_deferred) - u64::from(before);
    }

    /// Returns a job with a deferred record. Each call visits a limited number of locations.
    /// Returns `None` if no visited location has a deferred record; the next call visits later
    /// locations.
    pub(super) fn next_deferred(&mut self) -> Option<Key<Job>> {
        let slots = self.locations.slots();
        let count = slots.min(LOCATIONS_PER_SEARCH);
        let mut visited = (1..=count).map(|step| Key::from_index((self.cursor + step) % slots));
        let found: Option<Key<Location>> =
            visited.find(|&key| self.locations.get(key).is_some_and(|it| it.is_deferred));
        // Further calls return the same job until its record has been appended.
        self.cursor = found.map_or(self.cursor + count, |key| key.index() + slots - 1);
        found.map(Key::paired)
    }

    /// Moves the job to the current segment, which now has a new full record of the job.
    pub(super) fn relocate(&mut self, job: Key<Job>) {
        self.unlink(job.paired());
        self.link(job.paired());
    }

    /// Counts the job's new short record as live, and an older short record as garbage.
    pub(super) fn update(&mut self, job: Key<Job>) {
        self.set_deferred(job, false);
        if !mem::replace(&mut self.locations[job.paired()].is_updated, true) {
            self.live += SHORT_BYTES;
        }
    }

    /// Removes a deleted job from the index.
    pub(super) fn remove(&mut self, job: Key<Job>) {
        self.unlink(job.paired());
        self.locations.remove(job.paired());
    }

    /// Adds a job to the current segment.
    fn link(&mut self, key: Key<Location>) {
        let Self { locations, segments, live, end, .. } = self;
        let segment = segments.get_mut(&end.number).expect("a segment is open");
        locations[key].segment = segment.number;
        let length = u64::from(locations[key].length);
        segment.live += length;
        *live += length;
        segment.jobs.push_back(locations, key);
    }

    /// Removes a job from its segment.
    fn unlink(&mut self, key: Key<Location>) {
        self.set_deferred(key.paired(), false);
        let Location { segment, length, .. } = self.locations[key];
        let segment = self.segments.get_mut(&segment).expect("it has a job");
        segment.jobs.unlink(&mut self.locations, key);
        segment.last_removal_at = self.end.length;
        let length = u64::from(length);
        segment.live -= length;
        self.live -= length;
        if mem::take(&mut self.locations[key].is_updated) {
            self.live -= SHORT_BYTES;
        }
        self.count_unneeded();
    }

    /// Returns how many jobs are in the binlog.
    pub(super) fn jobs(&self) -> u64 {
        self.locations.len() as u64
    }

    /// The bytes used in all segments of the index.
    pub(super) fn used(&self) -> u64 {
        self.closed + self.end.used
    }

    /// The bytes ever appended, plus the bytes that have ever become garbage.
    pub(super) fn changed(&self) -> u64 {
        (2 * self.end.length).saturating_sub(self.live)
    }

    /// Returns where a job's full record is.
    pub(super) fn location(&self, job: Key<Job>) -> &Location {
        &self.locations[job.paired()]
    }

    /// Returns the current segment.
    pub(super) fn current(&self) -> Option<&Segment> {
        self.segments.get(&self.end.number)
    }

    /// Returns the oldest segment, which may be the current one.
    pub(super) fn oldest(&self) -> Option<&Segment> {
        self.segments.values().next()
    }

    /// Returns the job to relocate next, if any. Jobs of suspect segments come first, then jobs of
    /// other segments up to `rewrite_through`. Last come the jobs of the oldest segment that is
    /// needed. They are relocated only while this segment and the closed segments after it are
    /// larger, together, than `1 + eighths / 8` times the live bytes. [`GARBAGE_PACE`] is chosen
    /// for `eighths = 6`.
    pub(super) fn next_relocation(&self, eighths: u64) -> Option<Key<Job>> {
        self.first_suspect().or_else(|| self.first_doubtful()).or_else(|| {
            let used = self.closed - self.unneeded_bytes;
            let oldest = self.oldest_needed().filter(|_| 8 * used > (8 + eighths) * self.live)?;
            oldest.jobs.front().map(Key::paired)
        })
    }

    /// Whether no job needs the oldest segment. False while a job's record is in a suspect segment:
    /// if that record never reached the disk, a restart would use an older record, perhaps in the
    /// oldest segment.
    pub(super) fn is_oldest_unneeded(&self) -> bool {
        let is_unneeded = |oldest: &Segment| oldest.number < self.needed_from;
        self.oldest().is_some_and(is_unneeded) && self.first_suspect().is_none()
    }

    /// Returns the first job in a suspect segment, which may lack records on the disk.
    fn first_suspect(&self) -> Option<Key<Job>> {
        self.first_job_in(self.suspect_from?..=self.rewrite_through)
    }

    /// Returns the first job that must be relocated because of damage or a failure.
    pub(super) fn first_doubtful(&self) -> Option<Key<Job>> {
        self.first_job_in(0..=self.rewrite_through)
    }

    /// Returns the oldest segment that jobs need, unless it is the current one.
    pub(super) fn oldest_needed(&self) -> Option<&Segment> {
        let (_, oldest) = self.segments.range(self.needed_from..self.end.number).next()?;
        Some(oldest)
    }

    /// Among the segments with `numbers`, returns the first job of the first segment that has jobs.
    /// O(log segments + `numbers`).
    fn first_job_in(&self, numbers: RangeInclusive<u32>) -> Option<Key<Job>> {
        let rest = self.segments.range(*numbers.start()..);
        let mut those = rest.take_while(|(number, _)| number <= &numbers.end());
        those.find_map(|(_, segment)| segment.jobs.front()).map(Key::paired)
    }

    /// Removes a closed segment from the index. Panics if a job still needs that segment.
    pub(super) fn drop_closed(&mut self, number: u32) {
        let closed = self.segments.remove(&number).expect("it is there");
        assert!(closed.jobs.is_empty(), "a job still needs segment {number}");
        self.closed -= closed.used;
        if number < self.needed_from {
            self.unneeded_bytes -= closed.used;
        }
    }

    /// Releases one piece of unused memory of the index to the system.
    pub(super) fn release_one(&mut self) -> bool {
        self.locations.release_one()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(jobs: usize) -> (SegmentIndex, Vec<Key<Job>>) {
        let mut index = SegmentIndex::default();
        open(&mut index, 1);
        let keys: Vec<Key<Job>> = (0..jobs).map(Key::from_index).collect();
        for &key in &keys {
            index.insert(key, 100);
            let mut end = index.end;
            end.advance(end.used + 100);
            index.follow(end);
        }
        (index, keys)
    }

    fn open(index: &mut SegmentIndex, number: u32) {
        let mut end = index.end;
        end.open(number);
        index.follow(end);
    }

    #[test]
    fn live_bytes_are_those_of_the_records_that_jobs_need() {
        let (mut index, keys) = index(3);
        index.update(keys[0]);
        index.update(keys[0]);
        assert_eq!(index.live, 300 + SHORT_BYTES, "one short record a job is live");
        index.remove(keys[1]);
        index.check();
        open(&mut index, 2);
        index.relocate(keys[0]);
        assert_eq!(index.live, 200, "a full record replaces the short one, too");
        let segment = |key| index.location(key).segment;
        assert_eq!((segment(keys[0]), segment(keys[2])), (2, 1));
        index.check();
    }

    #[test]
    fn a_segment_is_unneeded_when_its_last_job_has_left() {
        let (mut index, keys) = index(2);
        open(&mut index, 2);
        assert_eq!(index.first_job_in(1..=1), Some(keys[0]));
        assert!(!index.is_oldest_unneeded());
        index.relocate(keys[0]);
        index.remove(keys[1]);
        assert_eq!(index.first_job_in(1..=1), None);
        assert!(index.is_oldest_unneeded());
        index.drop_closed(1);
        assert!(index.oldest_needed().is_none());
        assert_eq!(index.closed, 0);
        index.check();
    }

    /// If a deferred record were never appended, a restart would undo the change of that job.
    #[test]
    fn each_deferred_job_is_found_until_its_record_is_appended() {
        let (mut index, keys) = index(5);
        for key in [keys[1], keys[3], keys[1]] {
            index.set_deferred(key, true);
        }
        let mut found = Vec::new();
        while index.deferred > 0 {
            let job = index.next_deferred().expect("few locations are searched at once");
            found.push(job);
            index.update(job);
            index.check();
        }
        found.sort_unstable();
        assert_eq!(found, [keys[1], keys[3]]);
    }

    #[test]
    fn jobs_are_found_by_the_segments_that_are_suspect() {
        let (mut index, keys) = index(2);
        open(&mut index, 2);
        index.relocate(keys[1]);
        open(&mut index, 3);
        assert_eq!(index.first_job_in(0..=0), None);
        assert_eq!(index.first_job_in(0..=3), Some(keys[0]));
        assert_eq!(index.first_job_in(2..=3), Some(keys[1]));
        assert_eq!(index.first_job_in(3..=9), None);
    }
}
