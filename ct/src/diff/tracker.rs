//! The state of one connection, derived from the sent bytes and from the replies.
//!
//! A tracker splits the bytes into lines and bodies, and parses the commands that affect this
//! state. A tracker knows whether the client may be waiting and for which tubes, which jobs the
//! client holds, and whether the bytes that the client has sent end within a line or a body. A
//! tracker does not judge replies. If garbage misleads the tracker, an operation is omitted
//! needlessly, or a known difference is reported.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

/// The longest line in bytes, CR LF included.
const LINE_MAX_BYTES: usize = 224;

/// The effects of a command that matter to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verb {
    /// A put, with the number by which other operations name its job, if known.
    Put(Option<usize>),
    Reserve {
        may_wait: bool,
    },
    Watch(Vec<u8>),
    Ignore(Vec<u8>),
    /// A command whose reply has a job. The job's body may still be arriving.
    Inspect(u64),
    /// Ends the reservation of a job, if the command succeeds.
    EndReservation(u64),
    Other,
}

/// Input that some daemons are known to treat differently from our daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quirk {
    /// A CR inside a line.
    LoneCr,
    /// A line with a CR at a byte whose number is a multiple of 224.
    CrAt224,
    /// A timeout that is not a number within its range.
    UncheckedTimeout,
}

/// A command that has no reply yet. The first word of its line is kept for error messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) verb: Verb,
    pub(crate) word: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Input {
    Line(Vec<u8>),
    /// A body, accepted or not; the value is the number of missing bytes, CR LF included.
    Body(u64),
    /// No input, because `quit` was sent; the value is true if bytes were sent after `quit`.
    Ended {
        has_more: bool,
    },
}

/// A reply's effect on the jobs of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// The put with this number made a job.
    Inserted {
        put: Option<usize>,
        id: u64,
    },
}

/// The state of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Tracker {
    input: Input,
    job_size_limit: u64,
    pending: VecDeque<Sent>,
    watched: BTreeSet<Vec<u8>>,
    /// The ids of reserved jobs, in the order in which they were reserved. The time to run of some
    /// jobs may be over.
    held: Vec<u64>,
    quirks: BTreeSet<Quirk>,
}

impl Tracker {
    /// Makes the tracker of a new connection.
    pub(crate) fn new(job_size_limit: u64) -> Self {
        Self {
            input: Input::Line(Vec::new()),
            job_size_limit,
            pending: VecDeque::new(),
            watched: BTreeSet::from([b"default".to_vec()]),
            held: Vec::new(),
            quirks: BTreeSet::new(),
        }
    }

    /// Tracks the bytes that are sent on a connection. The job of the first `put` command in the
    /// bytes gets the number `put`, which operations use for it.
    pub(crate) fn sent(&mut self, bytes: &[u8], mut put: Option<usize>) {
        let mut rest = bytes;
        while let Some(&byte) = rest.first() {
            match &mut self.input {
                Input::Line(line) => {
                    rest = &rest[1..];
                    line.push(byte);
                    if line.ends_with(b"\r\n") {
                        let line = mem::take(line);
                        self.line(&line, &mut put);
                    } else if line.len() > 1 && line[line.len() - 2] == b'\r' {
                        self.quirks.insert(Quirk::LoneCr);
                    }
                }
                Input::Body(left) => {
                    let eaten = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    rest = &rest[eaten..];
                    *left -= eaten as u64;
                    if *left == 0 {
                        self.input = Input::Line(Vec::new());
                    }
                }
                Input::Ended { has_more } => {
                    *has_more = true;
                    return;
                }
            }
        }
    }

    /// Tracks the next reply, which answers the oldest command without a reply.
    pub(crate) fn replied(&mut self, line: &[u8]) -> Change {
        let line = String::from_utf8_lossy(line);
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let number = rest.split(' ').next().and_then(|number| number.parse().ok());
        let verb = self.pending.pop_front().map_or(Verb::Other, |sent| sent.verb);
        match (word, number, verb) {
            ("INSERTED", Some(id), Verb::Put(put)) => return Change::Inserted { put, id },
            ("RESERVED", Some(id), _) => self.held.push(id),
            ("DELETED" | "RELEASED" | "BURIED", _, Verb::EndReservation(id)) => {
                self.held.retain(|&held| held != id);
            }
            ("WATCHING", _, Verb::Watch(name)) => {
                self.watched.insert(name);
            }
            ("WATCHING", _, Verb::Ignore(name)) => {
                self.watched.remove(&name);
            }
            _ => {}
        }
        Change::Nothing
    }

