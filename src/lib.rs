//! A work queue daemon: beanstalkd's protocol, flags and habits, on one thread.
//!
//! **The one idea.** A pure machine in the middle: bytes and the present time go in; bytes and
//! the next deadline come out. Around it an event loop owns sockets, signals and the clock. So any
//! behaviour can be replayed, a simulated year takes a second, and the original and this daemon
//! answer the same scripts.
//!
//! # Vocabulary
//!
//! A *job* is a body and a record of what is known of it. It is *ready*, *reserved*, *delayed* or
//! *buried*. *Tubes* are named lanes of jobs. A *connection* is seen three ways under one key: its
//! socket ([`net`]), its bytes ([`conn`]) and its membership in the queue, the *client*
//! ([`queue`]). A *turn* is one round of the event loop; a *tick* does what is due.
//!
//! # Reading order
//!
//! 1. [`queue`]: what a work queue is, one method per verb;
//! 2. [`proto`]: the words on the wire, and [`conn`]: how bytes become words;
//! 3. [`server`]: where they meet; `dispatch.rs` has one short arm per command;
//! 4. [`net`]: the turn, sockets, readiness;
//! 5. [`wal`]: the binlog;
//! 6. [`collections`] and [`memory`]: the containers, when their cost matters to you;
//! 7. [`cli`], [`clock`], [`service`], [`sys`], [`startup`] and `main.rs`: the edges.
//!
//! # What must always hold
//!
//! - Between commands no unpaused tube has both a ready job and a waiting client.
//! - A job is in exactly one place, and its state says which.
//! - Every order is total: ties end at an id or a key. Time is strictly increasing.
//! - A command costs O(log n); what one event makes large is done in slices.
//! - What grows has its memory before anything changes, or the change is refused.
//! - Bytes from outside meet a reply or a refusal before they could meet an assertion.
//!
//! doc/architecture.md says more, and what is absent on purpose.

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
