//! `report`: prints all statistics of servers for a bug report, without bodies.

use anyhow::Result;

use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Tubes;
use crate::statistics;

/// The largest number of tubes whose statistics are printed.
const TUBES_MAX: usize = 1_000;

/// Returns the reply of a server to a command, as text.
fn report_reply(client: &mut Client, command: &str) -> Result<String> {
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
            let text = report_reply(client, command)?;
            context.out.line(&text)?;
        }
        let names = statistics::tube_names(client, &Tubes::default())?;
        context.out.line(&format!("## {} tubes\n", names.len()))?;
        for name in names.iter().take(TUBES_MAX) {
            let text = report_reply(client, &format!("stats-tube {name}"))?;
            context.out.line(&text)?;
        }
        Ok(Outcome::Done)
    })
}
