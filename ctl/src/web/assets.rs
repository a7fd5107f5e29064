//! The files of the page, which are built into the program.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::{Failure, Site};

const INDEX_HTML: &str = include_str!("page/index.html");
const JAVASCRIPT_TYPE: &str = "text/javascript; charset=utf-8";

/// The names, media types and contents of the page's files.
const PAGE_FILES: [(&str, &str, &str); 14] = [
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("parts.css", "text/css; charset=utf-8", include_str!("page/parts.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("main.js", JAVASCRIPT_TYPE, include_str!("page/main.js")),
    ("api.js", JAVASCRIPT_TYPE, include_str!("page/api.js")),
    ("dom.js", JAVASCRIPT_TYPE, include_str!("page/dom.js")),
    ("chart.js", JAVASCRIPT_TYPE, include_str!("page/chart.js")),
    ("servers.js", JAVASCRIPT_TYPE, include_str!("page/servers.js")),
    ("tubes.js", JAVASCRIPT_TYPE, include_str!("page/tubes.js")),
    ("jobs.js", JAVASCRIPT_TYPE, include_str!("page/jobs.js")),
    ("body.js", JAVASCRIPT_TYPE, include_str!("page/body.js")),
    ("route.js", JAVASCRIPT_TYPE, include_str!("page/route.js")),
    ("acts.js", JAVASCRIPT_TYPE, include_str!("page/acts.js")),
    ("ask.js", JAVASCRIPT_TYPE, include_str!("page/ask.js")),
];

/// Serves the page, with the token for its actions.
pub(super) async fn serve_page(State(site): State<Arc<Site>>) -> Response {
    let text = INDEX_HTML
        .replace("{token}", site.guard.token())
        .replace("{read-only}", if site.guard.is_read_only() { "true" } else { "false" })
        .replace("{version}", env!("CARGO_PKG_VERSION"));
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
}

/// Serves a file of the page.
pub(super) async fn serve_file(Path(name): Path<String>) -> Result<Response, Failure> {
    let file = PAGE_FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) =
        file.ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, "no such file of the page"))?;
    Ok(([(header::CONTENT_TYPE, *kind)], *text).into_response())
}
