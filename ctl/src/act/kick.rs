//! `kick`: buried or delayed jobs become ready.

use anyhow::{Result, bail};

use super::put::use_tube;
use crate::cli::KickArgs;
use crate::client::{Client, write_numbered};
use crate::context::{Context, Outcome, counted, tell};
use crate::interrupt::Interrupt;
use crate::job::State;
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

    /// Returns of which state these are.
    pub(crate) fn state(self) -> State {
        if self.buried > 0 { State::Buried } else { State::Delayed }
    }

    /// Counts jobs of that state in words.
    pub(crate) fn counted(self, count: u64) -> String {
        counted(count, &format!("{} job", self.state()))
    }
}

/// Kicks at most `bound` jobs of a tube, and returns how many were.
pub(crate) fn kick(
    client: &mut Client,
    tube: &str,
    bound: u64,
    interrupt: &Interrupt,
) -> Result<u64> {
    use_tube(client, tube)?;
    let command = format!("kick {}", bound.min(u64::from(u32::MAX)));
    let reply = client.ask_slowly(&command, interrupt)?;
    let kicked = reply.number().filter(|_| reply.is("KICKED"));
    kicked.ok_or_else(|| reply.unexpected("kick"))
}

/// Runs the command.
pub(crate) fn run(args: &KickArgs, context: &mut Context) -> Result<Outcome> {
    let mut client = context.client()?;
    let Some(tube) = &args.tube else {
        let ids = super::delete::ids(&args.id, &context.interrupt)?;
        return kick_told(&mut client, &ids);
    };
    let kickable = Kickable::look(&mut client, tube)?;
    let bound = if args.all { kickable.all() } else { u64::from(args.count.unwrap_or(1)) };
    let kicked = kick(&mut client, tube, bound, &context.interrupt)?;
    tell(&format!("{} kicked.", kickable.counted(kicked)));
    Ok(Outcome::Done)
}

/// Kicks these jobs, and tells how many were, also if it fails half-way.
fn kick_told(client: &mut Client, ids: &[u64]) -> Result<Outcome> {
    let mut kicked = 0;
    let result = kick_ids(client, ids, |id, is_kicked| {
        if is_kicked {
            kicked += 1;
        } else {
            tell(&format!("beanstalkctl: {id} is no buried or delayed job"));
        }
    });
    tell(&format!("{} kicked.", counted(kicked, "job")));
    result?;
    Ok(Outcome::of(kicked == ids.len() as u64))
}

/// Kicks these jobs, and tells of each whether it was; otherwise it is neither buried nor delayed.
pub(crate) fn kick_ids(
    client: &mut Client,
    ids: &[u64],
    mut take: impl FnMut(u64, bool),
) -> Result<()> {
    let write = |id: &u64, out: &mut Vec<u8>| write_numbered(out, "kick-job", *id);
    client.pipeline(ids.iter().copied(), write, |id, reply| {
        match reply.word() {
            "KICKED" => take(id, true),
            "NOT_FOUND" => take(id, false),
            _ => return Err(reply.unexpected("kick-job")),
        }
        Ok(())
    })
}
