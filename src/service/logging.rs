//! Log lines on standard error.
//!
//! The systemd journal gets a priority before each line and adds the time itself. Any other
//! destination gets the time in UTC, and "error" or "warning" on lines of that level.

use std::{
    env,
    io::{self, Write},
    os::fd::AsFd,
    time::Duration,
};

use env_logger::Target;
use log::{Level, LevelFilter, info};

use crate::{clock::Time, sys};

/// The least time between two log lines about the same action of clients.
const THROTTLE_INTERVAL: Duration = Duration::from_secs(5);

/// The most bytes of a line, its end included. If a pipe can take one byte, it can take this many.
const LINE_MAX_BYTES: usize = libc::PIPE_BUF;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `<4>the message`
    Journal,
    /// `2026-11-21T10:11:12.345Z beanstalkd: warning: the message`
    Dated,
}

/// Starts logging: information for the operator; with a `verbosity` of 1, connections as well; from
/// 2 on, commands as well.
pub fn start(verbosity: usize) {
    let level = match verbosity {
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let form = form();
    env_logger::Builder::new()
        .filter_module("beanstalkd", level)
        .format(move |out, record| writeln!(out, "{}{}", form.head(record.level()), record.args()))
        .target(Target::Pipe(Box::new(Lines { to: io::stderr(), form, dropped: 0 })))
        .init();
}

impl Form {
    /// The text before a message.
    fn head(self, level: Level) -> String {
        match self {
            Self::Journal => priority(level).to_owned(),
            Self::Dated => dated(sys::wall_nanoseconds(), level),
        }
    }
}

/// Writes only lines that can be written at once, because clients must not wait for the reader of
/// the log. Other lines are dropped and counted.
///
/// Before each write, the system is asked whether it would block. `O_NONBLOCK` would affect all
/// processes that share the pipe or terminal. If one of these fills it between the question and the
/// write, the daemon waits, too.
struct Lines<W> {
    to: W,
    form: Form,
    dropped: u64,
}

impl<W: Write + AsFd> Lines<W> {
    /// Writes one line, truncated to [`LINE_MAX_BYTES`]. Returns whether it could.
    fn write_line(&mut self, line: &[u8]) -> bool {
        let end = line.len().min(LINE_MAX_BYTES).saturating_sub(1);
        let line = [&line[..end], b"\n"].concat();
        sys::is_writable(&self.to) && self.to.write_all(&line).is_ok()
    }
}

impl<W: Write + AsFd> Write for Lines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.dropped > 0 {
            let (head, dropped) = (self.form.head(Level::Warn), self.dropped);
            let note = format!(
                "{head}log lines dropped, because they could not be written at once: {dropped}\n"
            );
            if self.write_line(note.as_bytes()) {
                self.dropped = 0;
            }
        }
        if self.dropped > 0 || !self.write_line(line) {
            self.dropped += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// In `JOURNAL_STREAM`, the journal gives the device and inode of its stream. If standard error has
/// been redirected, its own differ.
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

/// Formats a number with its noun: `1 job`, `2 jobs`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Logs whether jobs are refused, at most once in `THROTTLE_INTERVAL`, because any client can
/// change that.
#[derive(Debug, Default)]
pub struct DrainLog {
    /// The state in the last log line.
    is_draining: bool,
    silent_until: Time,
}

impl DrainLog {
    /// Logs a change, if it is time.
    pub fn log(&mut self, is_draining: bool, now: Time) {
        if self.next_deadline(is_draining).is_none_or(|at| now < at) {
            return;
        }
        (self.is_draining, self.silent_until) = (is_draining, now + THROTTLE_INTERVAL);
        if is_draining {
            info!("draining: new jobs are refused from now on");
        } else {
            info!("no longer draining: new jobs are accepted again");
        }
    }

    /// When a pending change is to be logged.
    pub fn next_deadline(&self, is_draining: bool) -> Option<Time> {
        (is_draining != self.is_draining).then_some(self.silent_until)
    }
}

/// Limits the log lines about an event that any client can cause as often as it likes.
#[derive(Debug, Default)]
pub struct Throttle {
    /// The number of events since the last log line.
    count: u64,
    /// No line is logged before this instant.
    silent_until: Time,
}

impl Throttle {
    /// Counts one more event. If it is time for another log line, returns the number of events
    /// since the last one.
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
    use std::{io::Read, os::unix::net::UnixStream};

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

    /// If the log is not read, the service would stop.
    #[test]
    fn lines_that_would_wait_for_a_reader_are_dropped_and_counted() {
        let (mut reader, writer) = UnixStream::pair().expect("a pair");
        let mut lines = Lines { to: writer, form: Form::Journal, dropped: 0 };
        let line = [&[b'x'; LINE_MAX_BYTES][..], b"\n"].concat();
        let mut written = 0;
        while lines.dropped < 3 {
            lines.write_all(&line).expect("written or dropped");
            written += 1;
        }
        let mut read = vec![0; (written - 3) * LINE_MAX_BYTES];
        reader.read_exact(&mut read).expect("whole lines");
        assert_eq!(read.split(|&byte| byte == b'\n').count(), written - 2);
        lines.write_all(b"<6>more\n").expect("written");
        drop(lines);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        assert_eq!(
            text,
            "<4>log lines dropped, because they could not be written at once: 3\n<6>more\n"
        );
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
