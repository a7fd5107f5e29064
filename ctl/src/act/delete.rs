//! `delete`: jobs by their ids.

use anyhow::Result;

use super::clear::{DELETABLE, Plan};
use super::remove::remove;
use crate::cli::{DeleteArgs, Id};
use crate::client::Client;
use crate::context::{Context, Outcome, counted, tell, usage};
use crate::filter::Filter;
use crate::input;
use crate::interrupt::Interrupt;
use crate::job::State;
use crate::plan::Selection;
use crate::save::{self, SaveFile};
use crate::sweep;

/// The longest line of ids on standard input, in bytes.
const LINE_MAX: u64 = 1 << 20;

/// Returns the ids of the arguments, and for `-` those of standard input, each once.
pub(crate) fn ids(words: &[Id], interrupt: &Interrupt) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for word in words {
        if let Id::Number(id) = *word {
            ids.push(id);
            continue;
        }
        let mut input = input::open(None, interrupt)?;
        while let Some(line) = input::line(&mut input, LINE_MAX)? {
            for word in String::from_utf8_lossy(&line).split_whitespace() {
                let id = word.parse().map_err(|_| usage(format!("{word:?} is no id")))?;
                ids.push(id);
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Jobs that are to be deleted, and others that are not.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) jobs: Selection,
    /// Ids of no job.
    missing: u64,
    /// Jobs that workers have.
    reserved: u64,
}

impl Found {
    /// Looks for the jobs of these ids, which are all different.
    pub(crate) fn look(client: &mut Client, ids: &[u64]) -> Result<Self> {
        let mut found = sweep::stats_of(client, ids.iter().copied())?;
        let missing = (ids.len() - found.len()) as u64;
        let all = found.len();
        found.retain(|job| job.state != State::Reserved);
        let reserved = (all - found.len()) as u64;
        Ok(Self { jobs: Selection::of(&found), missing, reserved })
    }

    /// Says what will be left, a sentence each.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut told = Vec::new();
        if self.missing > 0 {
            told.push(format!("{} of these ids: no such job.", counted(self.missing, "id")));
        }
        if self.reserved > 0 {
            let reserved = counted(self.reserved, "reserved job");
            told.push(format!("{reserved} stay: workers have them."));
        }
        told
    }
}

/// Returns what a job must still be when its turn comes.
pub(crate) fn deletable() -> Filter {
    Filter { states: DELETABLE.to_vec(), ..Filter::default() }
}

/// Runs the command.
pub(crate) fn run(args: &DeleteArgs, context: &mut Context) -> Result<Outcome> {
    let ids = ids(&args.ids, &context.interrupt)?;
    save::check(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    let found = Found::look(&mut client, &ids)?;
    let leftovers = found.leftovers();
    for sentence in &leftovers {
        tell(sentence);
    }
    let plan = Plan::Jobs(found.jobs);
    if plan.count() == 0 {
        tell("There is nothing to delete.");
        return Ok(Outcome::NotAll);
    }
    if !context.may(&args.consent, &plan.summary())? {
        return Ok(Outcome::of(args.consent.dry_run));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    let outcome = remove(&mut client, plan, &deletable(), save, context)?;
    Ok(outcome.and(Outcome::of(leftovers.is_empty())))
}
