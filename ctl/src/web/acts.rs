//! The actions of the page. Each action takes two requests. The first request, a dry run, finds and
//! counts the jobs, and returns the name of a question, which the user must answer. The second
//! request answers that question, and carries out the action on only these jobs, on the same
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

use super::questions::Question;
use super::{Failure, Site};
use crate::change::{Change, PlannedChange};
use crate::client::Client;
use crate::commands::r#move::Mover;
use crate::commands::pause::pause_tubes;
use crate::copy::put_copies;
use crate::filter::{Filter, Tubes};
use crate::interrupt::{Interrupt, Interrupted};
use crate::job::{Job, State, TUBE_NAME_BYTES_MAX, parse_tube_name};
use crate::message::{counted, log_action, usage};
use crate::plan::{Instance, Plan};
use crate::progress::Progress;
use crate::statistics;
use crate::sweep::{Coverage, Options};
use crate::yaml;

/// The time limit of an action. An action that reaches the limit ends after its current batch.
const ACTION_TIME_LIMIT: Duration = Duration::from_secs(100);

/// The largest number of ids in a request.
const ACTION_IDS_MAX: usize = 100_000;

/// The largest number of items of a list in a log line.
const LOGGED_ITEMS_MAX: usize = 10;

/// A request that a page sends to plan an action or to carry it out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionRequest {
    server: usize,
    /// Whether the request only asks for the plan, and changes nothing.
    dry: bool,
    /// The instance of the server from which the page got its list of jobs.
    instance: Option<Instance>,
    what: Option<Action>,
    /// The id of the question that the user confirmed on the page; `None` for a dry run.
    question: Option<String>,
}

/// An action with its arguments.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "act", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Action {
    /// Pauses a tube; 0 seconds end a pause.
    Pause { tube: Tube, seconds: u32 },
    /// Puts a job with this body.
    Put { tube: Tube, base64: String, pri: u32, delay: u32, ttr: u32 },
    #[serde(untagged)]
    Jobs(JobAction),
}

/// An action on jobs.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobAction {
    act: Verb,
    jobs: Jobs,
    /// The new priority of released or buried jobs.
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

/// Jobs given by their ids, or by their tube and states. If `states` is empty, all states that the
/// action accepts are meant. With `count`, only the first `count` jobs of one state are meant.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Jobs {
    /// The ids are text, because JavaScript's numbers are exact only up to 53 bits.
    ids: Vec<String>,
    tube: Option<Tube>,
    states: Vec<State>,
    count: Option<u64>,
}

/// A tube's name that the protocol allows; such a name is one word of a command.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub(super) struct Tube(String);

impl TryFrom<String> for Tube {
    type Error = anyhow::Error;

    /// Checks the name of a tube in a request.
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
    /// Makes the report of an action that has changed, or will change, `count` jobs or tubes.
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
    let ActionRequest { server, dry, instance, what, question } = request;
    match (dry, what, question) {
        (true, Some(action), None) => ask(&site, server, instance, action).await,
        (false, None, Some(name)) => carry_out(&site, &name, from.to_string()).await,
        _ => Err(usage("no preview was requested: send the action with \"dry\" first").into()),
    }
}

/// Finds the jobs that an action would change, and keeps the request for confirmation until a page
/// answers it.
async fn ask(
    site: &Site,
    server: usize,
    instance: Option<Instance>,
    mut action: Action,
) -> Result<Json<Value>, Failure> {
    if let Action::Jobs(act) = &action {
        act.check_arguments()?;
    }
    let watcher = site.server(server)?;
    let line = abridge(serde_json::to_value(&action).map_err(Error::from)?).to_string();
    let found = watcher.with_client(ACTION_TIME_LIMIT, move |client, interrupt| {
        let now = Instance::from_stats(&client.yaml("stats")?);
        instance.map_or(Ok(()), |instance| instance.check(&now, client))?;
        let (report, plan) = action.plan(client, interrupt)?;
        Ok((report, Question { server, instance: now, action, plan, line }))
    });
    let (report, question) = found.await?;
    let name = site.questions.open(question)?;
    let Report { text, count, notes } = report;
    Ok(Json(json!({ "will": text, "count": count, "notes": notes, "question": name })))
}

