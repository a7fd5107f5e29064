//! `top`: what happens on servers, look by look. Each look is compared with the one before; a
//! server that was restarted or lost begins anew.

use std::io::{self, IsTerminal as _};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::top_screen;
use crate::address::Address;
use crate::census;
use crate::cli::TopArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Tubes;
use crate::output::is_dumb;
use crate::plan::Instance;
use crate::progress::count_as_f64;
use crate::yaml;

/// Counts that are shown of servers and tubes, by the ends of their keys.
const COUNTS: [&str; 5] = ["ready", "reserved", "delayed", "buried", "waiting"];

/// The longest sleep before Ctrl-C is noticed.
const NAP: Duration = Duration::from_millis(100);

/// What one look tells of a server or a tube.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    /// The name of the tube; empty for the server.
    pub(crate) tube: String,
    /// The numbers of [`COUNTS`].
    pub(crate) counts: [u64; 5],
    /// Jobs put a second.
    pub(crate) puts: f64,
    /// Jobs deleted a second; for a server, `delete` commands.
    pub(crate) deletes: f64,
    /// Seconds that are left of a pause.
    pub(crate) paused: u64,
    /// Connections that watch the tube.
    pub(crate) watching: u64,
}

/// What one look tells of a server with its tubes.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) server: Line,
    pub(crate) tubes: Vec<Line>,
    pub(crate) uptime: u64,
    pub(crate) connections: u64,
    /// Whether there was a look before this one at the same process, so that rates are known.
    pub(crate) has_rates: bool,
    /// The dictionary of `stats`.
    pub(crate) stats: String,
    /// What is wrong with the binlog, if the server tells that.
    pub(crate) trouble: Option<Trouble>,
}

/// A binlog that is full or has failed. Only this daemon tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// `full` or `failed`.
    pub(crate) state: String,
    /// For how many seconds.
    pub(crate) age: u64,
}

impl Trouble {
    /// Reads the dictionary of `metrics`; `None` if nothing is wrong, or there is no binlog.
    fn read(metrics: &str) -> Option<Self> {
        let state = yaml::value(metrics, "binlog-state")?;
        let age = yaml::number(metrics, "binlog-trouble-age");
        (!matches!(state, "none" | "sound")).then(|| Self { state: state.to_owned(), age })
    }
}

/// Totals by which the next look knows the rates.
#[derive(Debug, Default)]
struct Totals {
    instance: Instance,
    at: Option<Instant>,
    /// Put and deleted jobs, by tubes; the server's own under the empty name.
    counts: Vec<(String, u64, u64)>,
}

/// A server that is looked at again and again.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) address: Address,
    client: Option<Client>,
    /// How long a look may take.
    limit: Option<Duration>,
    before: Totals,
}

impl Watch {
    /// Begins to watch; connects with the first look.
    pub(crate) fn new(address: Address) -> Self {
        Self { address, client: None, limit: None, before: Totals::default() }
    }

    /// Makes a look fail that takes longer.
    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Looks once. After an error the next look connects again.
    pub(crate) fn look(&mut self, meant: &Tubes) -> Result<Sample> {
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        let (mut client, stats) = Client::resume(self.client.take(), &self.address, deadline)?;
        let names = census::tubes(&mut client, meant)?;
        let tubes = census::tube_stats(&mut client, &names)?;
        let metrics = if client.has("metrics")? { client.yaml("metrics")? } else { String::new() };
        self.client = Some(client);
        let sample = self.compare(&stats, &tubes, Instant::now());
        Ok(Sample { trouble: Trouble::read(&metrics), ..sample })
    }

    /// Returns the connection of the last look, if that went well.
    pub(crate) fn client(&mut self) -> Option<&mut Client> {
        self.client.as_mut()
    }

    fn compare(&mut self, stats: &str, tubes: &[(String, String)], now: Instant) -> Sample {
        let number = |key| yaml::number(stats, key);
        let instance = Instance::from_stats(stats);
        let before = std::mem::take(&mut self.before);
        let seconds = before.at.map(|at| now.duration_since(at).as_secs_f64());
        let seconds = seconds.filter(|_| before.instance == instance);
        let mut totals = Totals { instance, at: Some(now), counts: Vec::new() };
        let mut line = |tube: &str, text: &str| {
            let (put, deleted) =
                (yaml::number(text, "total-jobs"), yaml::number(text, "cmd-delete"));
            totals.counts.push((tube.to_owned(), put, deleted));
            let old = before.counts.binary_search_by(|(name, ..)| name.as_str().cmp(tube));
            let rate = |now: u64, then: u64| {
                // A tube that was gone in between counts from 0.
                let then = if now < then { 0 } else { then };
                seconds.map_or(0.0, |seconds| count_as_f64(now - then) / seconds.max(0.001))
            };
            let (old_put, old_deleted) = old.map_or((put, deleted), |at| {
                let (_, put, deleted) = before.counts[at];
                (put, deleted)
            });
            let key = |name: &&str| match *name {
                "waiting" => yaml::number(text, "current-waiting"),
                name => yaml::number(text, &format!("current-jobs-{name}")),
            };
            Line {
                tube: tube.to_owned(),
                counts: COUNTS.each_ref().map(key),
                puts: rate(put, old_put),
                deletes: rate(deleted, old_deleted),
                paused: yaml::number(text, "pause-time-left"),
                watching: yaml::number(text, "current-watching"),
            }
        };
        // In the order of names, as the search expects: the empty one is the first.
        let server = line("", stats);
        let tubes = tubes.iter().map(|(name, text)| line(name, text)).collect();
        self.before = totals;
        Sample {
            server,
            tubes,
            uptime: number("uptime"),
            connections: number("current-connections"),
            has_rates: seconds.is_some(),
            stats: stats.to_owned(),
            trouble: None,
        }
    }
}

