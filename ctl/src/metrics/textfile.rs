//! `--textfile`: writes a file for `node_exporter`; this file is never incomplete.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::scrape::Scraper;
use crate::interrupt::Interrupt;
use crate::message::print_error;

/// Every user may read the file, because `node_exporter` runs as another user.
const FILE_MODE: u32 = 0o644;

/// Writes the metrics to a file once, or at an interval in seconds until a signal arrives. If the
/// first write fails, returns the error, because the path is probably wrong. Later failures are
/// only printed.
pub(super) fn run(
    path: &Path,
    interval: Option<u64>,
    scraper: &Scraper,
    interrupt: &Interrupt,
) -> Result<()> {
    let (mut has_worked, mut last_error) = (false, None);
    loop {
        let began = Instant::now();
        let result = scraper.scrape(interrupt).and_then(|text| replace_textfile(path, &text));
        if interval.is_some() && interrupt.is_set() {
            return Ok(());
        }
        let Some(seconds) = interval.filter(|_| has_worked || result.is_ok()) else {
            return result;
        };
        has_worked = true;
        // After a failure, try again: a full disk may have space after the next interval.
        let failure = result.as_ref().err().map(|error| format!("{error:#}"));
        if failure != last_error {
            result.unwrap_or_else(|error| print_error(&error));
            last_error = failure;
        }
        let interval = Duration::from_secs(seconds.max(1));
        if !interrupt.sleep(interval.saturating_sub(began.elapsed())) {
            return Ok(());
        }
    }
}

/// Replaces the file of metrics by a complete, synced file.
fn replace_textfile(path: &Path, text: &[String]) -> Result<()> {
    let Some(name) = path.file_name() else { bail!("--textfile {}: no file name", path.display()) };
    // Without this check, a device or a link would be replaced.
    let is_odd = fs::symlink_metadata(path).is_ok_and(|found| !found.is_file());
    ensure!(!is_odd, "--textfile {}: not a regular file", path.display());
    // `node_exporter` ignores the temporary file, because its name does not end in .prom.
    let beside = format!(".{}.{}.new", name.to_string_lossy(), std::process::id());
    let beside = path.with_file_name(beside);
    let result = write_textfile(&beside, text).and_then(|()| {
        fs::rename(&beside, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    if result.is_err() {
        // If the temporary file does not exist, the removal fails, which does not matter.
        let _ = fs::remove_file(&beside);
    }
    result.with_context(|| format!("--textfile {}", path.display()))
}

/// Writes the metrics to a new file, and syncs it.
fn write_textfile(path: &Path, text: &[String]) -> io::Result<()> {
    // Remove an existing file: an old temporary file, or another user's link to a file of ours.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    // Set the mode again, because the umask may have restricted the mode.
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    for piece in text {
        file.write_all(piece.as_bytes())?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("beanstalkd.prom");
        for text in ["a longer text\n", "short\n"] {
            replace_textfile(&path, &[text.to_owned()]).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, FILE_MODE);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        // A link with the name of the temporary file is not followed: its target stays unchanged.
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let link = folder.path().join(format!(".beanstalkd.prom.{}.new", std::process::id()));
        std::os::unix::fs::symlink(&victim, link).unwrap();
        replace_textfile(&path, &["te".to_owned(), "xt\n".to_owned()]).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        fs::remove_file(&victim).unwrap();
        // A directory or link at the path is refused and kept, and no temporary file remains.
        let (directory, link) = (folder.path().join("directory"), folder.path().join("link"));
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for odd in [&directory, &link] {
            let failure = replace_textfile(odd, &["text".to_owned()]).unwrap_err();
            assert!(failure.to_string().ends_with("not a regular file"), "{failure}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
