//! What every command is given: the servers, the output, and how to ask the user.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::address::Address;
use crate::census;
use crate::cli::Consent;
use crate::client::Client;
use crate::filter::Tubes;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::sweep::Coverage;

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
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::NotAll => Self::FAILURE,
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

/// Tells the user something that is no result.
pub(crate) fn tell(text: &str) {
    // What a server says must not move the cursor.
    let shown = |it: char| if it.is_control() && it != '\n' { '?' } else { it };
    // Standard error may be closed, and there is no other place to tell it.
    let _ = writeln!(io::stderr(), "{}", text.chars().map(shown).collect::<String>());
}

/// Tells an error as all errors are told.
pub(crate) fn complain(error: &anyhow::Error) {
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
                Err(error) if servers.len() > 1 && !is_of_user(&error) => {
                    complain(&error);
                    outcome = Outcome::NotAll;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }

    /// Connects to the only server.
    pub(crate) fn client(&self) -> Result<Client> {
        match &self.servers[..] {
            [address] => Client::connect(address),
            _ => bail!("this needs one server, and --server names {}", self.servers.len()),
        }
    }

    /// Says what will be done, and asks for consent. False means that it is not to be done.
    pub(crate) fn may(&self, consent: &Consent, what: &str) -> Result<bool> {
        if consent.dry_run {
            tell(&format!("Would {what}."));
            return Ok(false);
        }
        tell(&format!("Will {what}."));
        if consent.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            bail!("there is no terminal to ask on: give --yes or --dry-run");
        }
        write!(io::stderr(), "Go on? [y/N] ")?;
        let mut answer = String::new();
        self.interrupt.while_waiting(|| io::stdin().lock().read_line(&mut answer))?;
        self.interrupt.check()?;
        let may = matches!(answer.trim(), "y" | "Y" | "yes");
        if !may {
            tell("Nothing was done.");
        }
        Ok(may)
    }
}

/// Whether an error is for the whole program: the user or the reader of the output ended it.
pub(crate) fn is_of_user(error: &anyhow::Error) -> bool {
    let is_pipe = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<crate::interrupt::Interrupted>().is_some()
        || error.downcast_ref::<io::Error>().is_some_and(is_pipe)
}

/// Says whether jobs may be missing, and what helps.
pub(crate) fn report(coverage: Coverage) -> Outcome {
    match coverage {
        Coverage::Complete | Coverage::Enough => Outcome::Done,
        Coverage::Unsure(seen, live) => {
            tell(&format!(
                "beanstalkctl: {seen} jobs were found, and the server says {live}: its last id is \
                 not known, as after a restart, or --last-id is too low. --probe learns it by a \
                 job of its own, --last-id tells it"
            ));
            Outcome::NotAll
        }
    }
}

/// Says that no tube has such a name, if so: it may be misspelt.
pub(crate) fn tell_if_no_tube(client: &mut Client, meant: &Tubes) -> Result<()> {
    if census::tubes(client, meant)?.is_empty() {
        tell("No tube has such a name.");
    }
    Ok(())
}

/// Counts something in words: `1 job`, `2 jobs`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
