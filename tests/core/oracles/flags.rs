//! Any arguments: they are accepted, with values within bounds, or refused in one line.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use beanstalkd::{
    cli::{self, Invocation},
    proto::JOB_SIZE_LIMIT,
};

/// Judges arguments with a NUL between them.
pub(crate) fn judge(input: &[u8]) {
    let arguments: Vec<_> = input.split(|&byte| byte == 0).map(OsStr::from_bytes).collect();
    match cli::parse(&arguments) {
        Ok(Invocation::Serve(config)) => {
            assert!(config.settings.job_size_limit <= JOB_SIZE_LIMIT);
            assert!(config.verbosity <= input.len());
            assert!(!config.addresses.is_empty());
        }
        Ok(Invocation::Ping(addresses)) => assert!(!addresses.is_empty()),
        Ok(Invocation::Help | Invocation::Version | Invocation::CheckBinlog(_)) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
