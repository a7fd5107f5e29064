//! The texts of a golden script: the bytes that a line sends or expects.
//!
//! [`Text`] is parsed once; [`Text::bytes`] and [`Text::pattern`] fill in the job ids of one run. A
//! [`Pattern`] is matched against bytes as they arrive: a match is complete, partial or impossible.
//! Matching never backtracks: `{any}` ends at the first place where the next literal matches.

use std::fmt::Write as _;

/// The most bytes of one `{TEXT*N}`, so that a mistyped N cannot fill memory.
const REPEATED_MAX_BYTES: usize = 64 << 20;

/// Whether a text is sent or expected; only an expected text may have placeholders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Send,
    Expect,
}

/// The numbers from which a script's job ids are computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    /// The highest id that the daemon had given before the script.
    pub(crate) base: u64,
    /// The number of the current round of a `repeat`, counted from 1.
    pub(crate) round: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(Vec<u8>),
    /// The id `%N`, which is base + N.
    Id(u64),
    /// The id `%i+K`, which is base + round + K.
    RoundId(u64),
    /// `{int}`
    Int,
    /// `{any}`
    Any,
    /// `{A..B}`
    Range(i64, i64),
}

/// A parsed text of a golden script; a run fills in the ids of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text(Vec<Piece>);

impl Text {
    /// Parses a text: escapes, ids, repetitions and, in expectations, placeholders.
    pub(crate) fn parse(source: &str, purpose: Use) -> Result<Self, String> {
        let mut reader = Reader { rest: source, purpose };
        let mut pieces = Pieces::default();
        while !reader.rest.is_empty() {
            reader.piece(&mut pieces)?;
        }
        let text = Self(pieces.0);
        for pair in text.0.windows(2) {
            if let [Piece::Any, Piece::Int | Piece::Any | Piece::Range(..)] = pair {
                return Err("{any} must be followed by a literal or the end of the line".to_owned());
            }
        }
        Ok(text)
    }

    /// Appends literal bytes to a text, usually CR LF.
    pub(crate) fn followed_by(mut self, ending: &[u8]) -> Self {
        let mut pieces = Pieces(std::mem::take(&mut self.0));
        pieces.literal(ending);
        Self(pieces.0)
    }

    /// Returns whether the text contains `%i`, which counts the rounds of a `repeat`.
    pub(crate) fn has_round(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::RoundId(_)))
    }

    /// Returns the bytes of a text to send.
    pub(crate) fn bytes(&self, ids: Ids) -> Vec<u8> {
        let Pattern(parts) = self.pattern(ids);
        let literals = parts.into_iter().filter_map(|part| match part {
            Piece::Literal(bytes) => Some(bytes),
            _ => None, // The parser admits placeholders in expectations only.
        });
        literals.flatten().collect()
    }

    /// Replaces the ids in a text by literals. The other placeholders remain.
    pub(crate) fn pattern(&self, ids: Ids) -> Pattern {
        let mut bound = Pieces::default();
        for piece in &self.0 {
            match piece {
                Piece::Literal(bytes) => bound.literal(bytes),
                Piece::Id(offset) => bound.number(ids.base + offset),
                Piece::RoundId(offset) => bound.number(ids.base + ids.round + offset),
                Piece::Int | Piece::Any | Piece::Range(..) => bound.0.push(piece.clone()),
            }
        }
        Pattern(bound.0)
    }
}

/// The pieces of a text, in which adjacent literals are joined.
#[derive(Debug, Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    /// Appends literal bytes to the pieces of a text.
    fn literal(&mut self, bytes: &[u8]) {
        if let Some(Piece::Literal(last)) = self.0.last_mut() {
            last.extend_from_slice(bytes);
        } else {
            self.0.push(Piece::Literal(bytes.to_vec()));
        }
    }

    /// Appends a number to the pieces of a text, as literal digits.
    fn number(&mut self, number: u64) {
        self.literal(number.to_string().as_bytes());
    }

    /// Appends a piece to the pieces of a text.
    fn push(&mut self, piece: Piece) {
        match piece {
            Piece::Literal(bytes) => self.literal(&bytes),
            other => self.0.push(other),
        }
    }
}

/// Parses a text from left to right.
struct Reader<'a> {
    rest: &'a str,
    purpose: Use,
}

