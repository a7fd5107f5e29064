//! Takes replies from a stream, compares them, and writes them as expectations of a script.
//!
//! Two replies are the same if all bytes are equal. Values may differ only if they depend on the
//! machine or the process, or if a mask allows it. Ages and remaining times must be equal, too: no
//! run sends a command near the moments at which these numbers change. The announced length of a
//! YAML body is checked.

use std::collections::BTreeMap;

use crate::dialect::Dialect;
use crate::text::show;

/// The longest body of a reply, in bytes; a longer body is not awaited.
const BODY_MAX_BYTES: usize = 64 << 20;

/// One reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A line, without CR LF.
    Line(Vec<u8>),
    /// `RESERVED` or `FOUND` with a job's body.
    Job { head: Vec<u8>, body: Vec<u8> },
    /// `OK` with the lines of a YAML body.
    Yaml(Vec<Vec<u8>>),
    /// A reply whose body has a wrong length, and all later bytes, which cannot be parsed.
    Broken(Vec<u8>),
}

impl Reply {
    /// Takes the first complete reply from the bytes that one of the two daemons sent.
    pub(crate) fn take(arrived: &mut Vec<u8>) -> Option<Self> {
        let end = arrived.windows(2).position(|pair| pair == b"\r\n")?;
        let Some(length) = body_length(&arrived[..end]) else {
            let line = arrived[..end].to_vec();
            arrived.drain(..end + 2);
            return Some(Self::Line(line));
        };
        let (from, to) = (end + 2, end + 2 + length);
        if arrived.len() < to + 2 {
            return None;
        }
        let is_yaml = arrived.starts_with(b"OK ");
        let is_whole = arrived[to..].starts_with(b"\r\n")
            && (!is_yaml || length == 0 || arrived[to - 1] == b'\n');
        if !is_whole {
            return Some(Self::Broken(std::mem::take(arrived)));
        }
        let head = arrived[..end].to_vec();
        let body = arrived[from..to].to_vec();
        arrived.drain(..to + 2);
        if !is_yaml {
            return Some(Self::Job { head, body });
        }
        let lines = body.strip_suffix(b"\n").unwrap_or_default();
        Some(Self::Yaml(lines.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()))
    }

    /// Returns the reply's first line.
    pub(crate) fn head(&self) -> &[u8] {
        match self {
            Self::Line(line) => line,
            Self::Job { head, .. } => head,
            Self::Yaml(_) => b"OK",
            Self::Broken(bytes) => bytes,
        }
    }

    /// Writes the reply of a daemon as an expectation of a script, for the connection `peer`. For a
    /// value that depends on the machine, the expectation allows any text.
    pub(crate) fn expectation(&self, peer: char) -> String {
        match self {
            Self::Line(line) => format!("{peer}< {}\n", trimmed(&with_ids(line))),
            Self::Job { head, body } => {
                format!("{peer}< {}|{}\n", with_ids(head), trimmed(&whole(body)))
            }
            Self::Yaml(lines) => {
                let kind = Kind::of(lines);
                let lines = lines.iter().map(|line| format!("  {}\n", kind.expectation(line)));
                format!("{peer}< OK\n{}", lines.collect::<String>())
            }
            Self::Broken(bytes) => format!("{peer}< {}\n", trimmed(&whole(bytes))),
        }
    }

    /// Returns the reply as a short text, which a message shows.
    pub(crate) fn summary(&self) -> String {
        match self {
            Self::Line(line) => show(line),
            Self::Job { head, body } => format!("{}|{}", show(head), show(body)),
            Self::Yaml(lines) => show(&lines.join(&b'\n')),
            Self::Broken(bytes) => format!("(broken) {}", show(bytes)),
        }
    }
}

/// Returns the length of the body that follows the line of a reply, if a body follows.
fn body_length(line: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split(' ');
    let count = match words.next()? {
        "OK" => 1,
        "RESERVED" | "FOUND" => 2,
        _ => return None,
    };
    let numbers: Vec<usize> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers
        .get(count - 1)
        .copied()
        .filter(|&length| numbers.len() == count && length <= BODY_MAX_BYTES)
}

