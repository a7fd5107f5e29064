//! The commands of `work`: a process group with a body as its input, until it ends or is ended.

use std::ffi::OsString;
use std::io::{self, Read as _, Stderr, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{mem, thread};

use anyhow::{Context as _, Result};
use beanstalkd::sys;
use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGTTIN, SIGTTOU};

use crate::interrupt::Interrupt;
use crate::job::Job;

/// Time from SIGTERM to SIGKILL for a command that is ended.
const KILL_DELAY: Duration = Duration::from_secs(10);

/// Interval of checks for the rest of a command: other processes, and its standard error.
const REST_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of standard error copied at once. A pipe that is writable has room for as many.
const ERROR_CHUNK_BYTES: usize = 4096;

/// The longest line of standard error in a notice, in bytes.
const ERROR_LINE_BYTES_MAX: usize = 500;

/// How a command ended.
#[derive(Debug)]
pub(super) struct CommandEnd {
    pub(super) is_success: bool,
    /// Its status, or why it was ended.
    pub(super) text: String,
    /// The last line of its standard error that is not blank.
    pub(super) last_error: String,
}

/// A command that runs, with the processes that it started.
pub(super) struct RunningCommand<'a> {
    interrupt: &'a Interrupt,
    group: Pid,
    /// `None` once the whole body is written.
    stdin: Option<ChildStdin>,
    body: &'a [u8],
    errors: ErrorOutput,
    /// The status of the command itself, whose processes may still run.
    status: Option<ExitStatus>,
    /// Why it is ended, and since when.
    ending: Option<(&'static str, Instant)>,
}

impl<'a> RunningCommand<'a> {
    /// Starts a command for a job.
    pub(super) fn start(line: &[OsString], job: &'a Job, interrupt: &'a Interrupt) -> Result<Self> {
        let (program, arguments) = line.split_first().context("no command is given")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
        command.env("BEANSTALKD_JOB_ID", job.id.to_string());
        command.env("BEANSTALKD_JOB_TUBE", &job.tube);
        sys::kill_with_parent(&mut command);
        // In a group of its own, it does not get Ctrl-C.
        let started = interrupt.spawn_group(&mut command);
        let (child, group) = started.with_context(|| program.to_string_lossy().into_owned())?;
        let (stdin, pipe) = (child.stdin, child.stderr);
        let errors = ErrorOutput {
            pipe,
            stderr: io::stderr(),
            chunk: Vec::new(),
            is_empty: false,
            line: Vec::new(),
            last: Vec::new(),
        };
        let body = job.body.as_deref().unwrap_or_default();
        let command = Self { interrupt, group, stdin, body, errors, status: None, ending: None };
        command.stdin.as_ref().map_or(Ok(()), |pipe| ioctl_fionbio(pipe, true))?;
        command.errors.pipe.as_ref().map_or(Ok(()), |pipe| ioctl_fionbio(pipe, true))?;
        Ok(command)
    }

    /// Whether the command itself still runs.
    pub(super) fn is_running(&self) -> bool {
        self.status.is_none()
    }

    /// Sends SIGTERM, and SIGKILL after [`KILL_DELAY`]; only the first reason counts.
    pub(super) fn end(&mut self, why: &'static str) {
        if self.ending.is_none() {
            self.ending = Some((why, Instant::now()));
            let _ = kill_process_group(self.group, Signal::TERM);
            // A stopped process would receive it only then.
            self.resume();
        }
    }

    /// Continues the command after a stop.
    pub(super) fn resume(&self) {
        let _ = kill_process_group(self.group, Signal::CONT);
    }

    /// Returns the time left until SIGKILL; `None` if it is not ended.
    fn kill_wait(&self) -> Option<Duration> {
        self.ending.map(|(_, began)| KILL_DELAY.saturating_sub(began.elapsed()))
    }

