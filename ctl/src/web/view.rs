//! What the page shows of servers and tubes: only the rows that it asks for.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use axum::Json;
use axum::extract::{Query, State as Given};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use super::watch::{Known, Point, State, WANTED};
use super::{Failure, Site};
use crate::look::object;
use crate::look::top::{Line, Sample};

/// How long a page that comes back waits for a new look.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// The most rows of one answer.
const ROWS: usize = 300;

/// How much of the past a row shows, in points.
const SPARK: usize = 60;

/// What a page shows.
#[derive(Debug, Deserialize)]
pub(super) struct Shown {
    #[serde(default)]
    server: usize,
    /// Tubes with this in their names, in upper or lower case.
    #[serde(default)]
    filter: String,
    #[serde(default)]
    sort: String,
    #[serde(default)]
    reverse: bool,
    #[serde(default)]
    rows: usize,
    /// The tube that is open.
    tube: Option<String>,
}

/// Keys of `stats` that the page shows beside the counts.
const STATS: [&str; 11] = [
    "version",
    "hostname",
    "pid",
    "uptime",
    "draining",
    "current-connections",
    "current-workers",
    "current-producers",
    "current-waiting",
    "total-jobs",
    "job-timeouts",
];

/// The names of the counts.
const COUNTS: [&str; 5] = ["ready", "reserved", "delayed", "buried", "waiting"];

/// Answers what the page shows of servers and tubes.
pub(super) async fn look(
    Given(site): Given<Arc<Site>>,
    Query(shown): Query<Shown>,
) -> Result<Json<Value>, Failure> {
    let chosen = site.server(shown.server)?;
    let mut asked: Vec<_> = Vec::with_capacity(site.servers.len());
    for server in &site.servers {
        let is_chosen = std::ptr::eq(server, chosen);
        asked.push((
            server.address.to_string(),
            server.ask(shown.tube.as_deref().filter(|_| is_chosen)),
        ));
    }
    let at = shown.server;
    let (mut answer, names) = spawn_blocking(move || {
        let (name, ask) = &asked[at];
        // The chosen server first: while it is waited for, the others are looked at.
        let state = ask.wait(PATIENCE);
        let mut answer = server(name, &state);
        let names = details(&state, &shown, &mut answer);
        drop(state);
        let others = asked.iter().map(|(name, ask)| brief(name, &ask.wait(Duration::ZERO)));
        answer.insert("servers".into(), others.collect());
        (answer, names)
    })
    .await
    .map_err(|error| anyhow!("{error}"))?;
    // With the next look come the times of these.
    chosen.ask(names.iter().map(String::as_str));
    answer.insert("chosen".into(), at.into());
    Ok(Json(Value::Object(answer)))
}

/// One line of a server.
fn brief(name: &str, state: &State) -> Value {
    let mut object = Map::new();
    object.insert("name".into(), name.into());
    match &state.now {
        None => {}
        Some(Err(error)) => {
            object.insert("error".into(), error.as_str().into());
        }
        Some(Ok(sample)) => {
            counts(&sample.server, &mut object);
            object.insert("tubes".into(), sample.tubes.len().into());
            object.insert("draining".into(), sample.is_draining().into());
            trouble(sample, &mut object);
            let ready = state.server.past.iter().rev().take(SPARK).map(|point| point.counts[0]);
            let ready: Vec<_> = ready.collect();
            object.insert("spark".into(), ready.into_iter().rev().collect());
        }
    }
    Value::Object(object)
}

/// All of the chosen server.
fn server(name: &str, state: &State) -> Map<String, Value> {
    let mut answer = Map::new();
    let mut told = Map::new();
    told.insert("name".into(), name.into());
    match &state.now {
        None => {}
        Some(Err(error)) => {
            told.insert("error".into(), error.as_str().into());
        }
        Some(Ok(sample)) => {
            counts(&sample.server, &mut told);
            rates(&sample.server, sample.has_rates, &mut told);
            let mut all = object(&sample.stats);
            let shown = STATS.iter().filter_map(|key| all.remove_entry(*key));
            told.insert("stats".into(), shown.collect());
            trouble(sample, &mut told);
        }
    }
    told.insert("past".into(), past(&state.server.past));
    answer.insert("server".into(), Value::Object(told));
    answer
}

