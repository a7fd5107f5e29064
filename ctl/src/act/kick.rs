//! `kick`: buried or delayed jobs become ready.

use anyhow::{Result, bail};

use crate::cli::KickArgs;
use crate::client::{Client, write_numbered};
use crate::context::{Context, Outcome, counted, tell};
use crate::yaml;

/// Runs the command.
pub(crate) fn run(args: &KickArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    let Some(tube) = &args.tube else {
        let ids = super::delete::ids(&args.id, &context.interrupt)?;
        return kick_ids(&mut client, &ids);
    };
    let stats = client.ask(&format!("stats-tube {tube}"))?;
    if stats.is("NOT_FOUND") {
        bail!("there is no tube {tube}"); // To use it would make it.
    }
    if !stats.is("OK") {
        return Err(stats.unexpected("stats-tube"));
    }
    let stats = stats.into_yaml()?;
    let buried = yaml::number(&stats, "current-jobs-buried");
    let delayed = yaml::number(&stats, "current-jobs-delayed");
    let all = if buried > 0 { buried } else { delayed };
    let bound = if args.all { all } else { u64::from(args.count.unwrap_or(1)) };
    client.ask(&format!("use {tube}"))?;
    let command = format!("kick {}", bound.min(u64::from(u32::MAX)));
    let reply = client.ask_slowly(&command, &context.interrupt)?;
    let Some(kicked) = reply.number().filter(|_| reply.is("KICKED")) else {
        return Err(reply.unexpected("kick"));
    };
    let were = if buried > 0 { "buried" } else { "delayed" };
    tell(&format!("{} kicked.", counted(kicked, &format!("{were} job"))));
    Ok(Outcome::Done)
}

fn kick_ids(client: &mut Client, ids: &[u64]) -> Result<Outcome> {
    let mut kicked = 0;
    let write = |id: &u64, out: &mut Vec<u8>| write_numbered(out, "kick-job", *id);
    let result = client.pipeline(ids.iter().copied(), write, |id, reply| {
        match reply.word() {
            "KICKED" => kicked += 1,
            "NOT_FOUND" => tell(&format!("beanstalkctl: {id} is no buried or delayed job")),
            _ => return Err(reply.unexpected("kick-job")),
        }
        Ok(())
    });
    tell(&format!("{} kicked.", counted(kicked, "job")));
    result?;
    Ok(Outcome::of(kicked == ids.len() as u64))
}
