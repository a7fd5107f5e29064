//! What the page may change. Each act is asked for twice: `dry`, which only says what would be done
//! and counts, and then in earnest, with the number that the operator agreed to. If the answer to
//! the first says which jobs were meant, the second is about these and no others.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use axum::Json;
use axum::extract::State as Given;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, Site, with_client};
use crate::act::clear::{self, Plan};
use crate::act::delete::{Found, deletable};
use crate::act::kick::{Kickable, kick, kick_ids};
use crate::act::pause::{check as check_pause, pause_tubes};
use crate::act::put::{put_all, use_tube};
use crate::act::remove::Remover;
use crate::cli::JobArgs;
use crate::client::Client;
use crate::context::counted;
use crate::filter::{Filter, Tubes, tube_name};
use crate::interrupt::{Interrupt, Interrupted};
use crate::job::State;
use crate::plan::{Instance, States};
use crate::progress::Progress;
use crate::sweep::{self, Coverage, Options};
use crate::yaml;

/// How long an act may take; then it ends with what is done.
const ACT_TIME: Duration = Duration::from_secs(100);

/// The most jobs that are named by their ids.
const IDS: usize = 1_000;

/// What a page asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    server: usize,
    /// Only say what would be done.
    dry: bool,
    /// How many jobs or tubes the operator agreed to; needed in earnest.
    agreed: Option<u64>,
    /// The instance of the server that the page has got its jobs from.
    instance: Option<Instance>,
    what: What,
}

/// An act with its arguments.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "act", rename_all = "kebab-case", deny_unknown_fields)]
enum What {
    /// Buried jobs of a tube become ready, or if there is none, delayed ones. In earnest it says
    /// which of them are meant.
    Kick {
        tube: String,
        state: Option<String>,
    },
    KickJobs {
        ids: Vec<String>,
    },
    Pause {
        tube: String,
        seconds: u64,
    },
    Resume {
        tube: String,
    },
    Delete {
        ids: Vec<String>,
    },
    /// In earnest, only of jobs with an id of at most the last one of the plan.
    Clear {
        tube: String,
        states: Vec<String>,
        last_id: Option<String>,
    },
    Put {
        tube: String,
        body: Option<String>,
        base64: Option<String>,
        pri: u32,
        delay: u32,
        ttr: u32,
    },
}

/// What would be done, or was.
#[derive(Debug)]
struct Told {
    text: String,
    count: u64,
    notes: Vec<String>,
    /// What is to be asked for in earnest, if that is narrower than what was asked for now.
    what: Option<What>,
}

impl Told {
    fn new(count: u64, text: impl Into<String>) -> Self {
        Self { text: text.into(), count, notes: Vec::new(), what: None }
    }
}

/// Whether to act, and on how many.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Dry,
    Earnest(u64),
}

/// Says what would be done, or does it.
pub(super) async fn act(
    Given(site): Given<Arc<Site>>,
    order: Result<Json<Order>, JsonRejection>,
) -> Result<Json<Value>, Failure> {
    let Json(order) = order.map_err(|error| Failure::new(error.status(), error.body_text()))?;
    let bad = |why: String| Failure::new(StatusCode::BAD_REQUEST, why);
    let mode = match (order.dry, order.agreed) {
        (true, _) => Mode::Dry,
        (false, Some(agreed)) => Mode::Earnest(agreed),
        (false, None) => return Err(bad("an act in earnest needs the number agreed to".into())),
    };
    order.what.check().map_err(|error| bad(format!("{error:#}")))?;
    let watcher = site.server(order.server)?;
    let (what, instance) = (order.what, order.instance);
    let told = with_client(watcher, ACT_TIME, move |client, interrupt| {
        instance.map_or(Ok(()), |instance| instance.check(client))?;
        what.run(client, mode, interrupt)
    });
    let told = told.await?;
    let key = if order.dry { "will" } else { "done" };
    let mut answer = json!({ key: told.text, "count": told.count, "notes": told.notes });
    if let Some(what) = told.what {
        answer["what"] = json!(what);
    }
    Ok(Json(answer))
}

