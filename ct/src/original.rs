//! Finds the installed original beanstalkd and its release.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io};

use crate::dialect::Dialect;
use crate::skip::skip;

/// The path of the daemon in Debian's package `beanstalkd`.
const DEFAULT_PATH: &str = "/usr/bin/beanstalkd";

/// An installed release of the original beanstalkd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// The path of the binary.
    pub path: PathBuf,
    /// The release's known differences from our daemon.
    pub dialect: Dialect,
}

impl Original {
    /// Finds the original at the path in the variable `ORIGINAL`, or where Debian installs it.
    ///
    /// If there is no original, or its release is not in the table of dialects, returns `None`, and
    /// reports the comparison as skipped.
    pub fn find() -> Option<Self> {
        let path = env::var_os("ORIGINAL").filter(|path| !path.is_empty());
        let path = path.map_or(DEFAULT_PATH.into(), PathBuf::from);
        Self::at(path).map_err(|reason| skip(&reason)).ok()
    }

    /// Asks the original's binary for its release. The error is the reason to skip a comparison.
    pub fn at(path: PathBuf) -> Result<Self, String> {
        let shown_path = path.display();
        let version = version(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("no original at {shown_path} (run make original, or set ORIGINAL=path)")
            }
            _ => format!("{shown_path} -v: {error}"),
        })?;
        match dialect(&version) {
            Some(dialect) => Ok(Self { path, dialect }),
            None => Err(format!("{shown_path} is not a known release of the original: {version}")),
        }
    }
}

/// Returns the line that the original or another daemon prints for `-v`, such as `beanstalkd 1.12`.
fn version(path: &Path) -> io::Result<String> {
    let output = Command::new(path).arg("-v").stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the dialect of a release of the original; `None` for our daemon and unknown releases.
fn dialect(version: &str) -> Option<Dialect> {
    let release = version.strip_prefix("beanstalkd ")?;
    Dialect::named(release).filter(|dialect| dialect.name != "ours")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_recognized_by_their_version() {
        let name = |version| dialect(version).map(|dialect| dialect.name);
        assert_eq!(name("beanstalkd 1.12").as_deref(), Some("1.12"));
        assert_eq!(name("beanstalkd 1.13").as_deref(), Some("1.13"));
        for version in ["beanstalkd 2.0.0", "beanstalkd 1.1", "beanstalkd ours", "1.12", ""] {
            assert_eq!(name(version), None, "{version}");
        }
    }

    #[test]
    fn an_unknown_binary_is_reported_with_the_reason() {
        let reason = |path: &str| Original::at(path.into()).unwrap_err();
        assert!(reason("/nonexistent/daemon").contains("no original at /nonexistent/daemon"));
        assert!(reason("/bin/false").contains("not a known release of the original"));
    }
}
