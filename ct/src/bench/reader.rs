//! Parses and checks a daemon's replies.
//!
//! The bytes of replies arrive in pieces of any size. A [`Reader`] stores an incomplete line, but
//! no body, so ten thousand connections need little memory. Every reply is checked: its words and
//! numbers, each CR LF, and every byte of a job's body. Without these checks, the load might
//! measure a daemon that answers nonsense.

use std::fmt;

/// The longest line of a daemon, CR LF included.
const LINE_MAX_BYTES: usize = 224;
/// The number of bytes at a body's beginning that contain the time at which the job was sent.
pub(crate) const STAMP_BYTES: usize = 20;

/// The kind of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `INSERTED <id>`
    Inserted,
    /// `RESERVED <id> <bytes>` and the body.
    Reserved,
    /// `FOUND <id> <bytes>` and the body.
    Found,
    /// `OK <bytes>` and a body that is not checked.
    Ok,
    /// `DELETED`
    Deleted,
    /// `RELEASED`
    Released,
    /// `BURIED`
    Buried,
    /// `TOUCHED`
    Touched,
    /// `KICKED`, with or without a count.
    Kicked,
    /// `PAUSED`
    Paused,
    /// `USING <tube>`
    Using,
    /// `WATCHING <count>`
    Watching,
    /// `TIMED_OUT`
    TimedOut,
}

impl Kind {
    /// Returns the size in bytes of the shortest reply of this kind that can be received, with an
    /// empty body.
    pub fn least_bytes(self) -> usize {
        match self {
            Self::Reserved => "RESERVED 1 0\r\n\r\n".len(),
            Self::Found => "FOUND 1 0\r\n\r\n".len(),
            Self::Inserted => "INSERTED 1\r\n".len(),
            Self::Ok => "OK 0\r\n\r\n".len(),
            Self::Deleted | Self::Touched => "DELETED\r\n".len(),
            Self::Released => "RELEASED\r\n".len(),
            Self::Buried | Self::Kicked | Self::Paused => "BURIED\r\n".len(),
            Self::Using => "USING a\r\n".len(),
            Self::Watching => "WATCHING 1\r\n".len(),
            Self::TimedOut => "TIMED_OUT\r\n".len(),
        }
    }

    /// Returns whether a job's body follows the line of a reply of this kind.
    fn has_job_body(self) -> bool {
        matches!(self, Self::Reserved | Self::Found)
    }
}

/// One reply that has arrived completely, with its body if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The kind of the reply.
    pub kind: Kind,
    /// The job id, or the count of `KICKED` or `WATCHING`; 0 in other replies.
    pub number: u64,
    /// The time at the beginning of a stamped body; 0 without a stamp.
    pub stamp: u64,
}

/// An invalid or unexpected reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyError {
    /// A line that is an error reply or an invalid reply.
    Line(String),
    /// A body that is longer or shorter than the body that was put.
    Length {
        /// The line that announced the body.
        line: String,
        /// The length of the body that was put.
        expected: usize,
    },
    /// A body with other bytes than the body that was put.
    Body,
    /// A body without CR LF after it.
    End,
}

impl fmt::Display for ReplyError {
    /// Describes how a reply differs from the expected reply.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(out, "the daemon answered {line:?}"),
            Self::Length { line, expected } => {
                write!(out, "the daemon answered {line:?} for a body of {expected} bytes")
            }
            Self::Body => out.write_str("a body came back with other bytes than were put"),
            Self::End => out.write_str("a body is not followed by CR LF"),
        }
    }
}

impl std::error::Error for ReplyError {}

/// The expected body of all jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Body {
    /// The bytes of the body; if `stamped`, the first 20 are replaced by the stamp.
    pub bytes: Vec<u8>,
    /// Whether the first 20 bytes are the time at which the job was sent.
    pub stamped: bool,
}

impl Body {
    /// Makes the body of a job from `length` dots, which the bare responder cannot mistake for a
    /// command.
    pub fn plain(length: usize) -> Self {
        Self { bytes: vec![b'.'; length], stamped: false }
    }