    /// Passes on what can be passed on at once. Returns the end once nothing of it is left.
    pub(super) fn update(&mut self) -> io::Result<Option<CommandEnd>> {
        if self.status.is_none() {
            self.status = self.interrupt.process_group_status(self.group)?;
        }
        if let Some(signal) = self.status.and_then(|status| status.stopped_signal()) {
            self.status = None;
            // Other signals stop it on purpose, as SIGSTOP does.
            if matches!(signal, SIGTTIN | SIGTTOU) {
                self.end("it uses the terminal");
            }
        }
        let is_late = self.kill_wait() == Some(Duration::ZERO);
        if is_late {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        if let Some(pipe) = &mut self.stdin {
            match pipe.write(self.body) {
                Ok(count) => self.body = &self.body[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A command need not read its input.
                Err(_) => self.body = &[],
            }
        }
        if self.body.is_empty() {
            self.stdin = None;
        }
        self.errors.copy_chunk();
        let Some(status) = self.status else { return Ok(None) };
        let is_over =
            self.ending.is_none() || is_late || test_kill_process_group(self.group).is_err();
        if !(is_over && self.errors.is_drained()) {
            return Ok(None);
        }
        let why = self.ending.map(|(why, _)| format!("killed, because {why}"));
        let is_success = status.success() && why.is_none();
        let text = why.unwrap_or_else(|| status.to_string());
        Ok(Some(CommandEnd { is_success, text, last_error: self.errors.finish() }))
    }

    /// Waits until [`Self::update`] has something to do, or `wake` or `server` is readable; at most
    /// for `limit`. Returns whether `server` is readable.
    pub(super) fn wait(
        &self,
        wake: &UnixStream,
        server: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> io::Result<bool> {
        let limit = match (self.status, self.kill_wait()) {
            (Some(_), _) => limit.min(REST_CHECK_INTERVAL),
            (None, Some(wait)) if !wait.is_zero() => limit.min(wait),
            (None, _) => limit,
        };
        let mut events = vec![PollFd::new(wake, PollFlags::IN)];
        events.extend(self.stdin.iter().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        events.extend(self.errors.event());
        events.extend(server.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        Interrupt::poll(&mut events, Some(limit))?;
        let last = events.last().filter(|_| server.is_some());
        Ok(last.is_some_and(|server| !server.revents().is_empty()))
    }
}

impl Drop for RunningCommand<'_> {
    /// Kills a command that has not ended, after an error.
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = kill_process_group(self.group, Signal::KILL);
            while matches!(self.interrupt.process_group_status(self.group), Ok(None)) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The standard error of a command, which is copied to ours.
struct ErrorOutput {
    /// `None` once it has ended.
    pipe: Option<ChildStderr>,
    stderr: Stderr,
    /// Bytes read but not yet written.
    chunk: Vec<u8>,
    /// Whether the last read found no bytes.
    is_empty: bool,
    /// The line being read.
    line: Vec<u8>,
    /// The last line before it that is not blank.
    last: Vec<u8>,
}

impl ErrorOutput {
    /// Copies a chunk, if that needs no wait: no job is touched during a wait.
    fn copy_chunk(&mut self) {
        if let Some(pipe) = self.pipe.as_mut().filter(|_| self.chunk.is_empty()) {
            let mut buffer = [0; ERROR_CHUNK_BYTES];
            let read = pipe.read(&mut buffer);
            self.is_empty = read.is_err();
            if matches!(read, Ok(0)) {
                self.pipe = None;
            }
            self.chunk.extend(&buffer[..read.unwrap_or(0)]);
            for byte in &self.chunk {
                match byte {
                    b'\n' if self.line.trim_ascii().is_empty() => self.line.clear(),
                    b'\n' => self.last = mem::take(&mut self.line),
                    _ if self.line.len() < ERROR_LINE_BYTES_MAX => self.line.push(*byte),
                    _ => {}
                }
            }
        }
        let mut events = [PollFd::new(&self.stderr, PollFlags::OUT)];
        // If standard error is closed, there is no other place to report it.
        let _ = Interrupt::poll(&mut events, Some(Duration::ZERO));
        if !self.chunk.is_empty() && !events[0].revents().is_empty() {
            let _ = self.stderr.lock().write_all(&self.chunk);
            self.chunk.clear();
        }
    }

    /// Returns the event after which [`Self::copy_chunk`] has something to do.
    fn event(&self) -> Option<PollFd<'_>> {
        if self.chunk.is_empty() {
            return self.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN));
        }
        Some(PollFd::new(&self.stderr, PollFlags::OUT))
    }

    /// Whether nothing is left that an ended command wrote.
    fn is_drained(&self) -> bool {
        self.chunk.is_empty() && (self.is_empty || self.pipe.is_none())
    }

    /// Returns the last line. A process that outlives the command may write on.
    fn finish(&mut self) -> String {
        if let Some(mut pipe) = self.pipe.take() {
            let _ = ioctl_fionbio(&pipe, false);
            thread::spawn(move || io::copy(&mut pipe, &mut io::stderr()));
        }
        let last = if self.line.trim_ascii().is_empty() { &self.last } else { &self.line };
        String::from_utf8_lossy(last.trim_ascii()).into_owned()
    }
}
