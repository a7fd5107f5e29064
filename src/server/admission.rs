//! Admission: how much memory must be left for each kind of growth. Nothing else lets a command be
//! answered with `OUT_OF_MEMORY`, except the limit on bodies, and a list so large that the system
//! itself is asked for its memory.
//!
//! A step is only taken if [`Level::Critical`] is left, which is more than any step takes. So no
//! allocation of a step fails, whatever the step grows.

use super::Server;
use crate::{
    collections::{Growth, Key, OutOfMemory, ensure, grow, grow_deque},
    memory::Level,
    proto::Reply,
    queue::Tube,
};

/// How many connections may be made even if memory is scarce. Otherwise a worker could not connect
/// to delete the jobs that take all other memory.
const FEW_CONNECTIONS: usize = 64;

/// While a client holds fewer reserved jobs than this, it may reserve another even if memory is
/// scarce. Without this limit, few clients could take all the memory that new ones need.
const FEW_RESERVED_JOBS: usize = 16;

/// How many long commands may begin even if memory is scarce, because these commands may free some.
const FEW_LONG_COMMANDS: usize = 16;

/// The longest list, in bytes, that is sent even if memory is short.
const SMALL_LIST_MAX_BYTES: usize = 4096;

/// How many bytes a list needs beyond its length: for a buffer of replies that is copied to grow.
const LIST_EXTRA_BYTES: usize = 32 * 1024;

/// A growth by more bytes than this at once is admitted only if one piece of that size is free.
const LARGE_GROWTH_BYTES: usize = 64 * 1024;

/// What grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growing {
    /// A job, a tube, a watch, or input that is kept.
    Storage,
    /// A reply that is a list of this many bytes.
    List(usize),
    /// The long commands under way, of which there are this many.
    LongCommands(usize),
    /// The connections, of which there are this many.
    Connections(usize),
    /// The jobs that a client has reserved, of which there are this many.
    ReservedJobs(usize),
    /// The waits for jobs, or the delayed jobs of a tube.
    Waiting,
    /// A part of a line that is kept until the rest arrives.
    PartOfLine,
    /// The output of a client that has unsent replies already.
    UnsentReplies,
    /// The output of another client, or what a due timer changes.
    Step,
}

impl Growing {
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
    /// Fails if not enough memory is left for this growth. O(1).
    pub(super) fn admit(&mut self, growing: Growing) -> Growth {
        ensure(self.bodies.memory.admits(growing.level()))
    }

    /// Whether there is memory for the next step: a reply, or work that is due.
    pub fn may_step(&mut self) -> bool {
        self.admit(Growing::Step).is_ok()
    }

    /// Whether unconsumed input can be kept, however much memory its commands take.
    pub fn may_keep_input(&mut self) -> bool {
        self.admit(Growing::Storage).is_ok()
    }

    /// Whether a part of a line can be kept until the rest arrives.
    pub fn may_keep_part_of_line(&mut self) -> bool {
        self.admit(Growing::PartOfLine).is_ok()
    }

    /// Makes room for [`Server::open`]. Fails if there is no memory. O(1), unless a list is
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

    /// The tube of this name, which is made if it does not exist. The caller must then make a
    /// client use or watch it.
    pub(super) fn tube_named(&mut self, name: &str) -> Growth<Key<Tube>> {
        if let Some(tube) = self.queue.find_tube(name) {
            return Ok(tube);
        }
        self.admit(Growing::Storage)?;
        self.queue.make_tube(name)
    }

    /// Makes room for another long command.
    pub(super) fn make_room_for_long_command(&mut self) -> Growth {
        let count = self.slices.long_commands.len();
        self.admit(Growing::LongCommands(count))?;
        grow_deque(&mut self.slices.long_commands, count + 1)
    }

    /// Fails if not enough memory is left for a growth of `bytes` bytes at once.
    pub(super) fn admit_bytes(&mut self, growing: Growing, bytes: usize) -> Growth {
        self.admit(growing)?;
        let is_small = bytes <= LARGE_GROWTH_BYTES;
        ensure(is_small || self.bodies.memory.has_piece(bytes, growing.level()))
    }

    /// Fails if there is no memory for a list of `size` bytes, which may follow other replies in a
    /// buffer.
    pub(super) fn admit_list(&mut self, size: usize) -> Growth {
        self.admit_bytes(Growing::List(size), size + LIST_EXTRA_BYTES)
    }
}

impl From<OutOfMemory> for Reply<'static> {
    fn from(_: OutOfMemory) -> Self {
        Self::OUT_OF_MEMORY
    }
}
