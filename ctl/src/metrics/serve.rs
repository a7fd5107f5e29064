//! `--listen`: serves the metrics over HTTP. All requests that arrive during a scrape receive the
//! text of this scrape.

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
use crate::http::SharedBody;
use crate::interrupt::Interrupt;

/// The media type of the text format of Prometheus.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const INDEX_HTML: &str =
    "<!doctype html><title>beanstalkd</title><a href=\"metrics\">metrics</a>\n";

/// The largest number of scrapes whose texts are in memory. A text may take about 40 MB, and is
/// kept while a slow client reads it.
const TEXTS_MAX: usize = 8;

/// Receives the text of a scrape when the scrape is complete. Requests share the text's bytes.
type Answer = watch::Receiver<Option<SharedBody>>;

#[derive(Debug, Clone)]
struct SharedScrape {
    scraper: Arc<Scraper>,
    texts: Arc<Semaphore>,
    /// The scrape under way.
    running: Arc<Mutex<Option<Answer>>>,
}

/// Serves `/metrics` and `/`, by GET and HEAD only.
pub(super) fn metrics_router(scraper: Scraper) -> Router {
    let (scraper, texts) = (Arc::new(scraper), Arc::new(Semaphore::new(TEXTS_MAX)));
    let shared = SharedScrape { scraper, texts, running: Arc::default() };
    Router::new()
        .route("/", get(async || Html(INDEX_HTML)))
        .route("/metrics", get(serve_metrics))
        .with_state(shared)
}

/// Responds with the metrics of all servers.
async fn serve_metrics(State(shared): State<SharedScrape>) -> Response {
    let mut answer = shared.answer();
    // Clone the text at once, because the borrowed value keeps the channel locked.
    let text = answer.wait_for(Option::is_some).await.ok().and_then(|text| text.clone());
    match text {
        Some(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::new(text)).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl SharedScrape {
    /// Locks the answer of the scrape under way.
    fn lock_running(&self) -> std::sync::MutexGuard<'_, Option<Answer>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer of the scrape under way; if no scrape is under way, starts a scrape.
    fn answer(&self) -> Answer {
        let mut running = self.lock_running();
        if let Some(answer) = &*running {
            return answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        *running = Some(answer.clone());
        let shared = self.clone();
        // Scrape in a separate task, which continues even if the request that started it ends.
        task::spawn(async move {
            let permit = Arc::clone(&shared.texts).acquire_owned().await;
            let scraper = Arc::clone(&shared.scraper);
            // No interrupt is needed: a signal ends the whole server, even while this thread runs.
            let text = task::spawn_blocking(move || scraper.scrape(&Interrupt::default())).await;
            *shared.lock_running() = None;
            if let (Ok(Ok(text)), Ok(permit)) = (text, permit) {
                sender.send_replace(Some(SharedBody::new(text, permit)));
            }
        });
        answer
    }
}
