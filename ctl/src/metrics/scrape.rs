//! Asks all servers at once, each over one connection, which is kept for the next time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::args::MetricsArgs;
use super::names::{Names, SCRAPE_SECONDS, SCRAPES, TUBES_LEFT_OUT, UP};
use super::page::{self, Page, Pairs};
use crate::address::Address;
use crate::census;
use crate::client::{Client, Reply};
use crate::context::print_error;
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::yaml;

/// The most commands whose replies are due. A server does them in one turn, in which it does
/// nothing else; so it must be few.
const WINDOW: usize = 64;

/// How much longer than its deadline a server is waited for, because its thread may be late.
const LATE: Duration = Duration::from_millis(200);

/// The longest time for a scrape, in seconds: a day.
const TIMEOUT_SECONDS_MAX: u64 = 86_400;

/// How long a wait is before Ctrl-C is noticed.
const NAP: Duration = Duration::from_millis(100);

/// What is asked, and how it is told.
#[derive(Debug)]
struct Wanted {
    names: Names,
    tubes: Tubes,
    max_tubes: usize,
    timeout: Duration,
}

/// A server, and the connection to it.
#[derive(Debug)]
struct Target {
    address: Address,
    client: Mutex<Option<Client>>,
    /// What was told last of why it is down.
    complaint: Mutex<String>,
}

/// All servers.
#[derive(Debug)]
pub(crate) struct Scraper {
    wanted: Arc<Wanted>,
    targets: Vec<Arc<Target>>,
    scrapes: AtomicU64,
}

/// Takes a lock. What a panic left behind is as good as anything: it is only kept, not relied on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scraper {
    /// Makes one for these servers. It connects only when it is asked to scrape.
    pub(crate) fn new(servers: &[Address], args: &MetricsArgs, tubes: Tubes) -> Self {
        // A server that is named twice would have each series twice, which Prometheus refuses.
        let mut named = Vec::new();
        for address in servers {
            if !named.contains(address) {
                named.push(address.clone());
            }
        }
        let target = |address: &Address| {
            let (address, client) = (address.clone(), Mutex::default());
            Arc::new(Target { address, client, complaint: Mutex::default() })
        };
        let wanted = Wanted {
            names: Names::new(args.names, named.len()),
            tubes,
            max_tubes: args.max_tubes,
            timeout: Duration::from_secs(args.timeout.clamp(1, TIMEOUT_SECONDS_MAX)),
        };
        Self {
            wanted: Arc::new(wanted),
            targets: named.iter().map(target).collect(),
            scrapes: AtomicU64::new(0),
        }
    }

    /// Asks all servers and returns the text in pieces. One that does not answer in time is down.
    /// Fails only because of an interrupt.
    pub(crate) fn scrape(&self, interrupt: &Interrupt) -> Result<Vec<String>> {
        let began = Instant::now();
        let deadline = began + self.wanted.timeout;
        let scrapes = (self.scrapes.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        let answers: Vec<_> = self
            .targets
            .iter()
            .map(|target| {
                let (sender, receiver) = mpsc::channel();
                let (wanted, target) = (Arc::clone(&self.wanted), Arc::clone(target));
                // Looking up a name, or connecting to a UNIX socket, may take any time. Such a
                // thread is left alone, and the next one does not wait for it.
                thread::spawn(move || {
                    let result = target.ask(&wanted, deadline);
                    // Nobody listens any more if it is late.
                    let _ = sender.send((result, began.elapsed()));
                });
                receiver
            })
            .collect();
        let page = |(target, answer): (&Arc<Target>, mpsc::Receiver<_>)| {
            let late = || (Err(anyhow!("no answer in time")), began.elapsed());
            let answer = wait(&answer, deadline + LATE, interrupt)?;
            let (result, elapsed) = answer.unwrap_or_else(late);
            Ok(target.finish(&self.wanted.names, result, elapsed, &scrapes))
        };
        let pages: Result<_> = self.targets.iter().zip(answers).map(page).collect();
        Ok(page::text(&self.wanted.names, pages?))
    }
}

