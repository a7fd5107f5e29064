//! One socket of a client: its readiness, single reads and writes, and unconsumed input.

use std::io::{self, IoSlice, Read, Write};

use mio::{Interest, event::Event, net::TcpStream};

use crate::{proto::LINE_LIMIT, server::FeedResult};

/// Whether the system, like epoll, reports an event after a short read or write, once more can be
/// read or written. An urgent byte also makes a read short, but epoll reports this byte, too. On
/// systems without epoll, reads and writes may have to be repeated until they return `WouldBlock`.
const CUT_SHORT_MEANS_EVENT: bool =
    cfg!(all(target_os = "linux", not(mio_unsupported_force_poll_poll)));

/// The events that a connection is registered for. `PRIORITY` is included, because a read stops at
/// an urgent byte, and no other event reports the bytes after that byte.
#[cfg(target_os = "linux")]
pub(super) const INTERESTS: Interest =
    Interest::READABLE.add(Interest::WRITABLE).add(Interest::PRIORITY);

/// The events that a connection is registered for. Only Linux has an event for urgent data.
#[cfg(not(target_os = "linux"))]
pub(super) const INTERESTS: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// A connection, as the event loop sees it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "eight independent facts, not one state")]
pub(super) struct Socket {
    /// A TCP or UNIX stream. `TcpStream` serves for UNIX streams, too, because only `read`, `write`
    /// and `peek` are called.
    stream: TcpStream,
    /// Whether a read might return bytes.
    pub(super) is_readable: bool,
    /// Whether the kernel might accept a write.
    pub(super) is_writable: bool,
    /// Whether the kernel reported an urgent byte (a read stops there) or the end of input. After
    /// such a report, a short read does not show that all input has been read; `WouldBlock` does.
    reads_until_blocked: bool,
    /// Whether the client shut down its output or disconnected, and `half_close` has not been
    /// called yet.
    pub(super) has_hung_up: bool,
    /// Whether the connection is in one of the queues `runnable` and `busy`.
    pub(super) is_runnable: bool,
    /// Whether the connection is in the queue of deferred connections.
    pub(super) is_deferred: bool,
    /// Whether nothing has been read from or sent to the socket since memory became short.
    pub(super) is_idle: bool,
    /// Whether the connection has ended, and its socket is still to be closed.
    pub(super) has_ended: bool,
    /// The result of the last [`Server::feed`](crate::server::Server::feed).
    pub(super) feed_result: FeedResult,
    /// Unconsumed bytes of at most one read. An idle connection keeps at most a part of a line.
    pub(super) unconsumed: Vec<u8>,
}

