//! The definition of all commands, from which `--help`, the manual page, the shell completions and
//! the parser of the command line are made. The module `args` defines the arguments of each
//! command.

use std::collections::HashMap;
use std::fmt::Write as _;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::address::Address;
use crate::args::{
    BigArgs, CheckArgs, ClearArgs, DeleteArgs, ExportArgs, GrepArgs, ImportArgs, KickArgs,
    ListArgs, MoveArgs, PutArgs, ReserveArgs, TopArgs, TubesArgs, WorkArgs,
};
use crate::filter;
use crate::job::parse_tube_name;
use crate::metrics::MetricsArgs;
use crate::web::WebArgs;

/// Inspect any beanstalkd server, and change its jobs one by one or in bulk
///
/// Commands under "Look" and "Watch" change no jobs. Commands that delete or move jobs first show
/// the number of jobs, and ask for confirmation.
#[derive(Debug, Parser)]
#[command(name = "beanstalkctl", version, max_term_width = 100)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct Cli {
    /// Connect to this server: HOST:PORT or unix:PATH; commands that change no jobs accept several
    /// servers, separated by commas
    #[arg(short, long, global = true, value_name = "ADDRESS", value_delimiter = ',')]
    #[arg(env = "BEANSTALKD_SERVER", default_value = "127.0.0.1:11300")]
    pub(crate) server: Vec<Address>,
    /// Print JSON, one object per line; refused by report, work and metrics
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
    /// Show the statistics of the server or of a tube
    Stats {
        /// Name of the tube
        #[arg(value_parser = parse_tube_name)]
        tube: Option<String>,
    },
    /// Show jobs with their bodies, by their ids
    #[command(alias = "peek")]
    Job {
        /// Ids of jobs; - reads ids from standard input
        #[arg(required = true)]
        ids: Vec<String>,
        /// Print only the body, unchanged
        #[arg(long)]
        raw: bool,
    },
    /// List the jobs of tubes, including reserved jobs
    ///
    /// The column `age` has the seconds since the job was put. The column `left` has the seconds
    /// until a delayed job becomes ready or a reserved job times out.
    List(ListArgs),
    /// Find jobs by their bodies
    ///
    /// The exit status is 1 if no job matches.
    Grep(GrepArgs),
    /// Show the jobs with the largest bodies
    Big(BigArgs),
    /// Print all statistics, without bodies, for a bug report
    Report,
    /// Put jobs into a tube
    Put(PutArgs),
    /// Reserve jobs, print them, and then release, delete or bury them
    ///
    /// Without --delete or --bury, the jobs are released after all jobs are printed. The exit
    /// status is 1 if no job was ready.
    Reserve(ReserveArgs),
    /// Make buried jobs ready, or delayed jobs if no job is buried
    Kick(KickArgs),
    /// Release jobs by their ids: make them ready, or delay them
    Release {
        /// Ids of jobs; - reads ids from standard input
        #[arg(required = true)]
        ids: Vec<String>,
        /// Set the priority [default: unchanged]
        #[arg(long, value_name = "NUMBER")]
        pri: Option<u32>,
        /// Delay the jobs: they become ready after this time
        #[arg(long, value_name = "TIME", value_parser = filter::parse_delay, default_value = "0")]
        delay: u32,
    },
    /// Bury jobs by their ids
    Bury {
        /// Ids of jobs; - reads ids from standard input
        #[arg(required = true)]
        ids: Vec<String>,
        /// Set the priority [default: unchanged]
        #[arg(long, value_name = "NUMBER")]
        pri: Option<u32>,
    },
    /// Pause tubes: no job can be reserved from them for a time
    Pause {
        /// Names of tubes, with * and ? as wildcards
        #[arg(required = true)]
        tubes: Vec<String>,
        /// Set the length of the pause, for example 90s, 5m, 2h, 1d
        #[arg(long = "for", value_name = "TIME", value_parser = filter::parse_delay)]
        length: u32,
        /// Do not ask for confirmation, even with several servers
        #[arg(short, long)]
        yes: bool,
    },
    /// Resume tubes: end their pause
    Resume {
        /// Names of tubes, with * and ? as wildcards
        #[arg(required = true)]
        tubes: Vec<String>,
        /// Do not ask for confirmation, even with several servers
        #[arg(short, long)]
        yes: bool,
    },
    /// Drain servers (make them refuse new jobs), or end the draining
    Drain {
        /// on: refuse new jobs; off: accept new jobs again; status: print the state; wait: wait
        /// until no job is ready, delayed or reserved
        #[arg(value_parser = ["on", "off", "status", "wait"])]
        switch: String,
        /// Do not ask for confirmation, even with several servers
        #[arg(short, long)]
        yes: bool,
    },
    /// Run a command for each job, with the body on its standard input
    ///
    /// If the command succeeds, the job is deleted. If the command fails, the job is released with
    /// a delay that doubles with each failure, and buried after --bury-after failures. The command
    /// gets the environment variables `BEANSTALKD_JOB_ID` and `BEANSTALKD_JOB_TUBE`.
    ///
    /// If the job times out, the connection is lost or the command runs longer than --timeout, the
    /// command and all processes that it started get SIGTERM, and SIGKILL 10 seconds later. After
    /// Ctrl-C the running commands may finish; a second Ctrl-C, or Ctrl-\, kills them. Ctrl-Z
    /// suspends `work` and the commands. If `work` is killed, Linux kills the commands, but not the
    /// processes that the commands started; other systems kill neither.
    Work(WorkArgs),
    /// Delete jobs by their ids
    ///
    /// A job that a worker has reserved cannot be deleted.
    Delete(DeleteArgs),
    /// Delete all jobs of tubes, or some of them
    ///
    /// Only the jobs counted in the question are deleted; jobs put later stay. The command reports
    /// how many of the counted jobs were changed or deleted by others before that.
    #[command(alias = "purge")]
    Clear(ClearArgs),
    /// Move jobs to another tube or server
    ///
    /// A moved job keeps its priority, its remaining delay and its state, but gets a new id. Buried
    /// jobs keep their order if the server lists that order: see HOW JOBS ARE FOUND in the manual.
    Move(MoveArgs),
    /// Write jobs with their bodies as lines of JSON
    ///
    /// The lines are in order of service; the last line has the number of jobs. If the reader
    /// closes the output before the last line, the exit status is 1.
    Export(ExportArgs),
    /// Put jobs from lines of JSON, as written by `export` and `--save`
    ///
    /// Buried jobs are buried again, delayed jobs keep their remaining delay, and reserved jobs
    /// become ready. Each job gets a new id, so a second import of a file puts all jobs again. An
    /// import that ends before the last line prints the value of --skip with which to continue. A
    /// line needs only a body, as in {"body": "hello"}; tube, pri, delay and ttr are optional.
    Import(ImportArgs),
    /// Watch tubes and servers with their rates on a full screen
    ///
    /// Keys: q quits, left and right select the column to sort by, r reverses the order.
    Top(TopArgs),
    /// Compare tubes with thresholds, as a plugin of Nagios or Icinga
    ///
    /// The exit status is 0 if all is well, 1 for a warning, 2 for a critical problem, and 3 if a
    /// server does not answer or the arguments are wrong. A failed binlog is critical; a full
    /// binlog and a draining server are warnings. All servers are asked at once.
    Check(CheckArgs),
    /// Print metrics of servers for Prometheus, or serve them
    ///
    /// A server that is down is reported as down; the exit status is still 0. Each sample has the
    /// label `server`, even with one server, so a second server does not rename any series.
    Metrics(MetricsArgs),
    /// Serve a web page with servers, tubes and jobs
    ///
    /// The page can put, kick, release, bury, move and delete jobs, and pause tubes.
    ///
    /// Without --auth-file, every client that can connect can carry out every action. Without
    /// --auth-file and --no-auth, the page is served on loopback only. Each action is logged in a
    /// line on standard error. Servers are sampled only while a browser shows the page.
    Web(WebArgs),
    /// Print the completions for a shell
    Completions {
        /// Name of the shell
        shell: Shell,
    },
    /// Print the manual page
    Manual,
}