    /// Returns the connection's commands without a reply so far, the oldest command first.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &Sent> {
        self.pending.iter()
    }

    /// Returns whether the tracked connection may be waiting in a reserve.
    pub(crate) fn may_wait(&self) -> bool {
        self.pending.iter().any(|sent| sent.verb == Verb::Reserve { may_wait: true })
    }

    /// Returns how many replies are certain to come on the tracked connection: one for each command
    /// before the first reserve that may wait. A put whose body is still arriving does not count.
    pub(crate) fn certain_replies(&self) -> usize {
        let waits = |sent: &Sent| sent.verb == Verb::Reserve { may_wait: true };
        let is_arriving = usize::from(self.is_uploading());
        let whole = self.pending.len().saturating_sub(is_arriving);
        self.pending.iter().position(waits).map_or(whole, |wait| wait.min(whole))
    }

    /// Returns whether the daemon closes the tracked connection after its last reply.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.input, Input::Ended { .. })
    }

    /// Returns whether anything was sent after `quit` on the tracked connection. The daemon never
    /// reads those bytes, so the connection is reset, and replies may be lost.
    pub(crate) fn is_reset(&self) -> bool {
        self.input == Input::Ended { has_more: true }
    }

    /// A reserve may wait, and commands may follow it. Returns whether these commands affect no
    /// other connection, so that it does not matter when they are executed.
    pub(crate) fn has_only_private_queued_commands(&self) -> bool {
        let private = ["use", "watch", "ignore", "list-tube-used", "list-tubes-watched"];
        self.pending.iter().skip(1).all(|sent| private.contains(&&*sent.word))
    }

    /// Returns whether there are commands after a reserve that may wait.
    pub(crate) fn has_queued_commands(&self) -> bool {
        self.may_wait() && self.pending.len() > 1
    }

    /// Returns whether both tracked connections may wait for the same job.
    pub(crate) fn competes_with(&self, other: &Self) -> bool {
        let (mine, others) = (self.may_watch(), other.may_watch());
        self.may_wait() && other.may_wait() && mine.iter().any(|name| others.contains(name))
    }

    /// Returns the tubes that the tracked connection watches and the tubes that commands in flight
    /// would add.
    fn may_watch(&self) -> BTreeSet<&[u8]> {
        let coming = self.pending.iter().filter_map(|sent| match &sent.verb {
            Verb::Watch(name) => Some(&name[..]),
            _ => None,
        });
        self.watched.iter().map(|name| &name[..]).chain(coming).collect()
    }

    /// Returns the id of a job that the tracked connection holds; `back` is 0 for the job reserved
    /// last, and counts back from that job.
    pub(crate) fn held(&self, back: usize) -> Option<u64> {
        self.held.iter().rev().nth(back).copied()
    }

    /// Returns whether a body is arriving on the tracked connection.
    pub(crate) fn is_uploading(&self) -> bool {
        matches!(self.input, Input::Body(_))
    }

    /// Returns whether the daemon would execute the tracked connection's next command at once.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.input == Input::Line(Vec::new())
    }

    /// Returns the kinds of unusual input in the bytes sent so far on the tracked connection.
    pub(crate) fn quirks(&self) -> &BTreeSet<Quirk> {
        &self.quirks
    }

    /// Tracks one line with its CR LF.
    fn line(&mut self, whole: &[u8], put: &mut Option<usize>) {
        let line = &whole[..whole.len() - 2];
        let word = line.split(|byte| !byte.is_ascii_lowercase() && *byte != b'-').next();
        let word = String::from_utf8_lossy(word.unwrap_or_default()).into_owned();
        if (line.len() + 1) % LINE_MAX_BYTES == 0 {
            self.quirks.insert(Quirk::CrAt224);
        }
        let is_well_formed =
            whole.len() <= LINE_MAX_BYTES && !line.iter().any(|b| b"\r\0".contains(b));
        let verb = if !is_well_formed {
            Verb::Other
        } else if line.starts_with(b"quit") {
            self.input = Input::Ended { has_more: false };
            return;
        } else if let Some(fields) = line.strip_prefix(b"put ") {
            self.put(fields, put)
        } else {
            self.verb(line)
        };
        self.pending.push_back(Sent { verb, word });
    }

    /// Parses the fields of a tracked put, so that the put's body is expected next.
    fn put(&mut self, fields: &[u8], put: &mut Option<usize>) -> Verb {
        let mut rest = fields;
        let mut bytes = 0;
        for _ in 0..4 {
            match number(rest).filter(|(number, _)| u32::try_from(*number).is_ok()) {
                Some((number, after)) => (bytes, rest) = (number, after),
                None => return Verb::Other,
            }
        }
        if bytes > self.job_size_limit {
            self.input = Input::Body(bytes + 2);
            return Verb::Other;
        }
        if !rest.is_empty() {
            return Verb::Other;
        }
        self.input = Input::Body(bytes + 2);
        Verb::Put(put.take())
    }

    /// Parses a line that the tracked connection sends. Commands that need no tracking are
    /// `Verb::Other`.
    fn verb(&mut self, line: &[u8]) -> Verb {
        let (word, rest) = match line.iter().position(|&byte| byte == b' ') {
            Some(space) => (&line[..space], &line[space + 1..]),
            None => (line, &b""[..]),
        };
        let id = || number(rest).map(|(number, _)| number);
        match word {
            b"reserve" if word == line => Verb::Reserve { may_wait: true },
            b"reserve-with-timeout" if word != line => self.reserve_with_timeout(rest),
            b"watch" => Verb::Watch(rest.to_vec()),
            b"ignore" => Verb::Ignore(rest.to_vec()),
            b"peek" | b"stats-job" => id().map_or(Verb::Other, Verb::Inspect),
            b"delete" | b"release" | b"bury" => id().map_or(Verb::Other, Verb::EndReservation),
            _ => Verb::Other,
        }
    }

    /// Parses the timeout of a tracked `reserve-with-timeout`.
    fn reserve_with_timeout(&mut self, rest: &[u8]) -> Verb {
        if let Some((seconds, _)) = number(rest).filter(|(seconds, _)| *seconds <= 0x7FFF_FFFF) {
            Verb::Reserve { may_wait: seconds > 0 }
        } else {
            self.quirks.insert(Quirk::UncheckedTimeout);
            Verb::Reserve { may_wait: true }
        }
    }
}

