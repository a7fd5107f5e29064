//! The context of every command: servers, standard output, signals, and questions to the user.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use anyhow::{Result, bail};
use serde_json::json;

use crate::address::Address;
use crate::args::Consent;
use crate::change::Change;
use crate::client::Client;
use crate::filter::Tubes;
use crate::input;
use crate::interrupt::{Interrupt, Interrupted};
use crate::message::{
    counted, is_broken_pipe, is_usage, log_action, of_server, print_error, print_notice,
    print_notices, usage,
};
use crate::output::Output;
use crate::plan::Plan;
use crate::statistics;
use crate::sweep::{self, Coverage};

/// The longest answer to a question, in bytes.
const ANSWER_BYTES_MAX: u64 = 1024;

/// The context of a command.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) servers: Vec<Address>,
    pub(crate) out: Output,
    pub(crate) interrupt: Interrupt,
}

/// The result of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Something was not found or not done, and a message about it was printed.
    Partial,
    /// Another exit status, which only `check` uses.
    Exit(u8),
}

impl From<Outcome> for ExitCode {
    /// Converts the outcome of a command to the exit status.
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Partial => Self::FAILURE,
            Outcome::Exit(status) => Self::from(status),
        }
    }
}

impl Outcome {
    /// Returns [`Outcome::Done`] if `is_done`, otherwise [`Outcome::Partial`].
    pub(crate) fn done_if(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Partial }
    }

    /// Returns the worse of two outcomes.
    pub(crate) fn and(self, other: Self) -> Self {
        Self::done_if(self == Self::Done && other == Self::Done)
    }
}

/// The maximum number of items that have come from a server and are not shown yet.
const ITEMS_AHEAD_MAX: usize = 100;

/// Sends an item of a server to the thread that shows items; fails if that thread has stopped.
pub(crate) type Sender<'a, T> = &'a dyn Fn(T) -> Result<()>;

