//! Measures the speed of any beanstalkd under load, and compares several daemons.
//!
//! This file reads the arguments and prints the results; [`ct::bench`] does the work.

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ct::Program;
use ct::bench::compare::Comparison;
use ct::bench::crowd;
use ct::bench::goals;
use ct::bench::group::{Group, Pacing, Tubes, Until};
use ct::bench::load::Load;
use ct::bench::machine;
use ct::bench::measure::{Cores, Figures};
use ct::bench::op::Op;
use ct::bench::outcome::Row;
use ct::bench::plot;
use ct::bench::reader::Body;
use ct::bench::report::{Report, number as decimal, table_row};
use ct::bench::run_file::RunFile;
use ct::bench::scenario::{Effort, Scenario, presets};
use ct::bench::target::{Config, Target, make_labels_unique};

const USAGE: &str = "\
Usage: ct-bench compare [OPTIONS] DAEMON [DAEMON...]
       ct-bench crowd [OPTIONS] DAEMON
       ct-bench load [OPTIONS] ADDRESS
       ct-bench list [--quick]
       ct-bench table [--markdown] FILE
       ct-bench plot FILE DIR
       ct-bench goals FILE GOALS

DAEMON is 'PROGRAM FLAGS' of any beanstalkd. It is started on a free port of 127.0.0.1 and stopped
afterwards. If a preset has the flag -f0, -f50 or -F, a daemon with the word -f0=-D among its flags
gets -D instead of -f0; one with -F= gets nothing. Daemon and load get a core each if there are two,
except in presets for other placements. Every reply is checked: a wrong reply ends the row with an
error. If it is the first daemon's, the exit status is 1.

