//! Responds with servers and tubes, but only with the rows that the page shows.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Error;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Shared};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use super::watch::{Point, TubeHistory, Watched, Watcher};
use super::{Failure, Site};
use crate::output::json_object;
use crate::plan::Instance;
use crate::progress::count_as_f64;
use crate::sample::{COUNT_NAMES, Sample, TubeSample};
use crate::yaml;

/// How long a request waits for a first sample, if the server was not being sampled.
const SAMPLE_WAIT: Duration = Duration::from_millis(1_500);

/// The largest number of rows in a response.
const ROWS_MAX: usize = 300;

/// The number of points in the chart of a row.
const SPARK_POINTS: usize = 60;

/// A tube needs attention if its next job has waited at least this many seconds; the Prometheus
/// alerts have the same limit.
const LATE_SECONDS: f64 = 300.0;

/// A request for the part of the data that a page shows.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ViewRequest {
    server: usize,
    /// Selects tubes whose names contain this text, regardless of upper and lower case.
    filter: String,
    sort: String,
    reverse: bool,
    rows: usize,
    /// The number of rows to skip before the first row shown.
    from: usize,
    /// The tube whose details are shown.
    tube: Option<String>,
}

/// Reasons why a tube needs attention, the gravest first: the tube has buried jobs, it is paused,
/// its next job has waited too long, or it has ready jobs but no workers.
const TROUBLE_NAMES: [&str; 4] = ["buried", "paused", "late", "unattended"];

/// A tube, with a flag for each of the [`TROUBLE_NAMES`].
type Judged<'a> = (&'a TubeSample, [bool; 4]);

impl ViewRequest {
    /// Adds to the page's view the rows of tubes, and the details of one tube. Returns the names of
    /// the tubes in these rows.
    fn add_tube_rows(&self, state: &Watched, answer: &mut Map<String, Value>) -> Vec<String> {
        let Some(Ok(sample)) = &state.now else { return Vec::new() };
        let judged = |line| (line, tube_troubles(line, state.next.get(&line.tube).copied()));
        if let Some(name) = &self.tube {
            let line = sample.find_tube(name);
            let value = line.map_or(Value::Null, |line| {
                let mut fields = tube_row(&judged(line), sample, state);
                let points = state.tubes.get(name).map(|known| chart_history(&known.points));
                fields.insert("past".into(), points.into());
                Value::Object(fields)
            });
            answer.insert("tube".into(), value);
        }
        if self.rows == 0 {
            return Vec::new();
        }
        let all: Vec<Judged<'_>> = sample.tubes.iter().map(judged).collect();
        let count = |at: usize| all.iter().filter(|(_, troubles)| troubles[at]).count();
        let each = TROUBLE_NAMES.iter().enumerate();
        let kinds: Map<_, _> = each.map(|(at, name)| ((*name).into(), count(at).into())).collect();
        let need = all.iter().filter(|(_, troubles)| troubles.contains(&true)).count();
        let lines = self.select_tubes(all);
        let matched = lines.len();
        let lines = lines.into_iter().skip(self.from).take(self.rows.min(ROWS_MAX));
        let mut names = Vec::new();
        let rows: Value = lines
            .map(|line| {
                let mut fields = tube_row(&line, sample, state);
                if let Some(known) = state.tubes.get(&line.0.tube) {
                    let begin = known.points.len().saturating_sub(SPARK_POINTS);
                    let ready = known.points.iter().skip(begin).map(|point| point.counts[0]);
                    fields.insert("spark".into(), ready.collect());
                }
                names.push(line.0.tube.clone());
                Value::Object(fields)
            })
            .collect();
        let (all, from) = (sample.tubes.len(), self.from);
        let tubes = json!({ "all": all, "matched": matched, "from": from, "rows": rows,
            "need": need, "troubles": kinds });
        answer.insert("tubes".into(), tubes);
        names
    }

