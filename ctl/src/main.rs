//! `beanstalkctl`: inspects any beanstalkd server, and changes its jobs one by one or in bulk.
//!
//! The program needs only the protocol of the original beanstalkd, and uses the extensions that a
//! server has.
//!
//! `cli` lists the commands. `args`, `metrics::args` and `web::args` define the commands'
//! arguments, in types such as `FilterArgs` and `Threshold`. The commands `metrics` and `web` are
//! folders; each other command is a file of its name in the folder `commands`. Each command starts
//! in its function `run`. The names of a command's other functions and types contain a form of its
//! name, such as `kick_tube`, `CheckStatus` and `Mover`. Two commands have a second file:
//! `work_command` starts, feeds and ends the user's command for a job of `work`, the
//! `RunningCommand`; `top_screen` draws the `Screen` of `top`. `ImportLines` are the lines of
//! jobs that `import` reads.
//!
//! The modules that the commands use, from the highest level to the lowest:
//!
//! | module | content |
//! |---|---|
//! | `context` | `Context`: servers, output, signals of a command; questions, warnings; `Outcome` |
//! | | changes by ids, for `release`, `bury` and `kick` |
//! | `plan` | `Plan`: the jobs that an action may change, in order of service; `Instance` |
//! | | `Summary`: the numbers of these jobs, for the question |
//! | `change` | `Change` of jobs by their ids; a `PlannedChange` of the jobs of a plan |
//! | `copy`, `save` | `Copies`: puts jobs, lists lines not put; `SaveFile`: the file of `--save` |
//! | `binlog` | reads jobs from a binlog directory |
//! | `listing` | `list_jobs` for a `Request`: by the server's `list-jobs` or by a sweep |
//! | `sweep` | `Sweep`: finds jobs by their ids with `stats-job`, bodies by `peek`, the last id |
//! | `sample` | `Sampler`, `Sample`: counts and rates of a server over time, its binlog |
//! | `statistics` | tubes and `Counters` of a server, by `stats` and `stats-tube` |
//! | `filter` | `Filter`, `Tubes`: which jobs and tubes are selected; times such as `5m` |
//! | `job` | `Job`, its `State`, times and `Line` of JSON; the rules for names of tubes |
//! | `deadline` | work that is abandoned after a deadline |
//! | `client` | `Client`, `Reply`: a connection; pipelined commands, replies, the server's limits |
//! | `stream`, `address` | `Stream`: a socket with time limits; `Address`, and words for a shell |
//! | `yaml` | the bodies of replies: values, numbers, pairs, items, dictionaries |
//! | `http` | `serve_http`, the server of `metrics` and `web`: sockets, a `BoundedListener`, |
//! | | each `TimedConnection` with a `RequestHead`, and the `SharedBody` of responses |
//! | `input` | reads lines and ids from an `InputSource`: a file or standard input |
//! | `output` | `Output`, `Table`, `Cell`: writes tables, JSON and bodies, inert for a terminal |
//! | `terminal` | `Terminal`: the full screen and its keys |
//! | `message` | `Refusal`: kinds of errors, by `usage`, `conflict`; notices; logs; server states |
//! | `progress` | `Progress`: a line; `Pacer`: a limit on commands per second; counts as floats |
//! | `interrupt` | `Interrupt`: Ctrl-C and other signals, waits that they end, child processes |
//!
//! `metrics` is for Prometheus:
//!
//! | module | content |
//! |---|---|
//! | `names` | the `Family` of each metric with its `Kind` and `Source`, by the keys of servers |
//! | `foreign` | the metrics with the names of two other exporters: `messagebird`, `davidtannock` |
//! | `scrape` | `Scraper`: asks all servers, each a `Target` with its connection |
//! | `page` | `Page`: the text format: `Lines` of a metric, labels, histograms |
//! | `serve` | answers over HTTP; concurrent requests share one `SharedScrape` |
//! | `textfile` | writes the text to a file, and replaces the file as a whole |
//!
//! `web` serves the page for operators. `web/mod.rs` routes requests, and has the `Site`, the state
//! that all requests share, and the type of error responses, `Failure`. The names of the handlers
//! begin with `serve_`:
//!
//! | module | content |
//! |---|---|
//! | `guard` | `Guard`: refuses requests by headers: host, origin, token and password |
//! | `assets` | the page itself and its files |
//! | `view` | `ViewRequest`: servers and tubes as JSON: rows, rates, troubles, history |
//! | `watch` | `Watcher`: a thread that answers each `SampleRequest` of a page; `SharedState` |
//! | | of the `Watched` server; each `TubeHistory`; `InterruptOnDrop` ends a request |
//! | `metrics` | `Histogram` and other `Figures` of tubes, read by the command `metrics` |
//! | `jobs` | `ListRequest`, `JobRequest`: jobs as JSON: lists, searches, previews, bodies |
//! | `questions` | `Questions`: each `Question` with its plan, kept until a page answers it |
//! | `acts` | `Action`: plans, carries out, abridges and logs the requests of a page; |
//! | | `JobAction`: a `Verb` for `Jobs`; `Tube`: a checked name; `Report`: the result |
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

/// The exit status of wrong arguments.
const USAGE_STATUS: u8 = 2;

/// The notice printed after a first signal, for commands that only read.
const LOOK_NOTICE: &str = "waiting for a reply; press Ctrl-C again to quit at once";
/// The notice printed after a first signal, for all other commands.
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
