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
use crate::plan::Instance;
use crate::progress::count_as_f64;

/// How long a page that comes back waits for a new look.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// The most rows of one answer.
const ROWS: usize = 300;

/// How much of the past a row shows, in points.
const SPARK: usize = 60;

/// How long the next job of a tube may wait before the tube needs a look, in seconds; the alerts
/// have the same limit.
const LATE_SECONDS: f64 = 300.0;

/// What a page shows.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shown {
    server: usize,
    /// Tubes with this in their names, in upper or lower case.
    filter: String,
    sort: String,
    reverse: bool,
    rows: usize,
    /// How many rows come before the first one that is shown.
    from: usize,
    /// The tube that is open.
    tube: Option<String>,
}

/// The names of the counts.
const COUNTS: [&str; 5] = ["ready", "reserved", "delayed", "buried", "waiting"];

/// Why a tube needs a look: jobs are buried, it is paused, its next job waits for too long, or it
/// has ready jobs and no workers. The gravest is the first.
const TROUBLES: [&str; 4] = ["buried", "paused", "late", "unattended"];

/// A tube, and which of the [`TROUBLES`] it has.
type Judged<'a> = (&'a Line, [bool; 4]);

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
        let mut answer = Map::from_iter([("server".to_owned(), server(name, &state))]);
        let names = details(&state, &shown, &mut answer);
        drop(state);
        let others = asked.iter().map(|(name, ask)| brief(name, &ask.wait(Duration::ZERO)));
        answer.insert("servers".into(), others.map(Value::Object).collect());
        (answer, names)
    })
    .await
    .map_err(|error| anyhow!("{error}"))?;
    // With the next look come the times of these.
    chosen.ask(names.iter().map(String::as_str));
    answer.insert("chosen".into(), at.into());
    Ok(Json(Value::Object(answer)))
}

/// Makes an object of what is known; an unknown number is left out, because it is no zero.
fn known(value: Value) -> Map<String, Value> {
    let Value::Object(mut object) = value else { unreachable!("it is written as an object") };
    object.retain(|_, value| !value.is_null());
    object
}

fn counts(line: &Line) -> Map<String, Value> {
    COUNTS.iter().zip(line.counts).map(|(name, count)| ((*name).to_owned(), count.into())).collect()
}

fn rates(line: &Line, has_rates: bool) -> Map<String, Value> {
    let rate = |rate: f64| has_rates.then(|| rounded(rate));
    known(json!({ "puts": rate(line.puts), "deletes": rate(line.deletes) }))
}

/// One line of a server.
fn brief(name: &str, state: &State) -> Map<String, Value> {
    let mut told = known(json!({ "name": name }));
    match &state.now {
        None => {}
        Some(Err(error)) => told.extend(known(json!({ "error": error }))),
        Some(Ok(sample)) => {
            let trouble = sample.trouble.as_ref();
            told.extend(counts(&sample.server));
            told.extend(known(json!({
                "draining": sample.is_draining(),
                "binlog": trouble.map(|trouble| &trouble.state),
                "trouble-age": trouble.map(|trouble| trouble.age),
            })));
        }
    }
    told
}

/// All of the chosen server.
fn server(name: &str, state: &State) -> Value {
    let mut told = brief(name, state);
    if let Some(Ok(sample)) = &state.now {
        told.extend(rates(&sample.server, sample.has_rates));
        told.insert("stats".into(), object(&sample.stats).into());
        told.insert("instance".into(), json!(Instance::from_stats(&sample.stats)));
    }
    told.insert("past".into(), past(&state.server.past));
    Value::Object(told)
}

/// Adds the rows of tubes, and the open tube. Returns the names of those that are shown.
fn details(state: &State, shown: &Shown, answer: &mut Map<String, Value>) -> Vec<String> {
    let Some(Ok(sample)) = &state.now else { return Vec::new() };
    let judged = |line| (line, troubles(line, state.next.get(&line.tube).copied()));
    if let Some(name) = &shown.tube {
        let line = sample.tubes.iter().find(|line| line.tube == *name);
        let value = line.map_or(Value::Null, |line| {
            let mut told = row(&judged(line), sample, state);
            let points = state.tubes.get(name).map(|known| past(&known.past));
            told.insert("past".into(), points.into());
            Value::Object(told)
        });
        answer.insert("tube".into(), value);
    }
    if shown.rows == 0 {
        return Vec::new();
    }
    let all: Vec<Judged<'_>> = sample.tubes.iter().map(judged).collect();
    let count = |at: usize| all.iter().filter(|(_, troubles)| troubles[at]).count();
    let counted = TROUBLES.iter().enumerate();
    let kinds: Map<_, _> = counted.map(|(at, name)| ((*name).into(), count(at).into())).collect();
    let need = all.iter().filter(|(_, troubles)| troubles.contains(&true)).count();
    let lines = chosen(all, shown);
    let matched = lines.len();
    let lines = lines.into_iter().skip(shown.from).take(shown.rows.min(ROWS).min(WANTED));
    let mut names = Vec::new();
    let rows: Value = lines
        .map(|line| {
            let mut told = row(&line, sample, state);
            if let Some(known) = state.tubes.get(&line.0.tube) {
                let begin = known.past.len().saturating_sub(SPARK);
                let ready = known.past.iter().skip(begin).map(|point| point.counts[0]);
                told.insert("spark".into(), ready.collect());
            }
            names.push(line.0.tube.clone());
            Value::Object(told)
        })
        .collect();
    let (all, from) = (sample.tubes.len(), shown.from);
    let tubes = json!({ "all": all, "matched": matched, "from": from, "rows": rows,
        "need": need, "troubles": kinds });
    answer.insert("tubes".into(), tubes);
    names
}

