//! The jobs on the page: lists, search results, single jobs, and downloads of bodies.
//!
//! Bodies are arbitrary bytes. A body is sent as text in JSON, as base64 or as a download, and
//! never as a document that a browser would show.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Shared};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex::bytes::Regex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::{Failure, Site};
use crate::client::Client;
use crate::filter::{Filter, Tubes};
use crate::http::SharedBody;
use crate::interrupt::{Interrupt, Interrupted};
use crate::job::{Job, State};
use crate::listing::{self, Detail, Request};
use crate::output::inert_body;
use crate::plan::Instance;
use crate::sweep::{self, Coverage, Options};

/// The time limit of a sweep on a server without `list-jobs`.
const SWEEP_TIME_LIMIT: Duration = Duration::from_secs(5);

/// The time limit of a search. A sweep has this limit, too, if the page asks for more time.
const SEARCH_TIME_LIMIT: Duration = Duration::from_secs(45);

/// The largest number of jobs in a response.
const JOBS_MAX: usize = 500;

/// The number of bytes of a body shown in a list.
const PREVIEW_BYTES: usize = 160;

/// The number of bytes of a body that a list shows before a match.
const PREVIEW_BYTES_BEFORE: usize = 40;

/// The number of bodies fetched at once for a list.
const BODIES_AT_ONCE: usize = 8;
/// The most bytes, in total, of the bodies that are fetched for a list.
const PREVIEWED_BYTES_MAX: u64 = 16 << 20;

/// How many bytes of a body the page shows at most, unless the user asks for more.
const SHOWN_BYTES: usize = 256 << 10;
/// How many bytes of a body the page shows at most, if the user asks for more.
const SHOWN_BYTES_MAX: usize = 16 << 20;

/// A request for a list of jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListRequest {
    server: usize,
    tube: Option<String>,
    state: Option<State>,
    /// A regular expression, or plain text, that bodies must match.
    pattern: Option<String>,
    plain: bool,
    ignore_case: bool,
    limit: usize,
    longer: bool,
}

impl ListRequest {
    /// Makes the filter that the page requests.
    fn filter(&self) -> Result<Filter, Failure> {
        let text = self.pattern.as_deref();
        let pattern = text.map(|text| Filter::to_pattern(text, self.plain, self.ignore_case));
        let tubes = self.tube.as_deref().map_or_else(Tubes::default, Tubes::of_name);
        let (states, pattern) = (self.state.into_iter().collect(), pattern.transpose()?);
        Ok(Filter { tubes, states, pattern, ..Filter::default() })
    }

