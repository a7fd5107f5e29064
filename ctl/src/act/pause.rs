//! `pause`, `resume` and `drain`: what workers and producers may do.

use anyhow::{Context as _, Result, bail};

use crate::census;
use crate::cli::Switch;
use crate::client::Client;
use crate::context::{Context, Outcome, counted, warn_if_no_tube};
use crate::filter::Tubes;
use crate::yaml;

/// Pauses these tubes for a number of seconds, 0 of which end a pause; returns how many were there.
pub(crate) fn pause_tubes(client: &mut Client, names: Vec<String>, seconds: u32) -> Result<u64> {
    let mut count = 0;
    let write = |name: &String, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("pause-tube {name} {seconds}\r\n").as_bytes());
    };
    client.pipeline(names, write, |_, reply| match reply.word() {
        "PAUSED" => {
            count += 1;
            Ok(())
        }
        "NOT_FOUND" => Ok(()),
        _ => Err(reply.unexpected("pause-tube")),
    })?;
    Ok(count)
}

/// Pauses tubes for a number of seconds; 0 ends a pause.
pub(crate) fn pause(
    patterns: &[String],
    seconds: u32,
    yes: bool,
    context: &mut Context,
) -> Result<Outcome> {
    let meant = Tubes::new(patterns)?;
    let (act, done) = if seconds == 0 { ("resume", "resumed") } else { ("pause", "paused") };
    if !context.may_on_all(yes, &format!("{act} the tubes {}", patterns.join(" ")))? {
        return Ok(Outcome::NotAll);
    }
    context.each_server(|client, context, _| {
        if !warn_if_no_tube(client, &meant)? {
            return Ok(Outcome::NotAll);
        }
        let names = census::tubes(client, &meant)?;
        let count = pause_tubes(client, names, seconds)?;
        let text = format!("{} {done}: {}", counted(count, "tube"), patterns.join(" "));
        context.report_act(client.address(), act, count, &text)?;
        Ok(Outcome::Done)
    })
}

/// Makes servers take jobs or refuse them, or reports which.
pub(crate) fn drain(switch: Switch, yes: bool, context: &mut Context) -> Result<Outcome> {
    let is_act = switch != Switch::Status;
    if is_act && !context.may_on_all(yes, &format!("turn draining {switch}"))? {
        return Ok(Outcome::NotAll);
    }
    context.each_server(|client, context, server| {
        let server = server.map_or(String::new(), |name| format!("{name} "));
        let is_draining = if client.has("drain")? {
            let reply = client.ask(&format!("drain {switch}"))?;
            match reply.word() {
                "DRAINING" => true,
                "NOT_DRAINING" => false,
                _ => return Err(reply.unexpected("drain")),
            }
        } else {
            let stats = client.yaml("stats")?;
            if switch != Switch::Status {
                let signal = if switch == Switch::On { "USR1" } else { "USR2" };
                let pid = yaml::number(&stats, "pid");
                let host = yaml::value(&stats, "hostname").unwrap_or("its machine");
                bail!(
                    "{}: the server has no command for it; a signal does it (the original cannot \
                     end draining): on {host}, kill -{signal} {pid}",
                    client.address()
                );
            }
            let known = yaml::value(&stats, "draining");
            known.with_context(|| format!("{}: the server does not report it", client.address()))?
                == "true"
        };
        context
            .out
            .line(&format!("{server}{}", if is_draining { "draining" } else { "not draining" }))?;
        Ok(Outcome::Done)
    })
}