impl Command {
    /// Whether the command counts as read-only. Commands with `--probe` count as read-only, and so
    /// does `web`, although its page can change a server. Every other command fails if its output
    /// is closed early, for example by `head`.
    pub(crate) fn is_read_only(&self) -> bool {
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

/// The headings of `--help`: pairs of a command and the heading above that command.
const HEADINGS: [(&str, &str); 5] = [
    ("tubes", "Look"),
    ("put", "Act"),
    ("move", "Move and save"),
    ("top", "Watch"),
    ("completions", "Help"),
];

/// The examples of all commands. The `--help` of each command ends with its examples.
const EXAMPLES: &str = include_str!("examples.txt");

/// Returns the definition of all commands, grouped by headings and with examples.
pub(crate) fn build_cli() -> clap::Command {
    let command = Cli::command();
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let mut list = String::new();
    for sub in command.get_subcommands() {
        let (name, about) = (sub.get_name(), sub.get_about().map(ToString::to_string));
        if let Some((_, heading)) = HEADINGS.iter().find(|(first, _)| *first == name) {
            let _ = writeln!(list, "\n{header}{heading}:{header:#}");
        }
        let about = about.unwrap_or_default();
        let _ = writeln!(list, "  {literal}{name:<11}{literal:#}  {about}");
    }
    let mut examples: HashMap<_, _> =
        EXAMPLES.split("= ").filter_map(|part| part.split_once('\n')).collect();
    let command = command.mut_subcommands(|sub| match examples.remove(sub.get_name()) {
        Some(text) => sub.after_help(format!("{header}Examples:{header:#}\n{}", text.trim_end())),
        None => sub,
    });
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{list}\n{header}Options:{header:#}\n\
         {{options}}"
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_definition_has_no_contradictions() {
        build_cli().debug_assert();
    }

    #[test]
    fn each_command_is_in_the_file_of_its_name() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for sub in build_cli().get_subcommands() {
            let name = sub.get_name();
            let places = [format!("commands/{name}.rs"), format!("{name}/mod.rs")];
            assert!(places.iter().any(|place| folder.join(place).is_file()), "{name}");
        }
    }

    #[test]
    fn servers_are_separated_by_commas() {
        let cli = Cli::try_parse_from(["beanstalkctl", "-s", "a:1,unix:/b", "tubes"]).unwrap();
        let shown: Vec<_> = cli.server.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a:1", "unix:/b"]);
    }

    /// Users copy the examples, so each example must be a valid command.
    #[test]
    fn every_example_is_a_command() {
        let is_example = |line: &&str| line.starts_with("  beanstalkctl");
        for line in EXAMPLES.lines().filter(is_example) {
            let line = line.trim_start().split(['|', '<', '>']).next().unwrap();
            let line = line.split("  ").next().unwrap().replace("order 4711", "order_4711");
            let words: Vec<_> =
                line.split_whitespace().map(|word| word.trim_matches('\'')).collect();
            assert!(Cli::try_parse_from(&words).is_ok(), "{words:?}");
        }
        let help = build_cli().render_help().to_string();
        for (first, heading) in HEADINGS {
            assert!(help.contains(&format!("\n{heading}:\n  {first} ")), "{help}");
        }
    }
}
