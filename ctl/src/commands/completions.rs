//! `completions`: prints the completions for a shell, made from the definition of the commands.

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

use crate::context::{Context, Outcome};

/// Runs `beanstalkctl completions`.
pub(crate) fn run(shell: Shell, mut cli: Command, context: &mut Context) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli, "beanstalkctl", &mut script);
    context.out.bytes(&script)?;
    Ok(Outcome::Done)
}