/// The kind of a YAML body, on which the meaning of a key depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Daemon,
    Tube,
    Job,
    List,
}

/// How the values of a key are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Exact,
    /// A value of the machine or the process, which is not compared.
    Machine,
    /// A name, which some daemons print without quotes.
    Name,
}

impl Kind {
    /// Returns the kind of a YAML body, which its second line shows.
    fn of(lines: &[Vec<u8>]) -> Self {
        match lines.get(1) {
            Some(line) if line.starts_with(b"current-jobs-urgent: ") => Self::Daemon,
            Some(line) if line.starts_with(b"name: ") => Self::Tube,
            Some(line) if line.starts_with(b"id: ") => Self::Job,
            _ => Self::List,
        }
    }

    /// Returns how the values of a key are compared.
    fn rule(self, key: &str) -> Rule {
        match (self, key) {
            (
                Self::Daemon,
                "pid" | "version" | "rusage-utime" | "rusage-stime" | "uptime" | "id" | "hostname"
                | "os" | "platform",
            ) => Rule::Machine,
            (Self::Tube, "name") | (Self::Job, "tube") => Rule::Name,
            _ => Rule::Exact,
        }
    }

    /// Writes a line of a YAML body as an expectation of a script.
    fn expectation(self, line: &[u8]) -> String {
        let Some((key, value)) = entry(line) else { return trimmed(&whole(line)) };
        match (self.rule(key), value.parse::<i64>()) {
            (Rule::Machine | Rule::Name, _) => format!("{key}: {{any}}"),
            (Rule::Exact, Ok(id)) if self == Self::Job && key == "id" => format!("id: %{id}"),
            (Rule::Exact, _) => trimmed(&whole(line)),
        }
    }
}

/// Splits a line of a YAML body into key and value.
fn entry(line: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(line).ok()?.split_once(": ")
}

/// Compares the replies of two daemons.
#[derive(Debug, Clone)]
pub(crate) struct Comparator {
    /// For each daemon, whether it prints names without quotes.
    is_unquoted: [bool; 2],
    /// Whether the daemons keep binlogs; if so, keys about binlogs are not compared.
    has_binlogs: bool,
}

impl Comparator {
    /// Makes a comparator for two dialects.
    pub(crate) fn new(dialects: [&Dialect; 2], has_binlogs: bool) -> Self {
        let is_unquoted = dialects.map(|dialect| dialect.masks.contains("unquoted-names"));
        Self { is_unquoted, has_binlogs }
    }

    /// Describes how two replies differ, if they do.
    pub(crate) fn difference(&self, replies: [&Reply; 2]) -> Option<String> {
        let [Reply::Yaml(left), Reply::Yaml(right)] = replies else {
            let [left, right] = replies.map(Reply::summary);
            return (replies[0] != replies[1])
                .then(|| format!("left answered `{left}`, right `{right}`"));
        };
        let kinds = [Kind::of(left), Kind::of(right)];
        let mut message = Vec::new();
        for index in 0..left.len().max(right.len()) {
            let lines = [left, right].map(|lines| lines.get(index).map_or(&b""[..], |line| line));
            if kinds[0] != kinds[1] || !self.is_same_line(kinds[0], lines) {
                message.push(format!("left has `{}`, right `{}`", show(lines[0]), show(lines[1])));
            }
        }
        (!message.is_empty()).then(|| message.join("; "))
    }

    /// Returns whether two lines of YAML bodies are equal, apart from values that may differ.
    fn is_same_line(&self, kind: Kind, lines: [&[u8]; 2]) -> bool {
        let [Some((left_key, left)), Some((right_key, right))] = lines.map(entry) else {
            return lines[0] == lines[1];
        };
        let is_of_binlog = left_key.starts_with("binlog-") || left_key == "file";
        let is_same_value = match kind.rule(left_key) {
            Rule::Exact if is_of_binlog && self.has_binlogs => true,
            Rule::Exact => left == right,
            Rule::Machine => true,
            Rule::Name => {
                let names = [left, right];
                let bare = |side: usize| {
                    if self.is_unquoted[side] {
                        Some(names[side])
                    } else {
                        names[side].strip_prefix('"')?.strip_suffix('"')
                    }
                };
                bare(0).is_some() && bare(0) == bare(1)
            }
        };
        left_key == right_key && is_same_value
    }
}

