//! `work`: runs a command for each job, with the body on its standard input.
//!
//! If the command exits with 0, the job is deleted. Otherwise it is released, each time with twice
//! the delay, and after a number of failures it is buried. While the command runs, the job is
//! touched. After Ctrl-C the running commands may finish; a second Ctrl-C kills them and ends the
//! program, and the server releases the jobs.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGCHLD, SIGTTIN, SIGTTOU};
use signal_hook::low_level::pipe;

use super::reserve::{reserve_next, reserve_only_from};
use crate::address::Address;
use crate::args::WorkArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::message::print_notice;

/// The longest delay of a released job, in seconds.
const DELAY_SECONDS_MAX: u64 = 24 * 3600;

/// The notice after a first signal.
const INTERRUPT_NOTICE: &str =
    "waiting for running commands to end; press Ctrl-C again to kill them";

/// The fate of a job after its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Delete,
    Release(u64),
    Bury,
}

/// Runs the command.
pub(crate) fn run(args: &WorkArgs, context: &mut Context) -> Result<Outcome> {
    let (address, interrupt) = (context.server()?, &context.interrupt);
    interrupt.set_notice(INTERRUPT_NOTICE);
    let left = AtomicU64::new(args.count.unwrap_or(u64::MAX));
    let work = || {
        let result = Worker::new(args, address, interrupt).and_then(|mut it| it.run(&left));
        if result.is_err() {
            // A failure ends the other workers after their current jobs.
            interrupt.set();
        }
        result
    };
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs.get()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    Ok(Outcome::Done)
}

/// A worker with a connection of its own.
struct Worker<'a> {
    args: &'a WorkArgs,
    interrupt: &'a Interrupt,
    client: Client,
    /// Becomes readable when a command ends or stops.
    wake: UnixStream,
}

impl<'a> Worker<'a> {
    fn new(args: &'a WorkArgs, address: &Address, interrupt: &'a Interrupt) -> Result<Self> {
        let mut client = Client::connect(address)?;
        reserve_only_from(&mut client, std::slice::from_ref(&args.tube))?;
        let (wake, sender) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        pipe::register(SIGCHLD, sender)?;
        Ok(Self { args, interrupt, client, wake })
    }

