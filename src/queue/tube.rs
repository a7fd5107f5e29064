//! Tubes: named lanes of jobs, and the clients that wait at their end.
//!
//! A tube lives while it has jobs, users or watchers; `default` lives always.

use crate::{
    clock::Time,
    collections::{Arena, Entry, Heap, Key, List, NameTable, Named},
    memory::{Need, OutOfMemory, Room},
    queue::{
        client::Watch,
        job::{DueKey, Job, ReadyKey},
    },
};

/// A pause in force.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    /// The length asked for, in seconds.
    pub seconds: u32,
    /// When reserving goes on.
    pub until: Time,
}

/// One tube.
#[derive(Debug)]
pub struct Tube {
    /// Its name, 1 to 200 bytes.
    entry: Entry<Tube>,
    /// Has room for all jobs of the tube: any may become ready when nothing can be refused.
    pub(super) ready: Heap<ReadyKey, Job>,
    pub(super) delayed: Heap<DueKey, Job>,
    pub(super) buried: List<Job>,
    /// Watches of clients that wait for a job, or did: see [`super::line`].
    pub(super) line: Heap<u64, Watch>,
    /// In force or not; ended by the timers, not by looking at the clock.
    pub pause: Option<Pause>,
    /// Jobs in any state; the tube cannot go while there is one.
    jobs: usize,
    /// Connections that put into it.
    pub users: u32,
    /// Connections that reserve from it.
    pub watchers: u32,
    /// Kicks in progress, which need it until they end; for `default`, one more.
    pub(super) pins: u32,
    /// Ready jobs of a priority below [`super::job::URGENT`].
    pub urgent: u64,
    /// Jobs that a worker holds.
    pub reserved: u64,
    /// Jobs ever put here.
    pub total_jobs: u64,
    /// Jobs deleted by command.
    pub deletes: u64,
    /// `pause-tube` commands.
    pub pauses: u64,
    /// Place in the timers' heap of tubes by soonest delayed job.
    pub(super) delay_timer: Option<u32>,
    /// Place in the timers' heap of paused tubes.
    pub(super) pause_timer: Option<u32>,
    /// Place in the list of all tubes.
    place: usize,
}

impl Named for Tube {
    fn entry(&self) -> &Entry<Self> {
        &self.entry
    }
    fn entry_mut(&mut self) -> &mut Entry<Self> {
        &mut self.entry
    }
}

impl Tube {
    /// Its name, 1 to 200 bytes.
    pub fn name(&self) -> &str {
        self.entry.name()
    }

    /// How many jobs there are in any state.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
    }

    /// A job more; [`Heap::make_room`] of the ready ones makes sure of its memory.
    pub(super) fn gain_job(&mut self) {
        self.jobs += 1;
        self.ready.keep(self.jobs);
    }

    /// A job less.
    pub(super) fn lose_job(&mut self) {
        self.jobs -= 1;
        self.ready.keep(self.jobs);
    }

    /// How many jobs are ready.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// How many jobs are delayed.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// How many jobs are buried.
    pub fn buried(&self) -> usize {
        self.buried.len()
    }

    fn is_idle(&self) -> bool {
        self.jobs == 0 && self.users == 0 && self.watchers == 0 && self.pins == 0
    }
}

/// All tubes, by key, by name, and in the order `list-tubes` shows.
#[derive(Debug, Default)]
pub(super) struct Tubes {
    pub(super) arena: Arena<Tube>,
    names: NameTable<Tube>,
    /// The original's order: newcomers at the end; whoever leaves is replaced by the last.
    order: Vec<Key<Tube>>,
    /// Bytes of all names.
    name_bytes: usize,
    /// By index: what each tube would give to a worker, close together for those who watch many.
    offers: Vec<ReadyKey>,
    /// How many of these are not [`ReadyKey::NONE`]: often none, and then nobody need look.
    offering: usize,
}

impl Tubes {
    pub(super) fn find(&self, name: &str) -> Option<Key<Tube>> {
        self.names.find(&self.arena, name)
    }

