//! For each tube, the clients that wait for a job, and which of them has waited longest.
//!
//! A client waits at every tube it watches, perhaps thousands, and gets a job from only one tube.
//! So when a wait ends, its entries stay in the `waiters` heaps of these tubes. Each entry has the
//! sequence number of a wait. A search gives the top entry the number of its client's present wait,
//! or removes the entry if its client no longer waits.
//!
//! Invariant: a waiting client has an entry in `waiters` of each tube it watches, with the number
//! of its present wait or a smaller number. So if the top entry has the number of its client's
//! present wait, this client has waited longest. An entry is corrected at most once per wait, so
//! corrections never cost more than adding all entries anew for each wait.

use super::{Client, Queue, Tube, client::Wait};
use crate::{
    clock::Time,
    collections::{Growth, Key},
};

impl Queue {
    /// How many bytes [`Queue::wait`] would allocate. O(entries removed since the last wait).
    pub fn bytes_to_wait(&self, client: Key<Client>) -> usize {
        let unqueued = self.clients[client].unqueued.iter();
        let tubes = unqueued.map(|&watch| &self.tubes.arena[self.watches[watch].tube]);
        tubes.map(|tube| tube.waiters.growth_bytes()).sum()
    }

    /// Makes the client wait at every tube it watches until `until`, or for ever if `until` is
    /// `None`. Call this method only if none of these tubes has a job for the client. If there is
    /// no memory for the wait or for a job, fails and changes nothing. O(log n) for each of the
    /// client's entries that was removed since its last wait.
    pub fn wait(&mut self, client: Key<Client>, until: Option<Time>) -> Growth {
        let Self { tubes, clients, watches, is_resident, .. } = self;
        let of_client = &mut clients[client];
        for &watch in &of_client.unqueued {
            tubes.arena[watches[watch].tube].waiters.make_room(*is_resident)?;
        }
        of_client.deadlines.make_room(*is_resident)?;
        self.wait_count += 1;
        let number = self.wait_count;
        of_client.waiting = Some(Wait { sequence: number, until });
        while let Some(watch) = of_client.unqueued.pop() {
            let waiters = &mut tubes.arena[watches[watch].tube].waiters;
            waiters.push(number, watch, |watch, at| watches[watch].queue_position = Some(at));
        }
        self.counts.waiting += 1;
        self.timers.update_client(clients, client);
        Ok(())
    }

    /// Ends the client's wait, if it waits.
    pub fn stop_waiting(&mut self, client: Key<Client>) {
        if self.clients[client].waiting.take().is_some() {
            self.counts.waiting -= 1;
            self.timers.update_client(&mut self.clients, client);
        }
    }

    /// The client that has waited longest for a job of this tube.
    pub(super) fn first_waiting(&mut self, tube: Key<Tube>) -> Option<Key<Client>> {
        let Self { tubes, clients, watches, .. } = self;
        let waiters = &mut tubes.arena[tube].waiters;
        while let Some((number, watch)) = waiters.peek() {
            let key = watches[watch].client;
            let client = &mut clients[key];
            match client.waiting {
                Some(wait) if wait.sequence == number => return Some(key),
                Some(wait) => {
                    waiters.update(0, wait.sequence, |watch, at| {
                        watches[watch].queue_position = Some(at);
                    });
                }
                None => {
                    waiters.remove(0, |watch, at| watches[watch].queue_position = Some(at));
                    watches[watch].queue_position = None;
                    client.unqueued.push(watch);
                }
            }
        }
        None
    }

    /// How many clients wait for a job of this tube. O(entries in its `waiters`).
    pub fn waiting(&self, tube: Key<Tube>) -> usize {
        let waiters = self.tubes.arena[tube].waiters.iter();
        waiters.filter(|&(_, watch)| self.clients[self.watches[watch].client].is_waiting()).count()
    }

    /// How many entries the tube's `waiters` has: at most one for each client that watches it.
    pub fn waiter_entries(&self, tube: Key<Tube>) -> usize {
        self.tubes.arena[tube].waiters.len()
    }
}
