//! Parses a line into a command, or into the error that the original would report.
//!
//! The original finds the command by its prefix and then reads the arguments. So a line may begin
//! with a known command and still be malformed, and the error depends on how far the original
//! reads. If a command takes arguments, its prefix ends in a space (except for `pause-tube` and
//! commands that the original does not know). If it takes none, any byte after its name makes the
//! line malformed.

use std::{error::Error, fmt};

use super::{
    Command, Drain, IdleState, JobState, LISTED_JOBS_MAX, NAME_LIMIT, PutHeader, Verb,
    command::LISTED_JOBS,
};

/// Why a line is not a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// The line begins with no known command.
    UnknownCommand,
    /// The command is known, but its arguments are malformed. If there is a verb, `stats` counts
    /// the command nevertheless, because the original counts it before it finds the error.
    BadFormat(Option<Verb>),
    /// A `put` of this many bytes, more than the limit. The body and its CR LF still follow.
    JobTooBig(u32),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownCommand => "unknown command",
            Self::BadFormat(_) => "malformed arguments",
            Self::JobTooBig(_) => "the job is too big",
        })
    }
}

impl Error for ParseError {}

const BAD_FORMAT: ParseError = ParseError::BadFormat(None);

type Parsed<'a> = Result<Command<'a>, ParseError>;

/// Parses a line, given without its CR LF. `job_size_limit` is the limit that `-z` sets, in bytes.
/// Also returns the verb that is counted, if one is.
pub fn parse(line: &[u8], job_size_limit: u32) -> Result<(Command<'_>, Option<Verb>), ParseError> {
    // The order matters if one prefix begins with another.
    let parsed = COMMANDS.iter().find_map(|&(prefix, verb, read)| {
        let rest = line.strip_prefix(prefix.as_bytes())?;
        Some(read(Arguments { rest, job_size_limit }).map(|command| (command, verb)))
    });
    match parsed {
        // It has no such byte, because each of its bytes has been read.
        Some(Ok(parsed)) => Ok(parsed),
        _ if has_stray_byte(line) => Err(BAD_FORMAT),
        Some(error) => error,
        None => Err(ParseError::UnknownCommand),
    }
}

/// Whether a line has a byte that makes it malformed, whatever the command. At a lone CR the
/// original stops answering; a line with NUL is malformed there, too.
fn has_stray_byte(line: &[u8]) -> bool {
    line.contains(&0) || line.contains(&b'\r')
}

type Read = for<'a> fn(Arguments<'a>) -> Parsed<'a>;

/// Each command: the prefix of its line, and the verb that `stats` or `metrics` counts.
/// `reserve-job`, `kick-job` and `quit` are not counted, as in the original; nor are commands that
/// the original does not know, because they would add keys.
const COMMANDS: &[(&str, Option<Verb>, Read)] = &[
    ("put ", Some(Verb::Put), put),
    ("reserve-with-timeout ", Some(Verb::ReserveWithTimeout), reserve_with_timeout),
    ("reserve-with-abort", Some(Verb::ReserveWithAbort), |a| a.nothing(Command::ReserveWithAbort)),
    ("reserve-job ", None, |a| a.only_id().map(Command::ReserveJob)),
    ("reserve", Some(Verb::Reserve), |a| a.nothing(Command::Reserve(None))),
    ("delete ", Some(Verb::Delete), |a| a.only_id().map(Command::Delete)),
    ("release ", Some(Verb::Release), release),
    ("bury ", Some(Verb::Bury), bury),
    ("touch ", Some(Verb::Touch), |a| a.only_id().map(Command::Touch)),
    ("use ", Some(Verb::Use), |a| a.only_name().map(Command::Use)),
    ("watch ", Some(Verb::Watch), |a| a.only_name().map(Command::Watch)),
    ("ignore ", Some(Verb::Ignore), |a| a.only_name().map(Command::Ignore)),
    ("peek ", Some(Verb::Peek), |a| a.only_id().map(Command::Peek)),
    ("peek-ready", Some(Verb::PeekReady), |a| a.nothing(Command::PeekReady)),
    ("peek-delayed", Some(Verb::PeekDelayed), |a| a.nothing(Command::PeekDelayed)),
    ("peek-buried", Some(Verb::PeekBuried), |a| a.nothing(Command::PeekBuried)),
    ("kick ", Some(Verb::Kick), kick),
    ("kick-job ", None, |a| a.only_id().map(Command::KickJob)),
    ("stats-job ", Some(Verb::StatsJob), |a| a.only_id().map(Command::StatsJob)),
    ("stats-tube ", Some(Verb::StatsTube), |a| a.only_name().map(Command::StatsTube)),
    ("stats", Some(Verb::Stats), |a| a.nothing(Command::Stats)),
    ("list-tubes-watched", Some(Verb::ListTubesWatched), |a| a.nothing(Command::ListTubesWatched)),
    ("list-tube-used", Some(Verb::ListTubeUsed), |a| a.nothing(Command::ListTubeUsed)),
    ("list-tubes", Some(Verb::ListTubes), |a| a.nothing(Command::ListTubes)),
    ("pause-tube", Some(Verb::PauseTube), pause_tube),
    ("capabilities", None, |a| a.nothing(Command::Capabilities)),
    ("list-jobs", None, list_jobs),
    ("delete-tube", None, delete_tube),
    ("drain", None, drain),
    ("metrics", None, metrics),
    // This is a prefix, too: `quitting` quits.
    ("quit", None, |a| a.ignore_rest(Command::Quit)),
];