/// Waits for an answer until then; `None` if there is none. Fails because of an interrupt.
fn wait<T>(answer: &mpsc::Receiver<T>, until: Instant, interrupt: &Interrupt) -> Result<Option<T>> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match answer.recv_timeout(left.min(NAP)) {
            Ok(answer) => return Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => interrupt.check()?,
            Err(_) => return Ok(None),
        }
    }
}

impl Target {
    /// Adds what this program knows: whether the server is up, and how long it took.
    fn finish(&self, names: &Names, result: Result<Page>, took: Duration, scrapes: &str) -> Page {
        let mut up = "1";
        let result = result.map_err(|error| self.named(error));
        let complaint = result.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
        let mut page = result.unwrap_or_else(|error| {
            up = "0";
            // Each scrape would tell the same.
            if *lock(&self.complaint) != complaint {
                print_error(&error);
            }
            Page::new(names, &self.address.to_string())
        });
        *lock(&self.complaint) = complaint;
        let seconds = format!("{:.6}", took.as_secs_f64());
        page.add_server(names, &vec![(UP, up), (SCRAPE_SECONDS, &seconds), (SCRAPES, scrapes)]);
        page
    }

    /// Names the server in an error that does not.
    fn named(&self, error: anyhow::Error) -> anyhow::Error {
        let name = self.address.to_string();
        if format!("{error:#}").contains(&name) { error } else { error.context(name) }
    }

    /// Asks the server for everything. Its connection is kept if nothing has failed.
    fn ask(&self, wanted: &Wanted, deadline: Instant) -> Result<Page> {
        let mut kept = match self.client.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(anyhow!("it still has not answered before"));
            }
        };
        let (mut client, stats) = Client::resume(kept.take(), &self.address, Some(deadline))?;
        let page = collect(&mut client, &stats, wanted, &self.address)?;
        *kept = Some(client);
        Ok(page)
    }
}

/// Collects the lines of a server that has told its `stats`.
fn collect(client: &mut Client, stats: &str, wanted: &Wanted, address: &Address) -> Result<Page> {
    let names = &wanted.names;
    let mut page = Page::new(names, &address.to_string());
    let has_metrics = client.has("metrics")?;
    let more = if has_metrics {
        client.yaml("metrics")?
    } else if client.has("capabilities")? {
        client.yaml("capabilities")?
    } else {
        String::new()
    };
    let mut tubes = census::tubes(client, &wanted.tubes)?;
    let left_out = tubes.len().saturating_sub(wanted.max_tubes).to_string();
    tubes.truncate(wanted.max_tubes);
    let mut pairs: Pairs<'_> = yaml::pairs(stats).collect();
    if names.omits_binlog && yaml::number(stats, "binlog-current-index") == 0 {
        pairs.retain(|(key, _)| !key.starts_with("binlog-"));
    }
    pairs.extend(yaml::pairs(&more));
    pairs.push((TUBES_LEFT_OUT, &left_out));
    page.add_server(names, &pairs);
    collect_tubes(client, &tubes, has_metrics, |tube, told| {
        let pairs = told.iter().flat_map(|text| yaml::pairs(text)).collect();
        page.add_tube(names, tube, &pairs);
    })?;
    Ok(page)
}

/// Gives what the server tells of each tube. One that has vanished is passed over.
fn collect_tubes(
    client: &mut Client,
    tubes: &[String],
    has_metrics: bool,
    mut take: impl FnMut(&str, &[String]),
) -> Result<()> {
    let commands: &[&str] = if has_metrics { &["stats-tube", "metrics"] } else { &["stats-tube"] };
    let all = tubes.iter().flat_map(|tube| commands.iter().map(move |command| (*command, tube)));
    let mut told = Vec::new();
    let write = |(command, tube): &(&str, &String), out: &mut Vec<u8>| {
        out.extend([command, " ", tube, "\r\n"].concat().into_bytes());
    };
    client.pipeline_of(WINDOW, all, write, |(command, tube), reply: Reply| {
        if command == "stats-tube" {
            told.clear();
        }
        if reply.is("OK") {
            // A tube that came back between two commands is none that has vanished.
            told.push(reply.into_yaml()?);
        } else if !reply.is("NOT_FOUND") {
            return Err(reply.unexpected(command));
        }
        let is_last = commands.last() == Some(&command);
        if is_last && !told.is_empty() {
            take(tube, &told);
        }
        Ok(())
    })
}