impl Socket {
    /// The socket of a connection that was just accepted.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            is_readable: false,
            // A new socket usually accepts a write; if not, the first write returns `WouldBlock`.
            is_writable: true,
            reads_until_blocked: false,
            has_hung_up: false,
            is_runnable: false,
            is_deferred: false,
            is_idle: false,
            has_ended: false,
            feed_result: FeedResult::More,
            unconsumed: Vec::new(),
        }
    }

    /// Stores the readiness that an event reports.
    pub(super) fn latch(&mut self, event: &Event) {
        let is_hint = event.is_priority() || event.is_read_closed() || event.is_error();
        self.reads_until_blocked |= is_hint;
        self.has_hung_up |= event.is_read_closed() || event.is_error();
        self.is_readable |= event.is_readable() || is_hint;
        self.is_writable |= event.is_writable() || event.is_error();
    }

    /// Reads from the socket once.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.read(buffer);
        self.on_read(&result, buffer.len());
        // The peek finds out whether the socket has more input. Without the peek, the connection
        // would be queued as busy until a read in the next turn finds nothing.
        if !CUT_SHORT_MEANS_EVENT && result.as_ref().is_ok_and(|&count| count < buffer.len()) {
            let _ = self.peek(&mut [0]);
        }
        result
    }

    /// Copies the bytes that a read would return, and leaves them in the kernel.
    pub(super) fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.peek(buffer);
        self.on_read(&result, buffer.len());
        result
    }

    /// Removes from the socket as many bytes as the buffer holds, after a peek has returned them.
    /// Does not change the readiness, which the peek has already updated.
    pub(super) fn discard_peeked(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(buffer)
    }

    /// Updates the readiness of the socket after a read or a peek of at most `wanted` bytes.
    fn on_read(&mut self, result: &io::Result<usize>, wanted: usize) {
        self.is_idle &= result.is_err();
        match result {
            Ok(count) if *count < wanted && !self.reads_until_blocked() => self.is_readable = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                self.reads_until_blocked = false;
            }
            _ => {}
        }
    }

    /// Whether to read until `WouldBlock`, because perhaps no event will report further bytes.
    pub(super) fn reads_until_blocked(&self) -> bool {
        self.reads_until_blocked || !CUT_SHORT_MEANS_EVENT
    }

    /// Writes to the socket once, and returns how many bytes the kernel accepted.
    pub(super) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let result = match slices {
            [only] => self.stream.write(only),
            slices => self.stream.write_vectored(slices),
        };
        self.is_idle &= result.is_err();
        match &result {
            Ok(sent) => self.is_writable = *sent == offered || !CUT_SHORT_MEANS_EVENT,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_writable = false,
            Err(_) => {}
        }
        result
    }

    /// Removes the first `consumed` bytes from the `unconsumed` input of the socket.
    pub(super) fn drop_consumed(&mut self, consumed: usize) {
        let rest = &self.unconsumed[consumed..];
        if rest.len() < LINE_LIMIT {
            // The connection may now become idle, and an idle connection must keep no large buffer.
            self.unconsumed = rest.to_vec();
        } else {
            self.unconsumed.drain(..consumed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        os::{fd::OwnedFd, unix::net::UnixStream},
    };

    use super::*;

    fn pair() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        (Socket::new(OwnedFd::from(ours).into()), theirs)
    }

    /// If a short read cleared the stored readiness while the kernel has more bytes, the client
    /// would wait for ever.
    #[test]
    fn a_short_read_clears_the_latch_unless_the_kernel_hinted_at_more() {
        let (mut socket, mut client) = pair();
        let buffer = &mut [0; 8];
        for (hint, is_readable) in [(false, false), (true, CUT_SHORT_MEANS_EVENT)] {
            client.write_all(b"abc").expect("there is space");
            (socket.is_readable, socket.reads_until_blocked) = (true, hint);
            assert_eq!(socket.read(buffer).expect("bytes"), 3);
            assert_eq!(socket.is_readable, is_readable);
        }
        let error = socket.read(buffer).expect_err("nothing is left");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(!socket.is_readable && !socket.reads_until_blocked);
        client.write_all(b"abcdefghij").expect("there is space");
        socket.is_readable = true;
        assert_eq!(socket.read(buffer).expect("bytes"), 8);
        assert!(socket.is_readable, "the kernel may have more after a full read");
    }

    #[test]
    fn what_was_peeked_at_stays_until_it_is_discarded() {
        let (mut socket, mut client) = pair();
        client.write_all(b"use a\r\nrest").expect("there is space");
        let buffer = &mut [0; 64];
        for _ in 0..2 {
            assert_eq!(socket.peek(buffer).expect("bytes"), 11);
        }
        socket.discard_peeked(&mut buffer[..7]).expect("they are there");
        let count = socket.read(buffer).expect("bytes");
        assert_eq!(&buffer[..count], b"rest");
    }

    #[test]
    fn a_write_that_the_kernel_cuts_short_waits_for_an_event() {
        let (mut socket, _client) = pair();
        let bytes = vec![0; 16 << 20];
        let sent = socket.write(&[IoSlice::new(&bytes)]).expect("a part");
        assert!(sent < bytes.len());
        assert_eq!(socket.is_writable, !CUT_SHORT_MEANS_EVENT);
        socket.is_writable = true;
        let error = socket.write(&[IoSlice::new(&bytes)]).expect_err("the buffer is full");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(!socket.is_writable);
    }

    /// If each of a hundred thousand idle connections kept a large buffer, memory would run out.
    #[test]
    fn an_idle_connection_keeps_no_large_buffer() {
        let (mut socket, _client) = pair();
        socket.unconsumed = vec![b'x'; 100_000];
        socket.drop_consumed(99_990);
        assert_eq!(socket.unconsumed.len(), 10);
        assert!(socket.unconsumed.capacity() < LINE_LIMIT);
        socket.drop_consumed(10);
        assert_eq!(socket.unconsumed.capacity(), 0);
    }
}
