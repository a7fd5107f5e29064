//! What every command is given: the servers, the output, and how to ask the user.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::address::Address;
use crate::census;
use crate::cli::Consent;
use crate::client::Client;
use crate::filter::Tubes;
use crate::input;
use crate::interrupt::Interrupt;
use crate::look::check::Status;
use crate::output::{self, Output};
use crate::plan::log_act;
use crate::sweep::Coverage;

/// The longest answer to a question, in bytes.
const ANSWER_MAX: u64 = 1024;

/// The surroundings of a command.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) servers: Vec<Address>,
    pub(crate) out: Output,
    pub(crate) interrupt: Interrupt,
}

/// How a command ended that did what it could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Something was not found, or is left undone; it has been told.
    NotAll,
    /// `check` has a status of its own.
    Checked(Status),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::NotAll => Self::FAILURE,
            Outcome::Checked(status) => Self::from(status.code()),
        }
    }
}

impl Outcome {
    /// Is [`Outcome::Done`] if `is_done`.
    pub(crate) fn of(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::NotAll }
    }

    /// Keeps what is worse.
    pub(crate) fn and(self, other: Self) -> Self {
        Self::of(self == Self::Done && other == Self::Done)
    }
}

/// Arguments that no server could make sense of: the exit status is 2.
#[derive(Debug)]
pub(crate) struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Makes the error of wrong arguments.
pub(crate) fn usage(text: impl fmt::Display) -> anyhow::Error {
    UsageError(text.to_string()).into()
}

/// Tells the user something that is no result.
pub(crate) fn tell(text: &str) {
    // Standard error may be closed, and there is no other place to tell it.
    let _ = writeln!(io::stderr(), "{}", output::inert(text));
}

/// Tells the user some sentences, each in a line.
pub(crate) fn tell_all(sentences: &[String]) {
    for sentence in sentences {
        tell(sentence);
    }
}

/// Prints an error as all errors are printed.
pub(crate) fn print_error(error: &anyhow::Error) {
    tell(&format!("beanstalkctl: {error:#}"));
}

impl Context {
    /// Does something with each server, also if one of them cannot be reached. The server's name is
    /// given if there are several.
    pub(crate) fn each_server(
        &mut self,
        mut act: impl FnMut(&mut Client, &mut Self, Option<&str>) -> Result<Outcome>,
    ) -> Result<Outcome> {
        let servers = self.servers.clone();
        let mut outcome = Outcome::Done;
        for address in &servers {
            let name = address.to_string();
            let shown = (servers.len() > 1).then_some(name.as_str());
            let result = Client::connect(address).and_then(|mut it| act(&mut it, self, shown));
            match result {
                Ok(one) => outcome = outcome.and(one),
                Err(error) if servers.len() > 1 && !self.is_fatal(&error) => {
                    print_error(&error);
                    outcome = Outcome::NotAll;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }

    /// Whether an error is for the whole program: the user or the reader of the output ended it, or
    /// the arguments are wrong.
    fn is_fatal(&self, error: &anyhow::Error) -> bool {
        self.interrupt.is_set() || is_broken_pipe(error) || error.is::<UsageError>()
    }

    /// Returns the only server.
    pub(crate) fn server(&self) -> Result<&Address> {
        match &self.servers[..] {
            [address] => Ok(address),
            all => Err(usage(format!("this needs one server, and --server names {}", all.len()))),
        }
    }

    /// Connects to the only server.
    pub(crate) fn client(&self) -> Result<Client> {
        self.server().and_then(Client::connect)
    }

    /// Reports what an act did to how many: in one line on standard error, and with `--json` as an
    /// object.
    pub(crate) fn report_act(
        &mut self,
        server: &Address,
        act: &str,
        count: u64,
        done: &str,
    ) -> Result<()> {
        log_act(server, None, done);
        if !self.out.json {
            return Ok(());
        }
        let object = json!({ "act": act, "count": count, "report": done });
        let Value::Object(object) = object else { unreachable!("it is written as an object") };
        self.out.object(object, Some(&server.to_string()))
    }

    /// Shows what will be done, and asks for consent. False means that it is not to be done.
    pub(crate) fn may(&self, consent: &Consent, plan: &str) -> Result<bool> {
        if consent.dry_run {
            tell(&format!("Would {plan}."));
            return Ok(false);
        }
        self.confirm(consent.yes, plan)
    }

    /// Asks for consent if an act is about several servers.
    pub(crate) fn may_on_all(&self, yes: bool, act: &str) -> Result<bool> {
        if self.servers.len() < 2 {
            return Ok(true);
        }
        let names: Vec<_> = self.servers.iter().map(ToString::to_string).collect();
        self.confirm(yes, &format!("{act} on {} servers: {}", names.len(), names.join(", ")))
    }

    fn confirm(&self, yes: bool, plan: &str) -> Result<bool> {
        tell(&format!("Will {plan}."));
        if yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            bail!("there is no terminal to ask on: give --yes or --dry-run");
        }
        write!(io::stderr(), "Go on? [y/N] ")?;
        let answer = input::line(&mut input::open(None, &self.interrupt)?, ANSWER_MAX)?;
        let may =
            answer.is_some_and(|answer| [&b"y"[..], b"Y", b"yes"].contains(&answer.trim_ascii()));
        if !may {
            tell("Nothing was done.");
        }
        Ok(may)
    }
}

/// Whether the reader of the output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Says whether jobs may be missing, and what helps.
pub(crate) fn report(coverage: Coverage) -> Outcome {
    match coverage {
        Coverage::Complete | Coverage::Enough => Outcome::Done,
        Coverage::Unsure(seen, live) => {
            tell(&format!(
                "beanstalkctl: {seen} jobs were found, and the server counts {live}: its last id \
                 is unknown, as after a restart, or --last-id is too low. Use --probe to find the \
                 last id with a temporary job, or give it with --last-id"
            ));
            Outcome::NotAll
        }
    }
}

/// Returns whether a tube has such a name, and says so if none has: it may be misspelt.
pub(crate) fn warn_if_no_tube(client: &mut Client, meant: &Tubes) -> Result<bool> {
    let is_there = !census::tubes(client, meant)?.is_empty();
    if !is_there {
        tell(&format!("beanstalkctl: {}: no tube has such a name", client.address()));
    }
    Ok(is_there)
}

/// Counts something in words: `1 job`, `2 jobs`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