impl Reader<'_> {
    /// Reads the next piece of a text: an escape, an id, braces, or a literal.
    fn piece(&mut self, pieces: &mut Pieces) -> Result<(), String> {
        let Some(first) = self.next() else {
            return Ok(());
        };
        match first {
            '|' => pieces.literal(b"\r\n"),
            '\\' => pieces.literal(&self.escape()?),
            '%' => pieces.push(self.id()?),
            '{' => self.braces(pieces)?,
            other => pieces.literal(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
        Ok(())
    }

    /// Reads the next character of a text.
    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let first = characters.next();
        self.rest = characters.as_str();
        first
    }

    /// Reads the rest of an escape in a text, after the backslash.
    fn escape(&mut self) -> Result<Vec<u8>, String> {
        let byte = match self.next() {
            Some('r') => b'\r',
            Some('n') => b'\n',
            Some('t') => b'\t',
            Some('0') => 0,
            Some('x') => self.hexadecimal()?,
            Some(plain @ ('\\' | '|' | '%' | '{')) => plain as u8,
            Some(other) => return Err(format!("unknown escape \\{other}")),
            None => return Err("a \\ at the end of the line escapes nothing".to_owned()),
        };
        Ok(vec![byte])
    }

    /// Reads the two digits of the escape `\xHH`.
    fn hexadecimal(&mut self) -> Result<u8, String> {
        let digits = self.rest.get(..2).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = digits.ok_or("\\x needs two hexadecimal digits")?;
        let byte = u8::from_str_radix(digits, 16).map_err(|error| error.to_string())?;
        self.rest = &self.rest[2..];
        Ok(byte)
    }

    /// Reads the id `N`, `i` or `i+K` after a percent sign in a text.
    fn id(&mut self) -> Result<Piece, String> {
        if let Some(after) = self.rest.strip_prefix('i') {
            self.rest = after;
            let Some(after) = self.rest.strip_prefix('+') else {
                return Ok(Piece::RoundId(0));
            };
            self.rest = after;
            return self.number().map(Piece::RoundId).map_err(|()| "%i+ needs a number".to_owned());
        }
        self.number().map(Piece::Id).map_err(|()| "% needs a number or i; \\% is a %".to_owned())
    }

    /// Reads a decimal number in a text, such as the 3 of `%3`.
    fn number(&mut self) -> Result<u64, ()> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, after) = self.rest.split_at(end);
        self.rest = after;
        // The number must be small enough that adding a base cannot overflow.
        digits.parse().ok().filter(|&number: &u64| number <= u64::MAX / 4).ok_or(())
    }

    /// Reads the rest of a placeholder or a repetition in a text, after the opening brace.
    fn braces(&mut self, pieces: &mut Pieces) -> Result<(), String> {
        let end = self.rest.find('}').ok_or("{ without }; \\{ is a {")?;
        let inside = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        if let Some((text, times)) = inside.rsplit_once('*') {
            return self.repetition(text, times, pieces);
        }
        let placeholder = match inside {
            "int" => Piece::Int,
            "any" => Piece::Any,
            _ => range(inside).ok_or_else(|| {
                format!("{{{inside}}} is not {{TEXT*N}}, {{int}}, {{any}} or {{A..B}}")
            })?,
        };
        if self.purpose == Use::Send {
            return Err(format!("{{{inside}}} can only be expected, not sent"));
        }
        pieces.push(placeholder);
        Ok(())
    }

    /// Appends the pieces of a repetition, `{TEXT*N}`.
    fn repetition(&self, text: &str, times: &str, pieces: &mut Pieces) -> Result<(), String> {
        let times: usize = times.parse().map_err(|_| format!("{{…*{times}}} needs a number"))?;
        if text.is_empty() || text.len().saturating_mul(times) > REPEATED_MAX_BYTES {
            return Err(format!("{{…*{times}}} repeats nothing, or too much"));
        }
        let Text(inner) = Text::parse(text, self.purpose)?;
        for _ in 0..times {
            for piece in &inner {
                pieces.push(piece.clone());
            }
        }
        Ok(())
    }
}

/// Reads the range `A..B` of a placeholder.
fn range(inside: &str) -> Option<Piece> {
    let (low, high) = inside.split_once("..")?;
    let (low, high) = (low.parse().ok()?, high.parse().ok()?);
    (low <= high).then_some(Piece::Range(low, high))
}

/// A text with its ids filled in, ready to be matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Piece>);

/// The result of matching a pattern against the bytes that have arrived so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    /// The pattern matches this many bytes.
    Complete(usize),
    /// The bytes match the beginning of the pattern; more bytes must arrive.
    Partial,
    /// The bytes do not match, and no further bytes can change that.
    Mismatch,
}