/// The highest job id and the counters of a daemon when a run began. These numbers are subtracted
/// from the ids and counters in replies.
#[derive(Debug, Clone, Default)]
pub(crate) struct Baseline {
    /// The highest job id when the run began.
    pub(crate) id: u64,
    /// The counters of `stats` that never decrease.
    pub(crate) counters: BTreeMap<String, u64>,
    /// The counters of `stats-tube default` that never decrease.
    pub(crate) default_tube: BTreeMap<String, u64>,
}

impl Baseline {
    /// Returns those counters of a reply's YAML body that never decrease.
    pub(crate) fn counters(yaml: &str) -> BTreeMap<String, u64> {
        let never_goes_down = |key: &str| {
            let start = ["cmd-", "total-"].iter().any(|start| key.starts_with(start));
            start || key == "job-timeouts" || key == "uptime"
        };
        let entries = yaml.lines().filter_map(|line| line.split_once(": "));
        let counters = entries.filter(|(key, _)| never_goes_down(key));
        counters.filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?))).collect()
    }

    /// Replaces ids and counters in a reply by the values that a daemon started for this run would
    /// send.
    pub(crate) fn relative(&self, reply: Reply) -> Reply {
        match reply {
            Reply::Line(line) => Reply::Line(self.relative_head(&line)),
            Reply::Job { head, body } => Reply::Job { head: self.relative_head(&head), body },
            Reply::Yaml(lines) => self.relative_yaml(lines),
            Reply::Broken(bytes) => Reply::Broken(bytes),
        }
    }

    /// Subtracts the baseline's id from the id in a reply's first line.
    fn relative_head(&self, head: &[u8]) -> Vec<u8> {
        let words: Vec<&[u8]> = head.split(|&byte| byte == b' ').collect();
        let [b"INSERTED" | b"RESERVED" | b"FOUND" | b"BURIED", id, rest @ ..] = &words[..] else {
            return head.to_vec();
        };
        let id = less(&String::from_utf8_lossy(id), self.id);
        let words = [&[words[0], id.as_bytes()][..], rest].concat();
        words.join(&b' ')
    }

    /// Subtracts the baseline's numbers from the ids and counters of a YAML body.
    fn relative_yaml(&self, lines: Vec<Vec<u8>>) -> Reply {
        let kind = Kind::of(&lines);
        let name = |line: &Vec<u8>| line == b"name: default" || line == b"name: \"default\"";
        let counters = match kind {
            Kind::Daemon => Some(&self.counters),
            Kind::Tube if lines.get(1).is_some_and(name) => Some(&self.default_tube),
            Kind::Tube | Kind::Job | Kind::List => None,
        };
        let message = |line: Vec<u8>| match entry(&line) {
            Some(("id", id)) if kind == Kind::Job => format!("id: {}", less(id, self.id)).into(),
            Some((key, value)) => match counters.and_then(|counters| counters.get(key)) {
                Some(&before) => format!("{key}: {}", less(value, before)).into(),
                None => line,
            },
            None => line,
        };
        Reply::Yaml(lines.into_iter().map(message).collect())
    }
}

/// Subtracts `base` from a number of a reply; other text stays as it is.
fn less(number: &str, base: u64) -> String {
    let less = number.parse::<u64>().ok().and_then(|number| number.checked_sub(base));
    less.map_or_else(|| number.to_owned(), |number| number.to_string())
}

/// Writes the line of a reply with `%N` for a job id, as in a script.
fn with_ids(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head);
    let words: Vec<&str> = text.split(' ').collect();
    let [word @ ("INSERTED" | "RESERVED" | "FOUND"), id, rest @ ..] = &words[..] else {
        return whole(head);
    };
    if id.parse::<u32>().is_err() {
        return whole(head);
    }
    [&[*word, &format!("%{id}")][..], rest].concat().join(" ")
}