/// Carries out an action after the user has confirmed its question.
async fn carry_out(site: &Site, name: &str, from: String) -> Result<Json<Value>, Failure> {
    let Question { server, instance, action, plan, line } = site.questions.answer(name)?;
    let watcher = site.server(server)?;
    let running = site.begin_action((watcher.address.clone(), from.clone(), line));
    let done = watcher.with_client(ACTION_TIME_LIMIT, move |client, interrupt| {
        instance.check(&Instance::from_stats(&client.yaml("stats")?), client)?;
        let mut report = Report::default();
        let result = action.carry_out(client, &plan, interrupt, &mut report);
        // Drop `running` only here, because the action may continue after the request has ended.
        drop(running);
        if !report.text.is_empty() {
            log_action(client.address(), Some(&from), &report.text);
        }
        if let Err(error) = result {
            if !error.is::<Interrupted>() {
                let notes = report.notes.join(" ");
                return Err(if notes.is_empty() { error } else { error.context(notes) });
            }
            report.notes.push("Stopped by the time limit, or by the shutdown of the page.".into());
        }
        Ok(json!({ "done": report.text, "count": report.count, "notes": report.notes }))
    });
    done.await.map(Json)
}

impl Action {
    /// Describes the action that a page requests. For an action on jobs, also finds the jobs.
    fn plan(&mut self, client: &mut Client, interrupt: &Interrupt) -> Result<(Report, Plan)> {
        let report = match self {
            Self::Pause { tube: Tube(tube), seconds } => Self::plan_pause(client, tube, *seconds)?,
            Self::Put { tube: Tube(tube), base64, .. } => {
                let size = counted(BASE64.decode(base64).map_err(usage)?.len() as u64, "byte");
                let mut report =
                    Report::new(1, format!("Will put 1 job of {size} into the tube {tube}."));
                if client.ask(&format!("stats-tube {tube}"))?.is("NOT_FOUND") {
                    report.notes.push("The tube does not exist yet and will be created.".into());
                }
                report
            }
            Self::Jobs(act) => return act.plan(client, interrupt),
        };
        Ok((report, Plan::default()))
    }

    /// Returns how many bytes the action keeps in memory, not counting the plan.
    pub(super) fn bytes(&self) -> usize {
        if let Self::Put { base64, .. } = self { base64.len() } else { 0 }
    }

    /// Carries out the requested action, and describes its result, even after a failure.
    fn carry_out(
        self,
        client: &mut Client,
        plan: &Plan,
        interrupt: &Interrupt,
        report: &mut Report,
    ) -> Result<()> {
        match self {
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
                let job = Job::new(&tube, (pri, delay, ttr), body);
                let copies = put_copies(client, &[job], None);
                for id in copies.ids() {
                    *report = Report::new(1, format!("put 1 job into the tube {tube}: {id}"));
                }
                copies.into_result(0, 1)
            }
            Self::Jobs(act) => {
                let result = act.carry_out(client, plan, interrupt, report);
                let (done, summary) = (act.words().1, &plan.summary);
                report.text = format!("{done} {} of {summary}", report.count);
                result
            }
        }
    }

    /// Describes the requested pause of a tube, or the requested end of its pause.
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

impl JobAction {
    /// Returns the change that the page requests for the jobs; `None` for a move.
    fn change(&self) -> Option<Change> {
        let (pri, delay) = (self.pri, self.delay);
        match self.act {
            Verb::Kick => Some(Change::Kick),
            Verb::Release => Some(Change::Release { pri, delay }),
            Verb::Bury => Some(Change::Bury { pri }),
            Verb::Delete => Some(Change::Delete),
            Verb::Move => None,
        }
    }

    /// Returns the verb of an action, its past participle, and the states in which the action
    /// accepts jobs.
    fn words(&self) -> (&'static str, String, &'static [State]) {
        let of_move = ("move", "moved", &State::DELETABLE[..]);
        let (verb, past, states) = self.change().map_or(of_move, Change::words);
        (verb, past.to_lowercase(), states)
    }

    /// Fails if the arguments of an action would be wrong on every server.
    fn check_arguments(&self) -> Result<()> {
        let Jobs { ids, tube, .. } = &self.jobs;
        let wrong = [
            (ids.len() > ACTION_IDS_MAX, "too many ids at once"),
            (ids.is_empty() != tube.is_some(), "give jobs either by their ids or by a tube"),
            (self.into.is_some() != (self.act == Verb::Move), "a move needs another tube"),
            (self.into.is_some() && *tube == self.into, "the jobs are already in that tube"),
            (self.jobs.count.is_some() && self.jobs.states.len() != 1, "a count needs one state"),
        ];
        let found = wrong.into_iter().find(|(is_wrong, _)| *is_wrong);
        found.map_or(Ok(()), |(_, why)| Err(usage(why)))
    }

