//! Parses a line into a command, or into the error that the original would report.
//!
//! The original finds the command by the prefix of the line, and then reads the arguments. So a
//! line can begin with a known command and still be malformed. The error reply depends on how far
//! the original reads the line. If a command takes arguments, its prefix ends in a space (except
//! for `pause-tube` and commands that the original does not know). If a command takes no arguments,
//! any byte after its name makes the line malformed (except after `quit`).

use super::{
    Command, JobState, LISTED_JOBS_MAX, NAME_LIMIT, PutHeader, Reply, command::LISTED_JOBS,
};

/// A command; `None` if its line is malformed.
type Parsed<'a> = Option<Command<'a>>;

/// Parses a line, given without its CR LF. `job_size_limit` is the limit that `-z` sets, in bytes.
/// Returns the command and its index among all commands (see [`place`]), or the error reply.
pub fn parse(line: &[u8], job_size_limit: u32) -> Result<(Command<'_>, usize), Reply<'static>> {
    // If two prefixes match a line, such as `reserve-job ` and `reserve`, the earlier one applies.
    let parsed = COMMANDS.iter().enumerate().find_map(|(place, &(prefix, read))| {
        let prefix = prefix.as_bytes();
        // Comparing the first bytes is much cheaper than comparing slices, which calls a function.
        if line.first() != prefix.first() {
            return None;
        }
        let mut arguments = Arguments { rest: line.strip_prefix(prefix)?, job_size_limit };
        let command = read(&mut arguments);
        Some(command.filter(|_| arguments.rest.is_empty()).map(|command| (command, place)))
    });
    match parsed {
        // The parser returns `TooBig` and `Malformed` before it has checked all bytes of the line.
        None | Some(Some((Command::TooBig(_) | Command::Malformed, _))) if has_stray_byte(line) => {
            Err(Reply::BAD_FORMAT)
        }
        None => Err(Reply::UNKNOWN_COMMAND),
        Some(command) => command.ok_or(Reply::BAD_FORMAT),
    }
}

/// Whether a line has a byte that makes any command malformed: NUL, or a CR without LF. After such
/// a CR, the original does not answer any more.
fn has_stray_byte(line: &[u8]) -> bool {
    line.contains(&0) || line.contains(&b'\r')
}

type Read = for<'a> fn(&mut Arguments<'a>) -> Parsed<'a>;

/// Each command: the prefix of its line, and the function that reads its arguments.
const COMMANDS: &[(&str, Read)] = &[
    ("put ", put),
    ("reserve-with-timeout ", reserve_with_timeout),
    ("reserve-with-abort", |_| Some(Command::ReserveWithAbort)),
    ("reserve-job ", |a| a.u64().map(Command::ReserveJob)),
    ("reserve", |_| Some(Command::Reserve(None))),
    ("delete ", |a| a.u64().map(Command::Delete)),
    ("release ", |a| Some(Command::Release { id: a.u64()?, pri: a.u32()?, delay: a.u32()? })),
    ("bury ", |a| Some(Command::Bury { id: a.u64()?, pri: a.u32()? })),
    ("touch ", |a| a.u64().map(Command::Touch)),
    ("use ", |a| a.name().map(Command::Use)),
    ("watch ", |a| a.name().map(Command::Watch)),
    ("ignore ", |a| a.name().map(Command::Ignore)),
    ("peek ", |a| a.u64().map(Command::Peek)),
    ("peek-ready", |_| Some(Command::PeekReady)),
    ("peek-delayed", |_| Some(Command::PeekDelayed)),
    ("peek-buried", |_| Some(Command::PeekBuried)),
    ("kick ", kick),
    ("kick-job ", |a| a.u64().map(Command::KickJob)),
    ("stats-job ", |a| a.u64().map(Command::StatsJob)),
    ("stats-tube ", |a| a.name().map(Command::StatsTube)),
    ("stats", |_| Some(Command::Stats)),
    ("list-tubes-watched", |_| Some(Command::ListTubesWatched)),
    ("list-tube-used", |_| Some(Command::ListTubeUsed)),
    ("list-tubes", |_| Some(Command::ListTubes)),
    ("pause-tube", pause_tube),
    ("capabilities", |_| Some(Command::Capabilities)),
    ("list-jobs", list_jobs),
    ("delete-tube", delete_tube),
    ("drain", drain),
    ("metrics", metrics),
    // Any line that begins with `quit` quits.
    ("quit", |a| a.ignore_rest(Command::Quit)),
];

