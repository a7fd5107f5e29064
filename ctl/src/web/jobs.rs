//! What the page shows of jobs: lists, hits of a search, one job, and its body as it is.
//!
//! Bodies are any bytes. They leave here as text in JSON, as base64 or as a file to be stored, and
//! never as a document.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State as Given};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex::bytes::Regex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::{Failure, Site, with_client};
use crate::client::Client;
use crate::filter::{self, Filter, Tubes};
use crate::http::Pieces;
use crate::interrupt::{Interrupt, Interrupted};
use crate::job::{Job, State};
use crate::listing::{self, Detail, Request};
use crate::output::one_line;
use crate::plan::Instance;
use crate::sweep::{self, Coverage, Options};

/// How long a server that cannot list its jobs is looked through.
const LOOK_TIME: Duration = Duration::from_secs(5);

/// The same, if the page asks to look longer, and for a search.
const LONG_TIME: Duration = Duration::from_secs(45);

/// The most jobs of one answer.
const LIMIT: usize = 500;

/// How much of a body a list shows.
const PREVIEW: usize = 160;

/// How much of it stands before what was found.
const BEFORE: usize = 40;

/// How many bodies are fetched at once for a list, and how many bytes of them in all.
const BODIES: usize = 8;
const PREVIEWED: u64 = 16 << 20;

/// How much of a body is shown at first, and on request.
const SHOWN: usize = 256 << 10;
const WHOLE: usize = 16 << 20;

/// Which jobs a page wants to see.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    server: usize,
    tube: Option<String>,
    state: Option<State>,
    /// A regular expression or plain text for bodies.
    pattern: Option<String>,
    plain: bool,
    ignore_case: bool,
    limit: usize,
    longer: bool,
}

/// Makes the filter of a question.
fn filter_of(wanted: &Wanted) -> Result<Filter, Failure> {
    let text = wanted.pattern.as_deref();
    let pattern = text.map(|text| filter::pattern(text, wanted.plain, wanted.ignore_case));
    Ok(Filter {
        tubes: wanted.tube.as_deref().map_or_else(Tubes::default, Tubes::one),
        states: wanted.state.into_iter().collect(),
        pattern: pattern.transpose()?,
        ..Filter::default()
    })
}

