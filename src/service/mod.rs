//! The daemon's surroundings: log lines, and messages to the service manager.

pub mod logging;
pub mod notify;
