//! `resume`: ends the pause of tubes.

use anyhow::Result;

use super::pause;
use crate::context::{Context, Outcome};

/// Runs `beanstalkctl resume`.
pub(crate) fn run(tubes: &[String], yes: bool, context: &mut Context) -> Result<Outcome> {
    pause::run(tubes, 0, yes, context)
}
