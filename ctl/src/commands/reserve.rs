//! `reserve`: reserves jobs as a worker does, prints them, and releases, deletes or buries them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::args::ReserveArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::message::print_notice;
use crate::output::inert_body;
use crate::sweep;

/// The pause after the reply `DEADLINE_SOON`, before the next attempt to reserve a job.
const DEADLINE_PAUSE: Duration = Duration::from_millis(100);

/// Makes a connection watch only these tubes, to reserve jobs from them.
pub(crate) fn reserve_only_from(client: &mut Client, tubes: &[String]) -> Result<()> {
    for tube in tubes {
        client.ask_for(&format!("watch {tube}"), "WATCHING")?;
    }
    if !tubes.iter().any(|tube| tube == "default") {
        client.ask("ignore default")?;
    }
    Ok(())
}

/// Reserves the next job, and touches it; `None` if no job is ready within `wait`. If `wait` is
/// `None`, waits until a job is ready or a signal arrives. Also returns the instant just before the
/// touch, which has restarted the time to run. The jobs in `kept` stay reserved; the function never
/// returns one of them.
pub(crate) fn reserve_next(
    client: &mut Client,
    wait: Option<Duration>,
    kept: &[Job],
    interrupt: &Interrupt,
) -> Result<Option<(Job, Instant)>> {
    let began = Instant::now();
    loop {
        interrupt.check()?;
        // Let the server wait 1 second even if less of `wait` remains: with 0 seconds the server
        // would reply at once, again and again.
        let left = u64::from(wait.is_none_or(|wait| wait > began.elapsed()));
        let reply = client.ask(&format!("reserve-with-timeout {left}"))?;
        match (reply.word(), reply.number()) {
            // A job of `kept` had timed out, and is now reserved again: it stays in `kept`.
            ("RESERVED", Some(id)) if kept.iter().any(|job| job.id == id) => {}
            ("RESERVED", Some(id)) => {
                let job = sweep::jobs_by_ids(client, [id])?.pop();
                // Touch the job to learn whether it has timed out while this program was suspended.
                let touched = Instant::now();
                let is_ours = client.ask(&format!("touch {id}"))?.is("TOUCHED");
                let job = job.filter(|job| is_ours && touched.elapsed() < job.lease());
                if let Some(mut job) = job {
                    job.set_body(reply.body.unwrap_or_default());
                    return Ok(Some((job, touched)));
                }
                print_notice(&format!(
                    "job {id}: it has timed out, so another worker may have it: it is left alone"
                ));
            }
            ("TIMED_OUT", _) => {}
            ("DEADLINE_SOON", _) => {
                // Until the kept jobs are touched, the server replies DEADLINE_SOON at once.
                for job in kept {
                    client.ask(&format!("touch {}", job.id))?;
                }
                thread::sleep(DEADLINE_PAUSE);
            }
            _ => return Err(reply.error_for("reserve-with-timeout")),
        }
        if wait.is_some_and(|wait| began.elapsed() >= wait) {
            return Ok(None);
        }
    }
}

/// Runs `beanstalkctl reserve`.
pub(crate) fn run(args: &ReserveArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    reserve_only_from(&mut client, &args.tubes)?;
    let wait = args.wait.map(Duration::from_secs);
    let mut kept = Vec::new();
    let mut count = 0;
    while count < args.count {
        // Without --wait, the command waits only for the first job.
        let wait = wait.or((count > 0).then_some(Duration::ZERO));
        let next = reserve_next(&mut client, wait, &kept, &context.interrupt)?;
        let Some((job, _)) = next else { break };
        count += 1;
        let body = job.body.as_deref().unwrap_or_default();
        if context.out.json {
            context.out.object(job.to_json(), None)?;
        } else if args.raw {
            context.out.bytes(body)?;
        } else {
            context.out.line(&format!("{} {}: {}", job.id, job.tube, inert_body(body)))?;
        }
        // Print the job before it is deleted.
        context.out.flush()?;
        let (command, done) = if args.delete {
            (format!("delete {}", job.id), "DELETED")
        } else if args.bury {
            (format!("bury {} {}", job.id, job.pri), "BURIED")
        } else {
            kept.push(job);
            continue;
        };
        let reply = client.ask(&command)?;
        ensure!(reply.is(done), "{command}: {}: the job had timed out", reply.line);
    }
    for job in &kept {
        // A failed release does not matter: a job that has timed out is already ready.
        client.ask(&format!("release {} {} 0", job.id, job.pri))?;
    }
    if count == 0 {
        print_notice("No ready job.");
    }
    Ok(Outcome::done_if(count > 0))
}
