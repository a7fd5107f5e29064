//! The lock of the binlog's directory at startup: waits for the lock, and makes sure that the
//! previous holder of the lock does not write any more.

use std::{path::Path, thread, time::Duration};

use log::{info, warn};

use super::{Start, StartError};
use crate::{
    server::Identity,
    sys,
    wal::{self, Directory, Disk, LOCK_CONFIRM_INTERVAL},
};

/// How long a daemon that takes over the lock waits before it writes anything. This time is longer
/// than [`LOCK_CONFIRM_INTERVAL`], during which the previous daemon relies on its last check of the
/// lock.
const TAKEOVER_DELAY: Duration = LOCK_CONFIRM_INTERVAL.saturating_mul(2);

/// This daemon's line in the file `lock` of the binlog's directory.
pub(super) struct Holder {
    line: String,
    /// The text that identifies the machine, at the end of the line. If the previous daemon ran on
    /// this machine, the lock is free only after that daemon has ended.
    machine: String,
}

impl Holder {
    /// The line of this daemon in the file `lock`.
    pub(super) fn new(identity: &Identity) -> Self {
        let Identity { id, pid, hostname, .. } = identity;
        let machine = match sys::boot_id() {
            Some(boot) => format!("on {hostname}, boot {boot}"),
            None => format!("on {hostname}"),
        };
        Self { line: format!("{id} process {pid} {machine}"), machine }
    }

    /// Makes sure that no other daemon still writes to the locked directory, and writes this
    /// daemon's line into the file `lock`.
    ///
    /// A daemon on another machine may not have noticed that the file system has revoked its lock.
    /// After a check of its lock, that daemon relies on the lock for a limited time. So this daemon
    /// first waits until that time is over, and then checks its own lock again. Meanwhile the file
    /// `lock` keeps the other daemon's line, so that the next daemon waits, too, if this process is
    /// killed.
    #[expect(clippy::disallowed_methods, reason = "no event loop runs yet")]
    pub(super) fn take_over(
        &self,
        mut directory: Directory,
        has_waited: bool,
        path: &Path,
    ) -> Result<Directory, wal::Error> {
        let waits = has_waited || directory.last_holder_may_run(&self.machine)?;
        if waits {
            let why = if has_waited {
                "another daemon held its lock until now"
            } else {
                "its file `lock` does not record a clean shutdown of the last daemon"
            };
            info!("takes over {} in {TAKEOVER_DELAY:?}: {why}", path.display());
            thread::sleep(TAKEOVER_DELAY);
            directory.confirm_lock()?;
        }
        match directory.write_holder(&self.line) {
            // Without this daemon's line in the file, the other daemon would not notice that it has
            // lost the lock.
            Err(error) if waits => return Err(error.into()),
            Err(error) => warn!("cannot name this daemon in the file `lock`: {error}"),
            Ok(()) => {}
        }
        Ok(directory)
    }
}

impl Start<'_> {
    /// Waits until no other daemon has the lock of the binlog's directory, and then takes the lock.
    /// `None` if a signal ends the wait.
    pub(super) fn wait_for_lock(&self, path: &Path) -> Result<Option<Directory>, StartError> {
        let mut has_waited = false;
        self.retry(|| {
            let locked = Directory::lock(path);
            has_waited |= matches!(locked, Err(wal::Error::Locked(_)));
            locked
                .and_then(|directory| self.holder.take_over(directory, has_waited, path))
                .map_err(|error| StartError::Binlog(path.into(), error))
        })
    }
}
