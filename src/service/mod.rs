//! `logging`: log lines, with dates, counts and limits; `notify`: messages to a service manager.

pub mod logging;
pub mod notify;