impl Context {
    /// Runs the closure `work` for all servers at once, so that a second server that hangs causes
    /// no further delay. Calls `show` with each item that `work` sends, in the order of the
    /// servers.
    pub(crate) fn each_server<T: Send + 'static>(
        &mut self,
        work: impl Fn(&mut Client, Sender<'_, T>) -> Result<Outcome> + Send + Sync + 'static,
        mut show: impl FnMut(&mut Self, &Address, T) -> Result<()>,
    ) -> Result<Outcome> {
        let (servers, work) = (self.servers.clone(), Arc::new(work));
        let start = |address: &Address| {
            let (sender, items) = mpsc::sync_channel(ITEMS_AHEAD_MAX);
            let (work, address) = (Arc::clone(&work), address.clone());
            let thread = thread::spawn(move || {
                let send = |item| sender.send(item).map_err(|_| Interrupted.into());
                work(&mut Client::connect(&address)?, &send)
            });
            (items, thread)
        };
        let threads: Vec<_> = servers.iter().map(start).collect();
        let mut outcome = Outcome::Done;
        for (address, (items, thread)) in servers.iter().zip(threads) {
            items.iter().try_for_each(|item| show(self, address, item))?;
            match thread.join().expect("no thread panics") {
                Ok(one) => outcome = outcome.and(one),
                Err(error) if servers.len() > 1 && !self.is_fatal(&error) => {
                    print_error(&of_server(address, error));
                    outcome = Outcome::Partial;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }

    /// Returns the name of a server to show with its items, if the command has several servers.
    pub(crate) fn label(&self, server: &Address) -> Option<String> {
        (self.servers.len() > 1).then(|| server.to_string())
    }

    /// Whether an error ends the whole program, and not only the work on one server. A signal,
    /// closed output or wrong arguments end the whole program.
    fn is_fatal(&self, error: &anyhow::Error) -> bool {
        self.interrupt.is_set() || is_broken_pipe(error) || is_usage(error)
    }

    /// Returns the only server of the command; fails if there are several servers.
    pub(crate) fn server(&self) -> Result<&Address> {
        match &self.servers[..] {
            [address] => Ok(address),
            all => Err(usage(format!("this command needs one server; --server has {}", all.len()))),
        }
    }

    /// Connects to the only server of the command; fails if there are several servers.
    pub(crate) fn client(&self) -> Result<Client> {
        self.server().and_then(Client::connect)
    }

    /// Reports an action and the number of its jobs or tubes in one line on standard error; with
    /// `--json`, also as an object on standard output.
    pub(crate) fn report_action(
        &mut self,
        server: &Address,
        act: &str,
        count: u64,
        done: &str,
    ) -> Result<()> {
        log_action(server, None, done);
        if !self.out.json {
            return Ok(());
        }
        let object = json!({ "act": act, "count": count, "report": done });
        self.out.value(object, Some(&server.to_string()))
    }

    /// Shows the plan of a command, and asks for consent unless `--yes` is given. Returns whether
    /// to continue; a dry run only shows the plan, and returns false.
    pub(crate) fn confirm(&mut self, consent: &Consent, plan: &str) -> Result<bool> {
        if consent.dry_run {
            return self.report_dry_run(plan).map(|()| false);
        }
        self.ask_user(consent.yes, plan)
    }

    /// Prints the plan of a dry run on standard error; with `--json`, also on standard output.
    pub(crate) fn report_dry_run(&mut self, plan: &str) -> Result<()> {
        print_notice(&format!("Would {plan}."));
        if self.out.json { self.out.value(json!({ "would": plan }), None) } else { Ok(()) }
    }

    /// Changes the jobs with these ids, unless `is_dry_run` is true; reports jobs that are missing
    /// or in a wrong state.
    pub(crate) fn change_by_ids(
        &mut self,
        ids: &[String],
        change: Change,
        is_dry_run: bool,
    ) -> Result<Outcome> {
        let ids = input::read_ids(ids, &self.interrupt)?;
        let mut client = self.client()?;
        let (verb, done, states) = change.words();
        if is_dry_run {
            let (plan, others) = Plan::of_ids(&mut client, &ids, states)?;
            print_notices(&others);
            self.report_dry_run(&format!("{verb} {}", counted(plan.count(), "job")))?;
            return Ok(Outcome::done_if(others.is_empty()));
        }
        let jobs = sweep::jobs_by_ids(&mut client, ids.iter().copied())?;
        let mut count = 0_u64;
        let pairs = jobs.iter().map(|job| (job.id, job.pri));
        let result = change.apply(&mut client, pairs, |id, is_changed| {
            count += u64::from(is_changed);
            if !is_changed && change == Change::Kick {
                print_notice(&format!("beanstalkctl: job {id} is neither buried nor delayed"));
            } else if !is_changed {
                print_notice(&format!("beanstalkctl: a worker has reserved job {id}"));
            }
        });
        let known: HashSet<u64> = jobs.iter().map(|job| job.id).collect();
        for id in ids.iter().filter(|id| !known.contains(id)) {
            print_notice(&format!("beanstalkctl: there is no job {id}"));
        }
        let report = format!("{} {}", counted(count, "job"), done.to_lowercase());
        self.report_action(client.address(), verb, count, &report)?;
        result?;
        Ok(Outcome::done_if(count == ids.len() as u64))
    }

    /// Asks for consent if an action concerns several servers. Returns whether to continue.
    pub(crate) fn confirm_servers(&self, yes: bool, act: &str) -> Result<bool> {
        if self.servers.len() < 2 {
            return Ok(true);
        }
        let names: Vec<_> = self.servers.iter().map(ToString::to_string).collect();
        self.ask_user(yes, &format!("{act} on {} servers: {}", names.len(), names.join(", ")))
    }

    /// Shows the plan, and returns whether the user answers yes or has given `--yes`.
    fn ask_user(&self, yes: bool, plan: &str) -> Result<bool> {
        print_notice(&format!("Will {plan}."));
        if yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            bail!("cannot ask, as standard input is not a terminal: use --yes or --dry-run");
        }
        write!(io::stderr(), "Continue? [y/N] ")?;
        let answer =
            input::read_line(&mut input::open_input(None, &self.interrupt)?, ANSWER_BYTES_MAX)?;
        let may =
            answer.is_some_and(|answer| [&b"y"[..], b"Y", b"yes"].contains(&answer.trim_ascii()));
        if !may {
            print_notice("Nothing was done.");
        }
        Ok(may)
    }

    /// Warns if jobs may be missing, and explains how to find them.
    pub(crate) fn report_coverage(client: &Client, coverage: Coverage) -> Outcome {
        match coverage {
            Coverage::Complete | Coverage::Stopped => Outcome::Done,
            Coverage::Incomplete(seen, live) => {
                print_notice(&format!(
                    "beanstalkctl: {}: found {seen} jobs, but the server counts {live}: its last \
                    id is unknown, as after a restart, or --last-id is too low. Use --probe, which \
                    puts a temporary job to learn the last id, or give the id with --last-id",
                    client.address()
                ));
                Outcome::Partial
            }
        }
    }

    /// Returns whether at least one selected tube exists. If no selected tube exists, prints a
    /// warning.
    pub(crate) fn warn_if_no_tube(client: &mut Client, selected: &Tubes) -> Result<bool> {
        let is_there = !statistics::tube_names(client, selected)?.is_empty();
        if !is_there {
            print_notice(&format!("beanstalkctl: {}: no matching tube", client.address()));
        }
        Ok(is_there)
    }
}
