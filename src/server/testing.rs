//! Clients without sockets, for unit tests of the server.

use super::{COMMANDS_PER_CONNECTION, Identity, Server, Settings};
use crate::{
    clock::Time,
    collections::Key,
    conn::Conn,
    memory::Supply,
    wal::{Restored, Wal},
};

/// The time at which the tests begin.
pub(super) const START: Time = Time::from_nanoseconds(1_000_000_000_000);

fn identity() -> Identity {
    Identity {
        pid: 1,
        version: "test".into(),
        id: "0".into(),
        hostname: "host".into(),
        os: "os".into(),
        platform: "platform".into(),
        rusage: Default::default,
    }
}

/// Flags for tests, with a limit on the memory of bodies.
pub(super) fn settings(memory_limit: Option<u64>) -> Settings {
    Settings { job_size_limit: 65_535, binlog_size: 4096, memory_limit, bury_after: None }
}

pub(super) fn server(memory_limit: Option<u64>) -> Server {
    Server::new(identity(), settings(memory_limit), START)
}

pub(super) fn server_with_wal(restored: Restored, wal: Wal) -> Server {
    Server::with_wal(identity(), settings(None), restored, Some(wal), START)
}

/// A supply of memory that reports this many free bytes.
#[derive(Debug)]
pub(super) struct Left(pub(super) usize);

impl Supply for Left {
    fn left(&mut self) -> usize {
        self.0
    }
    fn refill(&mut self, _: usize) {}
}

/// Opens a connection.
pub(super) fn connect(server: &mut Server) -> Key<Conn> {
    server.make_room_to_open().expect("there is memory");
    server.open()
}

/// Feeds all bytes, and checks that they are consumed.
pub(super) fn send(server: &mut Server, key: Key<Conn>, bytes: &str) {
    let (consumed, _) = server.feed(key, bytes.as_bytes(), COMMANDS_PER_CONNECTION, START);
    assert_eq!(consumed, bytes.len());
}

/// Removes and returns all bytes that may be sent on a connection.
pub(super) fn receive(server: &mut Server, key: Key<Conn>) -> String {
    while server.next_dirty().is_some() {}
    let mut text = Vec::new();
    while server.sendable(key) > 0 {
        let (slices, count) = server.output(key);
        let before = text.len();
        slices[..count].iter().for_each(|slice| text.extend_from_slice(slice));
        server.sent(key, text.len() - before);
    }
    String::from_utf8(text).expect("replies are text")
}

/// Sends commands and returns their replies.
pub(super) fn exchange(server: &mut Server, key: Key<Conn>, bytes: &str) -> String {
    send(server, key, bytes);
    receive(server, key)
}
