//! The commands `list-jobs` and `delete-tube`, which may take many steps.

use std::{collections::BinaryHeap, mem};

use super::{Job, Queue, State, Tube, job::DueKey};
use crate::collections::{Growth, Key, grow};

/// Lists of a tube's jobs in one state, in the order in which they will leave this state.
impl Queue {
    /// The first `count` ready jobs, in the order of their priorities. O(count log count).
    pub fn list_ready(&self, tube: Key<Tube>, count: usize) -> Vec<Key<Job>> {
        self.tubes.arena[tube].ready.first(count)
    }

    /// The first `count` delayed jobs, in the order in which their delays end. O(count log count).
    pub fn list_delayed(&self, tube: Key<Tube>, count: usize) -> Vec<Key<Job>> {
        self.tubes.arena[tube].delayed.first(count)
    }

    /// The first `count` buried jobs, in the order of burial. O(count).
    pub fn list_buried(&self, tube: Key<Tube>, count: usize) -> Vec<Key<Job>> {
        self.tubes.arena[tube].buried.iter(&self.jobs.arena).take(count).collect()
    }
}

/// The progress of a `list-jobs` of reserved jobs. A tube has no list of its reserved jobs, so the
/// command visits all clients.
#[derive(Debug)]
pub struct ListReserved {
    tube: Key<Tube>,
    count: usize,
    /// The index of the client to visit next, and a position in that client's `deadlines` heap.
    next: (usize, usize),
    /// The found jobs with the earliest deadlines; each job may have changed since it was found.
    first: BinaryHeap<(DueKey, Key<Job>)>,
}

/// Listing reserved jobs.
impl Queue {
    /// Begins a list of those `count` reserved jobs of a tube that have the earliest deadlines. The
    /// tube exists at least until [`Queue::unpin`].
    pub fn begin_list_reserved(&mut self, tube: Key<Tube>, count: usize) -> Growth<ListReserved> {
        let mut first = Vec::new();
        grow(&mut first, count + 1)?;
        self.tubes.arena[tube].pins += 1;
        Ok(ListReserved { tube, count, next: (0, 0), first: first.into() })
    }

    /// Continues a `list-jobs`: visits up to `steps` more clients and reserved jobs. After the last
    /// client, returns those found jobs whose deadline has not changed since they were found. The
    /// result reuses the memory of `list`.
    pub fn step_list_reserved(
        &self,
        list: &mut ListReserved,
        steps: usize,
    ) -> Option<Vec<Key<Job>>> {
        for _ in 0..steps {
            let (client, position) = list.next;
            if client >= self.clients.slots() || list.count == 0 {
                return Some(self.still_reserved(mem::take(&mut list.first)));
            }
            let deadlines = self.clients.get(Key::from_index(client)).map(|it| &it.deadlines);
            let Some((due, job)) = deadlines.and_then(|it| it.at(position)) else {
                list.next = (client + 1, 0);
                continue;
            };
            list.next.1 += 1;
            let is_full = list.first.len() == list.count;
            let is_early = !is_full || list.first.peek().is_some_and(|&(last, _)| due < last);
            if is_early && self.jobs.arena[job].tube == list.tube {
                list.first.push((due, job));
                if is_full {
                    list.first.pop();
                }
            }
        }
        None
    }

    /// Of the jobs that a `list-jobs` has found, returns those that still have the same deadline.
    fn still_reserved(&self, found: BinaryHeap<(DueKey, Key<Job>)>) -> Vec<Key<Job>> {
        let mut found = found.into_sorted_vec();
        found.retain(|&(due, job)| {
            let is_same = self.jobs.arena.get(job).is_some_and(|it| it.record.id == due.id);
            is_same && self.deadline(job) == Some(due.at)
        });
        // A job that moved in its client's heap of deadlines may have been found twice.
        found.dedup();
        // `collect` reuses the memory of `found`: keys are smaller than pairs, and equally aligned.
        found.into_iter().map(|(_, job)| job).collect()
    }
}

/// The progress of a `delete-tube`. The command deletes, one at a time, the jobs that existed when
/// it began. A job stays if its state is not the requested state when the command visits the job.
///
/// The command visits the jobs of all tubes in the order of the arena, because jobs move within the
/// heaps and lists of a tube while other clients put and reserve.
#[derive(Debug)]
pub struct DeleteTube {
    tube: Key<Tube>,
    /// Jobs of this state are deleted; if it is `None`, jobs of all states but reserved.
    state: Option<State>,
    /// Jobs with this id or a larger id stay.
    end_id: u64,
    /// The index of the job to visit next.
    next: usize,
    /// The number of jobs deleted so far.
    pub deleted: u64,
}

/// How many jobs a step visits: visiting this many takes no longer than one delete.
const VISITED_PER_STEP: usize = 16;

/// The result of one step of a [`DeleteTube`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteStep {
    /// The caller must delete this job.
    Job(Key<Job>),
    /// This step has found no job to delete, but a later step may find one.
    More,
    /// All jobs to delete have been deleted.
    End,
}

/// Deleting.
impl Queue {
    /// Begins to delete the jobs of a tube with ids up to `last_id`: those in `state`, or all
    /// unreserved jobs if `state` is `None`. The tube exists at least until [`Queue::unpin`].
    pub fn begin_delete_tube(
        &mut self,
        tube: Key<Tube>,
        state: Option<State>,
        last_id: u64,
    ) -> DeleteTube {
        self.tubes.arena[tube].pins += 1;
        let end_id = self.next_id.min(last_id.saturating_add(1));
        DeleteTube { tube, state, end_id, next: 0, deleted: 0 }
    }

    /// Takes one step of a `delete-tube`: looks for a job to delete. If the step returns a job, the
    /// caller must delete the job by [`Queue::delete`]. O(1).
    pub fn step_delete_tube(&self, delete: &mut DeleteTube) -> DeleteStep {
        let is_meant = |it: &Job| {
            let is_idle = it.reserver().is_none();
            it.tube == delete.tube
                && it.record.id < delete.end_id
                && delete.state.map_or(is_idle, |state| it.record.state == state)
        };
        let slots = self.jobs.arena.slots();
        let end = slots.min(delete.next + VISITED_PER_STEP);
        let Tube { ready, delayed, buried, .. } = &self.tubes.arena[delete.tube];
        if delete.next >= end || ready.is_empty() && delayed.is_empty() && buried.is_empty() {
            return DeleteStep::End;
        }
        let mut keys = (delete.next..end).map(Key::from_index);
        let found = keys.find(|&key| self.jobs.arena.get(key).is_some_and(is_meant));
        delete.next = found.map_or(end, |key: Key<Job>| key.index() + 1);
        delete.deleted += u64::from(found.is_some());
        found.map_or(DeleteStep::More, DeleteStep::Job)
    }
}
