//! `tubes`: shows tubes in a table.

use anyhow::Result;

use crate::args::TubesArgs;
use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
use crate::filter::Tubes;
use crate::output::{Cell, Table, Tone};
use crate::statistics::{self, TUBE_COLUMNS};
use crate::yaml;

/// Runs `beanstalkctl tubes`.
pub(crate) fn run(args: &TubesArgs, context: &mut Context) -> Result<Outcome> {
    let selected = Tubes::new(&args.tubes)?;
    let columns = if args.columns.is_empty() {
        let shown = TUBE_COLUMNS.iter().filter(|(_, _, is_shown)| *is_shown);
        shown.map(|&(name, key, _)| (name, key)).collect()
    } else {
        args.columns.clone()
    };
    let mut rows: Vec<(Option<String>, String, String)> = Vec::new();
    let work = move |client: &mut Client, send: Sender<'_, _>| {
        let names = statistics::tube_names(client, &selected)?;
        send(statistics::tube_stats(client, &names)?)?;
        let is_found = selected.is_all() || Context::warn_if_no_tube(client, &selected)?;
        Ok(Outcome::done_if(is_found))
    };
    let outcome = context.each_server(work, |context, server, tubes| {
        rows.extend(tubes.into_iter().map(|(name, text)| (context.label(server), name, text)));
        Ok(())
    })?;
    if let Some((_, key)) = args.sort.filter(|(name, _)| *name != "tube") {
        rows.sort_by_key(|(_, _, text)| std::cmp::Reverse(yaml::number(text, key)));
    } else if args.sort.is_some() {
        rows.sort_by(|left, right| left.1.cmp(&right.1));
    }
    if args.reverse {
        rows.reverse();
    }
    if context.out.json {
        for (server, _, text) in &rows {
            context.out.object(yaml::dictionary_to_json(text), server.as_deref())?;
        }
        return Ok(outcome);
    }
    let has_servers = context.servers.len() > 1;
    let heading = has_servers.then_some("server").into_iter();
    let mut table = Table::new(heading.chain(columns.iter().map(|(name, _)| *name)));
    for (server, _, text) in &rows {
        let mut cells: Vec<Cell> = server.iter().map(Cell::from).collect();
        let is_paused = yaml::number(text, "pause-time-left") > 0;
        for (name, key) in &columns {
            let value = yaml::value(text, key).unwrap_or("-");
            cells.push(match *name {
                "buried" => Cell::toned(value, Tone::Red, value != "0"),
                "paused-for" if !is_paused => "-".into(),
                "paused-for" => Cell::toned(value, Tone::Yellow, true),
                "tube" => Cell::toned(value, Tone::Yellow, is_paused),
                _ => value.into(),
            });
        }
        table.row(cells);
    }
    context.out.table(&mut table)?;
    Ok(outcome)
}
