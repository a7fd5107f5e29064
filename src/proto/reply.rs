//! Writes replies as bytes.

use super::{CRLF, stats_yaml};

/// A reply. Each variant has exactly one form on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own words")]
pub enum Reply<'a> {
    Inserted {
        id: u64,
    },
    Using(&'a str),
    /// The first line only; the body and its CR LF follow.
    Reserved {
        id: u64,
        size: usize,
    },
    /// The first line only, for the `peek` commands; the body and its CR LF follow.
    Found {
        id: u64,
        size: usize,
    },
    Deleted,
    Released,
    Buried,
    Touched,
    Watching(usize),
    NotIgnored,
    /// The reply to `kick`.
    KickedJobs(u32),
    /// The reply to `kick-job`.
    Kicked,
    /// The reply to `delete-tube`.
    DeletedJobs(u64),
    /// The reply to `drain` if jobs are accepted. The other reply to it is the error reply to a
    /// `put`.
    NotDraining,
    Paused,
    /// A YAML document and its length.
    Ok(&'a [u8]),
    DeadlineSoon,
    TimedOut,
    /// Input has ended the wait of a `reserve-with-abort`.
    Aborted,
    NotFound,
    /// An error reply.
    Error(ErrorReply),
}

/// Error replies. They have no fields, so a connection stores one while it skips a rejected body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own words")]
pub enum ErrorReply {
    UnknownCommand,
    BadFormat,
    ExpectedCrlf,
    JobTooBig,
    Draining,
    OutOfMemory,
    InternalError,
}

impl ErrorReply {
    fn text(self) -> &'static str {
        match self {
            Self::UnknownCommand => "UNKNOWN_COMMAND\r\n",
            Self::BadFormat => "BAD_FORMAT\r\n",
            Self::ExpectedCrlf => "EXPECTED_CRLF\r\n",
            Self::JobTooBig => "JOB_TOO_BIG\r\n",
            Self::Draining => "DRAINING\r\n",
            Self::OutOfMemory => "OUT_OF_MEMORY\r\n",
            Self::InternalError => "INTERNAL_ERROR\r\n",
        }
    }
}

impl Reply<'_> {
    /// Appends the reply to `out`.
    pub fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Inserted { id } => number(out, "INSERTED ", id),
            Self::Using(name) => line(out, &["USING ", name]),
            Self::Reserved { id, size } => job(out, "RESERVED ", id, size),
            Self::Found { id, size } => job(out, "FOUND ", id, size),
            Self::Deleted => text(out, "DELETED\r\n"),
            Self::Released => text(out, "RELEASED\r\n"),
            Self::Buried => text(out, "BURIED\r\n"),
            Self::Touched => text(out, "TOUCHED\r\n"),
            Self::Watching(count) => number(out, "WATCHING ", count as u64),
            Self::NotIgnored => text(out, "NOT_IGNORED\r\n"),
            Self::KickedJobs(count) => number(out, "KICKED ", count.into()),
            Self::Kicked => text(out, "KICKED\r\n"),
            Self::DeletedJobs(count) => number(out, "DELETED ", count),
            Self::NotDraining => text(out, "NOT_DRAINING\r\n"),
            Self::Paused => text(out, "PAUSED\r\n"),
            Self::Ok(body) => {
                number(out, "OK ", body.len() as u64);
                out.extend_from_slice(body);
                text(out, "\r\n");
            }
            Self::DeadlineSoon => text(out, "DEADLINE_SOON\r\n"),
            Self::TimedOut => text(out, "TIMED_OUT\r\n"),
            Self::Aborted => text(out, "ABORTED\r\n"),
            Self::NotFound => text(out, "NOT_FOUND\r\n"),
            Self::Error(error) => text(out, error.text()),
        }
    }
}

/// A reply with the names of tubes. There may be very many, so they are written directly to the
/// output.
#[derive(Debug, Clone, Copy, Default)]
pub struct List {
    /// The number of names.
    pub count: usize,
    /// Total bytes of the names.
    pub bytes: usize,
}

