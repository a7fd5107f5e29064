//! `work`: runs a command for each job, with the body on its standard input.
//!
//! If the command exits with 0, the job is deleted. If the command fails, the job is released with
//! a delay that doubles at each failure, and buried after `--bury-after` failures. While the
//! command runs, `work` touches the job. If a touch fails, or is not answered before the job times
//! out, another worker may have the job, so the command is ended. After Ctrl-C, `work` waits until
//! the running commands end. A second Ctrl-C kills the commands and ends the program, and the
//! server releases the jobs.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use signal_hook::consts::SIGCHLD;
use signal_hook::low_level::pipe;

use super::reserve::{reserve_next, reserve_only_from};
use super::work_command::{CommandEnd, RunningCommand};
use crate::address::Address;
use crate::args::WorkArgs;
use crate::client::{Client, Reply};
use crate::context::{Context, Outcome};
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::message::print_notice;

/// The longest delay of a released job, in seconds.
const DELAY_SECONDS_MAX: u64 = 24 * 3600;

/// How long to wait for the rest of a reply that has begun; also, how long to wait for the reply to
/// a touch that was sent late because this program was suspended.
const LATE_REPLY_TIME: Duration = Duration::from_secs(1);

/// While the reply to a touch is due, `work` checks at this interval whether the job has timed out.
const REPLY_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The notice that is printed after the first signal.
const INTERRUPT_NOTICE: &str =
    "waiting for running commands to end; press Ctrl-C again to kill them";

/// What to do with a job after its command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkVerdict {
    Delete,
    Release(u64),
    Bury,
}

