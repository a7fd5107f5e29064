//! The commands of the protocol, and the ones that `stats` counts.

/// The id of a job.
pub type JobId = u64;

/// A well-formed command, with the names of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields carry the protocol's own names")]
pub enum Command<'a> {
    /// The header of a `put`; the body follows.
    Put(PutHeader),
    Use(&'a str),
    /// `reserve` and, with the seconds to wait, `reserve-with-timeout`.
    Reserve(Option<u32>),
    /// Like `reserve`, but further input ends the wait. The original does not have it.
    ReserveWithAbort,
    ReserveJob(JobId),
    Delete(JobId),
    Release {
        id: JobId,
        pri: u32,
        delay: u32,
    },
    Bury {
        id: JobId,
        pri: u32,
    },
    Touch(JobId),
    Watch(&'a str),
    Ignore(&'a str),
    Peek(JobId),
    PeekReady,
    PeekDelayed,
    PeekBuried,
    /// The most jobs to kick.
    Kick(u32),
    KickJob(JobId),
    Stats,
    StatsJob(JobId),
    StatsTube(&'a str),
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube {
        name: &'a str,
        delay: u32,
    },
    /// Reports the extensions and the health of this daemon. The original has none of the commands
    /// from this one to `Metrics`.
    Capabilities,
    /// The limit is at most [`LISTED_JOBS_MAX`].
    ListJobs {
        name: &'a str,
        state: JobState,
        limit: u32,
    },
    /// Deletes the jobs of a tube, or only those in one state, with ids up to `last_id`. Reserved
    /// jobs stay.
    DeleteTube {
        name: &'a str,
        state: Option<IdleState>,
        last_id: JobId,
    },
    Drain(Drain),
    /// Reports figures that only the daemon has, about itself or about a tube.
    Metrics(Option<&'a str>),
    Quit,
}

/// The most jobs that one `list-jobs` lists.
pub const LISTED_JOBS_MAX: u32 = 10_000;

/// The number of jobs that `list-jobs` lists if the client gives no limit.
pub(super) const LISTED_JOBS: u32 = 100;

/// The state of a job, as named in commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum JobState {
    Ready,
    Delayed,
    Buried,
    Reserved,
}

impl JobState {
    /// Reads its name.
    pub(super) fn read(word: &[u8]) -> Option<Self> {
        match word {
            b"ready" => Some(Self::Ready),
            b"delayed" => Some(Self::Delayed),
            b"buried" => Some(Self::Buried),
            b"reserved" => Some(Self::Reserved),
            _ => None,
        }
    }
}

/// The state of a job that no client has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum IdleState {
    Ready,
    Delayed,
    Buried,
}

impl IdleState {
    /// Reads its name.
    pub(super) fn read(word: &[u8]) -> Option<Self> {
        match JobState::read(word)? {
            JobState::Ready => Some(Self::Ready),
            JobState::Delayed => Some(Self::Delayed),
            JobState::Buried => Some(Self::Buried),
            JobState::Reserved => None,
        }
    }
}

/// The argument of `drain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own words")]
pub enum Drain {
    On,
    Off,
    Status,
}

/// The fields of a `put` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutHeader {
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds until the job is ready.
    pub delay: u32,
    /// Seconds that a worker may hold it.
    pub ttr: u32,
    /// Bytes of the body, without its CR LF; at most the limit given to [`parse`](super::parse()).
    pub size: u32,
}

/// The commands that `stats` counts, in the order of its `cmd-` lines, followed by one that
/// `metrics` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum Verb {
    Put,
    Peek,
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Reserve,
    ReserveWithTimeout,
    Delete,
    Release,
    Use,
    Watch,
    Ignore,
    Bury,
    Kick,
    Touch,
    Stats,
    StatsJob,
    StatsTube,
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube,
    ReserveWithAbort,
}

impl Verb {
    /// The number of verbs.
    pub const COUNT: usize = Self::ReserveWithAbort as usize + 1;

    /// The number of verbs that `stats` counts, which come first. Clients know its keys.
    pub const COUNT_IN_STATS: usize = Self::PauseTube as usize + 1;
}
