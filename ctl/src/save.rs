//! The file of `--save`: jobs as lines of JSON, safe on the disk before they go.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::job::{self, Job};

/// A file that gets jobs.
#[derive(Debug)]
pub(crate) struct SaveFile {
    file: File,
    name: String,
}

impl SaveFile {
    /// Makes the file. One that exists is not overwritten.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        Ok(Self { file: file.with_context(|| format!("--save {name}"))?, name })
    }

    /// Makes the file if there is a path.
    pub(crate) fn create_if(path: Option<&Path>) -> Result<Option<Self>> {
        path.map(Self::create).transpose()
    }

    /// Writes jobs with their bodies. When it returns, they are on the disk.
    pub(crate) fn save(&mut self, jobs: &[Job]) -> Result<()> {
        let lines: String =
            jobs.iter().map(|job| job::line_of(job.to_json(), None) + "\n").collect();
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
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
        assert!(SaveFile::create(&path).is_err());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().filter(|line| Job::from_json(line).is_ok()).count(), 2);
        assert_eq!(Job::from_json(text.lines().next().unwrap()).unwrap(), job);
    }
}
