//! The actions of the page. Each takes two requests. The first, a dry run, finds and counts the
//! jobs, and returns an action on these jobs only. The second carries out that action, on the same
//! instance of the server. Each action is logged in a line on standard error.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, ensure};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State as Shared};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, Site};
use crate::args::JobArgs;
use crate::client::Client;
use crate::commands::kick::{kick_ids, kick_tube};
use crate::commands::move_jobs::Mover;
use crate::commands::pause::pause_tubes;
use crate::commands::put::new_job;
use crate::commands::release::Change;
use crate::copy::put_copies;
use crate::deletion::{self, DELETABLE_STATES, Plan, Remover};
use crate::filter::{Filter, Tubes};
use crate::interrupt::{Interrupt, Interrupted};
use crate::job::{State, TUBE_NAME_BYTES_MAX, parse_tube_name};
use crate::message::{counted, log_action, usage};
use crate::plan::{Instance, Selection};
use crate::progress::Progress;
use crate::statistics;
use crate::sweep::{self, Coverage, Options};
use crate::yaml;

/// The time limit of an action. After that, it ends with its current batch.
const ACTION_TIME_LIMIT: Duration = Duration::from_secs(100);

/// The largest number of jobs given by their ids.
const ACTION_IDS_MAX: usize = 100_000;

/// The largest number of items of a list in a log line.
const LOGGED_ITEMS_MAX: usize = 10;

/// A request of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionRequest {
    server: usize,
    /// Only find the jobs.
    dry: bool,
    /// The instance of the server that listed the jobs.
    instance: Option<Instance>,
    what: Action,
}

/// An action with its arguments.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "act", rename_all = "kebab-case", deny_unknown_fields)]
enum Action {
    /// Makes the first `count` jobs of a tube in a state ready.
    KickTube {
        tube: Tube,
        state: State,
        count: u64,
    },
    /// Pauses a tube; 0 seconds end a pause.
    Pause {
        tube: Tube,
        seconds: u32,
    },
    Put {
        tube: Tube,
        base64: String,
        pri: u32,
        delay: u32,
        ttr: u32,
    },
    #[serde(untagged)]
    Jobs(JobAction),
}

/// An action on jobs.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct JobAction {
    act: Verb,
    jobs: Jobs,
    /// The new priority of released jobs.
    pri: Option<u32>,
    #[serde(default)]
    delay: u32,
    /// The tube that jobs are moved to.
    into: Option<Tube>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verb {
    Kick,
    Release,
    Bury,
    Move,
    Delete,
}

/// Jobs given by their ids; or the first `count` jobs of a tube with an id of at most `last_id`, in
/// these states or in all states that the action accepts.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Jobs {
    /// They are text, because JavaScript's numbers are too small.
    ids: Vec<String>,
    tube: Option<Tube>,
    states: Vec<State>,
    last_id: Option<String>,
    count: Option<u64>,
}

/// A tube name by the rules of the protocol, so that it is one word to the server.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
struct Tube(String);

impl TryFrom<String> for Tube {
    type Error = anyhow::Error;

    fn try_from(name: String) -> Result<Self> {
        parse_tube_name(&name).map(Self)
    }
}

/// The description of an action, before or after it is carried out.
#[derive(Debug, Default)]
struct Report {
    text: String,
    count: u64,
    notes: Vec<String>,
}

impl Report {
    fn new(count: u64, text: impl Into<String>) -> Self {
        Self { text: text.into(), count, notes: Vec::new() }
    }
}

