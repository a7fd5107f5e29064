//! All calls to libc that no safe library offers. No other module of the daemon has `unsafe` code.
//!
//! Each `unsafe` block has one operation, and a comment on why the operation is sound. Callers get
//! owned descriptors, numbers and `io::Error`, and cannot make `unsafe` blocks unsound.
//!
//! The module `ballast` has the allocator; `clock` reads clocks and the CPU time of a thread;
//! `file` has locks, holes, disk space and syncs; `memory` reads resident memory and tunes the C
//! library's allocator; `process` has the user, limits, CPU time, the machine's names and random
//! numbers; `signal` catches signals; `socket` listens and connects.
#![expect(unsafe_code, reason = "this is the one place for it")]

pub mod ballast;
mod clock;
mod file;
mod memory;
mod process;
mod signal;
mod socket;

use std::{ffi::c_int, io};

pub use self::{
    clock::{monotonic_nanoseconds, thread_cpu_time, wall_nanoseconds},
    file::{
        check_can_create, confirm_written, forget_cached, lock_file, lock_until_closed, next_data,
        rename_to_new, reserve_space, sync_file_system,
    },
    memory::{ResidentMemory, release_free_memory, tune_allocator},
    process::{
        become_user, boot_id, cpu_time, find_user, kill_with_parent, raise_descriptor_limit,
        random_number, uname, user_id,
    },
    signal::Signals,
    socket::{
        connect_tcp, has_client, inherit, is_listening_stream, is_writable, listen_tcp,
        set_tcp_options,
    },
};

/// Turns the result -1 into the error that `errno` holds.
fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
