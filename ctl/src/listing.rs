//! The jobs of a server, by `list-jobs` if it can tell them all, or else by the sweep over ids.

use std::collections::HashSet;
use std::ops::ControlFlow;

use anyhow::Result;

use crate::census;
use crate::client::Client;
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::sweep::{self, Coverage, Options, Take};
use crate::yaml;

/// The most jobs that one `list-jobs` tells.
const LISTED_MAX: u64 = 10_000;

/// How many bodies are in memory at once.
const BODIES: usize = 1_000;

/// Tubes, and the states of each that have jobs.
type Lists = Vec<(String, Vec<State>)>;

/// What must be known of the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What both ways tell, and the size.
    Size,
    /// All of `stats-job`.
    Stats,
    /// All of `stats-job`, and the body.
    Whole,
}

/// What to list, and how.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) filter: &'a Filter,
    pub(crate) detail: Detail,
    /// The most jobs that are wanted of a tube in a state, in the order of service.
    pub(crate) limit: Option<u64>,
    pub(crate) options: &'a Options,
    pub(crate) interrupt: &'a Interrupt,
}

/// Gives all jobs that the filter has, with their details, in batches.
pub(crate) fn list(client: &mut Client, request: &Request<'_>, take: Take<'_>) -> Result<Coverage> {
    let Request { filter, detail, options, interrupt, .. } = *request;
    let needs_body = filter.pattern.is_some() || detail == Detail::Whole;
    let mut fill = |client: &mut Client, mut jobs: Vec<Job>| {
        jobs.retain(|job| filter.has(job));
        let needs_size = detail == Detail::Size && jobs.iter().any(|job| job.size.is_none());
        while !jobs.is_empty() {
            interrupt.check()?;
            let rest = jobs.split_off(jobs.len().min(BODIES));
            if needs_body || needs_size {
                jobs = sweep::with_bodies(client, jobs)?;
                jobs.retain(|job| job.body.as_deref().is_none_or(|body| filter.has_body(body)));
            }
            if detail != Detail::Whole {
                for job in &mut jobs {
                    job.body = None;
                }
            }
            if !jobs.is_empty() && take(client, jobs)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            jobs = rest;
        }
        Ok(ControlFlow::Continue(()))
    };
    match listable(client, request)? {
        Some(lists) => {
            // Only if the filter has nothing that the server does not know.
            let limit = limit_of_server(request);
            for (tube, states) in lists {
                interrupt.check()?;
                let mut jobs = listed(client, &tube, &states, limit)?;
                if detail != Detail::Size {
                    jobs = sweep::stats_of(client, jobs.into_iter().map(|job| job.id))?;
                }
                if fill(client, jobs)?.is_break() {
                    return Ok(Coverage::Enough);
                }
            }
            Ok(Coverage::Complete)
        }
        None => sweep::sweep(client, filter, options, interrupt, &mut fill),
    }
}

/// Returns the limit if the server can keep it: it counts jobs of the filter, and the server knows
/// only tube and state.
fn limit_of_server(request: &Request<'_>) -> Option<u64> {
    let filter = request.filter;
    let filters_more = filter.older_than.is_some() || filter.pattern.is_some();
    request.limit.filter(|_| !filters_more)
}

/// Returns which lists tell all jobs that are wanted; `None` if they cannot.
fn listable(client: &mut Client, request: &Request<'_>) -> Result<Option<Lists>> {
    if !client.has("list-jobs")? {
        return Ok(None);
    }
    let filter = request.filter;
    let limit = limit_of_server(request);
    let names = census::tubes(client, &filter.tubes)?;
    let mut lists = Vec::new();
    for (tube, text) in census::tube_stats(client, &names)? {
        let mut states = Vec::new();
        for &state in filter.states() {
            let count = yaml::number(&text, &format!("current-jobs-{state}"));
            if count.min(limit.unwrap_or(u64::MAX)) > LISTED_MAX {
                return Ok(None);
            }
            if count > 0 {
                states.push(state);
            }
        }
        if !states.is_empty() {
            lists.push((tube, states));
        }
    }
    Ok(Some(lists))
}

/// Asks for the lists of a tube at once, so that hardly a job changes its state in between.
fn listed(
    client: &mut Client,
    tube: &str,
    states: &[State],
    limit: Option<u64>,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let mut known = HashSet::new();
    let limit = limit.unwrap_or(LISTED_MAX).min(LISTED_MAX);
    let write = |state: &State, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("list-jobs {tube} {state} {limit}\r\n").as_bytes());
    };
    client.pipeline(states.iter().copied(), write, |state, reply| {
        if reply.is("NOT_FOUND") {
            return Ok(());
        }
        if !reply.is("OK") {
            return Err(reply.unexpected("list-jobs"));
        }
        for item in yaml::dictionaries(&reply.into_yaml()?) {
            let job = Job::from_listed(item, tube, state)?;
            if known.insert(job.id) {
                jobs.push(job);
            }
        }
        Ok(())
    })?;
    Ok(jobs)
}