/// Plans an action, or carries it out.
pub(super) async fn serve_action(
    Shared(site): Shared<Arc<Site>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Result<Json<ActionRequest>, JsonRejection>,
) -> Result<Json<Value>, Failure> {
    let Json(request) = request.map_err(|error| Failure::new(error.status(), error.body_text()))?;
    let ActionRequest { server, dry, instance, mut what } = request;
    if let Action::Jobs(act) = &what {
        act.check_arguments()?;
    }
    let (watcher, from) = (site.server(server)?, from.to_string());
    let action = abridge(serde_json::to_value(&what).map_err(Error::from)?).to_string();
    let act = (!dry).then(|| site.begin_action((watcher.address.clone(), from.clone(), action)));
    let done = watcher.with_client(ACTION_TIME_LIMIT, move |client, interrupt| {
        let now = Instance::from_stats(&client.yaml("stats")?);
        let is_bound = instance.is_some();
        instance.map_or(Ok(()), |instance| instance.check(&now, client))?;
        if dry {
            let report = what.plan(client, interrupt)?;
            return Ok(json!({ "will": report.text, "count": report.count, "notes": report.notes,
                "what": what, "instance": now }));
        }
        ensure!(is_bound, usage("an action needs an instance of the server: ask with dry first"));
        let mut report = Report::default();
        let result = what.carry_out(client, interrupt, &mut report);
        // Dropped only now, because this work may outlive its request.
        drop(act);
        if !report.text.is_empty() {
            log_action(client.address(), Some(&from), &report.text);
        }
        if let Err(error) = result {
            if !error.is::<Interrupted>() {
                let notes = report.notes.join(" ");
                return Err(if notes.is_empty() { error } else { error.context(notes) });
            }
            report.notes.push("Ended early by the time limit, or by the end of the page.".into());
        }
        Ok(json!({ "done": report.text, "count": report.count, "notes": report.notes }))
    });
    done.await.map(Json)
}

impl Action {
    /// Describes the action, and restricts it to the jobs found.
    fn plan(&mut self, client: &mut Client, interrupt: &Interrupt) -> Result<Report> {
        match self {
            Self::KickTube { tube: Tube(tube), state, count } => {
                let stats = statistics::existing_tube_stats(client, tube)?;
                *count = yaml::number(&stats, &format!("current-jobs-{state}")).min(*count);
                let jobs = counted(*count, &format!("{state} job"));
                Ok(Report::new(*count, format!("Will kick {jobs} of the tube {tube}.")))
            }
            Self::Pause { tube: Tube(tube), seconds } => Self::plan_pause(client, tube, *seconds),
            Self::Put { tube: Tube(tube), base64, .. } => {
                let size = counted(BASE64.decode(base64).map_err(usage)?.len() as u64, "byte");
                let mut report =
                    Report::new(1, format!("Will put 1 job of {size} into the tube {tube}."));
                if client.ask(&format!("stats-tube {tube}"))?.is("NOT_FOUND") {
                    report.notes.push("The tube does not exist yet and will be created.".into());
                }
                Ok(report)
            }
            Self::Jobs(act) => {
                let (plan, _, notes) = act.plan(client, interrupt)?;
                let (verb, count) = (act.act.words().0, plan.count());
                if count == 0 {
                    let text = format!("No jobs to {verb}.");
                    return Ok(Report { notes, ..Report::new(0, text) });
                }
                act.jobs.narrow(&plan);
                let into = act.into.as_ref();
                let into = into.map_or(String::new(), |Tube(into)| format!(" to the tube {into}"));
                Ok(Report { notes, ..Report::new(count, format!("Will {verb} {plan}{into}.")) })
            }
        }
    }

    /// Carries out the action, and reports it, even after a failure in between.
    fn carry_out(
        self,
        client: &mut Client,
        interrupt: &Interrupt,
        report: &mut Report,
    ) -> Result<()> {
        match self {
            Self::KickTube { tube: Tube(tube), state, count } => {
                let result = kick_tube(client, &tube, state, count, interrupt, &mut report.count);
                let jobs = counted(report.count, &format!("{state} job"));
                report.text = format!("kicked {jobs} of the tube {tube}");
                result
            }
            Self::Pause { tube: Tube(tube), seconds } => {
                report.count = pause_tubes(client, vec![tube.clone()], seconds)?;
                let tubes = counted(report.count, "tube");
                report.text = match seconds {
                    0 => format!("resumed {tubes}: {tube}"),
                    _ => format!("paused {tubes} for {seconds} s: {tube}"),
                };
                Ok(())
            }
            Self::Put { tube: Tube(tube), base64, pri, delay, ttr } => {
                report.text = format!("put no job into the tube {tube}");
                let body = BASE64.decode(base64).map_err(usage)?;
                let job = new_job(&tube, &JobArgs { pri, delay, ttr }, body);
                let copies = put_copies(client, &[job], None);
                for id in copies.ids() {
                    *report = Report::new(1, format!("put 1 job into the tube {tube}: {id}"));
                }
                copies.into_result()
            }
            Self::Jobs(act) => {
                let (plan, filter, notes) = act.plan(client, interrupt)?;
                report.notes = notes;
                let summary = plan.to_string();
                let result = act.carry_out(client, plan, &filter, interrupt, report);
                report.text = format!("{} {} of {summary}", act.act.words().1, report.count);
                result
            }
        }
    }

