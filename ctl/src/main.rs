//! `beanstalkctl`: inspects any beanstalkd server, and changes its jobs one by one or in bulk.
//!
//! The program needs only the protocol of the original beanstalkd, but also uses extensions if a
//! server has them.
//!
//! `cli` defines the commands. `args`, `metrics::args` and `web::args` define the commands'
//! arguments, in types such as `FilterArgs` and `Threshold`. The commands `metrics` and `web` have
//! folders of these names; each other command has a file of its name in the folder `commands`. Each
//! command starts in its function `run`. The names of a command's other functions and types contain
//! a form of the command's name, such as `kick_tube`, `CheckStatus` and `Mover`. `ImportLines`
//! reads the lines of jobs for `import`. Two commands have a second file. `work_command` has the
//! `RunningCommand`, by which `work` starts and ends the user's command for a job. `top_screen`
//! draws the `Screen` of `top`.
//!
//! The commands use these modules, from the highest level to the lowest:
//!
//! * `context` has the `Context` of a command (its servers, output and signals), questions to the
//!   user, and the `Outcome`. `context` also changes jobs by their ids, for `release`, `bury` and
//!   `kick`.
//! * `plan` has the `Plan`, the jobs that an action is allowed to change, in order of service. A
//!   `Summary` counts these jobs for the question to the user. An `Instance` is one run of a
//!   server.
//! * `change` applies a `Change` to jobs by their ids, or a `PlannedChange` to the jobs of a plan.
//! * `copy` puts `Copies` of jobs. After an import, it lists the lines whose jobs were not put.
//! * `save` writes jobs to a `SaveFile`, for `--save` and `export`.
//! * `binlog` reads jobs from a binlog directory.
//! * `listing` lists the jobs of a `Request`, by the server's `list-jobs` or by a sweep.
//! * `sweep` finds jobs by their ids with `stats-job`, and reads their bodies with `peek`.
//! * `sample` has the `Sampler`, which takes samples of a server. A `Sample` has counts and rates.
//! * `statistics` reads tubes and the `Counters` of a server from `stats` and `stats-tube`.
//! * `filter` has the `Filter` of jobs and the selection of `Tubes`, and parses times such as `5m`.
//! * `job` has the `Job`, its `State`, its `Line` of JSON, and the rules for names of tubes.
//! * `deadline` runs work in another thread, and stops waiting for the work after a deadline.
//! * `client` has the `Client`, a connection that pipelines commands, and the `Reply` of a server.
//! * `stream` has the `Stream`, a socket with time limits.
//! * `address` has the `Address` of a server, and quotes words for a shell.
//! * `yaml` parses the bodies of replies, such as lists and dictionaries.
//! * `http` has `serve_http`, the HTTP server of `metrics` and `web`. A `BoundedListener` accepts
//!   each `TimedConnection`. A `RequestHead` finds the end of a request's head. A `SharedBody` is a
//!   response's body.
//! * `input` reads lines and ids from an `InputSource`, which is a file or standard input.
//! * `output` has the `Output`, which writes text, JSON and each `Table` of `Cell`s to standard
//!   output.
//! * `terminal` has the `Terminal`, which draws on the full screen and reads keys.
//! * `message` prints notices and logs, and has the `Refusal`, an error of the kind `usage` or
//!   `conflict`.
//! * `progress` has the `Progress` line, and the `Pacer`, which limits commands per second.
//! * `interrupt` has the `Interrupt`, which is set by a signal, such as SIGINT by Ctrl-C.
//!   `interrupt` also starts child processes.
//!
//! The command `metrics` for Prometheus has these modules:
//!
//! * `names` defines the metrics. A `Family` is a metric with its `Kind`. A `Source` names the keys
//!   that have the metric's values in a server's statistics.
//! * `foreign` has the metric names of two other exporters, `messagebird` and `davidtannock`.
//! * `scrape` has the `Scraper`, which scrapes all servers. A `Target` is a server with its
//!   connection.
//! * `page` writes a `Page` in the text format of Prometheus. `Lines` writes one metric's samples
//!   and histograms.
//! * `serve` answers HTTP requests. Concurrent requests share one scrape by a `SharedScrape`.
//! * `textfile` writes the metrics to a file, and replaces the file as a whole.
//!
//! The command `web` serves the page for operators. `web/mod.rs` routes requests, and has the
//! `Site`, the state that all requests share, and the `Failure`, an error response. The names of
//! the handlers begin with `serve_`. The other modules of `web` are:
//!
//! * `guard` has the `Guard`, which refuses requests by their host, origin, token and password.
//! * `assets` serves the page itself and its files.
//! * `view` answers a `ViewRequest` with servers and tubes as JSON.
//! * `watch` has the `Watcher`: its thread samples a server as long as it gets requests from pages,
//!   such as a `SampleRequest`. The `SharedState` of the `Watched` server has a `TubeHistory` for
//!   each tube. An `InterruptOnDrop` ends the work for a request that is dropped.
//! * `metrics` reads the `Figures` of tubes, such as a `Histogram`, by the server's command
//!   `metrics`.
//! * `jobs` answers a `ListRequest` with a list of jobs, and a `JobRequest` with a job and its
//!   body.
//! * `questions` keeps each `Question` with its plan in `Questions`, until a page answers the
//!   question.
//! * `acts` plans, carries out and logs the `Action` that a page requests. A `JobAction` applies a
//!   `Verb` to `Jobs`, a `Tube` is a tube's name that was checked, and a `Report` describes the
//!   result.
//!
//! The manual page lists the exit statuses that `main` returns.