/// Parses spaces and a number at the beginning of `text`; returns the number and the rest of the
/// text.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let spaces = text.iter().take_while(|&&byte| byte == b' ').count();
    let text = &text[spaces..];
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(digits);
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(bytes: &[u8]) -> Tracker {
        let mut tracker = Tracker::new(100);
        tracker.sent(bytes, Some(7));
        tracker
    }

    fn verbs(bytes: &[u8]) -> Vec<Verb> {
        after(bytes).pending().map(|sent| sent.verb.clone()).collect()
    }

    #[test]
    fn commands_are_distinguished_from_bodies() {
        let other = || Verb::Other;
        let table: &[(&[u8], Vec<Verb>)] = &[
            (b"put 0 0 1 6\r\nstats\n\r\nstats\r\n", vec![Verb::Put(Some(7)), other()]),
            (b"put 0 0 1 3\r\ntoo long\r\n", vec![Verb::Put(Some(7)), other()]),
            (b"put 0 0 1 -1\r\npeek 1\r\n", vec![other(), Verb::Inspect(1)]),
            (b"put 0 0 1 4294967296\r\npeek 1\r\n", vec![other(), Verb::Inspect(1)]),
            (b"put 0 0 1 1 \r\npeek 1\r\n", vec![other(), Verb::Inspect(1)]),
            (b"put 0 0 1 101 x\r\npeek 1\r\n", vec![other()]),
            (b"use a\0\r\nquit now\r\nstats\r\n", vec![other()]),
            (
                b"reserve\r\nreserve-with-timeout 0x\r\nreserve-with-timeout 1\r\nreserved\r\n",
                vec![
                    Verb::Reserve { may_wait: true },
                    Verb::Reserve { may_wait: false },
                    Verb::Reserve { may_wait: true },
                    other(),
                ],
            ),
            (
                b"bury 5 1\r\nwatch x\r\nignore x\r\n",
                vec![
                    Verb::EndReservation(5),
                    Verb::Watch(b"x".to_vec()),
                    Verb::Ignore(b"x".to_vec()),
                ],
            ),
        ];
        for (bytes, expected) in table {
            assert_eq!(verbs(bytes), *expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn quirks_are_recognized() {
        let long = |length: usize| [&vec![b'x'; length][..], b"\r\n"].concat();
        let table: &[(Vec<u8>, &[Quirk])] = &[
            (b"use a\rb\r\n".to_vec(), &[Quirk::LoneCr]),
            (b"put 0 0 1 4\r\na\rb\r\r\n".to_vec(), &[]),
            (long(222), &[]),
            (long(223), &[Quirk::CrAt224]),
            (long(447), &[Quirk::CrAt224]),
            (b"reserve-with-timeout -1\r\n".to_vec(), &[Quirk::UncheckedTimeout]),
            (b"reserve-with-timeout\r\n".to_vec(), &[]),
        ];
        for (bytes, expected) in table {
            let found: Vec<Quirk> = after(bytes).quirks().iter().copied().collect();
            assert_eq!(found, *expected, "{}", bytes.escape_ascii());
        }
        let mut tracker = after(b"stats\r");
        assert!(!tracker.is_idle());
        tracker.sent(b"\n", None);
        assert!(tracker.quirks().is_empty());
    }

    #[test]
    fn certain_replies_end_at_a_wait_and_at_an_incomplete_body() {
        let table: [(&[u8], usize); 6] = [
            (b"stats\r\npeek 1\r\n", 2),
            (b"stats\r\nreserve\r\nstats\r\n", 1),
            (b"reserve-with-timeout 0\r\nstats\r\n", 2),
            (b"stats\r\nput 0 0 1 3\r\nab", 1),
            (b"put 0 0 1 3\r\nabc\r\nsta", 1),
            (b"reserve\r\nput 0 0 1 3\r\nab", 0),
        ];
        for (bytes, due) in table {
            assert_eq!(after(bytes).certain_replies(), due, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn bytes_after_quit_reset_and_use_and_watch_are_private() {
        assert!(!after(b"quit\r\n").is_reset());
        assert!(after(b"quit\r\n").is_ending());
        assert!(after(b"quit\r\nstats\r\n").is_reset());
        assert!(after(b"reserve\r\nwatch a\r\nuse b\r\n").has_only_private_queued_commands());
        assert!(!after(b"reserve\r\nwatch a\r\nreserve\r\n").has_only_private_queued_commands());
    }

    #[test]
    fn replies_update_the_state_of_a_connection() {
        let mut tracker =
            after(b"put 0 0 1 1\r\nx\r\nwatch t\r\nreserve\r\nreserve\r\ndelete 9\r\n");
        assert!(tracker.may_wait());
        assert_eq!(tracker.replied(b"INSERTED 9"), Change::Inserted { put: Some(7), id: 9 });
        tracker.replied(b"WATCHING 2");
        for id in [b"RESERVED 4 1", b"RESERVED 9 1"] {
            tracker.replied(id);
        }
        assert!(!tracker.may_wait());
        assert_eq!((tracker.held(0), tracker.held(1), tracker.held(2)), (Some(9), Some(4), None));
        tracker.replied(b"DELETED");
        assert_eq!((tracker.held(0), tracker.is_idle()), (Some(4), true));
        tracker.sent(b"ignore default\r\nreserve\r\n", None);
        tracker.replied(b"WATCHING 1");
        let mut other = after(b"reserve\r\n");
        assert!(!other.competes_with(&tracker), "they watch different tubes");
        other.sent(b"watch t\r\n", None);
        assert!(other.competes_with(&tracker));
    }
}
