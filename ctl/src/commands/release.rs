//! `release`: releases jobs by their ids: makes them ready, or delays them.

use anyhow::Result;

use crate::change::Change::Release;
use crate::context::{Context, Outcome};

/// Runs `beanstalkctl release`.
pub(crate) fn run(
    ids: &[String],
    pri: Option<u32>,
    delay: u32,
    context: &mut Context,
) -> Result<Outcome> {
    context.change_by_ids(ids, Release { pri, delay }, false)
}