    /// Returns the tubes to view, in the chosen order.
    fn select_tubes<'a>(&self, mut lines: Vec<Judged<'a>>) -> Vec<Judged<'a>> {
        let part = self.filter.to_ascii_lowercase();
        lines.retain(|(line, _)| line.tube.to_ascii_lowercase().contains(&part));
        let count = |line: &TubeSample, at: usize| count_as_f64(line.counts[at]);
        let number = |(line, troubles): &Judged<'_>| match self.sort.as_str() {
            "trouble" => troubles.iter().rev().fold(0.0, |rank, is| rank / 2.0 + f64::from(*is)),
            "puts" => line.puts,
            "deletes" => line.deletes,
            sort => COUNT_NAMES.iter().position(|it| *it == sort).map_or(0.0, |at| count(line, at)),
        };
        // The largest numbers are first; the sort is stable, so equal rows keep the order of names.
        lines.sort_by(|a, b| {
            let by_ready = count(b.0, 0).total_cmp(&count(a.0, 0));
            let by_ready = if self.sort == "trouble" { by_ready } else { Ordering::Equal };
            number(b).total_cmp(&number(a)).then(by_ready)
        });
        if self.reverse {
            lines.reverse();
        }
        lines
    }
}

/// Responds with a summary of each server, and the tubes of the chosen server.
pub(super) async fn serve_overview(
    Shared(site): Shared<Arc<Site>>,
    shown: Result<Query<ViewRequest>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(shown) = shown?;
    let chosen = site.server(shown.server)?;
    let request = |server: &Watcher| {
        let tube = shown.tube.as_deref().filter(|_| std::ptr::eq(server, chosen));
        (server.address.to_string(), server.request(tube))
    };
    let requests: Vec<_> = site.servers.iter().map(request).collect();
    let at = shown.server;
    let (mut answer, names) = spawn_blocking(move || {
        let (name, request) = &requests[at];
        // Wait only for the chosen server; the other servers are sampled meanwhile.
        let state = request.wait(SAMPLE_WAIT);
        let mut answer = Map::from_iter([("server".to_owned(), server_details(name, &state))]);
        let names = shown.add_tube_rows(&state, &mut answer);
        drop(state);
        let all = requests.iter().map(|(name, request)| (name, request.wait(Duration::ZERO)));
        let all = all.map(|(name, state)| Value::Object(server_summary(name, &state)));
        answer.insert("servers".into(), all.collect());
        (answer, names)
    })
    .await
    .map_err(Error::from)?;
    // With the next sample, request the figures of the tubes in these rows.
    chosen.request(names.iter().map(String::as_str));
    answer.insert("chosen".into(), at.into());
    Ok(Json(Value::Object(answer)))
}

/// Returns the rates of a tube or server as JSON.
fn rates_as_json(line: &TubeSample, has_rates: bool) -> Map<String, Value> {
    let rate = |rate: f64| has_rates.then(|| rounded_json(rate));
    json_object(json!({ "puts": rate(line.puts), "deletes": rate(line.deletes) }))
}

/// Returns a summary of the state of a server for the view of all servers.
fn server_summary(name: &str, state: &Watched) -> Map<String, Value> {
    let mut fields = json_object(json!({ "name": name }));
    match &state.now {
        None => {}
        Some(Err(error)) => fields.extend(json_object(json!({ "error": error }))),
        Some(Ok(sample)) => {
            fields.extend(sample.server.counts_json());
            fields.extend(json_object(json!({
                "draining": sample.is_draining(),
                "binlog": sample.binlog_trouble(),
            })));
        }
    }
    fields
}

/// Returns the details of the server that the page has chosen to view.
fn server_details(name: &str, state: &Watched) -> Value {
    let mut fields = server_summary(name, state);
    if let Some(Ok(sample)) = &state.now {
        fields.extend(rates_as_json(&sample.server, sample.has_rates));
        fields.insert("stats".into(), yaml::dictionary_to_json(&sample.stats).into());
        fields.insert("instance".into(), json!(Instance::from_stats(&sample.stats)));
    }
    fields.insert("past".into(), chart_history(&state.server.points));
    Value::Object(fields)
}

/// Finds the reasons why a tube needs attention, from its numbers and the wait of its next job, if
/// this wait is known.
fn tube_troubles(line: &TubeSample, next: Option<f64>) -> [bool; 4] {
    let [ready, _, _, buried, _] = line.counts;
    let is_paused = line.paused > 0;
    let is_late = !is_paused && next.is_some_and(|next| next >= LATE_SECONDS);
    // Subtract the sampler's connection, which watches `default`, but is not a worker.
    let workers = line.watching.saturating_sub(u64::from(line.tube == "default"));
    [buried > 0, is_paused, is_late, ready > 0 && workers == 0]
}

