//! The arguments of each command. `--help` and the manual page show the doc comments of fields.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::address::Address;
use crate::filter::{self, Filter, Tubes};
use crate::job::{DEFAULT_PRI, State, parse_tube_name};
use crate::save;
use crate::statistics::{Column, tube_column};
use crate::sweep;

#[derive(Debug, Args)]
pub(crate) struct BigArgs {
    /// Names of tubes, with * and ? as wildcards [default: all tubes]
    pub(crate) tubes: Vec<String>,
    /// Show at most this many jobs
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub(crate) limit: u64,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Names of tubes, with * and ? as wildcards [default: all tubes]
    pub(crate) tubes: Vec<String>,
    /// Print a line for each server at each interval, as vmstat does
    #[arg(long)]
    pub(crate) plain: bool,
    /// Set the interval between two updates
    #[arg(long, value_name = "TIME", value_parser = filter::parse_some_time, default_value = "1")]
    pub(crate) interval: u64,
    /// Exit after this many updates
    #[arg(long, value_name = "NUMBER")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ReserveArgs {
    /// Names of tubes
    #[arg(required = true, value_parser = parse_tube_name)]
    pub(crate) tubes: Vec<String>,
    /// Delete each job after it is printed
    #[arg(long, conflicts_with = "bury")]
    pub(crate) delete: bool,
    /// Bury each job after it is printed
    #[arg(long)]
    pub(crate) bury: bool,
    /// Reserve at most this many jobs
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) count: u64,
    /// Wait at most this long for a job [default: no limit for the first job, 0 for later jobs]
    #[arg(long, value_name = "TIME", value_parser = filter::parse_time)]
    pub(crate) wait: Option<u64>,
    /// Print only the bodies, unchanged
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// Name of the tube
    #[arg(value_parser = parse_tube_name)]
    pub(crate) tube: String,
    /// The command with its arguments
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
    /// Bury a job after this many failures; each release is counted as a failure
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub(crate) bury_after: u64,
    /// Delay a job this long after its first failure
    #[arg(long, value_name = "TIME", value_parser = filter::parse_time, default_value = "10")]
    pub(crate) delay: u64,
    /// Exit after this many jobs
    #[arg(long, value_name = "NUMBER")]
    pub(crate) count: Option<u64>,
    /// Exit once no job is ready
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// Run at most this many commands at a time
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    pub(crate) jobs: NonZero<u16>,
    /// End a command that runs longer than this, and treat the command as failed
    #[arg(long, value_name = "TIME", value_parser = filter::parse_some_time)]
    pub(crate) timeout: Option<u64>,
    /// Do not end a command whose job has timed out, although another worker may get the job
    #[arg(long)]
    pub(crate) keep_going: bool,
}

/// A selection of jobs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct FilterArgs {
    /// Only jobs in these states
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub(crate) state: Vec<State>,
    /// Only jobs older than TIME, for example 90s, 5m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = filter::parse_time)]
    pub(crate) older_than: Option<u64>,
    /// Only delayed jobs that become ready no earlier than TIME from now, for example 300d
    #[arg(long, value_name = "TIME", value_parser = filter::parse_time)]
    pub(crate) due_after: Option<u64>,
    #[command(flatten)]
    pub(crate) sweep: sweep::Options,
}

impl FilterArgs {
    /// Returns the filter that these arguments describe.
    pub(crate) fn to_filter(&self, tubes: &[String], pattern: Option<&str>) -> Result<Filter> {
        let (tubes, states) = (Tubes::new(tubes)?, self.state.clone());
        let pattern = pattern.map(|text| Filter::to_pattern(text, false, false)).transpose()?;
        let Self { older_than, due_after, .. } = *self;
        Ok(Filter { tubes, states, older_than, due_after, pattern })
    }
}

