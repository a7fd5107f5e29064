//! Asks a running daemon for a sign of life, for whoever has only this binary: a container without
//! a shell, say.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{cli::Address, sys};

/// How long all of it may take, finding the address included.
const SHORTAGE_RETRY_DELAY: Duration = Duration::from_secs(5);

const REQUEST: &[u8] = b"list-tube-used\r\n";
const EXPECTED_REPLY: &[u8] = b"USING default\r\n";

/// Whether a beanstalkd answers at each of the addresses; otherwise which does not, and why.
pub fn ping(addresses: &[Address]) -> Result<(), String> {
    addresses.iter().try_for_each(|address| {
        let failed = |error| format!("{address}: {error}");
        within(SHORTAGE_RETRY_DELAY, address.clone()).map_err(failed)
    })
}

/// The system may take minutes to give up a name or a connection: what waits for it is left
/// behind, and ends with the process.
fn within(patience: Duration, address: Address) -> io::Result<()> {
    let (told, outcome) = mpsc::channel();
    thread::Builder::new().spawn(move || told.send(ask(&address)))?;
    let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 seconds"));
    outcome.recv_timeout(patience).unwrap_or_else(late)
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
