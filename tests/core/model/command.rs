//! The commands that the model understands, and their bytes.

use std::fmt;

/// A command, as intended by a client.
#[derive(Clone)]
pub(crate) enum Command {
    Put {
        pri: u32,
        delay: u32,
        ttr: u32,
        body: Vec<u8>,
    },
    Use(String),
    Reserve(Option<u32>),
    ReserveWithAbort,
    ReserveJob(u64),
    Delete(u64),
    Release {
        id: u64,
        pri: u32,
        delay: u32,
    },
    Bury {
        id: u64,
        pri: u32,
    },
    Touch(u64),
    Watch(String),
    Ignore(String),
    Peek(u64),
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Kick(u32),
    KickJob(u64),
    Stats,
    Capabilities,
    ListJobs {
        name: String,
        state: &'static str,
        limit: Option<u32>,
    },
    DeleteTube {
        name: String,
        state: Option<&'static str>,
        last_id: Option<u64>,
    },
    Drain(&'static str),
    Metrics(Option<String>),
    StatsJob(u64),
    StatsTube(String),
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube {
        name: String,
        delay: u32,
    },
    Quit,
    /// A part of a command, as read from any bytes. No generator sends parts.
    Part(Part),
}

/// A part of a command, or input that is no command.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// The line of a `put`.
    Header { pri: u32, delay: u32, ttr: u32, size: u64 },
    /// How many bytes of the body of the preceding `put` have arrived.
    Arrived(u64),
    /// The body of the preceding `put`, with the two bytes that should be CR LF.
    Body(Vec<u8>),
    /// A refused line, and the key of `stats` that counts it nevertheless. If a body follows and is
    /// skipped, the reply is not sent yet.
    BadLine { reply: Option<&'static str>, counted: Option<&'static str> },
    /// The end of skipped input, and the reply.
    Skipped(&'static str),
    /// A first line that is HTTP.
    Http,
}

/// The command as it is sent, without the end of a long body.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        let line = bytes.strip_suffix(b"\r\n").unwrap_or(&bytes);
        write!(f, "{}", line[..line.len().min(80)].escape_ascii())
    }
}

impl Command {
    /// The bytes a client would send.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let line = match self {
            Self::Put { pri, delay, ttr, body } => {
                let mut bytes = format!("put {pri} {delay} {ttr} {}\r\n", body.len()).into_bytes();
                bytes.extend_from_slice(body);
                bytes.extend_from_slice(b"\r\n");
                return bytes;
            }
            Self::Use(name) => format!("use {name}"),
            Self::Reserve(None) => "reserve".into(),
            Self::Reserve(Some(timeout)) => format!("reserve-with-timeout {timeout}"),
            Self::ReserveWithAbort => "reserve-with-abort".into(),
            Self::ReserveJob(id) => format!("reserve-job {id}"),
            Self::Delete(id) => format!("delete {id}"),
            Self::Release { id, pri, delay } => format!("release {id} {pri} {delay}"),
            Self::Bury { id, pri } => format!("bury {id} {pri}"),
            Self::Touch(id) => format!("touch {id}"),
            Self::Watch(name) => format!("watch {name}"),
            Self::Ignore(name) => format!("ignore {name}"),
            Self::Peek(id) => format!("peek {id}"),
            Self::PeekReady => "peek-ready".into(),
            Self::PeekDelayed => "peek-delayed".into(),
            Self::PeekBuried => "peek-buried".into(),
            Self::Kick(bound) => format!("kick {bound}"),
            Self::KickJob(id) => format!("kick-job {id}"),
            Self::Stats => "stats".into(),
            Self::Capabilities => "capabilities".into(),
            Self::ListJobs { name, state, limit: None } => format!("list-jobs {name} {state}"),
            Self::ListJobs { name, state, limit: Some(limit) } => {
                format!("list-jobs {name} {state} {limit}")
            }
            Self::DeleteTube { name, state, last_id } => {
                let state = state.map_or(String::new(), |state| format!(" {state}"));
                let last_id = last_id.map_or(String::new(), |id| format!(" {id}"));
                format!("delete-tube {name}{state}{last_id}")
            }
            Self::Drain(what) => format!("drain {what}"),
            Self::Metrics(None) => "metrics".into(),
            Self::Metrics(Some(name)) => format!("metrics {name}"),
            Self::StatsJob(id) => format!("stats-job {id}"),
            Self::StatsTube(name) => format!("stats-tube {name}"),
            Self::ListTubes => "list-tubes".into(),
            Self::ListTubeUsed => "list-tube-used".into(),
            Self::ListTubesWatched => "list-tubes-watched".into(),
            Self::PauseTube { name, delay } => format!("pause-tube {name} {delay}"),
            Self::Quit => "quit".into(),
            Self::Part(part) => return format!("{part:?}").into_bytes(),
        };
        format!("{line}\r\n").into_bytes()
    }

    /// The key of `stats` or `metrics` that counts the command.
    pub(super) fn counter(&self) -> Option<&'static str> {
        Some(match self {
            Self::Put { .. } | Self::Part(Part::Header { .. }) => "put",
            Self::Use(_) => "use",
            Self::Reserve(None) => "reserve",
            Self::Reserve(Some(_)) => "reserve-with-timeout",
            Self::ReserveWithAbort => "reserve-with-abort",
            Self::Delete(_) => "delete",
            Self::Release { .. } => "release",
            Self::Bury { .. } => "bury",
            Self::Touch(_) => "touch",
            Self::Watch(_) => "watch",
            Self::Ignore(_) => "ignore",
            Self::Peek(_) => "peek",
            Self::PeekReady => "peek-ready",
            Self::PeekDelayed => "peek-delayed",
            Self::PeekBuried => "peek-buried",
            Self::Kick(_) => "kick",
            Self::Stats => "stats",
            Self::StatsJob(_) => "stats-job",
            Self::StatsTube(_) => "stats-tube",
            Self::ListTubes => "list-tubes",
            Self::ListTubeUsed => "list-tube-used",
            Self::ListTubesWatched => "list-tubes-watched",
            Self::PauseTube { .. } => "pause-tube",
            Self::Part(Part::BadLine { counted, .. }) => return *counted,
            Self::ReserveJob(_)
            | Self::KickJob(_)
            | Self::Capabilities
            | Self::ListJobs { .. }
            | Self::DeleteTube { .. }
            | Self::Drain(_)
            | Self::Metrics(_)
            | Self::Quit
            | Self::Part(_) => return None,
        })
    }
}
