//! Code shared by the tests of the real binary: starts, watches and stops daemons, and has clients
//! for them. A failure in this code fails the test at the line of the test that called the code.

#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod proc;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod socket;

#[cfg(target_os = "linux")]
pub(crate) use self::{folder::*, peer::*, proc::*, process::*, socket::*};

/// The path of the daemon that is tested.
pub(crate) const OURS: &str = env!("CARGO_BIN_EXE_beanstalkd");
