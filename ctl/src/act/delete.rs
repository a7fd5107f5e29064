//! `delete`: jobs by their ids.

use std::io::Read as _;

use anyhow::{Context as _, Result};

use super::remove::Remover;
use crate::cli::DeleteArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, tell};
use crate::job::{Job, State};
use crate::save::SaveFile;
use crate::sweep;

/// Reads the ids of the arguments, and for `-` those of standard input.
fn ids(words: &[String]) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for word in words {
        if word == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
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

/// Counts jobs by their states, as in `2 ready, 1 buried`.
pub(crate) fn by_state(jobs: &[Job]) -> String {
    let count = |state: &State| jobs.iter().filter(|job| job.state == *state).count();
    let counts = State::ALL.iter().map(|state| (count(state), state));
    let shown =
        counts.filter(|(count, _)| *count > 0).map(|(count, state)| format!("{count} {state}"));
    shown.collect::<Vec<_>>().join(", ")
}

/// Jobs that are to be deleted, and others that are not.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) jobs: Vec<Job>,
    /// Ids of no job.
    pub(crate) missing: u64,
    /// Jobs that workers have.
    pub(crate) reserved: u64,
}

impl Found {
    /// Looks for the jobs of these ids, each of which stands there once.
    pub(crate) fn look(client: &mut Client, ids: &[u64]) -> Result<Self> {
        let mut jobs = sweep::stats_of(client, ids.iter().copied())?;
        let missing = (ids.len() - jobs.len()) as u64;
        let found = jobs.len();
        jobs.retain(|job| job.state != State::Reserved);
        let reserved = (found - jobs.len()) as u64;
        Ok(Self { jobs, missing, reserved })
    }

    /// Says what will be done.
    pub(crate) fn says(&self) -> String {
        format!("delete {}: {}", counted(self.jobs.len() as u64, "job"), by_state(&self.jobs))
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

/// Runs the command.
pub(crate) fn run(args: &DeleteArgs, context: &mut Context) -> Result<Outcome> {
    let ids = ids(&args.ids)?;
    let mut client = context.client()?;
    let found = Found::look(&mut client, &ids)?;
    for sentence in found.leaves() {
        tell(&sentence);
    }
    if found.jobs.is_empty() {
        tell("There is nothing to delete.");
        return Ok(Outcome::NotAll);
    }
    if !context.may(&args.consent, &found.says())? {
        return Ok(Outcome::of(args.consent.dry_run));
    }
    let mut remover = Remover::new(SaveFile::create_if(args.save.as_deref())?);
    let mut jobs = found.jobs.into_iter();
    while jobs.len() > 0 {
        context.interrupt.check()?;
        remover.remove(&mut client, jobs.by_ref().take(BATCH).collect())?;
    }
    tell(&format!("{} deleted.", counted(remover.deleted, "job")));
    Ok(Outcome::of(found.missing == 0 && found.reserved == 0 && remover.refused == 0))
}

/// How many jobs are saved and deleted at once.
const BATCH: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbers_and_each_counts_once() {
        let ids_of =
            |words: &[&str]| ids(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(ids_of(&["7", "3", "7"]).unwrap(), [3, 7]);
        assert!(ids_of(&["-1"]).is_err() && ids_of(&["x"]).is_err());
    }
}
