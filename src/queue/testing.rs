//! A check of all invariants of the queue, which tests call after every step.

use super::{Client, Counts, Queue, State, Tube, job::ReadyKey, timers::Timers, tube::Tubes};
use crate::collections::{Key, SmallArena};

impl Queue {
    /// How many jobs, tubes, watches and clients have been looked up so far; see `Arena::visits`.
    pub fn visits(&self) -> u64 {
        let jobs = self.jobs.arena.visits();
        jobs + self.tubes.arena.visits() + self.watches.visits() + self.clients.visits()
    }

    /// Panics if an invariant is violated. O(all jobs, tubes and clients): for tests.
    pub fn check(&self) {
        self.tubes.check();
        self.timers.check(&self.tubes.arena, &self.clients);
        let jobs = &self.jobs.arena;
        let mut found = Counts::default();
        for (key, job) in jobs.iter() {
            assert_eq!(self.jobs.ids.get(job.record.id), Some(key));
            found.urgent += u64::from(job.record.state == State::Ready && job.is_urgent());
            match job.record.state {
                State::Ready => found.ready += 1,
                State::Reserved(_) => found.reserved += 1,
                State::Delayed => found.delayed += 1,
                State::Buried => found.buried += 1,
            }
        }
        for (key, tube) in self.tubes.arena.iter() {
            self.check_tube(key, tube);
        }
        let mut waiting = 0;
        for (key, client) in self.clients.iter() {
            client.deadlines.check(|job| jobs[job].position);
            client.reserved.check(jobs);
            assert_eq!(client.reserved.len(), client.deadlines.len());
            assert!(client.reserved.iter(jobs).all(|job| jobs[job].reserver() == Some(key)));
            waiting += u32::from(client.is_waiting());
            if !client.has_left {
                let unqueued =
                    |(_, watch): &(_, Key<_>)| self.watches[*watch].queue_position.is_none();
                let count = client.watching.iter().filter(|pair| unqueued(pair)).count();
                assert_eq!(count, client.unqueued.len());
                assert!(client.unqueued.iter().all(|&watch| self.watches[watch].client == key));
            }
            assert!(!client.is_waiting() || client.unqueued.is_empty());
        }
        assert_eq!(waiting, self.counts.waiting);
        let counts = &self.counts;
        assert_eq!(
            (found.urgent, found.ready, found.reserved, found.delayed, found.buried),
            (counts.urgent, counts.ready, counts.reserved, counts.delayed, counts.buried),
        );
    }

    fn check_tube(&self, key: Key<Tube>, tube: &Tube) {
        let jobs = &self.jobs.arena;
        tube.ready.check(|job| jobs[job].position);
        tube.delayed.check(|job| jobs[job].position);
        tube.buried.check(jobs);
        tube.waiters.check(|watch| self.watches[watch].queue_position.unwrap_or(u32::MAX));
        let places = [
            (State::Ready, tube.ready.iter().map(|(_, job)| job).collect::<Vec<_>>()),
            (State::Delayed, tube.delayed.iter().map(|(_, job)| job).collect()),
            (State::Buried, tube.buried.iter(jobs).collect()),
        ];
        for (state, held) in &places {
            for &job in held {
                assert_eq!((jobs[job].record.state, jobs[job].tube), (*state, key));
            }
        }
        let resting: usize = places.iter().map(|(_, held)| held.len()).sum();
        assert_eq!(tube.jobs as u64, resting as u64 + tube.reserved);
        for (number, watch) in tube.waiters.iter() {
            assert_eq!(self.watches[watch].tube, key);
            let wait = self.clients[self.watches[watch].client].waiting;
            assert!(wait.is_none_or(|wait| wait.sequence >= number));
        }
        assert!(
            self.is_frozen
                || tube.pause.is_some()
                || tube.ready.is_empty()
                || self.waiting(key) == 0,
            "{} has both a ready job and a waiting client",
            self.tube_name(key)
        );
        assert!(!tube.is_idle(), "{} is idle and still there", self.tube_name(key));
    }
}

impl Timers {
    /// Panics if a heap of timers, or a position that a tube or client stores, is wrong.
    pub(super) fn check(&self, tubes: &SmallArena<Tube>, clients: &SmallArena<Client>) {
        let none = u32::MAX;
        self.delays.check(|tube| tubes[tube].delay_timer.unwrap_or(none));
        self.pauses.check(|tube| tubes[tube].pause_timer.unwrap_or(none));
        self.clients.check(|client| clients[client].timer.unwrap_or(none));
        for (_, tube) in tubes.iter() {
            assert_eq!(tube.delayed.is_empty(), tube.delay_timer.is_none());
            assert_eq!(tube.pause.is_none(), tube.pause_timer.is_none());
        }
        for (key, client) in clients.iter() {
            assert_eq!(client.due_at().is_none(), client.timer.is_none());
            if let Some(at) = client.due_at() {
                assert!(self.clients.iter().any(|(due, item)| item == key && due == (at, key)));
            }
        }
        for (due, tube) in self.delays.iter() {
            assert_eq!(tubes[tube].delayed.peek().map(|(soonest, _)| soonest), Some(due));
        }
    }
}

impl Tubes {
    /// Panics if the tables of tubes by key, by name and by order do not have the same tubes.
    pub(super) fn check(&self) {
        assert_eq!(self.order.len(), self.arena.len());
        assert_eq!(self.order.len() + 1, self.names.buckets.len());
        let bytes = self.order.iter().map(|&key| self.names.name(key).len());
        assert_eq!(bytes.sum::<usize>(), self.names.bytes());
        for (order_index, &key) in self.order.iter().enumerate() {
            assert_eq!(self.arena[key].order_index, order_index);
            assert_eq!(self.find(self.names.name(key)), Some(key));
            let Tube { ready, pause, .. } = &self.arena[key];
            let best = ready.peek().filter(|_| pause.is_none()).map(|(order, _)| order);
            assert_eq!(self.best_ready[key.index()], best.unwrap_or(ReadyKey::NONE));
        }
        let with_ready_job = self.best_ready.iter().filter(|&&best| best != ReadyKey::NONE).count();
        assert_eq!(self.with_ready_job, with_ready_job);
    }
}