/// [`show`] abbreviates a run of at least this many equal bytes.
const RUN_MIN_BYTES: usize = 24;
/// The number of bytes passed to [`show`] at a time, few enough that [`show`] omits no byte.
const SHOWN_AT_ONCE_BYTES: usize = 256;

/// Writes all bytes of a reply in the notation of scripts.
pub(crate) fn whole(bytes: &[u8]) -> String {
    let mut shown = String::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = match run_length(rest) {
            run if run >= RUN_MIN_BYTES => run,
            _ => (1..rest.len().min(SHOWN_AT_ONCE_BYTES))
                .find(|&at| run_length(&rest[at..]) >= RUN_MIN_BYTES)
                .unwrap_or(rest.len().min(SHOWN_AT_ONCE_BYTES)),
        };
        // Does not split between CR and LF, which scripts write as one character.
        let splits = rest[..length].ends_with(b"\r") && rest.get(length) == Some(&b'\n');
        let length = if splits && length > 1 { length - 1 } else { length };
        shown.push_str(&show(&rest[..length]));
        rest = &rest[length..];
    }
    shown
}

/// Returns how many bytes at the beginning are equal to the first byte. A script writes such a run
/// as one byte and a count.
fn run_length(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|&byte| Some(byte) == bytes.first()).count()
}