    /// Makes a body that begins with a stamp: the time at which the job is sent. A body shorter
    /// than the stamp is made as long as the stamp.
    pub fn stamped(length: usize) -> Self {
        Self { bytes: vec![b'.'; length.max(STAMP_BYTES)], stamped: true }
    }

    /// Returns whether a piece of a received body has the bytes that were put.
    fn matches(&self, piece: &[u8], offset: usize) -> bool {
        let free = if self.stamped { STAMP_BYTES.saturating_sub(offset) } else { 0 };
        let free = free.min(piece.len());
        self.bytes[offset + free..offset + piece.len()] == piece[free..]
    }
}

/// Parses the stream of replies on one connection.
#[derive(Debug, Default)]
pub struct Reader {
    state: State,
    /// The beginning of an incomplete line.
    partial_line: Vec<u8>,
    /// The stamp of the current body; complete only after all its digits have arrived.
    stamp: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Line,
    Body {
        reply: Reply,
        /// The length of the body, without CR LF.
        length: usize,
        /// The number of bytes of the body and its CR LF that have arrived.
        got: usize,
    },
}

impl Reader {
    /// Takes the next reply from the front of the received bytes in `rest`. If that reply is
    /// incomplete, takes all bytes of `rest` and returns `None`.
    pub fn take(&mut self, rest: &mut &[u8], body: &Body) -> Result<Option<Reply>, ReplyError> {
        if matches!(self.state, State::Line) {
            match self.take_line(rest, body)? {
                Some(ParsedLine::Complete(reply)) => return Ok(Some(reply)),
                Some(ParsedLine::Body(reply, length)) => {
                    self.stamp = 0;
                    self.state = State::Body { reply, length, got: 0 };
                }
                None => return Ok(None),
            }
        }
        self.take_body(rest, body)
    }

    /// Returns whether no part of the next reply has arrived.
    pub fn is_between_replies(&self) -> bool {
        matches!(self.state, State::Line) && self.partial_line.is_empty()
    }

    /// Returns how many bytes the next reply lacks; until its size is known, `least` is assumed.
    pub fn missing_bytes(&self, least: usize) -> usize {
        match self.state {
            State::Line => least.saturating_sub(self.partial_line.len()),
            State::Body { length, got, .. } => length + 2 - got,
        }
    }

    /// Takes the line of the next reply from the received bytes; `None` if the line is incomplete.
    fn take_line(
        &mut self,
        rest: &mut &[u8],
        body: &Body,
    ) -> Result<Option<ParsedLine>, ReplyError> {
        let end = rest.iter().position(|&byte| byte == b'\n');
        let (piece, after) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
        *rest = after;
        if self.partial_line.len() + piece.len() > LINE_MAX_BYTES {
            return Err(bad(&[&self.partial_line, piece].concat()));
        }
        if end.is_none() {
            self.partial_line.extend_from_slice(piece);
            return Ok(None);
        }
        if self.partial_line.is_empty() {
            return parse_line(piece, body).map(Some);
        }
        self.partial_line.extend_from_slice(piece);
        let parsed = parse_line(&self.partial_line, body);
        self.partial_line.clear();
        parsed.map(Some)
    }

    /// Takes and checks the body of a reply from the received bytes; `None` if the body is
    /// incomplete.
    fn take_body(&mut self, rest: &mut &[u8], body: &Body) -> Result<Option<Reply>, ReplyError> {
        let State::Body { reply, length, got } = &mut self.state else {
            return Ok(None);
        };
        if *got < *length {
            let (piece, after) = rest.split_at(rest.len().min(*length - *got));
            if reply.kind.has_job_body() {
                if !body.matches(piece, *got) {
                    return Err(ReplyError::Body);
                }
                if body.stamped && *got < STAMP_BYTES {
                    let digits = &piece[..piece.len().min(STAMP_BYTES - *got)];
                    self.stamp = append_digits(self.stamp, digits).ok_or(ReplyError::Body)?;
                }
            }
            *got += piece.len();
            *rest = after;
        }
        while *got >= *length && *got < *length + 2 {
            let Some((&byte, after)) = rest.split_first() else {
                return Ok(None);
            };
            if byte != b"\r\n"[*got - *length] {
                return Err(ReplyError::End);
            }
            *got += 1;
            *rest = after;
        }
        if *got < *length + 2 {
            return Ok(None);
        }
        let reply = Reply { stamp: self.stamp, ..*reply };
        self.state = State::Line;
        Ok(Some(reply))
    }
}

