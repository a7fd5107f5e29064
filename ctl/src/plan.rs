//! The plan of an action: the jobs that the action is allowed to change.
//!
//! An action finds its jobs, shows their number, asks the user, and then changes only these jobs:
//!
//! - An id refers to the same job only within one [`Instance`] of a server. A command uses one
//!   connection, and so one instance, from plan to end. The web page uses several connections, so
//!   it checks that all of them lead to the same instance.
//! - Just before its change, a job must still match the filter, and have its planned state. A
//!   delayed job may have become ready, because its delay has ended. After this check, another
//!   client may still change the job.
//! - Jobs are in order of service, so copies are served in the same order as the copied jobs. Ready
//!   jobs are ordered by priority and id, and delayed jobs by the time until they are ready. Buried
//!   jobs are in order of burial if the server lists that order, otherwise in order of id.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::listing::{Detail, Request, list_jobs};
use crate::message::{conflict, counted};
use crate::progress::Progress;
use crate::sweep::{self, Coverage, Options};
use crate::yaml;

/// A question before an action names at most this many tubes.
const NAMED_TUBES_MAX: usize = 10;

/// One run of a server, identified by the server's pid and random id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Instance(String);

impl Instance {
    /// Reads from the dictionary of `stats` the pid and the random id of the server's process. Old
    /// releases report a pid, but no random id.
    pub(crate) fn from_stats(stats: &str) -> Self {
        let parts = ["pid", "id"].map(|key| yaml::value(stats, key).unwrap_or_default());
        Self(parts.join(" "))
    }

    /// Fails if the client is connected to another instance, where an id may mean another job.
    pub(crate) fn check(&self, now: &Self, client: &Client) -> Result<()> {
        let text = "the server was restarted, so ids may mean other jobs now: list the jobs again";
        ensure!(self == now, conflict(format!("{}: {text}", client.address())));
        Ok(())
    }
}

/// Numbers of jobs by state and by tube, shown as `3 jobs: 2 ready, 1 buried, in the tube a`.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    states: BTreeMap<State, u64>,
    pub(crate) tubes: BTreeMap<String, u64>,
}

impl Summary {
    /// Adds `count` jobs of a tube and a state to the sums of the plan.
    pub(crate) fn add(&mut self, tube: &str, state: State, count: u64) {
        let sum = self.states.entry(state).or_default();
        *sum = sum.saturating_add(count);
        if let Some(sum) = self.tubes.get_mut(tube) {
            *sum = sum.saturating_add(count);
        } else {
            self.tubes.insert(tube.to_owned(), count);
        }
    }

    /// Returns the plan's numbers of jobs by state as text, such as `2 ready, 1 buried`.
    fn by_state(&self) -> String {
        let shown = self.states.iter().map(|(state, count)| format!("{count} {state}"));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Returns the states in which the plan has jobs.
    pub(crate) fn states(&self) -> Vec<State> {
        self.states.keys().copied().collect()
    }

    /// Returns the number of the plan's jobs in all tubes.
    pub(crate) fn count(&self) -> u64 {
        self.tubes.values().copied().fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Summary {
    /// Formats the number of the plan's jobs, their states and their tubes, for the question that
    /// asks for consent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.tubes.keys().map(String::as_str).collect();
        write!(f, "{}: ", counted(self.count(), "job"))?;
        match names[..] {
            [] => f.write_str("none"),
            [name] => write!(f, "{}, in the tube {name}", self.by_state()),
            _ => {
                let shown = names[..names.len().min(NAMED_TUBES_MAX)].join(", ");
                write!(f, "{}, in {} tubes: {shown}", self.by_state(), names.len())?;
                let others = names.len().saturating_sub(NAMED_TUBES_MAX);
                if others > 0 { write!(f, ", and {others} more") } else { Ok(()) }
            }
        }
    }
}

/// If a batch takes longer than this, the next batch is smaller, so that other clients have less
/// time to change a job after this program has checked the job.
const BATCH_TIME_MAX: Duration = Duration::from_secs(2);

/// A position in the order of service: the rank of the state, and a number within that rank.
type Place = (u8, u32);

/// A planned job: its position in the order of service, and its id.
pub(crate) type PlannedJob = (Place, u64);

/// Returns the rank of a state: jobs in the state with the lowest rank are served first.
fn rank(state: State) -> u8 {
    // A reserved job has the rank of a ready job, because it was ready before its reservation.
    if state == State::Reserved { State::Ready as u8 } else { state as u8 }
}

/// The jobs that an action is allowed to change. Only the position and id of each job are kept,
/// because a plan can have millions of jobs.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// For each job, its position in the order of service and its id.
    jobs: Vec<PlannedJob>,
    /// A job is changed only if it still matches this filter.
    pub(crate) filter: Filter,
    pub(crate) summary: Summary,
}

impl Plan {
    /// Makes a plan for these jobs.
    fn of(jobs: &[Job], filter: Filter) -> Self {
        let mut plan = Self { filter, ..Self::default() };
        plan.add(jobs);
        plan.jobs.sort_unstable();
        plan
    }

