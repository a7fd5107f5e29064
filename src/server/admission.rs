//! Admission: how much memory must be free before each kind of growth. If less is free, a command
//! gets `OUT_OF_MEMORY`. A `put` also gets this reply if the limit on bodies is reached or the disk
//! is full.
//!
//! The server takes a step only if at least as much memory is free as [`Level::Critical`] requires.
//! No step allocates that much. So no allocation of a step fails.

use super::Server;
use crate::{
    collections::{Growth, Key, OutOfMemory, ensure, grow, grow_deque},
    memory::Level,
    proto::Reply,
    queue::Tube,
};

/// How many connections may be opened even if memory is scarce, so that workers can connect and
/// delete the jobs that take all other memory.
const FEW_CONNECTIONS: usize = 64;

/// How many jobs a client may reserve even if memory is scarce. Without this limit, a few clients
/// could take all the memory that new clients need.
const FEW_RESERVED_JOBS: usize = 16;

/// How many long commands may be in progress even at [`Level::Critical`], because they may free
/// memory.
const FEW_LONG_COMMANDS: usize = 16;

/// A list of up to this many bytes is sent even at [`Level::Critical`].
const SMALL_LIST_MAX_BYTES: usize = 4096;

/// How many bytes the buffer of a list can need beyond the size of the list, because older replies
/// may be in the same buffer.
const LIST_EXTRA_BYTES: usize = 32 * 1024;

/// If something grows by more than this number of bytes, one free piece of memory must be as large
/// as the growth.
const LARGE_GROWTH_BYTES: usize = 64 * 1024;

/// The kinds of growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growing {
    /// A job, a tube, a watch, or unconsumed input.
    Storage,
    /// A reply that is a list of this many bytes.
    List(usize),
    /// One more long command, while this many are in progress.
    LongCommands(usize),
    /// One more connection, in addition to this many open connections.
    Connections(usize),
    /// One more reserved job of a client that already has this many reserved jobs.
    ReservedJobs(usize),
    /// A wait of a client for a job, or a job released with a delay.
    Waiting,
    /// A part of a line that is kept until the rest of the line arrives.
    PartOfLine,
    /// A reply to a client that already has unsent replies.
    UnsentReplies,
    /// The only unsent reply to a client, or a step of work that is due.
    Step,
}

impl Growing {
    /// The level of free memory that this growth requires.
    fn level(self) -> Level {
        match self {
            Self::List(size) if size <= SMALL_LIST_MAX_BYTES => Level::Critical,
            Self::LongCommands(count) if count < FEW_LONG_COMMANDS => Level::Critical,
            Self::Storage | Self::List(_) | Self::LongCommands(_) => Level::Plenty,
            Self::Connections(count) if count < FEW_CONNECTIONS => Level::Scarce,
            Self::ReservedJobs(count) if count < FEW_RESERVED_JOBS => Level::Scarce,
            Self::Connections(_)
            | Self::ReservedJobs(_)
            | Self::Waiting
            | Self::PartOfLine
            | Self::UnsentReplies => Level::Low,
            Self::Step => Level::Critical,
        }
    }
}

impl Server {
    /// Fails if too little memory is free for this growth. O(1).
    pub(super) fn admit(&mut self, growing: Growing) -> Growth {
        ensure(self.bodies.memory.admits(growing.level()))
    }

    /// Whether there is memory for the next step: a reply, or a step of work that is due.
    pub fn may_step(&mut self) -> bool {
        self.admit(Growing::Step).is_ok()
    }

    /// Whether there is memory to execute the commands of an input, and to keep unconsumed input.
    pub fn may_keep_input(&mut self) -> bool {
        self.admit(Growing::Storage).is_ok()
    }

    /// Whether there is memory to keep a part of a line until the rest of the line arrives.
    pub fn may_keep_part_of_line(&mut self) -> bool {
        self.admit(Growing::PartOfLine).is_ok()
    }

    /// Makes room for [`Server::open`], or fails if there is no memory. O(1), unless a list is
    /// reallocated.
    pub fn make_room_to_open(&mut self) -> Growth {
        self.admit(Growing::Connections(self.conns.len()))?;
        self.queue.make_room_to_join()?;
        self.conns.make_room()?;
        let count = self.conns.len() + 1;
        self.dirty.make_room(count)?;
        grow_deque(&mut self.slices.disconnecting, count)?;
        grow(&mut self.slices.reclaimable, count)?;
        if self.wal.is_some() { self.held.make_room(count) } else { Ok(()) }
    }

    /// Returns the tube of this name, and makes the tube if it does not exist. If the tube is new,
    /// the caller must make a client use or watch the tube in the same step.
    pub(super) fn tube_named(&mut self, name: &str) -> Growth<Key<Tube>> {
        if let Some(tube) = self.queue.find_tube(name) {
            return Ok(tube);
        }
        self.admit(Growing::Storage)?;
        self.queue.make_tube(name)
    }

    /// Makes room for another command that takes many steps.
    pub(super) fn make_room_for_long_command(&mut self) -> Growth {
        let count = self.slices.long_commands.len();
        self.admit(Growing::LongCommands(count))?;
        grow_deque(&mut self.slices.long_commands, count + 1)
    }

    /// Fails if too little memory is free for a growth by `bytes` bytes in one piece.
    pub(super) fn admit_bytes(&mut self, growing: Growing, bytes: usize) -> Growth {
        self.admit(growing)?;
        let is_small = bytes <= LARGE_GROWTH_BYTES;
        ensure(is_small || self.bodies.memory.has_piece(bytes, growing.level()))
    }

    /// Fails if there is too little memory to append a list of `size` bytes to a buffer of replies.
    pub(super) fn admit_list(&mut self, size: usize) -> Growth {
        // At the end of each buffer of the list, less than a 64th of the buffer is unused.
        self.admit_bytes(Growing::List(size), size + size / 64 + LIST_EXTRA_BYTES)
    }
}

impl From<OutOfMemory> for Reply<'static> {
    /// The reply to a command for which there is not enough memory.
    fn from(_: OutOfMemory) -> Self {
        Self::OUT_OF_MEMORY
    }
}
