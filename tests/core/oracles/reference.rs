//! A second parser of lines: no table, and every number as text. This parser shares only the types
//! of commands with the daemon's parser, so that no mistake is made twice.

use beanstalkd::proto::{Command, JobState, PutHeader, Reply};

type Error = Reply<'static>;

const BAD: Error = Reply::BAD_FORMAT;

/// Reads a line, given without its CR LF.
pub(crate) fn read(line: &[u8], job_size_limit: u32) -> Result<Command<'_>, Error> {
    if line.contains(&0) || line.contains(&b'\r') {
        return Err(BAD);
    }
    if let Some(rest) = behind(line, "put ") {
        let (pri, rest) = number32(rest)?;
        let (delay, rest) = number32(rest)?;
        let (ttr, rest) = number32(rest)?;
        let (size, rest) = number32(rest)?;
        if size > job_size_limit {
            return Ok(Command::TooBig(size));
        }
        if !rest.is_empty() {
            return Ok(Command::Malformed);
        }
        return Ok(Command::Put(PutHeader { pri, delay, ttr, size }));
    }
    if let Some(rest) = behind(line, "reserve-with-timeout ") {
        let (timeout, _) = number32(rest)?;
        return if timeout < 1 << 31 { Ok(Command::Reserve(Some(timeout))) } else { Err(BAD) };
    }
    if let Some(rest) = behind(line, "release ") {
        let (id, rest) = number64(rest)?;
        let (pri, rest) = number32(rest)?;
        let (delay, rest) = number32(rest)?;
        return if rest.is_empty() { Ok(Command::Release { id, pri, delay }) } else { Err(BAD) };
    }
    if let Some(rest) = behind(line, "bury ") {
        let (id, rest) = number64(rest)?;
        let (pri, rest) = number32(rest)?;
        return if rest.is_empty() { Ok(Command::Bury { id, pri }) } else { Err(BAD) };
    }
    if let Some(rest) = behind(line, "kick-job ") {
        return only_id(rest).map(Command::KickJob);
    }
    if let Some(rest) = behind(line, "kick ") {
        return kick(rest);
    }
    if let Some(rest) = behind(line, "reserve-job ") {
        return only_id(rest).map(Command::ReserveJob);
    }
    if let Some(rest) = behind(line, "delete ") {
        return only_id(rest).map(Command::Delete);
    }
    if let Some(rest) = behind(line, "touch ") {
        return only_id(rest).map(Command::Touch);
    }
    if let Some(rest) = behind(line, "peek ") {
        return only_id(rest).map(Command::Peek);
    }
    if let Some(rest) = behind(line, "stats-job ") {
        return only_id(rest).map(Command::StatsJob);
    }
    if let Some(rest) = behind(line, "use ") {
        return name(rest).map(Command::Use);
    }
    if let Some(rest) = behind(line, "watch ") {
        return name(rest).map(Command::Watch);
    }
    if let Some(rest) = behind(line, "ignore ") {
        return name(rest).map(Command::Ignore);
    }
    if let Some(rest) = behind(line, "stats-tube ") {
        return name(rest).map(Command::StatsTube);
    }
    if let Some(rest) = behind(line, "pause-tube") {
        return pause(rest);
    }
    for known in ["list-jobs", "delete-tube", "drain", "metrics"] {
        if let Some(rest) = behind(line, known) {
            return extension(known, rest);
        }
    }
    if line.starts_with(b"quit") {
        return Ok(Command::Quit);
    }
    match line {
        b"reserve" => Ok(Command::Reserve(None)),
        b"reserve-with-abort" => Ok(Command::ReserveWithAbort),
        b"peek-ready" => Ok(Command::PeekReady),
        b"peek-delayed" => Ok(Command::PeekDelayed),
        b"peek-buried" => Ok(Command::PeekBuried),
        b"stats" => Ok(Command::Stats),
        b"list-tubes" => Ok(Command::ListTubes),
        b"list-tube-used" => Ok(Command::ListTubeUsed),
        b"capabilities" => Ok(Command::Capabilities),
        b"list-tubes-watched" => Ok(Command::ListTubesWatched),
        _ => Err(unread(line)),
    }
}

/// Reads a command that the original does not know. Spaces precede each argument.
fn extension<'a>(command: &str, rest: &'a [u8]) -> Result<Command<'a>, Error> {
    let text = std::str::from_utf8(rest).map_err(|_| BAD)?;
    if (command, text) == ("metrics", "") {
        return Ok(Command::Metrics(None));
    }
    if !text.starts_with(' ') || text.ends_with(' ') {
        return Err(BAD);
    }
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    let tube = || name(words[0].as_bytes());
    let state = |word: &str| match word {
        "ready" => Ok(JobState::Ready),
        "delayed" => Ok(JobState::Delayed),
        "buried" => Ok(JobState::Buried),
        "reserved" => Ok(JobState::Reserved),
        _ => Err(BAD),
    };
    let idle = |word: &str| match word {
        "ready" => Ok(JobState::Ready),
        "delayed" => Ok(JobState::Delayed),
        "buried" => Ok(JobState::Buried),
        _ => Err(BAD),
    };
    match (command, &words[..]) {
        ("list-jobs", [_, it]) => {
            Ok(Command::ListJobs { name: tube()?, state: state(it)?, limit: 100 })
        }
        ("list-jobs", [_, it, limit]) => {
            let (limit, after) = number32(limit.as_bytes())?;
            if !after.is_empty() {
                return Err(BAD);
            }
            let limit = limit.min(10_000);
            Ok(Command::ListJobs { name: tube()?, state: state(it)?, limit })
        }
        ("delete-tube", [_]) => {
            Ok(Command::DeleteTube { name: tube()?, state: None, last_id: u64::MAX })
        }
        ("delete-tube", [_, it]) => {
            Ok(Command::DeleteTube { name: tube()?, state: Some(idle(it)?), last_id: u64::MAX })
        }
        ("delete-tube", [_, it, last]) => {
            let (last_id, after) = number64(last.as_bytes())?;
            if !after.is_empty() {
                return Err(BAD);
            }
            Ok(Command::DeleteTube { name: tube()?, state: Some(idle(it)?), last_id })
        }
        ("metrics", [_]) => Ok(Command::Metrics(Some(tube()?))),
        ("drain", ["on"]) => Ok(Command::Drain(Some(true))),
        ("drain", ["off"]) => Ok(Command::Drain(Some(false))),
        ("drain", ["status"]) => Ok(Command::Drain(None)),
        _ => Err(BAD),
    }
}

