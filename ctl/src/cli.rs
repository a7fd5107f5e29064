//! The one definition of all commands: the command line, `--help`, the manual page and the shells'
//! completions are made from it.

mod args;

use std::fmt;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::address::Address;
use crate::filter;
use crate::metrics::MetricsArgs;
use crate::web::WebArgs;
pub(crate) use args::{
    BigArgs, CheckArgs, ClearArgs, Consent, DeleteArgs, ExportArgs, GrepArgs, Id, ImportArgs,
    JobArgs, KickArgs, ListArgs, MoveArgs, PutArgs, ReserveArgs, Threshold, TopArgs, TubesArgs,
    WorkArgs,
};

/// Looks inside any beanstalkd, and acts on its jobs in bulk
///
/// Looking changes nothing. What deletes or moves jobs says first how many, and asks.
#[derive(Debug, Parser)]
#[command(name = "beanstalkctl", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// The server: HOST:PORT or unix:PATH; for looking, several with commas between
    #[arg(
        short,
        long,
        global = true,
        env = "BEANSTALKD_SERVER",
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "127.0.0.1:11300"
    )]
    pub(crate) server: Vec<Address>,
    /// Print one JSON object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show all tubes in a table
    #[command(alias = "ls")]
    Tubes(TubesArgs),
    /// Show the statistics of the server, or of a tube
    Stats {
        /// The tube
        #[arg(value_parser = filter::tube_name)]
        tube: Option<String>,
    },
    /// Show jobs and their bodies, by their ids
    #[command(alias = "peek")]
    Job {
        /// The ids; - reads them from standard input
        #[arg(required = true)]
        ids: Vec<Id>,
        /// Print only the body, as it is
        #[arg(long)]
        raw: bool,
    },
    /// List the jobs of a tube, reserved ones as well
    List(ListArgs),
    /// Find jobs by their bodies
    ///
    /// The exit status is 1 if there is none.
    Grep(GrepArgs),
    /// Show the jobs with the largest bodies
    Big(BigArgs),
    /// Watch the tubes of servers, with their rates
    ///
    /// Keys: q ends, left and right choose the column to sort by, r sorts the other way round.
    Top(TopArgs),
    /// Compare tubes with thresholds, as a plugin of Nagios, Icinga and others
    ///
    /// The exit status is 0 if all is well, 1 for a warning, 2 if something is critical, and 3 if a
    /// server cannot be asked or the arguments are wrong.
    Check(CheckArgs),
    /// Print all statistics as one text, for a bug report; it has no bodies
    Report,
    /// Serve a web page that shows servers, tubes and jobs, and acts on them
    ///
    /// Without --auth-file every client that can connect can do all that the page can, so it serves
    /// loopback only, unless --no-auth is given. Each act leaves a line on standard error. The
    /// servers are asked only while a browser shows the page.
    Web(WebArgs),
    /// Print what servers count, for Prometheus
    ///
    /// To standard output, or as the options say. A server that is down is told as such, and is no
    /// failure. The label `server` is always there, so that a second server changes no name.
    Metrics(MetricsArgs),
    /// Put jobs into a tube
    Put(PutArgs),
    /// Print the next jobs of tubes, and give them back, delete or bury them
    ///
    /// The exit status is 1 if there is none.
    Reserve(ReserveArgs),
    /// Kick jobs: make buried jobs ready, or delayed jobs if none is buried
    Kick(KickArgs),
    /// Make jobs ready, or delay them, by their ids
    Release {
        /// The ids; - reads them from standard input
        #[arg(required = true)]
        ids: Vec<Id>,
        /// The new priority [default: its own]
        #[arg(long, value_name = "NUMBER")]
        pri: Option<u32>,
        /// Ready only after this time
        #[arg(long, value_name = "TIME", value_parser = filter::short_seconds, default_value = "0")]
        delay: u32,
    },
    /// Bury jobs by their ids
    Bury {
        /// The ids; - reads them from standard input
        #[arg(required = true)]
        ids: Vec<Id>,
        /// The new priority [default: its own]
        #[arg(long, value_name = "NUMBER")]
        pri: Option<u32>,
    },
    /// Pause tubes: no job can be reserved from them for a time
    Pause {
        /// The tubes; * and ? stand for any characters
        #[arg(required = true)]
        tubes: Vec<String>,
        /// How long
        #[arg(long = "for", value_name = "TIME", value_parser = filter::short_seconds)]
        length: u32,
        /// Do not ask, if there are several servers
        #[arg(short, long)]
        yes: bool,
    },
    /// End the pause of tubes
    Resume {
        /// The tubes; * and ? stand for any characters
        #[arg(required = true)]
        tubes: Vec<String>,
        /// Do not ask, if there are several servers
        #[arg(short, long)]
        yes: bool,
    },
    /// Let servers take no more jobs, or take jobs again
    Drain {
        /// What to do
        switch: Switch,
        /// Do not ask, if there are several servers
        #[arg(short, long)]
        yes: bool,
    },
    /// Run a command for each job of a tube, with the body on its standard input
    ///
    /// If the command succeeds, the job is deleted. If it fails, the job is released with a delay
    /// that doubles each time, and buried after some failures. The variables
    /// `BEANSTALKD_JOB_ID` and `BEANSTALKD_JOB_TUBE` are set. A first Ctrl-C lets the commands end,
    /// a second one kills them with all that they have started.
    Work(WorkArgs),
    /// Delete jobs by their ids
    ///
    /// A job that a worker has reserved cannot be deleted by others.
    Delete(DeleteArgs),
    /// Delete all jobs of tubes, or some
    ///
    /// Jobs that come after the question stay.
    #[command(alias = "purge")]
    Clear(ClearArgs),
    /// Move jobs to another tube, or to another server
    ///
    /// A job keeps its priority, the delay that is left, and that it is buried. It gets a new id.
    Move(MoveArgs),
    /// Write all jobs with their bodies as lines of JSON
    ///
    /// They are in the order of service. The last line counts them.
    Export(ExportArgs),
    /// Put jobs from lines of JSON, as `export` and `--save` write them
    ///
    /// Buried jobs are buried again, delayed ones wait as long as was left, and reserved ones are
    /// ready. Each job gets a new id, so a file that is imported twice is there twice. A line needs
    /// only a body: {"body": "hello"}; it may have a tube, pri, delay and ttr as well.
    Import(ImportArgs),
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Manual,
}

impl Command {
    /// Whether the command changes nothing: then a reader of its output may leave early.
    pub(crate) fn looks(&self) -> bool {
        !matches!(
            self,
            Self::Put(_)
                | Self::Reserve(_)
                | Self::Kick(_)
                | Self::Release { .. }
                | Self::Bury { .. }
                | Self::Pause { .. }
                | Self::Resume { .. }
                | Self::Drain { .. }
                | Self::Work(_)
                | Self::Delete(_)
                | Self::Clear(_)
                | Self::Move(_)
                | Self::Import(_)
        )
    }
}

/// What a server does about new jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// It takes no more.
    On,
    /// It takes jobs again.
    Off,
    /// Only tell.
    Status,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Status => "status",
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_has_no_contradictions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn several_servers_stand_between_commas() {
        let cli = Cli::try_parse_from(["beanstalkctl", "-s", "a:1,unix:/b", "tubes"]).unwrap();
        let shown: Vec<_> = cli.server.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a:1", "unix:/b"]);
    }
}
