//! Startup, from flags to a daemon that serves. This file has the order of the steps, the change of
//! user, the reading of the binlog and the supply of memory. The module `error` has exit statuses
//! and advice; `lock` waits for the binlog's lock and takes it over; `ping` has the health check;
//! `report` logs damage, and formats the page of `--check-binlog`; `retry` listens, checks the
//! directory and repeats failed steps.

mod error;
mod lock;
pub mod ping;
mod report;
mod retry;

use std::{env, ffi::OsString, io, ops::ControlFlow, path::Path};

use log::{debug, info, warn};

pub use self::error::StartError;
use self::{lock::Holder, report::report_damage};
use crate::{
    cli::Config,
    clock::{self, Time},
    memory::{ResidentLimit, SystemMemory},
    net::{EventLoop, Listener, LoopError},
    server::{Identity, Server},
    service::{logging::counted, notify::Notifier},
    sys::{self, Signals},
    wal::{self, Directory, Options, Restored, Wal},
};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Resident memory may exceed 1.25 times the value of `--max-memory` by this many bytes: for the
/// program, for memory that the levels keep free, and for growth between checks.
const RESIDENT_EXTRA_BYTES: u64 = 9_000_000;

/// The limit on resident memory is at least the memory that is resident after startup plus this
/// many bytes, so that workers can connect and delete jobs.
const SERVICE_BYTES: u64 = 5_000_000;

/// Takes all steps of startup, then serves until a signal or a failure ends the daemon. Logs
/// `arguments`, the words of the command line. Listens before it drops privileges, because a port
/// or a path may require privileges. Also listens before it reads the binlog, so that clients that
/// connect early need not try again. With `--wait-for-lock`, drops privileges before it waits for
/// the lock, and listens only once it has the lock, so that no client waits for a standby.
pub fn serve(config: &Config, arguments: &[OsString]) -> Result<(), StartError> {
    prepare_process(config);
    let identity = identify().map_err(StartError::Identity)?;
    // Signals are caught first: an uncaught signal would leave the file of a UNIX socket behind.
    let signals = Signals::catch().map_err(StartError::Signals)?;
    let flags: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let flags = if flags.is_empty() { "no flags".into() } else { flags.join(" ") };
    let started = || info!("version {VERSION}, process {}, started with {flags}", identity.pid);
    let path = config.binlog.as_deref();
    let notifier = Notifier::new(|name| env::var_os(name), identity.pid, clock::now());
    let start = Start { config, holder: Holder::new(&identity), signals, notifier };
    let mut directory = None;
    if let Some(path) = path.filter(|_| config.waits_for_lock) {
        started();
        become_user(config)?;
        directory = start.wait_for_lock(path)?;
        if directory.is_none() {
            start.report_early_end("before the lock was acquired");
            return Ok(());
        }
    }
    let waited = directory.is_some();
    let Some(listeners) = start.listen(identity.pid)? else {
        start.report_early_end("before the daemon listens");
        return Ok(());
    };
    if !waited {
        started();
    }
    for listener in &listeners {
        info!("listens on {}", listener.address());
    }
    if !waited {
        become_user(config)?;
    }
    let made = match start.make_server(identity, directory) {
        Ok(made) => made,
        Err(error) => {
            // Closes the listeners, so that no client waits while this daemon waits for the lock.
            drop(listeners);
            let held =
                path.filter(|_| matches!(error, StartError::Binlog(_, wal::Error::Locked(_))));
            return match held.map(|path| start.wait_for_lock(path)) {
                Some(Ok(None)) => Ok(()),
                _ => Err(error),
            };
        }
    };
    let Some(mut server) = made else {
        // All jobs are still in the binlog's files.
        start.report_early_end("before the binlog is read");
        return Ok(());
    };
    supply_memory(&mut server, config);
    start.run_loop(server, listeners)
}

/// Logs warnings on the flags, and sets up the allocator and the limit on descriptors.
fn prepare_process(config: &Config) {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let needs_binlog = config.waits_for_lock || config.exit_on_binlog_failure.is_some();
    if config.binlog.is_none() && needs_binlog {
        warn!("--wait-for-lock and --exit-on-binlog-failure do nothing without -b");
    }
    sys::tune_allocator();
    match sys::raise_descriptor_limit() {
        Ok(limit) => debug!("at most {limit} file descriptors"),
        Err(error) => warn!("cannot raise the limit on file descriptors: {error}"),
    }
}

/// A startup in progress.
struct Start<'a> {
    config: &'a Config,
    holder: Holder,
    signals: Signals,
    notifier: Notifier,
}

