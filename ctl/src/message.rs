//! Messages on standard error, and errors with a kind.

use std::fmt;
use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::address::Address;
use crate::output::inert_text;

/// An error whose kind decides the exit status of a command and the HTTP status of a response.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Wrong arguments, for any server: exit status 2, HTTP status 400.
    Usage(String),
    /// The state of the server, a tube or a job does not allow it: exit status 1, HTTP status 409.
    Conflict(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::Conflict(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Refusal {}

/// Makes an error for wrong arguments.
pub(crate) fn usage(text: impl fmt::Display) -> anyhow::Error {
    Refusal::Usage(text.to_string()).into()
}

/// Makes an error for a command that the current state does not allow.
pub(crate) fn conflict(text: impl fmt::Display) -> anyhow::Error {
    Refusal::Conflict(text.to_string()).into()
}

/// Whether the arguments are wrong.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Refusal::Usage(_)))
}

/// Prints a line on standard error.
pub(crate) fn print_notice(text: &str) {
    // Standard error may be closed, and there is no other place to report it.
    let _ = writeln!(io::stderr(), "{}", inert_text(text));
}

/// Prints sentences on standard error, one per line.
pub(crate) fn print_notices(sentences: &[String]) {
    for sentence in sentences {
        print_notice(sentence);
    }
}

/// Prints an error on standard error, with all its causes.
pub(crate) fn print_error(error: &anyhow::Error) {
    print_notice(&format!("beanstalkctl: {error:#}"));
}

/// Formats an error with all its causes, and with its server, unless it begins with that.
pub(crate) fn of_server(server: &Address, error: &anyhow::Error) -> String {
    let (server, text) = (server.to_string(), format!("{error:#}"));
    if text.starts_with(&server) { text } else { format!("{server}: {text}") }
}

/// Whether the reader of standard output has closed it.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes a number with its noun: `1 job`, `2 jobs`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Logs an action in one line on standard error: the time, the server, the client of the page if
/// there is one, the action and its count.
pub(crate) fn log_action(server: &Address, from: Option<&str>, done: &str) {
    let from = from.map_or(String::new(), |from| format!(" from {from}"));
    log_line(&format!("{server}{from}: {done}"));
}

/// Logs a line on standard error, with the time.
pub(crate) fn log_line(text: &str) {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    print_notice(&format!("{} {text}", log_timestamp(seconds)));
}

/// Formats seconds since 1970 as `2026-11-23T09:48:06Z`.
fn log_timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86400, seconds % 86400);
    // If years begin in March, a leap day is the last day of its year.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_427_286, "2026-11-23T09:48:06Z"),
        ] {
            assert_eq!(log_timestamp(seconds), expected);
        }
    }
}
