//! The replies that wait to be sent to a client. Replies and small bodies are copied into buffers;
//! large bodies are shared with their jobs. One `writev` sends several buffers and bodies.
//!
//! Invariant: `len` is the number of unsent bytes. Bytes that have been sent but not freed are all
//! in the first piece. An empty output owns no memory.

use std::{collections::VecDeque, io::IoSlice, iter, mem, ops::ControlFlow};

use crate::{
    memory::{Bodies, Body, COPIED_BODY_MAX_BYTES},
    proto::{CRLF, List, Reply},
};

/// If the last buffer has at least this many bytes, the next reply begins another buffer.
const BUFFER_FULL_BYTES: usize = 16 * 1024;

/// The initial capacity of a buffer: enough for most replies, so that a buffer seldom grows.
const BUFFER_START_BYTES: usize = 96;

/// A capacity that usually suffices for a buffer full of copied bodies.
const BUFFER_USUAL_BYTES: usize = BUFFER_FULL_BYTES + COPIED_BODY_MAX_BYTES + BUFFER_START_BYTES;

/// One `writev` passes at most this many pieces of output to the kernel. If a write had more
/// pieces, the kernel would check all of them each time, but would rarely send the last ones.
pub const SLICES: usize = 16;

#[derive(Debug)]
pub(super) enum Piece {
    /// The bytes of replies, and how many of these bytes are copies of bodies.
    Copied(Vec<u8>, u64),
    Shared(Body),
}

impl Piece {
    /// The bytes of a piece of the output.
    fn bytes<'a>(&'a self, bodies: &'a Bodies) -> &'a [u8] {
        match self {
            Self::Copied(bytes, _) => bytes,
            Self::Shared(body) => bodies.bytes(body),
        }
    }

    /// The length of a piece of the output in bytes.
    fn len(&self) -> usize {
        match self {
            Self::Copied(bytes, _) => bytes.len(),
            Self::Shared(body) => body.len(),
        }
    }

    /// Frees a piece: its copies of replies and bodies, or its handle to a shared body.
    fn free(self, bodies: &mut Bodies) {
        match self {
            Self::Copied(_, of_bodies) => bodies.counted -= of_bodies,
            Self::Shared(body) => bodies.remove(body),
        }
    }
}

impl Default for Piece {
    /// An empty piece of the output.
    fn default() -> Self {
        Self::Copied(Vec::new(), 0)
    }
}

/// Bytes to send, in order. The last bytes may be held until the binlog has the changes that these
/// bytes confirm.
#[derive(Debug, Default)]
pub struct Output {
    /// Usually this is the only piece, so a reply that is sent at once takes one allocation.
    first: Piece,
    rest: VecDeque<Piece>,
    len: usize,
    /// How many unsent bytes precede the first byte that is held until the present sync ends.
    syncing_from: Option<u32>,
    /// How many unsent bytes precede the first byte that is held until a later commit.
    held_from: Option<u32>,
}

impl Output {
    /// Makes all bytes that are appended from now on wait for a later commit. Returns false if
    /// earlier bytes already wait for that commit.
    pub fn hold(&mut self) -> bool {
        let is_first = self.held_from.is_none();
        if is_first {
            let from = u32::try_from(self.len).expect("replies and one body are below 4 GiB");
            self.held_from = Some(from);
        }
        is_first
    }

    /// Whether the output has bytes that are held back until a commit.
    pub fn is_held(&self) -> bool {
        self.first_held().is_some()
    }

    /// Makes held bytes wait only for the sync that has just begun, not for a later commit.
    pub fn begin_sync(&mut self) {
        self.syncing_from = self.syncing_from.or(self.held_from);
        self.held_from = None;
    }

    /// Releases the bytes that waited for the sync that has just ended.
    pub fn end_sync(&mut self) {
        self.syncing_from = None;
    }

    /// How many bytes of the output may be sent now.
    pub fn sendable(&self) -> usize {
        self.first_held().map_or(self.len, |from| from as usize)
    }

    /// The offset of the first held byte. Bytes that wait for the present sync precede bytes that
    /// wait for a later commit.
    fn first_held(&self) -> Option<u32> {
        self.syncing_from.or(self.held_from)
    }

    /// The number of unsent bytes of the output.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether all of the output has been sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a reply to this output.
    pub fn reply(&mut self, reply: Reply<'_>) {
        self.write(|buffer| reply.write(buffer));
    }

