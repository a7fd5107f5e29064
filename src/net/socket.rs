//! A connection's descriptor, its readiness, and the bytes that were read but not consumed.

use std::io::{self, IoSlice, Read, Write};

use mio::{
    event::{Event, Source},
    net::{TcpStream, UnixStream},
};

use crate::{proto::LINE_LIMIT, server::FeedResult, sys};

/// A TCP or UNIX stream.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// The source to register with the poll.
    pub(super) fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

/// One connection as the event loop sees it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "seven independent facts, not one state")]
pub(super) struct Socket {
    stream: Stream,
    /// A read may return bytes.
    pub(super) is_readable: bool,
    /// A write may be accepted.
    pub(super) is_writable: bool,
    /// The kernel reported an urgent byte, where reads stop, or the end of input. Until
    /// `WouldBlock`, a short read does not mean that all is read.
    reads_until_blocked: bool,
    /// The client has closed its sending side, or disconnected, and the server has not been told.
    pub(super) has_hung_up: bool,
    /// Is in `runnable` or `busy`.
    pub(super) is_runnable: bool,
    /// Is in `deferred`.
    pub(super) is_deferred: bool,
    /// Only closing is left to do.
    pub(super) has_ended: bool,
    /// The result of the last [`Server::feed`](crate::server::Server::feed).
    pub(super) feed_result: FeedResult,
    /// Bytes read and not consumed: at most one read, and none while the connection is idle.
    pub(super) unconsumed: Vec<u8>,
}

impl Socket {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            is_readable: false,
            // A new socket accepts a reply; if not, the first write reports that.
            is_writable: true,
            reads_until_blocked: false,
            has_hung_up: false,
            is_runnable: false,
            is_deferred: false,
            has_ended: false,
            feed_result: FeedResult::More,
            unconsumed: Vec::new(),
        }
    }

    /// Latches the readiness that an event reports.
    pub(super) fn latch(&mut self, event: &Event) {
        let is_hint = event.is_priority() || event.is_read_closed() || event.is_error();
        self.reads_until_blocked |= is_hint;
        self.has_hung_up |= event.is_read_closed() || event.is_error();
        self.is_readable |= event.is_readable() || is_hint;
        self.is_writable |= event.is_writable() || event.is_error();
    }

    /// Reads once.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = match &mut self.stream {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        };
        self.on_read(&result, buffer.len());
        result
    }

    /// Copies what a read would return, and leaves it in the kernel.
    pub(super) fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = match &self.stream {
            Stream::Tcp(stream) => sys::peek(stream, buffer),
            Stream::Unix(stream) => sys::peek(stream, buffer),
        };
        self.on_read(&result, buffer.len());
        result
    }

    /// Reads and discards as many bytes as the buffer has; a peek must have returned them.
    pub(super) fn discard_peeked(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => buffer = &mut buffer[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn on_read(&mut self, result: &io::Result<usize>, wanted: usize) {
        match result {
            Ok(count) if *count < wanted && !self.reads_until_blocked => self.is_readable = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                self.reads_until_blocked = false;
            }
            _ => {}
        }
    }

    /// Whether reads go on until `WouldBlock`, because no event may report further bytes.
    pub(super) fn reads_until_blocked(&self) -> bool {
        self.reads_until_blocked
    }

    /// Writes once, and returns how many bytes the kernel accepted.
    pub(super) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let result = match (&mut self.stream, slices) {
            (Stream::Tcp(stream), [only]) => stream.write(only),
            (Stream::Tcp(stream), slices) => stream.write_vectored(slices),
            (Stream::Unix(stream), slices) => stream.write_vectored(slices),
        };
        match &result {
            Ok(sent) => self.is_writable = *sent == offered,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_writable = false,
            Err(_) => {}
        }
        result
    }

    /// Stores the bytes of a read that were not consumed.
    pub(super) fn keep_unconsumed(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            self.unconsumed = Vec::new();
        } else {
            self.unconsumed.clear();
            self.unconsumed.extend_from_slice(rest);
        }
    }

    /// Removes the first `consumed` bytes from those stored.
    pub(super) fn drop_consumed(&mut self, consumed: usize) {
        let rest = &self.unconsumed[consumed..];
        if rest.len() < LINE_LIMIT {
            // The connection may be idle from now on, and must not keep a large buffer.
            self.unconsumed = rest.to_vec();
        } else {
            self.unconsumed.drain(..consumed);
        }
    }
}
