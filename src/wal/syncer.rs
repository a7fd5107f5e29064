//! The thread that waits for syncs in place of the queue's thread. It sees only open files.
#![expect(clippy::disallowed_types, reason = "the binlog's files come from its directory")]

use std::{
    fmt,
    fs::File,
    io,
    sync::{
        Arc, OnceLock,
        mpsc::{self, Receiver, RecvError, Sender, TryRecvError},
    },
    thread,
    time::Duration,
};

use super::{Name, directory::named};
use crate::clock::Clock;

/// The stack of the thread in bytes. The thread makes only one system call.
const SYNC_STACK_BYTES: usize = 128 * 1024;

/// The result of a sync, and how long it took.
pub(super) type TimedSync = (io::Result<()>, Duration);

/// The queue's end of the thread. The directory has it, if the system has a thread.
#[derive(Debug)]
pub(super) struct Syncer {
    files: Sender<(Name, Arc<File>)>,
    results: Receiver<TimedSync>,
    wake: Arc<OnceLock<Wake>>,
}

/// Called when a sync has ended.
struct Wake(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

/// Syncs a file, and measures how long that takes.
pub(super) fn timed_sync(name: Name, file: &File) -> TimedSync {
    let began = Clock.now();
    let result = named("sync", name, file.sync_data());
    (result, began.until(Clock.now()))
}

impl Syncer {
    /// Starts the thread. It ends with this value.
    pub(super) fn start() -> io::Result<Self> {
        let (files, to_sync) = mpsc::channel::<(Name, Arc<File>)>();
        let (synced, results) = mpsc::channel();
        let wake = Arc::new(OnceLock::<Wake>::new());
        let on_end = Arc::clone(&wake);
        let sync_each = move || {
            for (name, file) in to_sync {
                if synced.send(timed_sync(name, &file)).is_err() {
                    return;
                }
                if let Some(Wake(wake)) = on_end.get() {
                    wake();
                }
            }
        };
        let builder = thread::Builder::new().name("sync".into()).stack_size(SYNC_STACK_BYTES);
        builder.spawn(sync_each)?;
        Ok(Self { files, results, wake })
    }

    /// Has `wake` called from the thread after each sync. Only the first call counts.
    pub(super) fn on_sync_end(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(Wake(wake));
    }

    /// Begins the sync of a file.
    pub(super) fn begin(&self, name: Name, file: Arc<File>) -> io::Result<()> {
        self.files.send((name, file)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Returns the result of the sync that was begun, or `None` while it is under way.
    pub(super) fn result(&self) -> Option<TimedSync> {
        match self.results.try_recv() {
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(thread_ended()),
            Ok(result) => Some(result),
        }
    }

    /// Waits for the sync that was begun, and returns its result.
    pub(super) fn wait(&self) -> TimedSync {
        self.results.recv().unwrap_or_else(|RecvError| thread_ended())
    }
}

fn thread_ended() -> TimedSync {
    (Err(io::ErrorKind::BrokenPipe.into()), Duration::ZERO)
}
