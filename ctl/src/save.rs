//! The file of `--save`: jobs as lines of JSON, safe on the disk before they go.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::job::{self, Job};

/// A file that gets jobs.
#[derive(Debug)]
pub(crate) struct SaveFile {
    file: File,
    name: String,
    /// Its length in bytes: whole lines only.
    length: u64,
}

/// Checks the argument of `--save`.
pub(crate) fn path(text: &str) -> Result<PathBuf> {
    // A file of this name could be imported only as ./-
    ensure!(text != "-", "it must be a file, from which the jobs can be brought back");
    Ok(text.into())
}

/// Fails if the file exists already, before any work is done or a question is asked.
pub(crate) fn check(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    // A link that leads nowhere is in the way as well.
    let is_there = path.symlink_metadata().is_ok();
    ensure!(!is_there, "--save {}: it exists, and is not overwritten", path.display());
    Ok(())
}

impl SaveFile {
    /// Makes the file. One that exists is not overwritten.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let made = OpenOptions::new().write(true).create_new(true).open(path).and_then(|file| {
            // Its name must be as safe as what is in it.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(file)
        });
        Ok(Self { file: made.with_context(|| format!("--save {name}"))?, name, length: 0 })
    }

    /// Makes the file if there is a path.
    pub(crate) fn create_if(path: Option<&Path>) -> Result<Option<Self>> {
        path.map(Self::create).transpose()
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Writes jobs with their bodies. When it returns, they are on the disk. If it fails, none of
    /// them is in the file.
    pub(crate) fn save(&mut self, jobs: &[Job]) -> Result<()> {
        let lines: String =
            jobs.iter().map(|job| job::line_of(job.to_json(), None) + "\n").collect();
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        if written.is_ok() {
            self.length += lines.len() as u64;
        } else {
            // They stay where they are, so an import must not put them a second time.
            self.file
                .set_len(self.length)
                .and_then(|()| self.file.sync_data())
                .with_context(|| format!("--save {}: the last lines must go", self.name))?;
        }
        written.with_context(|| format!("--save {}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_before_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs");
        let mut file = SaveFile::create(&path).unwrap();
        let job = Job::from_json(r#"{"id":7,"body":"x"}"#).unwrap();
        file.save(&[job.clone(), job.clone()]).unwrap();
        assert!(SaveFile::create(&path).is_err() && check(Some(&path)).is_err());
        assert!(check(Some(&folder.path().join("other"))).is_ok() && check(None).is_ok());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().filter(|line| Job::from_json(line).is_ok()).count(), 2);
        assert_eq!(Job::from_json(text.lines().next().unwrap()).unwrap(), job);
    }
}
