//! `stats`: shows the statistics of servers, or of a tube on each server, side by side.

use anyhow::Result;

use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
use crate::output::Table;
use crate::statistics;
use crate::yaml;

/// Runs `beanstalkctl stats`.
pub(crate) fn run(tube: Option<String>, context: &mut Context) -> Result<Outcome> {
    let mut all: Vec<(String, String)> = Vec::new();
    let work = move |client: &mut Client, send: Sender<'_, _>| {
        send(match &tube {
            None => client.yaml("stats")?,
            Some(tube) => statistics::existing_tube_stats(client, tube)?,
        })?;
        Ok(Outcome::Done)
    };
    let outcome = context.each_server(work, |context, server, text| {
        if context.out.json {
            let label = context.label(server);
            return context.out.object(yaml::dictionary_to_json(&text), label.as_deref());
        }
        all.push((server.to_string(), text));
        Ok(())
    })?;
    let Some((_, first)) = all.first() else { return Ok(outcome) };
    let mut table = Table::new(std::iter::once("").chain(all.iter().map(|(name, _)| &name[..])));
    for (key, _) in yaml::pairs(first) {
        let mut row = vec![key.into()];
        row.extend(all.iter().map(|(_, text)| yaml::value(text, key).unwrap_or("-").into()));
        table.row(row);
    }
    context.out.table(&mut table)?;
    Ok(outcome)
}