    /// Makes sure that a tube of this name finds memory. O(1), unless a list must move.
    pub(super) fn make_room(&mut self, name: &str, room: &mut Room) -> Result<(), OutOfMemory> {
        self.arena.make_room(Need::More, room)?;
        self.names.make_room(name, room)?;
        let (tubes, offers) = (self.order.len() + 1, self.offers.len() + 1);
        room.grow(Need::More, &mut self.order, tubes)?;
        room.grow(Need::More, &mut self.offers, offers)
    }

    /// Adds a tube whose name no other has.
    pub(super) fn make(&mut self, name: &str) -> Key<Tube> {
        let tube = self.arena.insert(Tube {
            entry: self.names.entry(name),
            ready: Heap::default(),
            delayed: Heap::default(),
            buried: List::default(),
            line: Heap::default(),
            pause: None,
            jobs: 0,
            users: 0,
            watchers: 0,
            pins: 0,
            urgent: 0,
            reserved: 0,
            total_jobs: 0,
            deletes: 0,
            pauses: 0,
            delay_timer: None,
            pause_timer: None,
            place: self.order.len(),
        });
        if self.offers.len() <= tube.index() {
            self.offers.resize(tube.index() + 1, ReadyKey::NONE);
        }
        self.names.insert(&mut self.arena, tube);
        self.order.push(tube);
        self.name_bytes += name.len();
        tube
    }

    /// Whether nothing needs the tube any more.
    pub(super) fn is_idle(&self, tube: Key<Tube>) -> bool {
        self.arena[tube].is_idle()
    }

    /// The order of the job that the tube would give to a worker; or [`ReadyKey::NONE`].
    pub(super) fn offer(&self, tube: Key<Tube>) -> ReadyKey {
        self.offers[tube.index()]
    }

    /// Call after any change to the top of `ready` or to `pause`.
    pub(super) fn note_offer(&mut self, key: Key<Tube>) {
        let tube = &self.arena[key];
        let offer = tube.ready.peek().filter(|_| tube.pause.is_none());
        let offer = offer.map_or(ReadyKey::NONE, |(order, _)| order);
        let before = std::mem::replace(&mut self.offers[key.index()], offer);
        self.offering -= usize::from(before != ReadyKey::NONE);
        self.offering += usize::from(offer != ReadyKey::NONE);
    }

    /// Whether any tube has something for a worker.
    pub(super) fn is_any_offering(&self) -> bool {
        self.offering > 0
    }

    /// Forgets an idle tube.
    pub(super) fn remove(&mut self, key: Key<Tube>) {
        self.names.remove(&mut self.arena, key);
        let tube = self.arena.remove(key);
        assert!(tube.is_idle() && tube.delay_timer.is_none() && tube.pause_timer.is_none());
        self.order.swap_remove(tube.place);
        self.name_bytes -= tube.name().len();
        if let Some(&moved) = self.order.get(tube.place) {
            self.arena[moved].place = tube.place;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Bytes of all names.
    pub(super) fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    /// The tube at this place of the list.
    pub(super) fn at(&self, place: usize) -> Key<Tube> {
        self.order[place]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Key<Tube>> {
        self.order.iter().copied()
    }

    /// Panics where the three indexes disagree.
    pub(super) fn check(&self) {
        assert_eq!(self.order.len(), self.arena.len());
        assert_eq!(self.order.len(), self.names.len());
        for (place, &key) in self.order.iter().enumerate() {
            assert_eq!(self.arena[key].place, place);
            assert_eq!(self.find(self.arena[key].name()), Some(key));
            let Tube { ready, pause, .. } = &self.arena[key];
            let offer = ready.peek().filter(|_| pause.is_none()).map(|(order, _)| order);
            assert_eq!(self.offer(key), offer.unwrap_or(ReadyKey::NONE));
        }
        let names = self.order.iter().map(|&key| self.arena[key].name().len());
        assert_eq!(self.name_bytes, names.sum::<usize>());
        let offering = self.offers.iter().filter(|&&offer| offer != ReadyKey::NONE).count();
        assert_eq!(self.offering, offering);
    }
}
