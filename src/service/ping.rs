//! The health check of a running daemon, for a container without a shell, for example.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{cli::Address, sys};

/// How long the check of one address may take, its resolution included.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

const REQUEST: &[u8] = b"list-tube-used\r\n";
const EXPECTED_REPLY: &[u8] = b"USING default\r\n";

/// Checks that a beanstalkd answers at each address. Fails with the first address that does not,
/// and the reason.
pub fn ping(addresses: &[Address]) -> Result<(), String> {
    addresses.iter().try_for_each(|address| {
        let failed = |error| format!("{address}: {error}");
        within(PING_TIMEOUT, address.clone()).map_err(failed)
    })
}

/// The system may take minutes to give up a name or a connection, so a thread waits for it. After a
/// timeout that thread ends with the process.
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
    let mut answer = [0; EXPECTED_REPLY.len()];
    stream.read_exact(&mut answer)?;
    if answer == EXPECTED_REPLY {
        Ok(())
    } else {
        let answer = answer.escape_ascii().to_string();
        Err(io::Error::other(format!("what answers is no beanstalkd: {answer}")))
    }
}
