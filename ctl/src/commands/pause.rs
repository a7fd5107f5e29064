//! `pause`: makes tubes hand out no jobs for a time.

use anyhow::Result;

use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
use crate::filter::Tubes;
use crate::message::counted;
use crate::statistics;

/// Pauses these tubes, or resumes them if `seconds` is 0. Returns how many of the tubes exist.
pub(crate) fn pause_tubes(client: &mut Client, names: Vec<String>, seconds: u32) -> Result<u64> {
    let mut count = 0;
    let line = |name: &String| format!("pause-tube {name} {seconds}");
    client.ask_each(names, line, |_, reply| {
        count += u64::from(reply.is("PAUSED"));
        let is_known = ["PAUSED", "NOT_FOUND"].contains(&reply.word());
        if is_known { Ok(()) } else { Err(reply.error_for("pause-tube")) }
    })?;
    Ok(count)
}

/// Runs the command `pause`, or `resume` if `seconds` is 0.
pub(crate) fn run(
    patterns: &[String],
    seconds: u32,
    yes: bool,
    context: &mut Context,
) -> Result<Outcome> {
    let selected = Tubes::new(patterns)?;
    let (act, done) = if seconds == 0 { ("resume", "resumed") } else { ("pause", "paused") };
    if !context.confirm_servers(yes, &format!("{act} the tubes {}", patterns.join(" ")))? {
        return Ok(Outcome::Partial);
    }
    let patterns = patterns.join(" ");
    let work = move |client: &mut Client, send: Sender<'_, _>| {
        if !Context::warn_if_no_tube(client, &selected)? {
            return Ok(Outcome::Partial);
        }
        let names = statistics::tube_names(client, &selected)?;
        send(pause_tubes(client, names, seconds)?)?;
        Ok(Outcome::Done)
    };
    context.each_server(work, |context, server, count| {
        let text = format!("{} {done}: {patterns}", counted(count, "tube"));
        context.report_action(server, act, count, &text)
    })
}
