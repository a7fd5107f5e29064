//! The well-behaved client: a job put, reserved and deleted two hundred times a second, and how
//! long each answer took.
//!
//! Others work on this machine too. So the time in which the daemon or the client was ready to run
//! and somebody else had its core is taken off, where the system tells (Linux does): what is left
//! is what it would have been on quiet cores.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::STALL;
use crate::Client;

/// From one round to the next.
const INTERVAL: Duration = Duration::from_millis(5);
/// The size of its jobs' bodies.
const BODY: usize = 100;

/// The commands whose latency is taken, in the order of the tables.
pub(super) const COMMANDS: [&str; 3] = ["put", "reserve", "delete"];

/// What the client met in some time.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Microseconds by command. A wait longer than the interval counts as if a client had asked
    /// in every interval of it, so that one long wait weighs what it would for many clients.
    pub(super) latency: [Histogram<u64>; 3],
    /// Puts that were answered `OUT_OF_MEMORY`.
    pub(super) refused: u64,
    /// Why it cannot go on, if it cannot.
    pub(super) broken: Option<String>,
}

impl Window {
    fn new(broken: Option<String>) -> Self {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 3).expect("sound bounds");
        Self { latency: [histogram(), histogram(), histogram()], refused: 0, broken }
    }

    /// The latency, in milliseconds, that a share of a command's answers did not exceed.
    #[expect(clippy::cast_precision_loss, reason = "microseconds stay below 2^53")]
    pub(super) fn quantile(&self, command: usize, share: f64) -> f64 {
        self.latency[command].value_at_quantile(share) as f64 / 1e3
    }

    fn record(&mut self, command: usize, took: Duration) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        // Fails only beyond the bound, and nothing waits a minute here.
        let _ = self.latency[command].record_correct(micros(took), micros(INTERVAL));
    }
}

#[derive(Debug)]
enum Ask {
    Cut(Sender<Window>),
    Rest,
    GoOn,
}

/// A thread with the client.
#[derive(Debug)]
pub(super) struct Gentle {
    asks: Option<Sender<Ask>>,
    thread: Option<JoinHandle<()>>,
}

impl Gentle {
    /// Connects, and begins to work.
    pub(super) fn start(address: &str, pid: u32) -> io::Result<Self> {
        let mut client = Client::connect(address)?;
        client.set_timeout(STALL)?;
        for command in ["use gentle", "watch gentle", "ignore default"] {
            client.command(command)?;
        }
        let (asks, receiver) = channel();
        let thread = thread::Builder::new().spawn(move || {
            let mut client = Timed { client, waits: Waits::of(pid), window: Window::new(None) };
            work(&mut client, &receiver);
        })?;
        Ok(Self { asks: Some(asks), thread: Some(thread) })
    }

    /// Returns what was met since the last cut, when the round under way has ended.
    pub(super) fn cut(&self) -> Window {
        let (sender, receiver) = channel();
        self.ask(Ask::Cut(sender));
        receiver.recv().unwrap_or_else(|_| Window::new(Some("it has ended".to_owned())))
    }

    /// Stops asking.
    pub(super) fn rest(&self) {
        self.ask(Ask::Rest);
    }

    /// Asks again.
    pub(super) fn go_on(&self) {
        self.ask(Ask::GoOn);
    }

    fn ask(&self, ask: Ask) {
        if let Some(asks) = &self.asks {
            // Nobody hears it only if the thread has panicked.
            let _ = asks.send(ask);
        }
    }
}

impl Drop for Gentle {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How long the daemon and this thread have been ready to run and were not let.
#[derive(Debug)]
struct Waits {
    of: Vec<File>,
}

impl Waits {
    /// Those of a process's first thread and of the calling one; none where they are not told.
    fn of(pid: u32) -> Self {
        let paths =
            [format!("/proc/{pid}/task/{pid}/schedstat"), "/proc/thread-self/schedstat".into()];
        Self { of: paths.iter().filter_map(|path| File::open(path).ok()).collect() }
    }

    fn total(&self) -> Duration {
        let wait = |file: &File| {
            let mut bytes = [0; 100];
            let count = file.read_at(&mut bytes, 0).ok()?;
            let text = std::str::from_utf8(&bytes[..count]).ok()?;
            Some(Duration::from_nanos(text.split_whitespace().nth(1)?.parse().ok()?))
        };
        self.of.iter().filter_map(wait).sum()
    }
}

/// A client and what it has met so far.
#[derive(Debug)]
struct Timed {
    client: Client,
    waits: Waits,
    window: Window,
}

impl Timed {
    /// Puts, reserves and deletes a job.
    fn round(&mut self) -> io::Result<()> {
        let put = self.time(0, |client| client.put(0, 0, 60, &[b'x'; BODY]))?;
        if put == "OUT_OF_MEMORY" {
            self.window.refused += 1;
            return Ok(());
        }
        let id = put.strip_prefix("INSERTED ").ok_or_else(|| wrong("put", &put))?;
        let reserved = self.time(1, |client| {
            let line = client.command("reserve-with-timeout 5")?;
            if line.starts_with("RESERVED ") {
                client.bytes(BODY + 2)?;
            }
            Ok(line)
        })?;
        if reserved != format!("RESERVED {id} {BODY}") {
            return Err(wrong("reserve", &reserved));
        }
        let deleted = self.time(2, |client| client.command(&format!("delete {id}")))?;
        if deleted == "DELETED" { Ok(()) } else { Err(wrong("delete", &deleted)) }
    }

    fn time(
        &mut self,
        command: usize,
        ask: impl FnOnce(&mut Client) -> io::Result<String>,
    ) -> io::Result<String> {
        let waits = self.waits.total();
        let began = Instant::now();
        let answer = ask(&mut self.client);
        let took = began.elapsed();
        let waited = self.waits.total().saturating_sub(waits);
        self.window.record(command, took.saturating_sub(waited));
        answer
    }
}

fn work(client: &mut Timed, asks: &Receiver<Ask>) {
    let mut is_resting = false;
    let mut next = Instant::now();
    loop {
        let broken = client.window.broken.clone();
        let ask = if is_resting || broken.is_some() {
            asks.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            asks.try_recv()
        };
        match ask {
            Ok(Ask::Cut(to)) => {
                let _ = to.send(std::mem::replace(&mut client.window, Window::new(broken)));
                continue;
            }
            Ok(Ask::Rest) => is_resting = true,
            Ok(Ask::GoOn) => (is_resting, next) = (false, Instant::now()),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        if is_resting || broken.is_some() {
            continue;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + INTERVAL).max(Instant::now());
        if let Err(error) = client.round() {
            client.window.broken = Some(match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    format!("stalled: no answer in {} s", STALL.as_secs())
                }
                _ => error.to_string(),
            });
        }
    }
}

fn wrong(command: &str, answer: &str) -> io::Error {
    let answer: String = answer.chars().take(40).collect();
    io::Error::other(format!("its {command} was answered {answer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_wait_weighs_what_it_would_for_many_clients() {
        let mut window = Window::new(None);
        for _ in 0..99 {
            window.record(0, Duration::from_micros(100));
        }
        assert!(window.quantile(0, 0.99) < 0.2);
        window.record(0, Duration::from_secs(1));
        // Two hundred clients would have asked within that second.
        assert!(window.quantile(0, 0.5) > 100.0, "{}", window.quantile(0, 0.5));
        assert!(window.quantile(1, 0.99) < 0.01);
    }
}
