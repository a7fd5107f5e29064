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
//! - `look`, `act` and `carry` have the commands;
//! - `web` serves a page that looks and acts as the commands do;
//! - `metrics` tells Prometheus what servers count, over `http` or otherwise;
//! - `place` and `save` write jobs to servers and to files;
//! - `interrupt`, `progress` and `terminal` are between the program and its user.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed; or not all was done or found, and it has been told |
//! | 2 | the arguments are wrong |
//! | 130 | ended by Ctrl-C |

mod act;
mod address;
mod carry;
mod census;
mod cli;
mod client;
mod context;
mod filter;
mod http;
mod interrupt;
mod job;
mod listing;
mod look;
mod metrics;
mod output;
mod pages;
mod place;
mod progress;
mod save;
mod stream;
mod sweep;
mod terminal;
mod web;
mod yaml;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use cli::{Cli, Command};
use context::{Context, Outcome};
use interrupt::{Interrupt, Interrupted};
use output::Output;

/// The exit status after Ctrl-C, as of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let interrupt = Interrupt::default();
    let result = interrupt.catch().map_err(Into::into).and_then(|()| {
        let out = Output::new(cli.json);
        let mut context = Context { servers: cli.server, out, interrupt };
        let result = run(cli.command, &mut context);
        // What was found before a failure is worth having.
        let flushed = context.out.flush();
        let outcome = result?;
        flushed.map(|()| outcome)
    });
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) if error.is::<Interrupted>() => {
            context::complain(&error);
            ExitCode::from(INTERRUPTED)
        }
        // The reader has seen enough, as `head` does.
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => {
            context::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, context: &mut Context) -> Result<Outcome> {
    match command {
        Command::Tubes(args) => look::tubes::run(&args, context),
        Command::Stats { tube } => look::stats::run(tube.as_deref(), context),
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
        Command::Release { ids, pri, delay } => act::one::release(&ids, pri, delay, context),
        Command::Bury { ids, pri } => act::one::bury(&ids, pri, context),
        Command::Pause { tubes, length } => act::pause::pause(&tubes, length.max(1), context),
        Command::Resume { tubes } => act::pause::pause(&tubes, 0, context),
        Command::Drain { switch } => act::pause::drain(switch, context),
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
