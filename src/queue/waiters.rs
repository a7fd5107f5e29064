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
    memory::{Need, OutOfMemory, Room},
};

impl Queue {
    /// Makes sure that [`Queue::wait`] finds memory, and later the job that the client waits for.
    /// O(places it has lost since it waited last).
    pub fn make_room_to_wait(
        &mut self,
        client: Key<Client>,
        room: &mut Room,
    ) -> Result<(), OutOfMemory> {
        let Self { tubes, clients, watches, .. } = self;
        let client = &mut clients[client];
        for &watch in &client.absent {
            tubes.arena[watches[watch].tube].line.make_room(Need::Least, room)?;
        }
        client.deadlines.make_room(Need::Least, room)
    }

    /// Puts the client in line at every tube it watches, until `until` if given. Its tubes must
    /// have had nothing for it. O(log n) for each place it has lost since it waited last.
    pub fn wait(&mut self, client: Key<Client>, until: Option<Time>) {
        let Self { tubes, clients, watches, .. } = self;
        self.waits += 1;
        let number = self.waits;
        clients[client].waiting = Some(Wait { number, until });
        while let Some(watch) = clients[client].absent.pop() {
            let line = &mut tubes.arena[watches[watch].tube].line;
            line.push(number, watch, |watch, at| watches[watch].place = Some(at));
        }
        self.counts.waiting += 1;
        self.timers.note_client(&mut self.clients, client);
    }

    /// Lets the client wait no longer, if it did.
    pub fn stop_waiting(&mut self, client: Key<Client>) {
        if self.clients[client].waiting.take().is_some() {
            self.counts.waiting -= 1;
            self.timers.note_client(&mut self.clients, client);
        }
    }

    /// The client that has waited longest for a job of this tube.
    pub(super) fn first_waiting(&mut self, tube: Key<Tube>) -> Option<Key<Client>> {
        let Self { tubes, clients, watches, .. } = self;
        let line = &mut tubes.arena[tube].line;
        while let Some((number, watch)) = line.peek() {
            let key = watches[watch].client;
            let client = &mut clients[key];
            match client.waiting {
                Some(wait) if wait.number == number => return Some(key),
                Some(wait) => {
                    line.update(0, wait.number, |watch, at| watches[watch].place = Some(at));
                }
                None => {
                    line.remove(0, |watch, at| watches[watch].place = Some(at));
                    watches[watch].place = None;
                    client.absent.push(watch);
                }
            }
        }
        None
    }

    /// How many clients wait for a job of this tube. O(places in its line).
    pub fn waiting(&self, tube: Key<Tube>) -> usize {
        let line = self.tubes.arena[tube].line.iter();
        line.filter(|&(_, watch)| self.clients[self.watches[watch].client].is_waiting()).count()
    }

    /// How many places the tube's line has: as many clients watch it, at most.
    pub fn line(&self, tube: Key<Tube>) -> usize {
        self.tubes.arena[tube].line.len()
    }
}
