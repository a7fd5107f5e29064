//! `drain`: makes servers refuse or accept new jobs, or waits until they have only buried jobs.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::client::Client;
use crate::context::{Context, Outcome, Sender};
use crate::interrupt::Interrupt;
use crate::job::State;
use crate::message::print_notice;
use crate::yaml;

/// The interval at which `drain wait` counts the jobs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// `drain wait` counts the jobs often, but prints only one of this many counts.
const PROGRESS_CHECKS: u64 = 10;

/// Runs `beanstalkctl drain`.
pub(crate) fn run(switch: &str, yes: bool, context: &mut Context) -> Result<Outcome> {
    let is_act = matches!(switch, "on" | "off");
    let act = if switch == "on" { "start draining" } else { "end draining" };
    if is_act && !context.confirm_servers(yes, act)? {
        return Ok(Outcome::Partial);
    }
    let (switch, interrupt) = (switch.to_owned(), context.interrupt.clone());
    let has_name = context.servers.len() > 1;
    let work = move |client: &mut Client, send: Sender<'_, _>| {
        if switch == "wait" {
            send(wait_until_drained(client, &interrupt)?)?;
        } else {
            let is_draining = drain_server(client, &switch)?;
            let text = if is_draining { "draining" } else { "not draining" };
            let name = if has_name { format!("{} ", client.address()) } else { String::new() };
            send((name + text, json!({ "draining": is_draining })))?;
        }
        Ok(Outcome::Done)
    };
    context.each_server(work, |context, server, (text, object)| {
        let label = context.label(server);
        let out = &mut context.out;
        if out.json { out.value(object, label.as_deref()) } else { out.line(&text) }
    })
}

/// Begins or ends draining, or only asks for the state. Returns whether the server is draining.
fn drain_server(client: &mut Client, switch: &str) -> Result<bool> {
    if client.has_extension("drain")? {
        let reply = client.ask(&format!("drain {switch}"))?;
        return match reply.word() {
            "DRAINING" => Ok(true),
            "NOT_DRAINING" => Ok(false),
            _ => Err(reply.error_for("drain")),
        };
    }
    let stats = client.yaml("stats")?;
    let address = client.address();
    if switch != "status" {
        let signal = if switch == "on" { "USR1" } else { "USR2" };
        let pid = yaml::number(&stats, "pid");
        let host = yaml::value(&stats, "hostname").unwrap_or("its machine");
        bail!(
            "{address}: the server has no such command; use a signal (the original cannot end \
            draining): on {host}, run kill -{signal} {pid}"
        );
    }
    let known = yaml::value(&stats, "draining");
    Ok(known.with_context(|| format!("{address}: the server reports no drain state"))? == "true")
}

/// Waits until a server has only buried jobs, and meanwhile prints how many jobs it has in each
/// state, at an interval. Returns the last counts, as text and as JSON.
fn wait_until_drained(client: &mut Client, interrupt: &Interrupt) -> Result<(String, Value)> {
    let mut checks = 0_u64;
    loop {
        let stats = client.yaml("stats")?;
        let count = |state: &State| yaml::number(&stats, &format!("current-jobs-{state}"));
        let counts = State::ALL.each_ref().map(|state| format!("{} {state}", count(state)));
        let text = format!("{}: {}", client.address(), counts.join(", "));
        if State::ALL.iter().all(|state| *state == State::Buried || count(state) == 0) {
            return Ok((text, json!({ "empty": true, "buried": count(&State::Buried) })));
        }
        if checks % PROGRESS_CHECKS == 0 {
            let is_open = yaml::value(&stats, "draining") == Some("false");
            let note = if is_open { "; not draining, so more jobs may be put" } else { "" };
            print_notice(&format!("{text}{note}"));
        }
        checks += 1;
        interrupt.sleep(CHECK_INTERVAL);
        interrupt.check()?;
    }
}
