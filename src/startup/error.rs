//! Every error that prevents a start or ends a running daemon: exit statuses, messages, advice.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};

use crate::{
    net::{ListenError, LoopError},
    sys, wal,
};

/// The reason why a daemon did not start, or ended with an error.
#[derive(Debug)]
pub enum StartError {
    /// The names of the machine and its system, which `stats` reports, cannot be read.
    Identity(io::Error),
    /// Signals cannot be caught.
    Signals(io::Error),
    /// The daemon cannot listen on an address.
    Listen(ListenError),
    /// The user database cannot be searched for this user.
    UserLookup(String, io::Error),
    /// The user database has no such user.
    UserUnknown(String),
    /// The system did not permit the daemon to become this user.
    UserDenied(String, io::Error),
    /// The binlog in this directory cannot be opened.
    Binlog(PathBuf, wal::Error),
    /// The event loop ended with an error. The path is empty if there is no binlog.
    Loop(PathBuf, LoopError),
}

impl StartError {
    /// The exit status for this error: the original's status, if the original also has this error.
    pub fn status(&self) -> u8 {
        match self {
            Self::Loop(_, LoopError::System(_)) => 1,
            Self::Binlog(..) | Self::Loop(_, LoopError::LockLost(_)) => 10,
            Self::Loop(_, LoopError::BinlogFailed) => 11,
            Self::UserLookup(..) => 32,
            Self::UserUnknown(_) => 33,
            Self::UserDenied(..) => 34,
            Self::Identity(_) => 50,
            Self::Listen(_) | Self::Signals(_) => 111,
        }
    }
}

impl fmt::Display for StartError {
    /// Formats the error for the log line, with advice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity(error) => write!(f, "cannot query the system: {error}"),
            Self::Signals(error) => write!(f, "cannot catch signals: {error}"),
            Self::Listen(error) => write!(f, "{error}{}", listen_advice(error)),
            Self::UserLookup(user, error) => write!(f, "-u: cannot look up {user}: {error}"),
            Self::UserUnknown(user) => write!(f, "-u: there is no user {user}"),
            Self::UserDenied(user, error) => write!(f, "-u: cannot become {user}: {error}"),
            Self::Binlog(path, error) => {
                write!(f, "-b: {}: {error}", path.display())?;
                match error {
                    wal::Error::Disk(error) => f.write_str(&disk_advice(path, error)),
                    _ => Ok(()),
                }
            }
            Self::Loop(_, error @ LoopError::System(_)) => write!(f, "{error}"),
            Self::Loop(path, error) => write!(f, "-b: {}: {error}", path.display()),
        }
    }
}

impl Error for StartError {}

/// The advice at the end of the log line about a binlog directory that cannot be used.
fn disk_advice(path: &Path, error: &io::Error) -> String {
    let (path, user) = (path.display(), sys::user_id());
    match error.kind() {
        io::ErrorKind::NotFound => format!("; create it: install -d -o {user} -m 700 {path}"),
        io::ErrorKind::PermissionDenied => format!("; it must belong to user {user}"),
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("; if a unit of systemd forbids it, add ReadWritePaths={path}")
        }
        _ => String::new(),
    }
}

/// The advice at the end of the log line about an address that cannot be used.
fn listen_advice(ListenError { address, error }: &ListenError) -> &'static str {
    let Some((host, _)) = address.rsplit_once(" port ") else { return "" };
    if host.is_empty() {
        "; -l is empty, perhaps because BEANSTALKD_LISTEN_ADDR is"
    } else if host.matches(':').count() == 1 {
        "; the port is given with -p"
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        "; a port below 1024 needs a start as root with -u, or beanstalkd.socket"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without advice on systemd, an operator would look for the fault in the file system.
    #[test]
    fn each_error_says_what_to_do() {
        let disk = |kind| disk_advice(Path::new("/srv/queue"), &io::Error::from(kind));
        assert!(disk(io::ErrorKind::ReadOnlyFilesystem).ends_with(" ReadWritePaths=/srv/queue"));
        assert!(disk(io::ErrorKind::PermissionDenied).ends_with(&sys::user_id().to_string()));
        let listen = |address: &str| {
            let denied = io::Error::from(io::ErrorKind::PermissionDenied);
            listen_advice(&ListenError { address: address.into(), error: denied })
        };
        assert!(listen(" port 11300").contains("BEANSTALKD_LISTEN_ADDR"));
        assert!(listen("localhost:11300 port 11300").contains("-p"));
        assert!(listen("::1 port 80").contains("beanstalkd.socket"));
        assert_eq!(listen("unix:/run/queue"), "");
    }
}
