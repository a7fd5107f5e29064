//! `big`: lists the jobs with the largest bodies.

use anyhow::Result;

use super::list;
use crate::args::{BigArgs, ListArgs, SortColumn};
use crate::context::{Context, Outcome};

/// Runs `beanstalkctl big`.
pub(crate) fn run(args: BigArgs, context: &mut Context) -> Result<Outcome> {
    let BigArgs { tubes, limit, filters } = args;
    let (bodies, limit, sort, oldest) = (false, Some(limit), Some(SortColumn::Size), false);
    list::run(&ListArgs { tubes, bodies, limit, sort, oldest, filters }, context)
}
