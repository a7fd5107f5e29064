//! The health check of a running daemon, for a container without a shell, for example.

use std::{
    error::Error,
    fmt,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{cli::Address, sys};

/// The time limit of the check of one address, its resolution included.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The original does not know the first command. The reply to the second shows that it speaks the
/// protocol.
const REQUEST: &[u8] = b"capabilities\r\nlist-tube-used\r\nquit\r\n";

/// The end of any beanstalkd's reply, and the whole reply of one without `capabilities`.
const REPLY_END: &[u8] = b"USING default\r\n";
const REPLY_WITHOUT_CAPABILITIES: &[u8] = b"UNKNOWN_COMMAND\r\nUSING default\r\n";

/// Any reply of a beanstalkd is shorter than this.
const REPLY_MAX_BYTES: usize = 4096;

/// No beanstalkd answers at this address.
#[derive(Debug)]
pub struct PingError(Address, io::Error);

impl fmt::Display for PingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address, error) = self;
        write!(f, "{address}: {error}")
    }
}

impl Error for PingError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.1)
    }
}

/// Checks that a beanstalkd answers at each address. Fails at the first address where none does.
pub fn ping(addresses: &[Address]) -> Result<(), PingError> {
    addresses.iter().try_for_each(|address| {
        let failed = |error| PingError(address.clone(), error);
        within(PING_TIMEOUT, address.clone()).map_err(failed)
    })
}

/// The system may take minutes to give up on a name or a connection, so a thread waits for it.
/// After a timeout that thread ends with the process.
fn within(timeout: Duration, address: Address) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || sender.send(ask(&address)))?;
    let timed_out = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 seconds"));
    receiver.recv_timeout(timeout).unwrap_or_else(timed_out)
}

fn ask(address: &Address) -> io::Result<()> {
    match address {
        Address::Tcp { host, service } => exchange(sys::connect_tcp(host, service)?),
        Address::Unix(path) => exchange(UnixStream::connect(path)?),
    }
}

fn exchange(mut stream: impl Read + Write) -> io::Result<()> {
    stream.write_all(REQUEST)?;
    let mut reply = Vec::new();
    let mut piece = [0; REPLY_MAX_BYTES];
    while may_go_on(&reply) {
        match stream.read(&mut piece)? {
            0 => break,
            count => reply.extend_from_slice(&piece[..count]),
        }
    }
    judge(&reply)
}

/// Whether `reply` may be the beginning of a beanstalkd's reply.
fn may_go_on(reply: &[u8]) -> bool {
    let begins = |whole: &[u8]| {
        let length = whole.len().min(reply.len());
        reply[..length] == whole[..length]
    };
    (begins(b"OK ") || begins(REPLY_WITHOUT_CAPABILITIES))
        && !reply.ends_with(REPLY_END)
        && reply.len() < REPLY_MAX_BYTES
}

fn judge(reply: &[u8]) -> io::Result<()> {
    let is_ours = reply.starts_with(b"OK ") && reply.ends_with(REPLY_END);
    let shown = || reply[..reply.len().min(60)].escape_ascii().to_string();
    match state(reply) {
        None if reply == REPLY_WITHOUT_CAPABILITIES => Ok(()),
        Some("binlog-failed") if is_ours => Err(io::Error::other("its binlog has failed")),
        Some(_) if is_ours => Ok(()),
        _ => Err(io::Error::other(format!("not a reply of beanstalkd: {}", shown()))),
    }
}

/// Returns the state that `capabilities` reports.
fn state(reply: &[u8]) -> Option<&str> {
    let lines = std::str::from_utf8(reply).ok()?.lines();
    lines.into_iter().find_map(|line| line.strip_prefix("state: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(reply: &str) -> Result<(), String> {
        judge(reply.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_daemon_whose_binlog_has_failed_is_not_well() {
        let ours = |state| format!("OK 9\r\n---\nstate: {state}\n\r\nUSING default\r\n");
        for state in ["serving", "draining", "binlog-full"] {
            assert_eq!(verdict(&ours(state)), Ok(()));
        }
        assert_eq!(verdict(&ours("binlog-failed")), Err("its binlog has failed".into()));
        assert_eq!(verdict("UNKNOWN_COMMAND\r\nUSING default\r\n"), Ok(()));
    }

    #[test]
    fn what_is_no_beanstalkd_is_named() {
        for reply in ["", "HTTP/1.1 400 Bad Request\r\n", "OK 2\r\n", "USING default\r\n"] {
            assert!(reply.len() < 3 || reply.starts_with("OK") || !may_go_on(reply.as_bytes()));
            let error = verdict(reply).expect_err("it is none");
            assert!(error.starts_with("not a reply of beanstalkd: "), "{error}");
        }
    }
}
