//! Any arguments: they are read or refused in one line, and what is read keeps its bounds.
#![no_main]

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use beanstalkd::{
    cli::{self, Invocation},
    proto::JOB_SIZE_LIMIT,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let arguments: Vec<_> = input.split(|&byte| byte == 0).map(OsStr::from_bytes).collect();
    match cli::parse(&arguments) {
        Ok(Invocation::Serve(config)) => {
            assert!(config.job_size_limit <= JOB_SIZE_LIMIT);
            assert!(config.verbosity <= input.len());
        }
        Ok(Invocation::Help | Invocation::Version | Invocation::CheckBinlog(_)) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
