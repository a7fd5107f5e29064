//! A check of all invariants of the server, and clients without sockets for unit tests.

use std::time::Duration;

use super::Server;
use crate::{clock::Time, collections::Key, wal::Jobs};

impl Server {
    /// How many connections take memory, including closed connections that are not yet reclaimed.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// The jobs and their bodies, read-only.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs { queue: &self.queue, bodies: &self.bodies }
    }

    /// Makes each tick retry at once the work for which there was no memory.
    pub fn retry_at_once(&mut self) {
        self.shortage.retry_delay = Duration::ZERO;
    }

    /// The instant of the last command or step: the `now` that the caller passed, or some
    /// nanoseconds later. The simulator checks that the server has done all work that was due by
    /// the returned time.
    pub fn latest(&self) -> Time {
        self.latest
    }

    /// Checks all invariants except those of the binlog, and panics if one is violated. O(all jobs,
    /// tubes and connections): for tests.
    pub fn check(&self) {
        self.queue.check();
        let handles: usize = self.conns.iter().map(|(_, conn)| conn.handles()).sum();
        let jobs = self.queue.jobs();
        let (all, of_jobs) = (self.bodies.counted, self.queue.job_bytes());
        let copied: u64 = self.conns.iter().map(|(_, conn)| conn.output.copied()).sum();
        assert!(all >= of_jobs + copied && (handles > 0 || all == of_jobs + copied));
        let bodies = self.bodies.check(|index| &self.queue.job(Key::from_index(index)).body);
        assert_eq!(bodies, jobs + handles, "no body is leaked");
    }
}

#[cfg(test)]
pub(super) use self::clients::*;

#[cfg(test)]
mod clients {
    use super::super::{COMMANDS_PER_CONNECTION, Identity, Server, Settings};
    use crate::{
        clock::Time,
        collections::Key,
        conn::Conn,
        memory::Supply,
        wal::{Restored, Wal},
    };

    /// The time at which the tests begin.
    pub(in crate::server) const START: Time = Time::from_nanoseconds(1_000_000_000_000);

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
    pub(in crate::server) fn settings(memory_limit: Option<u64>) -> Settings {
        Settings { job_size_limit: 65_535, binlog_size: 4096, memory_limit, bury_after: None }
    }

    pub(in crate::server) fn server(memory_limit: Option<u64>) -> Server {
        Server::new(identity(), settings(memory_limit), START)
    }

    pub(in crate::server) fn server_with_wal(restored: Restored, wal: Wal) -> Server {
        Server::with_wal(identity(), settings(None), restored, Some(wal), START)
    }

    /// A supply of memory that reports this many free bytes.
    #[derive(Debug)]
    pub(in crate::server) struct Left(pub(in crate::server) usize);

    impl Supply for Left {
        fn left(&mut self) -> usize {
            self.0
        }
        fn refill(&mut self, _: usize) {}
    }

    /// Opens a connection.
    pub(in crate::server) fn connect(server: &mut Server) -> Key<Conn> {
        server.make_room_to_open().expect("there is memory");
        server.open()
    }

    /// Feeds all bytes, and checks that they are consumed.
    pub(in crate::server) fn send(server: &mut Server, key: Key<Conn>, bytes: &str) {
        let (consumed, _) = server.feed(key, bytes.as_bytes(), COMMANDS_PER_CONNECTION, START);
        assert_eq!(consumed, bytes.len());
    }

    /// Removes and returns all bytes of a connection's output that are not held.
    pub(in crate::server) fn receive(server: &mut Server, key: Key<Conn>) -> String {
        while server.next_dirty().is_some() {}
        let mut text = Vec::new();
        while server.conn(key).output.sendable() > 0 {
            let (slices, count) = server.output(key);
            let before = text.len();
            slices[..count].iter().for_each(|slice| text.extend_from_slice(slice));
            server.sent(key, text.len() - before);
        }
        String::from_utf8(text).expect("replies are text")
    }

    /// Sends commands and returns their replies.
    pub(in crate::server) fn exchange(server: &mut Server, key: Key<Conn>, bytes: &str) -> String {
        send(server, key, bytes);
        receive(server, key)
    }
}