    /// Appends a list of names to this output, in buffers that take little more memory than the
    /// list.
    pub fn list<'a>(&mut self, list: List, mut names: impl Iterator<Item = &'a str>) {
        self.write(|buffer| list.begin(buffer));
        let mut next = names.next();
        while let Some(name) = next {
            self.write(|buffer| {
                buffer.reserve_exact(list.size().min(BUFFER_USUAL_BYTES - buffer.len()));
                List::add_name(buffer, name);
                // Appends names until the buffer is full.
                next = names
                    .try_for_each(|name| {
                        if List::line_length(name) > buffer.capacity() - buffer.len() {
                            return ControlFlow::Break(name);
                        }
                        List::add_name(buffer, name);
                        ControlFlow::Continue(())
                    })
                    .break_value();
            });
        }
        self.write(|buffer| buffer.extend_from_slice(b"\n\r\n"));
    }

    /// Appends to this output a reply that announces a body, and then the body with its CR LF.
    pub fn reply_with(&mut self, reply: Reply<'_>, body: &Body, bodies: &mut Bodies) {
        debug_assert!(bodies.bytes(body).ends_with(CRLF));
        self.reply(reply);
        if body.is_large() {
            self.len += body.len();
            self.rest.push_back(Piece::Shared(bodies.add_ref(body)));
        } else {
            self.copy(body, bodies);
        }
    }

    /// Appends a copy of a body to this output.
    fn copy(&mut self, body: &Body, bodies: &mut Bodies) {
        let bytes = bodies.bytes(body);
        self.write(|buffer| {
            // If one body follows another, more bodies are likely to follow. Each reallocation
            // copies all bodies in the buffer, so the buffer gets its usual capacity now.
            let is_short = buffer.capacity() - buffer.len() < bytes.len();
            if is_short && buffer.len() > BUFFER_START_BYTES {
                buffer.reserve_exact(
                    bytes.len().max(BUFFER_USUAL_BYTES.saturating_sub(buffer.len())),
                );
            }
            buffer.extend_from_slice(bytes);
        });
        if let Piece::Copied(_, of_bodies) = self.rest.back_mut().unwrap_or(&mut self.first) {
            *of_bodies += body.len() as u64;
            bodies.counted += body.len() as u64;
        }
    }

    /// Calls `write` to append bytes to the last buffer, or to a new buffer if the last is full.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        // A piece is freed when all its bytes have been sent, so a piece must not grow without end
        // if a client reads slowly.
        let has_space =
            |piece: &Piece| matches!(piece, Piece::Copied(it, _) if it.len() < BUFFER_FULL_BYTES);
        if !has_space(self.rest.back().unwrap_or(&self.first)) {
            self.rest.push_back(Piece::default());
        }
        let Piece::Copied(buffer, _) = self.rest.back_mut().unwrap_or(&mut self.first) else {
            unreachable!("the last piece takes copies");
        };
        if buffer.capacity() == 0 {
            *buffer = Vec::with_capacity(BUFFER_START_BYTES);
        }
        let before = buffer.len();
        write(buffer);
        self.len += buffer.len() - before;
    }

    /// The bytes of this output to send next, as `IoSlice`s for one `writev`, and the number of
    /// slices that are set.
    pub fn slices<'a>(&'a self, bodies: &'a Bodies) -> ([IoSlice<'a>; SLICES], usize) {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let (mut count, mut sent, mut left) = (0, self.sent_of_first(), self.sendable());
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            let bytes = &piece.bytes(bodies)[mem::take(&mut sent)..];
            let bytes = &bytes[..bytes.len().min(left)];
            *slice = IoSlice::new(bytes);
            count += 1;
            left -= bytes.len();
            if left == 0 {
                break;
            }
        }
        (slices, count)
    }

    /// Removes the first `count` bytes of this output, which have been sent.
    pub fn sent(&mut self, count: usize, bodies: &mut Bodies) {
        let mut sent = self.sent_of_first() + count;
        self.len -= count;
        for offset in [&mut self.syncing_from, &mut self.held_from].into_iter().flatten() {
            *offset -= u32::try_from(count).expect("held bytes are not sent");
        }
        while sent >= self.first.len() {
            sent -= self.first.len();
            match self.rest.pop_front() {
                Some(piece) => mem::replace(&mut self.first, piece).free(bodies),
                None => return self.clear(bodies),
            }
        }
    }

    /// All pieces of the output, in the order in which they are sent.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        iter::once(&self.first).chain(&self.rest)
    }

    /// How many bytes of the first piece have been sent. O(pieces). There are at most a few dozen
    /// pieces, because a connection with too many unsent bytes takes no input.
    fn sent_of_first(&self) -> usize {
        self.pieces().map(Piece::len).sum::<usize>() - self.len
    }

    /// Removes all bytes of this output, sent or not, and frees their memory.
    pub fn clear(&mut self, bodies: &mut Bodies) {
        let Self { first, rest, .. } = mem::take(self);
        for piece in iter::once(first).chain(rest) {
            piece.free(bodies);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Even if a client never reads all its output, the daemon must free the bytes already sent.
    #[test]
    fn sent_bytes_are_freed_though_the_output_is_never_empty() {
        let (mut output, mut bodies) = (Output::default(), Bodies::default());
        let body = bodies.store(&[0; 1000]).expect("there is memory");
        output.copy(&body, &mut bodies);
        for _ in 0..10_000 {
            output.copy(&body, &mut bodies);
            output.sent(1000, &mut bodies);
            let held: usize = output.pieces().map(Piece::len).sum();
            assert!(held <= 2 * BUFFER_FULL_BYTES, "{held} bytes held for {} unsent", output.len());
        }
        bodies.remove(body);
    }

    /// If a long list were one piece, the kernel would have to fill new memory with zeros.
    #[test]
    fn a_long_list_is_whole_and_in_pieces_below_the_size_that_is_mapped() {
        for (count, length) in [(0, 1), (1, 200), (300, 200), (20_000, 200), (100_000, 10)] {
            let (mut output, bodies) = (Output::default(), Bodies::default());
            let name = "x".repeat(length);
            let list = List { count, bytes: count * length };
            output.list(list, std::iter::repeat_n(name.as_str(), count));
            let text: Vec<_> = output.pieces().map(|piece| piece.bytes(&bodies)).collect();
            let wanted = format!("---\n{}", format!("- {name}\n").repeat(count));
            let wanted = format!("OK {}\r\n{wanted}\r\n", wanted.len());
            assert!(text.concat() == wanted.as_bytes(), "{count} names");
            let is_small =
                |piece: &Piece| matches!(piece, Piece::Copied(it, _) if it.capacity() < 64 << 10);
            assert!(output.pieces().all(is_small), "{count} names");
            let taken =
                |piece: &Piece| if let Piece::Copied(it, _) = piece { it.capacity() } else { 0 };
            let taken: usize = output.pieces().map(taken).sum();
            assert!(taken <= list.size() + list.size() / 64 + 32 * 1024, "{count} names: {taken}");
        }
    }

    proptest! {
        /// The client gets all bytes in order, however many of them the kernel takes in each write.
        #[test]
        fn is_sent_whole_in_any_portions(
            pieces in prop::collection::vec(
                (any::<u8>(), prop_oneof![0..100usize, 4000..9000usize]),
                0..40,
            ),
            portions in prop::collection::vec(1..7000usize, 1..50),
        ) {
            let mut bodies = Bodies::default();
            let (mut output, mut wanted) = (Output::default(), Vec::new());
            for (number, (byte, size)) in pieces.into_iter().enumerate() {
                let mut body = vec![byte; size];
                body.extend_from_slice(CRLF);
                let reply = Reply::Job("RESERVED", number as u64, size);
                reply.write(&mut wanted);
                wanted.extend(&body);
                let body = bodies.store(&body).expect("there is memory");
                output.reply_with(reply, &body, &mut bodies);
                bodies.remove(body);
            }
            let (mut got, mut portions) = (Vec::new(), portions.into_iter().cycle());
            while !output.is_empty() {
                prop_assert_eq!(output.len(), wanted.len() - got.len());
                let (slices, count) = output.slices(&bodies);
                let mut portion = portions.next().expect("a cycle does not end");
                let before = got.len();
                for slice in &slices[..count] {
                    let taken = portion.min(slice.len());
                    got.extend_from_slice(&slice[..taken]);
                    portion -= taken;
                }
                output.sent(got.len() - before, &mut bodies);
            }
            prop_assert_eq!(got, wanted);
            prop_assert!(output.rest.capacity() == 0 && output.first.len() == 0);
            prop_assert_eq!(bodies.counted, 0);
        }
    }
}
