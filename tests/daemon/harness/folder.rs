//! Directories with a binlog.

use std::{collections::BTreeMap, fs, path::Path};

use ct::Daemon;

/// A directory that is removed when the [`Folder`] is dropped.
#[derive(Debug)]
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// A copy of the files in a directory.
    pub(crate) fn copy_of(source: &Path) -> Self {
        let folder = Self::new();
        for entry in fs::read_dir(source).expect("a directory") {
            let entry = entry.expect("it can be read");
            fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
        }
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Starts a daemon with its binlog in this directory, with further flags.
    #[track_caller]
    pub(crate) fn serve(&self, program: impl AsRef<Path>, flags: &[&str]) -> Daemon {
        let mut all = vec!["-b", self.text()];
        all.extend(flags);
        Daemon::start(program.as_ref(), &all).expect("it starts")
    }

    pub(crate) fn text(&self) -> &str {
        self.path().to_str().expect("a plain name")
    }

    /// Names and sizes of the binlog's files, by name, without the lock.
    pub(crate) fn files(&self) -> BTreeMap<String, u64> {
        let entries = fs::read_dir(self.path()).expect("a directory").flatten();
        let files = entries.filter_map(|entry| {
            // A preallocated file may just have been renamed.
            let size = entry.metadata().ok()?.len();
            Some((entry.file_name().into_string().expect("a plain name"), size))
        });
        files.filter(|(name, _)| name != "lock").collect()
    }
}
