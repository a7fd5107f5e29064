//! What a daemon owes its surroundings: log lines, the service manager's notices, the health check.

pub mod logging;
pub mod notify;
pub mod ping;