    /// Makes a plan for the jobs that have these distinct ids and are in one of these states. Also
    /// returns sentences about ids without a job, and about jobs in other states.
    pub(crate) fn of_ids(
        client: &mut Client,
        ids: &[u64],
        states: &[State],
    ) -> Result<(Self, Vec<String>)> {
        let found = sweep::jobs_by_ids(client, ids.iter().copied())?;
        let mut others = Vec::new();
        let missing = ids.len() - found.len();
        if missing > 0 {
            others.push(format!("Not found: {missing} of {}.", counted(ids.len() as u64, "id")));
        }
        let filter = Filter { states: states.to_vec(), ..Filter::default() };
        let (jobs, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|job| filter.matches(job));
        if !rest.is_empty() {
            let rest = Self::of(&rest, Filter::default());
            others.push(format!("Left unchanged: {}.", rest.summary.by_state()));
        }
        Ok((Self::of(&jobs, filter), others))
    }

    /// Makes a plan for all jobs that the filter matches, and returns whether jobs may be missing.
    pub(crate) fn find(
        client: &mut Client,
        filter: Filter,
        options: &Options,
        interrupt: &Interrupt,
    ) -> Result<(Self, Coverage)> {
        let mut plan = Self::default();
        let (filter_ref, detail) = (&filter, Detail::Listed);
        let request = Request { filter: filter_ref, detail, limit: None, options, interrupt };
        let coverage = list_jobs(client, &request, &mut |_, jobs| {
            plan.add(&jobs);
            Ok(ControlFlow::Continue(()))
        })?;
        plan.jobs.sort_unstable();
        plan.jobs.shrink_to_fit();
        plan.filter = filter;
        Ok((plan, coverage))
    }

    /// Adds jobs to the plan.
    fn add(&mut self, jobs: &[Job]) {
        for job in jobs {
            let place = match job.state {
                State::Ready | State::Reserved => job.pri,
                State::Delayed => u32::try_from(job.time_left).unwrap_or(u32::MAX),
                // A buried job without counters comes from `list-jobs`, which lists buried jobs in
                // order of burial.
                State::Buried if job.counts.is_some() => 0,
                State::Buried => u32::try_from(self.jobs.len()).unwrap_or(u32::MAX),
            };
            self.jobs.push(((rank(job.state), place), job.id));
            self.summary.add(&job.tube, job.state, 1);
        }
    }

    /// Returns the number of the plan's jobs.
    pub(crate) fn count(&self) -> u64 {
        self.jobs.len() as u64
    }

    /// Returns the size of the plan's list of jobs, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.jobs.capacity() * size_of::<PlannedJob>()
    }

