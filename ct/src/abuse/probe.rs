//! The probe: a well-behaved client that puts, reserves and deletes a job two hundred times a
//! second and measures the latency of each command.
//!
//! On Linux, time in which the daemon or the probe waited for a core is subtracted from the
//! latencies. So other processes on the machine do not change the latencies.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::STALL_TIMEOUT;
use crate::Client;

/// Time from the start of one cycle to the start of the next.
const CYCLE_INTERVAL: Duration = Duration::from_millis(5);
const BODY_BYTES: usize = 100;

/// The commands whose latency is measured, in their order in the tables.
pub(super) const COMMANDS: [&str; 3] = ["put", "reserve", "delete"];

/// The probe's measurements over a period.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Latencies in microseconds, by command, corrected for coordinated omission: each cycle that
    /// could not begin in time because of a long latency is recorded as late, too.
    pub(super) latency: [Histogram<u64>; 3],
    /// The number of puts that were answered `OUT_OF_MEMORY`.
    pub(super) out_of_memory: u64,
    /// Why the probe stopped, if it has stopped.
    pub(super) failure: Option<String>,
}

impl Window {
    /// Makes the measurements of a new period of the probe, which are still empty.
    fn new(failure: Option<String>) -> Self {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 3).expect("sound bounds");
        Self { latency: [histogram(), histogram(), histogram()], out_of_memory: 0, failure }
    }

    /// Returns a quantile of the latency of one of the probe's commands, in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "microseconds stay below 2^53")]
    pub(super) fn quantile(&self, command: usize, share: f64) -> f64 {
        self.latency[command].value_at_quantile(share) as f64 / 1e3
    }

    /// Records the latency of one of the probe's commands, corrected for coordinated omission.
    fn record(&mut self, command: usize, took: Duration) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        // Recording fails only above the histogram's bound of a minute; no latency is that long.
        let _ = self.latency[command].record_correct(micros(took), micros(CYCLE_INTERVAL));
    }
}

#[derive(Debug)]
enum Request {
    TakeWindow(Sender<Window>),
    Pause,
    Resume,
}

/// The thread that runs the probe.
#[derive(Debug)]
pub(super) struct Probe {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Probe {
    /// Connects the probe and starts its thread.
    pub(super) fn start(address: &str, pid: u32) -> io::Result<Self> {
        let mut client = Client::connect(address)?;
        client.set_timeout(STALL_TIMEOUT)?;
        for command in ["use probe", "watch probe", "ignore default"] {
            client.command(command)?;
        }
        let (requests, receiver) = channel();
        let thread = thread::Builder::new().spawn(move || {
            let mut client = TimedClient {
                client,
                scheduler_wait: SchedulerWait::open(pid),
                window: Window::new(None),
            };
            serve_requests(&mut client, &receiver);
        })?;
        Ok(Self { requests: Some(requests), thread: Some(thread) })
    }

    /// Waits until the probe's current cycle has ended, and returns the measurements since the
    /// previous call.
    pub(super) fn take_window(&self) -> Window {
        let (sender, receiver) = channel();
        self.request(Request::TakeWindow(sender));
        receiver.recv().unwrap_or_else(|_| Window::new(Some("the probe has ended".to_owned())))
    }

    /// Makes the probe stop sending commands until [`Probe::resume`] is called.
    pub(super) fn pause(&self) {
        self.request(Request::Pause);
    }

    /// Makes the probe send commands again.
    pub(super) fn resume(&self) {
        self.request(Request::Resume);
    }

    /// Sends a request to the probe's thread.
    fn request(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // Sending a request fails only if the probe's thread has panicked.
            let _ = requests.send(request);
        }
    }
}

impl Drop for Probe {
    /// Ends the probe's thread.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The kernel's counters of the time for which the daemon and the probe's thread waited for a core.
#[derive(Debug)]
struct SchedulerWait {
    schedstats: Vec<File>,
}

impl SchedulerWait {
    /// Opens the scheduler's statistics of the attacked daemon's first thread and of the calling
    /// thread, if the system has such statistics.
    fn open(pid: u32) -> Self {
        let paths =
            [format!("/proc/{pid}/task/{pid}/schedstat"), "/proc/thread-self/schedstat".into()];
        Self { schedstats: paths.iter().filter_map(|path| File::open(path).ok()).collect() }
    }

