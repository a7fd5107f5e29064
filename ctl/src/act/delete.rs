//! `delete`: jobs by their ids.

use std::fmt;
use std::io::Read as _;

use anyhow::{Context as _, Result};

use super::clear::{DELETABLE, Jobs, Plan};
use super::remove::remove;
use crate::cli::DeleteArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, tell};
use crate::filter::Filter;
use crate::interrupt::Interrupt;
use crate::job::{Job, State};
use crate::save::{self, SaveFile};
use crate::sweep;

/// Reads the ids of the arguments, and for `-` those of standard input.
pub(crate) fn ids(words: &[String], interrupt: &Interrupt) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for word in words {
        if word == "-" {
            let mut text = String::new();
            interrupt.while_waiting(|| std::io::stdin().read_to_string(&mut text))?;
            let parsed = text.split_whitespace().map(parse);
            ids.extend(parsed.collect::<Result<Vec<_>>>()?);
        } else {
            ids.push(parse(word)?);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn parse(word: &str) -> Result<u64> {
    word.parse().with_context(|| format!("{word:?} is no id"))
}

/// Numbers of jobs by their states; shown as `2 ready, 1 buried`.
#[derive(Debug, Default)]
pub(crate) struct States([u64; State::ALL.len()]);

impl States {
    /// Counts one more.
    pub(crate) fn add(&mut self, state: State) {
        let at = State::ALL.iter().position(|known| *known == state);
        self.0[at.expect("all states are there")] += 1;
    }

    /// Counts these jobs.
    pub(crate) fn of(jobs: &[Job]) -> Self {
        let mut states = Self::default();
        for job in jobs {
            states.add(job.state);
        }
        states
    }
}

impl fmt::Display for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.iter().zip(State::ALL).filter(|(count, _)| **count > 0);
        let shown: Vec<_> = counts.map(|(count, state)| format!("{count} {state}")).collect();
        f.write_str(&shown.join(", "))
    }
}

/// Jobs that are to be deleted, and others that are not.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) plan: Plan,
    /// Ids of no job.
    missing: u64,
    /// Jobs that workers have.
    reserved: u64,
}

impl Found {
    /// Looks for the jobs of these ids, each of which stands there once.
    pub(crate) fn look(client: &mut Client, ids: &[u64]) -> Result<Self> {
        let mut jobs = Jobs::default();
        let found = sweep::stats_of(client, ids.iter().copied())?;
        let missing = (ids.len() - found.len()) as u64;
        for job in found.iter().filter(|job| job.state != State::Reserved) {
            jobs.ids.push(job.id);
            jobs.states.add(job.state);
        }
        let reserved = (found.len() - jobs.ids.len()) as u64;
        Ok(Self { plan: Plan::Jobs(jobs), missing, reserved })
    }

    /// Says what will be left, a sentence each.
    pub(crate) fn leaves(&self) -> Vec<String> {
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
    for sentence in found.leaves() {
        tell(&sentence);
    }
    if found.plan.count() == 0 {
        tell("There is nothing to delete.");
        return Ok(Outcome::NotAll);
    }
    if !context.may(&args.consent, &found.plan.says())? {
        return Ok(Outcome::of(args.consent.dry_run));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    let outcome = remove(&mut client, found.plan, &deletable(), save, context)?;
    Ok(outcome.and(Outcome::of(found.missing == 0 && found.reserved == 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbers_and_each_counts_once() {
        let ids_of = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(ToString::to_string).collect();
            ids(&words, &Interrupt::default())
        };
        assert_eq!(ids_of(&["7", "3", "7"]).unwrap(), [3, 7]);
        assert!(ids_of(&["-1"]).is_err() && ids_of(&["x"]).is_err());
    }
}
