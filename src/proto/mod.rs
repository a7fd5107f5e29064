//! The protocol: functions that handle only bytes, not jobs, tubes or connections.
//!
//! `command.rs` has the commands with their fields, `parse.rs` parses a line into a command,
//! numbers the commands and checks tube names, `reply.rs` writes replies and lists of tubes,
//! `stats_yaml.rs` writes YAML documents and their values, `http.rs` recognises HTTP.
//! doc/protocol.md specifies the protocol.

mod command;
mod http;
mod parse;
mod reply;
mod stats_yaml;

pub use self::{
    command::{Command, JobId, JobState, LISTED_JOBS_MAX, PutHeader},
    http::is_http_request,
    parse::{COMMAND_COUNT, command_names, is_tube_name, parse, place, tube_name},
    reply::{List, Reply},
    stats_yaml::{Document, Microseconds, Quoted, Seconds},
};

/// The longest command line in bytes, with its CR LF.
pub const LINE_LIMIT: usize = 224;

/// The longest tube name in bytes.
pub const NAME_LIMIT: usize = 200;

/// CR LF, which ends each line and each body.
pub const CRLF: &[u8] = b"\r\n";

/// The largest job body without `-z`, in bytes.
pub const JOB_SIZE_DEFAULT: u32 = 65_535;

/// The largest job body that `-z` can allow, in bytes.
pub const JOB_SIZE_LIMIT: u32 = 1 << 30;
