//! From flags to a running daemon, and the only place that exits.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | ended by SIGTERM, SIGINT or SIGHUP; or did what else was asked for: help, version, ping |
//! | 1 | the event loop failed; a checked binlog is damaged; no answer to a ping; or something could not be printed |
//! | 5 | the arguments make no sense |
//! | 10 | the binlog cannot be had |
//! | 32, 33, 34 | the user database failed; no such user; becoming that user was not allowed |
//! | 50 | the system would not tell what `stats` reports of it |
//! | 111 | an address could not be listened on, or signals not be caught |

use std::{
    env,
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::{self, ExitCode},
};

use beanstalkd::{
    cli::{self, Config, Invocation},
    clock::Clock,
    net::{ListenError, Listener, Shell},
    queue::Queue,
    server::{Identity, Rusage, Server, Settings},
    service::{logging, notify::Notifier, ping},
    sys::{self, Signals, UserError},
    wal::{self, Directory, Name, Options, Report, Wal},
};
use log::{debug, error, info, warn};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Signals on which the daemon ends.
const ENDS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    match cli::parse(&arguments) {
        Ok(Invocation::Help) => print(cli::usage()),
        Ok(Invocation::Version) => print(format_args!("beanstalkd {VERSION}\n")),
        Ok(Invocation::CheckBinlog(path)) => check_binlog(&path),
        Ok(Invocation::Ping(addresses)) => match ping::ping(&addresses) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "beanstalkd: {error}");
                ExitCode::FAILURE
            }
        },
        Ok(Invocation::Completions(shell)) => print(shell.completions()),
        Ok(Invocation::Serve(config)) => {
            logging::start(config.verbosity);
            serve(&config, &arguments).map_or_else(|status| status, |()| ExitCode::SUCCESS)
        }
        Err(mistake) => {
            // Where even this cannot be said, the status still says it.
            let _ = write!(io::stderr(), "beanstalkd: {mistake}\n{}", cli::usage());
            ExitCode::from(5)
        }
    }
}

/// Prints what may be long as it comes, and never keeps the whole of it.
fn print(text: impl Display) -> ExitCode {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn check_binlog(path: &Path) -> ExitCode {
    let now = Clock.now();
    let inspected = Directory::read_only(path)
        .and_then(|mut disk| wal::inspect(&mut disk, Clock.calendar(now), now, &mut |_, _| ()));
    match inspected {
        Err(error) => {
            let _ = writeln!(io::stderr(), "beanstalkd: {}: {error}", path.display());
            ExitCode::from(10)
        }
        Ok(inspection) if inspection.is_odd() => {
            print(inspection);
            ExitCode::FAILURE
        }
        Ok(inspection) => print(inspection),
    }
}

/// Says what went wrong and turns it into the status to exit with.
fn exit<E: Display>(status: u8, what: &str) -> impl FnOnce(E) -> ExitCode {
    move |error| {
        error!("{what}{error}");
        ExitCode::from(status)
    }
}

/// Listens before it lets go of privileges, for a port or a path may need them; and before it
/// reads the binlog, so that clients wait meanwhile and are not refused.
fn serve(config: &Config, arguments: &[OsString]) -> Result<(), ExitCode> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    sys::keep_large_blocks_apart();
    sys::share_small_blocks();
    match sys::raise_descriptor_limit() {
        Ok(limit) => debug!("up to {limit} descriptors"),
        Err(error) => warn!("the limit on descriptors stays as it is: {error}"),
    }
    let identity = identify().map_err(exit(50, "cannot ask the system about itself: "))?;
    // Before there is a socket file that a signal would leave behind.
    let signals = Signals::catch(&ENDS, &[libc::SIGUSR1, libc::SIGUSR2])
        .map_err(exit(111, "cannot catch signals: "))?;
    let listeners = listen(config, identity.pid).map_err(exit(111, ""))?;
    let flags: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let flags = if flags.is_empty() { "no flags".into() } else { flags.join(" ") };
    info!("version {VERSION}, process {}, started with {flags}", identity.pid);
    for listener in &listeners {
        info!("listens on {}", listener.place());
    }
    if let Some(user) = &config.user {
        become_user(user)?;
    }
    let clock = Clock;
    let notifier = Notifier::new(|name| env::var_os(name), identity.pid, clock.now());
    let mut start = Start { config, clock, listeners, signals, notifier };
    let settings = Settings {
        job_size_limit: config.job_size_limit,
        binlog_size: config.binlog_size,
        memory_limit: config.memory_limit,
    };
    let server = match &config.binlog {
        None => Server::new(identity, settings, clock.now()),
        Some(path) => {
            let mut queue = Queue::default();
            let wal = start.open_log(path, &mut queue)?;
            Server::with_log(identity, settings, queue, wal, clock.now())
        }
    };
    let failed = "the event loop failed: ";
    let Start { listeners, signals, notifier, .. } = start;
    let mut shell =
        Shell::new(server, listeners, signals, notifier, clock).map_err(exit(1, failed))?;
    shell.run().map_err(exit(1, failed))
}

