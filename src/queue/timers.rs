//! Timers of tubes and clients: when the next timer is due, and what changes when a delay, a pause,
//! a time to run or the timeout of a `reserve` ends.
//!
//! There are three heaps: of tubes with delayed jobs, by the earliest end of a delay; of paused
//! tubes, by the end of the pause; and of clients, by [`Client::due_at`]. A tick looks at the top
//! of each heap, and spends time only on due timers: ten thousand idle tubes cost nothing.
//! Invariant: each heap has exactly the tubes or clients that have a timer of its kind.

use crate::{
    clock::Time,
    collections::{Heap, Key, SmallArena},
    queue::{Client, Expired, Job, Queue, State, Tube, increment, job::DueKey},
};

/// The kinds of timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// Timers of tubes with delayed jobs.
    Delays,
    /// Timers of paused tubes.
    Pauses,
    /// Timers of clients that wait for a job or have reserved jobs.
    Clients,
}

/// The heaps of all timers.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pub(super) delays: Heap<DueKey, Tube>,
    pub(super) pauses: Heap<(Time, Key<Tube>), Tube>,
    pub(super) clients: Heap<(Time, Key<Client>), Client>,
}

impl Timers {
    /// Makes the heaps keep memory for the timers of `count` tubes, even when they shrink.
    pub(super) fn set_tube_capacity(&mut self, count: usize) {
        self.delays.set_min_capacity(count);
        self.pauses.set_min_capacity(count);
    }

    /// Updates a tube's delay timer after a change to the top of `tube.delayed`. O(log tubes).
    pub(super) fn update_delay(&mut self, tubes: &mut SmallArena<Tube>, tube: Key<Tube>) {
        let soonest = tubes[tube].delayed.peek().map(|(due, _)| due);
        let position = tubes[tube].delay_timer;
        set(&mut self.delays, position, soonest, tube, |key, at| tubes[key].delay_timer = at);
    }

    /// Updates a tube's pause timer after a change to `tube.pause`. O(log paused tubes).
    pub(super) fn update_pause(&mut self, tubes: &mut SmallArena<Tube>, tube: Key<Tube>) {
        let until = tubes[tube].pause.map(|pause| (pause.until, tube));
        let position = tubes[tube].pause_timer;
        set(&mut self.pauses, position, until, tube, |key, at| tubes[key].pause_timer = at);
    }

    /// Updates a client's timer after a change of `Client::due_at`. O(log clients).
    pub(super) fn update_client(&mut self, clients: &mut SmallArena<Client>, client: Key<Client>) {
        let at = clients[client].due_at().map(|at| (at, client));
        let position = clients[client].timer;
        set(&mut self.clients, position, at, client, |key, at| clients[key].timer = at);
    }
}

/// Adds an item to a heap of timers or changes its sort key to `key`; removes the item if `key` is
/// `None`.
fn set<K: Ord + Copy, T>(
    heap: &mut Heap<K, T>,
    position: Option<u32>,
    key: Option<K>,
    item: Key<T>,
    mut moved: impl FnMut(Key<T>, Option<u32>),
) {
    match (position, key) {
        (None, None) => {}
        (None, Some(key)) => heap.push(key, item, |item, at| moved(item, Some(at))),
        (Some(position), Some(key)) => {
            heap.update(position, key, |item, at| moved(item, Some(at)));
        }
        (Some(position), None) => {
            heap.remove(position, |item, at| moved(item, Some(at)));
            moved(item, None);
        }
    }
}

impl Queue {
    /// Takes a step to end the pause of a tube: hands out one ready job to a waiting client. If
    /// there is no ready job or no waiting client, ends the pause and returns `None`. O(log n).
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
    /// Handles the earliest timer of kind `timer`, or returns `None` if no timer of this kind is
    /// due at `now`. A tick handles the three kinds in the original's order. O(log n).
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
        let Timers { delays, pauses, clients } = &self.timers;
        let delay = delays.peek().map(|(due, _)| due.at);
        let pause = pauses.peek().map(|((at, _), _)| at);
        let client = clients.peek().map(|((at, _), _)| at);
        [delay, pause, client].into_iter().flatten().min()
    }

    /// Handles the due timer of a client: ends the client's wait, or takes from it a job whose time
    /// to run is over.
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
