//! Dates of restored jobs, and how they are kept if the wall clock is set.

use std::time::Duration;

use log::info;

use super::Wal;
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    queue::{Job, Queue},
};

/// How often the wall clock may be set, in the long run, before dates follow it later: each time
/// all delayed and buried jobs are written.
const SHIFT_INTERVAL: Duration = Duration::from_secs(300);

/// How many times it may be set at once, as machines do when they start.
pub const SHIFTS_AT_ONCE_MAX: u32 = 4;

/// The calendar by which the instants of restored jobs stand for their dates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dates {
    calendar: Calendar,
    /// Set after the wall clock was set: jobs below this index follow this new calendar already.
    shift: Option<(Calendar, usize)>,
    /// When as many shifts are allowed at once as ever: [`SHIFT_INTERVAL`] later for each one.
    rested_at: Time,
}

impl Dates {
    pub(super) fn new(calendar: Calendar) -> Self {
        Self { calendar, shift: None, rested_at: Time::default() }
    }

    pub(super) fn of(&self, job: Key<Job>) -> Calendar {
        match self.shift {
            Some((calendar, next)) if job.index() < next => calendar,
            _ => self.calendar,
        }
    }
}

impl Wal {
    /// Tells how the wall clock is set now. If that is a second or more from the calendar in use,
    /// the clock was set, and [`Wal::shift_dates`] has work. Smaller differences are ignored: a job
    /// must have the same date whenever it is written, or jobs would change their order. Until the
    /// shift is done, further changes are ignored too, and so they are while there have been too
    /// many: see [`SHIFTS_AT_ONCE_MAX`].
    pub fn set_calendar(&mut self, calendar: Calendar, now: Time) {
        let may_shift = self.dates.rested_at <= now + (SHIFTS_AT_ONCE_MAX - 1) * SHIFT_INTERVAL;
        let is_shifting = self.is_shifting_dates();
        if may_shift && !is_shifting && self.calendar.is_set_otherwise(calendar) {
            self.dates.rested_at = self.dates.rested_at.max(now) + SHIFT_INTERVAL;
            info!("the wall clock has been set: restored delays end at their dates");
            self.calendar = calendar;
            self.dates.shift = Some((calendar, 0));
        }
    }

    /// Moves the instants of `count` restored jobs to their dates by the new calendar. Nothing is
    /// written for these, because their dates stay. Other jobs that had a delay or are buried get a
    /// new record, because their dates are by the old calendar.
    pub fn shift_dates(&mut self, queue: &mut Queue, count: usize, now: Time) {
        let Some((new, from)) = self.dates.shift else { return };
        let old = self.dates.calendar;
        let mut to_log = Vec::new();
        let shift = |at| new.instant(old.date(at));
        let next = queue.shift_dates(from, count, shift, now, &mut to_log);
        self.dates.shift = next.map(|next| (new, next));
        if next.is_none() {
            self.dates.calendar = new;
        }
        for job in to_log {
            self.update_or_defer(queue, job, now);
        }
    }

    /// Whether [`Wal::shift_dates`] has work.
    pub fn is_shifting_dates(&self) -> bool {
        self.dates.shift.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        SyncPolicy,
        testing::{Fixture, START},
    };
    use super::*;

    /// A clock that is set each second would have all delayed jobs written each second.
    #[test]
    fn dates_follow_the_clock_a_few_times_at_once_and_then_once_in_some_minutes() {
        let Fixture { mut wal, mut restored, .. } = Fixture::new(SyncPolicy::Never);
        let mut begins_shift = |second: u64| {
            let now = START + Duration::from_secs(second);
            let offset = i64::try_from(second).expect("small") * 9_000_000_000;
            wal.set_calendar(Calendar::new(now, 1_700_000_000_000_000_000 + offset), now);
            let begins = wal.is_shifting_dates();
            wal.shift_dates(&mut restored.queue, 1, now);
            begins
        };
        let shifts: Vec<_> = (1..=900).filter(|&second| begins_shift(second)).collect();
        assert_eq!(shifts, [1, 2, 3, 4, 301, 601]);
    }
}
