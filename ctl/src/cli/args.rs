//! The arguments of each command.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;

use crate::address::Address;
use crate::filter::{self, Filter, Tubes};
use crate::job::{DEFAULT_PRI, State};
use crate::save;
use crate::sweep;

#[derive(Debug, Args)]
pub(crate) struct BigArgs {
    /// The tubes; * and ? stand for any characters [default: all]
    pub(crate) tubes: Vec<String>,
    /// How many jobs to show
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only tubes with these names; * and ? stand for any characters
    pub(crate) tubes: Vec<String>,
    /// Print a line a second for each server, as vmstat does
    #[arg(long)]
    pub(crate) plain: bool,
    /// The time between two looks
    #[arg(long, value_name = "TIME", value_parser = filter::some_seconds, default_value = "1")]
    pub(crate) interval: u64,
    /// End after this many looks
    #[arg(long, value_name = "NUMBER")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ReserveArgs {
    /// The tubes
    #[arg(required = true, value_parser = filter::tube_name)]
    pub(crate) tubes: Vec<String>,
    /// Delete each job after it was printed
    #[arg(long, conflicts_with = "bury")]
    pub(crate) delete: bool,
    /// Bury each job after it was printed
    #[arg(long)]
    pub(crate) bury: bool,
    /// At most this many jobs
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) count: u64,
    /// How long to wait for a job [default: for the first one until there is one]
    #[arg(long, value_name = "TIME", value_parser = filter::seconds)]
    pub(crate) wait: Option<u64>,
    /// Print only the bodies, as they are
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// The tube
    #[arg(value_parser = filter::tube_name)]
    pub(crate) tube: String,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
    /// Bury a job after this many failures; any release counts as one
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub(crate) bury_after: u64,
    /// The delay after the first failure
    #[arg(long, value_name = "TIME", value_parser = filter::seconds, default_value = "10")]
    pub(crate) delay: u64,
    /// End after this many jobs
    #[arg(long, value_name = "NUMBER")]
    pub(crate) count: Option<u64>,
    /// End when no job is ready
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// Run at most this many commands at a time
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    pub(crate) jobs: NonZero<u16>,
    /// Kill a command that runs longer than this, which counts as a failure
    #[arg(long, value_name = "TIME", value_parser = filter::some_seconds)]
    pub(crate) timeout: Option<u64>,
}

/// Which jobs are meant.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Only jobs in these states
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub(crate) state: Vec<State>,
    /// Only jobs older than TIME, for example 90s, 5m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = filter::seconds)]
    pub(crate) older_than: Option<u64>,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
}

impl Which {
    /// Makes the filter of these arguments.
    pub(crate) fn filter(&self, tubes: &[String], pattern: Option<&str>) -> Result<Filter> {
        Ok(Filter {
            tubes: Tubes::new(tubes)?,
            states: self.state.clone(),
            older_than: self.older_than,
            pattern: pattern.map(|text| filter::pattern(text, false, false)).transpose()?,
            last_id: None,
        })
    }
}

/// How jobs are found if the server cannot list them.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Ask for at most this many ids a second
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rate: Option<u64>,
    /// The last id that the server has given, if you know it
    #[arg(long, value_name = "ID")]
    pub(crate) last_id: Option<u64>,
    /// Find the last id with a temporary job in a tube of its own
    #[arg(long, conflicts_with = "last_id")]
    pub(crate) probe: bool,
}

impl SweepArgs {
    /// Returns them as options of the sweep.
    pub(crate) fn options(&self) -> sweep::Options {
        let (rate, last_id, may_probe) = (self.rate, self.last_id, self.probe);
        sweep::Options { rate, last_id, may_probe, is_quiet: false }
    }
}

#[derive(Debug, Args)]
pub(crate) struct TubesArgs {
    /// Only tubes with these names; * and ? stand for any characters
    pub(crate) tubes: Vec<String>,
    /// The columns, with commas between: tube, ready, urgent, reserved, delayed, buried, total,
    /// deleted, using, watching, waiting, pause, paused-for
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Sort by this column; numbers from the largest
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<String>,
    /// Sort the other way round
    #[arg(long)]
    pub(crate) reverse: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// The tubes; * and ? stand for any characters
    #[arg(required = true)]
    pub(crate) tubes: Vec<String>,
    /// Show the bodies as well
    #[arg(long)]
    pub(crate) bodies: bool,
    /// Show at most this many jobs
    #[arg(long, value_name = "NUMBER")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct GrepArgs {
    /// A regular expression
    pub(crate) pattern: String,
    /// The tubes; * and ? stand for any characters [default: all]
    pub(crate) tubes: Vec<String>,
    /// The pattern is plain text
    #[arg(short = 'F', long)]
    pub(crate) fixed_string: bool,
    /// Upper and lower case are the same
    #[arg(short, long)]
    pub(crate) ignore_case: bool,
    /// Print only the ids
    #[arg(long)]
    pub(crate) ids: bool,
    #[command(flatten)]
    pub(crate) which: Which,
}

