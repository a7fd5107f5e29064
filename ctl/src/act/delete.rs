//! `delete`: jobs by their ids.

use std::fmt;
use std::io::Read as _;

use anyhow::{Context as _, Result};

use super::clear::DELETABLE;
use super::remove::remove;
use crate::cli::DeleteArgs;
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

/// Runs the command.
pub(crate) fn run(args: &DeleteArgs, context: &mut Context) -> Result<Outcome> {
    let ids = ids(&args.ids, &context.interrupt)?;
    save::check(args.save.as_deref())?;
    let mut client = context.client()?;
    let mut jobs = sweep::stats_of(&mut client, ids.iter().copied())?;
    let missing = (ids.len() - jobs.len()) as u64;
    if missing > 0 {
        tell(&format!("{} of these ids: no such job.", counted(missing, "id")));
    }
    let found = jobs.len();
    jobs.retain(|job| job.state != State::Reserved);
    let reserved = (found - jobs.len()) as u64;
    if reserved > 0 {
        tell(&format!("{} stay: workers have them.", counted(reserved, "reserved job")));
    }
    if jobs.is_empty() {
        tell("There is nothing to delete.");
        return Ok(Outcome::NotAll);
    }
    let what = counted(jobs.len() as u64, "job");
    if !context.may(&args.consent, &format!("delete {what}: {}", States::of(&jobs)))? {
        return Ok(Outcome::of(args.consent.dry_run));
    }
    let save = SaveFile::create_if(args.save.as_deref())?;
    let ids = jobs.into_iter().map(|job| job.id).collect();
    let filter = Filter { states: DELETABLE.to_vec(), ..Filter::default() };
    let outcome = remove(&mut client, ids, &filter, save, context)?;
    Ok(outcome.and(Outcome::of(missing == 0 && reserved == 0)))
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
