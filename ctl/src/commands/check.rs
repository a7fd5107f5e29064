//! `check`: compares tubes with thresholds, as a plugin of Nagios and other monitoring systems.

use std::cmp::Reverse;
use std::sync::Arc;

use anyhow::Result;
use serde_json::json;

use crate::address::Address;
use crate::args::{CheckArgs, Threshold};
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::deadline;
use crate::filter::Tubes;
use crate::job::State;
use crate::message::{describe_trouble, of_server};
use crate::statistics;
use crate::sweep;
use crate::yaml;

/// The result of a check. The number of each variant is the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckStatus {
    Ok,
    Warning,
    Critical,
    Unknown,
}

/// A problem: its status and its description.
type CheckFinding = (CheckStatus, String);

impl CheckStatus {
    /// Returns the word that names the status of `check` in the output.
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// Returns the status of a number that `check` reads; `None` if the number is below the
    /// threshold for a warning.
    fn of_number(number: u64, threshold: Option<Threshold>) -> Option<Self> {
        let Threshold { warning, critical } = threshold?;
        let level = if number >= critical { Self::Critical } else { Self::Warning };
        (number >= warning).then_some(level)
    }
}

/// Runs `beanstalkctl check`.
pub(crate) fn run(args: CheckArgs, context: &mut Context) -> Result<Outcome> {
    let selected = Tubes::new(&args.tubes)?;
    let deadline = deadline::after_seconds(args.timeout);
    let shared = Arc::new((args, selected));
    let ask = |address: &Address| {
        let (shared, address) = (Arc::clone(&shared), address.clone());
        deadline::start(move || {
            let mut client = Client::connect_until(&address, Some(deadline))?;
            check_server(&shared.0, &shared.1, &mut client)
        })
    };
    let answers: Vec<_> = context.servers.iter().map(ask).collect();
    let mut problems = Vec::new();
    for (address, answer) in context.servers.iter().zip(answers) {
        let found = deadline::wait(&answer, deadline, &context.interrupt)?;
        let found = found.unwrap_or_else(|error| {
            vec![(CheckStatus::Unknown, format!("{:#}", of_server(address, error)))]
        });
        problems.extend(found.into_iter().map(|(status, text)| (status, address, text)));
    }
    // The worst problems come first, because some alerts show only the beginning of the text.
    problems.sort_by_key(|(status, ..)| Reverse(*status));
    let worst = problems.first().map_or(CheckStatus::Ok, |(status, ..)| *status);
    if context.out.json {
        let object = |(status, server, text): &(CheckStatus, &Address, String)| {
            let server = server.to_string();
            json!({ "status": status.word(), "server": server, "text": text })
        };
        let problems: Vec<_> = problems.iter().map(object).collect();
        let line = json!({ "status": worst.word(), "problems": problems });
        context.out.value(line, None)?;
    } else {
        let shown: Vec<_> = problems.into_iter().map(|(.., text)| text).collect();
        let good = "all tubes are below thresholds".to_owned();
        let text = if shown.is_empty() { good } else { shown.join("; ") };
        context.out.line(&format!("BEANSTALKD {}: {text}", worst.word()))?;
    }
    Ok(Outcome::Exit(worst as u8))
}

/// Returns the problems of a server: a bad state, no matching tube, or numbers beyond thresholds.
fn check_server(
    args: &CheckArgs,
    selected: &Tubes,
    client: &mut Client,
) -> Result<Vec<CheckFinding>> {
    let names = statistics::tube_names(client, selected)?;
    let mut found = Vec::new();
    let state = checked_state(client)?.unwrap_or_default();
    if let Some(trouble) = describe_trouble(&state) {
        let level =
            if state == "binlog-failed" { CheckStatus::Critical } else { CheckStatus::Warning };
        found.push((level, format!("{}: {trouble}", client.address())));
    }
    if names.is_empty() && !selected.is_all() {
        found.push((CheckStatus::Unknown, format!("{}: no matching tube", client.address())));
    }
    for (name, text) in statistics::tube_stats(client, &names)? {
        let number = |key: &str| yaml::number(&text, key);
        let place = format!("{} {name}", client.address());
        let states = [("ready", args.ready), ("buried", args.buried), ("delayed", args.delayed)];
        for (state, threshold) in states {
            let count = number(&format!("current-jobs-{state}"));
            let level = CheckStatus::of_number(count, threshold);
            found.extend(level.map(|level| (level, format!("{place}: {count} {state}"))));
        }
        let (ready, workers) = (number("current-jobs-ready"), number("current-watching"));
        if ready > 0 && args.workers.is_some_and(|least| workers < least) {
            found.push((
                CheckStatus::Critical,
                format!("{place}: {ready} ready, {workers} workers"),
            ));
        }
        if ready > 0 && args.age.is_some() {
            let age = checked_age(client, &name)?.unwrap_or(0);
            let level = CheckStatus::of_number(age, args.age);
            found.extend(level.map(|level| (level, format!("{place}: next job {age} s old"))));
        }
    }
    Ok(found)
}

/// Returns the server's state for `check`; a server without the command `capabilities` reports only
/// whether it is draining.
fn checked_state(client: &mut Client) -> Result<Option<String>> {
    let reply = client.ask("capabilities")?;
    if reply.is("OK") {
        return Ok(yaml::value(&reply.into_yaml()?, "state").map(str::to_owned));
    }
    let is_draining = yaml::value(&client.yaml("stats")?, "draining") == Some("true");
    Ok(is_draining.then(|| "draining".to_owned()))
}

/// Returns the age of the job that would be reserved next from a tube, in seconds.
fn checked_age(client: &mut Client, tube: &str) -> Result<Option<u64>> {
    client.use_tube(tube)?;
    let reply = client.ask("peek-ready")?;
    let id = reply.number().filter(|_| reply.is("FOUND"));
    let job = sweep::jobs_by_ids(client, id)?.pop().filter(|job| job.state == State::Ready);
    Ok(job.map(|job| job.age))
}