impl Start<'_> {
    /// Makes the server, with the jobs of the binlog if there is a binlog. With `--wait-for-lock`,
    /// `directory` is the binlog's locked directory. `None` if a signal ends startup.
    fn make_server(
        &self,
        identity: Identity,
        directory: Option<Directory>,
    ) -> Result<Option<Server>, StartError> {
        let config = self.config;
        let Some(path) = &config.binlog else {
            return Ok(Some(Server::new(identity, config.settings, clock::now())));
        };
        let mut restored = Restored::default();
        // All memory for restored jobs must be resident before the limit is computed.
        let limits_resident = config.settings.memory_limit.is_some();
        restored.bodies.memory.limits_resident = limits_resident;
        restored.queue.is_resident = limits_resident;
        restored.bodies.memory.set_supply(Box::new(SystemMemory));
        // The first report of progress is due a second from now: getting the lock takes time, too.
        let began = clock::now();
        let directory = match directory {
            Some(directory) => directory,
            None => Directory::lock(path)
                .and_then(|directory| self.holder.take_over(directory, false, path))
                .map_err(|error| StartError::Binlog(path.into(), error))?,
        };
        let wal = self.open_binlog(path, directory, began, &mut restored)?;
        Ok(wal.map(|wal| {
            Server::with_wal(identity, config.settings, restored, Some(wal), clock::now())
        }))
    }

    /// Reads the jobs from the binlog, and reports the progress at most once a second. `None` if a
    /// signal ends startup.
    fn open_binlog(
        &self,
        path: &Path,
        directory: Directory,
        mut reported_at: Time,
        restored: &mut Restored,
    ) -> Result<Option<Wal>, StartError> {
        let options = Options {
            segment_size: self.config.settings.binlog_size,
            sync: self.config.sync,
            key: sys::random_number(),
        };
        let now = clock::now();
        let mut progress = |read: u64, all: u64| {
            if self.signals.is_end_due() {
                return ControlFlow::Break(());
            }
            if reported_at.seconds_until(clock::now()) >= 1 {
                reported_at = clock::now();
                let text = format!("reading the binlog: {} of {} MiB", read >> 20, all >> 20);
                info!("{text}");
                self.notifier.progress(&text);
            }
            ControlFlow::Continue(())
        };
        let opened = Wal::open(
            Box::new(directory),
            options,
            restored,
            clock::calendar(now),
            now,
            &mut progress,
        );
        let (wal, report) = match opened {
            Err(wal::Error::Interrupted) => return Ok(None),
            opened => opened.map_err(|error| StartError::Binlog(path.into(), error))?,
        };
        let damaged = match report_damage(path, &report) {
            0 => String::new(),
            damaged => format!(", {damaged} damaged,"),
        };
        let took = now.until(clock::now());
        let jobs = counted(restored.queue.jobs(), "job");
        let files = counted(report.segments.len(), "binlog file");
        info!("read {jobs} from {files}{damaged} in {took:.1?}");
        Ok(Some(wal))
    }

    /// Reports in the log and to the service manager that a signal ends the daemon during startup.
    fn report_early_end(&self, when: &str) {
        info!("shutting down on a signal, {when}");
        self.notifier.stopping();
    }

    /// Serves until a signal or a failure ends the daemon.
    fn run_loop(self, server: Server, listeners: Vec<Listener>) -> Result<(), StartError> {
        let Self { config, signals, notifier, .. } = self;
        let (busy_poll, binlog_failure_max) = (config.busy_poll, config.exit_on_binlog_failure);
        let failed = |error| StartError::Loop(config.binlog.clone().unwrap_or_default(), error);
        EventLoop::new(server, listeners, signals, notifier, busy_poll, binlog_failure_max)
            .map_err(LoopError::System)
            .and_then(|mut event_loop| event_loop.run())
            .map_err(failed)
    }
}

/// Gives the server the object that reports how much memory is free. With `--max-memory`, this
/// object also limits resident memory, if the system reports how much memory is resident.
fn supply_memory(server: &mut Server, config: &Config) {
    server.set_supply(Box::new(SystemMemory));
    let Some(bytes) = config.settings.memory_limit else { return };
    let restored = server.bodies().counted;
    if restored > bytes {
        warn!("jobs take {restored} bytes, more than --max-memory: new jobs are refused");
    }
    let opened = sys::ResidentMemory::open();
    match opened.and_then(|resident| Ok((resident.bytes()?, resident))) {
        Ok((now, resident)) => {
            let limit = bytes.saturating_add(bytes / 4).saturating_add(RESIDENT_EXTRA_BYTES);
            // Even if jobs of the binlog exceed the limit, workers must be able to delete jobs.
            let limit = limit.max(now + SERVICE_BYTES);
            server.keep_resident();
            server.set_supply(Box::new(ResidentLimit::new(limit, resident)));
        }
        Err(error) => {
            warn!("cannot read resident memory; --max-memory limits only bodies: {error}");
        }
    }
}

/// Makes the process run as the user that `-u` names, if that flag is given.
fn become_user(config: &Config) -> Result<(), StartError> {
    let Some(user) = &config.user else { return Ok(()) };
    let found =
        sys::find_user(user).map_err(|error| StartError::UserLookup(user.clone(), error))?;
    let ids = found.ok_or_else(|| StartError::UserUnknown(user.clone()))?;
    sys::become_user(ids).map_err(|error| StartError::UserDenied(user.clone(), error))
}

/// Gets the names of the machine and its system for `stats`, and a random id for this run.
pub fn identify() -> io::Result<Identity> {
    let [hostname, os, platform] = sys::uname()?;
    Ok(Identity {
        pid: std::process::id(),
        version: VERSION.into(),
        id: format!("{:016x}", sys::random_number()),
        hostname,
        os,
        platform,
        rusage: sys::cpu_time,
    })
}
