//! Log lines on standard error.
//!
//! A line for the systemd journal, which adds the time itself, begins with a priority. Any other
//! line begins with the UTC time and "beanstalkd:"; an error or a warning then has "error:" or
//! "warning:".

use std::{
    env,
    io::{self, Write},
    os::{fd::AsFd, unix::fs::MetadataExt},
    time::Duration,
};

use env_logger::Target;
use log::{Level, LevelFilter, info};

use crate::{clock::Time, sys};

/// The least time between two log lines about an action that clients can repeat.
const THROTTLE_INTERVAL: Duration = Duration::from_secs(5);

/// The longest line in bytes, with its line feed. A writable pipe accepts this many bytes at once.
const LINE_MAX_BYTES: usize = libc::PIPE_BUF;

/// Starts logging: lines for the operator; with a `verbosity` of 1, also lines about connections;
/// from 2 on, also lines about commands.
pub fn start(verbosity: usize) {
    let level = match verbosity {
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let is_journal = is_journal();
    env_logger::Builder::new()
        .filter_module("beanstalkd", level)
        .format(move |out, record| {
            writeln!(out, "{}{}", head(is_journal, record.level()), record.args())
        })
        .target(Target::Pipe(Box::new(Lines { to: io::stderr(), is_journal, dropped: 0 })))
        .init();
}

/// The text before the message of a log line, such as `<4>` or
/// `2026-11-21T10:11:12.345Z beanstalkd: warning: `.
fn head(is_journal: bool, level: Level) -> String {
    // Priorities of syslog.
    let (priority, weight) = match level {
        Level::Error => (3, "error: "),
        Level::Warn => (4, "warning: "),
        Level::Info => (6, ""),
        Level::Debug | Level::Trace => (7, ""),
    };
    if is_journal {
        format!("<{priority}>")
    } else {
        format!("{} beanstalkd: {weight}", date(sys::wall_nanoseconds()))
    }
}

/// Writes a line only if the write does not block, because clients must not wait for the reader of
/// the log. Drops and counts the lines whose write would block.
///
/// Before each write, a call of `poll` finds out whether the write would block. `O_NONBLOCK` is not
/// used, because it would affect all processes that share the pipe or terminal. If another process
/// fills the pipe between the `poll` and the write, the daemon waits.
struct Lines<W> {
    to: W,
    is_journal: bool,
    dropped: u64,
}

impl<W: Write + AsFd> Lines<W> {
    /// Writes one log line, truncated to [`LINE_MAX_BYTES`]. Returns whether the line was written.
    fn write_line(&mut self, line: &[u8]) -> bool {
        let end = line.len().min(LINE_MAX_BYTES).saturating_sub(1);
        let line = [&line[..end], b"\n"].concat();
        sys::is_writable(&self.to) && self.to.write_all(&line).is_ok()
    }
}

impl<W: Write + AsFd> Write for Lines<W> {
    /// Writes a log line, or drops it if the reader is too slow. If lines were dropped before,
    /// first logs their number.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.dropped > 0 {
            let (head, dropped) = (head(self.is_journal, Level::Warn), self.dropped);
            let note = format!(
                "{head}log lines dropped, because the reader of the log was too slow: {dropped}\n"
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

    /// Does nothing: each log line is written at once.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether standard error is the journal's stream: `JOURNAL_STREAM` has the stream's device and
/// inode. If standard error was redirected, it has another device or inode.
#[expect(clippy::disallowed_types, reason = "it is no file of the binlog")]
fn is_journal() -> bool {
    let own = io::stderr().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let own = own.and_then(|file| file.metadata());
    let own = own.map(|own| format!("{}:{}", own.dev(), own.ino()));
    own.is_ok_and(|own| env::var("JOURNAL_STREAM").is_ok_and(|it| it == own))
}

/// Formats a number with its noun for a log line: `1 job`, `2 jobs`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Logs when draining begins and ends, at most one line in `THROTTLE_INTERVAL`, because any client
/// can turn draining on and off.
#[derive(Debug, Default)]
pub struct DrainLog {
    /// The state that the last log line reported.
    is_draining: bool,
    silent_until: Time,
}

impl DrainLog {
    /// Logs the beginning or the end of draining, but not too soon after the last such line.
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

    /// When to log that draining has begun or ended; `None` if this has been logged.
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
    /// Counts one more event. Returns the number of events since the last log line, or `None` if it
    /// is too early for another line.
    pub fn pass(&mut self, now: Time) -> Option<u64> {
        self.count += 1;
        if now < self.silent_until {
            return None;
        }
        self.silent_until = now + THROTTLE_INTERVAL;
        Some(std::mem::take(&mut self.count))
    }
}

/// Formats nanoseconds since 1970 as a date in UTC.
pub fn date(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    // The days since 1 March of the year 0. If each year begins in March, a leap day is always the
    // last day of its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, each group of five months has 153 days.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (400 * era + year + month / 10, (month + 2) % 12 + 1);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let milliseconds = nanoseconds / 1_000_000 % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
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

    /// If the daemon waited for the reader of its log, it would hang if nobody reads the log.
    #[test]
    fn lines_that_would_wait_for_a_reader_are_dropped_and_counted() {
        let (mut reader, writer) = UnixStream::pair().expect("a pair");
        let mut lines = Lines { to: writer, is_journal: true, dropped: 0 };
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
            "<4>log lines dropped, because the reader of the log was too slow: 3\n<6>more\n"
        );
    }

    #[test]
    fn dates_are_those_of_the_utc_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_827_696_789_000_000, "2000-02-29T12:34:56.789Z"),
            (1_709_251_200_000_000_000, "2024-03-01T00:00:00.000Z"),
            (4_102_444_799_999_999_999, "2099-12-31T23:59:59.999Z"),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (nanoseconds, wanted) in cases {
            assert_eq!(date(nanoseconds), wanted);
        }
        for (level, wanted) in
            [(Level::Error, "error: "), (Level::Warn, "warning: "), (Level::Info, "")]
        {
            assert!(head(false, level).ends_with(&format!("Z beanstalkd: {wanted}")));
        }
    }
}
