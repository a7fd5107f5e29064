//! Attacks one daemon after another through connections, and reports how well each daemon serves a
//! well-behaved client during the attacks.
//!
//! This file reads the arguments and prints the results; [`ct::abuse`] does the work.

use std::io::Write as _;
use std::process::ExitCode;

use ct::abuse::{self, Config};
use ct::bench::target::{self, Target};

const USAGE: &str = "\
Usage: ct-abuse [OPTIONS] DAEMON…

DAEMON is 'PROGRAM FLAGS'. The goals apply to the first; the others are for comparison.

 --only NAMES      run only these attacks, separated by commas; see --list
 --connections N   connections of an attack that opens many (20000, or as many as the limit on
                   files allows)
 --many N          jobs, tubes or commands of an attack that makes many (100000)
 --rounds N        rounds of each attack on the same process (3)
 --list            print the names of the attacks
 -h, --help        this help

Exit status: 0 if the first daemon met every goal, 1 if it did not, 2 if it could not begin.
";

/// Runs `ct-abuse`, and returns its exit status.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
        print(USAGE);
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--list") {
        print(&(abuse::names().join("\n") + "\n"));
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("ct-abuse: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs the attacks that the arguments of `ct-abuse` choose; returns true if all goals are met.
fn run(arguments: &[String]) -> Result<bool, String> {
    let config = config(arguments)?;
    let mut progress = |line: &str| eprintln!("{line}");
    let rows = abuse::run(&config, &mut progress).map_err(|error| error.to_string())?;
    print(&abuse::report::table(&rows));
    Ok(abuse::meets_goals(&config, &rows))
}

/// Parses the arguments of `ct-abuse`.
fn config(arguments: &[String]) -> Result<Config, String> {
    let mut config = Config {
        targets: Vec::new(),
        only: Vec::new(),
        connections: 20_000,
        items: 100_000,
        rounds: 3,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        let number = |text: &String| match text.parse::<usize>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{argument} needs a number, not {text}")),
        };
        match argument.as_str() {
            "--only" => config.only = value()?.split(',').map(str::to_owned).collect(),
            "--connections" => config.connections = number(value()?)?,
            "--many" => config.items = number(value()?)?,
            "--rounds" => config.rounds = number(value()?)?,
            flag if flag.starts_with("--") => {
                return Err(format!("unknown option {flag}\n\n{USAGE}"));
            }
            command => {
                config.targets.push(Target::daemon(command).map_err(|error| error.to_string())?);
            }
        }
    }
    if let Some(name) = config.only.iter().find(|name| !abuse::names().contains(&name.as_str())) {
        return Err(format!("no attack is called {name}; see --list"));
    }
    if config.targets.is_empty() {
        return Err(format!("give a daemon\n\n{USAGE}"));
    }
    target::make_labels_unique(&mut config.targets);
    Ok(config)
}

/// Prints and flushes a text of `ct-abuse`; ignores errors such as a closed pipe.
fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
