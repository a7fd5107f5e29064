//! Plays the golden scripts against any beanstalkd and reports which rules the daemon keeps.
//!
//! This file reads the arguments and prints the results; [`ct::check`] does the work.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ct::check::{check_all, check_at};
use ct::{Dialect, Program, Report, Script, Verdict};

const USAGE: &str = "\
Usage: ct-check [OPTIONS] ADDRESS...
       ct-check [OPTIONS] --daemon 'PROGRAM FLAGS'

ADDRESS is host:port or unix:/path of a daemon without jobs and other users: all jobs put there
during the check are deleted. Scripts that need a daemon of their own are skipped. With --daemon
each script gets a new daemon.

 --scripts DIR      the scripts (tests/golden of this source tree)
 --dialect NAME     release of the daemon: ours, 1.13 or 1.12 (ours)
 --show SCRIPT      play one script only and print the conversation
 --tap              report in the Test Anything Protocol
 -h, --help         this help

Exit status: 0 if nothing failed, 1 if something failed, 2 if ct-check could not begin.
";

/// The command line.
struct Config {
    scripts: PathBuf,
    dialect: Dialect,
    tap: bool,
    show: Option<String>,
    daemon: Option<Program>,
    addresses: Vec<String>,
}

/// Runs `ct-check`, and returns its exit status.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
        print(USAGE);
        return ExitCode::SUCCESS;
    }
    match check(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("ct-check: {message}");
            ExitCode::from(2)
        }
    }
}

/// Plays the scripts for `ct-check` and reports the results; returns true if no script failed.
fn check(arguments: &[String]) -> Result<bool, String> {
    let config = Config::parse(arguments)?;
    let (scripts, mut reports) = config.load()?;
    reports.extend(config.play(&scripts)?);
    let text = match (&config.show, config.tap) {
        (Some(_), _) => conversation(&scripts, &reports),
        (None, true) => tap(&reports),
        (None, false) => plain(&reports) + &rules(&reports),
    };
    print(&text);
    // In TAP output, all lines other than results must be comments.
    let sign = if config.tap { "# " } else { "" };
    print(&format!("{sign}{}\n", totals(&reports)));
    Ok(!reports.iter().any(Report::is_failure))
}

impl Config {
    /// Parses the arguments of `ct-check`.
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut config = Self {
            scripts: Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden"),
            dialect: dialect("ours")?,
            tap: false,
            show: None,
            daemon: None,
            addresses: Vec::new(),
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next().cloned();
                value.ok_or_else(|| format!("{argument} needs a value\n\n{USAGE}"))
            };
            match argument.as_str() {
                "--scripts" => config.scripts = value()?.into(),
                "--dialect" => config.dialect = dialect(&value()?)?,
                "--show" => config.show = Some(value()?),
                "--daemon" => config.daemon = Some(program(&value()?)?),
                "--tap" => config.tap = true,
                flag if flag.starts_with('-') => {
                    return Err(format!("unknown option {flag}\n\n{USAGE}"));
                }
                address => config.addresses.push(address.to_owned()),
            }
        }
        if config.daemon.is_some() != config.addresses.is_empty() {
            return Err(format!("give addresses or --daemon\n\n{USAGE}"));
        }
        Ok(config)
    }

    /// Reads the scripts that the arguments of `ct-check` choose. A script that cannot be parsed is
    /// reported as a failure, and the other scripts are played.
    fn load(&self) -> Result<(Vec<Script>, Vec<Report>), String> {
        let paths = match &self.show {
            Some(name) => vec![self.scripts.join(name).with_extension("txt")],
            None => Script::files(&self.scripts).map_err(|error| error.to_string())?,
        };
        let (mut scripts, mut reports) = (Vec::new(), Vec::new());
        for path in &paths {
            match Script::load(path) {
                Ok(script) => scripts.push(script),
                Err(error) if self.show.is_some() => return Err(error.to_string()),
                Err(error) => reports.push(Report::unreadable(path, &error)),
            }
        }
        if paths.is_empty() {
            return Err(format!("no script in {}", self.scripts.display()));
        }
        Ok((scripts, reports))
    }

    /// Plays the scripts on the daemons that the arguments of `ct-check` name.
    fn play(&self, scripts: &[Script]) -> Result<Vec<Report>, String> {
        if let Some(program) = &self.daemon {
            return Ok(check_all(scripts, program, &self.dialect));
        }
        let mut reports = Vec::new();
        for address in &self.addresses {
            let some = check_at(scripts, address, &self.dialect);
            let some = some.map_err(|error| format!("{address}: {error}"))?;
            reports.extend(some);
        }
        Ok(reports)
    }
}

/// Returns the dialect that `ct-check --dialect` names.
fn dialect(name: &str) -> Result<Dialect, String> {
    let names = Dialect::NAMES.join(", ");
    Dialect::named(name).ok_or_else(|| format!("unknown dialect {name}; known are {names}"))
}

/// Splits the command line of `ct-check --daemon` at spaces.
fn program(command: &str) -> Result<Program, String> {
    let mut words = command.split_whitespace().map(str::to_owned);
    let path = words.next().ok_or("--daemon needs a program")?.into();
    Ok(Program { path, flags: words.collect() })
}

