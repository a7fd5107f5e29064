//! The state machine of a connection; `output.rs` has the replies that wait to be sent.
//!
//! [`Conn::step`] takes bytes from the front of the input and returns their meaning: a line, a
//! whole body, or the end of skipped input. The server executes the command, and then sets the next
//! phase of the connection. The phase stores all that the connection must know about the consumed
//! input, so the caller may split the stream at any byte.
//!
//! | phase | ends with | then |
//! |---|---|---|
//! | `Line` | a CR LF within the limit | the server sets the next phase |
//! | `SkipLine` | a CR LF | error reply, `Line` |
//! | `Body` | the announced number of bytes | `Line` |
//! | `Skip` | the announced number of bytes | error reply, `Line` |
//! | `Waiting` | the answer to a reserve or a long command | `Line` |
//! | `WaitingForInput` | the answer to a reserve, or input | `Line` |
//! | `WaitEnded` | the answer to the reserve of a client that may have disconnected | `Line` |
//! | `Closing` | the end of the output | the event loop closes the connection |
//!
//! Sending is not a phase, but no input is taken while [`Output`] has too many unsent bytes.

mod output;
mod testing;

pub use output::{Output, SLICES};

use crate::{
    clock::Time,
    collections::Growth,
    memory::{Bodies, Body},
    proto::{self, CRLF, LINE_LIMIT, PutHeader, Reply},
};

/// A connection takes no input while this many bytes of its output, or more, are unsent.
const OUTPUT_MAX_BYTES: usize = 64 * 1024;

/// What a connection waits for: more input, a reply, or the end of the connection.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Line,
    /// Skips the rest of a line that is too long.
    SkipLine,
    Body(Collecting),
    /// Skips the rest of a refused body; after that, the connection gets the error reply `then`.
    Skip {
        left: u64,
        then: Reply<'static>,
    },
    /// A `reserve` or a long command has not been answered yet; later commands wait.
    Waiting,
    /// A `reserve-with-abort` has not been answered yet; further input ends its wait for a job.
    WaitingForInput,
    /// A `reserve` waits for its reply, but must not get a job any more: its client may have
    /// disconnected.
    WaitEnded,
    Closing,
}

#[derive(Debug)]
struct Collecting {
    put: PendingPut,
    /// The bytes of the body received so far; `None` if no byte has arrived.
    got: Option<Body>,
}

/// A `put` whose header has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingPut {
    /// The job's id.
    pub id: u64,
    /// The fields of the header.
    pub header: PutHeader,
    /// When the header was read.
    pub received_at: Time,
}

impl PendingPut {
    /// How many bytes follow the line of the `put`: the announced size of the body, plus CR LF.
    fn size(&self) -> usize {
        self.header.size as usize + CRLF.len()
    }
}

