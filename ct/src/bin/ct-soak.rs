//! Keeps a daemon with a binlog under load, kills and restarts the daemon, and reports lost jobs
//! and leaks.
//!
//! This file reads the arguments and prints the results; [`ct::soak`] does the work.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use ct::bench::target::{ScratchDir, Target};
use ct::soak::{self, Config, PlantedDefect};

const USAGE: &str = "\
Usage: ct-soak [OPTIONS] DAEMON

DAEMON is 'PROGRAM FLAGS'. Its binlog is in a new directory, removed at the end.

 --minutes N   duration (30)
 --seed N      seed of the clients' random choices (1)
 --dir PATH    parent of the binlog's directory (the directory for temporary files)
 --plant WHAT  plant a defect that must be found: loss, leak or growth
 -h, --help    this help

Exit status: 0 if nothing was lost, grew or failed, 1 if something did, 2 if it could not begin.
";

/// Runs `ct-soak`, and returns its exit status.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
        print(USAGE);
        return ExitCode::SUCCESS;
    }
    match soak(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("ct-soak: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs the soak test that the arguments of `ct-soak` describe; returns true if it found no fault.
fn soak(arguments: &[String]) -> Result<bool, String> {
    let (mut minutes, mut seed, mut parent) = (30, 1, std::env::temp_dir());
    let (mut plant, mut daemon) = (None, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        let number = |text: &String| {
            text.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {text}"))
        };
        match argument.as_str() {
            "--minutes" => minutes = number(value()?)?,
            "--seed" => seed = number(value()?)?,
            "--dir" => parent = value()?.into(),
            "--plant" => {
                let name = value()?;
                let known =
                    PlantedDefect::named(name).ok_or_else(|| format!("no such defect: {name}"))?;
                plant = Some(known);
            }
            flag if flag.starts_with("--") => {
                return Err(format!("unknown option {flag}\n\n{USAGE}"));
            }
            command => daemon = Some(command.to_owned()),
        }
    }
    let daemon = daemon.ok_or_else(|| format!("give a daemon\n\n{USAGE}"))?;
    let describe = |error: std::io::Error| error.to_string();
    let target = Target::daemon(&daemon).map_err(describe)?;
    let scratch = ScratchDir::new(&parent).map_err(describe)?;
    soak::prepare().map_err(describe)?;
    print(&format!("{}: {minutes} minutes, seed {seed}\n", target.label));
    let time = Duration::from_secs(60 * minutes);
    let config = Config { program: target.program, time, seed, plant };
    let mut progress = |line: &str| print(&format!("{line}\n"));
    let outcome = soak::run(&config, scratch.path(), &mut progress).map_err(describe)?;
    print(&outcome.report());
    Ok(outcome.faults.is_empty() && outcome.lost == 0)
}

/// Prints and flushes a text of `ct-soak`; ignores errors such as a closed pipe.
fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
