//! A connection's descriptor, what is known of its readiness, and the bytes that were read but
//! not consumed.

use std::io::{self, IoSlice, Read, Write};

use mio::{
    event::{Event, Source},
    net::{TcpStream, UnixStream},
};

use crate::{proto::LINE_LIMIT, server::FeedResult, sys};

/// Either kind of stream.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// What the poll loop watches.
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
    /// A read may bring something.
    pub(super) is_readable: bool,
    /// A write may be taken.
    pub(super) is_writable: bool,
    /// The system hinted at something that a read of any length may hide: an urgent byte, where
    /// reads stop, or the end. Until it shows, a short read does not mean that all is read.
    reads_on: bool,
    /// The client has ended its side, or all of it, and the server has not been told.
    pub(super) has_hung_up: bool,
    /// Is lined up.
    pub(super) is_runnable: bool,
    /// Is among those that there is no memory for.
    pub(super) is_deferred: bool,
    /// Nothing is done for it any more but closing it.
    pub(super) has_ended: bool,
    /// What the server wanted when it was last fed.
    pub(super) feed_result: FeedResult,
    /// Bytes read and not consumed; at most one read's worth, none while idle.
    pub(super) unconsumed: Vec<u8>,
}

impl Socket {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            is_readable: false,
            // A fresh socket takes a reply; if not, the first write will say so.
            is_writable: true,
            reads_on: false,
            has_hung_up: false,
            is_runnable: false,
            is_deferred: false,
            has_ended: false,
            feed_result: FeedResult::More,
            unconsumed: Vec::new(),
        }
    }

    /// Notes what an event says.
    pub(super) fn latch(&mut self, event: &Event) {
        let is_hint = event.is_priority() || event.is_read_closed() || event.is_error();
        self.reads_on |= is_hint;
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
        self.note_read(&result, buffer.len());
        result
    }

    /// Looks at what a read would bring, and leaves it in the system.
    pub(super) fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = match &self.stream {
            Stream::Tcp(stream) => sys::peek(stream, buffer),
            Stream::Unix(stream) => sys::peek(stream, buffer),
        };
        self.note_read(&result, buffer.len());
        result
    }

    /// Reads away what a look has shown: the whole buffer.
    pub(super) fn drop_seen(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
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

    fn note_read(&mut self, result: &io::Result<usize>, wanted: usize) {
        match result {
            Ok(count) if *count < wanted && !self.reads_on => self.is_readable = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                self.reads_on = false;
            }
            _ => {}
        }
    }

    /// Whether no event tells that something more has come.
    pub(super) fn reads_on(&self) -> bool {
        self.reads_on
    }

    /// Writes once, and says how many bytes were taken.
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

    /// Keeps what was not consumed of a read.
    pub(super) fn keep_unconsumed(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            self.unconsumed = Vec::new();
        } else {
            self.unconsumed.clear();
            self.unconsumed.extend_from_slice(rest);
        }
    }

    /// Forgets what has been consumed meanwhile.
    pub(super) fn drop_consumed(&mut self, consumed: usize) {
        let rest = &self.unconsumed[consumed..];
        if rest.len() < LINE_LIMIT {
            // The connection may rest now, and must not keep a large buffer meanwhile.
            self.unconsumed = rest.to_vec();
        } else {
            self.unconsumed.drain(..consumed);
        }
    }
}
