//! A new file to which jobs are saved, each as a line of JSON. The file has only whole lines, even
//! after an error. When the file is finished, its last line has the number of jobs.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::job::{Job, Line};
use crate::output::Output;

/// A new file for jobs; only the owner of the file can read it.
#[derive(Debug)]
pub(crate) struct SaveFile {
    file: File,
    /// The path, for messages.
    pub(crate) name: String,
    /// The length of the file up to the end of its last whole line, in bytes.
    length: u64,
    /// The number of jobs in the file.
    count: u64,
}

/// Checks the argument of `--save`.
pub(crate) fn parse_save_path(text: &str) -> Result<PathBuf> {
    // Refuse `-`, because `import` would read standard input, and not a file named `-`.
    ensure!(text != "-", "it must be a file, so that `import` can restore the jobs");
    Ok(text.into())
}

/// Fails if the file for saved jobs already exists. Called before any work, and before the user is
/// asked.
pub(crate) fn require_new_save_file(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    // A dangling link is treated as an existing file, too.
    let is_there = path.symlink_metadata().is_ok();
    ensure!(!is_there, "{}: the file exists and is not overwritten", path.display());
    Ok(())
}

impl SaveFile {
    /// Creates the file of saved jobs. Fails if the file exists.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(path).and_then(|file| {
            // Sync the folder: the name of the file must be as durable as its contents.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(file)
        });
        Ok(Self { file: made.with_context(|| name.clone())?, name, length: 0, count: 0 })
    }

    /// Creates the file of saved jobs if there is a path.
    pub(crate) fn create_if(path: Option<&Path>) -> Result<Option<Self>> {
        path.map(Self::create).transpose()
    }

    /// Writes jobs with their bodies to the file of saved jobs. After a failure, none of these jobs
    /// is in the file.
    pub(crate) fn write(&mut self, jobs: &[Job]) -> Result<()> {
        let lines: String =
            jobs.iter().map(|job| Output::json_line(job.to_json(), None) + "\n").collect();
        self.append(&lines)?;
        self.count += jobs.len() as u64;
        Ok(())
    }

    /// Writes jobs with their bodies to the file of saved jobs, and syncs them to disk. After a
    /// failure, none of these jobs is in the file.
    pub(crate) fn write_and_sync(&mut self, jobs: &[Job]) -> Result<()> {
        let (length, count) = (self.length, self.count);
        self.write(jobs)?;
        self.file.sync_data().or_else(|error| {
            (self.length, self.count) = (length, count);
            self.truncate(error)
        })
    }

    /// Writes the last line of the file of saved jobs, with the number of jobs, and syncs the file
    /// to disk.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.append(&(Line::count_json(self.count) + "\n"))?;
        self.file.sync_all().with_context(|| self.name.clone())
    }

    /// Appends lines to the file of saved jobs; if the write fails, cuts the file back to its last
    /// complete batch.
    fn append(&mut self, lines: &str) -> Result<()> {
        self.file.write_all(lines.as_bytes()).or_else(|error| self.truncate(error))?;
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Truncates the file of saved jobs to its last complete batch: the jobs of later batches stay
    /// on the server, and an import must not put them a second time.
    fn truncate(&mut self, error: std::io::Error) -> Result<()> {
        self.file
            .set_len(self.length)
            .and_then(|()| self.file.seek(SeekFrom::Start(self.length)))
            .and_then(|_| self.file.sync_data())
            .with_context(|| format!("{}: remove the last, incomplete lines", self.name))?;
        Err(error).with_context(|| self.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::job::Line;

    #[test]
    fn what_was_saved_before_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs");
        let mut file = SaveFile::create(&path).unwrap();
        let Line::Job(job) = Line::from_json(r#"{"id":7,"body":"x"}"#).unwrap() else { panic!() };
        file.write_and_sync(&[job.clone(), job.clone()]).unwrap();
        assert!(SaveFile::create(&path).is_err() && require_new_save_file(Some(&path)).is_err());
        assert!(
            require_new_save_file(Some(&folder.path().join("other"))).is_ok()
                && require_new_save_file(None).is_ok()
        );
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        file.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().map(|line| Line::from_json(line).unwrap()).collect();
        let [Line::Job(first), Line::Job(_), Line::Count(2)] = &lines[..] else { panic!("{text}") };
        assert_eq!(*first, job);
    }
}