/// Fails if a name could be more than a name to the server.
fn check_tube(name: &str) -> Result<()> {
    tube_name(name).map(|_| ())
}

fn ids_of(words: &[String]) -> Result<Vec<u64>> {
    if words.is_empty() || words.len() > IDS {
        bail!("1 to {IDS} jobs can be named at once");
    }
    let ids = words.iter().map(|word| word.parse().map_err(|_| anyhow!("{word:?} is no id")));
    let mut ids: Vec<u64> = ids.collect::<Result<_>>()?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

impl What {
    /// Fails if the arguments make no sense, whatever the server.
    fn check(&self) -> Result<()> {
        match self {
            Self::Kick { tube, state } => {
                state.as_deref().map(str::parse::<State>).transpose()?;
                check_tube(tube)
            }
            Self::Resume { tube } => check_tube(tube),
            Self::KickJobs { ids } | Self::Delete { ids } => ids_of(ids).map(|_| ()),
            Self::Pause { tube, seconds } => {
                if *seconds == 0 {
                    bail!("a pause lasts at least a second");
                }
                check_tube(tube).and_then(|()| check_pause(*seconds))
            }
            Self::Clear { tube, states, last_id } => {
                last_id.as_deref().map(str::parse::<u64>).transpose()?;
                if states.is_empty() {
                    bail!("which states are meant?");
                }
                states.iter().try_for_each(|state| state.parse::<State>().map(|_| ()))?;
                check_tube(tube)
            }
            Self::Put { tube, body, base64, .. } => {
                if let Some(text) = base64 {
                    BASE64.decode(text).map_err(|error| anyhow!("the body: {error}"))?;
                }
                if body.is_some() == base64.is_some() {
                    bail!("a job needs one body");
                }
                check_tube(tube)
            }
        }
    }

    fn run(self, client: &mut Client, mode: Mode, interrupt: &Interrupt) -> Result<Told> {
        match self {
            Self::Kick { tube, state } => kick_tube(client, tube, state, mode, interrupt),
            Self::KickJobs { ids } => kick_jobs(client, &ids_of(&ids)?, mode),
            Self::Pause { tube, seconds } => pause(client, tube, seconds, mode),
            Self::Resume { tube } => pause(client, tube, 0, mode),
            Self::Delete { ids } => delete(client, &ids_of(&ids)?, mode, interrupt),
            Self::Clear { tube, states, last_id } => {
                let last_id = last_id.map(|id| id.parse()).transpose()?;
                let states = states.iter().map(|state| state.parse());
                let mut states: Vec<State> = states.collect::<Result<_>>()?;
                states.sort_unstable();
                states.dedup();
                clear(client, &tube, states, last_id, mode, interrupt)
            }
            Self::Put { tube, body, base64, pri, delay, ttr } => {
                let body = match base64 {
                    Some(text) => BASE64.decode(text)?,
                    None => body.unwrap_or_default().into_bytes(),
                };
                let job = JobArgs { pri, delay, ttr };
                put(client, &tube, &job, body, mode)
            }
        }
    }
}

fn kick_tube(
    client: &mut Client,
    tube: String,
    state: Option<String>,
    mode: Mode,
    interrupt: &Interrupt,
) -> Result<Told> {
    let kickable = Kickable::look(client, &tube)?;
    // The server kicks delayed jobs once no job is buried any more, which was not agreed to.
    if let Some(meant) = state.filter(|state| *state != kickable.state().to_string()) {
        let gone = format!("No job of the tube {tube} is {meant} any more: nothing was kicked.");
        return Ok(Told::new(0, gone));
    }
    let all = kickable.all();
    if all == 0 {
        return Ok(Told::new(0, format!("There is nothing to kick in the tube {tube}.")));
    }
    match mode {
        Mode::Dry => {
            let jobs = kickable.counted(all);
            let text = format!("Will kick {jobs} of the tube {tube}: ready again.");
            let state = Some(kickable.state().to_string());
            Ok(Told { what: Some(What::Kick { tube, state }), ..Told::new(all, text) })
        }
        Mode::Earnest(agreed) => {
            let mut kicked = 0;
            let state = kickable.state();
            kick(client, &tube, state, agreed.min(all), interrupt, &mut kicked)?;
            Ok(Told::new(kicked, format!("{} kicked.", kickable.counted(kicked))))
        }
    }
}

fn kick_jobs(client: &mut Client, ids: &[u64], mode: Mode) -> Result<Told> {
    let mut jobs = sweep::stats_of(client, ids.iter().copied())?;
    jobs.retain(|job| matches!(job.state, State::Buried | State::Delayed));
    let mut told = match mode {
        Mode::Dry => {
            let count = jobs.len() as u64;
            let states = States::of(&jobs);
            let text = match count {
                0 => "There is nothing to kick.".to_owned(),
                _ => format!("Will kick {}: {states}.", counted(count, "job")),
            };
            let ids = jobs.iter().map(|job| job.id.to_string()).collect();
            Told { what: Some(What::KickJobs { ids }), ..Told::new(count, text) }
        }
        Mode::Earnest(agreed) => {
            // Some of the others may have been buried meanwhile.
            jobs.truncate(usize::try_from(agreed)?);
            let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
            let mut count = 0;
            let result = kick_ids(client, &ids, |_, is_kicked| count += u64::from(is_kicked));
            let kicked = counted(count, "job");
            result.with_context(|| {
                format!("the kick of {kicked} was confirmed, of others perhaps not")
            })?;
            Told::new(count, format!("{kicked} kicked."))
        }
    };
    let others = ids.len() as u64 - told.count;
    if others > 0 {
        told.notes.push(match mode {
            Mode::Dry => format!("{}: neither buried nor delayed.", counted(others, "job")),
            Mode::Earnest(_) => format!("{} not kicked.", counted(others, "job")),
        });
    }
    Ok(told)
}

fn pause(client: &mut Client, tube: String, seconds: u64, mode: Mode) -> Result<Told> {
    let reply = client.ask(&format!("stats-tube {tube}"))?;
    if reply.is("NOT_FOUND") {
        bail!("there is no tube {tube}");
    }
    if !reply.is("OK") {
        return Err(reply.unexpected("stats-tube"));
    }
    let stats = reply.into_yaml()?;
    let number = |key| yaml::number(&stats, key);
    let left = number("pause-time-left");
    let Mode::Earnest(_) = mode else {
        let ready = counted(number("current-jobs-ready"), "ready job");
        let waiting = counted(number("current-waiting"), "worker");
        let beside = format!("{ready}, {waiting} waiting");
        return Ok(match (seconds, left) {
            (0, 0) => Told::new(0, format!("The tube {tube} is not paused.")),
            (0, left) => Told::new(
                1,
                format!("Will end the pause of 1 tube, {tube}: {left} s left, {beside}."),
            ),
            (_, 0) => {
                Told::new(1, format!("Will pause 1 tube, {tube}, for {seconds} s: {beside}."))
            }
            _ => Told::new(
                1,
                format!(
                    "Will pause 1 tube, {tube}, for {seconds} s instead of the {left} s left: \
                     {beside}."
                ),
            ),
        });
    };
    let count = pause_tubes(client, vec![tube], seconds)?;
    let done = if seconds == 0 { "resumed" } else { "paused" };
    Ok(Told::new(count, format!("{} {done}.", counted(count, "tube"))))
}

fn delete(client: &mut Client, ids: &[u64], mode: Mode, interrupt: &Interrupt) -> Result<Told> {
    let found = Found::look(client, ids)?;
    let mut notes = found.leftovers();
    let mut jobs = found.jobs;
    if let Mode::Earnest(agreed) = mode {
        // Workers may have released some of the others meanwhile.
        let others = jobs.count().saturating_sub(agreed);
        if others > 0 {
            notes.push(format!("{} more than agreed to stay.", counted(others, "job")));
        }
        jobs.truncate(agreed);
    }
    let chosen = jobs.ids().map(|id| id.to_string()).collect();
    let plan = Plan::Jobs(jobs);
    let mut told = if plan.count() == 0 {
        Told::new(0, "There is nothing to delete.")
    } else if let Mode::Dry = mode {
        let told = Told::new(plan.count(), format!("Will {}.", plan.summary()));
        Told { what: Some(What::Delete { ids: chosen }), ..told }
    } else {
        carry_out(client, plan, &deletable(), interrupt)?
    };
    told.notes.splice(0..0, notes);
    Ok(told)
}

/// Deletes, and tells what was done until the time was over.
fn carry_out(
    client: &mut Client,
    plan: Plan,
    filter: &Filter,
    interrupt: &Interrupt,
) -> Result<Told> {
    let mut remover = Remover::new(None);
    let result = plan.carry_out(client, filter, &mut remover, &Progress::hidden(), interrupt);
    let mut told = Told::new(remover.deleted, format!("{}.", remover.summary()));
    match result {
        Ok(()) => {}
        Err(error) if error.is::<Interrupted>() => {
            told.notes.push(format!("The time was over before all were deleted: {error:#}."));
        }
        Err(error) => return Err(error),
    }
    told.notes.extend(remover.leftovers());
    Ok(told)
}

fn clear(
    client: &mut Client,
    tube: &str,
    states: Vec<State>,
    last_id: Option<u64>,
    mode: Mode,
    interrupt: &Interrupt,
) -> Result<Told> {
    let mut filter = Filter { tubes: Tubes::one(tube), states, last_id, ..Filter::default() };
    let options = Options { is_quiet: true, ..Options::default() };
    let (mut plan, coverage) = clear::plan(client, &mut filter, false, &options, interrupt)?;
    let mut notes = Vec::new();
    if let Coverage::Unsure(seen, live) = coverage {
        notes.push(format!(
            "{seen} jobs were found, and the server says {live}: it has been restarted, and its \
             last id is not known."
        ));
    }
    if plan.count() == 0 {
        let mut told = Told::new(0, format!("There is nothing to delete in the tube {tube}."));
        told.notes = notes;
        return Ok(told);
    }
    let mut told = match mode {
        Mode::Dry => {
            let states = filter.states.iter().map(ToString::to_string).collect();
            let last_id = Some(plan.last_id().to_string());
            let what = Some(What::Clear { tube: tube.to_owned(), states, last_id });
            Told { what, ..Told::new(plan.count(), format!("Will {}.", plan.summary())) }
        }
        Mode::Earnest(agreed) => {
            plan.truncate(agreed);
            carry_out(client, plan, &filter, interrupt)?
        }
    };
    told.notes.splice(0..0, notes);
    Ok(told)
}

fn put(client: &mut Client, tube: &str, job: &JobArgs, body: Vec<u8>, mode: Mode) -> Result<Told> {
    let size = counted(body.len() as u64, "byte");
    if let Mode::Dry = mode {
        let known = client.ask(&format!("stats-tube {tube}"))?;
        let mut told = Told::new(1, format!("Will put 1 job of {size} into the tube {tube}."));
        if known.is("NOT_FOUND") {
            told.notes.push("There is no such tube yet: this makes it.".into());
        }
        return Ok(told);
    }
    use_tube(client, tube)?;
    let mut put = None;
    put_all(client, job, &[body], |id| {
        put = Some(id);
    })?;
    let id = put.ok_or_else(|| anyhow!("the server gave no id"))?;
    Ok(Told::new(1, format!("1 job put: its id is {id}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbers_and_each_counts_once() {
        let ids =
            |words: &[&str]| ids_of(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(ids(&["7", "3", "7", "18446744073709551615"]).unwrap(), [3, 7, u64::MAX]);
        assert!(ids(&[]).is_err() && ids(&["-1"]).is_err() && ids(&["1 2"]).is_err());
    }
}