/// Answers a list of jobs.
pub(super) async fn list(
    Given(site): Given<Arc<Site>>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Value>, Failure> {
    let watcher = site.server(wanted.server)?;
    let filter = filter_of(&wanted)?;
    let limit = wanted.limit.clamp(1, LIMIT);
    let is_long = wanted.longer || filter.pattern.is_some();
    let time = if is_long { LONG_TIME } else { LOOK_TIME };
    let permit = if filter.pattern.is_some() { Some(site.heavy().await?) } else { None };
    let found = with_client(watcher, time, move |client, interrupt| {
        // The work may outlive its request.
        let _permit = permit;
        find(client, &filter, limit, interrupt)
    });
    found.await.map(Json)
}

/// A job without its body; ids are text, because they may be larger than a page's numbers.
fn object(mut job: Job) -> Value {
    job.body = None;
    let mut told = job.to_json();
    told.insert("id".into(), job.id.to_string().into());
    Value::Object(told)
}

/// A job with the beginning of its body, or with what is around the first match.
fn row(mut job: Job, pattern: Option<&Regex>) -> Value {
    let preview = job.body.take().map(|body| preview(&body, pattern));
    let mut told = object(job);
    if let Some(preview) = preview {
        told["preview"] = preview.into();
    }
    told
}

/// Looks for jobs, and says whether there are more.
fn find(
    client: &mut Client,
    filter: &Filter,
    limit: usize,
    interrupt: &Interrupt,
) -> Result<Value> {
    // Without the instance of the server an id means nothing.
    let instance = Instance::from_stats(&client.yaml("stats")?);
    let detail = if filter.pattern.is_some() {
        Detail::Whole
    } else if client.has("list-jobs")? {
        Detail::Size
    } else {
        Detail::Stats
    };
    let options = Options { is_quiet: true, ..Options::default() };
    let most = Some(limit as u64 + 1);
    let request = Request { filter, detail, limit: most, options: &options, interrupt };
    let (mut rows, mut fetched, mut has_more) = (Vec::new(), 0, false);
    let coverage = listing::list(client, &request, &mut |client, mut jobs| {
        let room = limit - rows.len();
        has_more = jobs.len() > room;
        jobs.truncate(room);
        if detail != Detail::Whole {
            jobs = with_beginnings(client, jobs, &mut fetched)?;
        }
        rows.extend(jobs.into_iter().map(|job| row(job, filter.pattern.as_ref())));
        Ok(if has_more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    let coverage = match coverage {
        Ok(Coverage::Complete | Coverage::Enough) => "all",
        Ok(Coverage::Unsure(..)) => "unsure",
        Err(error) if error.is::<Interrupted>() => "cut",
        Err(error) => return Err(error),
    };
    Ok(json!({ "instance": instance, "jobs": rows, "more": has_more, "coverage": coverage }))
}

/// Adds the bodies of jobs, as far as not too much must be fetched for them.
fn with_beginnings(client: &mut Client, mut rest: Vec<Job>, fetched: &mut u64) -> Result<Vec<Job>> {
    let mut done = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let later = rest.split_off(rest.len().min(BODIES));
        let bytes = |jobs: &[Job]| jobs.iter().filter_map(|job| job.size).sum::<u64>();
        if fetched.saturating_add(bytes(&rest)) <= PREVIEWED {
            rest = sweep::with_bodies(client, rest)?;
            *fetched += bytes(&rest);
        }
        done.append(&mut rest);
        rest = later;
    }
    Ok(done)
}

/// Returns the beginning of a body in one line, or what is around the first match.
fn preview(body: &[u8], pattern: Option<&Regex>) -> String {
    let found = pattern.and_then(|pattern| pattern.find(body)).map_or(0, |found| found.start());
    let mut begin = if found > PREVIEW / 2 { found - BEFORE } else { 0 };
    // Not in the middle of a character.
    while begin > 0 && begin < body.len() && body[begin] & 0xc0 == 0x80 {
        begin -= 1;
    }
    let mut end = body.len().min(begin + PREVIEW);
    while end > begin && end < body.len() && body[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let (before, after) =
        (if begin > 0 { "…" } else { "" }, if end < body.len() { "…" } else { "" });
    format!("{before}{}{after}", one_line(&body[begin..end]))
}

/// The job that a page wants to see.
#[derive(Debug, Deserialize)]
pub(super) struct One {
    #[serde(default)]
    server: usize,
    id: u64,
    #[serde(default)]
    whole: bool,
}

/// Fetches a job with its body, and the permit to hold it.
async fn fetch(site: &Site, one: &One) -> Result<(Job, Instance, OwnedSemaphorePermit), Failure> {
    let (watcher, id) = (site.server(one.server)?, one.id);
    let permit = site.heavy().await?;
    let found = with_client(watcher, LONG_TIME, move |client, _| {
        let instance = Instance::from_stats(&client.yaml("stats")?);
        let jobs = sweep::stats_of(client, [id])?;
        let job = sweep::with_bodies(client, jobs)?.pop();
        Ok(job.map(|job| (job, instance, permit)))
    });
    let found = found.await?;
    found.ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, format!("there is no job {id}")))
}

/// Answers a job, with its body or the beginning of it.
pub(super) async fn one(
    Given(site): Given<Arc<Site>>,
    Query(one): Query<One>,
) -> Result<Response, Failure> {
    let (mut job, instance, permit) = fetch(&site, &one).await?;
    let body = job.body.take().unwrap_or_default();
    let mut told = object(job);
    told["instance"] = json!(instance);
    let shown = &body[..body.len().min(if one.whole { WHOLE } else { SHOWN })];
    match text_of(shown, shown.len() < body.len()) {
        Some(text) => told["text"] = text.into(),
        None => told["base64"] = BASE64.encode(shown).into(),
    }
    told["shown"] = shown.len().into();
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((headers, Body::new(Pieces::new([told.to_string()], permit))).into_response())
}

/// Returns what can be read as text, without a character that was cut in two.
fn text_of(body: &[u8], is_cut: bool) -> Option<&str> {
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(error) if is_cut && error.error_len().is_none() => {
            std::str::from_utf8(&body[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_odd = |it: char| it.is_control() && !matches!(it, '\t' | '\n' | '\r');
    (!text.contains(is_odd)).then_some(text)
}

/// Answers a body, byte by byte, to be stored.
pub(super) async fn body(
    Given(site): Given<Arc<Site>>,
    Query(one): Query<One>,
) -> Result<Response, Failure> {
    let (job, _, permit) = fetch(&site, &one).await?;
    let name = format!("attachment; filename=\"job-{}\"", job.id);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, Body::new(Pieces::new(job.body, permit))).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_one_line_around_what_was_found() {
        assert_eq!(preview(b"a\r\n\0\xff", None), "a\\r\\n\\u{0}\\xff");
        let body = format!("{}needle{}", "é".repeat(300), "x".repeat(900));
        let pattern = filter::pattern("needle", true, false).unwrap();
        let shown = preview(body.as_bytes(), Some(&pattern));
        assert!(shown.starts_with("…é") && shown.contains("needlexx") && shown.ends_with("x…"));
        assert!(!preview(body.as_bytes(), None).contains("\\x"), "no character is cut in two");
    }

    #[test]
    fn text_is_what_can_be_read() {
        assert_eq!(text_of("é\n".as_bytes(), false), Some("é\n"));
        assert_eq!(text_of(&"aé".as_bytes()[..2], true), Some("a"));
        assert_eq!(text_of(&"aé".as_bytes()[..2], false), None, "the body itself ends there");
        for odd in [&b"a\0b"[..], b"a\xffb", b"\x1b[2J"] {
            assert_eq!(text_of(odd, true), None);
        }
    }
}
