//! The replies of the protocol, and their conversion to bytes.

use std::fmt;

use super::{CRLF, stats_yaml::HEAD};

/// A reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A whole line of fixed text.
    Line(&'static str),
    /// A word and a number.
    Number(&'static str, u64),
    /// `USING` and the name of a tube.
    Using(&'a str),
    /// `RESERVED` or `FOUND`, the id of a job and the size of its body in bytes. This is only the
    /// first line of the reply; the body and its CR LF are appended separately.
    Job(&'static str, u64, usize),
    /// `OK`, the length of a YAML document, and the document.
    Ok(&'a [u8]),
}

#[expect(missing_docs, reason = "the protocol's own words")]
impl Reply<'static> {
    pub const ABORTED: Self = Self::Line("ABORTED\r\n");
    pub const BAD_FORMAT: Self = Self::Line("BAD_FORMAT\r\n");
    pub const BURIED: Self = Self::Line("BURIED\r\n");
    pub const DEADLINE_SOON: Self = Self::Line("DEADLINE_SOON\r\n");
    pub const DELETED: Self = Self::Line("DELETED\r\n");
    pub const DRAINING: Self = Self::Line("DRAINING\r\n");
    pub const EXPECTED_CRLF: Self = Self::Line("EXPECTED_CRLF\r\n");
    pub const INTERNAL_ERROR: Self = Self::Line("INTERNAL_ERROR\r\n");
    pub const JOB_TOO_BIG: Self = Self::Line("JOB_TOO_BIG\r\n");
    pub const KICKED: Self = Self::Line("KICKED\r\n");
    pub const NOT_DRAINING: Self = Self::Line("NOT_DRAINING\r\n");
    pub const NOT_FOUND: Self = Self::Line("NOT_FOUND\r\n");
    pub const NOT_IGNORED: Self = Self::Line("NOT_IGNORED\r\n");
    pub const OUT_OF_MEMORY: Self = Self::Line("OUT_OF_MEMORY\r\n");
    pub const PAUSED: Self = Self::Line("PAUSED\r\n");
    pub const RELEASED: Self = Self::Line("RELEASED\r\n");
    pub const TIMED_OUT: Self = Self::Line("TIMED_OUT\r\n");
    pub const TOUCHED: Self = Self::Line("TOUCHED\r\n");
    pub const UNKNOWN_COMMAND: Self = Self::Line("UNKNOWN_COMMAND\r\n");
}

impl Reply<'_> {
    /// Appends the reply to `out`.
    pub fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Line(line) => text(out, line),
            Self::Number(word, value) => numbers(out, word, &[value]),
            Self::Using(name) => {
                text(out, "USING ");
                text(out, name);
                text(out, "\r\n");
            }
            Self::Job(word, id, size) => numbers(out, word, &[id, size as u64]),
            Self::Ok(body) => {
                out.reserve(NUMBERS_LINE_MAX_BYTES + body.len() + CRLF.len());
                numbers(out, "OK", &[body.len() as u64]);
                out.extend_from_slice(body);
                text(out, "\r\n");
            }
        }
    }
}

/// Shows the first line of the reply, as clients get it.
impl fmt::Debug for Reply<'_> {
    /// Formats the first line of the reply for log lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
        write!(f, "{}", line.escape_ascii())
    }
}

/// A reply with the names of tubes. There may be very many names, so they are appended directly to
/// the output, in parts.
#[derive(Debug, Clone, Copy, Default)]
pub struct List {
    /// The number of names.
    pub count: usize,
    /// The total length of the names in bytes.
    pub bytes: usize,
}

impl List {
    /// The length in bytes of the YAML document that lists the tubes.
    fn length(self) -> usize {
        HEAD.len() + "- \n".len() * self.count + self.bytes
    }

    /// The length in bytes of the reply with a list of tubes, overestimated by at most 19 bytes.
    pub fn size(self) -> usize {
        "OK \r\n\r\n".len() + usize::MAX.ilog10() as usize + 1 + self.length()
    }

    /// Appends to `out` the `OK` line of a reply with a list of tubes, then `---` without a line
    /// feed. The caller must then append all names, and after the names LF CR LF.
    pub fn begin(self, out: &mut Vec<u8>) {
        numbers(out, "OK", &[self.length() as u64]);
        text(out, HEAD.trim_end());
    }

    /// The length in bytes of the line for a tube's name in a list.
    pub fn line_length(name: &str) -> usize {
        "- \n".len() + name.len()
    }

    /// Appends to `out` a line feed, which ends the previous line, and then the line of the tube
    /// `name` without its line feed. So each name takes two appends, not three.
    pub fn add_name(out: &mut Vec<u8>, name: &str) {
        text(out, "\n- ");
        text(out, name);
    }
}

/// Appends a part of a reply to `out`.
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// Enough bytes for a line with the longest word, two numbers, spaces and CR LF.
const NUMBERS_LINE_MAX_BYTES: usize = 64;

/// Writes `number` in decimal digits at the end of `line`, and returns the index in `line` of the
/// first digit.
pub(super) fn digits(line: &mut [u8], number: u64) -> usize {
    let (mut start, mut rest) = (line.len(), number);
    loop {
        start -= 1;
        line[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return start;
        }
    }
}

/// Appends a reply of a word and numbers, the form of most replies. The line is made from its last
/// byte to its first and copied once, which takes a fifth of the instructions of `write!`.
fn numbers(out: &mut Vec<u8>, word: &str, numbers: &[u64]) {
    let mut line = [0; NUMBERS_LINE_MAX_BYTES];
    let mut start = line.len() - CRLF.len();
    line[start..].copy_from_slice(CRLF);
    for &number in numbers.iter().rev() {
        start = digits(&mut line[..start], number) - 1;
        line[start] = b' ';
    }
    start -= word.len();
    line[start..][..word.len()].copy_from_slice(word.as_bytes());
    out.extend_from_slice(&line[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_reply_has_its_bytes() {
        let cases: &[(Reply<'_>, &str)] = &[
            (Reply::DELETED, "DELETED\r\n"),
            (Reply::Number("INSERTED", u64::MAX), "INSERTED 18446744073709551615\r\n"),
            (Reply::Number("KICKED", 0), "KICKED 0\r\n"),
            (Reply::Using("a"), "USING a\r\n"),
            (Reply::Job("RESERVED", 10, 0), "RESERVED 10 0\r\n"),
            (Reply::Job("FOUND", 7, 65_535), "FOUND 7 65535\r\n"),
            (Reply::Ok(b"---\n- default\n"), "OK 14\r\n---\n- default\n\r\n"),
        ];
        for &(reply, wanted) in cases {
            let mut out = Vec::new();
            reply.write(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), wanted);
        }
    }
}