/// The number of commands.
pub const COMMAND_COUNT: usize = COMMANDS.len();

/// The names of all commands.
pub fn command_names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(prefix, _)| prefix.trim_end())
}

/// The index of a command among all commands. O(commands).
pub fn place(name: &str) -> usize {
    command_names().position(|it| it == name).expect("the name of a command")
}

/// Parses the numbers of a `put`.
fn put<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    let (pri, delay) = (arguments.u32()?, arguments.u32()?);
    let (ttr, size) = (arguments.u32()?, arguments.u32()?);
    if size > arguments.job_size_limit {
        arguments.rest = b"";
        return Some(Command::TooBig(size));
    }
    let is_whole = std::mem::take(&mut arguments.rest).is_empty();
    let header = PutHeader { pri, delay, ttr, size };
    Some(if is_whole { Command::Put(header) } else { Command::Malformed })
}

/// Parses the seconds of a `reserve-with-timeout`. Ignores text after the number, as every version
/// of the original does.
fn reserve_with_timeout<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    let timeout = arguments.u32()?;
    if i32::try_from(timeout).is_err() {
        return None;
    }
    arguments.ignore_rest(Command::Reserve(Some(timeout)))
}

/// Parses the number of a `kick`. The original reads the number of jobs to kick with C's `strtoul`,
/// and keeps the low 32 bits. White space (but no CR) and a sign may precede the number, other text
/// may follow the number, and `-1` kicks all jobs.
fn kick<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    let rest = arguments.rest;
    let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\x0c')).count();
    let rest = &rest[blank..];
    let negative = rest.starts_with(b"-");
    arguments.rest = rest.strip_prefix(b"-").or(rest.strip_prefix(b"+")).unwrap_or(rest);
    if !arguments.rest.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let number = arguments.u64()?;
    let number = if negative { number.wrapping_neg() } else { number };
    let bound = u32::try_from(number & u64::from(u32::MAX)).expect("masked to 32 bits");
    arguments.ignore_rest(Command::Kick(bound))
}

/// Parses the arguments of `pause-tube`. The prefix `pause-tube` does not end in a space, so no
/// space need precede the name. The original counts the command before it checks the whole name, so
/// a wrong name gives `Malformed`.
fn pause_tube<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    arguments.skip_spaces();
    let end = arguments.rest.iter().take_while(|&&byte| is_name_byte(byte)).count();
    let (name, rest) = arguments.rest.split_at(end);
    if name.is_empty() {
        return None;
    }
    arguments.rest = rest;
    let delay = arguments.u32()?;
    Some(tube_name(name).map_or(Command::Malformed, |name| Command::PauseTube { name, delay }))
}

/// Parses the arguments of `list-jobs`. A limit above [`LISTED_JOBS_MAX`] is reduced, not refused,
/// so a client that wants all jobs can give any large number.
fn list_jobs<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    let name = arguments.name_behind_spaces()?;
    let state = arguments.word().and_then(JobState::read)?;
    let limit = if arguments.rest.is_empty() { LISTED_JOBS } else { arguments.u32()? };
    Some(Command::ListJobs { name, state, limit: limit.min(LISTED_JOBS_MAX) })
}

/// Parses the arguments of `delete-tube`.
fn delete_tube<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    let name = arguments.name_behind_spaces()?;
    let state = match arguments.word() {
        Some(word) => Some(JobState::read(word)?),
        None => None,
    };
    if state == Some(JobState::Reserved) {
        return None;
    }
    let last_id = if arguments.rest.is_empty() { u64::MAX } else { arguments.u64()? };
    Some(Command::DeleteTube { name, state, last_id })
}