/// Whether the first line of a connection is HTTP: a word in upper case and an address, or three
/// words, the last of which is an HTTP version. If a line is too long, only its beginning is given.
pub(crate) fn is_http(line: &[u8], is_whole: bool) -> bool {
    let text = String::from_utf8_lossy(line);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [method, target, ..] = words[..] else { return false };
    let names_it = words.get(2).is_some_and(|third| third.starts_with("HTTP/"));
    if method.chars().any(|c| !c.is_ascii_uppercase() && c != '-') {
        return is_whole && names_it;
    }
    names_it || method == "CONNECT" || target.contains(['/', '*', ':', '.'])
}

/// A command without arguments is recognised by its beginning, and malformed if anything follows
/// it.
fn unread(line: &[u8]) -> Error {
    let known = [
        "reserve",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
        "stats",
        "list-tubes",
        "list-tube-used",
        "capabilities",
    ];
    if known.iter().any(|known| line.starts_with(known.as_bytes())) {
        BAD
    } else {
        Reply::UNKNOWN_COMMAND
    }
}

fn behind<'a>(line: &'a [u8], beginning: &str) -> Option<&'a [u8]> {
    if line.starts_with(beginning.as_bytes()) { Some(&line[beginning.len()..]) } else { None }
}

fn without_spaces(mut rest: &[u8]) -> &[u8] {
    while !rest.is_empty() && rest[0] == b' ' {
        rest = &rest[1..];
    }
    rest
}

/// Reads spaces, then digits. A number is too large if it has more digits than the largest one, or
/// as many digits and sorts after the largest one as text.
fn digits<'a>(rest: &'a [u8], largest: &str) -> Result<(u64, &'a [u8]), Error> {
    let rest = without_spaces(rest);
    let mut length = 0;
    while length < rest.len() && rest[length].is_ascii_digit() {
        length += 1;
    }
    if length == 0 {
        return Err(BAD);
    }
    let text = std::str::from_utf8(&rest[..length]).expect("digits are text");
    let text = text.trim_start_matches('0');
    if text.len() > largest.len() || text.len() == largest.len() && text > largest {
        return Err(BAD);
    }
    let number = if text.is_empty() { 0 } else { text.parse().expect("it is not too large") };
    Ok((number, &rest[length..]))
}

fn number64(rest: &[u8]) -> Result<(u64, &[u8]), Error> {
    digits(rest, "18446744073709551615")
}

fn number32(rest: &[u8]) -> Result<(u32, &[u8]), Error> {
    let (number, rest) = digits(rest, "4294967295")?;
    Ok((number.try_into().expect("it is not too large"), rest))
}

fn only_id(rest: &[u8]) -> Result<u64, Error> {
    let (id, rest) = number64(rest)?;
    if rest.is_empty() { Ok(id) } else { Err(BAD) }
}

fn is_letter(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9')
        || matches!(byte, b'-' | b'+' | b'/' | b';' | b'.' | b'$' | b'_' | b'(' | b')')
}

fn name(rest: &[u8]) -> Result<&str, Error> {
    if rest.is_empty() || rest.len() > 200 || rest[0] == b'-' {
        return Err(BAD);
    }
    for &byte in rest {
        if !is_letter(byte) {
            return Err(BAD);
        }
    }
    Ok(std::str::from_utf8(rest).expect("letters are text"))
}

/// Reads what C's `strtoul` accepts: white space, a sign, digits, and any text after them. Only the
/// low 32 bits of the number are used.
fn kick(rest: &[u8]) -> Result<Command<'_>, Error> {
    let mut rest = rest;
    while !rest.is_empty() && matches!(rest[0], b' ' | 9..=13) {
        rest = &rest[1..];
    }
    let is_negative = !rest.is_empty() && rest[0] == b'-';
    if is_negative || !rest.is_empty() && rest[0] == b'+' {
        rest = &rest[1..];
    }
    if rest.is_empty() || !rest[0].is_ascii_digit() {
        return Err(BAD);
    }
    let (number, _) = number64(rest)?;
    let number = i128::from(number) * if is_negative { -1 } else { 1 };
    let bound = number.rem_euclid(1 << 32).try_into().expect("32 bits");
    Ok(Command::Kick(bound))
}

fn pause(rest: &[u8]) -> Result<Command<'_>, Error> {
    let rest = without_spaces(rest);
    let mut length = 0;
    while length < rest.len() && is_letter(rest[length]) {
        length += 1;
    }
    if length == 0 {
        return Err(BAD);
    }
    let (delay, behind) = number32(&rest[length..])?;
    if !behind.is_empty() {
        return Err(BAD);
    }
    match name(&rest[..length]) {
        Ok(name) => Ok(Command::PauseTube { name, delay }),
        Err(_) => Ok(Command::Malformed),
    }
}
