//! Log lines on standard error, in the form that whoever reads them expects.
//!
//! The journal of systemd gets a priority in front of each line and keeps the time itself;
//! everybody else gets the time, in UTC. Warnings and errors say that they are some.

use std::{
    env,
    io::{self, Write},
    time::Duration,
};

use log::{Level, LevelFilter};

use crate::{clock::Time, sys};

/// How long it is, at least, from one line about what clients do to the next.
const THROTTLE_INTERVAL: Duration = Duration::from_secs(5);

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `<4>the message`
    Journal,
    /// `2026-11-21T10:11:12.345Z beanstalkd: warning: the message`
    Dated,
}

/// Begins to log: what an operator wants to know; connections with one `-V`, commands with more.
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

/// The journal says of which stream it reads by its device and inode, so that a process whose
/// standard error has been sent elsewhere finds out.
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
    let [year, month, day, hour, minute, second] = sys::utc(nanoseconds / 1_000_000_000);
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

/// Something that any client can do as often as it likes, and that is told all the same: seldom
/// enough that no log is filled by it.
#[derive(Debug, Default)]
pub struct Throttle {
    /// How often it has been since it was told.
    count: u64,
    /// It is not told before.
    from: Time,
}

impl Throttle {
    /// It has been once more. How often since it was last told, if it is time to tell it again.
    pub fn pass(&mut self, now: Time) -> Option<u64> {
        self.count += 1;
        if now < self.from {
            return None;
        }
        self.from = now + THROTTLE_INTERVAL;
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_often_is_told_seldom_and_counted() {
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
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z beanstalkd: "),
            (951_827_696_789_000_000, "2000-02-29T12:34:56.789Z beanstalkd: "),
            (4_102_444_799_999_999_999, "2099-12-31T23:59:59.999Z beanstalkd: "),
        ];
        for (nanoseconds, wanted) in cases {
            assert_eq!(dated(nanoseconds, Level::Info), wanted);
        }
        assert!(dated(0, Level::Error).ends_with(" beanstalkd: error: "));
        assert!(dated(0, Level::Warn).ends_with(" beanstalkd: warning: "));
    }
}
