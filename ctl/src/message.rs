//! Messages on standard error, and errors with a kind.

use std::fmt;
use std::io::{self, Write as _};

use beanstalkd::service::logging::date;
use beanstalkd::sys::wall_nanoseconds;

use crate::address::Address;
use crate::output::inert_text;

/// An error whose kind decides the exit status of a command and the HTTP status of a response.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Arguments that are wrong on every server: exit status 2, HTTP status 400.
    Usage(String),
    /// The state of the server, tube or job forbids the command: exit status 1, HTTP status 409.
    Conflict(String),
}

impl fmt::Display for Refusal {
    /// Formats the text of a refusal.
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

/// Makes an error for a command that the state of the server, tube or job forbids.
pub(crate) fn conflict(text: impl fmt::Display) -> anyhow::Error {
    Refusal::Conflict(text.to_string()).into()
}

/// Describes a state in which a server refuses changes; `None` for other states.
pub(crate) fn describe_trouble(state: &str) -> Option<&'static str> {
    match state {
        "binlog-full" => Some("the binlog of the server is full: free space on its disk"),
        "binlog-failed" => Some("the binlog of the server has failed: see its log"),
        "draining" => Some("the server is draining and accepts no jobs"),
        _ => None,
    }
}

/// Whether the error means wrong arguments.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Refusal::Usage(_)))
}

/// Prints a line on standard error.
pub(crate) fn print_notice(text: &str) {
    // If standard error is closed, there is no other place to report the failure.
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

/// Adds the server's name to an error, unless the error already contains the name.
pub(crate) fn of_server(server: &Address, error: anyhow::Error) -> anyhow::Error {
    let name = server.to_string();
    if format!("{error:#}").contains(&name) { error } else { error.context(name) }
}

/// Whether the error means that the reader has closed standard output.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Formats a number with its noun for a message, such as `1 job` and `2 jobs`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Logs an action in one line on standard error: the time, the server, the client `from` if the web
/// page requested the action, and the result.
pub(crate) fn log_action(server: &Address, from: Option<&str>, done: &str) {
    let from = from.map_or(String::new(), |from| format!(" from {from}"));
    log_line(&format!("{server}{from}: {done}"));
}

/// Logs a line on standard error, with the time.
pub(crate) fn log_line(text: &str) {
    print_notice(&format!("{} {text}", date(wall_nanoseconds())));
}
