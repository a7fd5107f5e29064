//! `--listen`: the metrics over HTTP. Requests that come while servers are asked share the answer.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{Semaphore, watch};
use tokio::task;

use super::scrape::Scraper;
use crate::http::Pieces;
use crate::interrupt::Interrupt;

/// The type of the text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const INDEX: &str = "<!doctype html><title>beanstalkd</title><a href=\"metrics\">metrics</a>\n";

/// The most texts that are held at a time. Each may have some 40 MB, and a client that reads slowly
/// holds one.
const TEXTS: usize = 8;

/// The text, when it is there. All requests share its bytes.
type Answer = watch::Receiver<Option<Pieces>>;

#[derive(Debug, Clone)]
struct Shared {
    scraper: Arc<Scraper>,
    texts: Arc<Semaphore>,
    /// What is under way.
    running: Arc<Mutex<Option<Answer>>>,
}

/// Answers `/metrics` and `/`, and no other method than GET and HEAD.
pub(super) fn app(scraper: Scraper) -> Router {
    let shared = Shared {
        scraper: Arc::new(scraper),
        texts: Arc::new(Semaphore::new(TEXTS)),
        running: Arc::default(),
    };
    Router::new()
        .route("/", get(async || Html(INDEX)))
        .route("/metrics", get(metrics))
        .with_state(shared)
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let mut answer = shared.answer();
    // Taken out of its lock at once, because what is watched is locked meanwhile.
    let text = answer.wait_for(Option::is_some).await.ok().and_then(|text| text.clone());
    match text {
        Some(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::new(text)).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl Shared {
    fn running(&self) -> std::sync::MutexGuard<'_, Option<Answer>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to come, and begins a scrape if none is under way.
    fn answer(&self) -> Answer {
        let mut running = self.running();
        if let Some(answer) = &*running {
            return answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        *running = Some(answer.clone());
        let shared = self.clone();
        // On its own, so that it goes on if the first who asked hangs up.
        task::spawn(async move {
            let permit = Arc::clone(&shared.texts).acquire_owned().await;
            let scraper = Arc::clone(&shared.scraper);
            // A signal ends the whole server, and leaves this thread alone.
            let text = task::spawn_blocking(move || scraper.scrape(&Interrupt::default())).await;
            *shared.running() = None;
            if let (Ok(Ok(text)), Ok(permit)) = (text, permit) {
                sender.send_replace(Some(Pieces::new(text, permit)));
            }
        });
        answer
    }
}
