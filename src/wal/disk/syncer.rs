//! The thread for syncs: syncs open files, so that the thread of the event loop need not wait.
#![expect(clippy::disallowed_types, reason = "the binlog's files come from its directory")]

use std::{
    fs::File,
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use super::{Name, directory::named};
use crate::{clock, sys::ballast};

/// The stack size of the thread in bytes: small, because the thread only syncs files.
const SYNC_STACK_BYTES: usize = 128 * 1024;

/// The channels between the thread of the event loop and the thread for syncs.
#[derive(Debug)]
pub(super) struct Syncer {
    files: Sender<(Name, Arc<File>)>,
    results: Receiver<io::Result<Duration>>,
}

/// Syncs a file, and returns how long that took.
pub(super) fn timed_sync(file: &File) -> io::Result<Duration> {
    let began = clock::now();
    file.sync_data()?;
    Ok(began.until(clock::now()))
}

impl Syncer {
    /// Starts the thread for syncs, which calls `wake` after each sync. The thread ends once the
    /// `Syncer` is dropped.
    pub(super) fn start(wake: Box<dyn Fn() + Send>) -> io::Result<Self> {
        let (files, to_sync) = mpsc::channel::<(Name, Arc<File>)>();
        let (synced, results) = mpsc::channel();
        let sync_each = move || {
            // Reports that the thread runs: `start` waits for this report.
            let _ = synced.send(Ok(Duration::ZERO));
            for (name, file) in to_sync {
                if synced.send(named("sync", name, timed_sync(&file))).is_err() {
                    return;
                }
                wake();
            }
        };
        let builder = thread::Builder::new().name("sync".into()).stack_size(SYNC_STACK_BYTES);
        // Frees the ballast, which is spare memory: the new thread maps memory without the
        // allocator, and a lack of memory would end the process. The next turn makes new ballast.
        ballast::refill(0);
        builder.spawn(sync_each)?;
        results.recv().map_err(io::Error::other)??;
        Ok(Self { files, results })
    }

    /// Begins the sync of a file in the thread for syncs.
    pub(super) fn begin(&self, name: Name, file: Arc<File>) -> io::Result<()> {
        self.files.send((name, file)).map_err(io::Error::other)
    }

    /// Returns the result of the thread's sync. If `waits`, waits for the end of the sync; if not,
    /// returns `None` until the sync has ended.
    pub(super) fn result(&self, waits: bool) -> Option<io::Result<Duration>> {
        if waits { self.results.recv().ok() } else { self.results.try_recv().ok() }
    }
}
