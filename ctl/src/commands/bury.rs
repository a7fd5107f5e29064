//! `bury`: buries jobs by their ids.

use anyhow::Result;

use crate::change::Change::Bury;
use crate::context::{Context, Outcome};

/// Runs `beanstalkctl bury`.
pub(crate) fn run(ids: &[String], pri: Option<u32>, context: &mut Context) -> Result<Outcome> {
    context.change_by_ids(ids, Bury { pri }, false)
}