impl Verb {
    /// The names in the protocol, in order. O(commands).
    pub fn names() -> [&'static str; Self::COUNT] {
        let mut names = [""; Self::COUNT];
        for &(prefix, verb, _) in COMMANDS {
            if let Some(verb) = verb {
                names[verb as usize] = prefix.trim_end();
            }
        }
        names
    }
}

fn put(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let pri = arguments.u32()?;
    let delay = arguments.u32()?;
    let ttr = arguments.u32()?;
    let size = arguments.u32()?;
    if size > arguments.job_size_limit {
        return Err(ParseError::JobTooBig(size));
    }
    let header = PutHeader { pri, delay, ttr, size };
    arguments.end().map_err(|_| ParseError::BadFormat(Some(Verb::Put)))?;
    Ok(Command::Put(header))
}

/// Ignores text after the number, as every version of the original does.
fn reserve_with_timeout(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let timeout = arguments.u32()?;
    if i32::try_from(timeout).is_err() {
        return Err(BAD_FORMAT);
    }
    arguments.ignore_rest(Command::Reserve(Some(timeout)))
}

fn release(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let id = arguments.u64()?;
    let pri = arguments.u32()?;
    let delay = arguments.u32()?;
    arguments.end()?;
    Ok(Command::Release { id, pri, delay })
}

fn bury(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let id = arguments.u64()?;
    let pri = arguments.u32()?;
    arguments.end()?;
    Ok(Command::Bury { id, pri })
}