impl Pattern {
    /// Matches the pattern against the beginning of `bytes`.
    ///
    /// A placeholder must not be the pattern's last piece, because the bytes after a placeholder
    /// show where it ends. An expectation ends in CR LF, so its last piece is a literal.
    pub(crate) fn match_prefix(&self, bytes: &[u8]) -> Match {
        let mut at = 0;
        for (index, piece) in self.0.iter().enumerate() {
            let rest = &bytes[at..];
            let step = match piece {
                Piece::Literal(literal) => match_literal(literal, rest),
                Piece::Range(low, high) => {
                    match_number(rest, |number| (*low..=*high).contains(&number))
                }
                Piece::Any => match_any(self.0.get(index + 1), rest),
                // Not an id, because ids in a pattern have been replaced by literals: this piece is
                // `{int}`.
                Piece::Int | Piece::Id(_) | Piece::RoundId(_) => match_number(rest, |_| true),
            };
            match step {
                Match::Complete(length) => at += length,
                Match::Partial | Match::Mismatch => return step,
            }
        }
        Match::Complete(at)
    }

    /// Returns whether the pattern matches a whole line, which is given without its line end.
    pub(crate) fn matches_line(&self, bytes: &[u8]) -> bool {
        let mut parts = Pieces(self.0.clone());
        parts.literal(b"\n");
        let ended = [bytes, b"\n"].concat();
        !bytes.contains(&b'\n')
            && Pattern(parts.0).match_prefix(&ended) == Match::Complete(ended.len())
    }

    /// Writes the pattern in the notation of scripts.
    pub(crate) fn show(&self) -> String {
        let mut shown = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(bytes) => shown.push_str(&show(bytes)),
                Piece::Any => shown.push_str("{any}"),
                Piece::Range(low, high) => write_to(&mut shown, format_args!("{{{low}..{high}}}")),
                Piece::Int | Piece::Id(_) | Piece::RoundId(_) => shown.push_str("{int}"),
            }
        }
        shown
    }
}

/// Matches a literal of a pattern against received bytes.
fn match_literal(literal: &[u8], rest: &[u8]) -> Match {
    if rest.starts_with(literal) {
        Match::Complete(literal.len())
    } else if literal.starts_with(rest) {
        Match::Partial
    } else {
        Match::Mismatch
    }
}

/// Matches a placeholder for a number, `{int}` or `{A..B}`, against received bytes.
fn match_number(rest: &[u8], accepted: impl Fn(i64) -> bool) -> Match {
    let sign = usize::from(rest.first() == Some(&b'-'));
    let digits = rest[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let end = sign + digits;
    if end == rest.len() {
        return Match::Partial; // The next byte may be a digit, too.
    }
    let number = std::str::from_utf8(&rest[..end]).ok().and_then(|text| text.parse().ok());
    match number {
        Some(number) if accepted(number) => Match::Complete(end),
        _ => Match::Mismatch,
    }
}

/// Matches `{any}`, which extends to the next literal, but never beyond the end of a line.
fn match_any(next: Option<&Piece>, rest: &[u8]) -> Match {
    let literal: &[u8] = match next {
        Some(Piece::Literal(literal)) => literal,
        _ => b"",
    };
    for at in 0..=rest.len() {
        let step = match_literal(literal, &rest[at..]);
        let end_of_line = rest.get(at).is_some_and(|byte| matches!(byte, b'\r' | b'\n'));
        match step {
            Match::Complete(_) => return Match::Complete(at),
            Match::Partial => return Match::Partial,
            Match::Mismatch if end_of_line => return Match::Mismatch,
            Match::Mismatch => {}
        }
    }
    Match::Partial
}

/// A run of at least this many equal bytes is written as `{x*N}`.
const RUN_MIN_BYTES: usize = 24;
/// The number of characters after which [`show`] cuts a text off.
const SHOWN_MAX_CHARS: usize = 1500;

/// Writes bytes in the notation of scripts, with `|` for CR LF and `{x*N}` for a long run of equal
/// bytes.
pub(crate) fn show(bytes: &[u8]) -> String {
    let mut shown = String::new();
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        if shown.len() > SHOWN_MAX_CHARS {
            write_to(&mut shown, format_args!("… ({} more bytes)", rest.len()));
            break;
        }
        let run = rest.iter().take_while(|&&byte| byte == first).count();
        let eaten = if run >= RUN_MIN_BYTES {
            write_to(&mut shown, format_args!("{{{}*{run}}}", show_byte(first)));
            run
        } else if rest.starts_with(b"\r\n") {
            shown.push('|');
            2
        } else {
            shown.push_str(&show_byte(first));
            1
        };
        rest = &rest[eaten..];
    }
    shown
}

/// Writes one byte in the notation of scripts.
fn show_byte(byte: u8) -> String {
    match byte {
        b'\r' => "\\r".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\t' => "\\t".to_owned(),
        0 => "\\0".to_owned(),
        b'\\' | b'|' | b'%' | b'{' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

/// Formats into a string, for the notation of scripts; writing to a string cannot fail.
fn write_to(shown: &mut String, arguments: std::fmt::Arguments<'_>) {
    shown.write_fmt(arguments).expect("a String takes everything");
}

#[cfg(test)]
mod tests;