#[derive(Debug, Args)]
pub(crate) struct TubesArgs {
    /// Names of tubes, with * and ? as wildcards [default: all tubes]
    pub(crate) tubes: Vec<String>,
    /// Show these columns, separated by commas: tube, ready, urgent, reserved, delayed, buried,
    /// total, deleted, using, watching, waiting, pause, paused-for
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', value_parser = tube_column)]
    pub(crate) columns: Vec<Column>,
    /// Sort by this column, the largest number first
    #[arg(long, value_name = "COLUMN", value_parser = tube_column)]
    pub(crate) sort: Option<Column>,
    /// Reverse the order
    #[arg(long)]
    pub(crate) reverse: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Names of tubes, with * and ? as wildcards
    #[arg(required = true)]
    pub(crate) tubes: Vec<String>,
    /// Show the bodies as well
    #[arg(long)]
    pub(crate) bodies: bool,
    /// Show at most this many jobs
    #[arg(long, value_name = "NUMBER")]
    pub(crate) limit: Option<u64>,
    /// Sort by this column, the largest number first [default: order of service]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort: Option<SortColumn>,
    /// Show the oldest jobs first, as --sort age does
    #[arg(long, conflicts_with = "sort")]
    pub(crate) oldest: bool,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
}

/// A numeric column by which `list` can sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortColumn {
    Id,
    Pri,
    Age,
    Left,
    Size,
}

#[derive(Debug, Args)]
pub(crate) struct GrepArgs {
    /// A regular expression
    pub(crate) pattern: String,
    /// Names of tubes, with * and ? as wildcards [default: all tubes]
    pub(crate) tubes: Vec<String>,
    /// Treat the pattern as plain text
    #[arg(short = 'F', long)]
    pub(crate) fixed_string: bool,
    /// Ignore case
    #[arg(short, long)]
    pub(crate) ignore_case: bool,
    /// Print only the ids
    #[arg(long)]
    pub(crate) ids: bool,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
}

/// The priority, delay and time to run of a new job.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Set the priority; 0 is the most urgent
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_PRI)]
    pub(crate) pri: u32,
    /// Delay the job: it becomes ready after this time
    #[arg(long, value_name = "TIME", value_parser = filter::parse_delay, default_value = "0")]
    pub(crate) delay: u32,
    /// Set the time to run: how long a reservation of the job lasts
    #[arg(long, value_name = "TIME", value_parser = filter::parse_delay, default_value = "60")]
    pub(crate) ttr: u32,
}