/// Judges a tube by its numbers, and by how long its next job has waited, if that is known.
fn troubles(line: &Line, next: Option<f64>) -> [bool; 4] {
    let [ready, _, _, buried, _] = line.counts;
    let is_paused = line.paused > 0;
    let is_late = !is_paused && next.is_some_and(|next| next >= LATE_SECONDS);
    // The connection of the looks watches `default`, and works on nothing.
    let workers = line.watching.saturating_sub(u64::from(line.tube == "default"));
    [buried > 0, is_paused, is_late, ready > 0 && workers == 0]
}

/// Returns the tubes that are meant, in the order that is meant.
fn chosen<'a>(mut lines: Vec<Judged<'a>>, shown: &Shown) -> Vec<Judged<'a>> {
    let part = shown.filter.to_ascii_lowercase();
    lines.retain(|(line, _)| line.tube.to_ascii_lowercase().contains(&part));
    let count = |line: &Line, at: usize| count_as_f64(line.counts[at]);
    let number = |(line, troubles): &Judged<'_>| match shown.sort.as_str() {
        "trouble" => troubles.iter().rev().fold(0.0, |rank, is| rank / 2.0 + f64::from(*is)),
        "puts" => line.puts,
        "deletes" => line.deletes,
        sort => COUNTS.iter().position(|name| *name == sort).map_or(0.0, |at| count(line, at)),
    };
    // The largest first; the names keep their order, so that equal rows stay where they are.
    lines.sort_by(|a, b| {
        let by_ready = count(b.0, 0).total_cmp(&count(a.0, 0));
        let by_ready = if shown.sort == "trouble" { by_ready } else { Ordering::Equal };
        number(b).total_cmp(&number(a)).then(by_ready)
    });
    if shown.reverse {
        lines.reverse();
    }
    lines
}

/// A tube with its numbers.
fn row((line, troubles): &Judged<'_>, sample: &Sample, state: &State) -> Map<String, Value> {
    let recent = state.tubes.get(&line.tube).and_then(Known::recent);
    let bound = |percent| {
        let bound = recent.as_ref()?.bound(percent)?;
        // JSON has no infinity.
        Some(if bound.is_finite() { rounded(bound) } else { "longest".into() })
    };
    let names = TROUBLES.iter().zip(troubles).filter(|(_, is)| **is).map(|(name, _)| *name);
    let mut told = known(json!({
        "name": line.tube,
        "paused": Some(line.paused).filter(|left| *left > 0),
        "trouble": names.collect::<Vec<_>>(),
        "next": state.next.get(&line.tube).map(|next| rounded(*next)),
        "half": bound(50),
        "most": bound(95),
    }));
    told.extend(counts(line));
    told.extend(rates(line, sample.has_rates));
    told
}

/// Three digits behind the point are enough to be seen.
fn rounded(number: f64) -> Value {
    ((number * 1000.0).round() / 1000.0).into()
}

/// The past as a list for each line of the charts; an unknown number is null.
fn past(points: &VecDeque<Point>) -> Value {
    let list = |of: &dyn Fn(&Point) -> Value| points.iter().map(of).collect::<Value>();
    let number = |of: &dyn Fn(&Point) -> Option<f64>| list(&|point| of(point).map(rounded).into());
    let mut told = Map::new();
    told.insert("at".into(), list(&|point| point.at.into()));
    for (at, name) in COUNTS.iter().enumerate() {
        told.insert((*name).to_owned(), list(&|point| point.counts[at].into()));
    }
    told.insert("puts".into(), number(&|point| point.rates.map(|(puts, _)| puts)));
    told.insert("deletes".into(), number(&|point| point.rates.map(|(_, deletes)| deletes)));
    told.insert("wait".into(), number(&|point| point.wait));
    told.insert("next".into(), number(&|point| point.next));
    Value::Object(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(tube: &str, counts: [u64; 5], paused: u64, watching: u64) -> Line {
        Line { tube: tube.to_owned(), counts, puts: 0.0, deletes: 0.0, paused, watching }
    }

    /// With 121 tubes, the one with a buried job was not among the 100 that were shown.
    #[test]
    fn trouble_comes_first_and_the_gravest_before_all() {
        let mut lines: Vec<_> =
            (0..121).map(|number| line(&format!("t{number}"), [500, 9, 0, 0, 9], 0, 9)).collect();
        lines[120].counts[3] = 1;
        lines[90].paused = 5;
        lines[60].watching = 0;
        let judge = |line| (line, troubles(line, (line.tube == "t30").then_some(300.0)));
        let shown = Shown { sort: "trouble".into(), ..Shown::default() };
        let found = chosen(lines.iter().map(judge).collect(), &shown);
        let names: Vec<_> = found.iter().take(5).map(|(line, _)| line.tube.as_str()).collect();
        assert_eq!(names, ["t120", "t90", "t30", "t60", "t0"]);
    }

    #[test]
    fn a_tube_needs_a_look_for_a_reason() {
        let judge = |line: &Line, next| troubles(line, next);
        assert_eq!(judge(&line("a", [5, 0, 9, 0, 0], 0, 1), Some(299.0)), [false; 4]);
        assert_eq!(judge(&line("a", [0, 0, 9, 0, 0], 0, 0), None), [false; 4], "nothing to do");
        let paused = judge(&line("a", [5, 0, 0, 0, 0], 9, 1), Some(999.0));
        assert_eq!(paused, [false, true, false, false], "it waits because it is paused");
        let alone = judge(&line("default", [5, 0, 0, 0, 0], 0, 1), None);
        assert!(alone[3], "the page itself is no worker");
    }
}
