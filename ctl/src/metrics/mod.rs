//! `metrics`: the counters of servers, as text for Prometheus.
//!
//! - `args` defines the command's options;
//! - `names` defines the metrics, and `foreign` the metrics of two other exporters;
//! - `page` converts the dictionaries of a server to lines;
//! - `scrape` reads all servers at once, each within a time limit;
//! - `serve` sends the text over HTTP, and `textfile` writes it to a file.
//!
//! This program uses no Prometheus library, because a library counts events of its own process, but
//! this program only converts numbers that servers report.

mod args;
mod foreign;
mod names;
mod page;
mod scrape;
mod serve;
mod textfile;

use anyhow::Result;

pub(crate) use args::MetricsArgs;

use crate::context::{Context, Outcome};
use crate::filter::Tubes;
use crate::http;
use scrape::Scraper;

/// Runs `beanstalkctl metrics`.
pub(crate) fn run(args: &MetricsArgs, context: &mut Context) -> Result<Outcome> {
    let tubes = Tubes::new(&args.tubes)?;
    let scraper = Scraper::new(&context.servers, args, tubes);
    if let Some(path) = &args.textfile {
        textfile::run(path, args.interval, &scraper, &context.interrupt)?;
        return Ok(Outcome::Done);
    }
    let listeners = http::listen(args.listen.as_deref(), 11390)?;
    if listeners.is_empty() {
        for piece in scraper.scrape(&context.interrupt)? {
            context.out.bytes(piece.as_bytes())?;
        }
        return Ok(Outcome::Done);
    }
    http::serve_http(listeners, &serve::metrics_router(scraper), &context.interrupt)?;
    Ok(Outcome::Done)
}