/// Parses the argument of `drain`.
fn drain<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    match arguments.word() {
        Some(b"on") => Some(Command::Drain(Some(true))),
        Some(b"off") => Some(Command::Drain(Some(false))),
        Some(b"status") => Some(Command::Drain(None)),
        _ => None,
    }
}

/// Parses the argument of `metrics`: the name of a tube, or nothing.
fn metrics<'a>(arguments: &mut Arguments<'a>) -> Parsed<'a> {
    let is_of_all = arguments.rest.is_empty();
    let name = if is_of_all { None } else { Some(arguments.name_behind_spaces()?) };
    Some(Command::Metrics(name))
}

/// The rest of a line after a command's prefix.
#[derive(Debug, Clone, Copy)]
struct Arguments<'a> {
    rest: &'a [u8],
    job_size_limit: u32,
}

impl<'a> Arguments<'a> {
    /// Accepts any text in the rest of the line, unless `has_stray_byte` is true of the text.
    fn ignore_rest(&mut self, command: Command<'a>) -> Parsed<'a> {
        let rest = std::mem::take(&mut self.rest);
        if has_stray_byte(rest) { None } else { Some(command) }
    }

    /// Reads the rest of the line as a tube name. Spaces may precede a number, but not this name.
    fn name(&mut self) -> Option<&'a str> {
        tube_name(std::mem::take(&mut self.rest))
    }

    /// Reads spaces, then the name of a tube.
    fn name_behind_spaces(&mut self) -> Option<&'a str> {
        self.word().and_then(tube_name)
    }

    /// Reads spaces, then a word up to the next space. `None` if there is no space or no word.
    fn word(&mut self) -> Option<&'a [u8]> {
        let spaces = self.rest.iter().take_while(|&&byte| byte == b' ').count();
        let behind = &self.rest[spaces..];
        let length = behind.iter().take_while(|&&byte| byte != b' ').count();
        if spaces == 0 || length == 0 {
            return None;
        }
        let (word, rest) = behind.split_at(length);
        self.rest = rest;
        Some(word)
    }

    /// Reads spaces, then a number up to 2^32 - 1.
    fn u32(&mut self) -> Option<u32> {
        u32::try_from(self.u64()?).ok()
    }

    /// Skips spaces, then reads a number up to 2^64 - 1. Text after the digits stays in `rest`.
    fn u64(&mut self) -> Option<u64> {
        self.skip_spaces();
        let mut number = 0u64;
        let mut digits = 0;
        while let Some(digit) = self.rest.get(digits).filter(|byte| byte.is_ascii_digit()) {
            let digit = u64::from(digit - b'0');
            number = number.checked_mul(10).and_then(|number| number.checked_add(digit))?;
            digits += 1;
        }
        self.rest = &self.rest[digits..];
        if digits == 0 { None } else { Some(number) }
    }

    /// Skips the spaces before an argument.
    fn skip_spaces(&mut self) {
        let spaces = self.rest.iter().take_while(|&&byte| byte == b' ').count();
        self.rest = &self.rest[spaces..];
    }
}

/// Checks a tube name: 1 to 200 letters, digits and `-+/;.$_()`, not starting with `-`.
pub fn tube_name(bytes: &[u8]) -> Option<&str> {
    if is_tube_name(bytes) { std::str::from_utf8(bytes).ok() } else { None }
}

/// Whether these bytes are a legal tube name: see [`tube_name`].
pub fn is_tube_name(bytes: &[u8]) -> bool {
    (1..=NAME_LIMIT).contains(&bytes.len())
        && bytes[0] != b'-'
        && bytes.iter().all(|&byte| is_name_byte(byte))
}

/// Whether the name of a tube may have this byte.
fn is_name_byte(byte: u8) -> bool {
    // `matches!` is fast, which is important because a restart checks the name in each record.
    matches!(byte, b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
        || matches!(byte, b'-' | b'+' | b'/' | b';' | b'.' | b'$' | b'_' | b'(' | b')')
}

#[cfg(test)]
mod tests;
