//! Scrapes all servers at once, each over a connection that is kept for the next scrape.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::args::MetricsArgs;
use super::names::{Names, SCRAPE_SECONDS_KEY, SCRAPES_KEY, TUBES_LEFT_OUT_KEY, UP_KEY};
use super::page::{self, Page, Pairs};
use crate::address::Address;
use crate::client::Client;
use crate::deadline;
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::message::{of_server, print_error};
use crate::statistics;
use crate::yaml;

/// The largest number of unanswered commands. The number is small, because a server that carries
/// out commands of one client serves no other client meanwhile.
const WINDOW_COMMANDS: usize = 64;

/// The settings of a scrape.
#[derive(Debug)]
struct Settings {
    names: Names,
    tubes: Tubes,
    max_tubes: usize,
    /// The time limit in seconds.
    timeout: u64,
}

/// A server, with its connection.
#[derive(Debug)]
struct Target {
    address: Address,
    client: Mutex<Option<Client>>,
    /// The error of the last scrape; empty if that scrape succeeded.
    last_error: Mutex<String>,
}

/// All servers.
#[derive(Debug)]
pub(crate) struct Scraper {
    settings: Arc<Settings>,
    targets: Vec<Arc<Target>>,
    scrapes: AtomicU64,
}

impl Scraper {
    /// Makes the scraper of all servers; the scraper connects at the first scrape.
    pub(crate) fn new(servers: &[Address], args: &MetricsArgs, tubes: Tubes) -> Self {
        // Drop repeated servers: Prometheus would reject a text in which a series occurs twice.
        let mut found = Vec::new();
        for address in servers {
            if !found.contains(address) {
                found.push(address.clone());
            }
        }
        let target = |address: &Address| {
            let (address, client) = (address.clone(), Mutex::default());
            Arc::new(Target { address, client, last_error: Mutex::default() })
        };
        let (names, timeout) = (args.names.names(found.len()), args.timeout.max(1));
        let settings = Arc::new(Settings { names, tubes, max_tubes: args.max_tubes, timeout });
        let targets = found.iter().map(target).collect();
        Self { settings, targets, scrapes: AtomicU64::new(0) }
    }

    /// Scrapes all servers and returns the text in pieces. A server that does not answer in time is
    /// reported as down. Fails only after an interrupt, such as Ctrl-C.
    pub(crate) fn scrape(&self, interrupt: &Interrupt) -> Result<Vec<String>> {
        let began = Instant::now();
        let deadline = deadline::after_seconds(self.settings.timeout);
        let scrapes = (self.scrapes.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        let start = |target: &Arc<Target>| {
            let (settings, target) = (Arc::clone(&self.settings), Arc::clone(target));
            // If this thread is late, the next scrape does not wait for the thread.
            deadline::start(move || Ok((target.scrape(&settings, deadline), began.elapsed())))
        };
        let answers: Vec<_> = self.targets.iter().map(start).collect();
        let page = |(target, answer): (&Arc<Target>, _)| {
            let answer = deadline::wait(&answer, deadline, interrupt)?;
            let (page, took) = answer.unwrap_or_else(|late| (Err(late), began.elapsed()));
            Ok(target.finish_page(&self.settings.names, page, took, &scrapes))
        };
        let pages: Result<_> = self.targets.iter().zip(answers).map(page).collect();
        Ok(page::join_pages(&self.settings.names, pages?))
    }
}

impl Target {
    /// Locks the last error, which is valid even after a panic.
    fn lock_last_error(&self) -> MutexGuard<'_, String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the metrics of the scrape itself: success, duration, and the number of scrapes.
    fn finish_page(&self, names: &Names, page: Result<Page>, took: Duration, count: &str) -> Page {
        let mut up = "1";
        let page = page.map_err(|error| of_server(&self.address, error));
        let last_error = page.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
        let mut page = page.unwrap_or_else(|error| {
            up = "0";
            // While a server is down, print its error only once and not at each scrape.
            if *self.lock_last_error() != last_error {
                print_error(&error);
            }
            Page::new(names, &self.address.to_string())
        });
        *self.lock_last_error() = last_error;
        let seconds = format!("{:.6}", took.as_secs_f64());
        page.add_server(
            names,
            &vec![(UP_KEY, up), (SCRAPE_SECONDS_KEY, &seconds), (SCRAPES_KEY, count)],
        );
        page
    }

    /// Scrapes the server, and keeps the connection if the scrape succeeds.
    fn scrape(&self, settings: &Settings, deadline: Instant) -> Result<Page> {
        let mut kept = match self.client.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(anyhow!("the previous scrape is still waiting for the server"));
            }
        };
        let (mut client, stats) = Client::reuse(kept.take(), &self.address, Some(deadline))?;
        client.window = WINDOW_COMMANDS;
        let page = self.scrape_server(&mut client, &stats, settings)?;
        *kept = Some(client);
        Ok(page)
    }

    /// Collects the lines of a server; `stats` is its reply to the command `stats`.
    fn scrape_server(&self, client: &mut Client, stats: &str, settings: &Settings) -> Result<Page> {
        let names = &settings.names;
        let mut page = Page::new(names, &self.address.to_string());
        let has_metrics = client.has_extension("metrics")?;
        let more = if has_metrics {
            client.yaml("metrics")?
        } else if client.has_extension("capabilities")? {
            client.yaml("capabilities")?
        } else {
            String::new()
        };
        let mut tubes = statistics::tube_names(client, &settings.tubes)?;
        let left_out = tubes.len().saturating_sub(settings.max_tubes).to_string();
        tubes.truncate(settings.max_tubes);
        let mut pairs: Pairs<'_> = yaml::pairs(stats).collect();
        if names.omits_binlog && yaml::number(stats, "binlog-current-index") == 0 {
            pairs.retain(|(key, _)| !key.starts_with("binlog-"));
        }
        pairs.extend(yaml::pairs(&more));
        pairs.push((TUBES_LEFT_OUT_KEY, &left_out));
        page.add_server(names, &pairs);
        scrape_tubes(client, &tubes, has_metrics, |tube, texts| {
            let pairs = texts.iter().flat_map(|text| yaml::pairs(text)).collect();
            page.add_tube(names, tube, &pairs);
        })?;
        Ok(page)
    }
}

/// Passes the dictionaries of each tube to `take`, and skips tubes that no longer exist.
fn scrape_tubes(
    client: &mut Client,
    tubes: &[String],
    has_metrics: bool,
    mut take: impl FnMut(&str, &[String]),
) -> Result<()> {
    let commands: &[&str] = if has_metrics { &["stats-tube", "metrics"] } else { &["stats-tube"] };
    let all = tubes.iter().flat_map(|tube| commands.iter().map(move |command| (*command, tube)));
    let mut texts = Vec::new();
    let line = |(command, tube): &(&str, &String)| format!("{command} {tube}");
    client.ask_each(all, line, |(command, tube), reply| {
        if command == "stats-tube" {
            texts.clear();
        }
        if reply.is("OK") {
            // Do not skip a tube that was created again between the two commands.
            texts.push(reply.into_yaml()?);
        } else if !reply.is("NOT_FOUND") {
            return Err(reply.error_for(command));
        }
        let is_last = commands.last() == Some(&command);
        if is_last && !texts.is_empty() {
            take(tube, &texts);
        }
        Ok(())
    })
}