    fn plan_pause(client: &mut Client, tube: &str, seconds: u32) -> Result<Report> {
        let stats = statistics::existing_tube_stats(client, tube)?;
        let number = |key| yaml::number(&stats, key);
        let left = number("pause-time-left");
        let ready = counted(number("current-jobs-ready"), "ready job");
        let workers = counted(number("current-waiting"), "worker");
        let act = match (seconds, left) {
            (0, 0) => return Ok(Report::new(0, format!("The tube {tube} is not paused."))),
            (0, _) => format!("end the pause of the tube {tube}, {left} s before its end"),
            (_, 0) => format!("pause the tube {tube} for {seconds} s"),
            _ => format!("pause the tube {tube} for {seconds} s instead of the {left} s left"),
        };
        Ok(Report::new(1, format!("Will {act}: {ready}, {workers} waiting.")))
    }
}

impl Verb {
    /// Returns the verb, its past, and the states that it accepts.
    fn words(self) -> (&'static str, &'static str, &'static [State]) {
        match self {
            Self::Kick => ("kick", "kicked", &[State::Delayed, State::Buried]),
            Self::Release => ("release", "released", &DELETABLE_STATES),
            Self::Bury => ("bury", "buried", &[State::Ready, State::Delayed]),
            Self::Move => ("move", "moved", &DELETABLE_STATES),
            Self::Delete => ("delete", "deleted", &DELETABLE_STATES),
        }
    }
}

impl JobAction {
    /// Fails if the arguments are wrong for any server.
    fn check_arguments(&self) -> Result<()> {
        let Jobs { ids, tube, .. } = &self.jobs;
        let wrong = [
            (ids.len() > ACTION_IDS_MAX, "too many jobs at once"),
            (ids.is_empty() != tube.is_some(), "give jobs either by their ids or by a tube"),
            (self.into.is_some() != (self.act == Verb::Move), "a move needs another tube"),
            (self.into.is_some() && *tube == self.into, "the jobs are already in that tube"),
        ];
        let found = wrong.into_iter().find(|(is_wrong, _)| *is_wrong);
        found.map_or(Ok(()), |(_, why)| Err(usage(why)))
    }

    /// Finds the jobs. Also returns the filter that each must still match, and notes on other jobs.
    fn plan(
        &self,
        client: &mut Client,
        interrupt: &Interrupt,
    ) -> Result<(Plan, Filter, Vec<String>)> {
        let Jobs { ids, tube, states, last_id, count } = &self.jobs;
        let is_selected = |state: &&State| states.is_empty() || states.contains(state);
        let states = self.act.words().2.iter().filter(is_selected).copied().collect();
        let id = |text: &String| {
            text.parse::<u64>().map_err(|_| usage(format!("{text:?} is not an id")))
        };
        let last_id = last_id.as_ref().map(id).transpose()?;
        let mut filter = Filter { states, last_id, ..Filter::default() };
        let Some(Tube(tube)) = tube else {
            let mut ids = ids.iter().map(id).collect::<Result<Vec<_>>>()?;
            ids.sort_unstable();
            ids.dedup();
            let (jobs, notes) = Selection::of_ids(client, &ids, &filter.states)?;
            let is_there = |Tube(into): &Tube| jobs.summary.tubes.contains_key(into);
            let is_same = self.into.as_ref().is_some_and(is_there);
            ensure!(!is_same, usage("the jobs are already in that tube"));
            return Ok((Plan::Jobs(jobs), filter, notes));
        };
        filter.tubes = Tubes::of_name(tube);
        ensure!(!filter.states.is_empty(), usage("the action accepts no jobs in these states"));
        let options = Options { is_quiet: true, ..Options::default() };
        let most = count.unwrap_or(u64::MAX);
        let mut plan =
            |is_saved| deletion::plan_deletion(client, &mut filter, is_saved, &options, interrupt);
        let (mut plan, coverage) = match plan(self.act != Verb::Delete)? {
            // The server itself would also delete jobs that changed to these states meanwhile.
            (found @ Plan::Tubes(_), _) if found.count() > most => plan(true)?,
            found => found,
        };
        plan.truncate(most);
        let mut notes = Vec::new();
        if let Coverage::Incomplete(seen, live) = coverage {
            notes.push(format!(
                "Found {seen} jobs, but the server counts {live}: it was restarted, and its last \
                id is unknown."
            ));
        }
        Ok((plan, filter, notes))
    }

