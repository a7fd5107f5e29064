//! The operations of a run, a sequence with the same meaning on any daemon.
//!
//! Operations name a job by its `put`, not by its id, so that a sequence keeps its meaning when
//! operations are removed. Operations on the job of the seventh `put` still name that job if
//! earlier puts are removed.

use std::time::Duration;

/// The number of a connection in a run; 0 is named `a` in scripts, 1 is `b`, and so on.
pub(crate) type Peer = usize;

/// The connection that inspects all state at the end of a run.
pub(crate) const INSPECTOR: Peer = 25;

/// Returns the name that an operation's connection has in scripts.
pub(crate) fn name(peer: Peer) -> char {
    let letter = u8::try_from(peer).ok().filter(|&letter| letter < 26);
    char::from(b'a' + letter.expect("a run has at most 26 connections"))
}

/// The job that a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// The job of the put with this number.
    Put(usize),
    /// A reserved job of the connection, counted back from the job reserved last, which is 0.
    Held(usize),
}

/// A piece of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Bytes(Vec<u8>),
    /// The job's id in decimal.
    Id(Job),
}

/// One command, valid or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) parts: Vec<Part>,
    /// The number of the put, by which [`Job::Put`] names its job; `None` for other commands.
    pub(crate) put: Option<usize>,
}

impl Command {
    /// Makes a command from a line, and adds CR LF.
    pub(crate) fn line(line: impl Into<Vec<u8>>) -> Self {
        let mut bytes = line.into();
        bytes.extend_from_slice(b"\r\n");
        Self::raw(bytes)
    }

    /// Makes a command from a word, a job's id and the rest of the line, and adds CR LF.
    pub(crate) fn on_job(word: &str, job: Job, rest: &str) -> Self {
        let before = Part::Bytes(format!("{word} ").into_bytes());
        let after = Part::Bytes(format!("{rest}\r\n").into_bytes());
        Self { parts: vec![before, Part::Id(job), after], put: None }
    }

    /// Makes a command that consists of exactly these bytes.
    pub(crate) fn raw(bytes: Vec<u8>) -> Self {
        Self { parts: vec![Part::Bytes(bytes)], put: None }
    }
}

/// One operation of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Sends commands in one write. With a cut, only `cut` thousandths of the bytes are sent now.
    /// The other bytes are sent before the connection's next commands.
    Send { peer: Peer, commands: Vec<Command>, cut: Option<u16> },
    /// Shuts down the sending side of a connection.
    HalfClose(Peer),
    /// Closes a connection.
    Close(Peer),
    /// Lets time pass.
    Sleep(Duration),
    /// Sends the daemons SIGUSR1.
    Drain,
    /// Stops the daemons by SIGTERM and starts them again, with the same binlogs.
    Restart,
}

impl Operation {
    /// Makes an operation that sends one command in full.
    pub(crate) fn send(peer: Peer, command: Command) -> Self {
        Self::Send { peer, commands: vec![command], cut: None }
    }

    /// Returns the connection of an operation, if it has one.
    fn peer_mut(&mut self) -> Option<&mut Peer> {
        match self {
            Self::Send { peer, .. } | Self::HalfClose(peer) | Self::Close(peer) => Some(peer),
            Self::Sleep(_) | Self::Drain | Self::Restart => None,
        }
    }

    /// Lists simpler forms of the operation: one command fewer, all bytes sent at once, or a
    /// shorter sleep.
    fn simpler(&self) -> Vec<Self> {
        let mut simpler = Vec::new();
        match self {
            Self::Send { peer, commands, cut } => {
                let (peer, cut) = (*peer, *cut);
                if cut.is_some() {
                    simpler.push(Self::Send { peer, commands: commands.clone(), cut: None });
                }
                for index in 0..commands.len() {
                    let mut commands = commands.clone();
                    commands.remove(index);
                    if !commands.is_empty() {
                        simpler.push(Self::Send { peer, commands, cut });
                    }
                }
            }
            Self::Sleep(time) => {
                let second = Duration::from_secs(1);
                simpler.extend(time.checked_sub(second).map(Self::Sleep));
            }
            Self::HalfClose(_) | Self::Close(_) | Self::Drain | Self::Restart => {}
        }
        simpler
    }
}

/// Lists, for [`shrink`](super::shrink()), sequences of the same length with one simpler operation,
/// or with the operations of one connection moved to another connection.
pub(crate) fn simpler(operations: &[Operation]) -> Vec<Vec<Operation>> {
    let mut candidates = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        for simpler in operation.simpler() {
            let mut candidate = operations.to_vec();
            candidate[index] = simpler;
            candidates.push(candidate);
        }
    }
    let mut peers: Vec<Peer> =
        operations.iter().filter_map(|operation| operation.clone().peer_mut().copied()).collect();
    peers.sort_unstable();
    peers.dedup();
    for (rank, &from) in peers.iter().enumerate() {
        for &to in &peers[..rank] {
            candidates.push(renamed(operations, from, to));
        }
        if from > rank {
            candidates.push(renamed(operations, from, rank));
        }
    }
    candidates
}

/// Moves the operations of one connection to another connection.
fn renamed(operations: &[Operation], from: Peer, to: Peer) -> Vec<Operation> {
    let mut operations = operations.to_vec();
    for peer in operations.iter_mut().filter_map(Operation::peer_mut).filter(|peer| **peer == from)
    {
        *peer = to;
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simpler_sequence_differs_and_is_no_longer() {
        let batch = ["stats", "quit"].map(Command::line).to_vec();
        let operations = [
            Operation::Send { peer: 3, commands: batch, cut: Some(500) },
            Operation::Sleep(Duration::from_millis(1200)),
            Operation::Close(1),
        ];
        let candidates = simpler(&operations);
        assert_eq!(candidates.len(), 3 + 1 + 3, "{candidates:?}");
        for candidate in &candidates {
            assert_ne!(candidate[..], operations);
            assert_eq!(candidate.len(), operations.len());
        }
        assert!(candidates.contains(&renamed(&operations, 3, 1)));
        let least = [
            Operation::send(0, Command::line("stats")),
            Operation::Sleep(Duration::from_millis(200)),
        ];
        assert_eq!(simpler(&least), Vec::<Vec<Operation>>::new());
    }

    #[test]
    fn connections_are_named_as_scripts_name_them() {
        assert_eq!((name(0), name(INSPECTOR)), ('a', 'z'));
    }
}
