//! `pause`, `resume` and `drain`: stop workers or producers for a time.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::client::Client;
use crate::context::{Context, Outcome};
use crate::filter::Tubes;
use crate::job::State;
use crate::message::{counted, print_notice};
use crate::statistics;
use crate::yaml;

/// Interval at which `drain wait` counts the jobs, and the number of counts per report.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const PROGRESS_CHECKS: u64 = 10;

/// Pauses these tubes for a number of seconds, or resumes them if it is 0. Returns how many exist.
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
        _ => Err(reply.error_for("pause-tube")),
    })?;
    Ok(count)
}

/// Runs `pause`, or for 0 seconds `resume`.
pub(crate) fn pause(
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
    context.each_server(|client, context, _| {
        if !Context::warn_if_no_tube(client, &selected)? {
            return Ok(Outcome::Partial);
        }
        let names = statistics::tube_names(client, &selected)?;
        let count = pause_tubes(client, names, seconds)?;
        let text = format!("{} {done}: {}", counted(count, "tube"), patterns.join(" "));
        context.report_action(client.address(), act, count, &text)?;
        Ok(Outcome::Done)
    })
}

/// Runs `drain`.
pub(crate) fn drain(switch: &str, yes: bool, context: &mut Context) -> Result<Outcome> {
    let is_act = matches!(switch, "on" | "off");
    let act = if switch == "on" { "start draining" } else { "end draining" };
    if is_act && !context.confirm_servers(yes, act)? {
        return Ok(Outcome::Partial);
    }
    context.each_server(|client, context, server| {
        if switch == "wait" {
            return wait_until_empty(client, context, server);
        }
        let name = server;
        let server = server.map_or(String::new(), |name| format!("{name} "));
        let is_draining = if client.has_extension("drain")? {
            let reply = client.ask(&format!("drain {switch}"))?;
            match reply.word() {
                "DRAINING" => true,
                "NOT_DRAINING" => false,
                _ => return Err(reply.error_for("drain")),
            }
        } else {
            let stats = client.yaml("stats")?;
            if switch != "status" {
                let signal = if switch == "on" { "USR1" } else { "USR2" };
                let pid = yaml::number(&stats, "pid");
                let host = yaml::value(&stats, "hostname").unwrap_or("its machine");
                bail!(
                    "{}: the server has no such command; use a signal (the original cannot end \
                    draining): on {host}, run kill -{signal} {pid}",
                    client.address()
                );
            }
            let known = yaml::value(&stats, "draining");
            known.with_context(|| format!("{}: its state is not reported", client.address()))?
                == "true"
        };
        if context.out.json {
            context.out.value(json!({ "draining": is_draining }), name)?;
        } else {
            let state = if is_draining { "draining" } else { "not draining" };
            context.out.line(&format!("{server}{state}"))?;
        }
        Ok(Outcome::Done)
    })
}

/// Waits until a server has only buried jobs, and reports the others now and then.
fn wait_until_empty(
    client: &mut Client,
    context: &mut Context,
    server: Option<&str>,
) -> Result<Outcome> {
    let mut checks = 0_u64;
    loop {
        let stats = client.yaml("stats")?;
        let count = |state: &State| yaml::number(&stats, &format!("current-jobs-{state}"));
        let counts = State::ALL.each_ref().map(|state| format!("{} {state}", count(state)));
        let text = format!("{}: {}", client.address(), counts.join(", "));
        if State::ALL.iter().all(|state| *state == State::Buried || count(state) == 0) {
            let object = json!({ "empty": true, "buried": count(&State::Buried) });
            let out = &mut context.out;
            let printed = if out.json { out.value(object, server) } else { out.line(&text) };
            return printed.map(|()| Outcome::Done);
        }
        if checks % PROGRESS_CHECKS == 0 {
            let is_open = yaml::value(&stats, "draining") == Some("false");
            let note = if is_open { "; not draining, so more may be put" } else { "" };
            print_notice(&format!("{text}{note}"));
        }
        checks += 1;
        context.interrupt.sleep(CHECK_INTERVAL);
        context.interrupt.check()?;
    }
}
