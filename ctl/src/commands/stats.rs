//! `stats`: shows the statistics of servers or of a tube, side by side.

use anyhow::Result;

use crate::context::{Context, Outcome};
use crate::output::Table;
use crate::statistics;
use crate::yaml;

/// Runs the command.
pub(crate) fn run(tube: Option<&str>, context: &mut Context) -> Result<Outcome> {
    let mut all: Vec<(String, String)> = Vec::new();
    let outcome = context.each_server(|client, context, server| {
        let text = match tube {
            None => client.yaml("stats")?,
            Some(tube) => statistics::existing_tube_stats(client, tube)?,
        };
        if context.out.json {
            context.out.object(yaml::dictionary_to_json(&text), server)?;
        } else {
            all.push((client.address().to_string(), text));
        }
        Ok(Outcome::Done)
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
