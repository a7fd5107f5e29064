//! The module `logging` writes log lines with dates and limits; the module `notify` sends messages
//! to a service manager.

pub mod logging;
pub mod notify;
