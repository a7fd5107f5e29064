//! Keeps the schedule of a run: sleeps between bursts, and sends keep-alives meanwhile.

use std::thread;
use std::time::Duration;

use super::{Outgoing, Runner, StopReason};
use crate::diff::operation::{INSPECTOR, Operation};
use crate::diff::side::Chunk;
use crate::diff::tracker::Tracker;

/// When a burst is one, two, three … seconds old, keep-alives are sent after these further times.
const KEEP_ALIVE_OFFSETS: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(190)];

impl Runner<'_> {
    /// Lets time pass in a run, with keep-alives if a daemon needs them.
    pub(super) fn sleep(&mut self, time: Duration) -> Result<(), StopReason> {
        let (from, to) = (self.scheduled, self.scheduled + time);
        self.clear_queues(Tracker::has_only_private_queued_commands)?;
        if self.has_mask("timer-lost") {
            self.prepare_holders()?;
            for moment in self.keep_alive_times(from, to) {
                self.wait_until(moment);
                self.send_keep_alives()?;
            }
        }
        self.wait_until(to);
        self.burst_starts.push(to);
        self.settle(INSPECTOR, 0, false)
    }

    /// Before a pause, half-closes each connection with queued commands, unless `may_stay` returns
    /// true for it.
    fn clear_queues(&mut self, may_stay: impl Fn(&Tracker) -> bool) -> Result<(), StopReason> {
        let queues =
            self.trackers.iter().filter(|(_, it)| it.has_queued_commands() && !may_stay(it));
        for peer in queues.map(|(&peer, _)| peer).collect::<Vec<_>>() {
            self.run_one(&Operation::HalfClose(peer))?;
        }
        Ok(())
    }

    /// Sleeps until a time of the schedule.
    fn wait_until(&mut self, moment: Duration) {
        thread::sleep(moment.saturating_sub(self.started.elapsed()));
        self.slept += moment.saturating_sub(self.scheduled);
        self.scheduled = moment;
    }

    /// Returns the times at which clients that hold jobs send keep-alives: shortly after each time
    /// at which a timer may end. The original may not notice that a timer has ended until the job's
    /// holder sends a command.
    fn keep_alive_times(&self, from: Duration, to: Duration) -> Vec<Duration> {
        let seconds = |burst: &Duration| {
            let burst = *burst;
            (1..=to.as_secs() + 1).map(move |second| burst + Duration::from_secs(second))
        };
        let ends = self.burst_starts.iter().flat_map(seconds);
        let keep_alive_times = ends.flat_map(|end| KEEP_ALIVE_OFFSETS.map(|later| end + later));
        let mut keep_alive_times: Vec<Duration> =
            keep_alive_times.filter(|time| (from..to).contains(time)).collect();
        keep_alive_times.sort_unstable();
        keep_alive_times
    }

    /// Sends a command on every connection that holds a job.
    fn send_keep_alives(&mut self) -> Result<(), StopReason> {
        let holders = self.trackers.iter().filter(|(_, it)| it.is_idle() && it.held(0).is_some());
        for peer in holders.map(|(&peer, _)| peer).collect::<Vec<_>>() {
            if !self.unsent.contains_key(&peer) && !self.half_closed.contains(&peer) {
                self.send_now(peer, &[keep_alive()])?;
            }
        }
        Ok(())
    }

    /// Prepares keep-alives for the connections that hold jobs. If a connection holds a job,
    /// half-closes each other connection that may be waiting for a job: it might get this job if
    /// the job's time to run ends before the holder's next `touch`. Closes each connection that
    /// holds a job but cannot send a keep-alive.
    fn prepare_holders(&mut self) -> Result<(), StopReason> {
        for peer in self.trackers.keys().copied().collect::<Vec<_>>() {
            let holds = |tracker: &Tracker| tracker.held(0).is_some();
            let Some(tracker) = self.trackers.get(&peer) else { continue };
            if tracker.may_wait() && self.others(peer).any(holds) {
                self.run_one(&Operation::HalfClose(peer))?;
            } else if holds(tracker) {
                let is_sent = self.send_rest(peer)?;
                let is_stuck = |tracker: &Tracker| !tracker.is_idle() && !tracker.may_wait();
                if !is_sent || self.trackers.get(&peer).is_some_and(is_stuck) {
                    self.run_one(&Operation::Close(peer))?;
                }
            }
        }
        Ok(())
    }
}

/// Makes the command of a keep-alive, which changes nothing but the counter of this command.
fn keep_alive() -> Outgoing {
    Outgoing { chunks: vec![Chunk::Bytes(b"list-tube-used\r\n".to_vec())], put: None }
}
