//! Runs the action that the flags request, and returns the exit status. No code calls `exit`.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | ended by SIGTERM, SIGINT or SIGHUP; or `-h`, `-v`, a binlog check or a ping succeeded |
//! | 1 | the event loop, printing or a ping failed; or the checked binlog is damaged |
//! | 5 | the arguments are wrong |
//! | 10 | the binlog (`-b`, `--check-binlog`) cannot be opened for writing, or its lock is lost |
//! | 11 | the binlog has failed for the time of `--exit-on-binlog-failure` |
//! | 32, 33, 34 | `-u`: the user database failed; it has no such user; `-u` is not permitted |
//! | 50 | the names of the machine and its system, for `stats`, cannot be read |
//! | 111 | cannot listen on an address, or cannot catch signals |

use std::{
    env,
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::{self, ExitCode},
};

use beanstalkd::{
    cli::{self, Invocation},
    clock,
    service::{logging, notify::Notifier},
    startup::{self, VERSION, ping},
    sys::ballast::Ballasted,
    wal::{self, Directory},
};
use log::error;

#[global_allocator]
static ALLOCATOR: Ballasted = Ballasted;

/// Runs the action that the flags request.
fn main() -> ExitCode {
    let mut arguments: Vec<_> = env::args_os().skip(1).collect();
    // If this program is a container's entry point, the first argument may be the program's name.
    if arguments.first().is_some_and(|word| Path::new(word).ends_with("beanstalkd")) {
        arguments.remove(0);
    }
    match cli::parse(&arguments) {
        Ok(Invocation::Help) => print(cli::usage()),
        Ok(Invocation::Version) => print(format_args!("beanstalkd {VERSION}\n")),
        Ok(Invocation::CheckBinlog(path)) => check_binlog(&path),
        Ok(Invocation::Ping(addresses)) => match ping::ping(&addresses) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(1, error),
        },
        Ok(Invocation::Serve(config)) => {
            logging::start(config.verbosity);
            match startup::serve(&config, &arguments) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    error!("{error}");
                    let manager = |name: &str| env::var_os(name);
                    Notifier::new(manager, process::id(), clock::now()).failed(&error);
                    ExitCode::from(error.status())
                }
            }
        }
        Err(mistake) => fail(5, format_args!("{mistake} (beanstalkd -h lists the flags)")),
    }
}

/// Prints `error` on standard error, if possible, and returns `status` as an exit code.
fn fail(status: u8, error: impl Display) -> ExitCode {
    let _ = writeln!(io::stderr(), "beanstalkd: {error}");
    ExitCode::from(status)
}

/// Prints `text` piece by piece, because the whole text may be too long to keep in memory.
fn print(text: impl Display) -> ExitCode {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints the report of `--check-binlog`, and returns the exit status.
fn check_binlog(path: &Path) -> ExitCode {
    let now = clock::now();
    let checked = Directory::read_only(path).and_then(|mut disk| {
        let inspection = wal::inspect(&mut disk, clock::calendar(now), now)?;
        let printed = print(&inspection);
        // The inspection needs no permission to write, so this permission is checked last.
        disk.check_writable()?;
        Ok(if inspection.is_odd() { ExitCode::FAILURE } else { printed })
    });
    checked.unwrap_or_else(|error| fail(10, format_args!("{}: {error}", path.display())))
}