    /// Returns the ids of the plan's jobs in order of service.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.jobs.iter().map(|&(_, id)| id)
    }

    /// Keeps only the first `count` jobs of the plan, or all jobs if they have different states.
    /// The jobs must be in one tube.
    pub(crate) fn truncate(&mut self, count: u64) {
        let (tubes, states) = (&self.summary.tubes, self.summary.states());
        let ([state], Some(tube)) = (&states[..], tubes.keys().next().cloned()) else { return };
        self.jobs.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        self.summary = Summary::default();
        self.summary.add(&tube, *state, self.jobs.len() as u64);
    }

    /// Passes the plan's jobs to `take` in batches of at most `most`, in order of service. After an
    /// interrupt, such as Ctrl-C, no further batch starts.
    pub(crate) fn each_batch(
        &self,
        most: usize,
        progress: &Progress,
        interrupt: &Interrupt,
        mut take: impl FnMut(&[PlannedJob]) -> Result<()>,
    ) -> Result<()> {
        let (mut rest, mut size) = (&self.jobs[..], most);
        while !rest.is_empty() {
            interrupt.check()?;
            let (batch, others) = rest.split_at(size.min(rest.len()));
            let began = Instant::now();
            progress.add(batch.len() as u64);
            take(batch)?;
            let is_slow = began.elapsed() > BATCH_TIME_MAX;
            (rest, size) = (others, if is_slow { size / 2 } else { size * 2 }.clamp(1, most));
        }
        Ok(())
    }

    /// Makes a plan with this number of jobs, for tests.
    #[cfg(test)]
    pub(crate) fn of_count(count: u64) -> Self {
        Self { jobs: (0..count).map(|id| ((0, 0), id)).collect(), ..Self::default() }
    }

    /// Reads a batch of the plan's jobs, and drops those that other clients have deleted or
    /// changed.
    pub(crate) fn unchanged_jobs(
        &self,
        client: &mut Client,
        batch: &[PlannedJob],
    ) -> Result<Vec<Job>> {
        let mut jobs = sweep::jobs_by_ids(client, batch.iter().map(|&(_, id)| id))?;
        let mut planned = batch.iter();
        jobs.retain(|job| {
            let before = planned.find(|(_, id)| *id == job.id).map(|((rank, _), _)| *rank);
            // A job whose delay has ended is ready now, without a change by a client.
            let is_due = before == Some(rank(State::Delayed)) && job.state == State::Ready;
            (is_due || before == Some(rank(job.state))) && self.filter.matches(job)
        });
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tubes_are_counted_and_not_named() {
        let mut summary = Summary::default();
        summary.add("t00", State::Ready, 2);
        assert_eq!(summary.to_string(), "2 jobs: 2 ready, in the tube t00");
        for number in 1..12 {
            summary.add(&format!("t{number:02}"), State::Buried, u64::MAX);
        }
        let text = summary.to_string();
        assert!(text.contains("in 12 tubes: t00, t01") && text.ends_with("t09, and 2 more"));
        assert_eq!(summary.count(), u64::MAX, "a server may report any number");
    }

    #[test]
    fn jobs_are_in_the_order_of_service() {
        let job = |id: u64, pri: u32| {
            let stats = format!("---\nid: {id}\ntube: a\nstate: ready\npri: {pri}\n");
            Job::from_stats(&stats).unwrap()
        };
        let plan = Plan::of(&[job(3, 5), job(9, 1), job(1, 5), job(2, 9)], Filter::default());
        assert_eq!(plan.ids().collect::<Vec<_>>(), [9, 1, 3, 2]);
        let mut batches = Vec::new();
        let take = |batch: &[PlannedJob]| {
            batches.push(batch.iter().map(|&(_, id)| id).collect::<Vec<_>>());
            Ok(())
        };
        plan.each_batch(3, &Progress::hidden(), &Interrupt::default(), take).unwrap();
        assert_eq!(batches, [vec![9, 1, 3], vec![2]]);
    }
}