/// The meaning of the next bytes of the input.
#[derive(Debug)]
pub enum Step<'a> {
    /// A command line, without its CR LF.
    Line(&'a [u8]),
    /// The first line of an HTTP request, or its beginning: the server must end the connection.
    Http(&'a [u8]),
    /// The whole body of a `put`, including the two bytes that should be CR LF.
    Body(PendingPut, Body),
    /// The error reply to a line or body that has been skipped to its end.
    Reject(Reply<'static>),
    /// Input, which is not consumed yet, has ended the wait of a `reserve-with-abort`.
    Abort,
    /// More input is needed: the caller must pass the remaining bytes again, and more bytes.
    More,
    /// The connection takes no input now.
    Paused,
}

/// One connection: its input phase and its output.
#[derive(Debug, Default)]
pub struct Conn {
    phase: Phase,
    /// Whether the client has sent a line that is not blank.
    has_spoken: bool,
    /// Replies to be sent.
    pub output: Output,
    /// The number of the commit that last released replies of this connection, or 0: see the
    /// server's `gathering`.
    pub(crate) answered_in: u32,
    /// The largest job id in the replies appended since the output of this connection was last
    /// empty. The id of an `INSERTED` is not included, because that reply is held until the commit.
    pub(crate) shown_id: u64,
    /// Whether the client has closed its sending side, so that no more bytes will arrive.
    pub(crate) is_half_closed: bool,
    /// Whether this connection is in the server's list of dirty connections.
    pub(crate) is_dirty: bool,
}

impl Conn {
    /// Takes bytes from the front of `rest`, and returns their meaning. Stores a body in `bodies`.
    pub fn step<'a>(&mut self, rest: &mut &'a [u8], bodies: &mut Bodies) -> Step<'a> {
        if !self.takes_input() {
            return Step::Paused;
        }
        match &mut self.phase {
            Phase::Line => self.line(rest, bodies),
            Phase::SkipLine => {
                let Some(end) = end_of_line(rest) else {
                    // A CR at the end may be the first half of the CR LF that ends the line.
                    let kept = usize::from(rest.ends_with(b"\r"));
                    *rest = &rest[rest.len() - kept..];
                    return Step::More;
                };
                *rest = &rest[end..];
                self.phase = Phase::Line;
                Step::Reject(Reply::BAD_FORMAT)
            }
            Phase::Body(body) => {
                if body.take(rest, bodies).is_err() {
                    let left = body.left() as u64;
                    self.drop_body(bodies);
                    self.phase = Phase::Skip { left, then: Reply::OUT_OF_MEMORY };
                    return self.step(rest, bodies);
                }
                if body.left() > 0 {
                    return Step::More;
                }
                let (put, got) = (body.put, body.got.take());
                self.phase = Phase::Line;
                Step::Body(put, got.expect("a body has at least its CR LF"))
            }
            Phase::Skip { left, then } => {
                let skipped = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                *left -= skipped as u64;
                *rest = &rest[skipped..];
                if *left > 0 {
                    return Step::More;
                }
                let then = *then;
                self.phase = Phase::Line;
                Step::Reject(then)
            }
            Phase::WaitingForInput if rest.is_empty() => Step::More,
            Phase::WaitingForInput => Step::Abort,
            Phase::Waiting | Phase::WaitEnded | Phase::Closing => Step::Paused,
        }
    }

    /// Takes a line from the front of `rest`, if its CR LF has arrived.
    fn line<'a>(&mut self, rest: &mut &'a [u8], bodies: &mut Bodies) -> Step<'a> {
        let within = &rest[..rest.len().min(LINE_LIMIT)];
        if let Some(end) = end_of_line(within) {
            let (line, behind) = rest.split_at(end);
            *rest = behind;
            let line = &line[..end - CRLF.len()];
            return if self.is_http(line, true) { Step::Http(line) } else { Step::Line(line) };
        }
        if rest.len() < LINE_LIMIT {
            return Step::More;
        }
        if self.is_http(within, false) {
            return Step::Http(within);
        }
        self.phase = Phase::SkipLine;
        self.step(rest, bodies)
    }

    /// Whether `line` is the connection's first non-blank line, and begins an HTTP request.
    fn is_http(&mut self, line: &[u8], is_whole: bool) -> bool {
        if self.has_spoken {
            return false;
        }
        self.has_spoken = !line.trim_ascii().is_empty();
        proto::is_http_request(line, is_whole)
    }

    /// Begins the body that the header of a `put` announces. If the whole body is in `rest`,
    /// returns the body with its CR LF, so that the body is copied only once. If a part is missing,
    /// [`Conn::step`] allocates memory for the body as its bytes arrive.
    pub fn expect_body<'a>(&mut self, put: PendingPut, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        if let Some((body, behind)) = rest.split_at_checked(put.size()) {
            *rest = behind;
            return Some(body);
        }
        self.phase = Phase::Body(Collecting { put, got: None });
        None
    }

    /// Makes [`Conn::step`] skip a body of `size` bytes with its CR LF, and then return `then`.
    pub fn skip_body(&mut self, size: u32, then: Reply<'static>) {
        self.phase = Phase::Skip { left: u64::from(size) + CRLF.len() as u64, then };
    }

    /// Makes the connection take no input until [`Conn::resume`].
    pub fn wait(&mut self) {
        self.phase = Phase::Waiting;
    }

    /// If the connection waits, for example in a `reserve`, further input will end this wait.
    pub fn end_wait_on_input(&mut self) {
        if self.is_waiting() {
            self.phase = Phase::WaitingForInput;
        }
    }

    /// Ends the wait of a `reserve` for a job; the server must still answer the `reserve`.
    pub fn end_wait(&mut self) {
        debug_assert!(self.is_waiting());
        self.phase = Phase::WaitEnded;
    }

    /// Whether a `reserve` no longer waits for a job, but has not been answered yet.
    pub fn has_wait_ended(&self) -> bool {
        matches!(self.phase, Phase::WaitEnded)
    }

    /// Makes the connection take input again, after a wait.
    pub fn resume(&mut self) {
        debug_assert!(self.is_waiting() || self.has_wait_ended());
        self.phase = Phase::Line;
    }

    /// Makes the connection take no more input, and removes an unfinished body.
    pub fn close(&mut self, bodies: &mut Bodies) {
        self.drop_body(bodies);
        self.phase = Phase::Closing;
    }

    /// Makes the connection take no more input, and removes an unfinished body and unsent output.
    pub fn forget(&mut self, bodies: &mut Bodies) {
        self.close(bodies);
        self.output.clear(bodies);
    }

    /// Removes an unfinished body.
    fn drop_body(&mut self, bodies: &mut Bodies) {
        let Phase::Body(body) = &mut self.phase else { return };
        if let Some(got) = body.got.take() {
            bodies.remove(got);
        }
    }

    /// How many bytes of an unfinished body the connection has received.
    pub fn received(&self) -> usize {
        let Phase::Body(Collecting { got: Some(got), .. }) = &self.phase else { return 0 };
        got.len()
    }

    /// Whether a `reserve` of this connection waits for a job, or a long command is in progress.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::WaitingForInput)
    }

    /// Whether [`Conn::step`] would take input now, instead of returning [`Step::Paused`].
    pub fn takes_input(&self) -> bool {
        let is_paused = matches!(self.phase, Phase::Waiting | Phase::WaitEnded | Phase::Closing);
        !is_paused && self.output.len() < OUTPUT_MAX_BYTES
    }

    /// Whether a closing connection has sent all its output, so that its socket can be closed.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Closing) && self.output.is_empty()
    }
}