mod address;
mod args;
mod binlog;
mod change;
mod cli;
mod client;
mod commands;
mod context;
mod copy;
mod deadline;
mod filter;
mod http;
mod input;
mod interrupt;
mod job;
mod listing;
mod message;
mod metrics;
mod output;
mod plan;
mod progress;
mod sample;
mod save;
mod statistics;
mod stream;
mod sweep;
mod terminal;
mod web;
mod yaml;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::FromArgMatches as _;

use cli::{Cli, Command};
use commands::check::CheckStatus;
use context::{Context, Outcome};
use interrupt::Interrupt;
use message::{is_broken_pipe, is_usage, print_error, usage};
use output::Output;

/// The exit status for wrong arguments.
const USAGE_STATUS: u8 = 2;

/// The notice after a first signal to a read-only command.
const LOOK_NOTICE: &str = "waiting for a reply; press Ctrl-C again to quit at once";
/// The notice after a first signal to a command that changes a server.
const ACT_NOTICE: &str = "waiting for replies to the commands sent; press Ctrl-C again to quit at \
                          once, but then the last commands may or may not be carried out";

/// Runs `beanstalkctl`, and returns its exit status.
fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            // If the print fails, there is no other place to report the error.
            let _ = error.print();
            let rest = cli::build_cli().ignore_errors(true).try_get_matches();
            let is_check = rest.is_ok_and(|rest| rest.subcommand_name() == Some("check"));
            return ExitCode::from(match (error.use_stderr(), is_check) {
                (false, _) => 0,
                (true, false) => USAGE_STATUS,
                (true, true) => CheckStatus::Unknown as u8,
            });
        }
    };
    let interrupt = Interrupt::default();
    let (is_read_only, is_check) =
        (cli.command.is_read_only(), matches!(cli.command, Command::Check(_)));
    // `export` and `check` fail if their output is closed early: their output must be complete.
    let may_be_cut = is_read_only && !is_check && !matches!(cli.command, Command::Export(_));
    interrupt.set_notice(if is_read_only { LOOK_NOTICE } else { ACT_NOTICE });
    let result = interrupt.catch_signals().map_err(Into::into).and_then(|()| {
        let out = Output::new(cli.json);
        let mut context = Context { servers: cli.server, out, interrupt: interrupt.clone() };
        let result = run(cli.command, &mut context);
        // Flush even after a failure: the output before the failure is still useful.
        let flushed = context.out.flush();
        let outcome = result?;
        flushed.map(|()| outcome)
    });
    match result {
        Ok(outcome) => outcome.into(),
        // The reader has closed the output, as `head` does.
        Err(error) if may_be_cut && is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            let of_failure = if is_usage(&error) { USAGE_STATUS } else { 1 };
            let status = interrupt.exit_status().unwrap_or(of_failure);
            ExitCode::from(if is_check { CheckStatus::Unknown as u8 } else { status })
        }
    }
}

/// Parses the arguments of `beanstalkctl`. An empty environment variable `BEANSTALKD_SERVER` is
/// treated as unset.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = cli::build_cli();
    if env::var_os("BEANSTALKD_SERVER").is_some_and(|server| server.is_empty()) {
        command = command.mut_arg("server", |server| server.env(None::<&str>));
    }
    Cli::from_arg_matches(&command.try_get_matches()?)
}

/// Runs the command that the arguments name.
fn run(command: Command, context: &mut Context) -> Result<Outcome> {
    let is_text = matches!(command, Command::Report | Command::Work(_) | Command::Metrics(_));
    let why = "this command has no output in JSON: leave out --json";
    ensure!(!is_text || !context.out.json, usage(why));
    match command {
        Command::Tubes(args) => commands::tubes::run(&args, context),
        Command::Stats { tube } => commands::stats::run(tube, context),
        Command::Check(args) => commands::check::run(args, context),
        Command::Job { ids, raw } => commands::job::run(&ids, raw, context),
        Command::List(args) => commands::list::run(&args, context),
        Command::Grep(args) => commands::grep::run(&args, context),
        Command::Big(args) => commands::big::run(args, context),
        Command::Top(args) => commands::top::run(&args, context),
        Command::Report => commands::report::run(context),
        Command::Web(args) => web::run(&args, context),
        Command::Metrics(args) => metrics::run(&args, context),
        Command::Put(args) => commands::put::run(&args, context),
        Command::Kick(args) => commands::kick::run(&args, context),
        Command::Reserve(args) => commands::reserve::run(&args, context),
        Command::Release { ids, pri, delay } => commands::release::run(&ids, pri, delay, context),
        Command::Bury { ids, pri } => commands::bury::run(&ids, pri, context),
        Command::Pause { tubes, length, yes } => {
            commands::pause::run(&tubes, length.max(1), yes, context)
        }
        Command::Resume { tubes, yes } => commands::resume::run(&tubes, yes, context),
        Command::Drain { switch, yes } => commands::drain::run(&switch, yes, context),
        Command::Work(args) => commands::work::run(&args, context),
        Command::Delete(args) => commands::delete::run(&args, context),
        Command::Clear(args) => commands::clear::run(&args, context),
        Command::Move(args) => commands::r#move::run(&args, context),
        Command::Export(args) => commands::export::run(&args, context),
        Command::Import(args) => commands::import::run(&args, context),
        Command::Completions { shell } => {
            commands::completions::run(shell, cli::build_cli(), context)
        }
        Command::Manual => commands::manual::run(cli::build_cli(), context),
    }
}
