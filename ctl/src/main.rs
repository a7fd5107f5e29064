//! `beanstalkctl`: looks inside any beanstalkd, and acts on its jobs in bulk.
//!
//! It needs no more than the protocol of the original; where a server has more, that is used.
//!
//! Reading order:
//! - `cli` defines all commands, and `context` is what each of them is given;
//! - `address`, `stream`, `client` and `yaml` speak with a server, command by command or thousands
//!   at once;
//! - `job`, `filter` and `output` are a job, which jobs are meant, and how they are shown;
//! - `listing` finds the jobs of any server: by `list-jobs`, or by the `sweep` over all ids, which
//!   ends by what `census` counts;
//! - `plan` is which jobs an act may touch, agreed to before and checked again when it is done;
//! - `look`, `act` and `carry` have the commands;
//! - `web` serves a page that looks and acts as the commands do;
//! - `metrics` tells Prometheus what servers count, over `http` or otherwise;
//! - `place` and `save` write jobs to servers and to files, and `input` reads lines;
//! - `interrupt`, `progress` and `terminal` are between the program and its user.
//!
//! The exit statuses are in the manual, which `pages` makes, and [`status_of`] gives them.

mod act;
mod address;
mod carry;
mod census;
mod cli;
mod client;
mod context;
mod filter;
mod http;
mod input;
mod interrupt;
mod job;
mod listing;
mod look;
mod metrics;
mod output;
mod pages;
mod place;
mod plan;
mod progress;
mod save;
mod stream;
mod sweep;
mod terminal;
mod web;
mod yaml;

use std::env;
use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{CommandFactory as _, FromArgMatches as _};

use act::one::Change::{Bury, Release};
use cli::{Cli, Command};
use context::{Context, Outcome, UsageError, is_broken_pipe, print_error};
use interrupt::Interrupt;
use look::check::Status;
use output::Output;

/// The exit status of wrong arguments.
const WRONG_ARGUMENTS: u8 = 2;

/// What is waited for after a first signal, and what a second one does.
const LOOK_NOTICE: &str = "waiting for a reply of the server; a second Ctrl-C ends at once";
const ACT_NOTICE: &str = "waiting for the server to answer what it was sent; a second Ctrl-C ends \
                          at once, and then it is not known what was done of that";

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            // There is no other place to report it.
            let _ = error.print();
            let is_check = env::args().any(|argument| argument == "check");
            return ExitCode::from(match (error.use_stderr(), is_check) {
                (false, _) => 0,
                (true, false) => WRONG_ARGUMENTS,
                (true, true) => Status::Unknown.code(),
            });
        }
    };
    let interrupt = Interrupt::default();
    let (looks, is_check) = (cli.command.looks(), matches!(cli.command, Command::Check(_)));
    interrupt.set_notice(if looks { LOOK_NOTICE } else { ACT_NOTICE });
    let result = interrupt.catch().map_err(Into::into).and_then(|()| {
        let out = Output::new(cli.json);
        let mut context = Context { servers: cli.server, out, interrupt: interrupt.clone() };
        let result = run(cli.command, &mut context);
        // What was found before a failure is worth having.
        let flushed = context.out.flush();
        let outcome = result?;
        flushed.map(|()| outcome)
    });
    match result {
        Ok(outcome) => outcome.into(),
        // The reader has seen enough, as `head` does.
        Err(error) if looks && is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::from(if is_check {
                Status::Unknown.code()
            } else {
                status_of(&error, &interrupt)
            })
        }
    }
}

/// Reads the arguments. An empty variable counts as none.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    if env::var_os("BEANSTALKD_SERVER").is_some_and(|server| server.is_empty()) {
        command = command.mut_arg("server", |server| server.env(None::<&str>));
    }
    Cli::from_arg_matches(&command.try_get_matches()?)
}

/// Returns the exit status of a failure.
fn status_of(error: &Error, interrupt: &Interrupt) -> u8 {
    let of_failure = if error.is::<UsageError>() { WRONG_ARGUMENTS } else { 1 };
    interrupt.exit_status().unwrap_or(of_failure)
}

fn run(command: Command, context: &mut Context) -> Result<Outcome> {
    match command {
        Command::Tubes(args) => look::tubes::run(&args, context),
        Command::Stats { tube } => look::stats::run(tube.as_deref(), context),
        Command::Check(args) => look::check::run(&args, context).map(Outcome::Checked),
        Command::Job { ids, raw } => look::job::run(&ids, raw, context),
        Command::List(args) => look::list::run(&args, context),
        Command::Grep(args) => look::grep::run(&args, context),
        Command::Big(args) => look::big::run(&args, context),
        Command::Top(args) => look::top::run(&args, context),
        Command::Report => look::report::run(context),
        Command::Web(args) => web::run(&args, context),
        Command::Metrics(args) => metrics::run(&args, context),
        Command::Put(args) => act::put::run(&args, context),
        Command::Kick(args) => act::kick::run(&args, context),
        Command::Reserve(args) => act::reserve::run(&args, context),
        Command::Release { ids, pri, delay } => {
            act::one::run(&ids, Release { pri, delay }, context)
        }
        Command::Bury { ids, pri } => act::one::run(&ids, Bury { pri }, context),
        Command::Pause { tubes, length, yes } => {
            act::pause::pause(&tubes, length.max(1), yes, context)
        }
        Command::Resume { tubes, yes } => act::pause::pause(&tubes, 0, yes, context),
        Command::Drain { switch, yes } => act::pause::drain(switch, yes, context),
        Command::Work(args) => act::work::run(&args, context),
        Command::Delete(args) => act::delete::run(&args, context),
        Command::Clear(args) => act::clear::run(&args, context),
        Command::Move(args) => act::move_jobs::run(&args, context),
        Command::Export(args) => carry::export::run(&args, context),
        Command::Import(args) => carry::import::run(&args, context),
        Command::Completions { shell } => pages::completions(shell, context),
        Command::Manual => pages::manual(context),
    }
}
