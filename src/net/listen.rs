//! The listening sockets: TCP sockets on a host and port, UNIX sockets at a path, and sockets of
//! both kinds that a service manager has opened for the daemon.

use std::{
    env,
    error::Error,
    ffi::OsString,
    fmt, fs, io,
    os::{
        fd::{OwnedFd, RawFd},
        unix::{
            self,
            fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use log::warn;
use mio::{
    event::Source,
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

use crate::{cli::Address, sys};

/// Why the daemon cannot listen on an address.
#[derive(Debug)]
pub struct ListenError {
    /// The address as given in the flags, or the path of a file, or the number of a descriptor.
    pub address: String,
    /// The error of the system, or why the file at the path cannot be used.
    pub error: io::Error,
}

impl fmt::Display for ListenError {
    /// Formats the address on which the daemon cannot listen, and the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.address, self.error)
    }
}

impl Error for ListenError {}

/// Makes a [`ListenError`] from this address and an error of the system.
fn at(address: impl fmt::Display) -> impl FnOnce(io::Error) -> ListenError {
    move |error| ListenError { address: address.to_string(), error }
}

/// The file of a UNIX socket. The daemon removes only a file with this device and this inode.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    /// The listener, and the file of its socket; `None` if a service manager made the socket.
    Unix(UnixListener, Option<SocketFile>),
}

/// The number of the first descriptor that a service manager passes to the daemon.
const FIRST_INHERITED: RawFd = 3;

/// A socket that clients connect to.
#[derive(Debug)]
pub struct Listener(Kind);

impl Listener {
    /// Listens on all addresses; if one address fails, listens on none. Clients can connect at
    /// once, and wait until the event loop accepts them. A socket for `::` also accepts IPv4 if
    /// `::` is the only address; among several addresses, an IPv6 address accepts only IPv6.
    pub fn bind_all(addresses: &[Address]) -> Result<Vec<Self>, ListenError> {
        let ipv6_only = addresses.len() > 1;
        addresses.iter().map(|address| Self::bind(address, ipv6_only)).collect()
    }

    /// Listens on one address, TCP or UNIX.
    fn bind(address: &Address, ipv6_only: bool) -> Result<Self, ListenError> {
        match address {
            Address::Tcp { host, service } => sys::listen_tcp(host, service, ipv6_only)
                .map(|listener| Self(Kind::Tcp(TcpListener::from_std(listener))))
                .map_err(at(address)),
            Address::Unix(path) => bind_unix(path),
        }
    }

    /// Takes over the sockets that a service manager has opened for the process `pid`, which must
    /// be this process. Returns an empty list if there are no such sockets.
    pub fn inherited(pid: u32) -> Result<Vec<Self>, ListenError> {
        let count = inherited_count(pid).map_err(at("inherited sockets"))?;
        (FIRST_INHERITED..FIRST_INHERITED.saturating_add(count))
            .map(|number| Self::inherit(number).map_err(at(format!("descriptor {number}"))))
            .collect()
    }

    /// Takes over one listening socket from the service manager.
    fn inherit(number: RawFd) -> io::Result<Self> {
        let fd = sys::inherit(number)?;
        if !sys::is_listening_stream(&fd) {
            return Err(io::Error::other("not a listening stream socket"));
        }
        let listener = unix::net::UnixListener::from(fd);
        listener.set_nonblocking(true)?;
        if listener.local_addr().is_ok() {
            return Ok(Self(Kind::Unix(UnixListener::from_std(listener), None)));
        }
        let listener = std::net::TcpListener::from(OwnedFd::from(listener));
        listener.local_addr()?;
        sys::set_tcp_options(&listener)?;
        Ok(Self(Kind::Tcp(TcpListener::from_std(listener))))
    }

    /// The address of a listening socket that clients connect to, as log lines show it.
    pub fn address(&self) -> String {
        let known = match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().ok().map(|address| address.to_string()),
            Kind::Unix(listener, file) => {
                let address = listener.local_addr().ok();
                let inherited = address.as_ref().and_then(|address| address.as_pathname());
                let path = file.as_ref().map(|file| &*file.path).or(inherited);
                path.map(|path| format!("unix:{}", path.display()))
            }
        };
        known.unwrap_or_else(|| "an unknown address".into())
    }

    /// Whether a client of this listening socket waits to be accepted. Also returns true if the
    /// system reports an error.
    pub(super) fn has_client(&self) -> bool {
        match &self.0 {
            Kind::Tcp(listener) => sys::has_client(listener),
            Kind::Unix(listener, _) => sys::has_client(listener),
        }
    }

    /// Accepts the next client of this listening socket. The client's socket is non-blocking, and
    /// has the listener's options.
    pub(super) fn accept(&self) -> io::Result<TcpStream> {
        match &self.0 {
            Kind::Tcp(listener) => listener.accept().map(|(stream, _)| stream),
            Kind::Unix(listener, _) => {
                listener.accept().map(|(stream, _)| OwnedFd::from(stream).into())
            }
        }
    }

    /// The event source of a listening socket, to register with the poll.
    pub(super) fn source(&mut self) -> &mut dyn Source {
        match &mut self.0 {
            Kind::Tcp(listener) => listener,
            Kind::Unix(listener, _) => listener,
        }
    }
}

/// Removes the file of the socket, unless another file has replaced this file. So a process that
/// exits cleanly, even one that has not served yet, removes its socket's file.
impl Drop for Listener {
    /// Removes the file of a UNIX socket, if the file still belongs to this listener.
    fn drop(&mut self) {
        let Kind::Unix(_, Some(file)) = &self.0 else { return };
        let is_ours = fs::symlink_metadata(&file.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (file.device, file.inode));
        if is_ours {
            if let Err(error) = fs::remove_file(&file.path) {
                warn!("cannot remove the socket file: {error}");
            }
        }
    }
}

/// Reads from the environment how many sockets a service manager passes to the process `pid`.
fn inherited_count(pid: u32) -> io::Result<RawFd> {
    let [Some(for_pid), Some(count)] = ["LISTEN_PID", "LISTEN_FDS"].map(env::var_os) else {
        return Ok(0);
    };
    let number = |name: &str, text: &OsString| {
        let number = text.to_str().and_then(|text| text.parse::<u32>().ok());
        number.ok_or_else(|| {
            io::Error::other(format!("{name} is not a number: {}", text.to_string_lossy()))
        })
    };
    if number("LISTEN_PID", &for_pid)? != pid {
        return Ok(0);
    }
    let count = number("LISTEN_FDS", &count)?;
    if count == 0 {
        // If 0 were no error, the daemon would listen on the address of its flags, although the
        // operator meant the manager's sockets.
        return Err(io::Error::other("LISTEN_FDS is 0: the service manager passed no socket"));
    }
    Ok(RawFd::try_from(count).unwrap_or(RawFd::MAX))
}

/// Listens on a UNIX socket at a path. Replaces an old socket there if no process listens on it.
fn bind_unix(path: &Path) -> Result<Listener, ListenError> {
    let bind_error = |error| at(format!("unix:{}", path.display()))(error);
    unix::net::SocketAddr::from_pathname(path).map_err(bind_error)?;
    // If the path cannot be used, fails before anything is changed.
    is_stale(path)?;
    let _lock = lock_directory(path);
    if is_stale(path)? {
        fs::remove_file(path).map_err(bind_error)?;
    }
    let listener = UnixListener::bind(path).map_err(bind_error)?;
    let made = fs::symlink_metadata(path).map_err(bind_error)?;
    let file = SocketFile { path: path.into(), device: made.dev(), inode: made.ino() };
    Ok(Listener(Kind::Unix(listener, Some(file))))
}

/// Whether the file at the path is a socket on which no process listens; false if there is no file.
fn is_stale(path: &Path) -> Result<bool, ListenError> {
    let because = |reason: &str| Err(at(path.display())(io::Error::other(reason)));
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(false) };
    if !found.file_type().is_socket() {
        return because("the file there is not a socket");
    }
    // The connecting socket is non-blocking, so `connect` does not wait.
    let Err(error) = UnixStream::connect(path) else {
        return because("another process is listening there");
    };
    match error.kind() {
        // The process that listened on the socket has ended.
        io::ErrorKind::ConnectionRefused => Ok(true),
        // The socket's file has just been removed.
        io::ErrorKind::NotFound => Ok(false),
        // A process listens, but is too busy to accept connections.
        io::ErrorKind::WouldBlock => because("another process is listening there"),
        _ => Err(at(format!("unix:{}", path.display()))(error)),
    }
}

/// How many times the daemon tries, in two seconds, to lock the directory of a UNIX socket. During
/// startup, a daemon has the lock on the directory for at most one second.
const LOCK_ATTEMPTS: u32 = 200;
/// The time between two attempts to lock the directory.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Locks the directory of a UNIX socket against other daemons that start, until the returned
/// descriptor is closed. Without the lock, a daemon could remove another daemon's new socket,
/// because a socket that does not listen yet looks like a socket whose process has ended. If the
/// directory cannot be locked within two seconds, startup continues without the lock.
#[expect(clippy::disallowed_methods, reason = "no client is served yet")]
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    // Without `O_DIRECTORY`, opening a pipe at this path would block.
    let mut options = fs::OpenOptions::new();
    let directory = options.read(true).custom_flags(libc::O_DIRECTORY).open(parent).ok()?;
    for _ in 0..LOCK_ATTEMPTS {
        match sys::lock_until_closed(&directory) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOCK_INTERVAL),
            Ok(()) | Err(_) => return Some(directory.into()),
        }
    }
    warn!("another program keeps {} locked: starting without this lock", parent.display());
    None
}
