//! Timers that expire: delays, pauses, times to run and reserve timeouts.

use super::{Client, Expired, Job, Queue, State, Timer, Tube, increment, timers::Timers};
use crate::{clock::Time, collections::Key};

impl Queue {
    /// Takes one step in ending a tube's pause: hands one ready job to a waiting client. If there
    /// is no such job or client, lifts the pause and returns `None`. O(log n).
    pub fn end_pause(&mut self, tube: Key<Tube>, now: Time) -> Option<(Key<Client>, Key<Job>)> {
        let pair = self.match_one(tube, now);
        if pair.is_none() {
            self.set_pause(tube, None);
        }
        pair
    }
}

/// Timers.
impl Queue {
    /// Serves the earliest timer of kind `timer`. Returns `None` if none is due at `now`. A tick
    /// serves the kinds in the order of [`Timer::ALL`]. O(log n).
    pub fn expire(&mut self, timer: Timer, now: Time) -> Option<Expired> {
        let Timers { delays, pauses, clients } = &self.timers;
        match timer {
            Timer::Delays => {
                let (due, tube) = delays.peek().filter(|(due, _)| { due.at } <= now)?;
                let job = self.first_delayed(tube).expect("its timer implies a delayed job");
                self.detach(job);
                self.place(job, State::Ready, due.at);
                Some(Expired::Ready(tube))
            }
            Timer::Pauses => {
                let (_, tube) = pauses.peek().filter(|((at, _), _)| *at <= now)?;
                Some(Expired::PauseOver(tube))
            }
            Timer::Clients => {
                let (_, client) = clients.peek().filter(|((at, _), _)| *at <= now)?;
                Some(self.expire_client(client, now))
            }
        }
    }

    /// When the next timer is due, if nothing changes before then.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    fn expire_client(&mut self, client: Key<Client>, now: Time) -> Expired {
        if self.clients[client].is_waiting() {
            self.stop_waiting(client);
            if self.clients[client].is_deadline_soon(now) {
                return Expired::DeadlineSoon(client);
            }
            return Expired::TimedOut(client);
        }
        let (due, job) = self.clients[client].deadlines.peek().expect("its timer has a deadline");
        increment(&mut self.jobs.arena[job].record.history.timeouts);
        self.counts.timeouts += 1;
        Expired::Lost(job, due.at)
    }
}