    fn carry_out(
        &self,
        client: &mut Client,
        plan: Plan,
        filter: &Filter,
        interrupt: &Interrupt,
        report: &mut Report,
    ) -> Result<()> {
        let hidden = Progress::hidden();
        let (jobs, into) = match (plan, &self.into) {
            (Plan::Jobs(jobs), into) if self.act != Verb::Delete => (jobs, into),
            (plan, _) => {
                let mut remover = Remover::new(None);
                let result = plan.carry_out(client, filter, &mut remover, &hidden, interrupt);
                report.count = remover.deleted;
                report.notes.extend(remover.describe_leftovers());
                return result;
            }
        };
        if let Some(Tube(into)) = into {
            let mut to = Client::connect(client.address())?;
            let mut mover = Mover::new(client, &mut to, into, filter)?;
            let result = mover.move_jobs(&jobs, &hidden, interrupt);
            report.count = mover.moved;
            report.notes.extend(mover.describe_leftovers());
            return result;
        }
        // A job may have changed its state meanwhile.
        let mut now = sweep::jobs_by_ids(client, jobs.ids())?;
        now.retain(|job| filter.matches(job));
        let take = |_, is_done: bool| report.count += u64::from(is_done);
        let (pri, delay) = (self.pri, self.delay);
        let result = match self.act {
            Verb::Kick => kick_ids(client, &now.iter().map(|job| job.id).collect::<Vec<_>>(), take),
            Verb::Release => Change::Release { pri, delay }.apply(client, &now, take),
            _ => Change::Bury { pri }.apply(client, &now, take),
        };
        let left = jobs.count().saturating_sub(report.count);
        if left > 0 {
            report.notes.push(format!("Changed by others first: {}.", counted(left, "job")));
        }
        result
    }
}

impl Jobs {
    /// Restricts the action to the ids of a plan, or if there are too many, to its last id and
    /// count.
    fn narrow(&mut self, plan: &Plan) {
        match plan {
            Plan::Jobs(jobs) if jobs.count() <= ACTION_IDS_MAX as u64 => {
                self.ids = jobs.ids().map(|id| id.to_string()).collect();
                self.tube = None;
                self.states = jobs.summary.states();
            }
            _ => {
                self.count = Some(plan.count());
                self.last_id = Some(plan.last_id().to_string());
            }
        }
    }
}

/// Bounds the length of the log line: long lists are truncated, and long texts are replaced by
/// their size.
fn abridge(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields.into_iter().map(|(key, it)| (key, abridge(it))).collect(),
        Value::Array(mut items) => {
            let more = items.split_off(items.len().min(LOGGED_ITEMS_MAX)).len();
            let note = (more > 0).then(|| format!("{more} more").into());
            items.into_iter().map(abridge).chain(note).collect()
        }
        Value::String(it) if it.len() > TUBE_NAME_BYTES_MAX => format!("{} bytes", it.len()).into(),
        short => short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 100,000 ids, only the first are logged, with the number of the others; of a body, only
    /// its size.
    #[test]
    fn the_line_of_an_action_is_bounded() {
        let ids: Vec<_> = (1..=100_000).map(|id: u32| id.to_string()).collect();
        let action = json!({ "act": "move", "jobs": { "ids": ids, "last_id": "9".repeat(100_000) },
            "into": "x".repeat(200) });
        let shown = abridge(action);
        assert_eq!(shown["jobs"]["ids"][9], "10");
        assert_eq!(shown["jobs"]["ids"][10], "99990 more");
        assert_eq!(shown["jobs"]["last_id"], "100000 bytes");
        assert_eq!(shown["into"], "x".repeat(200), "a tube's name is whole");
        assert!(shown.to_string().len() < 500, "{shown}");
        let short = json!({ "act": "delete", "jobs": { "ids": ["1", "2"] }, "delay": 0 });
        assert_eq!(abridge(short.clone()), short);
    }
}