compare: measures the first daemon side by side with each of the others, in turn
 --quick            a minute instead of fourteen: fewer presets, shorter, smaller backlogs
 --only PREFIX      only presets whose name begins with PREFIX; may be repeated
 --rounds N         rounds of each row
 --window MS        how long a load runs in each round
 --backlog N        jobs in a large backlog
  --no-bare          without the bare responder, which keeps no queue
  --scratch DIR      parent directory of the binlogs (the system's temporary directory)
  --json FILE        write every sample to FILE
  --plots DIR        write the pictures to DIR

crowd: does a command cost more if there are 10,000 tubes, 10,000 blocked workers and a million
jobs? Measures two daemons of the same program in turn, one empty, one crowded. If a daemon was not
saturated, its side is void and the exit status is 1
 --depth N          pipeline depth; without it, the smallest that saturates both daemons
 --rounds N         rounds (7)
 --window MS        how long the load runs in each (1000)

load: loads a daemon that runs already, at ADDRESS (host:port)
 --cycle COMMANDS   commands that each connection repeats (put,reserve,delete): of put, reserve,
                    delete, release, bury, touch, kick, kick-job, peek and stats; ids are taken from
                    the last put or reserve before. Jobs that are put and not deleted stay there
 --connections N    number of connections (10)
 --depth N          commands at a time on each (1)
 --body N           bytes of each job (64)
 --tube NAME        the tube (default)
 --rate N           begin N cycles a second at fixed times, even if the daemon is late, and measure
                    latencies from these times; without it, as fast as replies come
 --seconds N        duration (5)
 --pid N            the daemon's process id, to show its CPU time too

list: prints the presets, with descriptions
table: prints a saved comparison; --markdown for a document
plot: draws a saved comparison, the gain of each workload and curves; FILE is from --json, or its
table in Markdown (.md)
goals: compares a saved comparison with a file of goals (ct/goals); the exit status is 1 if one is
missed by more than 15 %

On a machine with other load, ask the scheduler for precedence, or ratios will spread:
    setsid -w sh -c 'echo -20 >/proc/self/autogroup; exec nice -n -20 ct-bench compare …'
";

/// Runs `ct-bench`, and returns its exit status.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asks_help = |argument: &String| matches!(argument.as_str(), "-h" | "--help" | "help");
    if arguments.is_empty() || arguments.iter().any(asks_help) {
        print(USAGE);
        return ExitCode::from(if arguments.is_empty() { 2 } else { 0 });
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("ct-bench: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs the command of `ct-bench`; returns false if a measurement failed or a goal was missed.
fn run(arguments: &[String]) -> Result<bool, String> {
    let options = Options::parse(&arguments[1..])?;
    match (arguments[0].as_str(), &options.operands[..]) {
        ("compare", [_, ..]) => compare(&options, arguments),
        ("crowd", [daemon]) => crowd(&options, daemon),
        ("load", [address]) => load_one(&options, address).map(|()| true),
        ("list", []) => {
            print(&list(&options));
            Ok(true)
        }
        ("table", [file]) => {
            print(&table(&read(file)?, options.markdown));
            Ok(true)
        }
        ("plot", [file, directory]) => draw(&table_of(file)?, Path::new(directory)).map(|()| true),
        ("goals", [file, goals]) => evaluate(&read(file)?, goals),
        _ => Err(format!("unknown command or operands: {:?}\n\n{USAGE}", arguments.join(" "))),
    }
}

/// The command line.
#[derive(Debug, Default)]
struct Options {
    quick: bool,
    markdown: bool,
    no_bare: bool,
    only: Vec<String>,
    rounds: Option<usize>,
    window: Option<Duration>,
    backlog: Option<u64>,
    depth: Option<usize>,
    cycle: Option<String>,
    connections: Option<usize>,
    body: Option<usize>,
    tube: Option<String>,
    rate: Option<f64>,
    seconds: Option<u64>,
    pid: Option<u32>,
    scratch: Option<PathBuf>,
    json: Option<PathBuf>,
    plots: Option<PathBuf>,
    operands: Vec<String>,
}

impl Options {
    /// Parses the options of `ct-bench`.
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next().cloned();
                value.ok_or_else(|| format!("{argument} needs a value\n\n{USAGE}"))
            };
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--markdown" => options.markdown = true,
                "--no-bare" => options.no_bare = true,
                "--only" => options.only.push(value()?),
                "--rounds" => options.rounds = Some(number(&value()?)?),
                "--window" => options.window = Some(Duration::from_millis(number(&value()?)?)),
                "--backlog" => options.backlog = Some(number(&value()?)?),
                "--depth" => options.depth = Some(number(&value()?)?),
                "--cycle" => options.cycle = Some(value()?),
                "--connections" => options.connections = Some(number(&value()?)?),
                "--body" => options.body = Some(number(&value()?)?),
                "--tube" => options.tube = Some(value()?),
                "--rate" => options.rate = Some(number(&value()?)?),
                "--seconds" => options.seconds = Some(number(&value()?)?),
                "--pid" => options.pid = Some(number(&value()?)?),
                "--scratch" => options.scratch = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--plots" => options.plots = Some(value()?.into()),
                flag if flag.starts_with('-') => {
                    return Err(format!("unknown option {flag}\n\n{USAGE}"));
                }
                operand => options.operands.push(operand.to_owned()),
            }
        }
        Ok(options)
    }

    /// Returns the rounds, the time and the backlog that the options of `ct-bench` choose.
    fn effort(&self) -> Effort {
        let usual = if self.quick { Effort::QUICK } else { Effort::FULL };
        Effort {
            rounds: self.rounds.unwrap_or(usual.rounds),
            window: self.window.unwrap_or(usual.window),
            backlog: self.backlog.unwrap_or(usual.backlog),
        }
    }

    /// Returns the group of connections for the command `ct-bench load`.
    fn group(&self) -> Result<Group, String> {
        let cycle = self.cycle.as_deref().unwrap_or("put,reserve,delete").split(',');
        let named = |word| Op::named(word).ok_or_else(|| format!("{word:?} cannot be in a cycle"));
        let cycle = cycle.map(named).collect::<Result<Vec<Op>, String>>()?;
        let (connections, depth) = (self.connections.unwrap_or(10), self.depth.unwrap_or(1));
        let positive = self.rate.is_none_or(|rate| rate.is_finite() && rate > 0.0);
        if connections == 0 || depth == 0 || !positive {
            return Err("connections, depth and rate must be above zero".to_owned());
        }
        Ok(Group {
            tubes: self.tube.clone().map_or(Tubes::Default, Tubes::Named),
            pacing: self.rate.map_or(Pacing::Closed, Pacing::Open),
            ..Group::new(connections, depth, &cycle, Body::plain(self.body.unwrap_or(64)))
        })
    }

    /// Returns the presets that the options of `ct-bench` choose.
    fn scenarios(&self) -> Vec<Scenario> {
        let wanted = |scenario: &Scenario| match &self.only[..] {
            [] => scenario.quick || !self.quick,
            only => only.iter().any(|prefix| scenario.name.starts_with(prefix.as_str())),
        };
        presets(self.effort()).into_iter().filter(wanted).collect()
    }
}

