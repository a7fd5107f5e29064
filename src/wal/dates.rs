//! Dates of restored jobs, while the wall clock may be set.

use log::info;

use super::Wal;
use crate::{
    clock::{Calendar, Time},
    collections::Key,
    queue::{Job, Queue},
};

/// By which calendar the instants of restored jobs stand for their dates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dates {
    calendar: Calendar,
    /// The wall clock has been set: those of jobs below this index follow this calendar already.
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
    /// The calendar as it is set now. The one in use stays as long as it is right to the second:
    /// a job's date must be the same whenever it is written, or jobs would change places. If it is
    /// not, the wall clock has been set: [`Wal::shift_dates`] has something to do. Until that is
    /// done, another step is not heeded.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        if self.dates.shift.is_none() && self.calendar.is_set_otherwise(calendar) {
            info!("the wall clock has been set: restored delays end at their dates");
            self.calendar = calendar;
            self.dates.shift = Some((calendar, 0));
        }
    }

    /// Moves the instants of so many restored jobs to where their dates lie by the calendar that is
    /// set now, and has the dates written anew of other delayed jobs. Nothing is written for
    /// restored jobs: their dates stay what they are.
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

    /// Whether [`Wal::shift_dates`] has something to do.
    pub fn is_shifting_dates(&self) -> bool {
        self.dates.shift.is_some()
    }
}
