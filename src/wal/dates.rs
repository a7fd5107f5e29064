//! Dates: instants are recorded as dates of the wall clock, even after that was set. The fields of
//! a job's record are made here, because most of that work is converting instants to dates.

use std::time::Duration;

use log::info;

use super::record::{JobFields, Kind};
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    queue::{History, Job, Queue, State},
};

/// Dates follow changes of the wall clock once in this time on average, because each change causes
/// records of all delayed and buried jobs. If the clock is set more often, dates follow later.
const SHIFT_INTERVAL: Duration = Duration::from_secs(300);

/// How many changes of the clock in quick succession dates follow at once, as at boot.
pub const SHIFTS_AT_ONCE_MAX: u32 = 4;

/// The calendars that convert the instants of jobs into dates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dates {
    /// For jobs put by this daemon.
    calendar: Calendar,
    /// For restored jobs.
    restored: Calendar,
    /// Present after the wall clock was set: restored jobs below this index already follow
    /// `calendar`.
    shifted: Option<usize>,
    /// When [`SHIFTS_AT_ONCE_MAX`] shifts are allowed at once again. Each shift postpones this by
    /// [`SHIFT_INTERVAL`].
    rested_at: Time,
}

impl Dates {
    pub(super) fn new(calendar: Calendar) -> Self {
        Self { calendar, restored: calendar, shifted: None, rested_at: Time::default() }
    }

    /// Returns the fields of a job's record.
    pub(super) fn fields(&self, queue: &Queue, job: Key<Job>) -> JobFields {
        let Job { record, body, dated, .. } = queue.job(job);
        let is_shifted = self.shifted.is_some_and(|next| job.index() < next);
        let restored = if is_shifted { self.calendar } else { self.restored };
        let calendar = |is_dated| if is_dated { restored } else { self.calendar };
        // An open reservation is not counted: after a restart, it is as if it had not begun.
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
                // The delay has ended, provided that the wall clock is right. A restart decides
                // again whether it has.
                State::Ready if dated.is_state_at => Kind::Delayed,
                // A restart makes a reserved job ready.
                State::Ready | State::Reserved(_) => Kind::Ready,
                State::Delayed => Kind::Delayed,
                State::Buried => Kind::Buried,
            },
        }
    }

    /// Takes a new calendar if the wall clock has been set: see
    /// [`Wal::set_calendar`](super::Wal::set_calendar).
    pub(super) fn set(&mut self, calendar: Calendar, now: Time) {
        let may_shift = self.rested_at <= now + (SHIFTS_AT_ONCE_MAX - 1) * SHIFT_INTERVAL;
        if may_shift && !self.are_shifting() && self.calendar.is_set_otherwise(calendar) {
            self.rested_at = self.rested_at.max(now) + SHIFT_INTERVAL;
            info!("the wall clock was set: restored jobs end their delays by the new time");
            self.calendar = calendar;
            self.shifted = Some(0);
        }
    }

    /// Moves the instants of `count` jobs to their dates by the new calendar. Returns the jobs that
    /// need a new record, because their recorded dates are by the old calendar.
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
        testing::{Fixture, START},
    };

    /// Otherwise a restart might count an open reservation as a loss, for `--bury-after`.
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

    /// Otherwise all delayed jobs would be written every second if a clock is set as often.
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
