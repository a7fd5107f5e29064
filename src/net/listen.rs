//! The listening socket: TCP on a host and port, or a UNIX socket at a path.

use std::{
    fmt, fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use log::warn;
use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpListener, UnixListener, UnixStream},
};

use super::socket::Stream;
use crate::{cli::Address, sys};

/// Why nothing listens.
#[derive(Debug)]
pub enum ListenError {
    /// The system refused; where, and why.
    Refused(String, io::Error),
    /// Another process listens on this path.
    InUse(PathBuf),
    /// Something at this path is not a socket, so it is not ours to remove.
    NotASocket(PathBuf),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(place, error) => write!(f, "cannot listen on {place}: {error}"),
            Self::InUse(path) => {
                write!(f, "cannot listen on {}: another process does", path.display())
            }
            Self::NotASocket(path) => {
                write!(f, "cannot listen on {}: a file is in the way", path.display())
            }
        }
    }
}

/// A UNIX socket's file, recognisable when it is time to remove it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// What clients connect to.
#[derive(Debug)]
pub struct Listener(Kind);

impl Listener {
    /// Starts to listen. Clients can connect from now on, and wait to be accepted.
    pub fn bind(address: &Address) -> Result<Self, ListenError> {
        match address {
            Address::Tcp { host, service } => {
                let place = || format!("{host} port {service}");
                sys::listen_tcp(host, service)
                    .map(|listener| Self(Kind::Tcp(TcpListener::from_std(listener))))
                    .map_err(|error| ListenError::Refused(place(), error))
            }
            Address::Unix(path) => bind_unix(path),
        }
    }

    /// Where clients find it, as a person writes it.
    pub fn place(&self) -> String {
        match &self.0 {
            Kind::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "an unknown address".into(), |address| address.to_string()),
            Kind::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }

    /// Takes the next connection, which does not block and inherits the listener's options.
    pub(super) fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            Kind::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Kind::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    /// Removes the file of a UNIX socket, unless somebody has put another in its place.
    fn remove_file(&self) -> io::Result<()> {
        let Kind::Unix(_, file) = &self.0 else { return Ok(()) };
        match fs::symlink_metadata(&file.path) {
            Ok(found) if (found.dev(), found.ino()) == (file.device, file.inode) => {
                fs::remove_file(&file.path)
            }
            _ => Ok(()),
        }
    }
}

/// However the process ends in order, also before it serves, the file goes with it.
impl Drop for Listener {
    fn drop(&mut self) {
        if let Err(error) = self.remove_file() {
            warn!("the socket file stays: {error}");
        }
    }
}

impl Source for Listener {
    fn register(&mut self, registry: &Registry, token: Token, i: Interest) -> io::Result<()> {
        match &mut self.0 {
            Kind::Tcp(listener) => listener.register(registry, token, i),
            Kind::Unix(listener, _) => listener.register(registry, token, i),
        }
    }
    fn reregister(&mut self, registry: &Registry, token: Token, i: Interest) -> io::Result<()> {
        match &mut self.0 {
            Kind::Tcp(listener) => listener.reregister(registry, token, i),
            Kind::Unix(listener, _) => listener.reregister(registry, token, i),
        }
    }
    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.0 {
            Kind::Tcp(listener) => listener.deregister(registry),
            Kind::Unix(listener, _) => listener.deregister(registry),
        }
    }
}

fn bind_unix(path: &Path) -> Result<Listener, ListenError> {
    let refused = |error| ListenError::Refused(format!("unix:{}", path.display()), error);
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(ListenError::NotASocket(path.into()));
        }
        // A socket that refuses is left over from a process that is gone; one that does not has
        // an owner, who may be too busy to answer: this connects without waiting.
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Ok(_) => return Err(ListenError::InUse(path.into())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(ListenError::InUse(path.into()));
            }
            Err(error) => return Err(refused(error)),
        }
        fs::remove_file(path).map_err(refused)?;
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    let made = fs::symlink_metadata(path).map_err(refused)?;
    let file = SocketFile { path: path.into(), device: made.dev(), inode: made.ino() };
    Ok(Listener(Kind::Unix(listener, file)))
}
