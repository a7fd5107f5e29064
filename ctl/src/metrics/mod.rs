//! `metrics`: what servers count, as text for Prometheus.
//!
//! - `args` defines the command's options;
//! - `names` says which metrics there are, `foreign` those of two other programs;
//! - `page` turns the dictionaries of a server into lines;
//! - `scrape` asks the servers, all at once and each in bounded time;
//! - `serve` and `textfile` say where the text goes, besides standard output.
//!
//! The lines are written here and not by a library. Libraries count things of their own program and
//! keep them; this only passes on what others have counted, which is a table and one function.

mod args;
mod foreign;
mod names;
mod page;
mod scrape;
mod serve;
mod textfile;

use anyhow::{Result, bail};

pub(crate) use args::MetricsArgs;

use crate::context::{Context, Outcome};
use crate::filter::Tubes;
use crate::http;
use scrape::Scraper;

/// Runs the command.
pub(crate) fn run(args: &MetricsArgs, context: &mut Context) -> Result<Outcome> {
    if context.out.json {
        bail!("metrics are text for Prometheus: leave out --json");
    }
    let tubes = Tubes::new(&args.tubes)?;
    let scraper = Scraper::new(&context.servers, args, tubes);
    if let Some(path) = &args.textfile {
        textfile::run(path, args.interval, &scraper, &context.interrupt)?;
        return Ok(Outcome::Done);
    }
    let mut listeners = http::passed()?;
    if listeners.is_empty() {
        let Some(address) = &args.listen else {
            for piece in scraper.scrape(&context.interrupt)? {
                context.out.bytes(piece.as_bytes())?;
            }
            return Ok(Outcome::Done);
        };
        listeners.push(http::bind(address)?);
    }
    http::serve(listeners, &serve::app(scraper), &context.interrupt)?;
    Ok(Outcome::Done)
}
