//! Lists the jobs of any server: by `list-jobs` if that command can list all jobs, or by a sweep.

use std::collections::HashSet;
use std::ops::ControlFlow;

use anyhow::Result;

use crate::client::Client;
use crate::filter::{Filter, Tubes};
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::progress::Pacer;
use crate::statistics;
use crate::sweep::{self, Coverage, Options, Visit};
use crate::yaml;

/// The largest number of jobs that one `list-jobs` returns.
pub(crate) const LISTED_JOBS_MAX: u64 = 10_000;

/// The longest line of a command, without CR LF, in bytes.
const COMMAND_BYTES_MAX: usize = 222;

/// The largest number of bodies in memory at once.
const BODIES_MAX: usize = 1_000;

/// Tubes, each with the states in which it has jobs.
type Lists = Vec<(String, Vec<State>)>;

/// Which fields of jobs to fill in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The fields that both `list-jobs` and `stats-job` have.
    Listed,
    /// The fields of [`Detail::Listed`], and the size.
    Size,
    /// All fields of `stats-job`, and the body.
    Whole,
}

/// A request to list jobs.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) filter: &'a Filter,
    pub(crate) detail: Detail,
    /// If set, only the first jobs of each tube and state are needed, up to this number of jobs.
    pub(crate) limit: Option<u64>,
    pub(crate) options: &'a Options,
    pub(crate) interrupt: &'a Interrupt,
}

impl Request<'_> {
    /// Returns the limit to send to the server. If the filter has conditions other than tube and
    /// state, returns no limit, because the filter might drop some of the jobs that the server
    /// lists.
    fn limit(&self) -> Option<u64> {
        self.limit.filter(|_| self.filter.is_by_state())
    }
}

/// Passes to `take`, in batches, all jobs that the filter selects, each with the requested fields.
pub(crate) fn list_jobs(
    client: &mut Client,
    request: &Request<'_>,
    take: Visit<'_>,
) -> Result<Coverage> {
    let Request { filter, detail, options, interrupt, .. } = *request;
    let mut pacer = Pacer::new(options.rate);
    let mut fill = |client: &mut Client, jobs| fill_jobs(client, request, jobs, &mut pacer, take);
    let Some(lists) = complete_lists(client, request)? else {
        return sweep::sweep(client, filter, options, interrupt, &mut fill);
    };
    let mut coverage = Coverage::Complete;
    for (tube, states) in lists {
        interrupt.check()?;
        let Some(mut jobs) = request_lists(client, &tube, &states, request.limit())? else {
            // Sweep the tube: it has become too large for one list since its jobs were counted.
            let one = Filter { tubes: Tubes::of_name(&tube), ..filter.clone() };
            let found = sweep::sweep(client, &one, options, interrupt, &mut fill)?;
            if found == Coverage::Stopped {
                return Ok(found);
            }
            coverage = if coverage == Coverage::Complete { found } else { coverage };
            continue;
        };
        if detail == Detail::Whole {
            jobs = sweep::jobs_by_ids(client, jobs.into_iter().map(|job| job.id))?;
        }
        if fill(client, jobs)?.is_break() {
            return Ok(Coverage::Stopped);
        }
    }
    Ok(coverage)
}

/// Passes to `take`, in batches, the listed `jobs` that the filter selects. First fetches the
/// bodies of a batch, if the filter or the requested fields need bodies.
fn fill_jobs(
    client: &mut Client,
    request: &Request<'_>,
    mut jobs: Vec<Job>,
    pacer: &mut Pacer,
    take: Visit<'_>,
) -> Result<ControlFlow<()>> {
    let Request { filter, detail, interrupt, .. } = *request;
    jobs.retain(|job| filter.matches(job));
    let needs_size = detail == Detail::Size && jobs.iter().any(|job| job.size.is_none());
    let has_bodies = needs_size || filter.pattern.is_some() || detail == Detail::Whole;
    while !jobs.is_empty() {
        interrupt.check()?;
        let most = if has_bodies {
            client.bodies_at_once(usize::try_from(pacer.batch_size(BODIES_MAX as u64))?)?
        } else {
            jobs.len()
        };
        let rest = jobs.split_off(jobs.len().min(most));
        if has_bodies {
            pacer.pace(jobs.len() as u64);
            jobs = sweep::peek_bodies(client, jobs)?;
            jobs.retain(|job| job.body.as_deref().is_none_or(|body| filter.matches_body(body)));
        }
        for job in jobs.iter_mut().filter(|_| detail != Detail::Whole) {
            job.body = None;
        }
        if !jobs.is_empty() && take(client, jobs)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        jobs = rest;
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the tubes and states of all requested jobs; `None` if `list-jobs` cannot list all jobs.
fn complete_lists(client: &mut Client, request: &Request<'_>) -> Result<Option<Lists>> {
    if !client.has_extension("list-jobs")? {
        return Ok(None);
    }
    let filter = request.filter;
    let names = statistics::tube_names(client, &filter.tubes)?;
    let mut lists = Vec::new();
    for (tube, text) in statistics::tube_stats(client, &names)? {
        let mut states = Vec::new();
        for &state in filter.states() {
            let count = yaml::number(&text, &format!("current-jobs-{state}"));
            let is_cut = count.min(request.limit().unwrap_or(u64::MAX)) > LISTED_JOBS_MAX;
            if is_cut || !fits_list_jobs_command(&tube, state) {
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

/// Makes the line of a `list-jobs` command.
fn list_jobs_command(tube: &str, state: State, limit: u64) -> String {
    format!("list-jobs {tube} {state} {limit}")
}

/// Whether a `list-jobs` command for this tube is short enough for a line of the protocol.
pub(crate) fn fits_list_jobs_command(tube: &str, state: State) -> bool {
    list_jobs_command(tube, state, LISTED_JOBS_MAX).len() <= COMMAND_BYTES_MAX
}

/// Requests a list of a tube's jobs for each of `states`, all at once, so that hardly any job
/// changes its state between two lists. Returns `None` if a list is full, because the tube may have
/// more jobs.
pub(crate) fn request_lists(
    client: &mut Client,
    tube: &str,
    states: &[State],
    limit: Option<u64>,
) -> Result<Option<Vec<Job>>> {
    let is_cut = limit.is_none_or(|limit| limit > LISTED_JOBS_MAX);
    let mut is_full = false;
    let mut jobs = Vec::new();
    let mut known = HashSet::new();
    let limit = limit.unwrap_or(LISTED_JOBS_MAX).min(LISTED_JOBS_MAX);
    let line = |state: &State| list_jobs_command(tube, *state, limit);
    client.yaml_of_each(states.iter().copied(), line, |state, text| {
        is_full |= is_cut && yaml::dictionaries(&text).count() as u64 >= LISTED_JOBS_MAX;
        for item in yaml::dictionaries(&text) {
            let job = Job::from_listed(item, tube, state)?;
            if known.insert(job.id) {
                jobs.push(job);
            }
        }
        Ok(())
    })?;
    Ok((!is_full).then_some(jobs))
}
