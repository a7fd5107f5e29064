//! `kick`: buried or delayed jobs become ready.

use anyhow::{Result, bail};

use crate::cli::KickArgs;
use crate::client::{Client, write_numbered};
use crate::context::{Context, Outcome, counted, tell};
use crate::yaml;

/// What a kick of a tube would find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kickable {
    buried: u64,
    delayed: u64,
}

impl Kickable {
    /// Asks for the numbers of a tube. To use a tube that is not there would make it.
    pub(crate) fn look(client: &mut Client, tube: &str) -> Result<Self> {
        let stats = client.ask(&format!("stats-tube {tube}"))?;
        if stats.is("NOT_FOUND") {
            bail!("there is no tube {tube}");
        }
        if !stats.is("OK") {
            return Err(stats.unexpected("stats-tube"));
        }
        let stats = stats.into_yaml()?;
        let buried = yaml::number(&stats, "current-jobs-buried");
        let delayed = yaml::number(&stats, "current-jobs-delayed");
        Ok(Self { buried, delayed })
    }

    /// Returns how many jobs one kick can make ready: the buried ones, or if there is none, the
    /// delayed ones.
    pub(crate) fn all(self) -> u64 {
        if self.buried > 0 { self.buried } else { self.delayed }
    }

    /// Counts jobs of that kind in words.
    pub(crate) fn counted(self, count: u64) -> String {
        let were = if self.buried > 0 { "buried" } else { "delayed" };
        counted(count, &format!("{were} job"))
    }
}

/// Kicks at most `bound` jobs of a tube, and returns how many were.
pub(crate) fn kick(client: &mut Client, tube: &str, bound: u64) -> Result<u64> {
    client.ask(&format!("use {tube}"))?;
    let reply = client.ask(&format!("kick {}", bound.min(u64::from(u32::MAX))))?;
    let kicked = reply.number().filter(|_| reply.is("KICKED"));
    kicked.ok_or_else(|| reply.unexpected("kick"))
}

/// Runs the command.
pub(crate) fn run(args: &KickArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    let Some(tube) = &args.tube else {
        let refused = kick_ids(&mut client, &args.id)?;
        for id in &refused {
            tell(&format!("beanstalkctl: {id} is no buried or delayed job"));
        }
        tell(&format!("{} kicked.", counted((args.id.len() - refused.len()) as u64, "job")));
        return Ok(Outcome::of(refused.is_empty()));
    };
    let kickable = Kickable::look(&mut client, tube)?;
    let bound = if args.all { kickable.all() } else { u64::from(args.count.unwrap_or(1)) };
    let kicked = kick(&mut client, tube, bound)?;
    tell(&format!("{} kicked.", kickable.counted(kicked)));
    Ok(Outcome::Done)
}

/// Kicks these jobs, and returns those that are neither buried nor delayed.
pub(crate) fn kick_ids(client: &mut Client, ids: &[u64]) -> Result<Vec<u64>> {
    let mut refused = Vec::new();
    let write = |id: &u64, out: &mut Vec<u8>| write_numbered(out, "kick-job", *id);
    client.pipeline(ids.iter().copied(), write, |id, reply| {
        match reply.word() {
            "KICKED" => {}
            "NOT_FOUND" => refused.push(id),
            _ => return Err(reply.unexpected("kick-job")),
        }
        Ok(())
    })?;
    Ok(refused)
}
