//! `job`: shows jobs by their ids, with their bodies.

use std::collections::HashSet;

use anyhow::Result;

use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
use crate::input;
use crate::job::{COUNT_NAMES, Job, State};
use crate::message::{counted, print_notice};
use crate::output::inert_body;
use crate::sweep;

/// Runs `beanstalkctl job`.
pub(crate) fn run(ids: &[String], is_raw: bool, context: &mut Context) -> Result<Outcome> {
    let ids = input::read_ids(ids, &context.interrupt)?;
    let work = move |client: &mut Client, send: Sender<'_, _>| {
        let jobs = sweep::jobs_by_ids(client, ids.iter().copied())?;
        let jobs = sweep::peek_bodies(client, jobs)?;
        let known: HashSet<u64> = jobs.iter().map(|job| job.id).collect();
        send(jobs)?;
        for id in ids.iter().filter(|id| !known.contains(id)) {
            print_notice(&format!("beanstalkctl: {}: there is no job {id}", client.address()));
        }
        Ok(Outcome::done_if(known.len() == ids.len()))
    };
    context.each_server(work, |context, server, jobs: Vec<Job>| {
        let label = context.label(server);
        for job in &jobs {
            let body = job.body.as_deref().unwrap_or_default();
            if is_raw {
                context.out.bytes(body)?;
                continue;
            }
            if context.out.json {
                context.out.object(job.to_json(), label.as_deref())?;
                continue;
            }
            let mut show = |key: &str, value: &str| context.out.line(&format!("{key:<10} {value}"));
            if let Some(server) = &label {
                show("server", server)?;
            }
            show("id", &job.id.to_string())?;
            show("tube", &job.tube)?;
            show("state", job.state.word())?;
            show("pri", &job.pri.to_string())?;
            show("age", &format!("{} s", job.age))?;
            if matches!(job.state, State::Delayed | State::Reserved) {
                show("time left", &format!("{} s", job.time_left))?;
            }
            show("ttr", &format!("{} s", job.ttr.unwrap_or_default()))?;
            for (name, count) in COUNT_NAMES.iter().zip(job.counts.iter().flatten()) {
                show(name, &count.to_string())?;
            }
            show("size", &counted(body.len() as u64, "byte"))?;
            show("body", &inert_body(body))?;
        }
        Ok(())
    })
}
