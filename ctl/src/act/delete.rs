//! `delete`: jobs by their ids.

use anyhow::Result;

use super::clear::{DELETABLE, Plan};
use super::remove::remove;
use crate::cli::{DeleteArgs, Id};
use crate::context::{Context, Outcome, tell, tell_all, usage};
use crate::filter::Filter;
use crate::input;
use crate::interrupt::Interrupt;
use crate::plan::Selection;
use crate::save::{self, SaveFile};

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

/// Runs the command.
pub(crate) fn run(args: &DeleteArgs, context: &mut Context) -> Result<Outcome> {
    let ids = ids(&args.ids, &context.interrupt)?;
    save::check(args.consent.save.as_deref())?;
    let mut client = context.client()?;
    let (jobs, others) = Selection::of_ids(&mut client, &ids, &DELETABLE)?;
    tell_all(&others);
    let plan = Plan::Jobs(jobs);
    if plan.count() == 0 {
        tell("There is nothing to delete.");
        return Ok(Outcome::NotAll);
    }
    if !context.may(&args.consent, &format!("delete {plan}"))? {
        return Ok(Outcome::of(args.consent.dry_run));
    }
    let save = SaveFile::create_if(args.consent.save.as_deref())?;
    // They must still be in one of these states when their turn comes.
    let filter = Filter { states: DELETABLE.to_vec(), ..Filter::default() };
    let outcome = remove(&mut client, plan, &filter, save, context)?;
    Ok(outcome.and(Outcome::of(others.is_empty())))
}
