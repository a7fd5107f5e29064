//! A work queue daemon with the protocol, flags and behaviour of beanstalkd, in one thread.
//!
//! **The one idea.** The daemon is a state machine, the [`server`], inside an event loop. The loop
//! passes bytes and the present time to the server, which returns bytes and its next deadline. So a
//! test that chooses the bytes and the times can replay any run, and simulate a year in a second.
//!
//! # Vocabulary
//!
//! A *job* is a body with an id, a priority, times, counters and a state: *ready*, *reserved*,
//! *delayed* or *buried*. *Tubes* are named queues of jobs. A *connection* is three objects with
//! the same index: a `Socket` ([`net`]), a `Conn` for its bytes ([`conn`]) and a `Client`
//! ([`queue`]). A *turn* is one pass of the event loop. In each turn, the *tick* handles due
//! deadlines, and the *commit* writes records to the *binlog*, a series of files called *segments*
//! ([`wal`]).
//!
//! # The map, in the order of reading
//!
//! 1. [`queue`]: the work queue as a library: jobs, tubes, clients, timers, counters, and a method
//!    for each command, but no protocol and no files;
//! 2. [`proto`]: the bytes of commands, replies, lists and YAML documents; [`conn`]: splits the
//!    input of a connection into lines and bodies, and keeps its unsent output;
//! 3. [`server`]: carries out commands with the queue and the binlog, makes replies, owns all
//!    bodies, checks free memory, does large work in slices, and collects statistics;
//! 4. [`net`]: the event loop, which waits for events, accepts, reads, sends and closes;
//! 5. [`wal`]: the binlog, a third of the code: disk space, records, segments, syncs, recovery, the
//!    directory on disk, and a reader that tolerates damage (doc/architecture.md maps the files);
//! 6. [`collections`]: arena, heap, list, map; [`memory`]: blocks of bodies, levels of free memory;
//! 7. [`clock`]: instants and dates; [`cli`]: flags and usage; [`service`]: log lines, messages to
//!    the service manager; [`sys`]: all calls of libc; [`startup`]: startup, the health check, the
//!    report of `--check-binlog`; `main.rs`: exit statuses.
//!
//! The comment at the head of each folder's `mod.rs` describes the files of the folder.
//!
//! | to change | edit these files, apart from tests and doc/ |
//! |---|---|
//! | a key of `stats` | `server/stats.rs` |
//! | a flag | `cli/mod.rs`, `Settings` in `server/identity.rs`, the file that uses the flag |
//! | the kinds of records | `wal/record.rs`, `wal/dates.rs`, `wal/mod.rs`, `wal/read/reader.rs` |
//! | the policies of syncs | `cli/mod.rs`, `wal/interface.rs`, `wal/syncs.rs`; none in `server` |
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
//! - A job's state determines which collection of its tube or its client contains the job.
//! - Every sort order is total: a job id or a key breaks ties. No two commands have the same time.
//! - A command takes O(log n) time for n jobs and connections. Large work is done in slices.
//! - No change fails halfway: its memory and disk space are obtained before the change begins.
//! - No reply confirms a change before the change's record is written, and with `-f0` also synced.
//! - No bytes from clients or the disk cause a panic: wrong bytes cause error replies or reports.
//!
//! doc/architecture.md has the glossary, the details, and the features omitted on purpose.

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
