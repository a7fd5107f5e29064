//! Counts a daemon's system calls, if `perf` is installed and permitted.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// A count of system calls that is in progress.
#[derive(Debug)]
pub(crate) struct SyscallCounter {
    perf: Child,
}

impl SyscallCounter {
    /// Starts counting the system calls of a process; `None` if that is impossible.
    ///
    /// `perf` ends together with the command that it runs. That command is a `cat`, which echoes a
    /// byte to show that counting has begun.
    pub(crate) fn start(pid: u32) -> Option<Self> {
        let mut perf = Command::new("perf")
            .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p"])
            .args([&pid.to_string(), "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        perf.stdin.as_mut()?.write_all(b"x").ok()?;
        let started = perf.stdout.as_mut()?.read_exact(&mut [0]);
        let counter = Self { perf };
        if started.is_ok() { Some(counter) } else { counter.stop().and(None) }
    }

    /// Stops counting system calls and returns their number.
    pub(crate) fn stop(mut self) -> Option<u64> {
        drop(self.perf.stdin.take());
        let output = self.perf.wait_with_output().ok()?;
        parse(&String::from_utf8_lossy(&output.stderr))
    }
}

/// Parses the number of system calls in the output of `perf`.
fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("raw_syscalls"))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_parsed_and_an_error_is_not() {
        assert_eq!(parse("x\n29,,raw_syscalls:sys_enter,841458,100.00,,\n"), Some(29));
        assert_eq!(parse("<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
        assert_eq!(parse("event syntax error\n"), None);
    }
}