    /// Finds the jobs of an action, and describes the action.
    fn plan(&mut self, client: &mut Client, interrupt: &Interrupt) -> Result<(Report, Plan)> {
        let Jobs { ids, tube, states, count } = std::mem::take(&mut self.jobs);
        let is_selected = |state: &&State| states.is_empty() || states.contains(state);
        let states: Vec<_> = self.words().2.iter().filter(is_selected).copied().collect();
        let (mut plan, notes) = if let Some(Tube(tube)) = tube {
            ensure!(!states.is_empty(), usage("this action does nothing to these states"));
            statistics::existing_tube_stats(client, &tube)?;
            let filter = Filter { tubes: Tubes::of_name(&tube), states, ..Filter::default() };
            let options = Options { is_quiet: true, ..Options::default() };
            let (mut plan, coverage) = Plan::find(client, filter, &options, interrupt)?;
            plan.truncate(count.unwrap_or(u64::MAX));
            let note = match coverage {
                Coverage::Incomplete(seen, live) => Some(format!(
                    "Found {seen} jobs, but the server counts {live}: it was restarted, and its \
                     last id is unknown."
                )),
                _ => None,
            };
            (plan, note.into_iter().collect())
        } else {
            let id = |text: &String| {
                text.parse::<u64>().map_err(|_| usage(format!("{text:?} is not an id")))
            };
            let mut ids = ids.iter().map(id).collect::<Result<Vec<_>>>()?;
            ids.sort_unstable();
            ids.dedup();
            Plan::of_ids(client, &ids, &states)?
        };
        let is_there = |Tube(into): &Tube| plan.summary.tubes.contains_key(into);
        let is_same = self.into.as_ref().is_some_and(is_there);
        ensure!(!is_same, usage("the jobs are already in that tube"));
        // Change only jobs that are still in one of the states that the question names.
        plan.filter.states = plan.summary.states();
        let (verb, count) = (self.words().0, plan.count());
        let into = self.into.as_ref();
        let into = into.map_or(String::new(), |Tube(into)| format!(" to the tube {into}"));
        let text = match count {
            0 => format!("No jobs to {verb}."),
            _ => format!("Will {verb} {}{into}.", plan.summary),
        };
        Ok((Report { text, count, notes }, plan))
    }

    /// Carries out the requested change or move of the plan's jobs.
    fn carry_out(
        &self,
        client: &mut Client,
        plan: &Plan,
        interrupt: &Interrupt,
        report: &mut Report,
    ) -> Result<()> {
        let hidden = Progress::hidden();
        if let Some(change) = self.change() {
            let mut change = PlannedChange::new(change, None);
            let result = change.carry_out(client, plan, &hidden, interrupt);
            report.count = change.done;
            report.notes.extend(change.describe_leftovers());
            return result;
        }
        let Some(Tube(into)) = &self.into else { unreachable!("the arguments were checked") };
        let mut to = Client::connect(client.address())?;
        let mut mover = Mover::new(client, &mut to, into)?;
        let result = mover.move_jobs(plan, &hidden, interrupt);
        report.count = mover.moved;
        report.notes.extend(mover.describe_leftovers());
        result
    }
}

/// Shortens the arguments of an action for a log line: long lists are truncated, and long texts are
/// replaced by their size.
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

    /// Of 100,000 ids, the first 10 ids and the number of the other ids are logged. Of a long text,
    /// only the size is logged.
    #[test]
    fn the_line_of_an_action_is_bounded() {
        let ids: Vec<_> = (1..=100_000).map(|id: u32| id.to_string()).collect();
        let action = json!({ "act": "move", "jobs": { "ids": ids, "tube": "9".repeat(100_000) },
            "into": "x".repeat(200) });
        let shown = abridge(action);
        assert_eq!(shown["jobs"]["ids"][9], "10");
        assert_eq!(shown["jobs"]["ids"][10], "99990 more");
        assert_eq!(shown["jobs"]["tube"], "100000 bytes");
        assert_eq!(shown["into"], "x".repeat(200), "a tube's name is whole");
        assert!(shown.to_string().len() < 500, "{shown}");
        let short = json!({ "act": "delete", "jobs": { "ids": ["1", "2"] }, "delay": 0 });
        assert_eq!(abridge(short.clone()), short);
    }
}
