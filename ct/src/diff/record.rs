//! Writes the events of a run as a golden script.
//!
//! The script expects the answers of the right daemon, so it passes on the right daemon and fails
//! on the left daemon.

use std::fmt::Write as _;
use std::time::Duration;

use super::operation::{INSPECTOR, Peer, name};
use super::reply::{Reply, trimmed, whole};
use super::side::Chunk;

/// One event.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Sent(Peer, Vec<Chunk>),
    Answered(Peer, Reply),
    /// The right daemon sent nothing, but the left daemon sent something or closed the connection.
    Silent(Peer),
    /// The daemon closed the connection.
    Closed(Peer),
    HalfClose(Peer),
    Close(Peer),
    Slept(Duration),
    Drained,
    Restarted,
}

/// A run that showed a difference.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) events: Vec<Event>,
    /// A description of the difference between the replies to the last events.
    pub(crate) message: String,
    /// The first word of the command whose answers differ.
    pub(crate) word: String,
}

/// The description of a difference in a script has at most this many characters.
const DESCRIPTION_MAX_CHARS: usize = 300;

impl Record {
    /// Writes the record of a run as a golden script. `origin` is the command line that finds the
    /// difference again.
    pub(crate) fn script(&self, origin: &str) -> String {
        let description: String = self.message.chars().take(DESCRIPTION_MAX_CHARS).collect();
        let word = if self.word.is_empty() { "connections" } else { &self.word };
        let mut script = format!(
            "# {}\n# Found by {origin}. The expected replies are the right daemon's.\n\
             proves {word}\nfresh\n\n",
            description.trim_end()
        );
        script.push_str(&self.opening());
        for event in &self.events {
            script.push_str(&event.statement());
        }
        script
    }

    /// If a reply in the record has `current-connections`, returns statements that open the
    /// barrier's connection first, because that connection was open during the whole run.
    fn opening(&self) -> String {
        let counts = |event: &Event| match event {
            Event::Answered(_, Reply::Yaml(lines)) => {
                lines.iter().any(|line| line.starts_with(b"current-connections"))
            }
            _ => false,
        };
        let first = self.events.iter().find_map(|event| match event {
            Event::Sent(peer, _) => Some(*peer),
            _ => None,
        });
        match first.filter(|_| self.events.iter().any(counts)) {
            Some(peer) => format!("{}: connect\n+1ms\n", name(peer)),
            None => String::new(),
        }
    }
}

impl Event {
    /// Writes a recorded event as a statement of a script.
    fn statement(&self) -> String {
        match self {
            Self::Sent(peer, chunks) => sent(*peer, chunks),
            Self::Answered(peer, reply) => reply.expectation(name(*peer)),
            Self::Silent(peer) => format!("{}: silent\n", name(*peer)),
            Self::Closed(peer) => format!("{}: closed\n", name(*peer)),
            Self::HalfClose(peer) => format!("{}: shutdown\n", name(*peer)),
            Self::Close(peer) => format!("{}: close\n", name(*peer)),
            Self::Slept(time) => format!("+{}ms\n", time.as_millis()),
            Self::Drained => "drain\n".to_owned(),
            // Scripts have no statement for a restart.
            Self::Restarted => "# The daemon is ended by SIGTERM and started again.\n".to_owned(),
        }
    }
}

/// Writes the statement for bytes that were sent in a recorded run.
fn sent(peer: Peer, chunks: &[Chunk]) -> String {
    let mut chunks = chunks.to_vec();
    let is_line = match chunks.last_mut() {
        Some(Chunk::Bytes(bytes)) if bytes.ends_with(b"\r\n") => {
            bytes.truncate(bytes.len() - 2);
            true
        }
        _ => false,
    };
    let mut text = String::new();
    for chunk in &chunks {
        match chunk {
            Chunk::Bytes(bytes) => text.push_str(&whole(bytes)),
            Chunk::Id(id) => write!(text, "%{id}").expect("a String takes everything"),
        }
    }
    let sign = if is_line { ">" } else { ">>" };
    let text = trimmed(&text);
    let space = if text.is_empty() { "" } else { " " };
    format!("{}{sign}{space}{text}\n", name(peer))
}

/// Puts the name of a connection before the message of a recorded difference.
pub(crate) fn on_connection(peer: Peer, message: &str) -> String {
    match peer {
        INSPECTOR => format!("at the end: {message}"),
        _ => format!("{}: {message}", name(peer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    fn bytes(text: &str) -> Chunk {
        Chunk::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn a_record_becomes_a_valid_golden_script() {
        let line = |text: &str| Reply::Line(text.as_bytes().to_vec());
        let stats = ["---", "current-jobs-urgent: 0", "current-connections: 2", "os: x"];
        let stats = Reply::Yaml(stats.map(|line| line.as_bytes().to_vec()).to_vec());
        let record = Record {
            events: vec![
                Event::Sent(0, vec![bytes("put 0 0 1 1\r\n%\r\n")]),
                Event::Answered(0, line("INSERTED 1")),
                Event::Sent(1, vec![bytes("use ")]),
                Event::Sent(1, vec![bytes("\r\n")]),
                Event::Answered(1, line("BAD_FORMAT")),
                Event::Slept(Duration::from_millis(1200)),
                Event::Sent(0, vec![bytes("release "), Chunk::Id(1), bytes(" 0 0\r\nstats\r\n")]),
                Event::Answered(0, line("NOT_FOUND")),
                Event::Answered(0, stats),
                Event::HalfClose(1),
                Event::Closed(1),
                Event::Close(0),
                Event::Drained,
                Event::Silent(2),
            ],
            message: "c: left answered `x `".to_owned(),
            word: "release".to_owned(),
        };
        let text = record.script("ct-diff --seed 1");
        let expected = r"# c: left answered `x `
# Found by ct-diff --seed 1. The expected replies are the right daemon's.
proves release
fresh

a: connect
+1ms
a> put 0 0 1 1|\%
a< INSERTED %1
b>> use\x20
b>
b< BAD_FORMAT
+1200ms
a> release %1 0 0|stats
a< NOT_FOUND
a< OK
  ---
  current-jobs-urgent: 0
  current-connections: 2
  os: {any}
b: shutdown
b: closed
a: close
drain
c: silent
";
        assert_eq!(text, expected);
        Script::parse("found", &text).unwrap();
    }
}
