//! `work`: a command for each job, with the body on its standard input.
//!
//! The exit status decides: 0 deletes the job, any other releases it, each time with twice the
//! delay, and buries it after some failures. While the command runs, the job is touched. After
//! Ctrl-C the running command ends in peace; a second Ctrl-C ends the program, and the server gets
//! the job back.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::reserve::{next, watch};
use crate::cli::WorkArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, tell};
use crate::job::{Job, State};

/// The pause between two looks at a running command.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The longest delay of a released job, in seconds.
const DELAY_MAX: u64 = 24 * 3600;

/// What comes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Delete,
    Release(u64),
    Bury,
}

/// Judges a job that has been released so often before.
fn verdict(is_success: bool, releases: u64, bury_after: u64, delay: u64) -> Verdict {
    if is_success {
        return Verdict::Delete;
    }
    if releases + 1 >= bury_after {
        return Verdict::Bury;
    }
    let doublings = u32::try_from(releases.min(32)).unwrap_or(32);
    Verdict::Release(delay.saturating_mul(1 << doublings).min(DELAY_MAX))
}

/// Runs the command.
pub(crate) fn run(args: &WorkArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    watch(&mut client, std::slice::from_ref(&args.tube))?;
    let mut count = 0;
    let wait = args.until_empty.then_some(Duration::ZERO);
    while args.count.is_none_or(|most| count < most) {
        let job = match next(&mut client, wait, &context.interrupt) {
            Ok(Some(job)) => job,
            Ok(None) => break,
            // Between two jobs Ctrl-C is the orderly end.
            Err(_) if context.interrupt.is_set() => break,
            Err(error) => return Err(error),
        };
        count += 1;
        let status = work(&mut client, args, &job)?;
        let releases = job.counts.map_or(0, |counts| counts[2]);
        let verdict = verdict(status.success(), releases, args.bury_after, args.delay);
        let (command, done) = match verdict {
            Verdict::Delete => (format!("delete {}", job.id), "deleted".to_owned()),
            Verdict::Bury => (format!("bury {} {}", job.id, job.pri), "buried".to_owned()),
            Verdict::Release(delay) => {
                let done = format!("released, again in {delay} s");
                (format!("release {} {} {delay}", job.id, job.pri), done)
            }
        };
        let reply = client.ask(&command)?;
        if reply.is("NOT_FOUND") {
            tell(&format!("job {}: {status}; its time was over, and others have it", job.id));
        } else if ["DELETED", "BURIED", "RELEASED"].contains(&reply.word()) {
            if !status.success() {
                tell(&format!("job {}: {status}: {done}", job.id));
            }
        } else {
            return Err(reply.unexpected(&command));
        }
    }
    Ok(Outcome::Done)
}

/// Runs the user's command for a job.
fn work(client: &mut Client, args: &WorkArgs, job: &Job) -> Result<ExitStatus> {
    let (program, arguments) = args.command.split_first().context("there is no command")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    command.env("BEANSTALKD_JOB_ID", job.id.to_string()).env("BEANSTALKD_JOB_TUBE", &job.tube);
    // Ctrl-C is for us alone.
    command.process_group(0);
    let mut child = command.spawn().with_context(|| program.to_string_lossy().into_owned())?;
    let stdin = child.stdin.take();
    let body = job.body.as_deref().unwrap_or_default();
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            // A command need not read its input.
            stdin.map(|mut stdin| stdin.write_all(body))
        });
        wait(client, job, &mut child)
    });
    if result.is_err() {
        // The server is lost, and gives the job to others.
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

/// Waits for the end of a command and touches its job meanwhile.
fn wait(client: &mut Client, job: &Job, child: &mut Child) -> Result<ExitStatus> {
    debug_assert_eq!(job.state, State::Reserved);
    // A third of the time to run is early enough, and seldom.
    let interval = Duration::from_millis(job.ttr.unwrap_or(1).max(1).saturating_mul(1000) / 3);
    let mut touched = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(POLL_INTERVAL);
        if touched.elapsed() >= interval {
            client.ask(&format!("touch {}", job.id))?;
            touched = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_delay_until_the_job_is_buried() {
        assert_eq!(verdict(true, 9, 3, 10), Verdict::Delete);
        assert_eq!(verdict(false, 0, 3, 10), Verdict::Release(10));
        assert_eq!(verdict(false, 1, 3, 10), Verdict::Release(20));
        assert_eq!(verdict(false, 2, 3, 10), Verdict::Bury);
        assert_eq!(verdict(false, 60, 99, 10), Verdict::Release(DELAY_MAX));
        assert_eq!(verdict(false, 0, 1, 10), Verdict::Bury);
    }
}
