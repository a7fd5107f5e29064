//! The files of the page, which are parts of the program.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::{Failure, Site};

const PAGE: &str = include_str!("page/index.html");
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Names, types and texts.
const FILES: [(&str, &str, &str); 14] = [
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("parts.css", "text/css; charset=utf-8", include_str!("page/parts.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("dom.js", SCRIPT, include_str!("page/dom.js")),
    ("chart.js", SCRIPT, include_str!("page/chart.js")),
    ("servers.js", SCRIPT, include_str!("page/servers.js")),
    ("tubes.js", SCRIPT, include_str!("page/tubes.js")),
    ("jobs.js", SCRIPT, include_str!("page/jobs.js")),
    ("body.js", SCRIPT, include_str!("page/body.js")),
    ("route.js", SCRIPT, include_str!("page/route.js")),
    ("acts.js", SCRIPT, include_str!("page/acts.js")),
    ("ask.js", SCRIPT, include_str!("page/ask.js")),
];

/// Serves the page, with the token that its acts need.
pub(super) async fn page(State(site): State<Arc<Site>>) -> Response {
    let text = PAGE
        .replace("{token}", site.guard.token())
        .replace("{read-only}", if site.guard.is_read_only() { "true" } else { "false" })
        .replace("{version}", env!("CARGO_PKG_VERSION"));
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
}

/// Serves what the page consists of.
pub(super) async fn file(Path(name): Path<String>) -> Result<Response, Failure> {
    let file = FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) = file
        .ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, "there is no such file of the page"))?;
    Ok(([(header::CONTENT_TYPE, *kind)], *text).into_response())
}