impl Sample {
    /// Whether the server takes no more jobs.
    pub(crate) fn is_draining(&self) -> bool {
        yaml::value(&self.stats, "draining") == Some("true")
    }

    /// What stands behind the numbers of a server that is not as it should be.
    pub(crate) fn notes(&self) -> String {
        let mut notes = if self.is_draining() { "  draining".to_owned() } else { String::new() };
        if let Some(trouble) = &self.trouble {
            notes.extend(["  binlog ", &trouble.state]);
        }
        notes
    }
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs, context: &mut Context) -> Result<Outcome> {
    let meant = Tubes::new(&args.tubes)?;
    let watches: Vec<_> = context.servers.iter().cloned().map(Watch::new).collect();
    if args.plain || context.out.json {
        return plain(args, watches, &meant, context);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || is_dumb() {
        bail!("this is no terminal with a full screen: use --plain");
    }
    top_screen::run(args, watches, &meant, &context.interrupt)
}

/// Sleeps until the next look; false if Ctrl-C has come.
fn sleep(length: Duration, context: &Context) -> bool {
    let began = Instant::now();
    while !context.interrupt.is_set() {
        let left = length.saturating_sub(began.elapsed());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(NAP));
    }
    false
}

/// A line for each server and look, or for each of the tubes that are meant.
fn plain(
    args: &TopArgs,
    mut watches: Vec<Watch>,
    meant: &Tubes,
    context: &mut Context,
) -> Result<Outcome> {
    /// After how many lines the heading comes again.
    const PAGE: u64 = 20;
    let width = watches.iter().map(|watch| watch.address.to_string().len()).max().unwrap_or(0);
    let mut looks = 0;
    while args.count.is_none_or(|count| looks < count) {
        let wait = Duration::from_secs(args.interval);
        if looks > 0 && !sleep(wait, context) {
            break;
        }
        let has_heading = looks % PAGE == 0;
        looks += 1;
        if context.out.json {
            for watch in &mut watches {
                let object = match watch.look(meant) {
                    Ok(sample) => object(&sample),
                    Err(error) => Map::from_iter([("error".into(), format!("{error:#}").into())]),
                };
                context.out.object(object, Some(&watch.address.to_string()))?;
            }
            context.out.flush()?;
            continue;
        }
        // Each column is as wide as numbers get, so that the lines stand below each other.
        let heading = ["put/s", "del/s", "conns"].into_iter();
        let columns = COUNTS.into_iter().chain(heading).map(|name| format!("{name:>10}"));
        let heading = columns.collect::<Vec<_>>().concat();
        if has_heading {
            context.out.line(&format!("{:width$}{heading}", "server"))?;
        }
        for watch in &mut watches {
            let name = watch.address.to_string();
            let sample = match watch.look(meant) {
                Ok(sample) => sample,
                Err(error) => {
                    context.out.line(&format!("{name:width$}  {error:#}"))?;
                    continue;
                }
            };
            let lines =
                if meant.is_all() { slice::from_ref(&sample.server) } else { &sample.tubes };
            for line in lines {
                let rates = [line.puts, line.deletes].map(|rate| format!("{rate:>10.0}"));
                let counts = line.counts.map(|count| format!("{count:>10}"));
                let numbers = [counts.concat(), rates.concat()].concat();
                let connections = format!("{:>10}", sample.connections);
                let (tube, notes) = (&line.tube, sample.notes());
                let tube = if tube.is_empty() { String::new() } else { format!("  {tube}") };
                context.out.line(&format!("{name:width$}{numbers}{connections}{notes}{tube}"))?;
            }
        }
        context.out.flush()?;
    }
    Ok(Outcome::Done)
}

fn object(sample: &Sample) -> Map<String, Value> {
    let of = |line: &Line| {
        let mut object = Map::new();
        for (name, count) in COUNTS.iter().zip(line.counts) {
            object.insert((*name).to_owned(), count.into());
        }
        object.insert("puts-per-second".to_owned(), line.puts.into());
        object.insert("deletes-per-second".to_owned(), line.deletes.into());
        object
    };
    let mut all = of(&sample.server);
    if let Some(trouble) = &sample.trouble {
        all.insert("binlog".to_owned(), trouble.state.as_str().into());
    }
    let tubes = sample.tubes.iter().map(|tube| (tube.tube.clone(), Value::Object(of(tube))));
    all.insert("tubes".to_owned(), Value::Object(tubes.collect()));
    all
}

