//! `web`: a page that shows servers, tubes and jobs, and can change tubes and jobs.
//!
//! - `guard` refuses requests from other pages, and limits the requests of our page;
//! - `args` defines the options, and `assets` has the page's files;
//! - `watch` samples a server while a page is open, and `metrics` reads figures of its tubes;
//! - `view` responds with servers and tubes, `jobs` with jobs;
//! - `acts` plans and carries out actions; `questions` keeps the plans until a page answers.

mod acts;
mod args;
mod assets;
mod guard;
mod jobs;
mod metrics;
mod questions;
mod view;
mod watch;

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Error, Result};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

use crate::address::Address;
use crate::context::{Context, Outcome};
use crate::http;
use crate::interrupt::Interrupted;
use crate::message::{Refusal, log_action};
pub(crate) use args::WebArgs;
use guard::Guard;
use questions::Questions;
use watch::Watcher;

/// The largest body of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// The largest number of concurrent searches and requests for bodies; further requests wait. A
/// search needs up to 128 MiB of memory, and a body up to twice its size until its last byte is
/// sent.
const BODY_REQUESTS_MAX: usize = 4;

/// The state shared by all requests.
#[derive(Debug)]
struct Site {
    guard: Guard,
    servers: Vec<Watcher>,
    /// Limits the number of requests that keep whole bodies of jobs in memory.
    body_permits: Arc<Semaphore>,
    questions: Questions,
    /// The actions in progress.
    running_actions: Mutex<Vec<Weak<RunningAction>>>,
}

/// An action in progress: its server, its client, and its arguments as a line of JSON.
type RunningAction = (Address, String, String);

/// The error response to a request.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    why: String,
}

impl Failure {
    /// Makes an error response.
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }
}

impl From<anyhow::Error> for Failure {
    /// Converts an error of a server or of a request to an error response.
    fn from(error: anyhow::Error) -> Self {
        let status = match error.downcast_ref() {
            Some(Refusal::Usage(_)) => StatusCode::BAD_REQUEST,
            Some(Refusal::Conflict(_)) => StatusCode::CONFLICT,
            None if error.is::<Interrupted>() => StatusCode::SERVICE_UNAVAILABLE,
            None if error.is::<JoinError>() => StatusCode::INTERNAL_SERVER_ERROR,
            None => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, format!("{error:#}"))
    }
}

impl From<QueryRejection> for Failure {
    /// Converts an error in the query of a request to an error response.
    fn from(error: QueryRejection) -> Self {
        Self::new(error.status(), error.body_text())
    }
}

impl IntoResponse for Failure {
    /// Responds with the error as JSON.
    fn into_response(self) -> Response {
        (self.status, axum::Json(json!({ "error": self.why }))).into_response()
    }
}

impl Site {
    /// Waits until one more request may keep whole bodies of jobs in memory.
    async fn body_permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let permit = Arc::clone(&self.body_permits).acquire_owned().await;
        permit.map_err(|error| Error::from(error).into())
    }

    /// Locks the list of the page's actions in progress.
    fn running_actions(&self) -> MutexGuard<'_, Vec<Weak<RunningAction>>> {
        self.running_actions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an action. The action counts as in progress until the returned value is dropped.
    fn begin_action(&self, action: RunningAction) -> Arc<RunningAction> {
        let action = Arc::new(action);
        let mut actions = self.running_actions();
        actions.retain(|action| action.strong_count() > 0);
        actions.push(Arc::downgrade(&action));
        action
    }

    /// Returns the watcher of a server by the server's number on the page.
    fn server(&self, at: usize) -> Result<&Watcher, Failure> {
        self.servers.get(at).ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, "no such server"))
    }
}

/// Runs `beanstalkctl web`.
pub(crate) fn run(args: &WebArgs, context: &mut Context) -> Result<Outcome> {
    let listeners = http::listen(Some(&args.listen), 11380)?;
    let addresses = listeners.iter().map(TcpListener::local_addr);
    let guard = Guard::new(&addresses.collect::<io::Result<Vec<_>>>()?, args)?;
    let watcher = |address| Watcher::start(address, context.interrupt.clone());
    let servers = context.servers.iter().cloned().map(watcher).collect();
    let body_permits = Arc::new(Semaphore::new(BODY_REQUESTS_MAX));
    let (questions, running_actions) = (Questions::default(), Mutex::default());
    let site = Arc::new(Site { guard, servers, body_permits, questions, running_actions });
    let served = http::serve_http(listeners, &site_router(&site), &context.interrupt);
    for action in site.running_actions().iter().filter_map(Weak::upgrade) {
        let (address, from, action) = &*action;
        let text = format!("the page was shut down; this action may be partly done: {action}");
        log_action(address, Some(from), &text);
    }
    served.map(|()| Outcome::Done)
}

/// Routes the requests of the page to their handlers.
fn site_router(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/", get(assets::serve_page))
        .route("/{file}", get(assets::serve_file))
        .route("/api/look", get(view::serve_overview))
        .route("/api/jobs", get(jobs::serve_jobs))
        .route("/api/job", get(jobs::serve_job))
        .route("/api/body", get(jobs::serve_body))
        .route("/api/act", post(acts::serve_action))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(site), guard::guard))
        .with_state(Arc::clone(site))
}
