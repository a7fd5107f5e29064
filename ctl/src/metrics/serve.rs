//! `--listen`: the metrics over HTTP. Requests that come while servers are asked share the answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio::task;

use super::scrape::Scraper;

/// The type of the text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const INDEX: &str = "<!doctype html><title>beanstalkd</title><a href=\"metrics\">metrics</a>\n";

/// The text in its pieces, when it is there. All requests share its bytes.
type Answer = watch::Receiver<Option<Text>>;

/// A text in pieces, as the body of an answer of known length.
#[derive(Debug, Clone)]
struct Text(VecDeque<Bytes>);

#[derive(Debug, Clone)]
struct Shared {
    scraper: Arc<Scraper>,
    /// What is under way.
    running: Arc<Mutex<Option<Answer>>>,
}

/// Answers `/metrics` and `/`, and no other method than GET and HEAD.
pub(super) fn app(scraper: Scraper) -> Router {
    let shared = Shared { scraper: Arc::new(scraper), running: Arc::default() };
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

impl HttpBody for Text {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
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
            let scraper = Arc::clone(&shared.scraper);
            let text = task::spawn_blocking(move || scraper.scrape()).await;
            *shared.running() = None;
            if let Ok(text) = text {
                sender.send_replace(Some(Text(text.into_iter().map(Bytes::from).collect())));
            }
        });
        answer
    }
}