/// Returns the row of a tube: its name and numbers.
fn tube_row((line, troubles): &Judged<'_>, sample: &Sample, state: &Watched) -> Map<String, Value> {
    let known = state.tubes.get(&line.tube);
    let recent = known.and_then(TubeHistory::recent_waits);
    let bound = |percent| {
        let bound = recent.as_ref()?.percentile(percent)?;
        // JSON has no infinity.
        Some(if bound.is_finite() { rounded_json(bound) } else { "longest".into() })
    };
    let names = TROUBLE_NAMES.iter().zip(troubles).filter(|(_, is)| **is).map(|(name, _)| *name);
    let mut fields = json_object(json!({
        "name": line.tube,
        "paused": Some(line.paused).filter(|left| *left > 0),
        "trouble": names.collect::<Vec<_>>(),
        "next": state.next.get(&line.tube).map(|next| rounded_json(*next)),
        "half": bound(50),
        "most": bound(95),
        "losses": known.and_then(|known| known.losses),
    }));
    fields.extend(line.counts_json());
    fields.extend(rates_as_json(line, sample.has_rates));
    fields
}

/// Rounds to three decimals, which is enough for the page.
fn rounded_json(number: f64) -> Value {
    ((number * 1000.0).round() / 1000.0).into()
}

/// Returns the history: for each line of the charts, a list of numbers, with null for an unknown
/// number.
fn chart_history(points: &VecDeque<Point>) -> Value {
    let list = |of: &dyn Fn(&Point) -> Value| points.iter().map(of).collect::<Value>();
    let number = |of: &dyn Fn(&Point) -> Option<f64>| list(&|it| of(it).map(rounded_json).into());
    let mut fields = Map::new();
    fields.insert("at".into(), list(&|point| point.at.into()));
    for (at, name) in COUNT_NAMES.iter().enumerate() {
        fields.insert((*name).to_owned(), list(&|point| point.counts[at].into()));
    }
    fields.insert("puts".into(), number(&|point| point.rates.map(|(puts, _)| puts)));
    fields.insert("deletes".into(), number(&|point| point.rates.map(|(_, deletes)| deletes)));
    fields.insert("wait".into(), number(&|point| point.wait));
    fields.insert("next".into(), number(&|point| point.next));
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(tube: &str, counts: [u64; 5], paused: u64, watching: u64) -> TubeSample {
        TubeSample { tube: tube.to_owned(), counts, puts: 0.0, deletes: 0.0, paused, watching }
    }

    /// In another order, a tube with a buried job might not be among the first 100 of 121 tubes.
    #[test]
    fn trouble_comes_first_and_the_gravest_before_all() {
        let mut lines: Vec<_> =
            (0..121).map(|number| line(&format!("t{number}"), [500, 9, 0, 0, 9], 0, 9)).collect();
        lines[120].counts[3] = 1;
        lines[90].paused = 5;
        lines[60].watching = 0;
        let judge = |line| (line, tube_troubles(line, (line.tube == "t30").then_some(300.0)));
        let shown = ViewRequest { sort: "trouble".into(), ..ViewRequest::default() };
        let found = shown.select_tubes(lines.iter().map(judge).collect());
        let names: Vec<_> = found.iter().take(5).map(|(line, _)| line.tube.as_str()).collect();
        assert_eq!(names, ["t120", "t90", "t30", "t60", "t0"]);
    }

    #[test]
    fn a_tube_needs_a_look_for_a_reason() {
        let judge = |line: &TubeSample, next| tube_troubles(line, next);
        assert_eq!(judge(&line("a", [5, 0, 9, 0, 0], 0, 1), Some(299.0)), [false; 4]);
        assert_eq!(judge(&line("a", [0, 0, 9, 0, 0], 0, 0), None), [false; 4], "nothing to do");
        let paused = judge(&line("a", [5, 0, 0, 0, 0], 9, 1), Some(999.0));
        assert_eq!(paused, [false, true, false, false], "jobs of a paused tube are not late");
        let alone = judge(&line("default", [5, 0, 0, 0, 0], 0, 1), None);
        assert!(alone[3], "the page itself is no worker");
    }
}
