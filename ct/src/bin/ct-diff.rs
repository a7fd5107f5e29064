//! Sends the same random traffic to two daemons, and writes a golden script for each difference.
//!
//! This file reads the arguments and prints the results; [`ct::diff`] does the work.

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ct::Dialect;
use ct::diff::{Finding, Options, Summary, Target, compare};

const USAGE: &str = "\
Usage: ct-diff --left DAEMON --right DAEMON [OPTIONS]

DAEMON is 'PROGRAM FLAGS', started on a free port of 127.0.0.1 for every run; or host:port or
unix:/path of a daemon without jobs and other users, where all jobs that a run puts are deleted. The
right one is the reference: scripts expect its answers.

 --seed N           seed of the first run, the others follow (1)
 --runs N           number of runs (100)
 --steps N          operations of a run, at most 400, and 60 in runs that let time pass (200)
 --garbage          send mostly garbage
 --restart          give each a binlog (-b) and restart them by SIGTERM during the run
 --seconds N        begin no run later than this
 --parallel N       runs in parallel, if daemons are started (24)
 --go-on            do not stop at the first difference
 --left-dialect D   known differences of the left daemon: ours, 1.13 or 1.12 (by its version)
 --right-dialect D  known differences of the right daemon
 -h, --help         this help

Every difference is shrunk and printed as a golden script. A difference that does not show again
when its run is repeated is printed, too, but is not a failure.

Exit status: 0 if the two agree, 1 if they differ, 2 if ct-diff could not begin, or had to stop.
";

/// The command line.
struct Config {
    left: Target,
    right: Target,
    options: Options,
}

/// Runs `ct-diff`, and returns its exit status.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
        print(USAGE);
        return ExitCode::SUCCESS;
    }
    match Config::parse(&arguments).and_then(|config| diff(&config)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("ct-diff: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs the comparison of `ct-diff`; returns true if the two daemons agree.
fn diff(config: &Config) -> Result<bool, String> {
    let start = Instant::now();
    let is_watched = std::io::stderr().is_terminal();
    let progress = |summary: &Summary| {
        if is_watched {
            let (line, runs) = (totals(summary, start.elapsed()), config.options.runs);
            eprint!("\r{line} (of {runs} runs)\x1b[K");
        }
    };
    let summary = compare([&config.left, &config.right], &config.options, &progress);
    if is_watched {
        eprint!("\r\x1b[K");
    }
    let summary = summary.map_err(|error| error.to_string())?;
    for finding in &summary.unreproduced {
        print(&message("seen once only", finding));
    }
    for finding in &summary.findings {
        print(&message("a difference", finding));
    }
    print(&format!("{}\n", totals(&summary, start.elapsed())));
    if summary.agreed == 0 && summary.findings.is_empty() {
        return Err("no run could be completed".to_owned());
    }
    Ok(summary.findings.is_empty())
}

impl Config {
    /// Parses the arguments of `ct-diff`.
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut left, mut right, mut options) = (None, None, Options::default());
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next().map(String::as_str);
                value.ok_or_else(|| format!("{argument} needs a value\n\n{USAGE}"))
            };
            match argument.as_str() {
                "--left" => left = Some(Target::parse(value()?)?),
                "--right" => right = Some(Target::parse(value()?)?),
                "--seed" => options.seed = number(argument, value()?)?,
                "--runs" => options.runs = number(argument, value()?)?,
                "--steps" => options.steps = number(argument, value()?)?,
                "--parallel" => options.parallel = number(argument, value()?)?,
                "--seconds" => {
                    options.time = Some(Duration::from_secs(number(argument, value()?)?));
                }
                "--restart" => options.restart = true,
                "--garbage" => options.garbage = true,
                "--go-on" => options.keeps_going = true,
                "--left-dialect" => options.dialects[0] = Some(dialect(value()?)?),
                "--right-dialect" => options.dialects[1] = Some(dialect(value()?)?),
                other => return Err(format!("unknown argument {other}\n\n{USAGE}")),
            }
        }
        match (left, right) {
            (Some(left), Some(right)) => Ok(Self { left, right, options }),
            _ => Err(format!("give --left and --right\n\n{USAGE}")),
        }
    }
}

/// Parses a number in the arguments of `ct-diff`.
fn number<T: FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag} needs a number, not {text}"))
}

/// Returns the dialect that an argument of `ct-diff` names.
fn dialect(name: &str) -> Result<Dialect, String> {
    let names = Dialect::NAMES.join(", ");
    Dialect::named(name).ok_or_else(|| format!("unknown dialect {name}; known are {names}"))
}

/// Prints a text of `ct-diff`; ignores errors such as a closed pipe.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Formats a difference that `ct-diff` has found, with its script.
fn message(what: &str, finding: &Finding) -> String {
    let Finding { seed, message, script, reproduced: (times, played), check, .. } = finding;
    format!(
        "Seed {seed}: {what}, shown {times} of {played} times. As a script: {check}.\n{message}\n\
         ----\n{script}----\n"
    )
}

/// Formats the totals of `ct-diff`: how many runs agreed, differed and were too slow.
fn totals(summary: &Summary, time: Duration) -> String {
    let Summary { agreed, events, too_slow, findings, unreproduced } = summary;
    let slow: Vec<String> = too_slow.iter().map(u64::to_string).collect();
    let slow = if slow.is_empty() { String::new() } else { format!(" ({})", slow.join(", ")) };
    format!(
        "{agreed} runs agreed ({events} events), {} differed, {} differed once only, \
         {} too slow{}, \
         {:.1} s",
        findings.len(),
        unreproduced.len(),
        too_slow.len(),
        slow,
        time.as_secs_f64()
    )
}
