//! Dates of restored jobs, and how they are kept if the wall clock is set.

use log::info;

use super::Wal;
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    queue::{Job, Queue},
};

/// The calendar by which the instants of restored jobs stand for their dates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dates {
    calendar: Calendar,
    /// Set after the wall clock was set: jobs below this index follow this new calendar already.
    shift: Option<(Calendar, usize)>,
}

impl Dates {
    pub(super) fn new(calendar: Calendar) -> Self {
        Self { calendar, shift: None }
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
    /// shift is done, further changes are ignored too.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        if self.dates.shift.is_none() && self.calendar.is_set_otherwise(calendar) {
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
        match queue.shift_dates(from, count, shift, now, &mut to_log) {
            Some(next) => self.dates.shift = Some((new, next)),
            None => self.dates = Dates { calendar: new, shift: None },
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