impl JobArgs {
    /// Returns the priority, delay and time to run, in the order of the command `put`.
    pub(crate) fn numbers(&self) -> (u32, u32, u32) {
        (self.pri, self.delay, self.ttr)
    }
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Name of the tube
    #[arg(value_parser = parse_tube_name)]
    pub(crate) tube: String,
    /// Bodies, one per job; - reads one body from standard input [default: -]
    pub(crate) bodies: Vec<String>,
    /// Read the body from FILE; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "bodies")]
    pub(crate) file: Option<PathBuf>,
    /// Put a job for each line of the file or of standard input
    #[arg(long, conflicts_with = "bodies")]
    pub(crate) lines: bool,
    /// Put at most this many jobs per second
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rate: Option<u64>,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// The safety options of an action that removes jobs: consent, dry run and a saved copy.
#[derive(Debug, Args)]
#[command(next_help_heading = "Safety")]
pub(crate) struct Consent {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Show what would be done, without doing it
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Save each job to FILE (which must not exist) before it is deleted; `import` restores it
    #[arg(long, value_name = "FILE", value_parser = save::parse_save_path)]
    pub(crate) save: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct KickArgs {
    /// Name of the tube
    #[arg(required_unless_present = "id", conflicts_with = "id", value_parser = parse_tube_name)]
    pub(crate) tube: Option<String>,
    /// Kick at most this many jobs [default: 1]
    #[arg(conflicts_with = "all")]
    pub(crate) count: Option<u32>,
    /// Kick at most this many jobs; has the same effect as COUNT
    #[arg(long = "count", value_name = "NUMBER", conflicts_with_all = ["count", "all", "id"])]
    pub(crate) number: Option<u32>,
    /// Kick all buried jobs, or all delayed jobs if no job is buried
    #[arg(long, conflicts_with = "id")]
    pub(crate) all: bool,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN", conflicts_with = "id")]
    pub(crate) grep: Option<String>,
    /// Kick the jobs with these ids, in any tube; - reads ids from standard input
    #[arg(long, value_name = "ID", value_delimiter = ',', num_args = 1..)]
    pub(crate) id: Vec<String>,
    /// Show how many jobs would be kicked, without kicking them
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Ids of jobs; - reads ids from standard input
    #[arg(required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct ClearArgs {
    /// Names of tubes, with * and ? as wildcards
    #[arg(required = true)]
    pub(crate) tubes: Vec<String>,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN", help_heading = "Filters")]
    pub(crate) grep: Option<String>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// Name of the tube to move jobs from
    #[arg(value_parser = parse_tube_name)]
    pub(crate) from: String,
    /// Name of the tube to move jobs to
    #[arg(value_parser = parse_tube_name)]
    pub(crate) into: String,
    /// Move the jobs to this server [default: the same server]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) to: Option<Address>,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN", help_heading = "Filters")]
    pub(crate) grep: Option<String>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The file, which must not exist [default: standard output]
    pub(crate) file: Option<PathBuf>,
    /// Read the jobs from a binlog directory or a copy of one, without a server
    #[arg(long, value_name = "DIR")]
    pub(crate) binlog: Option<PathBuf>,
    /// Count the jobs, without writing them
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Only jobs of these tubes, with * and ? as wildcards
    #[arg(long, value_name = "TUBE", value_delimiter = ',', help_heading = "Filters")]
    pub(crate) tube: Vec<String>,
    /// Only jobs whose bodies match this regular expression
    #[arg(long, value_name = "PATTERN", help_heading = "Filters")]
    pub(crate) grep: Option<String>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file [default: standard input]
    pub(crate) file: Option<PathBuf>,
    /// Put all jobs into this tube [default: the tube in each line]
    #[arg(long, value_name = "TUBE", value_parser = parse_tube_name)]
    pub(crate) tube: Option<String>,
    /// Skip this many lines at the beginning
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    pub(crate) skip: usize,
    /// Put at most this many jobs per second
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rate: Option<u64>,
    /// Check the lines and count the jobs, without putting them
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// The thresholds of `check`; each applies to every tube separately.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Names of tubes, with * and ? as wildcards [default: all tubes]
    pub(crate) tubes: Vec<String>,
    /// Warning and critical numbers of ready jobs in a tube
    #[arg(long, value_name = "WARNING,CRITICAL")]
    pub(crate) ready: Option<Threshold>,
    /// Warning and critical numbers of buried jobs in a tube
    #[arg(long, value_name = "WARNING,CRITICAL", default_value = "1,100")]
    pub(crate) buried: Option<Threshold>,
    /// Warning and critical numbers of delayed jobs in a tube
    #[arg(long, value_name = "WARNING,CRITICAL")]
    pub(crate) delayed: Option<Threshold>,
    /// Warning and critical ages of the next job to be reserved, for example 5m,1h
    #[arg(long, value_name = "WARNING,CRITICAL", value_parser = Threshold::parse_ages)]
    pub(crate) age: Option<Threshold>,
    /// The number of workers that a tube with ready jobs needs; fewer workers are critical
    #[arg(long, value_name = "NUMBER")]
    pub(crate) workers: Option<u64>,
    /// Report a server as unknown if it has not answered after this time
    #[arg(long, value_name = "TIME", value_parser = filter::parse_some_time, default_value = "10")]
    pub(crate) timeout: u64,
}

/// The lowest value that is a warning, and the lowest value that is critical. The values are counts
/// of jobs, or ages in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Threshold {
    pub(crate) warning: u64,
    pub(crate) critical: u64,
}

impl FromStr for Threshold {
    type Err = String;

    /// Parses a threshold for numbers, such as `100,1000`.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, |number| number.parse().ok())
    }
}

impl Threshold {
    /// Parses a threshold of one or two ages, such as `5m,1h`.
    fn parse_ages(text: &str) -> Result<Self, String> {
        Self::parse(text, |age| filter::parse_time(age).ok())
    }

    /// Parses a threshold: one value, or two values with the smaller value first.
    fn parse(text: &str, number: impl Fn(&str) -> Option<u64>) -> Result<Self, String> {
        let (warning, critical) = text.split_once(',').unwrap_or((text, text));
        match (number(warning), number(critical)) {
            (Some(warning), Some(critical)) if warning <= critical => {
                Ok(Self { warning, critical })
            }
            _ => Err(format!("{text:?} is not WARNING,CRITICAL: two values, the larger one last")),
        }
    }
}
