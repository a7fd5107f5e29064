//! `check`: compares tubes with thresholds, as a plugin of Nagios and other monitoring systems.

use anyhow::Result;

use crate::args::CheckArgs;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Tubes;
use crate::statistics;
use crate::yaml;

/// A result. The order is that of the exit statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    Ok,
    Warning,
    Critical,
    Unknown,
}

/// A problem, with its description.
type Finding = (Status, String);

impl Status {
    /// Returns the first word of the output.
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// Returns the exit status.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }
}

/// Runs the command.
pub(crate) fn run(args: &CheckArgs, context: &mut Context) -> Result<Outcome> {
    let selected = Tubes::new(&args.tubes)?;
    let mut problems = Vec::new();
    for address in &context.servers {
        let found = Client::connect(address).and_then(|it| check_server(args, &selected, it));
        problems
            .extend(found.unwrap_or_else(|error| vec![(Status::Unknown, format!("{error:#}"))]));
    }
    // The worst come first, because some pagers show only the beginning.
    problems.sort_by_key(|(status, _)| std::cmp::Reverse(*status));
    let worst = problems.first().map_or(Status::Ok, |(status, _)| *status);
    let shown: Vec<_> = problems.into_iter().map(|(_, text)| text).collect();
    let text =
        if shown.is_empty() { "all tubes are below thresholds".into() } else { shown.join("; ") };
    context.out.line(&format!("BEANSTALKD {}: {text}", worst.word()))?;
    Ok(Outcome::Exit(worst.code()))
}

/// Returns the counts of a server's tubes that reach a threshold.
fn check_server(args: &CheckArgs, selected: &Tubes, mut client: Client) -> Result<Vec<Finding>> {
    let names = statistics::tube_names(&mut client, selected)?;
    let mut found = Vec::new();
    if names.is_empty() && !selected.is_all() {
        found.push((Status::Unknown, format!("{}: no matching tube", client.address())));
    }
    for (name, text) in statistics::tube_stats(&mut client, &names)? {
        let number = |key: &str| yaml::number(&text, key);
        let place = format!("{} {name}", client.address());
        let states = [("ready", args.ready), ("buried", args.buried), ("delayed", args.delayed)];
        for (state, threshold) in states {
            let count = number(&format!("current-jobs-{state}"));
            let reached = threshold.and_then(|threshold| match count {
                count if count >= threshold.critical => Some(Status::Critical),
                count if count >= threshold.warning => Some(Status::Warning),
                _ => None,
            });
            found.extend(reached.map(|level| (level, format!("{place}: {count} {state}"))));
        }
        let (ready, workers) = (number("current-jobs-ready"), number("current-watching"));
        if ready > 0 && args.workers.is_some_and(|least| workers < least) {
            found.push((Status::Critical, format!("{place}: {ready} ready, {workers} workers")));
        }
    }
    Ok(found)
}
