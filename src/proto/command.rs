//! The commands of the protocol with their fields, and the job states that commands name.

/// The id of a job.
pub type JobId = u64;

/// A command and its arguments, with the names that the protocol gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields carry the protocol's own names")]
pub enum Command<'a> {
    /// The header of a `put`; the body follows.
    Put(PutHeader),
    /// The header of a `put` whose body, of this many bytes, exceeds the limit; the body follows.
    TooBig(u32),
    /// A command with an error that the original finds only after it has counted the command. So
    /// this daemon counts the command, too.
    Malformed,
    Use(&'a str),
    /// `None` for `reserve`; for `reserve-with-timeout`, the seconds to wait.
    Reserve(Option<u32>),
    /// Like `reserve`, but input from the client ends the wait. The original lacks this command.
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
    /// The argument is the largest number of jobs to kick.
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
    /// from `Capabilities` to `Metrics`.
    Capabilities,
    /// Lists the first `limit` jobs of a tube that are in `state`. `limit` is at most
    /// [`LISTED_JOBS_MAX`].
    ListJobs {
        name: &'a str,
        state: JobState,
        limit: u32,
    },
    /// Deletes the jobs of a tube with ids up to `last_id`. If `state` is given, deletes only jobs
    /// in this state. `state` is never `Reserved`: the command does not delete reserved jobs.
    DeleteTube {
        name: &'a str,
        state: Option<JobState>,
        last_id: JobId,
    },
    /// Begins (`true`) or ends (`false`) draining; `None` asks whether the daemon is draining.
    Drain(Option<bool>),
    /// Reports figures that the original does not have, about the daemon or about one tube.
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
    /// Returns the state for a word in the line of a `list-jobs` or `delete-tube`.
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

/// The fields of a `put` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutHeader {
    /// The priority; a job with a smaller number is more urgent.
    pub pri: u32,
    /// Seconds until the job is ready.
    pub delay: u32,
    /// Seconds for which a worker may reserve the job.
    pub ttr: u32,
    /// Bytes of the body, without its CR LF; at most the limit given to [`parse`](super::parse()).
    pub size: u32,
}