/// Parses a number in the arguments of `ct-bench`.
fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number in range"))
}

/// Runs `ct-bench compare`; returns false if a measurement of the first daemon failed.
fn compare(options: &Options, arguments: &[String]) -> Result<bool, String> {
    let cores = Cores::take().map_err(|error| error.to_string())?;
    let mut targets = Vec::new();
    for command in &options.operands {
        targets.push(Target::daemon(command).map_err(|error| error.to_string())?);
    }
    if !options.no_bare {
        targets.push(Target::bare().map_err(|error| error.to_string())?);
    }
    make_labels_unique(&mut targets);
    let scenarios = options.scenarios();
    if scenarios.is_empty() {
        return Err("no preset has this name; see ct-bench list".to_owned());
    }
    let builds = targets.iter().map(|target| machine::build(target, &cores));
    let mut report = Report {
        command: format!("ct-bench {}", arguments.join(" ")),
        date: machine::date().map_err(|error| error.to_string())?,
        commit: machine::commit(),
        machine: machine::describe(&cores),
        targets: builds.collect::<Result<_, _>>().map_err(|error| error.to_string())?,
        rows: Vec::new(),
    };
    let scratch = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let config = Config { targets, effort: options.effort(), scratch, cores };
    print(&format!("{}\n\n{}", report.machine, Report::head()));
    let mut progress = Progress::new(scenarios.len());
    let mut comparison = Comparison::new(config);
    for scenario in &scenarios {
        progress.begin(&scenario.name);
        let rows = comparison.run(scenario, &mut |text| progress.show(text));
        progress.clear();
        for row in &rows {
            print(&table_row(row));
        }
        report.rows.extend(rows);
    }
    keep(options, &report)?;
    // Only errors of the first daemon are failures; the table shows errors of other daemons.
    let has_failed = |row: &Row| {
        let mut own = row.results.first().into_iter().chain(&row.base);
        own.any(|outcome| outcome.error.is_some())
    };
    Ok(!report.rows.iter().any(has_failed))
}

/// Writes the JSON file and the pictures of a report, if the options of `ct-bench` ask for them.
fn keep(options: &Options, report: &Report) -> Result<(), String> {
    if let Some(path) = &options.json {
        fs::write(path, report.to_text())
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let Some(directory) = &options.plots else { return Ok(()) };
    draw(&RunFile::parse(&report.to_markdown())?, directory)
}

/// Reads, for `ct-bench`, the table of a run from a Markdown file or from a file that `--json`
/// wrote.
fn table_of(path: &str) -> Result<RunFile, String> {
    if Path::new(path).extension().is_some_and(|extension| extension == "md") {
        let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        return RunFile::parse(&text).map_err(|error| format!("{path}: {error}"));
    }
    RunFile::parse(&read(path)?.to_markdown())
}

/// Draws the pictures of a run for `ct-bench plot`, and prints their paths.
fn draw(run: &RunFile, directory: &Path) -> Result<(), String> {
    let paths = plot::draw(run, directory).map_err(|error| error.to_string())?;
    for path in paths {
        print(&format!("{}\n", path.display()));
    }
    Ok(())
}

/// Reads a report that `ct-bench --json` wrote.
fn read(path: &str) -> Result<Report, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let value = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    Report::from_json(&value).ok_or_else(|| format!("{path}: not a report of ct-bench"))
}

/// Prints how well a report of `ct-bench` meets a file of goals; returns false if a goal was
/// missed.
fn evaluate(report: &Report, path: &str) -> Result<bool, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let goals::Verdict { text, missed } = goals::evaluate(report, &text)?;
    print(&text);
    Ok(missed == 0)
}