/// A parsed line: a whole reply, or a reply whose body follows, with the body's length.
enum ParsedLine {
    Complete(Reply),
    Body(Reply, usize),
}

/// Parses the line of a reply; the most frequent words are tried first.
fn parse_line(line: &[u8], body: &Body) -> Result<ParsedLine, ReplyError> {
    let text = line.strip_suffix(b"\r\n").ok_or_else(|| bad(line))?;
    let word = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
    let (word, rest) = text.split_at(word);
    let complete = |kind, number| Ok(ParsedLine::Complete(Reply { kind, number, stamp: 0 }));
    let bare = |kind| if rest.is_empty() { complete(kind, 0) } else { Err(bad(line)) };
    let counted = |kind| match rest.split_first().and_then(|(_, digits)| number(digits)) {
        Some(number) => complete(kind, number),
        None => Err(bad(line)),
    };
    match word {
        b"INSERTED" => counted(Kind::Inserted),
        b"RESERVED" => job(Kind::Reserved, line, rest, body),
        b"DELETED" => bare(Kind::Deleted),
        b"RELEASED" => bare(Kind::Released),
        b"TOUCHED" => bare(Kind::Touched),
        b"BURIED" => bare(Kind::Buried),
        b"KICKED" if rest.is_empty() => bare(Kind::Kicked),
        b"KICKED" => counted(Kind::Kicked),
        b"WATCHING" => counted(Kind::Watching),
        b"USING" if rest.len() > 1 => complete(Kind::Using, 0),
        b"PAUSED" => bare(Kind::Paused),
        b"TIMED_OUT" => bare(Kind::TimedOut),
        b"FOUND" => job(Kind::Found, line, rest, body),
        b"OK" => {
            let length = rest.split_first().and_then(|(_, digits)| number(digits));
            let length = length.and_then(|length| usize::try_from(length).ok());
            let reply = Reply { kind: Kind::Ok, number: 0, stamp: 0 };
            length.map(|length| ParsedLine::Body(reply, length)).ok_or_else(|| bad(line))
        }
        _ => Err(bad(line)),
    }
}

/// Parses ` <id> <bytes>` of a reply with a job.
fn job(kind: Kind, line: &[u8], rest: &[u8], body: &Body) -> Result<ParsedLine, ReplyError> {
    let parts = rest.split_first().and_then(|(_, rest)| {
        let space = rest.iter().position(|&byte| byte == b' ')?;
        Some((number(&rest[..space])?, number(&rest[space + 1..])?))
    });
    let (id, length) = parts.ok_or_else(|| bad(line))?;
    if length != body.bytes.len() as u64 {
        let line = String::from_utf8_lossy(line).into_owned();
        return Err(ReplyError::Length { line, expected: body.bytes.len() });
    }
    Ok(ParsedLine::Body(Reply { kind, number: id, stamp: 0 }, body.bytes.len()))
}

/// Makes the error of an unexpected line in a reply.
fn bad(line: &[u8]) -> ReplyError {
    ReplyError::Line(String::from_utf8_lossy(line).into_owned())
}

/// Parses a number of a reply: decimal digits and nothing else.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() { None } else { append_digits(0, digits) }
}