/// Escapes a space at the end of a statement, where scripts allow none.
pub(crate) fn trimmed(shown: &str) -> String {
    match shown.strip_suffix(' ') {
        Some(start) => format!("{start}\\x20"),
        None => shown.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies(bytes: &[u8]) -> (Vec<Reply>, Vec<u8>) {
        let mut rest = bytes.to_vec();
        let replies = std::iter::from_fn(|| Reply::take(&mut rest)).collect();
        (replies, rest)
    }

    fn yaml(text: &str) -> Reply {
        Reply::Yaml(text.lines().map(|line| line.as_bytes().to_vec()).collect())
    }

    fn comparator(left: &str, right: &str) -> Comparator {
        let [left, right] = [left, right].map(|name| Dialect::named(name).unwrap());
        Comparator::new([&left, &right], false)
    }

    #[test]
    fn replies_are_split_at_their_ends() {
        let (all, rest) =
            replies(b"DELETED\r\nFOUND 1 4\r\na\r\nb\r\nOK 6\r\n---\na\n\r\nOK 3\r\nab");
        let found = Reply::Job { head: b"FOUND 1 4".to_vec(), body: b"a\r\nb".to_vec() };
        assert_eq!(all, [Reply::Line(b"DELETED".to_vec()), found, yaml("---\na")]);
        assert_eq!(rest, b"OK 3\r\nab");
        for broken in ["FOUND 1 1\r\nabcd", "OK 4\r\n---\na\n\r\n", "OK 3\r\n---\r\n"] {
            let (all, rest) = replies(broken.as_bytes());
            assert_eq!(all, [Reply::Broken(broken.as_bytes().to_vec())]);
            assert_eq!(rest, b"");
        }
        let (odd, _) = replies(b"OK\r\nOK x\r\nFOUND 1\r\nRESERVED 1 2 3\r\n\r\n");
        assert_eq!(odd.len(), 5, "lines that announce nothing: {odd:?}");
    }

    #[test]
    fn only_what_is_declared_may_differ() {
        let table = [
            (
                "stats",
                "---\ncurrent-jobs-urgent: 0\npid: 1\nuptime: 3\nid: ab",
                true,
                [("pid: 1", "pid: 22"), ("uptime: 3", "uptime: 2"), ("id: ab", "id: cd")],
            ),
            (
                "stats",
                "---\ncurrent-jobs-urgent: 0\npid: 1\nuptime: 3\nid: ab",
                false,
                [("urgent: 0", "urgent: 1"), ("current", "Current"), ("pid", "PID")],
            ),
            (
                "job",
                "---\nid: 3\ntube: \"a\"\nage: 0\nttr: 9\ntime-left: 8",
                false,
                [("id: 3", "id: 4"), ("ttr: 9", "ttr: 8"), ("\"a\"", "a")],
            ),
            (
                "tube",
                "---\nname: \"a\"\npause: 1\npause-time-left: 1",
                false,
                [("left: 1", "left: 0"), ("left: 1", "left: 2"), ("pause: 1", "pause: 2")],
            ),
            (
                "list",
                "---\n- default\n- a",
                false,
                [("- a", "- b"), ("\n- a", ""), ("- a", "- a\n- b")],
            ),
        ];
        let comparator = comparator("ours", "ours");
        for (what, text, is_same, changes) in table {
            for (from, to) in changes {
                let other = text.replace(from, to);
                let message = comparator.difference([&yaml(text), &yaml(&other)]);
                assert_eq!(message.is_none(), is_same, "{what}: {to}: {message:?}");
            }
        }
    }

    #[test]
    fn names_may_be_unquoted_only_if_declared() {
        let quoted = yaml("---\nname: \"a\"");
        let plain = yaml("---\nname: a");
        let ours_and_old = comparator("ours", "1.12");
        assert_eq!(ours_and_old.difference([&quoted, &plain]), None);
        for wrong in [[&plain, &plain], [&quoted, &quoted], [&plain, &quoted]] {
            assert!(ours_and_old.difference(wrong).is_some(), "{wrong:?}");
        }
        assert_eq!(comparator("1.12", "ours").difference([&plain, &quoted]), None);
        assert_eq!(comparator("1.12", "1.12").difference([&plain, &plain]), None);
        assert!(comparator("ours", "1.13").difference([&quoted, &plain]).is_some());
    }

    #[test]
    fn replies_of_a_used_daemon_count_from_the_run() {
        let stats = "---\ncurrent-jobs-urgent: 2\ncmd-put: 12\nuptime: 100";
        let before = Baseline {
            id: 40,
            counters: Baseline::counters(&stats.replace("12", "10")),
            default_tube: BTreeMap::new(),
        };
        assert_eq!(before.counters.len(), 2, "{before:?}");
        let message = [
            (yaml(stats), yaml("---\ncurrent-jobs-urgent: 2\ncmd-put: 2\nuptime: 0")),
            (yaml("---\nid: 41\nttr: 41"), yaml("---\nid: 1\nttr: 41")),
            (Reply::Line(b"INSERTED 42".to_vec()), Reply::Line(b"INSERTED 2".to_vec())),
            (Reply::Line(b"KICKED 42".to_vec()), Reply::Line(b"KICKED 42".to_vec())),
        ];
        for (absolute, relative) in message {
            assert_eq!(before.relative(absolute), relative);
        }
    }

    #[test]
    fn only_values_of_the_machine_match_anything() {
        let job = Reply::Job { head: b"FOUND 3 2".to_vec(), body: b"% ".to_vec() };
        assert_eq!(job.expectation('a'), "a< FOUND %3 2|\\%\\x20\n");
        let stats = yaml("---\nid: 3\ntube: \"t\"\npri: 1\nage: 0\ntime-left: 9");
        let expected =
            "b< OK\n  ---\n  id: %3\n  tube: {any}\n  pri: 1\n  age: 0\n  time-left: 9\n";
        assert_eq!(stats.expectation('b'), expected);
        let stats = yaml("---\ncurrent-jobs-urgent: 1\nid: 3\nos: x\nuptime: 2");
        let expected =
            "b< OK\n  ---\n  current-jobs-urgent: 1\n  id: {any}\n  os: {any}\n  uptime: {any}\n";
        assert_eq!(stats.expectation('b'), expected);
    }

    #[test]
    fn all_bytes_are_written_however_many() {
        use crate::text::{Ids, Text, Use};
        let mut bytes: Vec<u8> = (0..=255).cycle().step_by(7).take(4000).collect();
        bytes.extend([b'x'; 5000]);
        bytes.extend(b"\r\n\r\n".repeat(300));
        let text = Text::parse(&whole(&bytes), Use::Send).unwrap();
        assert_eq!(text.bytes(Ids { base: 0, round: 0 }), bytes);
    }
}
