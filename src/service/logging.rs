//! Log lines on standard error.
//!
//! The systemd journal gets a priority before each line and adds the time itself. Everything else
//! gets the time in UTC, and the words "error" or "warning" if the line is one.

use std::{
    env,
    io::{self, Write},
    time::Duration,
};

use log::{Level, LevelFilter};

use crate::{clock::Time, sys};

/// The least time between two log lines about the same thing that clients do.
const THROTTLE_INTERVAL: Duration = Duration::from_secs(5);

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `<4>the message`
    Journal,
    /// `2026-11-21T10:11:12.345Z beanstalkd: warning: the message`
    Dated,
}

/// Starts to log: information for the operator, also connections at `verbosity` 1, and commands
/// from 2 on.
pub fn start(verbosity: usize) {
    let level = match verbosity {
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let form = form();
    env_logger::Builder::new()
        .filter_module("beanstalkd", level)
        .format(move |out, record| {
            let head = match form {
                Form::Journal => priority(record.level()).to_owned(),
                Form::Dated => dated(sys::wall_nanoseconds(), record.level()),
            };
            writeln!(out, "{head}{}", record.args())
        })
        .init();
}

/// The journal names its stream by device and inode in `JOURNAL_STREAM`. They differ from those of
/// standard error if that has been redirected.
fn form() -> Form {
    let journal = env::var("JOURNAL_STREAM").ok();
    let is_journal =
        journal.is_some_and(|it| sys::device_and_inode(&io::stderr()).is_ok_and(|own| own == it));
    if is_journal { Form::Journal } else { Form::Dated }
}

/// The numbers are those of syslog.
fn priority(level: Level) -> &'static str {
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

fn dated(nanoseconds: u64, level: Level) -> String {
    let [year, month, day, hour, minute, second] = utc(nanoseconds / 1_000_000_000);
    let milliseconds = nanoseconds / 1_000_000 % 1000;
    let weight = match level {
        Level::Error => "error: ",
        Level::Warn => "warning: ",
        Level::Info | Level::Debug | Level::Trace => "",
    };
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z \
         beanstalkd: {weight}"
    )
}

/// Limits the log lines about an event that any client can cause as often as it likes.
#[derive(Debug, Default)]
pub struct Throttle {
    /// How many events there were since the last log line.
    count: u64,
    /// No line is logged before this instant.
    silent_until: Time,
}

impl Throttle {
    /// Counts one more event. Returns the events since the last log line if it is time for another.
    pub fn pass(&mut self, now: Time) -> Option<u64> {
        self.count += 1;
        if now < self.silent_until {
            return None;
        }
        self.silent_until = now + THROTTLE_INTERVAL;
        Some(std::mem::take(&mut self.count))
    }
}

/// Converts seconds since 1970 to UTC: year, month, day, hour, minute, second.
fn utc(seconds: u64) -> [u64; 6] {
    let mut days = seconds / 86_400;
    let mut year = 1970;
    let days_of_year = |year: u64| 365 + u64::from(is_leap(year));
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let mut month = 1;
    let mut lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    lengths[1] += u64::from(is_leap(year));
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    [year, month, days + 1, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60]
}

fn is_leap(year: u64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_events_are_counted_and_logged_rarely() {
        let (mut throttle, start) = (Throttle::default(), Time::from_nanoseconds(7));
        assert_eq!(throttle.pass(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(throttle.pass(start + THROTTLE_INTERVAL / 2), None);
        }
        assert_eq!(throttle.pass(start + THROTTLE_INTERVAL), Some(1001));
        assert_eq!(throttle.pass(start + THROTTLE_INTERVAL), None);
        assert_eq!(throttle.pass(start + THROTTLE_INTERVAL * 9), Some(2));
    }

    #[test]
    fn dates_are_those_of_the_utc_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z beanstalkd: "),
            (951_827_696_789_000_000, "2000-02-29T12:34:56.789Z beanstalkd: "),
            (1_709_251_200_000_000_000, "2024-03-01T00:00:00.000Z beanstalkd: "),
            (4_102_444_799_999_999_999, "2099-12-31T23:59:59.999Z beanstalkd: "),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000Z beanstalkd: "),
        ];
        for (nanoseconds, wanted) in cases {
            assert_eq!(dated(nanoseconds, Level::Info), wanted);
        }
        assert!(dated(0, Level::Error).ends_with(" beanstalkd: error: "));
        assert!(dated(0, Level::Warn).ends_with(" beanstalkd: warning: "));
    }
}
