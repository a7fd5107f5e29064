//! Threads for syncs. At startup there are several. Later there is one, which syncs open files in
//! place of the queue's thread.
#![expect(clippy::disallowed_types, reason = "the binlog's files come from its directory")]

use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
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

/// The queue's side of the thread. The directory has one, if the thread could be started.
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

/// Syncs files of a directory, several at once as far as there are threads and descriptors.
pub(super) fn sync_all(directory: &Path, names: &[Name]) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let sync_some = &|| {
        while let Some(&name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let synced = File::open(directory.join(name.to_string())).and_then(|it| it.sync_data());
            named("sync", name, synced)?;
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
        others
            .into_iter()
            .fold(own, |result, other| result.and(other.join().expect("no thread panics")))
    })
}

impl Syncer {
    /// Starts the thread, which calls `wake` after each sync. It ends when this value is dropped.
    pub(super) fn start(wake: Box<dyn Fn() + Send>) -> io::Result<Self> {
        let (files, to_sync) = mpsc::channel::<(Name, Arc<File>)>();
        let (synced, results) = mpsc::channel();
        let sync_each = move || {
            for (name, file) in to_sync {
                if synced.send(named("sync", name, timed_sync(&file))).is_err() {
                    return;
                }
                wake();
            }
        };
        let builder = thread::Builder::new().name("sync".into()).stack_size(SYNC_STACK_BYTES);
        builder.spawn(sync_each)?;
        Ok(Self { files, results })
    }

    /// Begins the sync of a file.
    pub(super) fn begin(&self, name: Name, file: Arc<File>) -> io::Result<()> {
        self.files.send((name, file)).map_err(io::Error::other)
    }

    /// Returns the result of the sync that was begun. `None` while it is under way, unless this
    /// `waits` for its end.
    pub(super) fn result(&self, waits: bool) -> Option<io::Result<Duration>> {
        if waits { self.results.recv().ok() } else { self.results.try_recv().ok() }
    }
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
