//! From flags to a running daemon, and the only place that exits.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | ended by SIGTERM, SIGINT or SIGHUP; or printed the help or the version |
//! | 1 | the event loop failed; or the help or the version could not be printed |
//! | 5 | the arguments make no sense |
//! | 10 | the binlog cannot be had |
//! | 32, 33, 34 | the user database failed; no such user; becoming that user was not allowed |
//! | 50 | the system would not tell what `stats` reports of it |
//! | 111 | nothing could be listened on, or signals not be caught |

use std::{
    env,
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use beanstalkd::{
    cli::{self, Config, Invocation},
    clock::Clock,
    net::{Listener, Shell},
    server::{Identity, Rusage, Server, Settings},
    sys::{self, Signals, UserError},
};
use log::{LevelFilter, debug, error, info, warn};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    match cli::parse(&arguments) {
        Ok(Invocation::Help) => print(&cli::usage()),
        Ok(Invocation::Version) => print(&format!("beanstalkd {VERSION}\n")),
        Ok(Invocation::Serve(config)) => {
            start_log(config.verbosity);
            serve(&config).map_or_else(|status| status, |()| ExitCode::SUCCESS)
        }
        Err(mistake) => {
            // Where even this cannot be said, the status still says it.
            let _ = write!(io::stderr(), "beanstalkd: {mistake}\n{}", cli::usage());
            ExitCode::from(5)
        }
    }
}

fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn start_log(verbosity: usize) {
    let level = match verbosity {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    env_logger::Builder::new()
        .filter_module("beanstalkd", level)
        .format(|out, record| writeln!(out, "beanstalkd: {}", record.args()))
        .init();
}

/// Says what went wrong and turns it into the status to exit with.
fn exit<E: Display>(status: u8, what: &str) -> impl FnOnce(E) -> ExitCode {
    move |error| {
        error!("{what}{error}");
        ExitCode::from(status)
    }
}

/// Listens before it lets go of privileges, for a port or a path may need them.
fn serve(config: &Config) -> Result<(), ExitCode> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    if config.binlog.is_some() {
        let missing = "this version keeps jobs in memory only; start without it";
        return Err(exit(10, "-b: there is no binlog yet: ")(missing));
    }
    match sys::raise_descriptor_limit() {
        Ok(limit) => debug!("up to {limit} descriptors"),
        Err(error) => warn!("the limit on descriptors stays as it is: {error}"),
    }
    let identity = identify().map_err(exit(50, "cannot ask the system about itself: "))?;
    // Before there is a socket file that a signal would leave behind.
    let ends = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
    let signals =
        Signals::catch(&ends, &[libc::SIGUSR1]).map_err(exit(111, "cannot catch signals: "))?;
    let listener = Listener::bind(&config.address).map_err(exit(111, ""))?;
    info!("process {} listens on {}", identity.pid, listener.place());
    if let Some(user) = &config.user {
        become_user(user)?;
    }
    let clock = Clock;
    let settings =
        Settings { job_size_limit: config.job_size_limit, binlog_size: config.binlog_size };
    let server = Server::new(identity, settings, clock.now());
    let failed = "the event loop failed: ";
    let mut shell = Shell::new(server, listener, signals, clock).map_err(exit(1, failed))?;
    shell.run().map_err(exit(1, failed))
}

fn become_user(user: &str) -> Result<(), ExitCode> {
    sys::become_user(user).map_err(|error| match error {
        UserError::Lookup(error) => exit(32, &format!("-u: cannot look up {user}: "))(error),
        UserError::Unknown => exit(33, "-u: there is no user ")(user),
        UserError::Denied(operation, error) => {
            exit(34, &format!("-u: cannot become {user}: {operation}: "))(error)
        }
    })
}

fn identify() -> io::Result<Identity> {
    let sys::Uname { nodename, version, machine } = sys::uname()?;
    Ok(Identity {
        pid: std::process::id(),
        version: VERSION.into(),
        id: format!("{:016x}", u64::from_be_bytes(sys::random_bytes()?)),
        hostname: nodename,
        os: version,
        platform: machine,
        rusage: || {
            let (user, system) = sys::cpu_time();
            Rusage { user, system }
        },
    })
}