/// The index of the byte after the first CR LF.
fn end_of_line(bytes: &[u8]) -> Option<usize> {
    bytes.windows(CRLF.len()).position(|pair| pair == CRLF).map(|at| at + CRLF.len())
}

impl Collecting {
    /// How many bytes of an unfinished body have not arrived yet.
    fn left(&self) -> usize {
        self.put.size() - self.got.as_ref().map_or(0, Body::len)
    }

    /// Moves bytes of the body from `rest` to `bodies`. If memory is short, moves none and fails.
    fn take(&mut self, rest: &mut &[u8], bodies: &mut Bodies) -> Growth {
        let (bytes, behind) = rest.split_at(rest.len().min(self.left()));
        if bytes.is_empty() {
            return Ok(());
        }
        let got = match &mut self.got {
            Some(got) => got,
            None => self.got.insert(bodies.begin(self.put.size())?),
        };
        bodies.append(got, bytes)?;
        *rest = behind;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(size: u32) -> PendingPut {
        let header = PutHeader { pri: 0, delay: 0, ttr: 1, size };
        PendingPut { id: 1, header, received_at: Time::from_nanoseconds(0) }
    }

    /// Feeds bytes to a connection, and returns each step as a text.
    fn steps(conn: &mut Conn, bytes: &[u8]) -> Vec<String> {
        steps_in(&mut Bodies::default(), conn, bytes)
    }

    fn steps_in(bodies: &mut Bodies, conn: &mut Conn, mut bytes: &[u8]) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            match conn.step(&mut bytes, bodies) {
                Step::Line(line) => seen.push(String::from_utf8_lossy(line).into_owned()),
                Step::Http(_) => seen.push("HTTP".into()),
                Step::Body(_, body) => {
                    seen.push(format!("{} bytes", body.len()));
                    bodies.remove(body);
                }
                Step::Reject(refused) => seen.push(format!("{refused:?}")),
                Step::Abort => {
                    seen.push("abort".into());
                    conn.resume();
                }
                Step::More => {
                    seen.push(format!("{} left", bytes.len()));
                    return seen;
                }
                Step::Paused => {
                    seen.push("paused".into());
                    return seen;
                }
            }
        }
    }

    #[test]
    fn lines_end_in_cr_lf_and_nothing_else() {
        let conn = &mut Conn::default();
        assert_eq!(
            steps(conn, b"a\r\n\r\nb\nc\r\nd\re\r\nf\r"),
            ["a", "", "b\nc", "d\re", "2 left"]
        );
    }

    #[test]
    fn a_line_is_too_long_from_225_bytes_on_and_the_next_is_untouched() {
        for (length, wanted) in [(222, None), (223, Some(())), (224, Some(())), (5000, Some(()))] {
            let text = "x".repeat(length);
            let first = wanted.map_or(text.clone(), |()| "BAD_FORMAT".into());
            let stream = format!("{text}\r\nnext\r\n");
            assert_eq!(steps(&mut Conn::default(), stream.as_bytes()), [&first, "next", "0 left"]);
        }
    }

    #[test]
    fn input_ends_only_a_wait_that_it_may_end() {
        let conn = &mut Conn::default();
        conn.end_wait_on_input();
        conn.wait();
        assert_eq!(steps(conn, b"a\r\n"), ["paused"]);
        conn.end_wait_on_input();
        assert_eq!(steps(conn, b""), ["0 left"]);
        assert_eq!(steps(conn, b"a\r\nb"), ["abort", "a", "1 left"]);
    }

    #[test]
    fn only_the_first_line_may_be_http() {
        let request = b"GET / HTTP/1.1\r\n";
        assert_eq!(steps(&mut Conn::default(), request), ["HTTP", "0 left"]);
        let conn = &mut Conn::default();
        assert_eq!(steps(conn, b"stats\r\n"), ["stats", "0 left"]);
        assert_eq!(steps(conn, request), ["GET / HTTP/1.1", "0 left"]);
        assert_eq!(steps(&mut Conn::default(), b"\r\n \r\nGET /\r\n"), ["", " ", "HTTP", "0 left"]);
        let long = format!("POST /{}", "x".repeat(LINE_LIMIT));
        assert_eq!(steps(&mut Conn::default(), long.as_bytes())[0], "HTTP");
    }

    #[test]
    fn a_too_long_line_may_be_split_between_cr_and_lf() {
        let conn = &mut Conn::default();
        assert_eq!(steps(conn, "y".repeat(300).as_bytes()), ["0 left"]);
        assert_eq!(steps(conn, b"yy\r"), ["1 left"]);
        assert_eq!(steps(conn, b"\r"), ["1 left"]);
        assert_eq!(steps(conn, b"\r\nnext\r\n"), ["BAD_FORMAT", "next", "0 left"]);
    }

    #[test]
    fn a_body_is_collected_from_pieces() {
        let (bodies, conn) = (&mut Bodies::default(), &mut Conn::default());
        let mut rest: &[u8] = b"abc";
        assert!(conn.expect_body(put(1 << 30), &mut rest).is_none());
        assert_eq!(steps_in(bodies, conn, rest), ["0 left"]);
        let Phase::Body(body) = &conn.phase else { panic!("in the middle of a body") };
        assert_eq!(body.got.as_ref().map(Body::len), Some(3));
        conn.close(bodies);
        let left = bodies.counted;
        assert_eq!(left, 0, "an unfinished body is freed with its connection");
    }

    #[test]
    fn a_body_ends_after_its_announced_length() {
        let conn = &mut Conn::default();
        let mut rest: &[u8] = b"abcd\r\nnext\r\n";
        assert_eq!(conn.expect_body(put(4), &mut rest), Some(&b"abcd\r\n"[..]));
        assert_eq!(steps(conn, rest), ["next", "0 left"]);
        let (bodies, mut rest) = (&mut Bodies::default(), &b""[..]);
        assert!(conn.expect_body(put(4), &mut rest).is_none());
        for byte in b"abcd\r" {
            assert_eq!(steps_in(bodies, conn, &[*byte]), ["0 left"]);
        }
        assert_eq!(steps_in(bodies, conn, b"\nnext\r\n"), ["6 bytes", "next", "0 left"]);
    }

    #[test]
    fn a_skipped_body_is_rejected_at_its_end() {
        let conn = &mut Conn::default();
        conn.skip_body(u32::MAX, Reply::JOB_TOO_BIG);
        // A body of 2^32 - 1 bytes is made of 257 parts of 16,711,935 bytes.
        let part = vec![0; 16_711_935];
        for _ in 0..257 {
            assert_eq!(steps(conn, &part), ["0 left"]);
        }
        assert_eq!(steps(conn, b"\r\nnext\r\n"), ["JOB_TOO_BIG", "next", "0 left"]);
    }

    #[test]
    fn a_waiting_connection_takes_no_input() {
        let conn = &mut Conn::default();
        conn.wait();
        assert_eq!(steps(conn, b"stats\r\n"), ["paused"]);
        conn.resume();
        assert_eq!(steps(conn, b"stats\r\n"), ["stats", "0 left"]);
    }

    #[test]
    fn input_pauses_while_too_much_output_is_unsent() {
        let conn = &mut Conn::default();
        let bodies = &mut Bodies::default();
        conn.output.write(|buffer| buffer.resize(OUTPUT_MAX_BYTES, 0));
        assert_eq!(steps(conn, b"stats\r\n"), ["paused"]);
        conn.output.sent(1, bodies);
        assert_eq!(steps(conn, b"stats\r\n"), ["stats", "0 left"]);
    }
}
