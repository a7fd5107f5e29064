//! A work queue.
pub mod base;
pub mod cli;
pub mod clock;
pub mod conn;
pub mod net;
pub mod proto;
pub mod queue;
pub mod server;
pub mod sys;
