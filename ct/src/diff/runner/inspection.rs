//! Inspects both daemons at the end of a run, by reading all state and reserving every job.

use super::{INSPECTION_TIME_MAX, Runner, StopReason};
use crate::diff::operation::{Command, INSPECTOR, Job, Operation, Peer};
use crate::diff::record::Event;
use crate::diff::reply::Reply;
use crate::diff::tracker::Tracker;

/// The most repetitions of a command that kicks or reserves one job.
const DRAIN_ROUNDS_MAX: usize = 40;

impl Runner<'_> {
    /// Inspects both daemons at the end of a run: reads all state, and reserves every job.
    pub(super) fn inspect(&mut self) -> Result<(), StopReason> {
        self.burst_time_max = INSPECTION_TIME_MAX;
        let peers: Vec<Peer> = self.trackers.keys().copied().collect();
        for &peer in &peers {
            if self.trackers.get(&peer).is_some_and(Tracker::has_queued_commands) {
                self.inspect_by(&Operation::HalfClose(peer))?;
            }
        }
        let tubes = self.inspect_all()?;
        for tube in &tubes {
            let first =
                [format!("use {tube}"), format!("pause-tube {tube} 0"), format!("watch {tube}")];
            let first = first.map(Command::line).into_iter();
            self.inspect_with(first.chain([Command::line("peek-ready")]).collect())?;
            self.inspect_until(&["peek-buried", "peek-delayed", "kick 1"], |last| {
                last != "KICKED 1"
            })?;
        }
        self.inspect_until(&["reserve-with-timeout 0"], |last| !last.starts_with("RESERVED"))?;
        for &peer in &peers {
            self.inspect_by(&Operation::Close(peer))?;
        }
        self.inspect_all().map(drop)
    }

    /// Inspects all statistics and jobs, and returns the names of the tubes.
    fn inspect_all(&mut self) -> Result<Vec<String>, StopReason> {
        self.inspect_with(["stats", "list-tubes"].map(Command::line).to_vec())?;
        let tubes: Vec<String> = match self.record.events.last() {
            Some(Event::Answered(_, Reply::Yaml(lines))) => {
                let names = lines.iter().filter_map(|line| line.strip_prefix(b"- "));
                names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
            }
            _ => Vec::new(),
        };
        let mut commands: Vec<Command> =
            tubes.iter().map(|tube| Command::line(format!("stats-tube {tube}"))).collect();
        let top = self.job_ids.keys().next_back().copied().unwrap_or_default();
        for id in 1..=top + 1 {
            for word in ["stats-job", "peek"] {
                commands.push(match self.job_ids.get(&id) {
                    Some(Some(put)) => Command::on_job(word, Job::Put(*put), ""),
                    _ => Command::line(format!("{word} {id}")),
                });
            }
        }
        self.inspect_with(commands)?;
        Ok(tubes)
    }

    /// Repeats commands of the inspection, at most [`DRAIN_ROUNDS_MAX`] times, until `is_last`
    /// accepts the first line of the reply to the last command.
    fn inspect_until(
        &mut self,
        lines: &[&str],
        is_last: fn(&str) -> bool,
    ) -> Result<(), StopReason> {
        for _ in 0..DRAIN_ROUNDS_MAX {
            let round = lines.iter().map(|line| Command::line(*line));
            let last = self.inspect_with(round.collect())?;
            if is_last(&last) {
                break;
            }
        }
        Ok(())
    }

    /// Sends commands of the inspection and returns the first line of the last answer.
    fn inspect_with(&mut self, commands: Vec<Command>) -> Result<String, StopReason> {
        // The commands are recorded one by one, so that shrinking can remove each of them.
        self.inspection.extend(commands.iter().map(|it| Operation::send(INSPECTOR, it.clone())));
        self.run_one(&Operation::Send { peer: INSPECTOR, commands, cut: None })?;
        self.check_schedule()?;
        Ok(match self.record.events.last() {
            Some(Event::Answered(INSPECTOR, reply)) => {
                String::from_utf8_lossy(reply.head()).into_owned()
            }
            _ => String::new(),
        })
    }

    /// Executes an operation of the inspection, and adds it to the inspection's operations.
    fn inspect_by(&mut self, operation: &Operation) -> Result<(), StopReason> {
        self.inspection.push(operation.clone());
        self.run_one(operation)?;
        self.check_schedule()
    }
}
