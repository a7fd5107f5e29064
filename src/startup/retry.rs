//! Repeats steps of startup that fail: a standby waits for the lock, and a daemon under a service
//! manager waits for an address to be configured or a disk to be mounted. If the daemon ended
//! instead of waiting, the manager would start it each second, and each start would log ten lines.

use std::{fs, thread, time::Duration};

use log::{info, warn};

use super::{Start, StartError};
use crate::{clock, net::Listener, sys, wal};

/// How long a daemon under a service manager repeats a step that fails, such as listening. If
/// restarts fail, too, the service fails after some minutes: the systemd units limit the starts.
const RETRY_TIME: Duration = Duration::from_secs(30);

/// How long a daemon under a service manager waits while another daemon has the lock: so long that
/// the restarts of the waiting daemon never reach the limit on starts in the systemd units.
const HELD_LOCK_TIME: Duration = Duration::from_secs(50);

/// The time between two attempts of a step.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Seconds between reports to the service manager. Each report asks the service manager for more
/// time than this.
const REPORT_SECONDS: u64 = 20;

impl Start<'_> {
    /// How long startup repeats a step that fails with this error.
    fn patience(&self, error: &StartError) -> Duration {
        match error {
            StartError::Binlog(_, wal::Error::Locked(_)) if self.config.waits_for_lock => {
                Duration::MAX
            }
            _ if !self.notifier.has_manager() => Duration::ZERO,
            StartError::Binlog(_, wal::Error::Locked(_)) => HELD_LOCK_TIME,
            _ => RETRY_TIME,
        }
    }

    /// Repeats a step of startup until the step succeeds or its time is over. `None` if a
    /// signal ends startup.
    #[expect(clippy::disallowed_methods, reason = "no event loop runs yet")]
    pub(super) fn retry<T>(
        &self,
        mut step: impl FnMut() -> Result<T, StartError>,
    ) -> Result<Option<T>, StartError> {
        let began = clock::now();
        let (mut reported_at, mut status) = (began, String::new());
        let role = if self.config.waits_for_lock { "standby: waits for the lock: " } else { "" };
        while !self.signals.is_end_due() {
            let error = match step() {
                Ok(done) => return Ok(Some(done)),
                Err(error) => error,
            };
            let now = clock::now();
            if began.until(now) >= self.patience(&error) {
                return Err(error);
            }
            let present = format!("{role}{error}");
            let is_new = present != status;
            if is_new {
                info!("{present} (trying again)");
            }
            if is_new || reported_at.seconds_until(now) >= REPORT_SECONDS {
                self.notifier.progress(&present);
                (reported_at, status) = (now, present);
            }
            thread::sleep(RETRY_INTERVAL);
        }
        Ok(None)
    }

    /// Once the binlog's directory can be used, takes over the sockets of a service manager or, if
    /// there are none, listens as the flags specify. `None` if a signal ends startup.
    pub(super) fn listen(&self, pid: u32) -> Result<Option<Vec<Listener>>, StartError> {
        let inherited = Listener::inherited(pid).map_err(StartError::Listen)?;
        let addresses = if inherited.is_empty() { &*self.config.addresses } else { &[] };
        let bind = || {
            self.check_directory()?;
            Listener::bind_all(addresses).map_err(StartError::Listen)
        };
        // A daemon with `--wait-for-lock` has the lock by now. If it cannot listen, it ends at
        // once, so that another machine takes over.
        let bound = if self.config.waits_for_lock { bind().map(Some) } else { self.retry(bind) };
        if inherited.is_empty() {
            return bound;
        }
        if self.config.waits_for_lock {
            warn!("--wait-for-lock: the service manager listens, so clients wait for the lock");
        }
        if self.config.is_address_given {
            warn!("-l and -p are ignored: the service manager passed its own sockets");
        }
        bound.map(|bound| bound.map(|_| inherited))
    }

    /// Fails if the directory of the binlog is missing or not writable. Checks only under a service
    /// manager; without one, the later attempt to lock the directory reports the same error.
    fn check_directory(&self) -> Result<(), StartError> {
        match &self.config.binlog {
            Some(path) if self.notifier.has_manager() => fs::OpenOptions::new()
                .read(true)
                .open(path)
                .and_then(|directory| sys::check_can_create(&directory))
                .map_err(|error| StartError::Binlog(path.clone(), error.into())),
            _ => Ok(()),
        }
    }
}
