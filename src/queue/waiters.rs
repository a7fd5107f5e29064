//! Who waits for a job of which tube, and since when.
//!
//! A client waits at every tube it watches, which may be thousands, and mostly gets its job from
//! one of them. So it does not walk along all the lines each time: its places in them stay, under
//! the number of the wait they were taken for, and are put right when they come to the front.
//!
//! Invariant: a client that waits has a place in the line of each tube it watches, under the
//! number of this wait or a smaller one. So whoever is first in line, and there under the right
//! number, has waited longest. A place is put right at most once for each wait, so lines cost
//! nobody more than taking all places anew each time would.

use super::{Client, Queue, Tube, client::Wait};
use crate::{
    clock::Time,
    collections::Key,
    memory::{MemoryBudget, Need, OutOfMemory},
};

impl Queue {
    /// Makes sure that [`Queue::wait`] finds memory, and later the job that the client waits for.
    /// O(places it has lost since it waited last).
    pub fn ensure_memory_to_wait(
        &mut self,
        client: Key<Client>,
        budget: &mut MemoryBudget,
    ) -> Result<(), OutOfMemory> {
        let Self { tubes, clients, watches, .. } = self;
        let client = &mut clients[client];
        for &watch in &client.unqueued {
            tubes.arena[watches[watch].tube].waiters.ensure_memory(Need::Essential, budget)?;
        }
        client.deadlines.ensure_memory(Need::Essential, budget)
    }

    /// Puts the client in line at every tube it watches, until `until` if given. Its tubes must
    /// have had nothing for it. O(log n) for each place it has lost since it waited last.
    pub fn wait(&mut self, client: Key<Client>, until: Option<Time>) {
        let Self { tubes, clients, watches, .. } = self;
        self.wait_count += 1;
        let number = self.wait_count;
        clients[client].waiting = Some(Wait { sequence: number, until });
        while let Some(watch) = clients[client].unqueued.pop() {
            let waiters = &mut tubes.arena[watches[watch].tube].waiters;
            waiters.push(number, watch, |watch, at| watches[watch].queue_position = Some(at));
        }
        self.counts.waiting += 1;
        self.timers.update_client(&mut self.clients, client);
    }

    /// Lets the client wait no longer, if it did.
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

    /// How many clients wait for a job of this tube. O(places in its line).
    pub fn waiting(&self, tube: Key<Tube>) -> usize {
        let waiters = self.tubes.arena[tube].waiters.iter();
        waiters.filter(|&(_, watch)| self.clients[self.watches[watch].client].is_waiting()).count()
    }

    /// How many places the tube's line has: as many clients watch it, at most.
    pub fn waiter_entries(&self, tube: Key<Tube>) -> usize {
        self.tubes.arena[tube].waiters.len()
    }
}