/// Runs `beanstalkctl work`.
pub(crate) fn run(args: &WorkArgs, context: &mut Context) -> Result<Outcome> {
    let (address, interrupt) = (context.server()?, &context.interrupt);
    interrupt.set_notice(INTERRUPT_NOTICE);
    interrupt.catch_job_control()?;
    let left = AtomicU64::new(args.count.unwrap_or(u64::MAX));
    let work = || {
        let result = Worker::new(args, address, interrupt).and_then(|mut it| it.run(&left));
        if result.is_err() {
            // If a worker fails, the other workers end after their current jobs.
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

/// A worker, which reserves jobs over a connection of its own.
struct Worker<'a> {
    args: &'a WorkArgs,
    interrupt: &'a Interrupt,
    client: Client,
    /// The socket that becomes readable when a process of the user's command ends or is suspended.
    wake: UnixStream,
}

impl<'a> Worker<'a> {
    /// Makes a worker, with its own connection to the server.
    fn new(args: &'a WorkArgs, address: &Address, interrupt: &'a Interrupt) -> Result<Self> {
        let mut client = Client::connect(address)?;
        reserve_only_from(&mut client, std::slice::from_ref(&args.tube))?;
        let (wake, sender) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        pipe::register(SIGCHLD, sender)?;
        Ok(Self { args, interrupt, client, wake })
    }

    /// Works on one job after another, as one of the workers. Each worker decrements `left` before
    /// each job, and ends when `left` is 0.
    fn run(&mut self, left: &AtomicU64) -> Result<()> {
        let wait = self.args.until_empty.then_some(Duration::ZERO);
        let take = |left: u64| left.checked_sub(1);
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            match reserve_next(&mut self.client, wait, &[], self.interrupt) {
                Ok(Some((job, touched))) => self.work(&job, touched)?,
                Ok(None) => break,
                // A signal between two jobs ends the worker without an error.
                Err(_) if self.interrupt.is_set() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Runs the user's command for a job, and deletes, releases or buries the job.
    fn work(&mut self, job: &Job, touched: Instant) -> Result<()> {
        let Some(end) = self.run_command(job, touched)? else { return Ok(()) };
        let text = &end.text;
        let releases = job.counts.map_or(0, |counts| counts[2]);
        let verdict =
            Self::verdict(end.is_success, releases, self.args.bury_after, self.args.delay);
        let (command, done) = match verdict {
            WorkVerdict::Delete => (format!("delete {}", job.id), "deleted".to_owned()),
            WorkVerdict::Bury => (format!("bury {} {}", job.id, job.pri), "buried".to_owned()),
            WorkVerdict::Release(delay) => {
                let done = format!("released, ready in {delay} s");
                (format!("release {} {} {delay}", job.id, job.pri), done)
            }
        };
        let reply = self.client.ask(&command)?;
        if reply.is("NOT_FOUND") {
            print_notice(&format!(
                "job {}: {text}, but the job had timed out and was released",
                job.id
            ));
        } else if ["DELETED", "BURIED", "RELEASED"].contains(&reply.word()) {
            if !end.is_success {
                let error = if end.last_error.is_empty() { "" } else { "; its last error: " };
                print_notice(&format!("job {}: {text}: {done}{error}{}", job.id, end.last_error));
            }
        } else {
            return Err(reply.error_for(&command));
        }
        Ok(())
    }

    /// Reads the reply to a worker's touch. Returns false if the reservation of the job has ended.
    fn is_touched(reply: &Reply) -> Result<bool> {
        match reply.word() {
            "TOUCHED" => Ok(true),
            "NOT_FOUND" => Ok(false),
            _ => Err(reply.error_for("touch")),
        }
    }

    /// Runs the user's command for a job, and touches the job meanwhile. Returns how the command
    /// ended; `None` if the reservation ended first, so that another worker may have the job. The
    /// last confirmed touch was sent at `touched`; the reservation ends once the time to run has
    /// passed since `touched`. The loop never blocks to wait for a reply, because the server may
    /// hang for longer than the time to run.
    fn run_command(&mut self, job: &Job, mut touched: Instant) -> Result<Option<CommandEnd>> {
        let mut suspensions = self.interrupt.suspensions();
        let mut command = RunningCommand::start(&self.args.command, job, self.interrupt)?;
        // Touch the job whenever a third of its time to run has passed.
        let (lease, interval) = (job.lease(), job.lease() / 3);
        let limit = self.args.timeout.map_or(Duration::MAX, Duration::from_secs);
        let began = Instant::now();
        // When the last touch was sent; `None` if no reply to a touch is due.
        let mut asked: Option<Instant> = None;
        let (mut is_heard, mut is_stopped, mut is_lost, mut failure) = (false, false, false, None);
        loop {
            if let Some(end) = command.update()? {
                // Before other commands can be sent, the reply to the touch must be read.
                let rest = asked.and_then(|_| self.client.receive_reply().err());
                return failure.or(rest).map_or(Ok(Some(end).filter(|_| !is_lost)), Err);
            }
            let before = std::mem::replace(&mut suspensions, self.interrupt.suspensions());
            is_stopped |= before != suspensions;
            let held = match asked {
                _ if is_lost => Ok(true),
                Some(sent) if is_heard => {
                    (asked, touched) = (None, sent);
                    let reply = self.client.receive_begun_reply(LATE_REPLY_TIME);
                    reply.and_then(|reply| Self::is_touched(&reply))
                }
                Some(sent) => Ok(touched.elapsed() < lease || sent.elapsed() < LATE_REPLY_TIME),
                None if is_heard => self.client.check_idle().map(|()| true),
                None if touched.elapsed() >= interval => {
                    asked = Some(Instant::now());
                    self.client.send_command(&format!("touch {}", job.id)).map(|()| true)
                }
                None => Ok(true),
            };
            if !matches!(held, Ok(true)) {
                is_lost = true;
                failure = held.err();
                self.give_up(job, failure.is_some(), &mut command);
            }
            // If the time to run has passed, resume the command only after a confirmed touch.
            if is_stopped && (is_lost || touched.elapsed() < lease) {
                is_stopped = false;
                command.resume();
            }
            if began.elapsed() >= limit && command.is_running() {
                command.end("it exceeded --timeout");
            }
            let left = limit.saturating_sub(began.elapsed());
            let left = if left.is_zero() { interval } else { left };
            let next = match asked {
                _ if is_lost => interval,
                Some(_) => REPLY_CHECK_INTERVAL,
                None => interval.saturating_sub(touched.elapsed()),
            };
            let server = (!is_lost).then(|| self.client.socket());
            is_heard = command.wait(&self.wake, server, next.min(left))?;
            // Discard the bytes that ended the wait; the next iteration checks what has changed.
            while matches!((&self.wake).read(&mut [0; 64]), Ok(1..)) {}
        }
    }

    /// Reports that the reservation of a worker's job has ended, and ends the job's command. With
    /// `--keep-going`, ends this command only if the connection was lost.
    fn give_up(&self, job: &Job, is_disconnected: bool, command: &mut RunningCommand<'_>) {
        let why = if is_disconnected { "the connection was lost" } else { "it has timed out" };
        let is_ended = command.is_running() && (is_disconnected || !self.args.keep_going);
        let act = if is_ended { "ending its command" } else { "not ending its command" };
        print_notice(&format!("job {}: {why}, so another worker may have it: {act}", job.id));
        if is_ended {
            command.end("its job is no longer reserved");
        }
    }

    /// Decides what `work` does with a job that was released `releases` times before.
    fn verdict(is_success: bool, releases: u64, bury_after: u64, delay: u64) -> WorkVerdict {
        if is_success {
            return WorkVerdict::Delete;
        }
        if releases + 1 >= bury_after {
            return WorkVerdict::Bury;
        }
        let doublings = u32::try_from(releases.min(32)).unwrap_or(32);
        WorkVerdict::Release(delay.saturating_mul(1 << doublings).min(DELAY_SECONDS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_delay_until_the_job_is_buried() {
        assert_eq!(Worker::verdict(true, 9, 3, 10), WorkVerdict::Delete);
        assert_eq!(Worker::verdict(false, 0, 3, 10), WorkVerdict::Release(10));
        assert_eq!(Worker::verdict(false, 1, 3, 10), WorkVerdict::Release(20));
        assert_eq!(Worker::verdict(false, 2, 3, 10), WorkVerdict::Bury);
        assert_eq!(Worker::verdict(false, 60, 99, 10), WorkVerdict::Release(DELAY_SECONDS_MAX));
        assert_eq!(Worker::verdict(false, 0, 1, 10), WorkVerdict::Bury);
    }
}