/// Takes over the sockets of a service manager, or else opens those of the flags.
fn listen(config: &Config, pid: u32) -> Result<Vec<Listener>, ListenError> {
    let inherited = Listener::inherited(pid)?;
    if inherited.is_empty() {
        return Listener::bind_all(&config.addresses);
    }
    if config.is_address_given {
        warn!("-l and -p are ignored: whoever started this process has opened its sockets");
    }
    Ok(inherited)
}

/// A daemon that listens and does not serve yet.
struct Start<'a> {
    config: &'a Config,
    clock: Clock,
    listeners: Vec<Listener>,
    signals: Signals,
    notifier: Notifier,
}

impl Start<'_> {
    /// Reads the jobs of the last run, with a word on how far it is where that takes long.
    fn open_log(&mut self, path: &Path, queue: &mut Queue) -> Result<Wal, ExitCode> {
        let failed = format!("-b: {}: ", path.display());
        let clock = self.clock;
        let mut said_at = clock.now();
        let directory = Directory::lock(path).map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES | libc::EAGAIN) if path.join("lock").exists() => {
                exit(10, &failed)(format!("another process may have it locked: {error}"))
            }
            _ => exit(10, &failed)(error.to_string()),
        })?;
        let seed = sys::random_bytes().map_err(exit(50, "cannot get random bytes: "))?;
        let options = Options {
            segment_size: self.config.binlog_size,
            sync: self.config.sync,
            seed: u64::from_be_bytes(seed),
        };
        let now = clock.now();
        let mut progress = |read: u64, all: u64| {
            if self.signals.has_come(&ENDS) {
                self.give_up();
            }
            if said_at.seconds_until(clock.now()) >= 1 {
                said_at = clock.now();
                let text = format!("the binlog is read: {} of {} MiB", read >> 20, all >> 20);
                info!("{text}");
                self.notifier.progress(&text);
            }
        };
        let opened =
            Wal::open(Box::new(directory), options, queue, clock.calendar(now), now, &mut progress);
        let (wal, report) = opened.map_err(exit(10, &failed))?;
        let damaged = tell_damage(path, &report);
        let took = now.until(clock.now());
        let (jobs, files) = (queue.jobs(), report.segments.len());
        info!("the binlog had {jobs} jobs in {files} files, {damaged} damaged, read in {took:.1?}");
        Ok(wal)
    }

    /// Ends in order before it has served: what was read is still in its files.
    fn give_up(&mut self) {
        info!("ending on a signal before the binlog is read");
        self.notifier.stopping();
        self.listeners.clear();
        process::exit(0);
    }
}

/// Says where the binlog could not be read, and returns in how many files.
fn tell_damage(path: &Path, report: &Report) -> usize {
    for segment in &report.segments {
        let place = path.join(Name::Segment(segment.number).to_string());
        for complaint in &segment.complaints {
            warn!("{}: {complaint}", place.display());
        }
        let more = segment.complaints_in_all - segment.complaints.len() as u64;
        if more > 0 {
            warn!("{}: {more} more places like these", place.display());
        }
        if let Some(offset) = segment.torn {
            info!("{}: ends within a record at {offset}: it was being written", place.display());
        }
    }
    report.segments.iter().filter(|segment| segment.complaints_in_all > 0).count()
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
