//! `report`: all statistics of a server in one text, for a bug report. It has no bodies.

use anyhow::Result;

use crate::census;
use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Tubes;

/// The most tubes that are told one by one.
const TUBES: usize = 1_000;

/// Returns what a server answers to a command, or why it does not.
fn answer(client: &mut Client, command: &str) -> Result<String> {
    let reply = client.ask(command)?;
    let body = reply.body.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    Ok(format!("## {command}\n\n{}\n{body}", reply.line))
}

/// Runs the command.
pub(crate) fn run(context: &mut Context) -> Result<Outcome> {
    let version = env!("CARGO_PKG_VERSION");
    context.out.line(&format!("# Report of beanstalkctl {version}\n"))?;
    context.each_server(|client, context, _| {
        let address = client.address().to_string();
        context.out.line(&format!("# Server {address}\n"))?;
        for command in ["stats", "capabilities"] {
            let text = answer(client, command)?;
            context.out.line(&text)?;
        }
        let names = census::tubes(client, &Tubes::default())?;
        context.out.line(&format!("## {} tubes\n", names.len()))?;
        for name in names.iter().take(TUBES) {
            let text = answer(client, &format!("stats-tube {name}"))?;
            context.out.line(&text)?;
        }
        Ok(Outcome::Done)
    })
}