/// What a new job is given.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// The priority; 0 is the most urgent
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_PRI)]
    pub(crate) pri: u32,
    /// Ready only after this time
    #[arg(long, value_name = "TIME", value_parser = filter::short_seconds, default_value = "0")]
    pub(crate) delay: u32,
    /// The time that a worker has for it
    #[arg(long, value_name = "TIME", value_parser = filter::short_seconds, default_value = "60")]
    pub(crate) ttr: u32,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The tube
    #[arg(value_parser = filter::tube_name)]
    pub(crate) tube: String,
    /// The body of a job; from standard input if there is none
    pub(crate) bodies: Vec<String>,
    /// Take the body from this file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "bodies")]
    pub(crate) file: Option<PathBuf>,
    /// Each line of the file or of standard input is a job
    #[arg(long, conflicts_with = "bodies")]
    pub(crate) lines: bool,
    /// Put at most this many a second
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rate: Option<u64>,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// What an act that takes jobs away needs from its user.
#[derive(Debug, Args)]
pub(crate) struct Consent {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Show what would be done, without doing it
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Save each job to FILE (which must not exist) before it is deleted; `import` restores it
    #[arg(long, value_name = "FILE", value_parser = save::path)]
    pub(crate) save: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct KickArgs {
    /// The tube
    #[arg(
        required_unless_present = "id",
        conflicts_with = "id",
        value_parser = filter::tube_name
    )]
    pub(crate) tube: Option<String>,
    /// At most this many jobs [default: 1]
    #[arg(conflicts_with = "all")]
    pub(crate) count: Option<u32>,
    /// All buried jobs; or if there is none, all delayed ones
    #[arg(long, conflicts_with = "id")]
    pub(crate) all: bool,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN", conflicts_with = "id")]
    pub(crate) grep: Option<String>,
    /// These jobs, in whatever tube; - reads the ids from standard input
    #[arg(long, value_name = "ID", value_delimiter = ',', num_args = 1..)]
    pub(crate) id: Vec<Id>,
}

/// An id of a job, or `-` for those on standard input.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Id {
    Number(u64),
    Input,
}

impl FromStr for Id {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "-" => Ok(Self::Input),
            _ => word.parse().map(Self::Number).map_err(|_| format!("{word:?} is no id")),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The ids; - reads them from standard input
    #[arg(required = true)]
    pub(crate) ids: Vec<Id>,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct ClearArgs {
    /// The tubes; * and ? stand for any characters
    #[arg(required = true)]
    pub(crate) tubes: Vec<String>,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN")]
    pub(crate) grep: Option<String>,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// The tube that they are in
    #[arg(value_parser = filter::tube_name)]
    pub(crate) from: String,
    /// The tube that they go to
    #[arg(value_parser = filter::tube_name)]
    pub(crate) into: String,
    /// The server that they go to
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) to: Option<Address>,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN")]
    pub(crate) grep: Option<String>,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The file, which must not exist [default: standard output]
    pub(crate) file: Option<PathBuf>,
    /// Only these tubes; * and ? stand for any characters
    #[arg(long, value_name = "TUBE", value_delimiter = ',')]
    pub(crate) tube: Vec<String>,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN")]
    pub(crate) grep: Option<String>,
    /// Read a binlog's directory, or a copy of one, and ask no server
    #[arg(long, value_name = "DIR")]
    pub(crate) binlog: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file [default: standard input]
    pub(crate) file: Option<PathBuf>,
    /// Put all jobs into this tube
    #[arg(long, value_name = "TUBE", value_parser = filter::tube_name)]
    pub(crate) tube: Option<String>,
    /// Leave out this many lines at the beginning
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    pub(crate) skip: usize,
    /// Put at most this many a second
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rate: Option<u64>,
    /// Only check the lines and count them
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// The thresholds of `check`, each a number of jobs in one tube or a time.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The tubes; * and ? stand for any characters [default: all]
    pub(crate) tubes: Vec<String>,
    /// A warning, and a critical number of ready jobs in a tube
    #[arg(long, value_name = "WARNING,CRITICAL")]
    pub(crate) ready: Option<Threshold>,
    /// A warning, and a critical number of buried jobs in a tube
    #[arg(long, value_name = "WARNING,CRITICAL", default_value = "1,100")]
    pub(crate) buried: Option<Threshold>,
    /// A warning, and a critical number of delayed jobs in a tube
    #[arg(long, value_name = "WARNING,CRITICAL")]
    pub(crate) delayed: Option<Threshold>,
    /// A tube with ready jobs needs at least this many workers; fewer are critical
    #[arg(long, value_name = "NUMBER")]
    pub(crate) workers: Option<u64>,
}

/// From which numbers on something is a warning, and critical.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Threshold {
    pub(crate) warning: u64,
    pub(crate) critical: u64,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once(',').unwrap_or((text, text));
        match (numbers.0.parse(), numbers.1.parse()) {
            (Ok(warning), Ok(critical)) if warning <= critical => Ok(Self { warning, critical }),
            _ => Err(format!("{text:?} is not WARNING,CRITICAL: two numbers, the smaller first")),
        }
    }
}