/// Formats a report for the terminal or, with `ct-bench --markdown`, in Markdown.
fn table(report: &Report, markdown: bool) -> String {
    if markdown {
        return report.to_markdown();
    }
    let rows: String = report.rows.iter().map(table_row).collect();
    format!("{}\n\n{}{rows}", report.machine, Report::head())
}

/// Returns the lines of `ct-bench list`: the presets with their descriptions.
fn list(options: &Options) -> String {
    let line = |scenario: &Scenario| format!("{:24} {}\n", scenario.name, scenario.about);
    options.scenarios().iter().map(line).collect()
}

/// Runs `ct-bench crowd`.
fn crowd(options: &Options, daemon: &str) -> Result<bool, String> {
    let mut words = daemon.split_whitespace().map(str::to_owned);
    let path = words.next().ok_or("the daemon's program is missing")?;
    let program = Program { path: path.into(), flags: words.collect() };
    let usual = crowd::Config::new(program);
    let config = crowd::Config {
        depth: options.depth,
        rounds: options.rounds.unwrap_or(usual.rounds),
        window: options.window.unwrap_or(usual.window),
        ..usual
    };
    let mut progress = Progress::new(1);
    progress.begin("crowd");
    let outcome = crowd::compare(&config, &mut |text| progress.show(text));
    progress.clear();
    let outcome = outcome.map_err(|error| error.to_string())?;
    print(&outcome.text);
    Ok(!outcome.is_unsaturated)
}

/// Runs `ct-bench load`: one load on the daemon at an address.
fn load_one(options: &Options, address: &str) -> Result<(), String> {
    Cores::take().map_err(|error| error.to_string())?;
    let until = Until::time(Duration::from_secs(options.seconds.unwrap_or(5)));
    let mut load = Load::connect(address, &[options.group()?], false, 1)
        .map_err(|error| format!("{address}: {error}"))?;
    // Without the daemon's process id, the CPU time of the daemon is not shown.
    let pid = options.pid.unwrap_or_else(std::process::id);
    let figures = Figures::measure(&mut load, pid, until).map_err(|error| error.to_string())?;
    let quantile = |share| {
        let latency = Duration::from_nanos(figures.tally.latency.value_at_quantile(share));
        decimal(latency.as_secs_f64() * 1e6)
    };
    let (rate, seconds) = (decimal(figures.rate()), figures.tally.wall.as_secs_f64());
    print(&format!("{rate} commands/s for {seconds:.1} s\n"));
    let shares = [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (1.0, "all")];
    for (share, name) in shares {
        print(&format!("{:>12} µs latency of {name}\n", quantile(share)));
    }
    let cpu = |who: &str, cpu: f64, busy: f64| {
        let (cpu, busy) = (decimal(cpu), busy * 100.0);
        print(&format!("{cpu:>12} µs CPU of the {who} a command, core busy {busy:.1} %\n"));
    };
    if options.pid.is_some() {
        cpu("daemon", figures.daemon_cpu(), figures.daemon_busy());
    }
    cpu("load", figures.load_cpu(), figures.load_busy());
    Ok(())
}

/// Shows a line about the progress if standard error is a terminal.
struct Progress {
    start: Instant,
    terminal: bool,
    count: usize,
    number: usize,
    name: String,
}

impl Progress {
    /// Makes the progress line of `ct-bench`, for this number of scenarios.
    fn new(count: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { start: Instant::now(), terminal, count, number: 0, name: String::new() }
    }

    /// Shows the next scenario in the progress line of `ct-bench`.
    fn begin(&mut self, name: &str) {
        self.number += 1;
        name.clone_into(&mut self.name);
        self.show("");
    }

    /// Shows the time, the scenario and a text in the progress line of `ct-bench`.
    fn show(&self, text: &str) {
        if self.terminal {
            let (seconds, Self { number, count, name, .. }) =
                (self.start.elapsed().as_secs(), self);
            let time = format!("{}:{:02}", seconds / 60, seconds % 60);
            eprint!("\r\x1b[K{time} [{number}/{count}] {name} {text}");
            let _ = std::io::stderr().flush();
        }
    }

    /// Clears the progress line of `ct-bench`.
    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Prints a text of `ct-bench`; ignores errors such as a closed pipe.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}