impl List {
    /// The list with one more name.
    #[must_use]
    pub fn with(self, name: &str) -> Self {
        Self { count: self.count + 1, bytes: self.bytes + name.len() }
    }

    /// The length of the reply in bytes, overestimated by at most 19.
    pub fn size(self) -> usize {
        let line = "OK \r\n\r\n".len() + usize::MAX.ilog10() as usize + 1;
        line + stats_yaml::list_length(self.count, self.bytes)
    }

    /// Appends the reply to `out`.
    pub fn write<'a>(self, out: &mut Vec<u8>, names: impl Iterator<Item = &'a str>) {
        out.reserve(self.size());
        number(out, "OK ", stats_yaml::list_length(self.count, self.bytes) as u64);
        stats_yaml::write_list(out, names);
        out.extend_from_slice(CRLF);
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn line(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        text(out, part);
    }
    text(out, "\r\n");
}

fn number(out: &mut Vec<u8>, word: &str, number: u64) {
    text(out, word);
    digits(out, number);
    text(out, "\r\n");
}

fn job(out: &mut Vec<u8>, word: &str, id: u64, size: usize) {
    text(out, word);
    digits(out, id);
    text(out, " ");
    number(out, "", size as u64);
}

/// Writes a number with a fifth of the instructions of `write!`, because nearly every reply has
/// one.
fn digits(out: &mut Vec<u8>, mut number: u64) {
    let mut text = [0; u64::MAX.ilog10() as usize + 1];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return out.extend_from_slice(&text[start..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reply_has_its_bytes() {
        let cases: &[(Reply<'_>, &str)] = &[
            (Reply::Inserted { id: u64::MAX }, "INSERTED 18446744073709551615\r\n"),
            (Reply::Using("a"), "USING a\r\n"),
            (Reply::Reserved { id: 10, size: 0 }, "RESERVED 10 0\r\n"),
            (Reply::Found { id: 7, size: 65_535 }, "FOUND 7 65535\r\n"),
            (Reply::Deleted, "DELETED\r\n"),
            (Reply::Released, "RELEASED\r\n"),
            (Reply::Buried, "BURIED\r\n"),
            (Reply::Touched, "TOUCHED\r\n"),
            (Reply::Watching(3), "WATCHING 3\r\n"),
            (Reply::NotIgnored, "NOT_IGNORED\r\n"),
            (Reply::KickedJobs(0), "KICKED 0\r\n"),
            (Reply::Kicked, "KICKED\r\n"),
            (Reply::Paused, "PAUSED\r\n"),
            (Reply::Ok(b"---\n- default\n"), "OK 14\r\n---\n- default\n\r\n"),
            (Reply::DeadlineSoon, "DEADLINE_SOON\r\n"),
            (Reply::TimedOut, "TIMED_OUT\r\n"),
            (Reply::Aborted, "ABORTED\r\n"),
            (Reply::NotFound, "NOT_FOUND\r\n"),
            (Reply::Error(ErrorReply::UnknownCommand), "UNKNOWN_COMMAND\r\n"),
            (Reply::Error(ErrorReply::BadFormat), "BAD_FORMAT\r\n"),
            (Reply::Error(ErrorReply::ExpectedCrlf), "EXPECTED_CRLF\r\n"),
            (Reply::Error(ErrorReply::JobTooBig), "JOB_TOO_BIG\r\n"),
            (Reply::Error(ErrorReply::Draining), "DRAINING\r\n"),
            (Reply::Error(ErrorReply::OutOfMemory), "OUT_OF_MEMORY\r\n"),
            (Reply::Error(ErrorReply::InternalError), "INTERNAL_ERROR\r\n"),
        ];
        for &(reply, wanted) in cases {
            let mut out = Vec::new();
            reply.write(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), wanted);
        }
    }
}
