//! The daemon's surroundings: log lines, messages to the service manager, the health check.

pub mod logging;
pub mod notify;
pub mod ping;
