//! `report`: prints all statistics of servers for a bug report, without bodies.

use anyhow::Result;

use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
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

/// Runs `beanstalkctl report`.
pub(crate) fn run(context: &mut Context) -> Result<Outcome> {
    let version = env!("CARGO_PKG_VERSION");
    context.out.line(&format!("# Report of beanstalkctl {version}\n"))?;
    let work = |client: &mut Client, send: Sender<'_, _>| {
        send(format!("# Server {}\n", client.address()))?;
        for command in ["stats", "capabilities"] {
            send(report_reply(client, command)?)?;
        }
        let names = statistics::tube_names(client, &Tubes::default())?;
        send(format!("## {} tubes\n", names.len()))?;
        for name in names.iter().take(TUBES_MAX) {
            send(report_reply(client, &format!("stats-tube {name}"))?)?;
        }
        Ok(Outcome::Done)
    };
    context.each_server(work, |context, _, text| context.out.line(&text))
}