/// Adds the rows of tubes, and the open tube. Returns the names of those that are shown.
fn details(state: &State, shown: &Shown, answer: &mut Map<String, Value>) -> Vec<String> {
    let Some(Ok(sample)) = &state.now else { return Vec::new() };
    if let Some(name) = &shown.tube {
        let line = sample.tubes.iter().find(|line| line.tube == *name);
        let value = line.map_or(Value::Null, |line| {
            let mut told = row(line, sample.has_rates, state.tubes.get(name));
            let known = state.tubes.get(name);
            told.insert("past".into(), known.map_or(Value::Null, |known| past(&known.past)));
            Value::Object(told)
        });
        answer.insert("tube".into(), value);
    }
    if shown.rows == 0 {
        return Vec::new();
    }
    let mut lines = chosen(sample, shown);
    let matched = lines.len();
    lines.truncate(shown.rows.min(ROWS).min(WANTED));
    let rows: Vec<Value> = lines
        .iter()
        .map(|line| {
            let known = state.tubes.get(&line.tube);
            let mut told = row(line, sample.has_rates, known);
            if let Some(known) = known {
                let begin = known.past.len().saturating_sub(SPARK);
                let ready = known.past.iter().skip(begin).map(|point| point.counts[0]);
                told.insert("spark".into(), ready.collect());
            }
            Value::Object(told)
        })
        .collect();
    let names = lines.iter().map(|line| line.tube.clone()).collect();
    answer.insert(
        "tubes".into(),
        json!({ "all": sample.tubes.len(), "matched": matched, "rows": rows }),
    );
    names
}

/// Returns the tubes that are meant, in the order that is meant.
fn chosen<'a>(sample: &'a Sample, shown: &Shown) -> Vec<&'a Line> {
    let part = shown.filter.to_ascii_lowercase();
    let is_meant = |line: &&Line| line.tube.to_ascii_lowercase().contains(&part);
    let mut lines: Vec<_> = sample.tubes.iter().filter(is_meant).collect();
    let number = |line: &Line| match shown.sort.as_str() {
        "puts" => line.puts,
        "deletes" => line.deletes,
        "paused" => crate::progress::count_as_f64(line.paused),
        sort => COUNTS
            .iter()
            .position(|name| *name == sort)
            .map_or(0.0, |at| crate::progress::count_as_f64(line.counts[at])),
    };
    // The largest first; the names keep their order, so that equal rows stay where they are.
    lines.sort_by(|a, b| number(b).partial_cmp(&number(a)).unwrap_or(Ordering::Equal));
    if shown.reverse {
        lines.reverse();
    }
    lines
}

fn counts(line: &Line, told: &mut Map<String, Value>) {
    for (name, count) in COUNTS.iter().zip(line.counts) {
        told.insert((*name).to_owned(), count.into());
    }
}

/// Adds what is wrong with the binlog.
fn trouble(sample: &Sample, told: &mut Map<String, Value>) {
    if let Some(trouble) = &sample.trouble {
        told.insert("binlog".into(), trouble.state.as_str().into());
        told.insert("trouble-age".into(), trouble.age.into());
    }
}

fn rates(line: &Line, has_rates: bool, told: &mut Map<String, Value>) {
    if has_rates {
        told.insert("puts".into(), rounded(line.puts));
        told.insert("deletes".into(), rounded(line.deletes));
    }
}

/// A tube with its numbers; what is not known is left out.
fn row(line: &Line, has_rates: bool, known: Option<&Known>) -> Map<String, Value> {
    let mut told = Map::new();
    told.insert("name".into(), line.tube.as_str().into());
    counts(line, &mut told);
    rates(line, has_rates, &mut told);
    if line.paused > 0 {
        told.insert("paused".into(), line.paused.into());
    }
    let Some(known) = known else { return told };
    if let Some(next) = known.next {
        told.insert("next".into(), rounded(next));
    }
    if let Some(recent) = known.recent() {
        let bounds = [("half", recent.bound(50)), ("most", recent.bound(95))];
        for (name, bound) in bounds {
            // JSON has no infinity.
            if let Some(bound) = bound {
                let value = if bound.is_finite() { rounded(bound) } else { Value::from("longest") };
                told.insert(name.into(), value);
            }
        }
    }
    told
}

/// Three digits behind the point are enough to be seen.
fn rounded(number: f64) -> Value {
    ((number * 1000.0).round() / 1000.0).into()
}

/// The past as a list for each line of the charts; an unknown number is null.
fn past(points: &VecDeque<Point>) -> Value {
    let known = |number: Option<f64>| number.map_or(Value::Null, rounded);
    let list = |of: &dyn Fn(&Point) -> Value| points.iter().map(of).collect::<Value>();
    let mut told = Map::new();
    told.insert("at".into(), list(&|point| point.at.into()));
    for (at, name) in COUNTS.iter().enumerate() {
        told.insert((*name).to_owned(), list(&|point| point.counts[at].into()));
    }
    told.insert("puts".into(), list(&|point| known(point.rates.map(|(puts, _)| puts))));
    told.insert("deletes".into(), list(&|point| known(point.rates.map(|(_, deletes)| deletes))));
    told.insert("wait".into(), list(&|point| known(point.wait)));
    told.insert("next".into(), list(&|point| known(point.next)));
    Value::Object(told)
}
