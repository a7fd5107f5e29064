//! The commands of a cycle, and their bytes.

use super::reader::{Body, Kind, STAMP_BYTES};
use crate::Prng;

/// One command of a cycle.
///
/// A command on a job takes the id from the reply to the last `put` or `reserve` of the cycle.
/// Before the cycle's first `put` or `reserve`, a command is sent with the id of a job that the
/// connection holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `put` of a job with the group's body.
    Put {
        /// The job's priority.
        priority: Priority,
        /// The job's delay in seconds.
        delay: u32,
    },
    /// `reserve`, which waits if no job is ready.
    Reserve,
    /// `delete` of a job of the cycle.
    Delete,
    /// `release` of a job of the cycle, without delay.
    Release {
        /// The job's new priority.
        priority: Priority,
    },
    /// `bury` of a job of the cycle.
    Bury,
    /// `touch` of a job of the cycle.
    Touch,
    /// `kick-job` of a job of the cycle.
    KickJob,
    /// `kick 1`.
    Kick,
    /// `peek` of a job of the cycle.
    Peek,
    /// `use` of a tube chosen at random from this number of tubes.
    Use(u64),
    /// `watch` of a tube chosen at random from this number of tubes.
    Watch(u64),
    /// `stats-tube` of a tube chosen at random from this number of tubes.
    StatsTube(u64),
    /// `stats`.
    Stats,
    /// `list-tubes`.
    ListTubes,
    /// `ignore` of the tube that the same cycle has watched.
    Ignore,
    /// A `reserve-with-timeout 0` that finds no job.
    ReserveEmpty,
}

/// How a priority is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Always this priority.
    Fixed(u32),
    /// A random number from 0 to 2^32 - 1.
    Random,
    /// A random number in this range, whose ends are included.
    Between(u32, u32),
}

impl Priority {
    /// Returns the priority of the next job, which may be random.
    pub(crate) fn choose(self, prng: &mut Prng) -> u32 {
        let below = |prng: &mut Prng, bound: u64| {
            u32::try_from(prng.below(bound)).expect("the bound is at most 2^32")
        };
        match self {
            Self::Fixed(priority) => priority,
            Self::Random => below(prng, 1 << 32),
            Self::Between(least, most) => least + below(prng, u64::from(most - least) + 1),
        }
    }
}

/// The parameters for encoding an [`Op`].
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub body: &'a Body,
    /// Time to run of each job, in seconds.
    pub ttr: u32,
    /// When the command should be sent, in nanoseconds of the load's clock.
    pub now: u64,
    pub prng: &'a mut Prng,
}

impl Op {
    /// Returns the command of this name with usual arguments; `None` for other names.
    pub fn named(word: &str) -> Option<Self> {
        let priority = Priority::Fixed(10);
        Some(match word {
            "put" => Self::Put { priority, delay: 0 },
            "reserve" => Self::Reserve,
            "delete" => Self::Delete,
            "release" => Self::Release { priority },
            "bury" => Self::Bury,
            "touch" => Self::Touch,
            "kick" => Self::Kick,
            "kick-job" => Self::KickJob,
            "peek" => Self::Peek,
            "stats" => Self::Stats,
            _ => return None,
        })
    }

    /// Returns whether the command of a cycle always has the same bytes; if so, its batches can be
    /// prepared.
    pub(crate) fn is_constant(self, body: &Body) -> bool {
        match self {
            Self::Put { priority: Priority::Fixed(_), .. } => !body.stamped,
            Self::Reserve | Self::Kick | Self::Stats | Self::ListTubes | Self::ReserveEmpty => true,
            _ => false,
        }
    }

    /// Returns the kind of the expected reply to the command.
    pub fn answer(self) -> Kind {
        match self {
            Self::Put { .. } => Kind::Inserted,
            Self::Reserve => Kind::Reserved,
            Self::Delete => Kind::Deleted,
            Self::Release { .. } => Kind::Released,
            Self::Bury => Kind::Buried,
            Self::Touch => Kind::Touched,
            Self::KickJob | Self::Kick => Kind::Kicked,
            Self::Peek => Kind::Found,
            Self::Use(_) => Kind::Using,
            Self::Watch(_) | Self::Ignore => Kind::Watching,
            Self::StatsTube(_) | Self::Stats | Self::ListTubes => Kind::Ok,
            Self::ReserveEmpty => Kind::TimedOut,
        }
    }

    /// Returns whether the next commands of the cycle use the job id in this reply.
    pub(crate) fn yields_id(self) -> bool {
        matches!(self, Self::Put { .. } | Self::Reserve)
    }

