//! The commands that `work` runs: each is a process group and gets a job's body on standard input.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
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

/// The time from SIGTERM to SIGKILL when `work` ends a command.
const KILL_DELAY: Duration = Duration::from_secs(10);

/// After a command has ended, this is the interval at which to check whether its standard error is
/// closed and the processes that it started have ended.
const REST_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait for the end of a command's standard error, which its processes may keep open.
const COPY_TIME_LIMIT: Duration = Duration::from_secs(1);

/// A notice quotes at most this many bytes of a line that the command wrote to standard error.
const ERROR_LINE_BYTES_MAX: usize = 500;

/// How a command ended.
#[derive(Debug)]
pub(super) struct CommandEnd {
    pub(super) is_success: bool,
    /// The exit status or, if `work` ended the command, the reason.
    pub(super) text: String,
    /// The last line of the command's standard error that is not blank.
    pub(super) last_error: String,
}

/// A command that runs, with the processes that it started.
pub(super) struct RunningCommand<'a> {
    interrupt: &'a Interrupt,
    group: Pid,
    /// The command's standard input; `None` once the whole body is written.
    stdin: Option<ChildStdin>,
    body: &'a [u8],
    /// The thread that copies the command's standard error to the standard error of `work`.
    copier: JoinHandle<()>,
    lines: LastLines,
    /// The status of the command itself; processes that it started may still run.
    status: Option<ExitStatus>,
    ended: Option<Instant>,
    /// The reason why `work` ends the command, and the time when `work` sent SIGTERM.
    ending: Option<(&'static str, Instant)>,
}

impl<'a> RunningCommand<'a> {
    /// Starts the command of `work` for a job.
    pub(super) fn start(line: &[OsString], job: &'a Job, interrupt: &'a Interrupt) -> Result<Self> {
        let (program, arguments) = line.split_first().context("no command is given")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
        command.env("BEANSTALKD_JOB_ID", job.id.to_string());
        command.env("BEANSTALKD_JOB_TUBE", &job.tube);
        sys::kill_with_parent(&mut command);
        // In a process group of its own, the command gets no SIGINT from Ctrl-C.
        let started = interrupt.spawn_group(&mut command);
        let (child, group) = started.with_context(|| program.to_string_lossy().into_owned())?;
        let (stdin, pipe) = (child.stdin, child.stderr.context("it is a pipe")?);
        let lines = LastLines::default();
        let written = Arc::clone(&lines);
        let copier = thread::spawn(move || copy_errors(pipe, &written));
        let body = job.body.as_deref().unwrap_or_default();
        let (status, ended, ending) = (None, None, None);
        let command = Self { interrupt, group, stdin, body, copier, lines, status, ended, ending };
        command.stdin.as_ref().map_or(Ok(()), |pipe| ioctl_fionbio(pipe, true))?;
        Ok(command)
    }

    /// Whether the command for the job still runs; processes that this command has started do not
    /// count.
    pub(super) fn is_running(&self) -> bool {
        self.status.is_none()
    }

    /// Ends the command of `work` by SIGTERM, and after [`KILL_DELAY`] by SIGKILL. Later calls do
    /// nothing.
    pub(super) fn end(&mut self, why: &'static str) {
        if self.ending.is_none() {
            self.ending = Some((why, Instant::now()));
            let _ = kill_process_group(self.group, Signal::TERM);
            // A suspended process receives SIGTERM only after SIGCONT.
            self.resume();
        }
    }

    /// Resumes a suspended command of `work`.
    pub(super) fn resume(&self) {
        let _ = kill_process_group(self.group, Signal::CONT);
    }

    /// Returns the time until SIGKILL; `None` if the command of `work` is not being ended.
    fn kill_wait(&self) -> Option<Duration> {
        self.ending.map(|(_, began)| KILL_DELAY.saturating_sub(began.elapsed()))
    }

    /// Finds out whether the command for the job has ended, and writes more of the body to its
    /// standard input. Returns how the command ended; `None` if it has not ended. Never blocks.
    pub(super) fn update(&mut self) -> io::Result<Option<CommandEnd>> {
        if self.status.is_none() {
            self.status = self.interrupt.process_group_status(self.group)?;
        }
        if let Some(signal) = self.status.and_then(|status| status.stopped_signal()) {
            self.status = None;
            // Signals such as SIGSTOP were sent on purpose: the command stays suspended.
            if matches!(signal, SIGTTIN | SIGTTOU) {
                self.end("it tried to use the terminal");
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
                // A failed write is ignored, because a command need not read its input.
                Err(_) => self.body = &[],
            }
        }
        if self.body.is_empty() {
            self.stdin = None;
        }
        let Some(status) = self.status else { return Ok(None) };
        let is_over =
            self.ending.is_none() || is_late || test_kill_process_group(self.group).is_err();
        let ended = self.ended.get_or_insert_with(Instant::now);
        let is_copied = self.copier.is_finished() || ended.elapsed() >= COPY_TIME_LIMIT;
        if !(is_over && is_copied) {
            return Ok(None);
        }
        let why = self.ending.map(|(why, _)| format!("killed, because {why}"));
        let is_success = status.success() && why.is_none();
        let text = why.unwrap_or_else(|| status.to_string());
        let [last, line] = &*self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = if line.trim_ascii().is_empty() { last } else { line };
        let last_error = String::from_utf8_lossy(line.trim_ascii()).into_owned();
        Ok(Some(CommandEnd { is_success, text, last_error }))
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
        events.extend(server.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        Interrupt::poll(&mut events, Some(limit))?;
        let last = events.last().filter(|_| server.is_some());
        Ok(last.is_some_and(|server| !server.revents().is_empty()))
    }
}

impl Drop for RunningCommand<'_> {
    /// Kills the command if it still runs, for example after an error of `work`.
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = kill_process_group(self.group, Signal::KILL);
            while matches!(self.interrupt.process_group_status(self.group), Ok(None)) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The last line of standard error that is not blank, and the unfinished line at the end.
type LastLines = Arc<Mutex<[Vec<u8>; 2]>>;

/// Copies the standard error of a command to the standard error of `work`. Runs in a thread of its
/// own, because a write may block, and the job must be touched meanwhile.
fn copy_errors(mut pipe: ChildStderr, lines: &Mutex<[Vec<u8>; 2]>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        // If the standard error of `work` is closed, a failure cannot be reported.
        let _ = io::stderr().write_all(&buffer[..count]);
        let [last, line] = &mut *lines.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in &buffer[..count] {
            match byte {
                b'\n' if line.trim_ascii().is_empty() => line.clear(),
                b'\n' => *last = mem::take(line),
                _ if line.len() < ERROR_LINE_BYTES_MAX => line.push(*byte),
                _ => {}
            }
        }
    }
}
