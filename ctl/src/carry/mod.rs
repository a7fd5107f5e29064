//! Commands that carry jobs to files and to other servers.

pub(crate) mod binlog;
pub(crate) mod export;
pub(crate) mod import;