/// Appends decimal digits to a number; `None` if a byte is no digit or the number exceeds 64 bits.
fn append_digits(mut number: u64, digits: &[u8]) -> Option<u64> {
    for &digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(value))?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chunks: &[&[u8]], body: &Body) -> Result<Vec<Reply>, ReplyError> {
        let mut reader = Reader::default();
        let mut replies = Vec::new();
        for chunk in chunks {
            let mut rest = *chunk;
            while let Some(reply) = reader.take(&mut rest, body)? {
                replies.push(reply);
            }
            assert!(rest.is_empty(), "an incomplete reply takes everything");
        }
        Ok(replies)
    }

    fn one(text: &str) -> Result<Reply, ReplyError> {
        read(&[text.as_bytes()], &Body::plain(3)).map(|replies| replies[0])
    }

    #[test]
    fn every_reply_is_parsed_however_it_is_split() {
        let stream: &[u8] = b"INSERTED 7\r\nRESERVED 18446744073709551615 3\r\n...\r\nDELETED\r\n\
            RELEASED\r\nTOUCHED\r\nBURIED\r\nKICKED\r\nKICKED 12\r\nWATCHING 2\r\nUSING a\r\n\
            PAUSED\r\nTIMED_OUT\r\nFOUND 5 3\r\n...\r\nOK 5\r\na\r\nb\n\r\n";
        let body = Body::plain(3);
        let whole = read(&[stream], &body).unwrap();
        let numbers: Vec<u64> = whole.iter().map(|reply| reply.number).collect();
        assert_eq!(numbers, [7, u64::MAX, 0, 0, 0, 0, 0, 12, 2, 0, 0, 0, 5, 0]);
        assert_eq!(whole[13].kind, Kind::Ok);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read(&bytes, &body).unwrap(), whole);
        for cut in 0..stream.len() {
            let (front, back) = stream.split_at(cut);
            assert_eq!(read(&[front, back], &body).unwrap(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn an_invalid_reply_is_an_error() {
        for line in [
            "OUT_OF_MEMORY\r\n",
            "NOT_FOUND\r\n",
            "INSERTED\r\n",
            "INSERTED \r\n",
            "INSERTED x\r\n",
            "INSERTED 18446744073709551616\r\n",
            "INSERTED 1\n",
            "DELETED 1\r\n",
            "USING\r\n",
            "USING \r\n",
            "OK x\r\n",
            "RESERVED 1\r\n",
            "\r\n",
        ] {
            assert_eq!(one(line), Err(ReplyError::Line(line.to_owned())));
        }
        let endless = "x".repeat(LINE_MAX_BYTES + 1);
        assert_eq!(one(&endless), Err(ReplyError::Line(endless.clone())));
        assert!(matches!(one("RESERVED 1 4\r\n"), Err(ReplyError::Length { expected: 3, .. })));
        assert_eq!(one("RESERVED 1 3\r\n..x\r\n"), Err(ReplyError::Body));
        assert_eq!(one("RESERVED 1 3\r\n...\n\r"), Err(ReplyError::End));
        assert_eq!(one("RESERVED 1 3\r\n...\rx"), Err(ReplyError::End));
    }

    #[test]
    fn a_stamp_is_read_back_and_the_rest_of_the_body_compared() {
        let body = Body::stamped(24);
        let stream = b"RESERVED 1 24\r\n00000000001234567890....\r\n";
        for cut in 0..stream.len() {
            let (front, back) = stream.split_at(cut);
            let replies = read(&[front, back], &body).unwrap();
            assert_eq!((replies[0].number, replies[0].stamp), (1, 1_234_567_890));
        }
        let wrong = b"RESERVED 1 24\r\n00000000001234567890...x\r\n";
        assert_eq!(read(&[wrong], &body), Err(ReplyError::Body));
        let no_stamp = b"RESERVED 1 24\r\n........................\r\n";
        assert_eq!(read(&[no_stamp], &body), Err(ReplyError::Body));
    }

    #[test]
    fn the_least_length_is_never_above_a_real_one() {
        let body = Body::plain(0);
        for (kind, line) in [
            (Kind::Reserved, "RESERVED 1 0\r\n\r\n"),
            (Kind::Inserted, "INSERTED 1\r\n"),
            (Kind::Deleted, "DELETED\r\n"),
            (Kind::Touched, "TOUCHED\r\n"),
            (Kind::Kicked, "KICKED\r\n"),
            (Kind::Paused, "PAUSED\r\n"),
        ] {
            assert_eq!(read(&[line.as_bytes()], &body).unwrap()[0].kind, kind);
            assert!(kind.least_bytes() <= line.len(), "{line}");
        }
    }
}