    /// Returns how long the daemon and the probe have waited for a core.
    fn total(&self) -> Duration {
        let wait = |file: &File| {
            let mut bytes = [0; 100];
            let count = file.read_at(&mut bytes, 0).ok()?;
            let text = std::str::from_utf8(&bytes[..count]).ok()?;
            Some(Duration::from_nanos(text.split_whitespace().nth(1)?.parse().ok()?))
        };
        self.schedstats.iter().filter_map(wait).sum()
    }
}

/// A client that measures the latency of its commands.
#[derive(Debug)]
struct TimedClient {
    client: Client,
    scheduler_wait: SchedulerWait,
    window: Window,
}

impl TimedClient {
    /// Performs the probe's cycle: puts, reserves and deletes a job.
    fn cycle(&mut self) -> io::Result<()> {
        let put = self.time(0, |client| client.put(0, 0, 60, &[b'x'; BODY_BYTES]))?;
        if put == "OUT_OF_MEMORY" {
            self.window.out_of_memory += 1;
            return Ok(());
        }
        let id = put.strip_prefix("INSERTED ").ok_or_else(|| unexpected_reply("put", &put))?;
        let reserved = self.time(1, |client| {
            let line = client.command("reserve-with-timeout 5")?;
            if line.starts_with("RESERVED ") {
                client.bytes(BODY_BYTES + 2)?;
            }
            Ok(line)
        })?;
        if reserved != format!("RESERVED {id} {BODY_BYTES}") {
            return Err(unexpected_reply("reserve", &reserved));
        }
        let deleted = self.time(2, |client| client.command(&format!("delete {id}")))?;
        if deleted == "DELETED" { Ok(()) } else { Err(unexpected_reply("delete", &deleted)) }
    }

    /// Measures the latency of one of the probe's commands, and subtracts waits for a core.
    fn time(
        &mut self,
        command: usize,
        send: impl FnOnce(&mut Client) -> io::Result<String>,
    ) -> io::Result<String> {
        let scheduler_wait = self.scheduler_wait.total();
        let began = Instant::now();
        let reply = send(&mut self.client);
        let took = began.elapsed();
        let waited = self.scheduler_wait.total().saturating_sub(scheduler_wait);
        self.window.record(command, took.saturating_sub(waited));
        reply
    }
}

/// In the probe's thread, repeats the cycle, and serves requests between two cycles.
fn serve_requests(client: &mut TimedClient, requests: &Receiver<Request>) {
    let mut is_paused = false;
    let mut next = Instant::now();
    loop {
        let failure = client.window.failure.clone();
        let request = if is_paused || failure.is_some() {
            requests.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            requests.try_recv()
        };
        match request {
            Ok(Request::TakeWindow(to)) => {
                let _ = to.send(std::mem::replace(&mut client.window, Window::new(failure)));
                continue;
            }
            Ok(Request::Pause) => is_paused = true,
            Ok(Request::Resume) => (is_paused, next) = (false, Instant::now()),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        if is_paused || failure.is_some() {
            continue;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + CYCLE_INTERVAL).max(Instant::now());
        if let Err(error) = client.cycle() {
            client.window.failure = Some(match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    format!("stalled: no reply in {} s", STALL_TIMEOUT.as_secs())
                }
                _ => error.to_string(),
            });
        }
    }
}

/// Makes the error of a wrong reply to the probe.
fn unexpected_reply(command: &str, reply: &str) -> io::Error {
    let reply: String = reply.chars().take(40).collect();
    io::Error::other(format!("the probe's {command} was answered {reply}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_counts_once_for_every_interval() {
        let mut window = Window::new(None);
        for _ in 0..99 {
            window.record(0, Duration::from_micros(100));
        }
        assert!(window.quantile(0, 0.99) < 0.2);
        window.record(0, Duration::from_secs(1));
        // During a wait of one second, two hundred cycles of the probe should have begun.
        assert!(window.quantile(0, 0.5) > 100.0, "{}", window.quantile(0, 0.5));
        assert!(window.quantile(1, 0.99) < 0.01);
    }
}
