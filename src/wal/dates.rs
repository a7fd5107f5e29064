//! Dates: converts the instants of jobs to dates of the wall clock, also after the clock was set.
//! This file also makes the fields of a job's record, because two of these fields are dates.

use std::time::Duration;

use log::info;

use super::record::{JobFields, Kind};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    queue::{History, Job, Queue, State},
};

/// In the long run, two corrections of dates are at least this far apart on average, however often
/// the wall clock is set: each correction writes new records of all jobs delayed or buried in this
/// run.
const SHIFT_INTERVAL: Duration = Duration::from_secs(300);

/// When the clock is set repeatedly, as at boot, this many corrections of dates need not wait.
pub const SHIFTS_AT_ONCE_MAX: u32 = 4;

/// The calendars that convert the instants of jobs into dates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dates {
    /// Converts instants that were set in this run to dates.
    calendar: Calendar,
    /// Converts instants that were computed from dates in the binlog back to these dates.
    restored: Calendar,
    /// For restored jobs with an index below this one, `calendar` is used; for all other restored
    /// jobs, `restored`. `None` if both calendars are the same.
    shifted: Option<usize>,
    /// From this time on, [`SHIFTS_AT_ONCE_MAX`] corrections are again allowed without delay. Each
    /// correction postpones this time by [`SHIFT_INTERVAL`].
    rested_at: Time,
}

impl Dates {
    /// Until the clock is set, all dates are converted by this calendar.
    pub(super) fn new(calendar: Calendar) -> Self {
        Self { calendar, restored: calendar, shifted: None, rested_at: Time::default() }
    }

    /// Returns the fields of a job's record, and converts the job's instants to dates.
    pub(super) fn fields(&self, queue: &Queue, job: Key<Job>) -> JobFields {
        let Job { record, body, dated, .. } = queue.job(job);
        let is_shifted = self.shifted.is_some_and(|next| job.index() < next);
        let restored = if is_shifted { self.calendar } else { self.restored };
        let calendar = |is_dated| if is_dated { restored } else { self.calendar };
        // Does not count the present reservation, because a restart makes a reserved job ready.
        let is_open = u32::from(matches!(record.state, State::Reserved(_)));
        let reserves = record.history.reserves.saturating_sub(is_open);
        let nanoseconds = |seconds: u32| i64::from(seconds) * 1_000_000_000;
        JobFields {
            id: record.id,
            pri: record.pri,
            delay: nanoseconds(record.delay),
            ttr: nanoseconds(record.ttr),
            body_size: i32::try_from(body.len()).expect("a body is at most a gibibyte"),
            created_at: calendar(dated.is_created).date(record.created_at),
            deadline_at: calendar(dated.is_state_at).date(record.state_at),
            history: History { reserves, ..record.history },
            kind: match record.state {
                // By the wall clock, which may be wrong, the delay of this restored job has ended.
                // A restart compares the end of the delay with the wall clock again.
                State::Ready if dated.is_state_at => Kind::Delayed,
                // A restart makes a reserved job ready.
                State::Ready | State::Reserved(_) => Kind::Ready,
                State::Delayed => Kind::Delayed,
                State::Buried => Kind::Buried,
            },
        }
    }

    /// Takes a new calendar if the wall clock has been set, unless the correction of dates must
    /// wait: see [`Wal::set_calendar`](super::Wal::set_calendar).
    pub(super) fn set(&mut self, calendar: Calendar, now: Time) {
        let may_shift = self.rested_at <= now + (SHIFTS_AT_ONCE_MAX - 1) * SHIFT_INTERVAL;
        if may_shift && !self.are_shifting() && self.calendar.is_set_otherwise(calendar) {
            self.rested_at = self.rested_at.max(now) + SHIFT_INTERVAL;
            info!("the wall clock was set: the delays of restored jobs end by the new time");
            self.calendar = calendar;
            self.shifted = Some(0);
        }
    }

    /// Visits up to `count` jobs after the wall clock was set, and recomputes the times that the
    /// binlog has as dates. Returns the jobs whose records need new dates.
    pub(super) fn shift(&mut self, queue: &mut Queue, count: usize, now: Time) -> Vec<Key<Job>> {
        let mut to_log = Vec::new();
        let Some(from) = self.shifted else { return to_log };
        let (old, new) = (self.restored, self.calendar);
        let shift = |at| new.instant(old.date(at));
        self.shifted = queue.shift_dates(from, count, shift, now, &mut to_log);
        if self.shifted.is_none() {
            self.restored = new;
        }
        to_log
    }

    /// Whether [`Dates::shift`] has work to do.
    pub(super) fn are_shifting(&self) -> bool {
        self.shifted.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{
        SyncPolicy,
        disk::testing::{Fixture, START},
    };

    /// If an open reservation were recorded, `--bury-after` might count it as a loss.
    #[test]
    fn a_reservation_is_recorded_once_it_has_ended() {
        let mut binlog = Fixture::new(SyncPolicy::Never);
        let job = binlog.put(10);
        let queue = &mut binlog.restored.queue;
        let client = queue.join();
        let taken = queue.reserve_job(client, job, START);
        taken.expect("there is memory");
        let recorded = |queue: &Queue| binlog.wal.dates.fields(queue, job).history.reserves;
        assert_eq!(recorded(queue), 0);
        queue.bury(job, 0, START);
        assert_eq!(recorded(queue), 1);
    }

    /// If dates were corrected at each change of the clock, all delayed jobs might be recorded each
    /// second.
    #[test]
    fn dates_follow_the_clock_a_few_times_at_once_and_then_once_in_some_minutes() {
        let Fixture { mut wal, mut restored, .. } = Fixture::new(SyncPolicy::Never);
        let mut begins_shift = |second: u64| {
            let now = START + Duration::from_secs(second);
            let offset = i64::try_from(second).expect("small") * 9_000_000_000;
            wal.set_calendar(Calendar::new(now, 1_700_000_000_000_000_000 + offset), now);
            let begins = wal.dates.are_shifting();
            wal.shift_dates(&mut restored.queue, 1, now);
            begins
        };
        let shifts: Vec<_> = (1..=900).filter(|&second| begins_shift(second)).collect();
        assert_eq!(shifts, [1, 2, 3, 4, 301, 601]);
    }
}
