//! `--textfile`: a file that `node_exporter` reads, and never sees half written.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::scrape::Scraper;
use crate::context::print_error;
use crate::interrupt::Interrupt;

/// Everybody may read it: `node_exporter` has a user of its own.
const MODE: u32 = 0o644;

/// How soon an end is noticed.
const STEP: Duration = Duration::from_millis(100);

/// Writes the file once; or if there is an interval in seconds, until a signal comes. What failed
/// is tried again, unless it was the first time: that is more likely a wrong path.
pub(super) fn run(
    path: &Path,
    interval: Option<u64>,
    scraper: &Scraper,
    interrupt: &Interrupt,
) -> Result<()> {
    let (mut has_worked, mut complaint) = (false, None);
    loop {
        let began = Instant::now();
        let result = scraper.scrape(interrupt).and_then(|text| replace(path, &text));
        if interval.is_some() && interrupt.is_set() {
            return Ok(());
        }
        let Some(seconds) = interval.filter(|_| has_worked || result.is_ok()) else {
            return result;
        };
        has_worked = true;
        // A disk that is full now may have room the next time.
        let failure = result.as_ref().err().map(|error| format!("{error:#}"));
        if failure != complaint {
            result.unwrap_or_else(|error| print_error(&error));
            complaint = failure;
        }
        while began.elapsed() < Duration::from_secs(seconds.max(1)) {
            if interrupt.is_set() {
                return Ok(());
            }
            thread::sleep(STEP);
        }
    }
}

/// Replaces the file at once, by one beside it that is complete and on the disk.
fn replace(path: &Path, text: &[String]) -> Result<()> {
    let Some(name) = path.file_name() else { bail!("--textfile {}: no file", path.display()) };
    // A device or a link would be replaced like any other file.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        bail!("--textfile {}: this is no regular file", path.display());
    }
    // node_exporter reads what ends in .prom.
    let beside = format!(".{}.{}.new", name.to_string_lossy(), std::process::id());
    let beside = path.with_file_name(beside);
    let result = write(&beside, text).and_then(|()| {
        fs::rename(&beside, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    if result.is_err() {
        // If it was never made, there is nothing to remove.
        let _ = fs::remove_file(&beside);
    }
    result.with_context(|| format!("--textfile {}", path.display()))
}

fn write(path: &Path, text: &[String]) -> io::Result<()> {
    // What is there is left over, or a link that somebody else made to a file of ours.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    // Whatever the umask says.
    file.set_permissions(Permissions::from_mode(MODE))?;
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
            replace(&path, &[text.to_owned()]).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        // A link beside it leads nowhere.
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let link = folder.path().join(format!(".beanstalkd.prom.{}.new", std::process::id()));
        std::os::unix::fs::symlink(&victim, link).unwrap();
        replace(&path, &["te".to_owned(), "xt\n".to_owned()]).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        fs::remove_file(&victim).unwrap();
        // What is no file stays, and nothing is left behind either.
        let (directory, link) = (folder.path().join("directory"), folder.path().join("link"));
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for odd in [&directory, &link] {
            let failure = replace(odd, &["text".to_owned()]).unwrap_err();
            assert!(failure.to_string().ends_with("this is no regular file"), "{failure}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