    /// Finds the jobs that the page requests, and reports whether the server has more jobs.
    fn find(&self, client: &mut Client, filter: &Filter, interrupt: &Interrupt) -> Result<Value> {
        // The page needs the instance, because an id may mean another job in another instance of
        // the server.
        let instance = Instance::from_stats(&client.yaml("stats")?);
        let detail = if filter.pattern.is_some() {
            Detail::Whole
        } else if client.has_extension("list-jobs")? {
            Detail::Size
        } else {
            Detail::Listed
        };
        let options = Options { is_quiet: true, ..Options::default() };
        let limit = self.limit.clamp(1, JOBS_MAX);
        let most = Some(limit as u64 + 1);
        let request = Request { filter, detail, limit: most, options: &options, interrupt };
        let (mut rows, mut fetched, mut has_more) = (Vec::new(), 0, false);
        let coverage = listing::list_jobs(client, &request, &mut |client, mut jobs| {
            let room = limit - rows.len();
            has_more = jobs.len() > room;
            jobs.truncate(room);
            if detail != Detail::Whole {
                jobs = add_previews(client, jobs, &mut fetched)?;
            }
            rows.extend(jobs.into_iter().map(|job| preview_object(job, filter.pattern.as_ref())));
            Ok(if has_more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        let coverage = match coverage {
            Ok(Coverage::Complete | Coverage::Stopped) => "all",
            Ok(Coverage::Incomplete(..)) => "unsure",
            Err(error) if error.is::<Interrupted>() => "cut",
            Err(error) => return Err(error),
        };
        Ok(json!({ "instance": instance, "jobs": rows, "more": has_more, "coverage": coverage }))
    }
}

/// Responds with a list of jobs.
pub(super) async fn serve_jobs(
    Shared(site): Shared<Arc<Site>>,
    request: Result<Query<ListRequest>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(request) = request?;
    let watcher = site.server(request.server)?;
    let filter = request.filter()?;
    let is_long = request.longer || filter.pattern.is_some();
    let time = if is_long { SEARCH_TIME_LIMIT } else { SWEEP_TIME_LIMIT };
    let permit = if filter.pattern.is_some() { Some(site.body_permit().await?) } else { None };
    let found = watcher.with_client(time, move |client, interrupt| {
        // Keep the permit until the work of the search ends, even if the request ends earlier.
        let _permit = permit;
        request.find(client, &filter, interrupt)
    });
    found.await.map(Json)
}

/// Returns a job without its body, as JSON for the page. The id is text, because JavaScript's
/// numbers are exact only up to 53 bits.
fn page_job_object(mut job: Job) -> Value {
    job.body = None;
    let mut fields = job.to_json();
    fields.insert("id".into(), job.id.to_string().into());
    Value::Object(fields)
}

/// Returns a job as JSON for the page, with the beginning of the body, or with the part of the body
/// around the first match.
fn preview_object(mut job: Job, pattern: Option<&Regex>) -> Value {
    let preview = job.body.take().map(|body| body_preview(&body, pattern));
    let mut fields = page_job_object(job);
    if let Some(preview) = preview {
        fields["preview"] = preview.into();
    }
    fields
}

/// Adds the bodies to jobs of the page, up to [`PREVIEWED_BYTES_MAX`] bytes in total.
fn add_previews(client: &mut Client, mut rest: Vec<Job>, fetched: &mut u64) -> Result<Vec<Job>> {
    let mut done = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let later = rest.split_off(rest.len().min(BODIES_AT_ONCE));
        let bytes = |jobs: &[Job]| jobs.iter().filter_map(|job| job.size).sum::<u64>();
        if fetched.saturating_add(bytes(&rest)) <= PREVIEWED_BYTES_MAX {
            rest = sweep::peek_bodies(client, rest)?;
            *fetched += bytes(&rest);
        }
        done.append(&mut rest);
        rest = later;
    }
    Ok(done)
}

/// Returns, for the page, the beginning of a body on one line, or the text around the first match.
fn body_preview(body: &[u8], pattern: Option<&Regex>) -> String {
    let found = pattern.and_then(|pattern| pattern.find(body)).map_or(0, |found| found.start());
    let mut begin = if found > PREVIEW_BYTES / 2 { found - PREVIEW_BYTES_BEFORE } else { 0 };
    // A preview must not begin within a character.
    while begin > 0 && begin < body.len() && body[begin] & 0xc0 == 0x80 {
        begin -= 1;
    }
    let mut end = body.len().min(begin + PREVIEW_BYTES);
    while end > begin && end < body.len() && body[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let (before, after) =
        (if begin > 0 { "…" } else { "" }, if end < body.len() { "…" } else { "" });
    format!("{before}{}{after}", inert_body(&body[begin..end]))
}

/// A request for one job.
#[derive(Debug, Deserialize)]
pub(super) struct JobRequest {
    #[serde(default)]
    server: usize,
    id: u64,
    #[serde(default)]
    whole: bool,
}

impl JobRequest {
    /// Fetches a job with its body. The body counts against the limit on bodies in memory until the
    /// returned [`OwnedSemaphorePermit`] is dropped.
    async fn fetch_job(
        &self,
        site: &Site,
    ) -> Result<(Job, Instance, OwnedSemaphorePermit), Failure> {
        let (watcher, id) = (site.server(self.server)?, self.id);
        let permit = site.body_permit().await?;
        let found = watcher.with_client(SEARCH_TIME_LIMIT, move |client, _| {
            let instance = Instance::from_stats(&client.yaml("stats")?);
            let jobs = sweep::jobs_by_ids(client, [id])?;
            let job = sweep::peek_bodies(client, jobs)?.pop();
            Ok(job.map(|job| (job, instance, permit)))
        });
        let found = found.await?;
        found.ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, format!("no job {id}")))
    }
}

/// Responds with a job and its body; a long body is truncated.
pub(super) async fn serve_job(
    Shared(site): Shared<Arc<Site>>,
    one: Result<Query<JobRequest>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(one) = one?;
    let (mut job, instance, permit) = one.fetch_job(&site).await?;
    let body = job.body.take().unwrap_or_default();
    let mut fields = page_job_object(job);
    fields["instance"] = json!(instance);
    let shown = &body[..body.len().min(if one.whole { SHOWN_BYTES_MAX } else { SHOWN_BYTES })];
    match page_body_text(shown, shown.len() < body.len()) {
        Some(text) => fields["text"] = text.into(),
        None => fields["base64"] = BASE64.encode(shown).into(),
    }
    fields["shown"] = shown.len().into();
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((headers, Body::new(SharedBody::new([fields.to_string()], permit))).into_response())
}

/// Returns a body for the page as text, without its last character if this character is truncated;
/// `None` if the body is not text.
fn page_body_text(body: &[u8], is_cut: bool) -> Option<&str> {
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

/// Responds with the exact bytes of a body, as a download.
pub(super) async fn serve_body(
    Shared(site): Shared<Arc<Site>>,
    one: Result<Query<JobRequest>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(one) = one?;
    let (job, _, permit) = one.fetch_job(&site).await?;
    let name = format!("attachment; filename=\"job-{}\"", job.id);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, Body::new(SharedBody::new(job.body, permit))).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_one_line_around_what_was_found() {
        assert_eq!(body_preview(b"a\r\n\0\xff", None), "a\\r\\n\\u{0}\\xff");
        let body = format!("{}needle{}", "é".repeat(300), "x".repeat(900));
        let pattern = Filter::to_pattern("needle", true, false).unwrap();
        let shown = body_preview(body.as_bytes(), Some(&pattern));
        assert!(shown.starts_with("…é") && shown.contains("needlexx") && shown.ends_with("x…"));
        assert!(!body_preview(body.as_bytes(), None).contains("\\x"), "no character is cut in two");
    }

    #[test]
    fn text_is_what_can_be_read() {
        assert_eq!(page_body_text("é\n".as_bytes(), false), Some("é\n"));
        assert_eq!(page_body_text(&"aé".as_bytes()[..2], true), Some("a"));
        assert_eq!(
            page_body_text(&"aé".as_bytes()[..2], false),
            None,
            "a whole body that ends within a character is not text"
        );
        for odd in [&b"a\0b"[..], b"a\xffb", b"\x1b[2J"] {
            assert_eq!(page_body_text(odd, true), None);
        }
    }
}