    /// Works on one job after another until `left` is 0.
    fn run(&mut self, left: &AtomicU64) -> Result<()> {
        let wait = self.args.until_empty.then_some(Duration::ZERO);
        let take = |left: u64| left.checked_sub(1);
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            match reserve_next(&mut self.client, wait, &[], self.interrupt) {
                Ok(Some(job)) => self.work(&job)?,
                Ok(None) => break,
                // A signal between two jobs ends the worker cleanly.
                Err(_) if self.interrupt.is_set() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Runs the command for a job, and deletes, releases or buries the job.
    fn work(&mut self, job: &Job) -> Result<()> {
        let (is_success, end) = self.run_command(job)?;
        let releases = job.counts.map_or(0, |counts| counts[2]);
        let verdict = Self::verdict(is_success, releases, self.args.bury_after, self.args.delay);
        let (command, done) = match verdict {
            Verdict::Delete => (format!("delete {}", job.id), "deleted".to_owned()),
            Verdict::Bury => (format!("bury {} {}", job.id, job.pri), "buried".to_owned()),
            Verdict::Release(delay) => {
                let done = format!("released, ready in {delay} s");
                (format!("release {} {} {delay}", job.id, job.pri), done)
            }
        };
        let reply = self.client.ask(&command)?;
        if reply.is("NOT_FOUND") {
            print_notice(&format!(
                "job {}: {end}, but the job had timed out and was released",
                job.id
            ));
        } else if ["DELETED", "BURIED", "RELEASED"].contains(&reply.word()) {
            if !is_success {
                print_notice(&format!("job {}: {end}: {done}", job.id));
            }
        } else {
            return Err(reply.error_for(&command));
        }
        Ok(())
    }

    /// Runs the user's command for a job. Returns whether it succeeded, and how it ended.
    fn run_command(&mut self, job: &Job) -> Result<(bool, String)> {
        let (program, arguments) =
            self.args.command.split_first().context("no command is given")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        command.env("BEANSTALKD_JOB_ID", job.id.to_string());
        command.env("BEANSTALKD_JOB_TUBE", &job.tube);
        // Ctrl-C must not reach the command.
        command.process_group(0);
        let mut child = command.spawn().with_context(|| program.to_string_lossy().into_owned())?;
        let group = self.interrupt.add_process_group(&child);
        let result = self.supervise(group, child.stdin.take(), job);
        if result.is_err() {
            // The connection is lost, so the server releases the job.
            let _ = kill_process_group(group, Signal::KILL);
            while matches!(self.interrupt.process_group_status(group), Ok(None)) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        result
    }

    /// Writes the body to a command, touches its job, and waits for its end.
    fn supervise(
        &mut self,
        group: Pid,
        mut stdin: Option<ChildStdin>,
        job: &Job,
    ) -> Result<(bool, String)> {
        debug_assert_eq!(job.state, State::Reserved);
        let mut body = job.body.as_deref().unwrap_or_default();
        stdin.as_ref().map_or(Ok(()), |stdin| ioctl_fionbio(stdin, true))?;
        // A touch after each third of the time to run is early enough, and seldom enough.
        let interval = Duration::from_millis(job.ttr.unwrap_or(1).max(1).saturating_mul(1000) / 3);
        let limit = self.args.timeout.map_or(Duration::MAX, Duration::from_secs);
        let (began, mut touched) = (Instant::now(), Instant::now());
        let mut killed = None;
        loop {
            if let Some(status) = self.interrupt.process_group_status(group)? {
                match (status.stopped_signal(), killed) {
                    (None, None) => return Ok((status.success(), status.to_string())),
                    (None, Some(why)) => return Ok((false, format!("killed, because {why}"))),
                    (Some(SIGTTIN | SIGTTOU), _) => killed = Some("it uses the terminal"),
                    // It was stopped on purpose, as by SIGSTOP.
                    (Some(_), _) => {}
                }
            }
            if began.elapsed() >= limit {
                killed = killed.or(Some("it exceeded --timeout"));
            }
            if killed.is_some() {
                let _ = kill_process_group(group, Signal::KILL);
            }
            if touched.elapsed() >= interval {
                self.client.ask(&format!("touch {}", job.id))?;
                touched = Instant::now();
            }
            if body.is_empty() {
                stdin = None;
            }
            let rest = interval.saturating_sub(touched.elapsed());
            let rest = if killed.is_some() {
                rest
            } else {
                rest.min(limit.saturating_sub(began.elapsed()))
            };
            let mut events = vec![
                PollFd::new(&self.wake, PollFlags::IN),
                PollFd::from_borrowed_fd(self.client.socket(), PollFlags::IN),
            ];
            events.extend(stdin.iter().map(|stdin| PollFd::new(stdin, PollFlags::OUT)));
            Interrupt::poll(&mut events, Some(rest))?;
            let is_ready = |at: usize| events.get(at).is_some_and(|it| !it.revents().is_empty());
            let (is_heard, is_fed) = (is_ready(1), is_ready(2));
            // The next round of the loop finds the reason for the wake-up.
            while matches!((&self.wake).read(&mut [0; 64]), Ok(1..)) {}
            if is_heard {
                self.client.check_idle()?;
            }
            if let Some(pipe) = stdin.as_mut().filter(|_| is_fed) {
                match pipe.write(body) {
                    Ok(count) => body = &body[count..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // A command need not read its input.
                    Err(_) => body = &[],
                }
            }
        }
    }

    /// Decides on a job that was released this many times before.
    fn verdict(is_success: bool, releases: u64, bury_after: u64, delay: u64) -> Verdict {
        if is_success {
            return Verdict::Delete;
        }
        if releases + 1 >= bury_after {
            return Verdict::Bury;
        }
        let doublings = u32::try_from(releases.min(32)).unwrap_or(32);
        Verdict::Release(delay.saturating_mul(1 << doublings).min(DELAY_SECONDS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_delay_until_the_job_is_buried() {
        assert_eq!(Worker::verdict(true, 9, 3, 10), Verdict::Delete);
        assert_eq!(Worker::verdict(false, 0, 3, 10), Verdict::Release(10));
        assert_eq!(Worker::verdict(false, 1, 3, 10), Verdict::Release(20));
        assert_eq!(Worker::verdict(false, 2, 3, 10), Verdict::Bury);
        assert_eq!(Worker::verdict(false, 60, 99, 10), Verdict::Release(DELAY_SECONDS_MAX));
        assert_eq!(Worker::verdict(false, 0, 1, 10), Verdict::Bury);
    }
}
