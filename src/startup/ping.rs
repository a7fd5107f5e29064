//! The health check `--ping` of a running daemon, for example in a container without a shell.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{cli::Address, sys};

/// The time limit for the check of one address, including the resolution of a name.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The commands of a ping. The original answers `capabilities` with an error, so the reply to
/// `list-tube-used`, which every beanstalkd knows, shows that the server is a beanstalkd.
const REQUEST: &[u8] = b"capabilities\r\nlist-tube-used\r\nquit\r\n";

/// In total, the replies of a beanstalkd to all commands of a ping take fewer bytes than this.
const REPLY_MAX_BYTES: u64 = 4096;

/// Checks that at each address a beanstalkd answers, and that its binlog has not failed. Fails at
/// the first address that does not pass this check; the error includes the address.
pub fn ping(addresses: &[Address]) -> io::Result<()> {
    addresses.iter().try_for_each(|address| {
        let named = |error| io::Error::other(format!("{address}: {error}"));
        within(PING_TIMEOUT, address.clone()).map_err(named)
    })
}

/// Checks in another thread that a beanstalkd answers at an address, because the system may take
/// minutes to give up on a name or a connection. A thread that is too slow ends with the process.
fn within(timeout: Duration, address: Address) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || sender.send(ask(&address)))?;
    let timed_out = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 seconds"));
    receiver.recv_timeout(timeout).unwrap_or_else(timed_out)
}

/// Connects to an address, and checks that a beanstalkd answers there.
fn ask(address: &Address) -> io::Result<()> {
    match address {
        Address::Tcp { host, service } => exchange(sys::connect_tcp(host, service)?),
        Address::Unix(path) => exchange(UnixStream::connect(path)?),
    }
}

/// Sends the request of the health check, and reads the replies.
fn exchange(mut stream: impl Read + Write) -> io::Result<()> {
    stream.write_all(REQUEST)?;
    judge(BufReader::new(stream.take(REPLY_MAX_BYTES)))
}

/// Reads the replies until they show whether a beanstalkd with a working binlog sent them.
fn judge(reply: impl BufRead) -> io::Result<()> {
    let mut lines = reply.split(b'\n');
    let first = lines.next().transpose()?.unwrap_or_default();
    if first.starts_with(b"OK ") || first == b"UNKNOWN_COMMAND\r" {
        for line in lines {
            match &*line? {
                b"state: binlog-failed" => return Err(io::Error::other("its binlog has failed")),
                b"USING default\r" => return Ok(()),
                _ => {}
            }
        }
    }
    let shown = first[..first.len().min(60)].escape_ascii();
    Err(io::Error::other(format!("not a beanstalkd server: it replied {shown}")))
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
        let mistaken = "HTTP/1.1 400 Bad Request\r\nUSING default\r\n";
        for reply in ["", mistaken, "OK 2\r\n", "OK 2\r\n\r\nUSING def", "USING default\r\n"] {
            let error = verdict(reply).expect_err("it is none");
            assert!(error.starts_with("not a beanstalkd server: it replied "), "{error}");
        }
    }
}