/// Prints a text of `ct-check`; ignores errors such as a closed pipe.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Returns message and conversation of a failure for `ct-check`, with `margin` before each line.
fn details(report: &Report, margin: &str) -> String {
    let mut text = String::new();
    if let Verdict::Failed(failure) = &report.result {
        let location = match failure.line {
            0 => String::new(),
            line => format!("{}.txt:{line}: ", report.name),
        };
        let mut all = format!("{location}{}\n", failure.message);
        if !report.transcript.is_empty() {
            all += "The conversation so far:\n";
        }
        for line in all.lines().chain(report.transcript.lines()) {
            put(&mut text, format_args!("{margin}{line}"));
        }
    }
    text
}

/// Formats the results of scripts as lines of text for `ct-check`.
fn plain(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let (name, seconds) = (&report.name, report.duration.as_secs_f64());
        match &report.result {
            Verdict::Passed => put(&mut text, format_args!("ok      {name} ({seconds:.1} s)")),
            Verdict::Failed(_) => put(&mut text, format_args!("FAILED  {name} ({seconds:.1} s)")),
            Verdict::Skipped(why) => put(&mut text, format_args!("skipped {name}: {why}")),
        }
        text.push_str(&details(report, "        "));
    }
    text
}

/// Formats the results of scripts for `ct-check --tap`.
fn tap(reports: &[Report]) -> String {
    let mut text = format!("1..{}\n", reports.len());
    for (index, report) in reports.iter().enumerate() {
        let (number, name) = (index + 1, &report.name);
        match &report.result {
            Verdict::Passed => put(&mut text, format_args!("ok {number} - {name}")),
            Verdict::Failed(_) => put(&mut text, format_args!("not ok {number} - {name}")),
            Verdict::Skipped(why) => {
                put(&mut text, format_args!("ok {number} - {name} # SKIP {why}"));
            }
        }
        text.push_str(&details(report, "# "));
    }
    text
}

/// Formats the conversations of scripts for `ct-check --show`.
fn conversation(scripts: &[Script], reports: &[Report]) -> String {
    let mut text = String::new();
    for (script, report) in scripts.iter().cycle().zip(reports) {
        put(&mut text, format_args!("# {}", script.description));
        if report.is_failure() {
            text.push_str(&details(report, ""));
        } else {
            text.push_str(&report.transcript);
        }
    }
    text
}

/// Formats the tables of `ct-check`: for each command and each rule, how many scripts prove it, and
/// whether these scripts passed.
fn rules(reports: &[Report]) -> String {
    let mut counts: HashMap<&str, [usize; 3]> = HashMap::new();
    for report in reports {
        for rule in &report.proves {
            counts.entry(rule).or_default()[kind(report)] += 1;
        }
    }
    let mut counts: Vec<(&str, [usize; 3])> = counts.into_iter().collect();
    counts.sort_by_key(|(rule, _)| natural(rule));
    // Names of commands begin with a lower-case letter, names of rules with a capital.
    let is_command = |rule: &str| rule.starts_with(|first: char| first.is_ascii_lowercase());
    let (commands, rules): (Vec<_>, Vec<_>) =
        counts.into_iter().partition(|(rule, _)| is_command(rule));
    let tables = [("Commands", commands), ("Rules", rules)];
    let text = tables.map(|(title, counts)| table(title, &counts)).concat();
    text + "\n"
}

/// Makes a table of commands or rules for `ct-check`: how many scripts prove each, and the scripts'
/// results.
fn table(title: &str, counts: &[(&str, [usize; 3])]) -> String {
    let mut text = format!("\n{title}, and the scripts that prove them:\n");
    for &(rule, [passed, failed, skipped]) in counts {
        let verdict = match (passed, failed, skipped) {
            (_, 0, 0) => "all ok".to_owned(),
            (0, 0, _) => "skipped".to_owned(),
            (_, 0, _) => format!("ok, {skipped} skipped"),
            _ => format!("{failed} FAILED"),
        };
        let all = passed + failed + skipped;
        put(&mut text, format_args!("{rule:<20} {all:>3}  {verdict}"));
    }
    text
}

/// Returns a key that sorts the rule `E2` before `E12` in the table of `ct-check`.
fn natural(rule: &str) -> (&str, u64, &str) {
    let digits = rule.find(|c: char| c.is_ascii_digit()).unwrap_or(rule.len());
    let (letters, number) = rule.split_at(digits);
    (letters, number.parse().unwrap_or(u64::MAX), number)
}

/// Returns the index of a verdict in the totals of `ct-check`: passed, failed, skipped.
fn kind(report: &Report) -> usize {
    match report.result {
        Verdict::Passed => 0,
        Verdict::Failed(_) => 1,
        Verdict::Skipped(_) => 2,
    }
}

/// Formats the totals of `ct-check`: how many scripts passed, failed and were skipped.
fn totals(reports: &[Report]) -> String {
    let mut counts = [0; 3];
    for report in reports {
        counts[kind(report)] += 1;
    }
    let [passed, failed, skipped] = counts;
    format!("{passed} passed, {failed} failed, {skipped} skipped")
}

/// Appends a line to the report of `ct-check`.
fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes everything");
}
