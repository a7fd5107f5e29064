//! Threads for syncs. At startup there are several. Later there is one, which syncs open files in
//! place of the queue's thread.
#![expect(clippy::disallowed_types, reason = "the binlog's files come from its directory")]

use std::{
    fmt,
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvError, Sender, TryRecvError},
    },
    thread,
    time::Duration,
};

use super::{Name, directory::named};
use crate::clock;

/// The stack of the thread in bytes. The thread makes only one kind of system call.
const SYNC_STACK_BYTES: usize = 128 * 1024;

/// How many threads sync the segments at startup. A sync mostly waits for the disk, and syncs of
/// several files can wait together.
const SYNCS_AT_ONCE_MAX: usize = 16;

/// The result of a sync, and how long it took.
pub(super) type TimedSync = (io::Result<()>, Duration);

/// The queue's side of the thread. The directory has one, if the thread could be started.
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
    let began = clock::now();
    let result = named("sync", name, file.sync_data());
    (result, began.until(clock::now()))
}

/// Syncs files of a directory, several at once as far as there are threads and descriptors.
pub(super) fn sync_all(directory: &Path, names: &[Name]) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let sync_some = &|| {
        while let Some(&name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let file = named("sync", name, File::open(directory.join(name.to_string())))?;
            timed_sync(name, &file).0?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..names.len().min(SYNCS_AT_ONCE_MAX))
            .map_while(|_| {
                // The thread uses this descriptor's place for its files.
                let reserved = File::open(directory).ok()?;
                let builder = thread::Builder::new().stack_size(SYNC_STACK_BYTES);
                let sync_some = move || {
                    drop(reserved);
                    sync_some()
                };
                builder.spawn_scoped(scope, sync_some).ok()
            })
            .collect();
        let own = sync_some();
        others.into_iter().fold(own, |result, other| {
            result.and(other.join().unwrap_or_else(|_| thread_ended().0))
        })
    })
}

impl Syncer {
    /// Starts the thread. It ends when this value is dropped.
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

    /// Has `wake` called from the thread after each sync. Only the first call has an effect.
    pub(super) fn on_sync_end(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(Wake(wake));
    }

    /// Begins the sync of a file.
    pub(super) fn begin(&self, name: Name, file: Arc<File>) -> io::Result<()> {
        self.files.send((name, file)).or_else(|_| thread_ended().0)
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
    (Err(io::Error::other("the thread for syncs has ended")), Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Startup would continue although a segment might not survive a power cut.
    #[test]
    fn of_many_files_that_are_synced_none_is_left_out() {
        let root = tempfile::tempdir().expect("a directory");
        let names: Vec<_> = (1..=100).map(Name::Segment).collect();
        for name in &names {
            File::create(root.path().join(name.to_string())).expect("created");
        }
        sync_all(root.path(), &names).expect("all are there");
        for name in &names {
            let (path, away) = (root.path().join(name.to_string()), root.path().join("away"));
            fs::rename(&path, &away).expect("it is there");
            let error = sync_all(root.path(), &names).expect_err("one is missing");
            assert!(error.to_string().contains(&name.to_string()), "{error}");
            fs::rename(&away, &path).expect("its name is free");
        }
    }
}