    /// Appends the bytes of the command. `slot` has the job's id; a `watch` stores the number of
    /// its tube in `slot`, for a later `ignore`.
    pub(crate) fn encode(self, out: &mut Vec<u8>, slot: &mut u64, context: &mut Context<'_>) {
        match self {
            Self::Put { priority, delay } => put(out, priority, delay, context),
            Self::Reserve => out.extend_from_slice(b"reserve\r\n"),
            Self::Stats => out.extend_from_slice(b"stats\r\n"),
            Self::ListTubes => out.extend_from_slice(b"list-tubes\r\n"),
            Self::ReserveEmpty => out.extend_from_slice(b"reserve-with-timeout 0\r\n"),
            Self::Kick => out.extend_from_slice(b"kick 1\r\n"),
            Self::Delete => numbered(out, b"delete ", *slot, b"\r\n"),
            Self::Touch => numbered(out, b"touch ", *slot, b"\r\n"),
            Self::Peek => numbered(out, b"peek ", *slot, b"\r\n"),
            Self::KickJob => numbered(out, b"kick-job ", *slot, b"\r\n"),
            Self::Bury => numbered(out, b"bury ", *slot, b" 0\r\n"),
            Self::Release { priority } => {
                numbered(out, b"release ", *slot, b" ");
                append_number(out, u64::from(priority.choose(context.prng)));
                out.extend_from_slice(b" 0\r\n");
            }
            Self::Use(tubes) => numbered(out, b"use t", context.prng.below(tubes), b"\r\n"),
            Self::StatsTube(tubes) => {
                numbered(out, b"stats-tube t", context.prng.below(tubes), b"\r\n");
            }
            Self::Watch(tubes) => {
                *slot = context.prng.below(tubes);
                numbered(out, b"watch t", *slot, b"\r\n");
            }
            Self::Ignore => numbered(out, b"ignore t", *slot, b"\r\n"),
        }
    }
}

/// Appends the bytes of a `put` with its body.
fn put(out: &mut Vec<u8>, priority: Priority, delay: u32, context: &mut Context<'_>) {
    let body = &context.body.bytes;
    numbered(out, b"put ", u64::from(priority.choose(context.prng)), b" ");
    numbered(out, b"", u64::from(delay), b" ");
    numbered(out, b"", u64::from(context.ttr), b" ");
    numbered(out, b"", body.len() as u64, b"\r\n");
    let start = out.len();
    out.extend_from_slice(body);
    if context.body.stamped {
        write_stamp(&mut out[start..start + STAMP_BYTES], context.now);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends to a command the bytes `before`, a number in decimal, and the bytes `after`.
fn numbered(out: &mut Vec<u8>, before: &[u8], number: u64, after: &[u8]) {
    out.extend_from_slice(before);
    append_number(out, number);
    out.extend_from_slice(after);
}

/// Appends a number in decimal to a command, without allocating memory.
pub(crate) fn append_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    write_stamp(&mut digits, number);
    let zeros = digits.iter().take(19).take_while(|&&digit| digit == b'0').count();
    out.extend_from_slice(&digits[zeros..]);
}

/// Fills `digits`, such as the stamp of a body, with a number in decimal and leading zeros.
fn write_stamp(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789"[usize::try_from(number % 10).expect("a digit")];
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(op: Op, mut slot: u64, body: &Body) -> String {
        let mut out = Vec::new();
        let mut prng = Prng::new(1);
        let mut context = Context { body, ttr: 60, now: 123, prng: &mut prng };
        op.encode(&mut out, &mut slot, &mut context);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn commands_have_the_bytes_of_the_protocol() {
        let body = Body::plain(2);
        let put = Op::Put { priority: Priority::Fixed(7), delay: 5 };
        assert_eq!(bytes(put, 0, &body), "put 7 5 60 2\r\n..\r\n");
        assert_eq!(bytes(Op::Delete, u64::MAX, &body), "delete 18446744073709551615\r\n");
        assert_eq!(bytes(Op::Delete, 0, &body), "delete 0\r\n");
        assert_eq!(bytes(Op::Bury, 10, &body), "bury 10 0\r\n");
        let release = Op::Release { priority: Priority::Fixed(4_294_967_295) };
        assert_eq!(bytes(release, 10, &body), "release 10 4294967295 0\r\n");
        assert_eq!(bytes(Op::Use(1), 0, &body), "use t0\r\n");
        let stamped = bytes(put, 0, &Body::stamped(22));
        assert_eq!(stamped, "put 7 5 60 22\r\n00000000000000000123..\r\n");
    }

    #[test]
    fn a_command_is_found_by_its_word() {
        let body = Body::plain(0);
        for word in
            ["put", "reserve", "delete", "release", "bury", "touch", "kick", "kick-job", "peek"]
        {
            let line = bytes(Op::named(word).unwrap(), 1, &body);
            assert_eq!(line.split_whitespace().next(), Some(word));
        }
        assert_eq!(Op::named("quit"), None);
    }

    #[test]
    fn a_tube_that_was_watched_is_the_one_that_is_ignored() {
        let body = Body::plain(0);
        let mut prng = Prng::new(3);
        let (mut out, mut slot) = (Vec::new(), 0);
        let mut context = Context { body: &body, ttr: 60, now: 0, prng: &mut prng };
        Op::Watch(1_000_000).encode(&mut out, &mut slot, &mut context);
        Op::Ignore.encode(&mut out, &mut slot, &mut context);
        let text = String::from_utf8(out).unwrap();
        let (watch, ignore) = text.trim_end().split_once("\r\n").unwrap();
        assert_eq!(watch.strip_prefix("watch "), ignore.strip_prefix("ignore "));
        assert_ne!(slot, 0);
    }

    #[test]
    fn priorities_stay_in_their_range() {
        let mut prng = Prng::new(9);
        let mut seen = [false; 3];
        for _ in 0..200 {
            let priority = Priority::Between(5, 7).choose(&mut prng);
            seen[usize::try_from(priority - 5).unwrap()] = true;
        }
        assert_eq!(seen, [true; 3]);
        assert_eq!(Priority::Fixed(3).choose(&mut prng), 3);
        assert_eq!(Priority::Between(4, 4).choose(&mut prng), 4);
    }
}