/// Makes the table of the screen: the heading and the rows, sorted by a column.
pub(crate) fn rows(
    samples: &[(String, Sample)],
    has_servers: bool,
    sort: usize,
    is_reversed: bool,
) -> Vec<[String; 9]> {
    let mut rows: Vec<(&str, &Line)> = samples
        .iter()
        .flat_map(|(server, sample)| sample.tubes.iter().map(|tube| (server.as_str(), tube)))
        .collect();
    let value = |line: &Line| match sort {
        1..=5 => count_as_f64(line.counts[sort - 1]),
        6 => line.puts,
        7 => line.deletes,
        _ => count_as_f64(line.paused),
    };
    rows.sort_by(|left, right| match sort {
        0 => (&left.1.tube, left.0).cmp(&(&right.1.tube, right.0)),
        _ => value(right.1).total_cmp(&value(left.1)).then_with(|| left.1.tube.cmp(&right.1.tube)),
    });
    if is_reversed {
        rows.reverse();
    }
    let row = |(server, line): (&str, &Line)| {
        let name = if has_servers { format!("{server} {}", line.tube) } else { line.tube.clone() };
        let [ready, reserved, delayed, buried, waiting] =
            line.counts.map(|count| count.to_string());
        let (puts, deletes) = (format!("{:.0}", line.puts), format!("{:.0}", line.deletes));
        let paused = if line.paused > 0 { line.paused.to_string() } else { String::new() };
        [name, ready, reserved, delayed, buried, waiting, puts, deletes, paused]
    };
    rows.into_iter().map(row).collect()
}

/// The columns of [`rows`].
pub(crate) const COLUMNS: [&str; 9] =
    ["tube", "ready", "reserved", "delayed", "buried", "waiting", "put/s", "del/s", "paused"];

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        Watch::new("localhost".parse().unwrap())
    }

    fn stats(pid: u32, jobs: u64, deletes: u64) -> String {
        format!("---\npid: {pid}\ntotal-jobs: {jobs}\ncmd-delete: {deletes}\nuptime: 9\n")
    }

    #[expect(clippy::float_cmp, reason = "these quotients are exact")]
    #[test]
    fn rates_are_those_of_one_process() {
        let (mut watch, start) = (watch(), Instant::now());
        let tube = |jobs: u64| vec![("a".to_owned(), stats(0, jobs, 1))];
        let sample = watch.compare(&stats(1, 100, 50), &tube(10), start);
        assert_eq!((sample.server.puts, sample.tubes[0].puts), (0.0, 0.0));
        let later = start + Duration::from_secs(2);
        let sample = watch.compare(&stats(1, 300, 60), &tube(30), later);
        assert_eq!((sample.server.puts, sample.server.deletes), (100.0, 5.0));
        assert_eq!(sample.tubes[0].puts, 10.0);
        // After a restart the counters begin again, and no rate is known.
        let sample = watch.compare(&stats(2, 400, 9), &tube(3), later + Duration::from_secs(1));
        assert_eq!((sample.server.puts, sample.tubes[0].puts), (0.0, 0.0));
        // A tube that was gone meanwhile counts from 0.
        let sample = watch.compare(&stats(2, 400, 9), &tube(1), later + Duration::from_secs(2));
        assert_eq!(sample.tubes[0].puts, 1.0);
    }

    #[test]
    fn only_a_binlog_in_trouble_is_told() {
        for state in ["none", "sound"] {
            assert_eq!(Trouble::read(&format!("---\nbinlog-state: {state}\n")), None);
        }
        let found = Trouble::read("---\nbinlog-state: failed\nbinlog-trouble-age: 61\n").unwrap();
        assert_eq!((found.state.as_str(), found.age), ("failed", 61));
        assert_eq!(Trouble::read(""), None, "the server does not tell");
    }

    #[test]
    fn rows_are_sorted_by_any_column() {
        let line = |tube: &str, ready: u64, puts: f64| Line {
            tube: tube.to_owned(),
            counts: [ready, 0, 0, 0, 0],
            puts,
            deletes: 0.0,
            paused: 0,
            watching: 0,
        };
        let tubes = vec![line("b", 9, 1.0), line("a", 10, 0.0), line("c", 9, 5.0)];
        let server = line("", 0, 0.0);
        let (uptime, connections, has_rates) = (1, 1, true);
        let (stats, trouble) = (String::new(), None);
        let sample = Sample { server, tubes, uptime, connections, has_rates, stats, trouble };
        let samples = [("s".to_owned(), sample)];
        let names = |sort, is_reversed| {
            let rows = rows(&samples, false, sort, is_reversed);
            rows.iter().map(|row| row[0].clone()).collect::<String>()
        };
        assert_eq!(names(0, false), "abc");
        assert_eq!(names(1, false), "abc");
        assert_eq!(names(6, false), "cba");
        assert_eq!(names(1, true), "cba");
        assert_eq!(rows(&samples, true, 0, false)[0][0], "s a");
    }
}
