//! Why a binlog cannot be opened or read.

use std::{error, fmt, io};

use super::Name;

/// Why a binlog cannot be opened or read. No record has been changed. Printed as one line that
/// names the file or the call, and the next step for the operator, if there is one.
#[derive(Debug)]
pub enum Error {
    /// A call on the directory or on one of its files has failed.
    Disk(io::Error),
    /// Another process has locked the directory. This line names it, as far as it is known.
    Locked(String),
    /// There is not enough memory for this.
    OutOfMemory(String),
    /// A segment has a layout that only the program that wrote it can read: its name, and the
    /// layout.
    Foreign(String),
    /// No segment can follow this file, because it has the largest number.
    NoNumberLeft(Name),
    /// The caller's progress function has interrupted the replay.
    Interrupted,
}

impl Error {
    /// Adds the name of the file that was read.
    pub(super) fn in_file(self, name: Name) -> Self {
        match self {
            Self::Disk(error) => {
                Self::Disk(io::Error::new(error.kind(), format!("{name}: {error}")))
            }
            Self::Foreign(layout) => Self::Foreign(format!("{name}: {layout}")),
            other => other,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => write!(f, "{error}"),
            Self::Locked(text) | Self::Foreign(text) => f.write_str(text),
            Self::OutOfMemory(need) => {
                write!(f, "not enough memory{need}. Nothing has been changed")
            }
            Self::NoNumberLeft(last) => write!(f, "no number is left after {last}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Disk(error) => Some(error),
            _ => None,
        }
    }
}