/// The original reads this number, and no other, with C's `strtoul`, and keeps its low 32 bits.
/// White space and a sign may precede it, anything may follow it, and `-1` kicks all jobs.
fn kick(arguments: Arguments<'_>) -> Parsed<'_> {
    let rest = arguments.rest;
    if has_stray_byte(rest) {
        return Err(BAD_FORMAT);
    }
    let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let rest = &rest[blank..];
    let negative = rest.starts_with(b"-");
    let rest = rest.strip_prefix(b"-").or(rest.strip_prefix(b"+")).unwrap_or(rest);
    let mut arguments = Arguments { rest, ..arguments };
    if !rest.first().is_some_and(u8::is_ascii_digit) {
        return Err(BAD_FORMAT);
    }
    let number = arguments.u64()?;
    let number = if negative { number.wrapping_neg() } else { number };
    let bound = u32::try_from(number & u64::from(u32::MAX)).expect("masked to 32 bits");
    Ok(Command::Kick(bound))
}

/// The prefix has no space at its end, so the line need not have one. The original counts the
/// command before it checks the whole name.
fn pause_tube(mut arguments: Arguments<'_>) -> Parsed<'_> {
    arguments.skip_spaces();
    let end = arguments.rest.iter().take_while(|&&byte| is_name_byte(byte)).count();
    let (name, rest) = arguments.rest.split_at(end);
    if name.is_empty() {
        return Err(BAD_FORMAT);
    }
    arguments.rest = rest;
    let delay = arguments.u32()?;
    arguments.end()?;
    let name = tube_name(name).ok_or(ParseError::BadFormat(Some(Verb::PauseTube)))?;
    Ok(Command::PauseTube { name, delay })
}

/// A limit above [`LISTED_JOBS_MAX`] is accepted, so that a client can ask for all jobs.
fn list_jobs(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let name = arguments.name_behind_spaces()?;
    let state = arguments.word().and_then(JobState::read).ok_or(BAD_FORMAT)?;
    let limit = if arguments.rest.is_empty() { LISTED_JOBS } else { arguments.u32()? };
    arguments.end()?;
    Ok(Command::ListJobs { name, state, limit: limit.min(LISTED_JOBS_MAX) })
}

fn delete_tube(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let name = arguments.name_behind_spaces()?;
    let state = match arguments.word() {
        None => None,
        Some(word) => Some(IdleState::read(word).ok_or(BAD_FORMAT)?),
    };
    let last_id = if arguments.rest.is_empty() { u64::MAX } else { arguments.u64()? };
    arguments.end()?;
    Ok(Command::DeleteTube { name, state, last_id })
}

fn drain(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let drain = match arguments.word() {
        Some(b"on") => Drain::On,
        Some(b"off") => Drain::Off,
        Some(b"status") => Drain::Status,
        _ => return Err(BAD_FORMAT),
    };
    arguments.end()?;
    Ok(Command::Drain(drain))
}

fn metrics(mut arguments: Arguments<'_>) -> Parsed<'_> {
    let tube = if arguments.rest.is_empty() { None } else { Some(arguments.name_behind_spaces()?) };
    arguments.end()?;
    Ok(Command::Metrics(tube))
}

/// The rest of a line after a command's prefix.
#[derive(Debug, Clone, Copy)]
struct Arguments<'a> {
    rest: &'a [u8],
    job_size_limit: u32,
}

impl<'a> Arguments<'a> {
    fn nothing(self, command: Command<'a>) -> Parsed<'a> {
        self.end().map(|()| command)
    }

    fn ignore_rest(self, command: Command<'a>) -> Parsed<'a> {
        if has_stray_byte(self.rest) { Err(BAD_FORMAT) } else { Ok(command) }
    }

    fn only_id(mut self) -> Result<u64, ParseError> {
        let id = self.u64()?;
        self.end().map(|()| id)
    }

    /// Unlike a number, a name may not be preceded by further spaces.
    fn only_name(self) -> Result<&'a str, ParseError> {
        tube_name(self.rest).ok_or(BAD_FORMAT)
    }

    fn name_behind_spaces(&mut self) -> Result<&'a str, ParseError> {
        self.word().and_then(tube_name).ok_or(BAD_FORMAT)
    }

    /// Reads at least one space, then bytes up to the next space. `None` if either is missing.
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

    fn u32(&mut self) -> Result<u32, ParseError> {
        u32::try_from(self.u64()?).map_err(|_| BAD_FORMAT)
    }

    /// Reads spaces, then a number up to 2^64 - 1. Text after the digits stays.
    fn u64(&mut self) -> Result<u64, ParseError> {
        self.skip_spaces();
        let mut number = 0u64;
        let mut digits = 0;
        while let Some(digit) = self.rest.get(digits).filter(|byte| byte.is_ascii_digit()) {
            let digit = u64::from(digit - b'0');
            number = number
                .checked_mul(10)
                .and_then(|number| number.checked_add(digit))
                .ok_or(BAD_FORMAT)?;
            digits += 1;
        }
        self.rest = &self.rest[digits..];
        if digits == 0 { Err(BAD_FORMAT) } else { Ok(number) }
    }

    fn skip_spaces(&mut self) {
        let spaces = self.rest.iter().take_while(|&&byte| byte == b' ').count();
        self.rest = &self.rest[spaces..];
    }

    fn end(&self) -> Result<(), ParseError> {
        if self.rest.is_empty() { Ok(()) } else { Err(BAD_FORMAT) }
    }
}

/// Checks a tube name: 1 to 200 letters, digits and `-+/;.$_()`, not starting with `-`.
pub fn tube_name(bytes: &[u8]) -> Option<&str> {
    let legal = (1..=NAME_LIMIT).contains(&bytes.len())
        && bytes[0] != b'-'
        && bytes.iter().all(|&byte| is_name_byte(byte));
    if legal { std::str::from_utf8(bytes).ok() } else { None }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&byte)
}

#[cfg(test)]
mod tests;
