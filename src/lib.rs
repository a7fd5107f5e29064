//! A work queue daemon: beanstalkd's protocol, flags and habits, on one thread.
//!
//! **The one idea.** The daemon is a pure machine with a thin shell. Bytes and the present time go
//! into the machine; bytes and the next deadline come out. The shell, an event loop, owns sockets,
//! signals and the clock. So any behaviour can be replayed, a simulated year takes a second, and
//! the same scripts test the original and this daemon.
//!
//! # Vocabulary
//!
//! A *job* is a body and a record: its id, priority, times, state and counters. It is *ready*,
//! *reserved*, *delayed* or *buried*. *Tubes* are named queues of jobs. A *connection* has three
//! parts under one index: its socket ([`net`]), its bytes ([`conn`]) and the queue's view of it,
//! the *client* ([`queue`]). A *turn* is one round of the event loop, a *tick* handles due timers,
//! and a *commit* writes the turn's records to the *binlog*, a series of files called *segments*
//! ([`wal`]). doc/architecture.md has the glossary.
//!
//! # Reading order
//!
//! 1. [`queue`]: the work queue itself, one method per verb;
//! 2. [`proto`]: the language of the wire, and [`conn`]: how bytes become commands;
//! 3. [`server`]: where the parts meet, and the owner of all bodies. `dispatch.rs` has one short
//!    arm for each command, `binlog.rs` asks the binlog before a change and records it afterwards,
//!    and `background.rs` does long work in slices;
//! 4. [`net`]: the event loop, sockets, readiness;
//! 5. [`wal`]: the binlog, a third of the code: permits before a change, records after it, recovery
//!    after a crash, and a reader for any bytes;
//! 6. [`collections`] and [`memory`]: the containers, the blocks of bodies, and the levels of
//!    memory that the server asks for before anything grows;
//! 7. [`cli`], [`clock`], [`service`], [`sys`], [`startup`] and `main.rs`: the edges. `startup`
//!    passes the flags of `cli` on to the event loop, or as fields of the server's `Settings`
//!    (`server/identity.rs`) or the binlog's `Options`.
//!
//! | a change of | touches, apart from tests and doc/ |
//! |---|---|
//! | a key of `stats` | `server/stats.rs` |
//! | a flag | `cli/mod.rs`, `Settings` in `server/identity.rs`, the place where it applies |
//! | the kinds of records | `wal/record.rs`, `wal/read/reader.rs`, `wal/mod.rs` |
//! | the policies of syncs | `cli/mod.rs`, `wal/interface.rs`, `wal/syncs.rs`; not `server` |
//! | a limit on commands, tubes | `cli/mod.rs`, `Settings`, the commands in `server/dispatch.rs` |
//!
//! # Example
//!
//! ```
//! use beanstalkd::{clock::Time, server::{Server, Settings}, startup};
//!
//! let now = Time::default();
//! let mut server = Server::new(startup::identify()?, Settings::default(), now);
//! let connection = server.open();
//! server.feed(connection, b"put 0 0 60 5\r\nhello\r\n", 10, now);
//! server.tick(now);
//! server.commit(now);
//! let (output, _) = server.output(connection);
//! assert_eq!(&*output[0], b"INSERTED 1\r\n");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Invariants
//!
//! - Between commands no unpaused tube has both a ready job and a waiting client.
//! - A job is in exactly one place, which its state names.
//! - Every order is total: ties are broken by an id or a key. Time is strictly increasing.
//! - A command costs O(log n); large work caused by one event is done in slices.
//! - Memory and disk space for a change are obtained before it begins, so the change cannot fail.
//! - No reply confirms a change before its record is written, and with `-f0` also synced.
//! - No bytes from the network or the disk can cause a panic: wrong ones are answered or reported.
//!
//! doc/architecture.md has the details, and the features that are absent on purpose.

pub mod cli;
pub mod clock;
pub mod collections;
pub mod conn;
pub mod memory;
pub mod net;
pub mod proto;
pub mod queue;
pub mod server;
pub mod service;
pub mod startup;
pub mod sys;
pub mod wal;
